"""Causal attention in plain torch, by tiles: exact, and never `pos x pos`."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor


class Tiled(NamedTuple):
    """What `tiled_attention` returns.

    Attributes:
        out: The values' mean under the pattern.
        lse: Log-sum-exp of each query's scores, in nats; the learned sink's score is in it.
        mean_score: The scores' mean under the pattern, so that `lse - mean_score` is the
            entropy (where there is no learned sink).
    """

    out: Float[Tensor, "batch head query d_value"]
    lse: Float[Tensor, "batch head query"]
    mean_score: Float[Tensor, "batch head query"]


def tiled_attention(
    q: Float[Tensor, "batch head query=pos d_head"],
    k: Float[Tensor, "batch kv_head key=pos d_head"],
    v: Float[Tensor, "batch kv_head key=pos d_value"],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    tile: int = 256,
) -> Tiled:
    """Causal attention by tiles of `tile` queries and keys, with the online softmax.

    A row's softmax needs its largest score m and the sum l of `exp(score - m)`. Both can be
    kept while the keys go by: when a tile brings a larger score, what has been summed so far
    is scaled by `exp(m_old - m_new)` (Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al.
    2022, arXiv 2205.14135). Arithmetic is float32 whatever the inputs are.

    Args:
        q: Queries; head `h` reads keys and values of `h // (head / kv_head)`.
        k: Keys.
        v: Values, of any width.
        scale: Of `q . k`.
        window: How many keys back a query may look, itself included; None: no limit.
        softcap: If given, scores become `softcap * tanh(score / softcap)` (Gemma 2).
        sinks: A score per head that joins the softmax and has no value (gpt-oss).
        tile: Rows and columns of scores held at a time, for every head.

    Returns:
        float32 `out`, `lse` and `mean_score`.
    """
    length, kv_heads = q.shape[2], k.shape[1]
    grouped = rearrange(q.float(), "b (kv g) q d -> b kv g q d", kv=kv_heads)
    k, v = k.float(), v.float()
    parts = []
    for start in range(0, length, tile):
        rows = slice(start, min(start + tile, length))
        block = grouped[:, :, :, rows]
        query = torch.arange(start, rows.stop, device=q.device)[:, None]
        top = torch.full(block.shape[:-1], -torch.inf, device=q.device)
        if sinks is not None:
            top = top.maximum(rearrange(sinks.float(), "(kv g) -> kv g 1", kv=kv_heads))
        total = torch.isfinite(top).float()  # The sink's own exp(0).
        out = torch.zeros(*block.shape[:-1], v.shape[-1], device=q.device)
        moment = torch.zeros_like(top)
        first = 0 if window is None else max(0, start - window + 1) // tile * tile
        for begin in range(first, rows.stop, tile):
            columns = slice(begin, min(begin + tile, rows.stop))
            scores = scale * torch.einsum("bkgqd,bknd->bkgqn", block, k[:, :, columns])
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            key = torch.arange(begin, columns.stop, device=q.device)
            hidden = key > query
            if window is not None:
                hidden = hidden | (query - key >= window)
            scores = scores.masked_fill(hidden, -torch.inf)
            higher = top.maximum(scores.amax(-1))
            base = torch.where(higher == -torch.inf, 0, higher)  # Nothing seen yet.
            shrink = torch.exp(top - base)
            weights = torch.exp(scores - base[..., None])
            total = total * shrink + weights.sum(-1)
            moment = moment * shrink + (weights * scores.masked_fill(hidden, 0)).sum(-1)
            added = torch.einsum("bkgqn,bknd->bkgqd", weights, v[:, :, columns])
            out = out * shrink[..., None] + added
            top = higher
        parts.append((out / total[..., None], top + total.log(), moment / total))
    joined = (torch.cat(pieces, dim=3) for pieces in zip(*parts, strict=True))
    return Tiled(*(rearrange(piece, "b kv g ... -> b (kv g) ...") for piece in joined))
