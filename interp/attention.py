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
(`interp.multihead`); grouped heads share K and V. Here the pattern is built whole;
`interp.tiles` gives the same output without.

float32 and float64 only: a reference that rounds to half precision is none.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from interp.errors import InputError

PRECISE = (torch.float32, torch.float64)


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

    Raises:
        InputError: If shapes do not fit or an axis is empty (d_k of 0 among them), if numbers
            are not all float32 or all float64, if the mask is not boolean, if a query has
            nothing allowed, or if scores are not finite.

    Example:
        >>> q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> v = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])
        >>> attention(q, q, v).pattern
        tensor([[0.4011, 0.1978, 0.4011],
                [0.1978, 0.4011, 0.4011],
                [0.2483, 0.2483, 0.5035]])
    """
    check_inputs(q=q, k=k, v=v)
    check_precise(q=q, k=k, v=v)
    if q.shape[:-2] != k.shape[:-2]:
        raise InputError(
            f"k must have q's axes before the last two, {tuple(q.shape[:-2])},"
            f" got shape {tuple(k.shape)}"
        )
    scores = attention_scores(q, k, scale=scale)
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
    """Every query's product with every key, divided by `sqrt(d_k)` unless `scale` is given.

    Products of d_k independent numbers of variance 1 have a variance of d_k: divided by its
    root, scores keep one size at any width and the softmax stays where its gradient is not 0.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return einsum(q * factor, k, "... query d, ... key d -> ... query key")


def hide(
    scores: Float[Tensor, "*lead query key"], mask: Shaped[Tensor, "..."]
) -> Float[Tensor, "*lead query key"]:
    """Scores, minus infinity where `mask` is False, so that the softmax gives exactly 0.

    Raises:
        InputError: If the mask is not boolean, or does not broadcast to the scores.
    """
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, True where allowed, got {mask.dtype}")
    fits = mask.ndim <= scores.ndim and all(
        size in (1, full) for size, full in zip(reversed(mask.shape), reversed(scores.shape))
    )
    if not fits:
        raise InputError(
            f"mask must broadcast to [..., query, key] of {tuple(scores.shape)},"
            f" got shape {tuple(mask.shape)}"
        )
    return scores.masked_fill(~mask.to(scores.device), -torch.inf)


