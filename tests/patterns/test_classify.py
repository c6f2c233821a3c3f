import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scored import scored
from torch import Tensor

from interp.errors import InputError
from interp.kinds.builtin import FORCED_WINDOW, LABELS
from interp.kinds.labels import MIXED, NOT_ENOUGH, HeadLabel, excess
from interp.kinds.probes import repeated
from interp.kinds.scores import LayerScores, Thresholds
from interp.kinds.targets import NONE
from interp.patterns.classify import classify_heads

BOS, SEP = 0, 1
Look = Callable[[list[int], int], Iterable[int]]

# A planted pattern is 0, 1 or 1/m: its scores are off by float32 rounding only.
FULL = pytest.approx(1, abs=1e-6)


def copies(row: list[int], q: int) -> list[int]:
    return [k for k in range(q) if row[k] == row[q]]


def induction(row: list[int], q: int) -> list[int]:
    return [k + 1 for k in copies(row, q)]


def duplicate(row: list[int], q: int) -> list[int]:
    return copies(row, q)


def back(*distances: int) -> Look:
    return lambda row, q: [q - distance for distance in distances]


def resting(row: list[int], q: int) -> list[int]:
    return []


PLANTS: dict[str, Look] = {
    "induction": induction,
    "duplicate_token": duplicate,
    "previous_token": back(1),
    "current_token": back(0),
    "local_window": back(*range(8)),
    "sink": resting,
}


def planted(tokens: Tensor, look: Look) -> Tensor:
    """One head: attends evenly to where it looks, and rests on the first token otherwise."""
    pattern = torch.zeros(len(tokens), 1, tokens.shape[1], tokens.shape[1])
    for b, row in enumerate(tokens.tolist()):
        real = [at for at, token in enumerate(row) if token != NONE]
        for q in real:
            keys = [k for k in look(row, q) if real[0] <= k <= q] or [real[0]]
            for k in keys:
                pattern[b, 0, q, k] += 1 / len(keys)
    return pattern


def uniform(tokens: Tensor) -> Tensor:
    return planted(tokens, lambda row, q: range(q + 1))


def random_pattern(tokens: Tensor, heads: int, seed: int = 0) -> Tensor:
    real = tokens != NONE
    length = tokens.shape[1]
    scores = 3 * torch.randn(
        len(tokens), heads, length, length, generator=torch.Generator().manual_seed(seed)
    )
    seen = torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, None]
    pattern = scores.masked_fill(~seen, -1e9).softmax(-1)
    return torch.where(real[:, None, :, None], pattern, 0)


def label(look: Look, tokens: Tensor, **options: Any) -> HeadLabel:
    verdicts = classify_heads(planted(tokens, look), tokens, **options)
    assert len(verdicts) == 1
    return verdicts[0]


def nothing_passes_chance(verdict: HeadLabel) -> None:
    assert verdict.label in (MIXED, NOT_ENOUGH)
    assert verdict.labels == (verdict.label,)
    for kind, score in verdict.scores.items():
        assert score == pytest.approx(verdict.chance[kind], abs=1e-6)  # float32


def row(period: int = 12, times: int = 2, *, bos: bool = True) -> list[int]:
    return [BOS] * bos + [*range(10, 10 + period)] * times


def pad(rows: list[list[int]], *, left: bool) -> Tensor:
    longest = max(map(len, rows))
    fill = [[NONE] * (longest - len(r)) for r in rows]
    return torch.tensor([f + r if left else r + f for r, f in zip(rows, fill, strict=True)])


