"""Where each kind of head looks, from the token ids alone.

A kind of head is a rule that says to which positions a query should attend: its *targets*. Every
rule here has the same shape:

    tokens [batch, pos]  ->  keys [batch, query, m]

`keys[b, q]` are positions in row `b`, filled up with -1. A query whose keys are all -1
has no target: it says nothing about this kind of head and is not counted.

In `tokens`, -1 marks padding, on either side of a row. The first token that is not
padding is where idle heads rest (see `sink`), and `special` ids (BOS, EOS, separators)
are resting places too. So that rest is never mistaken for work, neither is a query or a
target of any other kind; and where two kinds would want the same key (after "A A" the
earlier A *is* the previous token) the query cannot tell them apart and is left out.

`interp.kinds.kind.KINDS` says which rule defines which kind of head, in causal models and in
bidirectional ones (BERT).
"""

from collections.abc import Collection

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Int
from torch import Tensor

NONE = -1
"""Padding in `tokens`; in `keys`, no target."""


def first_token(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """Position of each row's first token that is not padding."""
    return (tokens != NONE).int().argmax(-1)


def ordinary(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Bool[Tensor, "batch pos"]:
    """Which positions hold a token that is not padding, not first in its row, not special."""
    listed = torch.tensor(sorted(special), dtype=tokens.dtype, device=tokens.device)
    is_first = positions(tokens) == first_token(tokens)[:, None]
    return (tokens != NONE) & ~is_first & ~torch.isin(tokens, listed)


def positions(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """`0, 1, 2, ...` in every row."""
    batch, length = tokens.shape
    return repeat(torch.arange(length, device=tokens.device), "pos -> batch pos", batch=batch)


class Blocks(int):
    """As a layer's window: the row falls into blocks of so many tokens, counted from its first.

    A query sees no key outside its own block (Llama 4), so that how many it sees depends on where
    it is, where another window slides along with it.
    """


def within(window: int, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Whether a window lets a query see a key, whichever of them is first.

    Args:
        window: How far it reaches, the query included; or `Blocks`.
        query: Places, counted from the row's first token.
        key: The same, of a shape that fits that of `query`.

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


def sink(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query 1"]:
    """The first token of the row, for every later query.

    A head that has nothing to do puts its attention there (Xiao et al. 2023,
    arXiv 2309.17453). Other columns can serve too, and count as well: special tokens, by their
    ids, and those found in the attention itself (see `interp.kinds.sinks.sink_columns`).
    """
    first = first_token(tokens)[:, None].expand_as(tokens)
    return _for_queries(ordinary(tokens, special), first[..., None])


def previous_token(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query 1"]:
    """The token before the query.

    Example:
        >>> previous_token(torch.tensor([[0, 7, 8, 9]]))[0, :, 0].tolist()
        [-1, -1, 1, 2]
    """
    return _keep_clear(tokens, special, positions(tokens)[..., None] - 1)


def next_token(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query 1"]:
    """The token after the query.

    Example:
        >>> next_token(torch.tensor([[0, 7, 8, 9]]))[0, :, 0].tolist()
        [-1, 2, 3, -1]
    """
    after = positions(tokens)[..., None] + 1
    return _keep_clear(tokens, special, torch.where(after < tokens.shape[1], after, NONE))


def current_token(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query 1"]:
    """The query itself."""
    return _keep_clear(tokens, special, positions(tokens)[..., None])


def local_window(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = (), *, width: int = 8
) -> Int[Tensor, "batch query width"]:
    """The last `width` positions, the query among them.

    A query counts once at least one position lies outside its window, so that the first
    token, where idle heads rest, never lies inside.
    """
    here = positions(tokens)[..., None]
    window = here - torch.arange(width, device=tokens.device)
    outside = window[..., -1] > first_token(tokens)[:, None]
    return _for_queries(ordinary(tokens, special) & outside, window)


def window_around(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = (), *, width: int = 8
) -> Int[Tensor, "batch query m"]:
    """The query and the `width // 2` positions on each side of it.

    A query counts if all of them are ordinary tokens, so that no resting place lies inside.
    """
    half = width // 2
    keys = positions(tokens)[..., None] + torch.arange(-half, half + 1, device=tokens.device)
    within = (keys >= 0) & (keys < tokens.shape[1])
    kept = _keep_clear(tokens, special, torch.where(within, keys, NONE))
    return _for_queries(within.all(-1), kept)


def duplicate_token(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query m"]:
    """Every earlier place of the query's own token (Wang et al. 2022, arXiv 2211.00593).

    Example:
        >>> duplicate_token(torch.tensor([[0, 7, 8, 7, 9, 7]]))[0, 5].tolist()
        [3, 1]
    """
    return _apart(tokens, special, earlier_copies(tokens))


def any_copy(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query m"]:
    """Every other place of the query's own token, before it or after it.

    Example:
        >>> any_copy(torch.tensor([[0, 7, 8, 7, 9, 7]]))[0, 3].tolist()
        [1, -1, 5, -1]
    """
    back = earlier_copies(tokens.flip(-1)).flip(1)
    later = torch.where(back == NONE, NONE, tokens.shape[1] - 1 - back)
    return _apart(tokens, special, torch.cat([earlier_copies(tokens), later], dim=-1))


def induction(
    tokens: Int[Tensor, "batch pos"], special: Collection[int] = ()
) -> Int[Tensor, "batch query m"]:
    """The places right after every earlier copy of the query's own token.

    `[A][B] ... [A] -> [B]`: the head attends from the second A to the B, the token that
    came next last time (Olsson et al. 2022, arXiv 2209.11895). With a fixed period this is
    the stripe at offset `period - 1`; taken from the tokens it needs no period.

    Example:
        >>> induction(torch.tensor([[0, 7, 8, 9, 7, 8]]))[0].tolist()
        [[-1], [-1], [-1], [-1], [2], [3]]
    """
    copies = earlier_copies(tokens)
    return _apart(tokens, special, torch.where(copies == NONE, NONE, copies + 1))


def earlier_copies(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch query m"]:
    """All earlier positions of each token, the nearest first; `m` is the largest number of them.

    Time and memory grow with `pos * m`, never with `pos ** 2`: a stable sort puts equal
    tokens side by side in the order of their positions, which links every place to the
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


def _for_queries(
    counted: Bool[Tensor, "batch query"], keys: Int[Tensor, "batch query m"]
) -> Int[Tensor, "batch query m"]:
    return torch.where(rearrange(counted, "batch query -> batch query 1"), keys, NONE)


def _keep_clear(
    tokens: Int[Tensor, "batch pos"],
    special: Collection[int],
    keys: Int[Tensor, "batch query m"],
) -> Int[Tensor, "batch query m"]:
    """Leave out queries that are not ordinary tokens, or one of whose targets is not."""
    fit = ordinary(tokens, special)
    target_fit = fit[torch.arange(len(tokens), device=tokens.device)[:, None, None], keys.clamp(0)]
    return _for_queries(fit & (target_fit | (keys == NONE)).all(-1), keys)


def _apart(
    tokens: Int[Tensor, "batch pos"],
    special: Collection[int],
    keys: Int[Tensor, "batch query m"],
) -> Int[Tensor, "batch query m"]:
    """`_keep_clear`, and without queries that have themselves or a neighbour among the targets."""
    near = ((keys - positions(tokens)[..., None]).abs() <= 1).any(-1)
    return _for_queries(~near, _keep_clear(tokens, special, keys))