def softmax(
    scores: Float[Tensor, "*lead key"], *, allow_empty: bool = False
) -> Float[Tensor, "*lead key"]:
    """`exp(s_i) / sum_j exp(s_j)` over the last axis.

    The row's largest score is taken off first: that changes nothing, since `exp(-m)` cancels,
    and keeps `exp` in range. Only differences count: one of 1 is a factor e.

    Args:
        scores: Finite, or minus infinity where hidden.
        allow_empty: A row of nothing but minus infinity becomes zeros, and so does its
            gradient; if not set it is refused.

    Raises:
        InputError: If a row is empty and that is not allowed, or scores are NaN or infinite.
    """
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
        InputError: If there are more queries than keys.
    """
    query, key = _positions(queries, keys)
    return key <= query


def sliding_window_mask(
    queries: int, keys: int | None = None, *, window: int, causal: bool = True
) -> Bool[Tensor, "query key"]:
    """A query sees the `window` nearest keys, itself included; without `causal`, to both sides.

    L layers of it see `L * (window - 1)` back: each step goes one window further.

    Raises:
        InputError: If the window is less than 1, or there are more queries than keys.
    """
    check_window(window)
    query, key = _positions(queries, keys)
    near = (query - key).abs() < window
    return near & (key <= query) if causal else near


def bidirectional_mask(queries: int, keys: int | None = None) -> Bool[Tensor, "query key"]:
    """A query sees every key, as in an encoder.

    Raises:
        InputError: If a number is less than 1.
    """
    keys = queries if keys is None else keys
    if min(queries, keys) < 1:
        raise InputError(f"queries and keys must be at least 1, got {queries} and {keys}")
    return torch.ones(queries, keys, dtype=torch.bool)


def padding_mask(real: Shaped[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """No query sees a key that is padding.

    Args:
        real: Boolean, True for a token, False for padding.

    Returns:
        For scores `[batch, head, query, key]`. Padding before the text and a causal mask leave
        the padding's own queries nothing: see `allow_empty`.

    Raises:
        InputError: If `real` is not boolean.
    """
    if real.dtype != torch.bool:
        raise InputError(f"real must be boolean, True for a token, got {real.dtype}")
    return rearrange(real, "batch key -> batch 1 1 key")


def grouped_attention(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "rows kv_head key d"],
    v: Float[Tensor, "rows_v kv_head_v row d_value"],
    *,
    mask: Shaped[Tensor, "..."] | None = None,
    scale: float | None = None,
    allow_empty: bool = False,
) -> Attended:
    """Attention in which several query heads share keys and values.

    Query head h reads key-value head `h // (head / kv_head)`. As many as query heads is
    multi-head, one for all is multi-query (Shazeer 2019, arXiv 1911.02150), and between them
    grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245).

    Raises:
        InputError: As `attention`, and if the query heads do not divide among the others.
    """
    check_inputs(q=q, k=k, v=v)
    group = group_size(q.shape[1], k.shape[1])
    k, v = (repeat(x, "b kv n d -> b (kv group) n d", group=group) for x in (k, v))
    return attention(q, k, v, mask=mask, scale=scale, allow_empty=allow_empty)


def check_inputs(**tensors: Tensor) -> None:
    """Refuse q, k and v of which no attention can be made.

    Raises:
        InputError: If one is not at least `[position, width]`, if an axis is empty, if keys are
            not as wide as queries, or if there is not one value for each key.
    """
    for name, x in tensors.items():
        if x.ndim < 2:
            raise InputError(f"{name} must be [..., position, width], got shape {tuple(x.shape)}")
        if x.shape[-1] == 0:
            width = "a width" if name == "v" else "d_k"
            raise InputError(f"{name} must have {width} of at least 1, got shape {tuple(x.shape)}")
        if x.numel() == 0:
            raise InputError(f"{name} must have no empty axis, got shape {tuple(x.shape)}")
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"k must be as wide as q, {q.shape[-1]}, got {k.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise InputError(
            f"v must have a row for each of k's, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}"
        )


def check_precise(**tensors: Tensor) -> None:
    """Refuse numbers that are not all float32 or all float64.

    Raises:
        InputError: If they are not.
    """
    first, *_ = tensors.values()
    for name, x in tensors.items():
        if x.dtype not in PRECISE:
            raise InputError(f"{name} must be float32 or float64, got {x.dtype}")
        if x.dtype != first.dtype:
            raise InputError(f"{name} must be {first.dtype} like the others, got {x.dtype}")


def check_window(window: int) -> None:
    """Refuse a window in which a query does not even see itself.

    Raises:
        InputError: If it is less than 1.
    """
    if window < 1:
        raise InputError(f"window must be at least 1, the query itself, got {window}")


def group_size(heads: int, kv_heads: int) -> int:
    """How many query heads share a key-value head.

    Raises:
        InputError: If they do not divide evenly.
    """
    if min(heads, kv_heads) < 1 or heads % kv_heads:
        raise InputError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    return heads // kv_heads


def refuse_empty(empty: Bool[Tensor, "..."]) -> None:
    """Refuse queries with nothing allowed, and name the first.

    Raises:
        InputError: If there is one.
    """
    if empty.any():
        at = tuple(empty.nonzero()[0].tolist())
        raise InputError(
            "mask must allow every query a key, unless allow_empty is set,"
            f" got none for the query at {at}"
        )


def _positions(
    queries: int, keys: int | None
) -> tuple[Int[Tensor, "query 1"], Int[Tensor, " key"]]:
    keys = queries if keys is None else keys
    if not 1 <= queries <= keys:
        raise InputError(f"queries must be from 1 to the number of keys, {keys}, got {queries}")
    return torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