SEVERAL = [row(12), row(14), row(17)]
ROWS = {
    "BOS": torch.tensor([row()]),
    "no BOS": torch.tensor([row(bos=False)]),
    "left padding": pad(SEVERAL, left=True),
    "right padding": pad(SEVERAL, left=False),
    "padding on both sides": torch.tensor([[NONE] * 3 + row() + [NONE] * 4]),
    "separators in the middle": torch.tensor([[BOS, *([*range(10, 22), SEP] * 3)]]),
    "BOS in the middle": torch.tensor([row() + row()]),
    "three copies": torch.tensor([row(times=3)]),
    "four copies": torch.tensor([row(times=4, bos=False)]),
    "immediate repeats among others": torch.tensor([[BOS, *([*range(10, 20), 20, 20] * 2)]]),
}
every_row = pytest.mark.parametrize("tokens", ROWS.values(), ids=ROWS)
BASE = ROWS["BOS"]


# Planted heads and their near misses.


@every_row
@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_head_has_full_marks_and_its_label(kind, tokens):
    verdict = label(PLANTS[kind], tokens, special=(BOS, SEP))
    assert verdict.scores[kind] == FULL
    assert verdict.label == LABELS[kind]


@pytest.mark.fault("B23")
@every_row
@pytest.mark.parametrize("pick", [min, max], ids=["earliest match", "latest match"])
@pytest.mark.parametrize("kind", ["induction", "duplicate_token"])
def test_whichever_copy_a_head_prefers_it_has_full_marks(kind, pick, tokens):
    def one_match(row: list[int], q: int) -> list[int]:
        keys = list(PLANTS[kind](row, q))
        return [pick(keys)] if keys else []

    verdict = label(one_match, tokens, special=(BOS, SEP))
    assert verdict.scores[kind] == FULL
    assert verdict.label == LABELS[kind]


@pytest.mark.fault("B23")
@pytest.mark.parametrize("pick", [min, max], ids=["earliest match", "latest match"])
@pytest.mark.parametrize("seed", range(3))
def test_repeats_by_accident_leave_a_planted_head_its_full_marks(seed, pick):
    half = torch.randint(10, 60, (40,), generator=torch.Generator().manual_seed(seed)).tolist()
    assert len(set(half)) < len(half)

    def one_match(row: list[int], q: int) -> list[int]:
        keys = induction(row, q)
        return [pick(keys)] if keys else []

    verdict = label(one_match, torch.tensor([[BOS, *half, *half]]))
    assert verdict.scores["induction"] == FULL
    assert verdict.label == "induction"


