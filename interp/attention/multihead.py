"""Many heads in one reshape, and the same layer token by token from a cache.

    Q = X W_Q     [pos, head * d_k]   ->   [head, pos, d_k]
    K, V from X (self-attention) or from another sequence (cross-attention), in the same way
    Z = attention(Q, K, V)   [head, pos, d_value]   ->   [pos, head * d_value]
    out = Z W_O

Heads are neighbouring columns of one matrix (Vaswani et al. 2017, arXiv 1706.03762, section
3.2.2), so that one matrix product computes all of them. This module has no position encoding:
rotate queries and keys before you call it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.attention.reference import causal_mask, grouped_attention, sliding_window_mask
from interp.errors import Count, InputError, checked


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of a layer of heads, each head a block of columns, right-multiplied (`x @ W`).

    Attributes:
        W_Q: Query weights; head h has columns `h * d_k` to `(h + 1) * d_k`.
        W_K: Key weights of the key-value heads, with a row per dimension of the keys' source.
        W_V: Value weights, `d_value` columns per key-value head.
        W_O: Output weights; head h has rows `h * d_value` to `(h + 1) * d_value`.
        heads: Number of query heads.
        kv_heads: Number of key-value heads: `heads` for multi-head, 1 for multi-query.
        b_Q: Bias of the queries; None: no bias. The other biases are alike.
    """

    W_Q: Float[Tensor, "d_model q_width"]
    W_K: Float[Tensor, "d_source k_width"]
    W_V: Float[Tensor, "d_source v_width"]
    W_O: Float[Tensor, "z_width d_out"]
    heads: int
    kv_heads: int
    b_Q: Float[Tensor, " q_width"] | None = None
    b_K: Float[Tensor, " k_width"] | None = None
    b_V: Float[Tensor, " v_width"] | None = None
    b_O: Float[Tensor, " d_out"] | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InputError(
                f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}"
            )
        for name in "QKVO":
            bias, width = getattr(self, f"b_{name}"), getattr(self, f"W_{name}").shape[1]
            if bias is not None and bias.shape != (width,):
                raise InputError(f"b_{name} must have shape ({width},), got {tuple(bias.shape)}")

    @classmethod
    def of_torch(cls, module: nn.MultiheadAttention) -> "Weights":
        """The weights of PyTorch's own module, which left-multiplies.

        Raises:
            InputError: If the module adds keys (`add_bias_kv`, `add_zero_attn`).
        """
        if module.bias_k is not None or module.add_zero_attn:
            raise InputError("module must add no keys, got add_bias_kv or add_zero_attn")
        if module.in_proj_weight is not None:
            q, k, v = module.in_proj_weight.chunk(3)
        else:
            q, k, v = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        out, heads, biases = module.out_proj, module.num_heads, {}
        if module.in_proj_bias is not None:
            b_Q, b_K, b_V = module.in_proj_bias.chunk(3)
            biases = {"b_Q": b_Q, "b_K": b_K, "b_V": b_V, "b_O": out.bias}
        return cls(q.T, k.T, v.T, out.weight.T, heads, heads, **biases)


class MultiHead(NamedTuple):
    """Output of `multi_head_attention`.

    Attributes:
        out: Sum of the heads' outputs through W_O, plus its bias.
        pattern: Pattern of each head; rows sum to 1, or are 0 where nothing is allowed.
        z: Mean of values of each head, before W_O.
    """

    out: Float[Tensor, "batch pos d_out"]
    pattern: Float[Tensor, "batch head query key"]
    z: Float[Tensor, "batch pos head d_value"]


class Cache(NamedTuple):
    """Keys and values of earlier tokens, for key-value heads only: shared heads need less memory.

    Attributes:
        k: Keys.
        v: Values.
    """

    k: Float[Tensor, "batch kv_head pos d_k"]
    v: Float[Tensor, "batch kv_head pos d_value"]


def multi_head_attention(
    x: Float[Tensor, "batch pos d_model"],
    weights: Weights,
    *,
    source: Float[Tensor, "batch source_pos d_source"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    allow_empty: bool = False,
) -> MultiHead:
    """Multi-head attention, grouped if `weights` share keys; PyTorch's `nn.MultiheadAttention`.

    Args:
        x: Residual stream from which the layer computes queries.
        weights: Weights of all heads.
        source: Sequence from which the layer computes keys and values, for cross-attention;
            None: x itself.
        mask: True where attention is allowed (PyTorch's module means the opposite);
            broadcasts to `[batch, head, query, key]`.
        allow_empty: As for `interp.attention.reference.attention`.
    """
    q, k, v = _project(x, x if source is None else source, weights)
    attended = grouped_attention(q, k, v, mask=mask, allow_empty=allow_empty)
    z = rearrange(attended.out, "batch head pos d -> batch pos head d")
    return MultiHead(_output(attended.out, weights), attended.pattern, z)


@checked
def cached_attention(
    x: Float[Tensor, "batch new d_model"],
    weights: Weights,
    cache: Cache | None = None,
    *,
    window: Count | None = None,
) -> tuple[Float[Tensor, "batch new d_out"], Cache]:
    """Causal self-attention of new tokens to the cached ones and to each other.

    Step by step it gives the output of one pass over the whole sequence, since under a causal
    mask keys and values do not depend on later tokens.

    Args:
        x: New tokens, one or more.
        weights: Weights of all heads.
        cache: Keys and values of all earlier tokens, left unchanged; None: no earlier tokens.
        window: Number of keys that a query sees, itself included; older keys leave the cache.

    Returns:
        The output at the new tokens, and a cache that includes them.
    """
    q, k, v = _project(x, x, weights)
    if cache is not None:
        k, v = torch.cat([cache.k, k], dim=2), torch.cat([cache.v, v], dim=2)
    queries, keys = q.shape[2], k.shape[2]
    if window is None:
        mask = causal_mask(queries, keys)
    else:
        mask = sliding_window_mask(queries, keys, window=window)
    out = _output(grouped_attention(q, k, v, mask=mask).out, weights)
    kept = slice(None) if window is None else slice(-window, None)
    return out, Cache(k[:, :, kept], v[:, :, kept])


def _project(x: Tensor, source: Tensor, weights: Weights) -> Iterator[Tensor]:
    """Queries, keys and values, each `[batch, head, pos, width]`."""
    parts = (("Q", x, weights.heads), ("K", source, weights.kv_heads))
    for name, rows, heads in (*parts, ("V", *parts[1][1:])):
        weight, bias = getattr(weights, f"W_{name}"), getattr(weights, f"b_{name}")
        flat = rows @ weight if bias is None else rows @ weight + bias
        yield rearrange(flat, "batch pos (head d) -> batch head pos d", head=heads)


def _output(z: Tensor, weights: Weights) -> Tensor:
    flat = rearrange(z, "batch head pos d -> batch pos (head d)") @ weights.W_O
    return flat if weights.b_O is None else flat + weights.b_O
