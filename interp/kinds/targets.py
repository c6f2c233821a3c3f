"""Where each kind of head attends, from the token ids alone.

A kind of head is a rule that says to which positions a query should attend: its *targets*. Every
rule has the same shape,

    tokens [batch, pos]  ->  keys [batch, query, m]

`keys[b, q]` are positions in row `b`, filled up with -1. A query whose keys are all -1 has no
target and does not count for this kind.

In `tokens`, -1 marks padding, on either side of a row. Idle heads attend to the first token that
is not padding (see `sink`) and to `special` ids (BOS, EOS, separators), so these are neither
queries nor targets of any other kind. Where two kinds share a target (after "A A" the earlier A
*is* the previous token) the query cannot tell them apart and does not count.

`interp.kinds.builtin.KINDS` says which rule defines which kind of head, in causal models and in
bidirectional ones (BERT).
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

NONE = -1
"""Padding in `tokens`; in `keys`, no target."""

Tokens = Int[Tensor, "batch pos"]
"""Token ids of each row; -1 is padding."""

Keys = Int[Tensor, "batch query m"]
"""Positions of each query's targets, filled up with -1."""


def first_token(tokens: Tokens) -> Int[Tensor, " batch"]:
    """Position of each row's first token that is not padding."""
    return (tokens != NONE).int().argmax(-1)


def ordinary(tokens: Tokens, special: Collection[int] = ()) -> Bool[Tensor, "batch pos"]:
    """Which positions hold a token that is not padding, not first in its row, not special."""
    listed = torch.tensor(sorted(special), dtype=tokens.dtype, device=tokens.device)
    is_first = positions(tokens) == first_token(tokens)[:, None]
    return (tokens != NONE) & ~is_first & ~torch.isin(tokens, listed)


