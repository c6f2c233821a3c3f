"""From scores, nulls and signs to labels."""

import ast
from pathlib import Path

import pandas as pd
import pytest
import torch
from places import ROOT

import interp
from interp.kinds.builtin import ANTI_INDUCTION, FORCED_WINDOW, as_kinds
from interp.kinds.labels import NEAR_IN_BFLOAT16, HeadLabel, judge_layer
from interp.kinds.mass import Tally
from interp.kinds.probes import repeated, shuffled
from interp.kinds.scores import LayerScores, Thresholds, ask, ask_elsewhere, score_layer

THRESHOLDS = Thresholds()


def scores_of(**means: float) -> LayerScores:
    tallies = {
        kind: Tally(torch.tensor([[mean]]).double(), torch.zeros(1, 1).double(), torch.tensor([1]))
        for kind, mean in means.items()
    }
    return LayerScores(tallies, torch.zeros(1, 1, dtype=torch.long))


def verdict(scores: LayerScores, **evidence) -> HeadLabel:
    (label,) = judge_layer(3, scores, torch.arange(30)[None], THRESHOLDS, **evidence)
    return label


@pytest.mark.parametrize(("null", "label"), [(0.1, "induction"), (0.6, "mixed"), (0.7, "mixed")])
def test_a_score_has_to_beat_its_null(null, label):
    head = verdict(scores_of(induction=0.6), nulls={"induction": torch.tensor([null])})
    assert head.label == label


def test_the_margin_is_what_is_to_spare_or_lacking():
    assert verdict(scores_of(induction=0.6)).margin == pytest.approx(0.2)
    assert verdict(scores_of(induction=0.3, sink=0.1)).margin == pytest.approx(-0.1)
    nulls = {"induction": torch.tensor([0.55])}
    assert verdict(scores_of(induction=0.6), nulls=nulls).margin == pytest.approx(0.05)
    # The label's own kind counts, not the largest.
    assert verdict(scores_of(induction=0.5, sink=0.9)).margin == pytest.approx(0.1)


@pytest.mark.fault("C40")
@pytest.mark.parametrize(
    ("score", "evidence", "near"),
    [
        (0.4005, {}, True),
        (0.3995, {}, True),
        (0.385, {}, False),
        (0.385, {"near": NEAR_IN_BFLOAT16}, True),
        (0.45, {"intervals": {"induction": torch.tensor([[0.39], [0.5]])}}, True),
        (0.45, {"intervals": {"induction": torch.tensor([[0.41], [0.5]])}}, False),
        (0.45, {"intervals": {"induction": torch.full((2, 1), torch.nan)}}, False),
        (0.6, {"nulls": {"induction": torch.tensor([0.595])}}, True),
        (0.6, {"nulls": {"induction": torch.tensor([0.5])}}, False),
    ],
)
def test_a_score_near_its_threshold_or_null_is_borderline(score, evidence, near):
    head = verdict(scores_of(induction=score, sink=0.9), **evidence)
    assert head.borderline == (("induction",) if near else ())
    assert ("; borderline: induction)" in repr(head)) == near


def test_bfloat16_moves_scores_as_far_as_borderline_allows():
    moved = pd.read_csv(ROOT / "figures" / "sensitivity.csv").eval("abs(bfloat16 - `seed 0`)")
    assert moved.quantile(0.95) == pytest.approx(0.009, abs=1e-3)
    assert (len(moved), round(moved.max(), 3)) == (283, 0.019)
    assert moved.max() < NEAR_IN_BFLOAT16


def test_what_no_score_gives_has_no_margin():
    empty = LayerScores({}, torch.zeros(1, 1, dtype=torch.long))
    assert verdict(empty).margin is None
    assert verdict(scores_of(sink=0.1), window=4).margin is None


@pytest.mark.parametrize(
    ("ends", "label"),
    [
        ((-2.0, -1.0), ANTI_INDUCTION),
        ((-1.0, 0.1), "induction"),
        ((0.5, 1.0), "induction"),
        ((float("nan"), float("nan")), "induction"),
    ],
)
def test_a_head_that_pushes_the_right_token_down_is_anti_induction(ends, label):
    effect = torch.tensor(ends)[:, None]
    scores = scores_of(induction=0.6, sink=0.5)
    assert verdict(scores, induction_effect=effect).labels == (label, "sink")


@pytest.mark.parametrize(("largest", "label"), [(9.0, ANTI_INDUCTION), (11.0, "induction")])
def test_an_effect_far_smaller_than_the_models_largest_says_nothing(largest, label):
    effect = torch.tensor([[-2.0], [-1.0]])
    scores = scores_of(induction=0.6)
    assert verdict(scores, induction_effect=effect, largest_effect=largest).label == label


def test_a_head_without_the_stripe_is_never_anti_induction():
    effect = torch.tensor([[-2.0], [-1.0]])
    assert verdict(scores_of(sink=0.5), induction_effect=effect).labels == ("sink",)


def test_anti_induction_comes_before_the_forced_window_as_induction_does():
    head = verdict(
        scores_of(induction=0.6, sink=0.5),
        induction_effect=torch.tensor([[-2.0], [-1.0]]),
        window=20,
    )
    assert head.labels == (ANTI_INDUCTION, FORCED_WINDOW, "sink")


