"""Targets of each kind on one prompt, for figures: as cells and as an ideal pattern."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.scores import Thresholds, targets_of
from interp.kinds.sinks import halves, sink_columns, spaced
from interp.kinds.targets import NONE, ordinary


def marked(
    kind: str,
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
    *,
    causal: bool = True,
    attention: Float[Tensor, "query=pos key=pos"] | None = None,
) -> Bool[Tensor, "query=pos key=pos"]:
    """Cells that are targets of the kind.

    Those of a sink are the first and the special tokens, and with a head's `attention` also the
    columns that this head uses as sinks.
    """
    width = Thresholds(window_width=thresholds["window_width"])
    keys = targets_of(kind, tokens[None], special, width, causal)[0]
    length = len(tokens)
    cells = torch.zeros(length, length + 1, dtype=torch.bool, device=tokens.device)
    cells.scatter_(1, keys % (length + 1), True)  # -1 goes to the last column, which is cut.
    cells = cells[:, :-1]
    if kind == "sink":
        fit = ordinary(tokens[None], special)
        columns = ~fit
        if attention is not None:
            known = tokens, thresholds, special
            columns = columns | resting_columns(attention[None], *known, causal=causal)
        sinks = fit.T & columns
        cells |= sinks.tril(-1) if causal else sinks.fill_diagonal_(False)
    return cells


def resting_columns(
    pattern: Float[Tensor, "head query=pos key=pos"],
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
    *,
    causal: bool = True,
) -> Bool[Tensor, "head key=pos"]:
    """Sink columns of each head by its own attention: `interp.kinds.sinks.sink_columns`."""
    fit = ordinary(tokens[None], special)
    queries = spaced(fit)
    rows = pattern[:, queries[0].clamp(min=0)] * (queries[0] != NONE)[:, None]
    later = halves(queries, len(tokens), causal=causal)
    share, least = thresholds["sink_column"], thresholds["sink_queries"]
    return sink_columns(rows[None], later, share=share, least=least)[0][0]


def ideal(
    kind: str,
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
    *,
    causal: bool = True,
) -> Float[Tensor, "query=pos key=pos"]:
    """Attention spread evenly over each query's targets, or on the first token without a target.

    Example:
        >>> ideal("previous_token", torch.tensor([5, 6, 7]), {"window_width": 8}, [])
        tensor([[1., 0., 0.],
                [1., 0., 0.],
                [0., 1., 0.]])
    """
    cells = marked(kind, tokens, thresholds, special, causal=causal).float()
    cells[cells.sum(-1) == 0, 0] = 1
    return cells / cells.sum(-1, keepdim=True)