def positions(tokens: Tokens | Bool[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """`0, 1, 2, ...` in every row."""
    return torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)


class Blocks(int):
    """A layer's window as blocks of so many tokens, counted from the row's first (Llama 4).

    A query sees no key outside its own block.
    """


def within(window: int, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Whether a query sees a key, before or after it, in a window.

    Args:
        window: Reach of the window, the query included; or `Blocks`.
        query: Positions, counted from the row's first token.
        key: Positions of the keys, of a shape that broadcasts with `query`.

    Example:
        >>> key = torch.arange(6)
        >>> within(3, torch.tensor(3), key).int().tolist()
        [0, 1, 1, 1, 1, 1]
        >>> within(Blocks(3), torch.tensor(3), key).int().tolist()
        [0, 0, 0, 1, 1, 1]
    """
    if isinstance(window, Blocks):
        return query // int(window) == key // int(window)
    return (query - key).abs() < window


def sink(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """The first token of the row, for every later query.

    A head that has nothing to do attends to it (Xiao et al. 2023, arXiv 2309.17453). Other columns
    count as sinks too: special tokens, by their ids, and those found in the attention itself
    (see `interp.kinds.sinks`).
    """
    first = first_token(tokens)[:, None].expand_as(tokens)
    return _for_queries(ordinary(tokens, special), first[..., None])


def previous_token(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """The token before the query.

    Example:
        >>> previous_token(torch.tensor([[0, 7, 8, 9]]))[0, :, 0].tolist()
        [-1, -1, 1, 2]
    """
    return _all_ordinary(tokens, special, positions(tokens)[..., None] - 1)


def next_token(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """The token after the query.

    Example:
        >>> next_token(torch.tensor([[0, 7, 8, 9]]))[0, :, 0].tolist()
        [-1, 2, 3, -1]
    """
    after = positions(tokens)[..., None] + 1
    return _all_ordinary(tokens, special, torch.where(after < tokens.shape[1], after, NONE))


def current_token(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """The query itself."""
    return _all_ordinary(tokens, special, positions(tokens)[..., None])


def local_window(tokens: Tokens, special: Collection[int] = (), *, width: int = 8) -> Keys:
    """The last `width` positions, the query among them.

    A query counts once at least one position is outside its window, so that the first token is
    never inside. A row counts if it has `2 * width` such queries: in a shorter one, a column that
    draws all attention is inside most windows.
    """
    window = positions(tokens)[..., None] - torch.arange(width, device=tokens.device)
    counted = ordinary(tokens, special) & (window[..., -1] > first_token(tokens)[:, None])
    enough = counted.sum(-1, keepdim=True) >= 2 * width
    return _for_queries(counted & enough, window)


def window_around(tokens: Tokens, special: Collection[int] = (), *, width: int = 8) -> Keys:
    """The query and the `width // 2` positions on each side of it.

    A query counts if all of them are ordinary tokens.
    """
    half = width // 2
    keys = positions(tokens)[..., None] + torch.arange(-half, half + 1, device=tokens.device)
    inside = (keys >= 0) & (keys < tokens.shape[1])
    kept = _all_ordinary(tokens, special, torch.where(inside, keys, NONE))
    return _for_queries(inside.all(-1), kept)


def duplicate_token(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """Every earlier position of the query's token (Wang et al. 2022, arXiv 2211.00593).

    Example:
        >>> duplicate_token(torch.tensor([[0, 7, 8, 7, 9, 7]]))[0, 5].tolist()
        [3, 1]
    """
    return apart(tokens, special, earlier_copies(tokens))


def any_copy(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """Every other position of the query's token, before it or after it.

    Example:
        >>> any_copy(torch.tensor([[0, 7, 8, 7, 9, 7]]))[0, 3].tolist()
        [1, -1, 5, -1]
    """
    back = earlier_copies(tokens.flip(-1)).flip(1)
    later = torch.where(back == NONE, NONE, tokens.shape[1] - 1 - back)
    return apart(tokens, special, torch.cat([earlier_copies(tokens), later], dim=-1))


def induction(tokens: Tokens, special: Collection[int] = ()) -> Keys:
    """The positions right after every earlier copy of the query's token.

    `[A][B] ... [A] -> [B]`: the head attends from the second A to the B, the token that
    came next last time (Olsson et al. 2022, arXiv 2209.11895). With a fixed period this is
    the stripe at offset `period - 1`; computed from the tokens it needs no period.

    Example:
        >>> induction(torch.tensor([[0, 7, 8, 9, 7, 8]]))[0].tolist()
        [[-1], [-1], [-1], [-1], [2], [3]]
    """
    copies = earlier_copies(tokens)
    return apart(tokens, special, torch.where(copies == NONE, NONE, copies + 1))


def earlier_copies(tokens: Tokens) -> Keys:
    """All earlier positions of each token, the nearest first; `m` is the largest number of them.

    Time and memory grow with `pos * m`, never with `pos ** 2`: a stable sort puts equal
    tokens side by side in the order of their positions, which links every position to the
    one before it; following the links m times lists them all.
    """
    order = torch.sort(tokens, dim=-1, stable=True)
    follows = torch.full_like(tokens, NONE)
    same = (order.values[:, 1:] == order.values[:, :-1]) & (order.values[:, 1:] != NONE)
    before = torch.where(same, order.indices[:, :-1], NONE)
    follows.scatter_(-1, order.indices[:, 1:], before)

    copies = [follows]
    while (copies[-1] != NONE).any():
        last = copies[-1]
        copies.append(torch.where(last == NONE, NONE, follows.gather(-1, last.clamp(min=0))))
    return torch.stack(copies[:-1] or copies, dim=-1)


def latest(flags: Any, most: int = 1, *, back: int = 1) -> Keys:
    """The last `most` flagged positions at least `back` before each query, the nearest first.

    `flags [batch, pos]` are a tensor or lists of bool.

    Example:
        >>> latest([[True, False, True, False]], 2)[0].tolist()
        [[-1, -1], [0, -1], [0, -1], [2, 0]]
    """
    flags = torch.as_tensor(flags, dtype=torch.bool)
    upto = torch.where(flags, positions(flags), NONE).cummax(-1).values
    keys = [pad(upto, (back, 0), value=NONE)[:, : flags.shape[1]]]
    while len(keys) < most:
        before = keys[-1] - 1
        keys.append(torch.where(before < 0, NONE, upto.gather(-1, before.clamp(min=0))))
    return torch.stack(keys, -1)


def aligned(texts: Sequence[Sequence[str]], tokens: Tokens) -> list[list[str]]:
    """Texts of each row's tokens as a text for each position, "" at padding."""
    rows = zip(map(iter, texts), (tokens != NONE).tolist(), strict=True)
    return [[next(row) if real else "" for real in places] for row, places in rows]


def cells(keys: Int[Tensor, "*query m"], length: int) -> Bool[Tensor, "*query key"]:
    """Which of `length` keys are among each query's `keys`.

    Example:
        >>> cells(torch.tensor([[0, 2], [1, -1]]), 3).int().tolist()
        [[1, 0, 1], [0, 1, 0]]
    """
    found = torch.zeros(*keys.shape[:-1], length + 1, dtype=torch.bool, device=keys.device)
    # -1 goes to the last column, which is cut.
    return found.scatter(-1, torch.where(keys == NONE, length, keys), True)[..., :-1]


def at_keys(flags: Bool[Tensor, "batch pos"], keys: Keys) -> Bool[Tensor, "batch query m"]:
    """The flag at each target; False where there is none."""
    rows = torch.arange(len(keys), device=keys.device)[:, None, None]
    return flags[rows, keys.clamp(min=0)] & (keys != NONE)


def _for_queries(counted: Bool[Tensor, "batch query"], keys: Keys) -> Keys:
    return torch.where(counted[..., None], keys, NONE)


def _all_ordinary(tokens: Tokens, special: Collection[int], keys: Keys) -> Keys:
    """The keys of queries that are ordinary tokens and whose targets all are."""
    fit = ordinary(tokens, special)
    return _for_queries(fit & ~at_keys(~fit, keys).any(-1), keys)


def apart(tokens: Tokens, special: Collection[int], keys: Keys) -> Keys:
    """`_all_ordinary`, without queries that have themselves or a neighbour among the targets."""
    near = ((keys - positions(tokens)[..., None]).abs() <= 1).any(-1)
    return _for_queries(~near, _all_ordinary(tokens, special, keys))
