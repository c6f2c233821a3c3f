"""The trained model that ships: its circuit, and that it is one."""

import pytest
import torch

import interp
from interp.circuits.learned import FOLDER, load_learned
from interp.effects.ablate import ablated, losses
from interp.heads import Head
from interp.kinds.probes import repeated


@pytest.fixture(scope="module")
def learned():
    return load_learned()


@pytest.fixture(scope="module")
def scan(learned):
    return interp.scan_heads(learned)


def probe(period: int):
    return repeated(torch.arange(1, 129), rows=16, length=65, bos=0, seed=5, period=period)


def test_it_is_small_and_of_attention_alone(learned):
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.*")) < 2_000_000
    assert (learned.n_layers, learned.n_heads, learned.n_ctx, learned.bos) == (2, 4, 65, 0)
    mlps = [value for name, value in learned.plain.named_parameters() if ".mlp." in name]
    assert len(mlps) == 8
    assert not any(value.any() for value in mlps)


def test_previous_token_heads_are_in_layer_0_and_induction_heads_in_layer_1(scan):
    assert {head.layer for head in scan.heads("previous token")} == {0}
    assert {head.layer for head in scan.heads("induction")} == {1}
    assert scan.frame.loc[scan.frame["label"] == "induction", "induction"].max() > 0.95


def test_induction_heads_speak_for_the_right_token(scan):
    found = scan.frame.loc[scan.frame["label"] == "induction"]
    assert (found["induction_logit_effect_low"] > 0).all()


@pytest.mark.parametrize("period", [5, 8, 20, 32, 36, 40])
def test_it_holds_at_periods_seen_in_training_and_others(learned, period):
    assert losses(learned, probe(period))["second_copy"].mean() < 0.3


def test_without_the_previous_token_head_there_is_no_induction(learned, scan):
    feeder, best = scan.heads("previous token")[0], scan.heads("induction")[0]

    def stripe() -> float:
        rows = probe(24).tokens
        seen = interp.classify_heads(interp.attention_patterns(learned, rows), rows)
        return next(verdict.scores["induction"] for verdict in seen if verdict.head == best)

    before = stripe()
    others = [Head(0, head) for head in range(4) if Head(0, head) != feeder]
    with ablated(learned, [feeder]):
        without = stripe()
    assert before > 0.95
    assert without < before / 2
    for other in others:
        with ablated(learned, [other]):
            assert stripe() > without
