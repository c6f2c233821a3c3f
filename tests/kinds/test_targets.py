from collections.abc import Callable, Collection
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.kinds import targets
from interp.kinds.builtin import KINDS, kinds_of
from interp.kinds.targets import NONE, earlier_copies, first_token, ordinary, positions

SPECIAL = (0, 1)


# A second opinion, from the definitions, one row and one query at a time.


def start(row: list[int]) -> int:
    return next((at for at, token in enumerate(row) if token != NONE), 0)


def is_ordinary(row: list[int], at: int, special: Collection[int]) -> bool:
    return row[at] != NONE and at != start(row) and row[at] not in special


def copies_of(row: list[int], q: int) -> list[int]:
    return [k for k in range(q) if row[k] == row[q] and row[q] != NONE]


def clear(row: list[int], q: int, keys: list[int], special: Collection[int]) -> list[int]:
    fit = all(is_ordinary(row, at, special) for at in [q, *keys])
    return keys if fit else []


def apart(row: list[int], q: int, keys: list[int], special: Collection[int]) -> list[int]:
    near = {q - 1, q, q + 1} & set(keys)
    return [] if near else clear(row, q, keys, special)


def slow_sink(row: list[int], q: int, special: Collection[int]) -> list[int]:
    return [start(row)] if is_ordinary(row, q, special) else []


def slow_previous(row: list[int], q: int, special: Collection[int]) -> list[int]:
    return clear(row, q, [q - 1], special) if q else []


def slow_current(row: list[int], q: int, special: Collection[int]) -> list[int]:
    return clear(row, q, [q], special)


def slow_window(row: list[int], q: int, special: Collection[int], width: int = 8) -> list[int]:
    def counts(q: int) -> bool:
        return is_ordinary(row, q, special) and q - width + 1 > start(row)

    enough = sum(map(counts, range(len(row)))) >= 2 * width
    return list(range(q - width + 1, q + 1)) if enough and counts(q) else []


def slow_duplicate(row: list[int], q: int, special: Collection[int]) -> list[int]:
    return apart(row, q, copies_of(row, q), special)


def slow_induction(row: list[int], q: int, special: Collection[int]) -> list[int]:
    return apart(row, q, [k + 1 for k in copies_of(row, q)], special)


def slow_next(row: list[int], q: int, special: Collection[int]) -> list[int]:
    return clear(row, q, [q + 1], special) if q + 1 < len(row) else []


def slow_around(row: list[int], q: int, special: Collection[int], width: int = 8) -> list[int]:
    keys = range(q - width // 2, q + width // 2 + 1)
    return clear(row, q, [*keys], special) if keys[0] >= 0 and keys[-1] < len(row) else []


def slow_any_copy(row: list[int], q: int, special: Collection[int]) -> list[int]:
    copies = [k for k in range(len(row)) if k != q and row[k] == row[q] != NONE]
    return apart(row, q, copies, special)


SLOW: dict[str, Callable[..., list[int]]] = {
    "sink": slow_sink,
    "previous_token": slow_previous,
    "current_token": slow_current,
    "local_window": slow_window,
    "duplicate_token": slow_duplicate,
    "induction": slow_induction,
}
SLOW_BOTH_WAYS: dict[str, Callable[..., list[int]]] = {
    "duplicate_token": slow_any_copy,
    "previous_token": slow_previous,
    "next_token": slow_next,
    "current_token": slow_current,
    "local_window": slow_around,
    "sink": slow_sink,
}
OF_EITHER = [(kind, causal) for causal in (True, False) for kind in kinds_of(causal)]
either = pytest.mark.parametrize(("kind", "causal"), OF_EITHER)
"""Every kind of a model that looks back, and of one that looks both ways."""


def listed(keys: torch.Tensor) -> list[list[list[int]]]:
    return [[sorted(k for k in query if k != NONE) for query in row] for row in keys.tolist()]


def fast_and_slow_agree(
    kind: str, causal: bool, rows: list[list[int]], special: Collection[int]
) -> None:
    slow = (SLOW if causal else SLOW_BOTH_WAYS)[kind]
    expected = [[slow(row, q, special) for q in range(len(row))] for row in rows]
    assert listed(KINDS[kind](torch.tensor(rows), special=special, causal=causal)) == expected


def keys_of(rule: Callable[..., torch.Tensor], row: list[int], **options) -> list[list[int]]:
    return listed(rule(torch.tensor([row]), **options))[0]


@st.composite
def batches(draw: st.DrawFn) -> list[list[int]]:
    length = draw(st.integers(1, 30))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        left = draw(st.integers(0, length))
        right = draw(st.integers(0, length - left))
        body = length - left - right
        ids = draw(st.lists(st.integers(0, 5), min_size=body, max_size=body))
        rows.append([NONE] * left + ids + [NONE] * right)
    return rows


@pytest.mark.fault("B113")
@either
@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=batches(), special=st.sampled_from([(), (0,), SPECIAL]))
def test_targets_of_any_rows_are_those_of_the_definition(kind, causal, rows, special):
    fast_and_slow_agree(kind, causal, rows, special)


