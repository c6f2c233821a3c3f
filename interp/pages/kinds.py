"""Where each kind of head looks, for pages and figures alike: in words, as cells, as a pattern."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.scores import Thresholds, targets_of
from interp.sinks import halves, sink_columns, spaced
from interp.targets import NONE, ordinary

LOOKS = {
    "induction": "looks right after an earlier copy",
    "duplicate_token": "looks at earlier copies of the token",
    "previous_token": "looks one token back",
    "current_token": "looks at the token itself",
    "local_window": "looks at the last {window_width} tokens",
    "sink": "rests on the first token or another",
}
"""What the heads of each kind do, in a few words; `looks` fills in the window's width."""


def looks(kind: str, thresholds: Mapping[str, Any]) -> str:
    """What a head of the kind does, in a few words.

    Example:
        >>> looks("local_window", {"window_width": 8})
        'looks at the last 8 tokens'
    """
    return LOOKS[kind].format(window_width=thresholds["window_width"])


def marked(
    kind: str, tokens: Int[Tensor, " pos"], thresholds: Mapping[str, Any], special: Collection[int]
) -> Bool[Tensor, "query=pos key=pos"]:
    """Which cells are targets of the kind, by the tokens alone."""
    width = Thresholds(window_width=thresholds["window_width"])
    keys = targets_of(kind, tokens[None], special, width)[0]
    length = len(tokens)
    cells = torch.zeros(length, length + 1, dtype=torch.bool, device=tokens.device)
    cells.scatter_(1, keys % (length + 1), True)  # No target, -1, goes to the column cut off.
    return cells[:, :-1]


def resting_columns(
    pattern: Float[Tensor, "head query=pos key=pos"],
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
) -> Bool[Tensor, "head key=pos"]:
    """Which columns are sinks of each head (`interp.sinks.sink_columns`), the first among them."""
    queries = spaced(ordinary(tokens[None], special))
    rows = pattern[:, queries[0].clamp(min=0)] * (queries[0] != NONE)[:, None]
    later = halves(queries, len(tokens))
    share, least = thresholds["sink_column"], thresholds["sink_queries"]
    return sink_columns(rows[None], later, share=share, least=least)[0][0]


def marked_of_head(
    kind: str,
    tokens: Int[Tensor, " pos"],
    attention: Float[Tensor, "query=pos key=pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
) -> Bool[Tensor, "query=pos key=pos"]:
    """Which cells are targets of the kind; for a sink, the columns where this head rests too."""
    cells = marked(kind, tokens, thresholds, special)
    if kind == "sink":
        columns = resting_columns(attention[None], tokens, thresholds, special)
        cells = cells | (ordinary(tokens[None], special).T & columns).tril(-1)
    return cells


def ideal(
    kind: str, tokens: Int[Tensor, " pos"], thresholds: Mapping[str, Any], special: Collection[int]
) -> Float[Tensor, "query=pos key=pos"]:
    """The attention of a head that does nothing but look at its targets, evenly.

    Where a query has none, it rests on the first token. Each row sums to 1.

    Example:
        >>> ideal("previous_token", torch.tensor([5, 6, 7]), {"window_width": 8}, [])
        tensor([[1., 0., 0.],
                [1., 0., 0.],
                [0., 1., 0.]])
    """
    cells = marked(kind, tokens, thresholds, special).float()
    cells[cells.sum(-1) == 0, 0] = 1
    return cells / cells.sum(-1, keepdim=True)
