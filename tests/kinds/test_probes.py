from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import InputError
from interp.kinds.probes import Probe, extended, passages, repeated, shuffled, text

VOCABULARY = torch.arange(100, 400) * 3  # With gaps, so that an invented id is seen.
BOS = 1


def probe(rows: int = 12, length: int = 64, bos: int | None = BOS, seed: int = 0) -> Probe:
    return repeated(VOCABULARY, rows=rows, length=length, bos=bos, seed=seed)


def body_of(made: Probe, bos: int | None) -> torch.Tensor:
    return made.tokens[:, bos is not None :]


@pytest.mark.parametrize("bos", [BOS, None], ids=["BOS", "no BOS"])
@pytest.mark.parametrize("length", [12, 13, 64, 129])
def test_each_row_repeats_with_its_period_and_has_no_other_repeat(length, bos):
    made = probe(length=length, bos=bos)
    assert made.tokens.shape == (12, length)
    for row, period in zip(body_of(made, bos), made.periods, strict=True):
        assert torch.equal(row[period:], row[:-period])
        assert len(row[:period].unique()) == period
        assert torch.isin(row, VOCABULARY).all()


@pytest.mark.parametrize("bos", [BOS, None], ids=["BOS", "no BOS"])
def test_the_repeated_part_starts_at_the_first_token_seen_before(bos):
    made = probe(bos=bos)
    for row, queries in zip(made.tokens.tolist(), made.parts["repeated"].tolist(), strict=True):
        assert queries == [token in row[:q] for q, token in enumerate(row)]
    assert torch.equal(made.parts["random"], ~made.parts["repeated"])
    assert set(made.parts) == {"random", "repeated"}


@settings(deadline=None, derandomize=True)
@given(length=st.integers(12, 200), seed=st.integers(0, 1000))
def test_the_first_copy_is_whole_and_three_fifths_of_another_follow(length, seed):
    made = probe(rows=4, length=length, seed=seed)
    for period in made.periods:
        assert 3 / 5 * period <= length - 1 - period
        # The shortest period is 3/8 of the row, rounded down.
        assert length - 1 - period <= 5 / 3 * period + 8 / 3


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    one, same, other = probe(seed=5), probe(seed=5), probe(seed=6)
    assert torch.equal(one.tokens, same.tokens)
    assert one.periods == same.periods
    assert not torch.equal(one.tokens, other.tokens)


def test_the_global_random_state_neither_changes_nor_matters():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = probe()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(probe().tokens, one.tokens)


def test_a_vocabulary_just_large_enough_will_do_and_one_less_will_not():
    # 65 tokens with BOS leave 64; the longest period is 5/8 of them.
    enough = torch.arange(40)
    made = repeated(enough, rows=20, length=65, bos=99, seed=0)
    assert max(made.periods) <= 40
    with pytest.raises(InputError, match=r"at least 40 ordinary tokens, got 39"):
        repeated(enough[:39], rows=20, length=65, bos=99, seed=0)


@pytest.mark.parametrize("size", [1, 5, 12, 100])
def test_a_split_probe_is_the_same_rows_in_the_same_order(size):
    made = probe()
    pieces = made.split(size)
    assert all(1 <= len(piece.tokens) <= size for piece in pieces)
    assert torch.equal(torch.cat([piece.tokens for piece in pieces]), made.tokens)
    for name, queries in made.parts.items():
        assert torch.equal(torch.cat([piece.parts[name] for piece in pieces]), queries)
    assert sum((piece.periods for piece in pieces), ()) == made.periods
    assert [len(piece.periods) for piece in pieces] == [len(piece.tokens) for piece in pieces]


def encoded() -> Iterator[torch.Tensor]:
    yield from (torch.arange(100, 125), torch.arange(200, 219), torch.arange(300, 304))


def test_text_is_cut_into_full_rows_one_passage_after_the_other_in_turn():
    made = text(encoded(), rows=10, length=9, bos=BOS)
    assert made is not None
    assert made.tokens[:, 0].tolist() == [BOS] * 5
    starts = made.tokens[:, 1].tolist()
    assert starts == [100, 200, 108, 208, 116]
    for start, row in zip(starts, made.tokens[:, 1:], strict=True):
        assert row.tolist() == list(range(start, start + 8))
    assert list(made.parts) == ["text"]
    assert made.parts["text"].all()
    assert made.parts["text"].shape == made.tokens.shape
    assert made.periods == ()


@pytest.mark.parametrize(
    "ids",
    [[], [torch.arange(0)], [torch.arange(7)], [torch.arange(3), torch.arange(7)]],
    ids=["no passages", "an empty passage", "one token short", "two short passages"],
)
def test_text_that_fills_no_row_is_none(ids):
    assert text(iter(ids), rows=3, length=9, bos=BOS) is None


def test_passages_are_of_several_kinds_and_not_empty():
    found = passages()
    assert len(found) >= 4
    assert list(found) == sorted(found)
    for name, words in found.items():
        assert "." not in name
        assert len(words.split()) > 100
        assert "\N{REPLACEMENT CHARACTER}" not in words


def test_shuffled_rows_hold_the_same_tokens_and_the_same_first_copy():
    probe = repeated(torch.arange(10, 200), rows=6, length=60, bos=1, seed=0)
    null = shuffled(probe, seed=0)
    later = probe.parts["repeated"]
    assert torch.equal(null.tokens[~later], probe.tokens[~later])
    assert torch.equal(null.tokens.sort().values, probe.tokens.sort().values)
    assert null.asked is probe.tokens
    assert null.parts.keys() == {"shuffled", "elsewhere"}
    assert torch.equal(null.parts["shuffled"], later)
    assert torch.equal(null.parts["elsewhere"], ~later)
    # Hardly a token is where it was: 1 of about 30 by chance.
    assert (null.tokens == probe.tokens)[later].float().mean() < 0.15
    assert not torch.equal(shuffled(probe, seed=1).tokens, null.tokens)


def test_one_more_bos_moves_every_query_by_one():
    probe = repeated(torch.arange(10, 200), rows=3, length=40, bos=1, seed=0)
    again = extended(probe, 1, front=True)
    assert again.tokens[:, :2].tolist() == [[1, 1]] * 3
    assert torch.equal(again.tokens[:, 1:], probe.tokens)
    for name, queries in probe.parts.items():
        assert torch.equal(again.parts[name][:, 1:], queries)
        assert not again.parts[name][:, 0].any()