NEAR_MISSES: dict[str, tuple[str, Look]] = {
    "induction, one too early": ("induction", duplicate),
    "induction, one too late": ("induction", lambda row, q: [k + 2 for k in copies(row, q)]),
    "duplicate, one too early": ("duplicate_token", lambda row, q: [k - 1 for k in copies(row, q)]),
    "duplicate, one too late": ("duplicate_token", induction),
    "previous, one too early": ("previous_token", back(2)),
    "previous, one too late": ("previous_token", back(0)),
    "current, one too early": ("current_token", back(1)),
    "window, the one before it": ("local_window", back(*range(8, 16))),
    "window, just outside": ("local_window", back(8)),
    "sink, half way back": ("sink", lambda row, q: [(q + 1) // 2]),
}


@pytest.mark.parametrize("tokens", [BASE, ROWS["left padding"]], ids=["BOS", "left padding"])
@pytest.mark.parametrize(("kind", "look"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_a_near_miss_is_a_miss(kind, look, tokens):
    verdict = label(look, tokens)
    assert LABELS[kind] not in verdict.labels
    if kind != "sink":
        assert verdict.scores[kind] == 0


def test_the_far_end_of_the_window_is_inside():
    verdict = label(back(7), BASE)
    assert verdict.scores["local_window"] == FULL
    assert verdict.labels == ("local window",)


@pytest.mark.fault("B21", "B22")
@every_row
@pytest.mark.parametrize(
    "look",
    [back(0), back(1), back(2), back(3), resting, back(*range(8))],
    ids=["current", "previous", "two back", "three back", "sink", "window"],
)
def test_heads_that_ignore_the_copies_are_never_induction(look, tokens):
    verdict = label(look, tokens, special=(BOS, SEP))
    assert verdict.scores["induction"] == 0
    assert verdict.scores["duplicate_token"] == 0


@pytest.mark.fault("B22")
@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_a_previous_token_head_on_a_short_period_is_never_induction(period):
    verdict = label(back(1), torch.tensor([row(period, 24 // period)]))
    assert verdict.label == "previous token"
    assert {"induction", "duplicate token"}.isdisjoint(verdict.labels)


@pytest.mark.parametrize("seed", range(3))
def test_a_fixed_distance_is_not_induction_when_periods_vary(seed):
    probe = repeated(torch.arange(10, 500), rows=12, length=65, bos=BOS, seed=seed)
    for period in set(probe.periods):
        fixed = label(back(period - 1), probe.tokens)
        # It is right in the rows that happen to have this period, and nowhere else.
        asked = probe.parts["repeated"].sum(-1).tolist()
        right = sum(n for n, p in zip(asked, probe.periods, strict=True) if p == period)
        assert fixed.scores["induction"] == pytest.approx(right / sum(asked), abs=1e-6)  # float32
        assert {"induction", "duplicate token"}.isdisjoint(fixed.labels)
    assert label(induction, probe.tokens).label == "induction"


@pytest.mark.fault("B22")
@pytest.mark.parametrize(
    "tokens",
    [torch.arange(40)[None], torch.tensor([[*range(5, 30), *[NONE] * 6], [NONE, *range(30)]])],
    ids=["one row", "padded rows"],
)
def test_without_a_repeat_induction_cannot_be_judged(tokens):
    verdict = label(back(11), tokens)
    for kind in ("induction", "duplicate_token"):
        assert kind not in verdict.scores
        assert kind not in verdict.chance
        assert verdict.not_measured[kind] == "no token is repeated"
    assert set(verdict.scores) | set(verdict.not_measured) == set(LABELS)


# Chance.


@pytest.mark.fault("B21")
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("length", [2, 4, 64])
@pytest.mark.parametrize("repeats", [False, True], ids=["no repeats", "repeats"])
def test_even_attention_earns_no_label_at_any_length(repeats, length, batch):
    ids = torch.arange(length) % (max(1, length // 2) if repeats else length)
    tokens = ids.expand(batch, length).contiguous()
    (verdict,) = classify_heads(uniform(tokens), tokens)
    nothing_passes_chance(verdict)


@pytest.mark.fault("B93")
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_one_token_prompts_are_not_enough(batch):
    tokens = torch.full((batch, 1), 7)
    (verdict,) = classify_heads(torch.ones(batch, 1, 1, 1), tokens)
    assert verdict.label == NOT_ENOUGH
    assert verdict.labels == (NOT_ENOUGH,)
    assert verdict.scores == {}
    assert set(verdict.not_measured) == set(LABELS)
    assert (verdict.entropy, verdict.mean_distance, verdict.sink_position) == (None, None, None)


PROBABILITY = st.floats(0, 1)


@settings(deadline=None, derandomize=True)
@given(score=PROBABILITY, chance=st.floats(0, 0.999))
def test_excess_runs_from_nothing_at_chance_to_one_at_full_marks(score, chance):
    assert excess(chance, chance) == 0
    assert excess(1.0, chance) == 1
    assert excess(score, 0.0) == score
    assert excess(score, chance) <= score + 1e-12  # Float64 rounding.


# Sinks.


def test_a_sink_may_share_its_mass_with_position_one():
    verdict = label(lambda row, q: [0, 1], BASE)
    queries = BASE.shape[1] - 1
    # Position 1 itself gives half to position 0; its other half is not rest.
    assert verdict.scores["sink"] == pytest.approx((queries - 0.5) / queries, abs=1e-6)
    assert verdict.labels == ("sink",)
    assert verdict.sink_position == 0


@pytest.mark.parametrize(
    "tokens", [BASE, ROWS["left padding"][:1]], ids=["no padding", "left padding"]
)
@pytest.mark.parametrize("place", [1, 3])
def test_a_sink_elsewhere_is_found_and_its_place_counted_from_the_first_token(place, tokens):
    def look(row: list[int], q: int) -> list[int]:
        return [sum(token == NONE for token in row) + place]

    verdict = label(look, tokens)
    assert verdict.labels == ("sink",)
    assert verdict.sink_position == place


def test_a_column_beside_the_first_is_no_sink_where_too_few_queries_follow():
    tokens = torch.arange(15)[None]
    verdict = label(lambda row, q: [1], tokens)
    assert verdict.scores["sink"] == 0
    few = label(lambda row, q: [1], tokens, thresholds=Thresholds(sink_queries=13))
    assert "sink" in few.labels


@pytest.mark.fault("B113")
def test_attention_to_separators_is_not_work():
    def nearest_separator(row: list[int], q: int) -> list[int]:
        return [k for k in range(q) if row[k] in (BOS, SEP)][-1:]

    # A separator after every two tokens is often the previous token, and often a match's next.
    tokens = torch.tensor([[BOS, *([10, 11, SEP, 12, 13, SEP] * 4)]])
    verdict = label(nearest_separator, tokens, special=(BOS, SEP))
    assert {"previous token", "induction", "duplicate token"}.isdisjoint(verdict.labels)
    assert verdict.scores["previous_token"] == 0


# Several labels.


def test_a_head_may_have_several_labels_and_the_most_specific_comes_first():
    assert label(induction, BASE).labels == ("induction", "sink")  # It rests in the first copy.
    assert label(duplicate, BASE).labels == ("duplicate token", "sink")
    assert label(back(1), BASE).labels == ("previous token", "local window")
    assert label(back(0), BASE).labels == ("current token", "local window")
    assert label(back(*range(8)), BASE).labels == ("local window",)
    assert label(resting, BASE).labels == ("sink",)


# Thresholds.


@pytest.mark.parametrize("kind", PLANTS)
def test_every_kind_has_its_own_threshold_on_the_excess_over_chance(kind):
    part = 0.45 * planted(BASE, PLANTS[kind]) + 0.55 * uniform(BASE)
    for threshold, holds in ((0.44, True), (0.46, False)):
        (verdict,) = classify_heads(part, BASE, thresholds=Thresholds(**{kind: threshold}))
        assert (LABELS[kind] in verdict.labels) == holds


def test_the_width_of_the_window_is_a_threshold_too():
    thresholds = Thresholds(window_width=3)
    assert label(back(2), BASE, thresholds=thresholds).labels == ("local window",)
    assert label(back(3), BASE, thresholds=thresholds).labels == (MIXED,)


@pytest.mark.parametrize("length", [4, 5, 6])
def test_three_queries_are_too_few_and_four_are_enough(length):
    tokens = torch.arange(length)[None]
    verdict = label(back(1), tokens)
    counted = {"current_token": length - 1, "sink": length - 1, "previous_token": length - 2}
    for kind, queries in counted.items():
        assert (kind in verdict.scores) == (queries >= 4)
        assert (verdict.not_measured.get(kind) == NOT_ENOUGH) == (queries < 4)
    fewer = label(back(1), tokens, thresholds=Thresholds(min_queries=length - 2))
    assert fewer.label == "previous token"


# Windows of the architecture.


@pytest.mark.fault("B53")
def test_a_window_of_the_architecture_is_told_from_a_choice():
    forced = label(back(*range(6)), BASE, windows=[6])
    assert forced.labels == (FORCED_WINDOW,)
    assert forced.window == 6
    assert label(back(*range(6)), BASE).labels == ("local window",)


def test_a_label_of_its_own_comes_before_the_forced_window_and_the_sink_after():
    assert label(back(1), BASE, windows=[6]).labels == ("previous token", FORCED_WINDOW)
    # A head that rests on the first token while it can, and on itself afterwards.
    resting_while_seen = label(lambda row, q: [0 if q < 6 else q - 3], BASE, windows=[6])
    assert resting_while_seen.labels == (FORCED_WINDOW, "sink")


@pytest.mark.parametrize(
    ("window", "measured"),
    [
        (11, set()),
        (12, {"induction"}),  # 11 back, and itself.
        (13, {"induction", "duplicate_token"}),
    ],
)
def test_repeats_beyond_the_window_cannot_be_judged(window, measured):
    # Queries see nothing of the copies that the window hides: they attend to themselves.
    def look(row: list[int], q: int) -> list[int]:
        return [k for k in induction(row, q) if q - k < window] or [q]

    verdict = label(look, BASE, windows=[window])
    for kind in ("induction", "duplicate_token"):
        assert (kind in verdict.scores) == (kind in measured)
        if kind not in measured:
            assert f"beyond the layer's window of {window} tokens" in verdict.not_measured[kind]
    if "induction" in measured:
        assert verdict.label == "induction"
    else:
        assert "induction" not in verdict.labels


@pytest.mark.fault("B53")
@pytest.mark.parametrize("window", [None, 25, 4096], ids=str)
@pytest.mark.parametrize("kind", PLANTS)
def test_a_window_that_reaches_the_whole_prompt_has_no_effect(kind, window):
    free, windowed = label(PLANTS[kind], BASE), label(PLANTS[kind], BASE, windows=[window])
    assert windowed.labels == free.labels
    assert windowed.scores == free.scores
    assert windowed.chance == free.chance
    assert windowed.not_measured == free.not_measured
    assert windowed.window == window


# Invariants.


@pytest.mark.fault("B36")
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_changes_no_number(left):
    tokens = torch.tensor([row(), row()])
    pattern = random_pattern(tokens, 4)
    gap, length = 9, tokens.shape[1]
    padded = pad([*tokens.tolist(), [5] * (length + gap)], left=left)[:2]
    here = slice(gap, None) if left else slice(length)
    # Rows of padding hold what kernels leave there.
    wide = torch.full((2, 4, length + gap, length + gap), torch.nan)
    wide[:, :, here] = 0
    wide[:, :, here, here] = pattern
    for plain, verdict in zip(
        classify_heads(pattern, tokens), classify_heads(wide, padded), strict=True
    ):
        assert verdict.labels == plain.labels
        # Float32 sums in another order; distances go up to 25 tokens.
        assert verdict.scores == pytest.approx(plain.scores, abs=1e-6)
        assert verdict.chance == pytest.approx(plain.chance, abs=1e-6)
        assert verdict.entropy == pytest.approx(plain.entropy, abs=1e-5)
        assert verdict.mean_distance == pytest.approx(plain.mean_distance, abs=1e-4)
        assert verdict.sink_position == plain.sink_position


def test_entropy_and_distance_have_closed_forms():
    split = label(back(1, 3), BASE)
    # Queries 1 and 2 look at position 0, and at 1; the other 22 split over two keys.
    assert split.entropy == pytest.approx(22 * np.log(2) / 24, abs=1e-6)  # float32
    assert split.mean_distance == pytest.approx((1 + 1 + 22 * 2) / 24, abs=1e-5)


def test_rows_with_few_queries_count_however_they_are_batched():
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 2, 3]] * 3)  # Three queries of induction each.
    pattern = planted(tokens, induction)
    pieces = [
        scored(one[None], ids[None], thresholds=Thresholds())
        for one, ids in zip(pattern, tokens, strict=True)
    ]
    for scores in (scored(pattern, tokens, thresholds=Thresholds()), LayerScores.join(pieces)):
        assert scores.measured(9).tallies["induction"].queries.tolist() == [3, 3, 3]
        assert "induction" not in scores.measured(10).tallies
    assert "induction" not in pieces[0].measured(4).tallies


@pytest.mark.parametrize("cuts", [[3], [1, 2], [1, 1, 1]], ids=str)
def test_scores_of_pieces_joined_are_the_scores_of_the_whole(cuts):
    tokens = ROWS["right padding"]
    pattern = random_pattern(tokens, 3)
    whole = scored(pattern, tokens, thresholds=Thresholds())
    joined = LayerScores.join(
        [
            scored(piece, ids, thresholds=Thresholds())
            for piece, ids in zip(pattern.split(cuts), tokens.split(cuts), strict=True)
        ]
    )
    assert list(joined.tallies) == list(whole.tallies)
    for name, tally in whole.tallies.items():
        assert torch.equal(joined.tallies[name].queries, tally.queries)
        # Float64 sums of float32 numbers that a batch may round differently.
        torch.testing.assert_close(joined.tallies[name].total, tally.total, rtol=1e-6, atol=1e-6)
    assert torch.equal(joined.sink_position, whole.sink_position)


def test_queries_that_are_not_asked_do_not_count():
    # An induction head that works in the second copy only, and looks back by one in the first.
    second = torch.zeros_like(BASE, dtype=torch.bool)
    second[:, 13:] = True
    pattern = planted(BASE, lambda row, q: induction(row, q) if q >= 13 else [q - 1])
    scores = scored(pattern, BASE, counted=second, thresholds=Thresholds())
    assert scores.tallies["previous_token"].queries.tolist() == [12]
    assert scores.tallies["previous_token"].mean.tolist() == [0]
    assert scores.tallies["induction"].mean.tolist() == [1]


# Shapes and types of input.


def heads_of_two_layers() -> Tensor:
    """`[layer, batch, head, query, key]`, every head planted differently."""
    tokens = ROWS["right padding"]
    layers = [["induction", "previous_token"], ["sink", "duplicate_token"]]
    return torch.stack(
        [torch.cat([planted(tokens, PLANTS[kind]) for kind in kinds], dim=1) for kinds in layers]
    )


def test_layers_keep_their_own_numbers():
    verdicts = classify_heads(heads_of_two_layers(), ROWS["right padding"], layers=[3, 17])
    assert [str(verdict.head) for verdict in verdicts] == ["L3H0", "L3H1", "L17H0", "L17H1"]


DTYPES = {
    "torch float16": lambda stack: stack.half(),
    "torch bfloat16": lambda stack: stack.bfloat16(),
    "numpy float16": lambda stack: stack.half().numpy(),
    "numpy float64": lambda stack: stack.double().numpy(),
}


@pytest.mark.fault("B13")
@pytest.mark.parametrize("convert", DTYPES.values(), ids=DTYPES)
def test_every_float_type_gives_the_same_labels(convert):
    tokens = ROWS["right padding"]
    pattern = torch.cat([heads_of_two_layers()[0], random_pattern(tokens, 4)], dim=1)
    for exact, verdict in zip(
        classify_heads(pattern.double(), tokens), classify_heads(convert(pattern), tokens)
    ):
        assert verdict.labels == exact.labels
        # bfloat16 has 8 bits: each probability is off by 1/512 of itself at most.
        assert verdict.scores == pytest.approx(exact.scores, abs=1 / 256)


def test_a_row_too_short_to_count_has_no_say_in_the_place_of_the_sink():
    assert label(resting, pad([row(), [BOS]], left=True)).sink_position == 0


def test_too_few_repeats_inside_the_window_are_not_blamed_on_the_window():
    tokens = torch.tensor([[0, 1, 2, 3, 4, 1, *range(6, 15)]])
    missing = label(back(0), tokens, windows=[10]).not_measured
    assert "window" not in missing["induction"]
    assert missing["duplicate_token"] == NOT_ENOUGH


def test_special_tokens_that_come_again_are_no_repeat():
    tokens = torch.tensor([[BOS, 10, 11, SEP, 12, 13, SEP, 14, 15, SEP, *range(16, 30)]])
    missing = label(back(1), tokens, special=(BOS, SEP)).not_measured
    assert missing["induction"] == "no token is repeated"


def test_attention_beyond_the_stated_window_is_refused():
    with pytest.raises(InputError, match=r"keep to the layer's window.* puts 1 of its attention"):
        classify_heads(planted(BASE, back(2)), BASE, windows=[2])


TWO_ROWS = torch.tensor([row(), row()])
GOOD = planted(TWO_ROWS, back(1)).expand(-1, 2, -1, -1)


def spoiled(place: tuple[int, ...], value: float, *also: tuple[tuple[int, ...], float]) -> Tensor:
    pattern = torch.cat([planted(TWO_ROWS, induction), planted(TWO_ROWS, back(1))], dim=1)
    for where, number in ((place, value), *also):
        pattern[where] = number
    return pattern


SPOILED = {
    "a negative entry": (spoiled((0, 0, 4, 1), -0.25), "after the softmax, got -0.25 in layer 5"),
    "attention to the future": (
        spoiled((1, 0, 4, 0), 0.75, ((1, 0, 4, 9), 0.25)),
        "layer 5 puts 0.25 of its attention elsewhere",
    ),
    "a row that sums to less": (
        spoiled((1, 0, 6, 0), 0.5),
        "sum to 1, got 0.5 in layer 5, head 0, query 6",
    ),
    "a row that sums to more": (
        spoiled((0, 1, 6, 0), 1.0),
        "sum to 1, got 2 in layer 5, head 1, query 6",
    ),
}


@pytest.mark.fault("B36")
@pytest.mark.parametrize(("pattern", "message"), SPOILED.values(), ids=SPOILED)
def test_what_is_no_causal_attention_is_refused_by_its_place(pattern, message):
    with pytest.raises(InputError, match=message):
        classify_heads([GOOD, pattern], TWO_ROWS, layers=[2, 5])


@pytest.mark.parametrize(
    ("patterns", "tokens", "options"),
    [
        (GOOD, TWO_ROWS[:, 1:], {}),
        (GOOD, BASE.expand(3, -1), {}),
        (GOOD[..., :-1], TWO_ROWS, {}),
        (GOOD, None, {}),
        (GOOD, TWO_ROWS.float(), {}),
        (GOOD, TWO_ROWS > 0, {}),
        (GOOD, TWO_ROWS - 5, {}),
        (GOOD, TWO_ROWS[None], {}),
        (torch.eye(5)[None], [1, 2, NONE, 3, 4], {}),
        (torch.eye(5)[None], [NONE] * 5, {}),
        (torch.eye(3)[None], np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]), {}),
        (GOOD[0, 0], BASE, {}),
        (GOOD[:, :0], TWO_ROWS, {}),
        ([torch.eye(5)[None]] * 3, [range(5)] * 2, {}),
        (torch.eye(5)[None] * 1j, range(5), {}),
        ((), TWO_ROWS, {}),
        ([GOOD, None], TWO_ROWS, {}),
        (GOOD, TWO_ROWS, {"layers": [0, 1]}),
        (GOOD, TWO_ROWS, {"layers": [1.5]}),
        (GOOD, TWO_ROWS, {"special": "12"}),
        (GOOD, TWO_ROWS, {"special": [-1]}),
        (GOOD, TWO_ROWS, {"windows": [None] * 2}),
        (GOOD, TWO_ROWS, {"windows": [0]}),
    ],
)
def test_input_that_could_give_wrong_numbers_is_refused(patterns, tokens, options):
    given = inspect.unwrap(classify_heads)  # As users have it: tests check types too.
    with pytest.raises(InputError, match=next(iter(options), "patterns|tokens")):
        given(patterns, tokens, **options)


@pytest.mark.parametrize("value", [0.0, 1.1, float("nan")])
def test_a_threshold_must_be_a_share(value):
    for name in (*PLANTS, "sink_column"):
        with pytest.raises(InputError, match=f"{name} must"):
            Thresholds(**{name: value})
    with pytest.raises(InputError, match="min_queries must"):
        Thresholds(min_queries=0)
