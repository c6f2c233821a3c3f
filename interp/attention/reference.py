"""Attention from the ground up, in plain torch: the reference that the rest is checked against.

A query is compared with every key, the comparisons become weights that sum to 1, and the output
is the mean of the values under these weights:

    S = Q K^T / sqrt(d_k)      scores           [query, key]
    S = -inf where hidden      a mask           [query, key], True where attention is allowed
    A = softmax(S), by row     the pattern      [query, key], rows sum to 1
    out = A V                                   [query, d_value]

(Vaswani et al. 2017, arXiv 1706.03762, section 3.2). Everything else is the same four lines
with other inputs: self-attention takes Q, K and V from one X, cross-attention K and V from
another; many heads are one reshape, and a cache keeps the K and V that were already computed
(`interp.attention.multihead`); grouped heads share K and V. Here the pattern is built whole;
`interp.attention.tiles` gives the same output without.

float32 and float64 only: a reference that rounds to half precision is none.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from interp.attention.operands import (
    check_heads,
    check_mask,
    check_number,
    check_precise,
    check_queries_and_keys,
    check_tensor,
    check_values,
    check_window,
    refuse_empty,
    refuse_overflow,
    without_hidden,
)
from interp.errors import InputError, truth, whole
from interp.memory import refuse_beyond

_SMALL = 1 << 24
"""Bytes of a mask that there is room for without asking."""


class Attended(NamedTuple):
    """What `attention` returns.

    Attributes:
        out: The values' mean under the pattern.
        pattern: In [0, 1]; each row sums to 1, or is 0 where nothing is allowed.
        scores: Scaled, and minus infinity where hidden.
    """

    out: Float[Tensor, "*lead query d_value"]
    pattern: Float[Tensor, "*lead query key"]
    scores: Float[Tensor, "*lead query key"]


def attention(
    q: Float[Tensor, "*lead query d_k"],
    k: Float[Tensor, "... key d"],
    v: Float[Tensor, "... row d_value"],
    *,
    mask: Shaped[Tensor, "..."] | None = None,
    scale: float | None = None,
    allow_empty: bool = False,
) -> Attended:
    """Scaled dot-product attention; PyTorch's `scaled_dot_product_attention` with the pattern.

    Args:
        q: Queries, with any axes before the last two, such as `[batch, head]`.
        k: Keys `[..., key, d_k]`, with the same axes before.
        v: Values `[..., key, d_value]`, of any width.
        mask: Boolean, True where attention is allowed; broadcasts to `[..., query, key]`.
            None: everywhere. Masks combine by `&`.
        scale: Of `q . k`; None: `1 / sqrt(d_k)`.
        allow_empty: A query with nothing allowed gets a row and an output of zeros, as in
            PyTorch; if not set it is refused.

    What the mask hides from every query contributes exactly nothing, NaN among it.

    Raises:
        InputError: If shapes do not fit or an axis is empty (d_k of 0 among them), if numbers
            are not all float32 or all float64, if the mask is not boolean, if a query has
            nothing allowed, or if what is seen is not finite or makes scores that are not.

    Example:
        >>> q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> v = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])
        >>> attention(q, q, v).pattern
        tensor([[0.4011, 0.1978, 0.4011],
                [0.1978, 0.4011, 0.4011],
                [0.2483, 0.2483, 0.5035]])
    """
    check_queries_and_keys(q, k)
    check_values(k, v)
    check_precise(q=q, k=k, v=v)
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
    q: Shaped[Tensor, "*lead query d_k"],
    k: Shaped[Tensor, "... key d"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "*lead query key"]:
    """Every query's product with every key, divided by `sqrt(d_k)` unless `scale` is given.

    Products of d_k independent numbers of variance 1 have a variance of d_k: divided by its
    root, scores keep one size at any width and the softmax stays where its gradient is not 0.

    Raises:
        InputError: If shapes do not fit or an axis is empty, if numbers are not all float32 or
            all float64, or if the scale is no finite number.
    """
    check_queries_and_keys(q, k)
    check_precise(q=q, k=k)
    if q.shape[:-2] != k.shape[:-2]:
        raise InputError(
            f"k must have q's axes before the last two, {tuple(q.shape[:-2])},"
            f" got shape {tuple(k.shape)}"
        )
    if scale is not None:
        check_number("scale", scale)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return einsum(q * factor, k, "... query d, ... key d -> ... query key")


def hide(
    scores: Float[Tensor, "*lead query key"], mask: Shaped[Tensor, "..."]
) -> Float[Tensor, "*lead query key"]:
    """Scores, minus infinity where `mask` is False, so that the softmax gives exactly 0.

    Raises:
        InputError: If scores are neither float32 nor float64, or the mask is not boolean, or does
            not broadcast to them.
    """
    check_tensor("scores", scores, "... key")
    check_precise(scores=scores)
    check_mask(mask, tuple(scores.shape))
    return scores.masked_fill(~mask.to(scores.device), -torch.inf)


def softmax(
    scores: Shaped[Tensor, "*lead key"], *, allow_empty: bool = False
) -> Float[Tensor, "*lead key"]:
    """`exp(s_i) / sum_j exp(s_j)` over the last axis.

    The row's largest score is taken off first: that changes nothing, since `exp(-m)` cancels,
    and keeps `exp` in range. Only differences count: one of 1 is a factor e.

    Args:
        scores: Finite, or minus infinity where hidden.
        allow_empty: A row of nothing but minus infinity becomes zeros, and so does its
            gradient; if not set it is refused.

    Raises:
        InputError: If a row is empty and that is not allowed, or scores are NaN or infinite, or
            neither float32 nor float64.
    """
    check_tensor("scores", scores, "... key")
    check_precise(scores=scores)
    allow_empty = truth("allow_empty", allow_empty)
    top = scores.detach().amax(-1, keepdim=True)
    if top.isnan().any() or (top == torch.inf).any():
        raise InputError("scores must be finite, or minus infinity where hidden, got NaN or inf")
    empty = top == -torch.inf
    if not allow_empty:
        refuse_empty(empty[..., 0])
    weights = torch.exp(scores - torch.where(empty, 0, top))
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(empty, 1, total)


def causal_mask(queries: int, keys: int | None = None) -> Bool[Tensor, "query key"]:
    """A query sees itself and what came before it.

    Args:
        queries: How many; they are the last ones: query i stands at `keys - queries + i`, as
            when the keys before it are in a cache. (PyTorch's `is_causal` lines up the first.)
        keys: How many; None: as many as queries.

    Raises:
        InputError: If a number is no whole number of at least 1, there are more queries than
            keys, or memory has no room for the mask.
    """
    query, key = _positions(queries, keys)
    return key <= query


def sliding_window_mask(
    queries: int, keys: int | None = None, *, window: int, causal: bool = True
) -> Bool[Tensor, "query key"]:
    """A query sees the `window` nearest keys, itself included; without `causal`, to both sides.

    L layers of it see `L * (window - 1)` back: each step goes one window further.

    Raises:
        InputError: If the window is no whole number of at least 1, `causal` no bool, or as
            `causal_mask`.
    """
    window, causal = check_window(window), truth("causal", causal)
    query, key = _positions(queries, keys)
    near = (query - key).abs() < min(window, len(key))
    return near & (key <= query) if causal else near


def bidirectional_mask(queries: int, keys: int | None = None) -> Bool[Tensor, "query key"]:
    """A query sees every key, as in an encoder.

    Raises:
        InputError: If a number is no whole number of at least 1, or memory has no room.
    """
    return torch.ones(*_numbers(queries, keys), dtype=torch.bool)


def padding_mask(real: Shaped[Tensor, "..."]) -> Bool[Tensor, "batch 1 1 key"]:
    """No query sees a key that is padding.

    Args:
        real: Boolean `[batch, key]`, True for a token, False for padding.

    Returns:
        For scores `[batch, head, query, key]`. Padding before the text and a causal mask leave
        the padding's own queries nothing: see `allow_empty`.

    Raises:
        InputError: If `real` is not boolean, or has other axes.
    """
    check_tensor("real", real, "batch key")
    if real.dtype != torch.bool:
        raise InputError(f"real must be boolean, True for a token, got {real.dtype}")
    return rearrange(real, "batch key -> batch 1 1 key")


def grouped_attention(
    q: Float[Tensor, "..."],
    k: Float[Tensor, "..."],
    v: Float[Tensor, "..."],
    *,
    mask: Shaped[Tensor, "..."] | None = None,
    scale: float | None = None,
    allow_empty: bool = False,
) -> Attended:
    """Attention in which several query heads share keys and values.

    Query head h reads key-value head `h // (head / kv_head)`. As many as query heads is
    multi-head, one for all is multi-query (Shazeer 2019, arXiv 1911.02150), and between them
    grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245).

    Args:
        q: Queries `[batch, head, query, d_k]`.
        k: Keys `[batch, kv_head, key, d_k]`.
        v: Values `[batch, kv_head, key, d_value]`.
        mask: As for `attention`; broadcasts to `[batch, head, query, key]`.
        scale: As for `attention`.
        allow_empty: As for `attention`.

    Raises:
        InputError: As `attention`, and if the query heads do not divide among the others.
    """
    group = check_heads(q, k, v)
    k, v = (repeat(x, "b kv n d -> b (kv group) n d", group=group) for x in (k, v))
    return attention(q, k, v, mask=mask, scale=scale, allow_empty=allow_empty)


def _positions(
    queries: int, keys: int | None
) -> tuple[Int[Tensor, "query 1"], Int[Tensor, " key"]]:
    queries, keys = _numbers(queries, keys)
    if queries > keys:
        raise InputError(f"queries must be no more than keys, {keys}, got {queries}")
    return torch.arange(keys - queries, keys)[:, None], torch.arange(keys)


def _numbers(queries: int, keys: int | None) -> tuple[int, int]:
    queries = whole("queries", queries, least=1)
    keys = queries if keys is None else whole("keys", keys, least=1)
    if queries * keys > _SMALL:
        refuse_beyond(f"masks of {queries} x {keys}", queries * keys, "give fewer queries or keys")
    return queries, keys
