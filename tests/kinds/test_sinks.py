"""Which columns are sinks, from few rows and many, and what a head's label says of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from interp.kinds.labels import FIRST_ONLY, NOT_ENOUGH, HeadLabel
from interp.kinds.mass import FromPattern, FromQK
from interp.kinds.sinks import SAMPLE, Search, find_sinks, spaced
from interp.patterns.classify import classify_heads


def sinks(pattern: Tensor, counted: Tensor, *, causal: bool = True, **limits: Any) -> Tensor:
    """Which columns are sinks, `[batch, head, key]`."""
    search = Search.of(counted, causal=causal)
    found = find_sinks(FromPattern(pattern), search, torch.zeros_like(counted), **limits)
    return found.columns(torch.zeros_like(counted))


def slow_sinks(pattern: Tensor, counted: Tensor, causal: bool, share: float, least: int) -> Tensor:
    batch, heads, length, _ = pattern.shape
    found = torch.zeros(batch, heads, length, dtype=torch.bool)
    for b in range(batch):
        for k in range(length):
            users = [q for q in range(length) if counted[b, q] and (q > k if causal else q != k)]
            users.sort(key=lambda q: abs(q - k))
            if len(users) < least:
                continue
            halves = users[: len(users) // 2], users[len(users) // 2 :]
            for h in range(heads):
                given = [[pattern[b, h, q, k].item() for q in half] for half in halves]
                found[b, h, k] = all(sum(half) >= share * len(half) for half in given)
    return found


def random_case(seed: int, length: int, causal: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(2, 3, length, length, generator=generator)
    # Some columns of each head draw attention.
    scores += 3 * torch.randn(2, 3, 1, length, generator=generator)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) & causal
    counted = torch.rand(2, length, generator=generator) < 0.8
    return scores.masked_fill(hidden, -torch.inf).softmax(-1), counted


@pytest.mark.parametrize("causal", [True, False])
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 20),
    least=st.integers(1, 6),
    share=st.floats(0.02, 0.4),
)
def test_sink_columns_are_those_of_the_definition(causal, seed, length, least, share):
    pattern, counted = random_case(seed, length, causal)
    fast = sinks(pattern, counted, causal=causal, share=share, least=least)
    assert torch.equal(fast, slow_sinks(pattern, counted, causal, share, least))


@pytest.mark.parametrize("causal", [True, False])
def test_in_a_long_row_few_rows_propose_columns_and_all_of_them_decide(causal):
    pattern, counted = random_case(0, 200, causal)
    limits = {"share": 0.03, "least": 16}
    fast = sinks(pattern, counted, causal=causal, **limits)
    assert fast.any()
    assert not (fast & ~slow_sinks(pattern, counted, causal, **limits)).any()


def columns_of(look: Callable[[int], int], length: int = 40) -> list[int]:
    pattern = torch.zeros(1, 1, length, length)
    for q in range(length):
        pattern[0, 0, q, min(look(q), q)] = 1
    counted = torch.ones(1, length, dtype=torch.bool)
    return sinks(pattern, counted, share=0.1, least=16)[0, 0].nonzero().flatten().tolist()


SINKS = {
    "the first token": (lambda q: 0, [0]),
    "a later column": (lambda q: 5, [5]),
    "two columns in turn": (lambda q: q % 2, [0, 1]),
    "the previous token": (lambda q: q - 1 if q else 0, []),
    "the token itself": (lambda q: q, []),
    "half way back": (lambda q: q // 2, []),
    "a column with too few queries after it": (lambda q: 24, []),
    "a column with just enough queries after it": (lambda q: 23, [23]),
    "a column that the later half forgets": (lambda q: 0 if q < 20 else q, []),
    "a column that the earlier half has not found": (lambda q: 0 if q >= 20 else q, []),
}


@pytest.mark.parametrize(("look", "columns"), SINKS.values(), ids=SINKS)
def test_a_sink_is_a_column_that_draws_from_everywhere(look, columns):
    assert columns_of(look) == columns


def test_rows_that_are_searched_are_all_of_few_and_denser_towards_the_end_of_many():
    counted = torch.zeros(2, 500, dtype=torch.bool)
    counted[0, 100:400] = True
    counted[1, [3, 5, 8]] = True
    few, many = spaced(counted, most=100)[1], spaced(counted, most=4)[0]
    assert few[few >= 0].tolist() == [3, 5, 8]
    assert many.tolist() == [100, 363, 384, 399]
    assert spaced(torch.ones(1, 128, dtype=torch.bool)).shape == (1, SAMPLE)
    # At every length, a column with 16 queries after it has rows in both halves of them.
    for length in (40, 128, 129, 400, 5000):
        queries = spaced(torch.ones(1, length, dtype=torch.bool))[0]
        assert (queries >= length - 8).any()
        assert ((queries < length - 8) & (queries >= length - 16)).any()


def resting_on(*columns: int, length: int, share: float = 0.8) -> Tensor:
    """A head that gives `share` to those of the columns before the query, and is even else."""
    even = torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]
    place = torch.arange(length)
    there = torch.isin(place, torch.tensor(columns)) & (place < place[:, None])
    given = there / there.sum(-1, keepdim=True).clamp(min=1)
    active = share * there.any(-1, keepdim=True)
    return ((1 - active) * even + active * given)[None, None]


def label(*columns: int, length: int) -> HeadLabel:
    return classify_heads(resting_on(*columns, length=length), torch.arange(length))[0]


@pytest.mark.fault("C31")
@pytest.mark.parametrize(
    ("columns", "length"),
    [((300,), 512), ((0, 300), 512), ((0, 1, 2, 3), 512), ((480,), 512), ((1500, 1900), 2048)],
)
def test_every_sink_is_found_with_its_share_from_the_query_on_that_it_exists_for(columns, length):
    head = label(*columns, length=length)
    assert head.label == "sink"
    assert [*head.sinks] == [*columns]
    assert head.sink_position == columns[0]
    # Even attention to the columns adds a little.
    assert 0.8 <= head.scores["sink"] < 0.81
    for place, share in head.sinks.items():
        later = torch.arange(place + 1, length)
        users = torch.stack([(later > column).float() for column in columns]).sum(0)
        assert share == pytest.approx((0.8 / users).mean().item(), abs=0.01)


@pytest.mark.fault("C31")
def test_in_rows_too_short_for_a_later_sink_that_is_said_and_no_other_kind_is_seen():
    head = label(5, length=12)
    assert (head.label, head.sinks) == ("mixed", {})
    assert head.not_measured["sink"] == FIRST_ONLY
    assert head.not_measured["local_window"] == NOT_ENOUGH
    assert "local window" not in label(8, length=17).labels
    assert "sink" not in label(5, length=40).not_measured


@pytest.mark.fault("C31")
def test_late_sinks_are_the_same_without_a_pattern():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, h, 300, 16, generator=generator) for h in (6, 2))
    k[:, 0, 250] = 2 * q[0, 0].mean(0) + 3
    q[:, :3] += 1
    scores = (0.5 * q @ k.repeat_interleave(3, 1).mT).masked_fill(
        torch.ones(300, 300).triu(1) > 0, -torch.inf
    )
    two = FromQK(q, k, scores.logsumexp(-1), 0.5), FromPattern(scores.softmax(-1))
    search = Search.of(torch.arange(300)[None] > 0)
    named = torch.arange(300)[None] == 0
    ours, theirs = (find_sinks(one, search, named, share=0.1, least=16) for one in two)
    assert torch.equal(ours.drawing, theirs.drawing)
    assert ours.start[0, 0] == 250
    assert torch.allclose(ours.share, theirs.share, atol=1e-5)  # float32 sums in another order.


def test_columns_are_the_sinks_by_their_share_and_the_named_ones():
    pattern, counted = torch.zeros(1, 2, 20, 20), torch.ones(1, 20, dtype=torch.bool)
    pattern[0, 0, :, 3] = 1
    named = torch.arange(20)[None] == 7
    found = find_sinks(FromPattern(pattern), Search.of(counted), named, share=0.1, least=4)
    assert [row.nonzero().flatten().tolist() for row in found.columns(named)[0]] == [[3, 7], [7]]
    assert found.columns(named & False)[0].sum(-1).tolist() == [1, 0]