@either
@pytest.mark.parametrize("vocabulary", [1, 3, 40])
def test_targets_of_long_rows_are_those_of_the_definition(kind, causal, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    rows = torch.randint(vocabulary, (6, 70), generator=generator)
    rows[1, :9] = NONE
    rows[2, 50:] = NONE
    rows[3, :20] = rows[3, 60:] = NONE
    rows[4] = NONE
    fast_and_slow_agree(kind, causal, rows.tolist(), (0,))


def test_every_kind_has_a_second_opinion():
    assert set(SLOW) == set(kinds_of(causal=True))
    assert list(SLOW_BOTH_WAYS) == list(kinds_of(causal=False))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(batches())
def test_earlier_copies_are_all_of_them_the_nearest_first(rows):
    for row, found in zip(rows, earlier_copies(torch.tensor(rows)).tolist(), strict=True):
        for q, keys in enumerate(found):
            real = [k for k in keys if k != NONE]
            assert real == copies_of(row, q)[::-1]
            assert keys[: len(real)] == real  # The filling comes last.


@settings(max_examples=15, deadline=None, derandomize=True)
@given(rows=batches(), pad=st.integers(1, 5))
def test_padding_moves_the_targets_and_changes_nothing_else(rows, pad):
    tokens = torch.tensor(rows)
    blank = torch.full((len(rows), pad), NONE)
    for kind, causal in OF_EITHER:
        rule = partial(KINDS[kind], special=SPECIAL, causal=causal)
        plain = listed(rule(tokens))
        assert [row[:-pad] for row in listed(rule(torch.cat([tokens, blank], 1)))] == plain
        moved = listed(rule(torch.cat([blank, tokens], 1)))
        assert [[[k - pad for k in keys] for keys in row[pad:]] for row in moved] == plain


def test_period_two_has_duplicates_but_its_induction_target_is_the_previous_token():
    row = [0, 7, 8, 7, 8, 7]
    assert keys_of(targets.duplicate_token, row) == [[], [], [], [1], [2], [1, 3]]
    assert keys_of(targets.induction, row) == [[]] * 6


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_a_window_holds_the_query_and_the_positions_before_it(width):
    row = [NONE, NONE, *range(30)]
    windows = keys_of(targets.local_window, row, width=width)
    assert windows == [slow_window(row, q, (), width) for q in range(len(row))]
    assert windows[-1] == list(range(len(row) - width, len(row)))
    # The first window that counts starts right after the first token.
    assert next(keys for keys in windows if keys) == list(range(3, 3 + width))


def test_the_first_token_is_the_first_that_is_not_padding():
    rows = torch.tensor([[5, 6, 7], [NONE, 6, 7], [NONE, NONE, 7], [5, NONE, NONE]])
    assert first_token(rows).tolist() == [0, 1, 2, 0]
    assert positions(rows).tolist() == [[0, 1, 2]] * 4
    assert ordinary(rows, (7,)).tolist() == [
        [False, True, False],
        [False, False, False],
        [False, False, False],
        [False, False, False],
    ]
