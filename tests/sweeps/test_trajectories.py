"""Onsets, their order, labels that change, and heads that correspond."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp.circuits.learned import load_learned
from interp.errors import InputError
from interp.sweeps.matching import match_heads
from interp.sweeps.trajectories import Trajectories

STEPS = (0, 10, 20, 30, 40)


def planted(onsets, steps=STEPS):
    """A table in which head 0 of each model becomes of a kind at a step: `{(model, kind): step}`.

    Head 1 is above its null for none, since its interval is wide.
    """
    rows = []
    for (model, step), head in itertools.product(
        itertools.product(dict.fromkeys(model for model, _ in onsets), steps), (0, 1)
    ):
        row = {"model": model, "revision": f"checkpoint-{step}", "step": step, "layer": 0}
        row |= {"head": head, "name": f"L0H{head}", "failed": None, "label": "mixed"}
        for (of, kind), at in onsets.items():
            if of == model:
                score = 0.8 if step >= at else 0.1
                margin = 0.05 if head == 0 else 0.75
                row |= {kind: score, f"{kind}_low": score - margin, f"{kind}_high": score + margin}
                row |= {f"{kind}_chance": 0.05, f"{kind}_null_99": 0.12}
                if head == 0 and step > at:
                    row["label"] = kind
        rows.append({**row, "labels": [row["label"]]})
    return pd.DataFrame(rows)


TWO = {("a", "sink"): 10, ("a", "induction"): 30, ("b", "sink"): 0, ("b", "induction"): 20}


def test_an_onset_is_the_first_checkpoint_whose_lower_end_is_above_the_null():
    over = Trajectories.of(planted(TWO))
    onsets = over.onsets().set_index(["model", "kind"])
    assert set(onsets["name"]) == {"L0H0"}
    assert {key: onsets.loc[key, "onset"] for key in TWO} == TWO
    assert onsets.loc[("a", "induction"), ["after", "labelled"]].tolist() == [20, 40]
    assert pd.isna(onsets.loc[("b", "sink"), "after"])
    assert onsets.loc[("b", "sink"), "labelled"] == 10


def test_kinds_are_ordered_by_the_onset_of_a_models_first_head_with_intervals():
    order = Trajectories.of(planted(TWO)).order()
    assert order["kind"].tolist() == ["sink", "induction"]
    assert order["median"].tolist() == [5, 25]
    assert order[["low", "high"]].to_numpy().tolist() == [[0, 10], [20, 30]]
    assert order["before_next"].tolist()[0] == 1
    alone = Trajectories.of(planted({("a", "sink"): 30})).order("labelled")
    assert alone[["models", "of", "low", "median", "high"]].to_numpy().tolist() == [
        [1, 1, 30, 40, 40]
    ]
    apart = Trajectories.of(planted({("a", "sink"): 10, ("b", "induction"): 20})).order()
    assert apart["before_next"].isna().all()  # No model has both.
    assert "sink 30 [20, 30]" in repr(Trajectories.of(planted({("a", "sink"): 30})))
    with pytest.raises(InputError, match="by must be onset or labelled"):
        Trajectories.of(planted(TWO)).order("size")


def test_labels_that_change_are_counted_with_their_order():
    flips = Trajectories.of(planted(TWO)).flips().set_index(["model", "name"])
    assert flips.loc[("a", "L0H0")].to_dict() == {
        **{"layer": 0, "head": 0, "flips": 2, "last": 40},
        "labels": "mixed > sink > induction",
    }
    assert flips.loc[("a", "L0H1"), "flips"] == 0


def test_tables_without_nulls_or_with_two_results_of_a_checkpoint_are_refused(tmp_path):
    frame = planted(TWO)
    with pytest.raises(InputError, match="two for a checkpoint-0"):
        Trajectories.of(pd.concat([frame, frame]))
    with pytest.raises(InputError, match="sweep without quick"):
        Trajectories.of(frame.drop(columns=["sink_null_99", "induction_null_99"]))
    with pytest.raises(InputError, match="model must be one of a, b"):
        Trajectories.of(frame).last("c")


def shuffled(model, order):
    """The learned model with the heads of both layers in this order."""
    other = interp.load_model(model.plain.__class__(model.plain.config), name="shuffled")
    state = {name: weight.clone() for name, weight in model.plain.state_dict().items()}
    size = model.plain.config.n_embd // model.n_heads
    places = torch.cat([torch.arange(h * size, (h + 1) * size) for h in order])
    width = model.plain.config.n_embd
    every = torch.cat([places + part * width for part in range(3)])
    for name, weight in state.items():
        if "attn.c_attn" in name:
            state[name] = weight[..., every]
        elif "attn.c_proj.weight" in name:
            state[name] = weight[places]
    other.plain.load_state_dict(state)
    return other


def test_heads_in_another_order_are_matched_and_compared_with_a_permuted_table():
    model = load_learned()
    order = [2, 0, 3, 1]
    scans = [
        interp.scan_heads(one, rows=4, seed=seed).to_frame()
        for seed, one in enumerate((model, shuffled(model, order)))
    ]
    match = match_heads(*scans, draws=50)
    pairs = dict(zip(match.frame["name"], match.frame["other"]))
    right = {f"L{i}H{head}": f"L{i}H{place}" for i in (0, 1) for place, head in enumerate(order)}
    assert pairs == right
    assert match.similarity > np.quantile(match.null, 0.99)
    assert (match.frame["similarity"] > match.frame["null_99"]).any()
    assert "8 pairs" in repr(match)
    fewer = match_heads(scans[0].iloc[:3], scans[1], draws=2)
    assert dict(zip(fewer.frame["name"], fewer.frame["other"])).items() <= right.items()


def test_tables_without_common_scores_are_refused():
    one = planted({("a", "sink"): 0})
    with pytest.raises(InputError, match="tables must share scores"):
        match_heads(one, one.drop(columns="sink"))
