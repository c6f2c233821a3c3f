"""Attention by tiles: exact, without a `pos x pos` tensor."""

from typing import Annotated, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from interp.attention.operands import group_size, refuse_empty
from interp.errors import Count, InputError, checked


class Tiled(NamedTuple):
    """Output of `tiled_attention`.

    Attributes:
        out: Mean of the values under the pattern.
        lse: Log-sum-exp of each query's scores, in nats, the learned sink's score included.
            Minus infinity where a query has no allowed key.
        mean_score: Mean of the scores under the pattern. Without a learned sink,
            `lse - mean_score` is the entropy.
    """

    out: Float[Tensor, "batch head query d_value"]
    lse: Float[Tensor, "batch head query"]
    mean_score: Float[Tensor, "batch head query"]


@checked
def tiled_attention(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch kv_head key d_k"],
    v: Float[Tensor, "batch kv_head key d_value"],
    *,
    scale: Annotated[float, Field(allow_inf_nan=False)],
    causal: bool = True,
    window: Count | None = None,
    chunk: Count | None = None,
    real: Bool[Tensor, "batch key"] | None = None,
    softcap: Annotated[float, Field(gt=0)] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    slopes: Float[Tensor, " head"] | None = None,
    allow_empty: bool = False,
    tile: Count = 256,
) -> Tiled:
    """Attention by tiles of `tile` queries and keys, with the online softmax.

    The softmax of a row needs its largest score m and the sum l of `exp(score - m)`. Both can be
    updated key by key: when a tile has a larger score, the sums so far are multiplied by
    `exp(m_old - m_new)` (Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv
    2205.14135). The running value is the mean under the pattern, not a sum, so that values near
    the end of their range do not overflow. Arithmetic is float32, or float64 if q, k, v or the
    sinks are.

    The backward pass computes the tiles of `tile` queries again, so that it needs memory for
    `tile x key` scores only.

    Args:
        q: Queries; head `h` reads key-value head `h // (head / kv_head)`. They are the last
            positions: query i is at `key - query + i`.
        k: Keys.
        v: Values.
        scale: Factor of `q . k`, applied to the queries first.
        causal: Whether keys after the query are hidden.
        window: Number of keys back that a query may see, itself included, and as many ahead if
            not causal; None: no limit.
        chunk: Number of keys in a chunk, counted from the first key, if no query sees keys of
            another chunk (Llama 4).
        real: False for padding, which no query sees; None: no padding.
        softcap: Limit of the scores, which become `softcap * tanh(score / softcap)` (Gemma 2).
        sinks: Score per head that joins the softmax and has no value (gpt-oss).
        slopes: What each head's scores lose per position from the query back to the key, after
            the softcap (ALiBi).
        allow_empty: Whether a query may have no allowed key; its output is then zeros.
        tile: Rows and columns of scores in memory at a time, for every head.

    Returns:
        Output, log-sum-exp and mean score, float32 or float64; NaN only for queries that see a
        key or a value that is not finite.

    Raises:
        InputError: If shapes do not fit, or a query has no allowed key.
    """
    group_size(q, k, v)
    queries, keys, kv_heads = q.shape[2], k.shape[2], k.shape[1]
    if queries > keys and (causal or window is not None or chunk is not None):
        raise InputError(f"q must have no more positions than k, {keys}, got {queries}")
    window = None if window is None else min(window, keys)
    tile = min(tile, keys)
    by_head = (q.shape[1],)
    checked_shapes = ("real", real, (len(k), keys)), ("sinks", sinks, by_head)
    for name, x, shape in (*checked_shapes, ("slopes", slopes, by_head)):
        if x is not None and x.shape != shape:
            raise InputError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
    exact = torch.float32
    for x in (q, k, v, sinks):
        exact = exact if x is None else torch.promote_types(exact, x.dtype)
    # Scaled before they are multiplied, products stay in range.
    grouped = rearrange(q.to(exact) * scale, "b (kv g) q d -> b kv g q d", kv=kv_heads)
    k, v = k.to(exact), v.to(exact)
    # A weight of 0 times NaN is NaN: such keys and values become 0, and the scores of their keys
    # NaN where a query sees them.
    broken = ~(k.isfinite().all(-1) & v.isfinite().all(-1))
    if broken.any():
        k, v = (x.masked_fill(broken[..., None], 0) for x in (k, v))
    else:
        broken = None
    if sinks is not None:
        sinks = rearrange(sinks.to(exact), "(kv g) -> kv g 1", kv=kv_heads)
    if slopes is not None:
        slopes = rearrange(slopes.to(exact), "(kv g) -> kv g 1 1", kv=kv_heads)
    options = {"causal": causal, "window": window, "chunk": chunk, "softcap": softcap}
    options |= {"real": real, "slopes": slopes, "tile": tile}
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
    chunk: int | None,
    real: Bool[Tensor, "batch key"] | None,
    softcap: float | None,
    slopes: Float[Tensor, "kv_head group 1 1"] | None,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of the queries from position `first` on, one tile of keys after the other."""
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
    if chunk is not None:
        start = max(start, first // chunk * chunk)
        stop = min(stop, (first + block.shape[3] - 1) // chunk * chunk + chunk)
    for begin in range(start, stop, tile):
        columns = slice(begin, min(begin + tile, stop))
        scores = torch.einsum("bkgqd,bknd->bkgqn", block, k[:, :, columns])
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        key = torch.arange(begin, columns.stop, device=block.device)
        if slopes is not None:
            scores = scores - slopes * (query - key)
        hidden = (key > query) if causal else torch.zeros_like(key > query)
        if window is not None:
            hidden = hidden | ((query - key).abs() >= window)
        if chunk is not None:
            hidden = hidden | (query // chunk != key // chunk)
        if real is not None:
            padding = rearrange(~real[:, columns].to(block.device), "b n -> b 1 1 1 n")
            hidden = hidden | padding
        if broken is not None:
            scores = scores.masked_fill(
                rearrange(broken[:, :, columns], "b k n -> b k 1 1 n"), torch.nan
            )
        scores = scores.masked_fill(hidden, -torch.inf)
        # The largest score cancels, so it needs no gradient.
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
