"""Targets of each kind on one prompt, for figures: as cells and as an ideal pattern."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.kind import Kind
from interp.kinds.mass import FromPattern
from interp.kinds.sinks import Search, find_sinks
from interp.kinds.targets import cells, ordinary


def marked(
    kind: Kind,
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
    *,
    causal: bool = True,
    texts: Sequence[str] | None = None,
    attention: Float[Tensor, "query=pos key=pos"] | None = None,
) -> Bool[Tensor, "query=pos key=pos"]:
    """Cells that are targets of the kind.

    Those of a sink are the first and the special tokens, and with a head's `attention` also the
    columns that this head uses as sinks.
    """
    known = {"special": special, "width": thresholds["window_width"], "causal": causal}
    aims = cells(kind(tokens[None], texts and [texts], **known)[0], len(tokens))
    if kind.name == "sink":
        fit = ordinary(tokens[None], special)
        columns = ~fit
        if attention is not None:
            known = tokens, thresholds, special
            columns = columns | resting_columns(attention[None], *known, causal=causal)
        sinks = fit.T & columns
        aims |= sinks.tril(-1) if causal else sinks.fill_diagonal_(False)
    return aims


def resting_columns(
    pattern: Float[Tensor, "head query=pos key=pos"],
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
    *,
    causal: bool = True,
) -> Bool[Tensor, "head key=pos"]:
    """Sink columns of each head by its own attention: `interp.kinds.sinks.find_sinks`."""
    given = (pattern != 0).any(-1).any(0)  # A decoder with a cache gives the last rows alone.
    fit = ordinary(tokens[None], special) & given
    limits = {"share": thresholds["sink_column"], "least": thresholds["sink_queries"]}
    search, none = Search.of(fit, causal=causal), torch.zeros_like(fit)
    return find_sinks(FromPattern(pattern[None]), search, none, **limits).columns(none)[0]


def ideal(
    kind: Kind,
    tokens: Int[Tensor, " pos"],
    thresholds: Mapping[str, Any],
    special: Collection[int],
    *,
    causal: bool = True,
    texts: Sequence[str] | None = None,
) -> Float[Tensor, "query=pos key=pos"]:
    """Attention spread evenly over each query's targets, or on the first token without a target.

    Example:
        >>> from interp.kinds.builtin import KINDS
        >>> ideal(KINDS["previous_token"], torch.tensor([5, 6, 7]), {"window_width": 8}, [])
        tensor([[1., 0., 0.],
                [1., 0., 0.],
                [0., 1., 0.]])
    """
    aims = marked(kind, tokens, thresholds, special, causal=causal, texts=texts).float()
    aims[aims.sum(-1) == 0, 0] = 1
    return aims / aims.sum(-1, keepdim=True)
