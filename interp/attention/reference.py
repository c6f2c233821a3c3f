"""Attention from the ground up, in plain torch: the reference for everything else.

Attention compares a query with every key, turns the comparisons into weights that sum to 1, and
returns the mean of the values under these weights:

    S = Q K^T / sqrt(d_k)      scores           [query, key]
    S = -inf where hidden      a mask           [query, key], True where attention is allowed
    A = softmax(S), by row     the pattern      [query, key], rows sum to 1
    out = A V                                   [query, d_value]

(Vaswani et al. 2017, arXiv 1706.03762, section 3.2). Everything else is the same four lines
with other inputs. Self-attention computes Q, K and V from one X, cross-attention K and V from
another. Many heads are one reshape, and a cache keeps the K and V already computed
(`interp.attention.multihead`). Grouped heads share K and V. This module builds the whole pattern;
`interp.attention.tiles` gives the same output without it.

Only float32 and float64: half precision rounds too much for a reference.
"""

from typing import NamedTuple

import torch
from einops import einsum, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.operands import (
    check_mask,
    check_precise,
    check_shapes,
    group_size,
    refuse_empty,
    refuse_overflow,
    without_hidden,
)
from interp.errors import Count, InputError, checked


class Attended(NamedTuple):
    """Output of `attention`.

    Attributes:
        out: Mean of the values under the pattern.
        pattern: Weights in [0, 1]; each row sums to 1, or is 0 where nothing is allowed.
        scores: Scaled scores, minus infinity where hidden.
    """

    out: Float[Tensor, "*lead query d_value"]
    pattern: Float[Tensor, "*lead query key"]
    scores: Float[Tensor, "*lead query key"]


def attention(
    q: Float[Tensor, "*lead query d_k"],
    k: Float[Tensor, "*lead key d_k"],
    v: Float[Tensor, "*lead key d_value"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    allow_empty: bool = False,
) -> Attended:
    """Scaled dot-product attention; PyTorch's `scaled_dot_product_attention` with the pattern.

    Args:
        q: Queries, with any leading axes, such as `[batch, head]`.
        k: Keys with the same leading axes.
        v: Values with the same leading axes, of any width.
        mask: True where attention is allowed; broadcasts to `[..., query, key]`. None: everywhere.
            Masks combine by `&`. A key hidden from every query contributes nothing, even NaN.
        scale: Factor of `q . k`; None: `1 / sqrt(d_k)`.
        allow_empty: Whether a query may have no allowed key; its pattern and output are then
            zeros, as in PyTorch.

    Raises:
        InputError: If shapes or the mask do not fit, numbers are half precision, a query has no
            allowed key, or a visible number or score is not finite.

    Example:
        >>> q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> v = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])
        >>> attention(q, q, v).pattern
        tensor([[0.4011, 0.1978, 0.4011],
                [0.1978, 0.4011, 0.4011],
                [0.2483, 0.2483, 0.5035]])
    """
    check_shapes(q, k, v)
    rows = keys = None
    if mask is not None:
        check_mask(mask, (*q.shape[:-1], k.shape[-2]))
        rows, keys = (torch.atleast_2d(mask).any(axis) for axis in (-1, -2))
    q = without_hidden("q", q, rows)
    k, v = without_hidden("k", k, keys), without_hidden("v", v, keys)
    scores = attention_scores(q, k, scale=scale)
    refuse_overflow(scores, mask)
    if mask is not None:
        scores = hide(scores, mask)
    pattern = softmax(scores, allow_empty=allow_empty)
    out = einsum(pattern, v, "... query key, ... key d -> ... query d")
    return Attended(out, pattern, scores)


def attention_scores(
    q: Float[Tensor, "*lead query d_k"],
    k: Float[Tensor, "*lead key d_k"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "*lead query key"]:
    """Product of every query with every key, divided by `sqrt(d_k)` unless `scale` is given.

    Products of d_k independent numbers of variance 1 have a variance of d_k. Divided by its
    root, scores keep one size at any width, and the softmax keeps a usable gradient.
    """
    check_shapes(q, k)
    check_precise(q=q, k=k)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return einsum(q * factor, k, "... query d, ... key d -> ... query key")


def hide(
    scores: Float[Tensor, "*lead query key"], mask: Bool[Tensor, "..."]
) -> Float[Tensor, "*lead query key"]:
    """Scores with minus infinity where `mask` is False, so that the softmax gives exactly 0."""
    check_mask(mask, tuple(scores.shape))
    return scores.masked_fill(~mask.to(scores.device), -torch.inf)


def softmax(
    scores: Float[Tensor, "*lead key"], *, allow_empty: bool = False
) -> Float[Tensor, "*lead key"]:
    """`exp(s_i) / sum_j exp(s_j)` over the last axis.

    The largest score of the row is subtracted first. That changes nothing, since `exp(-m)`
    cancels, and keeps `exp` in range. Only differences count: a difference of 1 is a factor e.

    Args:
        scores: Finite scores, or minus infinity where hidden.
        allow_empty: Whether a row may have minus infinity only; its weights and their gradient
            are then 0.
    """
    check_precise(scores=scores)
    top = scores.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    if not allow_empty:
        refuse_empty(empty[..., 0])
    weights = torch.exp(scores - torch.where(empty, 0, top))
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(empty, 1, total)


@checked
def causal_mask(queries: Count, keys: Count | None = None) -> Bool[Tensor, "query key"]:
    """Mask under which a query sees itself and earlier keys.

    Args:
        queries: Number of queries. They are the last positions, query i at `keys - queries + i`,
            as when earlier keys are in a cache. (PyTorch's `is_causal` aligns the first ones.)
        keys: Number of keys; None: as many as queries.
    """
    query, key = _positions(queries, keys)
    return key <= query


@checked
def sliding_window_mask(
    queries: Count, keys: Count | None = None, *, window: Count, causal: bool = True
) -> Bool[Tensor, "query key"]:
    """Mask under which a query sees the `window` nearest keys, itself included.

    L layers see `L * (window - 1)` back: each layer looks one window further.

    Args:
        queries: As for `causal_mask`.
        keys: As for `causal_mask`.
        window: Number of keys on one side of the query, the query's own included.
        causal: Whether later keys are hidden; if not, the window reaches to both sides.
    """
    query, key = _positions(queries, keys)
    near = (query - key).abs() < min(window, len(key))
    return near & (key <= query) if causal else near


def grouped_attention(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch kv_head key d_k"],
    v: Float[Tensor, "batch kv_head key d_value"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    allow_empty: bool = False,
) -> Attended:
    """Attention in which several query heads share keys and values.

    Query head h reads key-value head `h // (head / kv_head)`. As many key-value heads as query
    heads is multi-head attention, one for all is multi-query (Shazeer 2019, arXiv 1911.02150),
    and anything between is grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245).

    Args:
        q: Queries.
        k: Keys; `kv_head` divides `head`.
        v: Values.
        mask: As for `attention`; broadcasts to `[batch, head, query, key]`.
        scale: As for `attention`.
        allow_empty: As for `attention`.
    """
    group = group_size(q, k, v)
    k, v = (repeat(x, "b kv n d -> b (kv group) n d", group=group) for x in (k, v))
    return attention(q, k, v, mask=mask, scale=scale, allow_empty=allow_empty)


def _positions(
    queries: int, keys: int | None
) -> tuple[Int[Tensor, "query 1"], Int[Tensor, " key"]]:
    keys = queries if keys is None else keys
    if queries > keys:
        raise InputError(f"queries must be no more than keys, {keys}, got {queries}")
    return torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
