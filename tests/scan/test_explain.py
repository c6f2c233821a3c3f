"""The evidence on a head in words: the numbers of the table, and reasons for what is missing."""

import pandas as pd
import pytest
from drawn import effects_of, made_up

import interp
from interp.errors import InputError
from interp.scan.table import HeadScan


@pytest.fixture(scope="module")
def scan():
    """A head with two labels, one of them borderline, and one whose score is below its null."""
    row = {
        "layer": 2,
        "head": 5,
        "name": "L2H5",
        "label": "induction",
        "labels": ["induction", "sink"],
    }
    scores = {"induction": 0.7, "previous_token": 0.6, "current_token": 0.1, "sink": 0.35}
    row |= scores | {f"{kind}_chance": 0.1 for kind in scores}
    row |= {"induction_low": 0.65, "induction_high": 0.75, "induction_null_99": 0.2}
    row |= {"previous_token_null_99": 0.61, "borderline": "sink", "sinks": "0 (0.30)"}
    row |= {"text_sink": 0.5, "induction_logit_effect": -0.001}
    row |= {"not_measured": "duplicate_token: no token is repeated"}
    probes = [{"parts": ["repeated"], "rows": 1, "length": 33, "periods": [16]}]
    made_by = {"probes": probes, "left_out": {"ov_copying": "a quick scan was asked for"}}
    return HeadScan(pd.DataFrame([row]), made_by)


def test_each_label_has_its_score_threshold_and_null_and_the_others_a_reason(scan):
    lines = scan.explain("2.5").splitlines()
    assert lines[0] == "L2H5: induction, also sink"
    reason = "induction: score 0.70 [0.65, 0.75], 0.67 beyond chance; needs 0.4, and more than its"
    assert lines[1].startswith(f"{reason} null 0.20. It looks")
    assert lines[2].startswith("sink: score 0.35, 0.28 beyond chance; needs 0.3. It attends")
    assert lines[2].endswith("Its sinks, by position (share): 0 (0.30).")
    assert "No label for previous token 0.60: its null is 0.61." in lines
    assert "No label for current token 0.10: a label needs 0.4 beyond chance." in lines
    assert "Borderline, so that another seed may change the label: sink." in lines
    assert "On natural text: sink 0.50." in lines
    assert any(line.startswith("Effect: adds +0.00 to the logit") for line in lines)


def test_what_is_missing_has_a_reason(scan):
    lines = scan.explain("L2H5").splitlines()
    assert "Not measured: duplicate token: no token is repeated." in lines
    assert "Left out: ov copying: a quick scan was asked for." in lines
    assert "Left out: explained: scan with explained=True." in lines
    outside = made_up(1, 1)
    outside.made_by["probes"] = []
    assert "there is no record of a scan" in outside.explain("L0H0")
    with pytest.raises(InputError, match="head must be one of the scan's 1, got"):
        scan.explain("L0H0")


def test_the_explained_share_and_other_results_are_told():
    toy = interp.build_circuit("absolute", vocabulary=64, length=65)
    scan = interp.scan_heads(toy, rows=2, quick=True, explained=True)
    paths = interp.path_effects(toy, "L1H5", rows=2)
    effects = effects_of([{"layer": 1, "head": 5, "effect": -0.25}], metric="loss")
    words = scan.explain("L1H5", [paths, effects])
    assert "Reads, with the change of stripe without them: L0H3 (K) -1.00." in words
    assert "loss: -0.25 [-0.50, +0.50] (logits)." in words
    share = scan.frame.set_index("name")["explained"]["L1H5"]
    assert f"Explained: {share:.2f}" in words
