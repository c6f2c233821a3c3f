import json

import pytest
from invoked import invoke, refused, script

from interp.trust import accuracy


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run with few heads: its record, and what was printed."""
    out = tmp_path_factory.mktemp("run") / "deep"
    done = invoke("measure_accuracy", "--seed=3", "--heads=336", "--format=svg", "--out", out)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"accuracy.json", "accuracy.svg"}
    return json.loads((out / "accuracy.json").read_text(encoding="utf-8")), done


def test_the_record_has_the_names_that_others_use(small_run):
    result, _ = small_run
    assert 0.98 <= result["accuracy"] <= 1
    assert sum(sum(row.values()) for row in result["confusion"].values()) == 336
    assert result["sizes"] == {"choose": 168, "report": 336, "curve": 168}
    assert {0.0, 0.4, 0.5, 1.0} <= {record["strength"] for record in result["by_strength"]}
    assert result["made_by"]["seed"] == 3
    assert {"interp", "torch"} <= set(result["made_by"]["versions"])
    shortcut = result["shortcut"]
    assert shortcut["naive_stripe"] > 0.85
    assert shortcut["label"] != "induction"
    assert shortcut["score"] < 0.2


def test_it_prints_a_short_table(small_run):
    result, done = small_run
    assert f"accuracy {result['accuracy']:.4f}" in done.stdout
    assert "position alone" in done.stdout
    assert len(done.stdout.splitlines()) < 50


@pytest.mark.parametrize(
    ("option", "value"),
    [("--table", "missing.csv"), ("--heads", "335")],
)
def test_a_mistake_gets_one_line_and_writes_nothing(option, value, tmp_path):
    assert refused(invoke("measure_accuracy", option, value, "--out", tmp_path / "out"), option)
    assert list(tmp_path.iterdir()) == []


def test_the_least_number_of_heads_is_the_modules():
    assert script("measure_accuracy")["FEWEST"] == accuracy.FEWEST
