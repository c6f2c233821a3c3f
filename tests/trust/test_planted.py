"""Planted heads are what they were planned to be, by two ways to the same number."""

import pytest
import torch

from interp import InputError, Thresholds, classify_heads
from interp.kinds.builtin import LABELS
from interp.kinds.labels import excess
from interp.patterns.tensor import check_pattern
from interp.trust.planted import (
    KINDS,
    NEAR_MISSES,
    ROLES,
    STRIPES,
    Rows,
    draw_rows,
    planned_excess,
    plant,
    truth,
)

THRESHOLDS = Thresholds()


def kind_of(role):
    """The kind that it is or nearly is."""
    kind = ROLES[role].kind or ROLES[role].nearly
    assert kind
    return kind


def luck(seed=0):
    return torch.Generator().manual_seed(seed)


def planted(role, strength, seed=0, rows=None):
    generator = luck(seed)
    rows = rows or draw_rows(generator)
    return rows, plant(rows, role, strength, generator=generator, thresholds=THRESHOLDS)


def test_copies_are_where_the_tokens_say():
    for seed in range(4):
        rows = draw_rows(luck(seed))
        n_rows, length = rows.tokens.shape
        row, query, key = torch.meshgrid(
            torch.arange(n_rows), torch.arange(length), torch.arange(length), indexing="ij"
        )
        same = rows.tokens[row, query] == rows.tokens[row, key]
        assert torch.equal(rows.near_copies(0), same & (key < query))
        after = torch.zeros_like(same)
        after[:, :, 1:] = (same & (key < query))[:, :, :-1]
        assert torch.equal(rows.near_copies(1), after)


def test_rows_are_of_many_sizes_with_bos_and_without():
    drawn = [draw_rows(luck(seed)) for seed in range(30)]
    assert {rows.opening for rows in drawn} == {0, 1}
    assert all((rows.tokens[:, 0] == 0).all() == bool(rows.opening) for rows in drawn)
    assert len({rows.tokens.shape for rows in drawn}) > 25
    assert all(len(rows.periods.unique()) > 1 for rows in drawn)


@pytest.mark.parametrize("role", ROLES)
def test_every_head_attends_like_a_head(role):
    for strength in (0.0, 1.0):
        rows, head = planted(role, strength)
        for pattern in (head.pattern, head.expected):
            check_pattern(pattern[:, None], rows.tokens, where="a planted head")
            # Sums of at most 160 float32 numbers.
            assert (pattern.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("role", ROLES)
def test_the_classifier_measures_what_was_planned(role):
    """Two ways to the same number: from the token ids, and from the periods."""
    generator, off = luck(), dict.fromkeys(LABELS, 0.0)
    for _ in range(3):
        rows = draw_rows(generator)
        head = plant(rows, role, 0.6, generator=generator, thresholds=THRESHOLDS)
        expected, drawn = (
            classify_heads(pattern[:, None], rows.tokens, special=[0])[0]
            for pattern in (head.expected, head.pattern)
        )
        for kind, planned in head.excess.items():
            # Without luck to the bit, but for the sink columns, which are sought row by row.
            measured = excess(expected.scores[kind], expected.chance[kind])
            assert measured == pytest.approx(planned, abs=0.02 if kind == "sink" else 1e-5), kind
            off[kind] += excess(drawn.scores[kind], drawn.chance[kind]) - planned
    assert all(abs(total / 3) < 0.03 for total in off.values()), off


REACHED = [
    (role, strength)
    for role in KINDS
    for strength in (0.2, 0.5, 0.8)
    # Queries before the column, up to a quarter, cannot rest on it.
    if role != "sink elsewhere" or strength < 0.8
]


@pytest.mark.parametrize(("role", "strength"), REACHED)
def test_strength_is_the_excess_on_the_targets(role, strength):
    for seed in range(2):
        _, head = planted(role, strength, seed)
        assert head.usual_excess[kind_of(role)] == pytest.approx(strength, abs=1e-4)


@pytest.mark.parametrize("role", KINDS)
def test_a_strong_head_is_of_its_kind_and_a_weak_one_is_not(role):
    label = LABELS[kind_of(role)]
    for seed in range(3):
        assert truth(planted(role, 0.7, seed)[1].excess, THRESHOLDS) == label
        assert truth(planted(role, 0.2, seed)[1].excess, THRESHOLDS) != label


@pytest.mark.parametrize("role", [role for role in NEAR_MISSES if ROLES[role].nearly])
def test_a_near_miss_is_near_and_yet_a_miss(role):
    kind = kind_of(role)
    for seed in range(4):
        _, head = planted(role, 1.0, seed)
        assert head.excess[kind] < getattr(THRESHOLDS, kind)
        assert truth(head.excess, THRESHOLDS) != LABELS[kind]


@pytest.mark.parametrize("kind", STRIPES)
def test_half_a_head_does_half_the_work(kind):
    label = kind.replace("_", " ")
    whole = planted(label, 0.6)[1].usual_excess[kind]
    for words in ("half of the rows", "every other query", "half as strong"):
        # Rows have not all as many queries that count.
        assert planted(f"{label}, {words}", 0.6)[1].usual_excess[kind] == pytest.approx(
            whole / 2, abs=0.08
        )


def test_even_attention_exceeds_nothing():
    rows = draw_rows(luck())
    length = rows.tokens.shape[1]
    even = torch.ones(length, length).tril()
    even = (even / even.sum(-1, keepdim=True)).expand(len(rows.tokens), -1, -1)
    found = planned_excess(rows, even, 0, THRESHOLDS)
    assert all(value == pytest.approx(0, abs=1e-5) for value in found.values())


def test_sinks_are_at_the_first_token_or_elsewhere_and_the_classifier_finds_where():
    for role in ("sink", "sink elsewhere"):
        for seed in range(8):
            rows, head = planted(role, 0.6, seed)
            assert (head.column == 0) == (role == "sink")
            found = classify_heads(head.pattern[:, None], rows.tokens, special=[0])[0]
            assert found.label == "sink"
            assert found.sink_position == head.column


def test_the_same_luck_makes_the_same_head_and_other_luck_is_left_alone():
    before = torch.random.get_rng_state()
    one, two, other = (planted("induction", 0.6, seed)[1].pattern for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert one.shape != other.shape or not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_heads_are_unsteady_but_on_average_as_strong_as_asked():
    rows = draw_rows(luck(3))
    stripe = rows.near_copies(1)
    heads = [planted("induction", 0.5, seed, rows)[1] for seed in range(40)]
    mass = torch.stack([(head.pattern * stripe).sum(-1)[stripe.any(-1)] for head in heads])
    planned = torch.stack([(head.expected * stripe).sum(-1)[stripe.any(-1)] for head in heads])
    assert (mass - planned).std(-1).mean() > 0.05
    assert mass.mean().item() == pytest.approx(planned.mean().item(), abs=0.01)


def test_a_strength_out_of_range_is_refused():
    rows = Rows(torch.tensor([[1, 2, 3, 4] * 4]), torch.tensor([4]), 0)
    with pytest.raises(InputError, match="strength must be in"):
        planted("induction", 1.2, rows=rows)