def looking(tokens: torch.Tensor, distance: int) -> torch.Tensor:
    """Every query looks `distance` back, or at the first token where that is too far."""
    length = tokens.shape[1]
    pattern = torch.zeros(len(tokens), 1, length, length)
    for q in range(length):
        pattern[:, 0, q, max(0, q - distance)] = 1
    return pattern


def matching(tokens: torch.Tensor) -> torch.Tensor:
    """Every query looks right after the last earlier copy of its token, or at the first token."""
    length = tokens.shape[1]
    pattern = torch.zeros(len(tokens), 1, length, length)
    for b, row in enumerate(tokens.tolist()):
        for q in range(length):
            copies = [k for k in range(1, q) if row[k] == row[q]]
            pattern[b, 0, q, copies[-1] + 1 if copies else 0] = 1
    return pattern


def both(head, probe) -> tuple[LayerScores, dict[str, torch.Tensor]]:
    null = shuffled(probe, seed=0)
    asked = ask(probe.tokens, counted=probe.parts["repeated"], thresholds=THRESHOLDS)
    scores = score_layer(head(probe.tokens), asked, THRESHOLDS)
    elsewhere = score_layer(head(null.tokens), ask_elsewhere(asked, seed=0), THRESHOLDS)
    return scores, {kind: t.mean for kind, t in elsewhere.tallies.items()}


def test_a_head_that_looks_a_fixed_distance_back_falls_to_the_null_and_one_that_matches_passes():
    """On rows of one period, where the score by itself takes both for induction heads."""
    probe = repeated(torch.arange(10, 300), rows=4, length=81, bos=1, seed=0, period=30)
    scores, nulls = both(lambda tokens: looking(tokens, 29), probe)
    assert verdict(scores).label == "induction"
    assert "induction" not in verdict(scores, nulls=nulls).labels
    scores, nulls = both(matching, probe)
    assert verdict(scores, nulls=nulls).label == "induction"
    assert nulls["induction"].item() < 0.1


def test_the_null_of_a_kind_that_goes_by_position_is_the_level_of_chance():
    probe = repeated(torch.arange(10, 300), rows=8, length=81, bos=1, seed=0)
    scores, nulls = both(lambda tokens: looking(tokens, 1), probe)
    # One key in about 60 is the previous token: 8 rows of 50 queries say so within a few %.
    assert 0 < nulls["previous_token"].item() < 0.05
    assert verdict(scores, nulls=nulls).label == "previous token"


def test_the_null_of_a_sink_counts_as_many_keys_as_the_head_has_columns():
    """Attention spread evenly has exactly chance on any keys, however many columns there are."""
    tokens = torch.arange(10, 90)[None]
    seen = torch.arange(1, 81)[:, None]
    pattern = torch.ones(80, 80).tril() / seen / 2
    pattern[:, 0] += 0.25
    pattern[:, 3] += 0.25  # Two columns, one of them found in the attention.
    pattern[:3, 0] += 0.25
    asked = ask(tokens, thresholds=THRESHOLDS, kinds=as_kinds("sink"), statistics=False)
    own = score_layer(pattern[None, None], asked, THRESHOLDS).tallies["sink"]
    assert own.mean.item() > 0.45
    means = []
    for seed in range(60):
        null = score_layer(pattern[None, None], ask_elsewhere(asked, seed=seed), THRESHOLDS)
        tally = null.tallies["sink"]
        assert torch.equal(tally.uniform, own.uniform)
        means.append(tally.mean.item())
    # Keys drawn evenly get chance on average; 60 draws of 77 queries say so within a tenth.
    assert sum(means) / 60 == pytest.approx(own.uniform_mean.item(), rel=0.15)


def test_the_null_asks_as_many_keys_all_of_them_in_sight():
    probe = repeated(torch.arange(10, 300), rows=4, length=81, bos=1, seed=0)
    asked = ask(probe.tokens, thresholds=THRESHOLDS, window=20)
    elsewhere = ask_elsewhere(asked, seed=0)
    query = torch.arange(81)[:, None]
    for kind, keys in elsewhere.keys.items():
        own = asked.keys[kind]
        assert torch.equal(keys == -1, own == -1)
        assert ((keys <= query) & (keys > query - 20))[keys != -1].all()
    assert torch.equal(elsewhere.keys["induction"], asked.keys["induction"])
    assert not torch.equal(elsewhere.keys["local_window"], asked.keys["local_window"])


@pytest.mark.fault("B73")
def test_the_same_seed_draws_the_same_null_whatever_type_torch_makes_numbers_of():
    asked = ask(torch.arange(10, 90)[None], thresholds=THRESHOLDS)
    drawn = ask_elsewhere(asked, seed=0).keys
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        again = ask_elsewhere(asked, seed=0).keys
    finally:
        torch.set_default_dtype(usual)
    assert all(torch.equal(drawn[kind], again[kind]) for kind in drawn)


def test_no_draw_of_random_numbers_leaves_their_type_to_the_caller():
    """Another type draws other numbers from the same seed."""
    sources = Path(interp.__file__).parent.rglob("*.py")
    calls = [
        ast.unparse(node)
        for source in sources
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.rand", "torch.randn")
    ]
    assert len(calls) > 10
    assert [call for call in calls if "dtype=" not in call] == []
