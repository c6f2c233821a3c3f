"""Attention by tiles: exact, and never `pos x pos`."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from interp.attention.operands import (
    check_heads,
    check_number,
    check_tensor,
    check_window,
    refuse_empty,
)
from interp.errors import InputError, truth, whole


class Tiled(NamedTuple):
    """What `tiled_attention` returns.

    Attributes:
        out: The values' mean under the pattern.
        lse: Log-sum-exp of each query's scores, in nats; the learned sink's score is in it.
            Minus infinity where a query has nothing allowed.
        mean_score: The scores' mean under the pattern, so that `lse - mean_score` is the
            entropy (where there is no learned sink).
    """

    out: Float[Tensor, "batch head query d_value"]
    lse: Float[Tensor, "batch head query"]
    mean_score: Float[Tensor, "batch head query"]


def tiled_attention(
    q: Float[Tensor, "..."],
    k: Float[Tensor, "..."],
    v: Float[Tensor, "..."],
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    real: Shaped[Tensor, "..."] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
    allow_empty: bool = False,
    tile: int = 256,
) -> Tiled:
    """Attention by tiles of `tile` queries and keys, with the online softmax.

    A row's softmax needs its largest score m and the sum l of `exp(score - m)`. Both can be
    kept while the keys go by: when a tile brings a larger score, what has been summed so far
    is scaled by `exp(m_old - m_new)` (Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al.
    2022, arXiv 2205.14135). The mean under the pattern is kept as such, not as a sum, so that
    values near the end of their range stay in it. Arithmetic is float32, or float64 if any of
    q, k, v and the sinks is.

    Gradients are made the same way: the backward pass computes the tiles of `tile` queries
    again and holds no more than those at a time, `tile x key`.

    Args:
        q: Queries `[batch, head, query, d_k]`; head `h` reads keys and values of
            `h // (head / kv_head)`. They are the last ones: query i stands at `key - query + i`.
        k: Keys `[batch, kv_head, key, d_k]`.
        v: Values `[batch, kv_head, key, d_value]`.
        scale: Of `q . k`; queries are multiplied by it first.
        causal: Whether keys after the query are hidden.
        window: How many keys back a query may look, itself included, and as many ahead if not
            causal; None: no limit.
        real: Boolean `[batch, key]`, False for padding, which no query sees; None: no padding.
        softcap: If given, scores become `softcap * tanh(score / softcap)` (Gemma 2).
        sinks: A score per head that joins the softmax and has no value (gpt-oss).
        allow_empty: A query with nothing allowed gets an output of zeros; else it is refused.
        tile: Rows and columns of scores held at a time, for every head.

    Returns:
        `out`, `lse` and `mean_score`, float32 or float64; NaN for a query that sees a key or a
        value that is not finite, and for no other.

    Raises:
        InputError: If shapes do not fit, an axis is empty, the scale is no finite number, the
            soft-cap none above 0, the window or tile no whole number of at least 1, `causal` or
            `allow_empty` no bool, `real` not boolean, or if a query has nothing allowed.
    """
    check_heads(q, k, v)
    causal, allow_empty = truth("causal", causal), truth("allow_empty", allow_empty)
    check_number("scale", scale)
    if softcap is not None:
        check_number("softcap", softcap, positive=True)
    queries, keys, kv_heads = q.shape[2], k.shape[2], k.shape[1]
    if queries > keys and (causal or window is not None):
        raise InputError(f"q must have no more positions than k, {keys}, got {queries}")
    if window is not None:
        window = min(check_window(window), keys)
    tile = min(whole("tile", tile, least=1), keys)
    if real is not None:
        check_tensor("real", real, "batch key")
        if real.dtype != torch.bool or real.shape != (len(k), keys):
            raise InputError(
                f"real must be boolean of shape {(len(k), keys)},"
                f" got {real.dtype} of {tuple(real.shape)}"
            )
    if sinks is not None:
        check_tensor("sinks", sinks, "head")
        if len(sinks) != q.shape[1]:
            raise InputError(f"sinks must be one for each of {q.shape[1]} heads, got {len(sinks)}")
        if not sinks.isfinite().all():
            raise InputError("sinks must be finite, got NaN or infinity")
    exact = torch.float32
    for x in (q, k, v, *([] if sinks is None else [sinks])):
        exact = torch.promote_types(exact, x.dtype)
    # Scaled before they are multiplied, products stay in range that would leave it.
    grouped = rearrange(q.to(exact) * scale, "b (kv g) q d -> b kv g q d", kv=kv_heads)
    k, v = k.to(exact), v.to(exact)
    # A weight of 0 times NaN is NaN: such keys and values are taken out, and who sees them told.
    broken = ~(k.isfinite().all(-1) & v.isfinite().all(-1))
    if broken.any():
        k, v = (x.masked_fill(broken[..., None], 0) for x in (k, v))
    else:
        broken = None
    if sinks is not None:
        sinks = rearrange(sinks.to(exact), "(kv g) -> kv g 1", kv=kv_heads)
    options = {"causal": causal, "window": window, "softcap": softcap, "real": real, "tile": tile}
    parts = []
    for start in range(0, queries, tile):
        given = grouped[:, :, :, start : start + tile], k, v, broken, sinks, keys - queries + start
        parts.append(
            checkpoint(_rows, *given, use_reentrant=False, preserve_rng_state=False, **options)
            if torch.is_grad_enabled()
            else _rows(*given, **options)
        )
    joined = (torch.cat(pieces, dim=3) for pieces in zip(*parts, strict=True))
    tiled = Tiled(*(rearrange(piece, "b kv g ... -> b (kv g) ...") for piece in joined))
    if real is not None and not allow_empty:
        refuse_empty(tiled.lse.detach() == -torch.inf)
    return tiled


def _rows(
    block: Float[Tensor, "batch kv_head group query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_value"],
    broken: Bool[Tensor, "batch kv_head key"] | None,
    sinks: Float[Tensor, "kv_head group 1"] | None,
    first: int,
    *,
    causal: bool,
    window: int | None,
    real: Bool[Tensor, "batch key"] | None,
    softcap: float | None,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the queries from position `first` on see, one tile of keys after the other."""
    query = torch.arange(first, first + block.shape[3], device=block.device)[:, None]
    top = torch.full(block.shape[:-1], -torch.inf, dtype=block.dtype, device=block.device)
    total = torch.zeros_like(top)
    if sinks is not None:
        top = top.maximum(sinks.detach())
        total = total + torch.exp(sinks - top)
    out = torch.zeros(*block.shape[:-1], v.shape[-1], dtype=block.dtype, device=block.device)
    moment = torch.zeros_like(top)
    start = 0 if window is None else max(0, first - window + 1)
    stop = k.shape[2]
    if causal:
        stop = first + block.shape[3]
    elif window is not None:
        stop = min(stop, first + block.shape[3] + window - 1)
    for begin in range(start, stop, tile):
        columns = slice(begin, min(begin + tile, stop))
        scores = torch.einsum("bkgqd,bknd->bkgqn", block, k[:, :, columns])
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        key = torch.arange(begin, columns.stop, device=block.device)
        hidden = (key > query) if causal else torch.zeros_like(key > query)
        if window is not None:
            hidden = hidden | ((query - key).abs() >= window)
        if real is not None:
            padding = rearrange(~real[:, columns].to(block.device), "b n -> b 1 1 1 n")
            hidden = hidden | padding
        if broken is not None:
            scores = scores.masked_fill(
                rearrange(broken[:, :, columns], "b k n -> b k 1 1 n"), torch.nan
            )
        scores = scores.masked_fill(hidden, -torch.inf)
        # The largest score cancels, so no gradient need pass through it.
        higher = top.maximum(scores.detach().amax(-1))
        base = torch.where(higher == -torch.inf, 0, higher)  # Nothing seen yet.
        weights = torch.exp(scores - base[..., None])
        before = total * torch.exp(top - base)
        total = before + weights.sum(-1)
        share = torch.where(total == 0, 1, total)
        kept, weights = before / share, weights / share[..., None]
        moment = moment * kept + (weights * scores.masked_fill(hidden, 0)).sum(-1)
        added = torch.einsum("bkgqn,bknd->bkgqd", weights, v[:, :, columns])
        out = out * kept[..., None] + added
        top = higher
    return out, top + torch.where(total == 0, 1, total).log(), moment
