"""Many heads side by side by one reshape, and the same token by token from a cache.

    Q = X W_Q     [pos, head * d_k]   ->   [head, pos, d_k]
    K, V from X (self-attention) or from another sequence (cross-attention), alike
    Z = attention(Q, K, V)   [head, pos, d_value]   ->   [pos, head * d_value]
    out = Z W_O

Heads are neighbouring columns of one matrix (Vaswani et al. 2017, arXiv 1706.03762, section
3.2.2), so that one matrix product serves all of them. There is no position encoding here: what
turns queries and keys comes before.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from interp.attention.operands import check_precise, check_tensor, check_window, group_size
from interp.attention.reference import causal_mask, grouped_attention, sliding_window_mask
from interp.errors import InputError


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of a layer of heads, each head a block of columns, right-multiplied (`x @ W`).

    Attributes:
        W_Q: Head h has columns `h * d_k` to `(h + 1) * d_k`.
        W_K: The same for key-value heads; its rows are as wide as what the keys come from.
        W_V: The same, `d_value` columns for each key-value head.
        W_O: Head h has rows `h * d_value` to `(h + 1) * d_value`.
        heads: Number of query heads.
        kv_heads: Number of key-value heads: `heads` for multi-head, 1 for multi-query.
        b_Q: Added to the queries, if given; so are the other biases.

    Raises:
        InputError: If the weights do not divide into these heads, do not fit together, or are not
            all float32 or all float64.
    """

    W_Q: Float[Tensor, "d_model q_width"]
    W_K: Float[Tensor, "d_source k_width"]
    W_V: Float[Tensor, "d_source_v v_width"]
    W_O: Float[Tensor, "z_width d_out"]
    heads: int
    kv_heads: int
    b_Q: Float[Tensor, " b_q"] | None = None
    b_K: Float[Tensor, " b_k"] | None = None
    b_V: Float[Tensor, " b_v"] | None = None
    b_O: Float[Tensor, " b_o"] | None = None

    def __post_init__(self) -> None:
        group = group_size(self.heads, self.kv_heads)
        parts = {"Q": self.heads, "K": self.kv_heads, "V": self.kv_heads, "O": 1}
        for name, number in parts.items():
            weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
            check_tensor(f"W_{name}", weight, "row column")
            check_precise(**{"W_Q": self.W_Q, f"W_{name}": weight})
            width = weight.shape[1]
            if width % number:
                raise InputError(f"W_{name} must divide into {number} heads, got {width} columns")
            if bias is not None:
                check_tensor(f"b_{name}", bias, "column")
                check_precise(**{f"W_{name}": weight, f"b_{name}": bias})
            if bias is not None and bias.shape != (width,):
                raise InputError(f"b_{name} must be of {width} numbers, got {tuple(bias.shape)}")
        d_k, key_width = self.W_Q.shape[1] // self.heads, self.W_K.shape[1] // self.kv_heads
        if d_k != key_width:
            raise InputError(f"W_K must give keys as wide as queries, {d_k}, got {key_width}")
        if self.W_K.shape[0] != self.W_V.shape[0]:
            raise InputError(
                f"W_V must have W_K's {self.W_K.shape[0]} rows, got {self.W_V.shape[0]}"
            )
        if self.W_O.shape[0] != self.W_V.shape[1] * group:
            raise InputError(
                f"W_O must have a row for each of the heads' {self.W_V.shape[1] * group} values,"
                f" got {self.W_O.shape[0]}"
            )

    @classmethod
    def of_torch(cls, module: nn.MultiheadAttention) -> "Weights":
        """The weights of PyTorch's own module, which left-multiplies.

        Raises:
            InputError: If it is no such module, if it adds keys of its own (`add_bias_kv`,
                `add_zero_attn`), or if its keys and values come from sequences of unlike width.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise InputError(
                f"module must be a torch.nn.MultiheadAttention, got a {type(module).__name__}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise InputError("module must add no keys of its own, got add_bias_kv or add_zero_attn")
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
    """What `multi_head_attention` returns.

    Attributes:
        out: The heads' outputs through W_O, summed, and its bias.
        pattern: Each head's; rows sum to 1, or are 0 where nothing is allowed.
        z: Each head's mean of values, before W_O.
    """

    out: Float[Tensor, "batch pos d_out"]
    pattern: Float[Tensor, "batch head query key"]
    z: Float[Tensor, "batch pos head d_value"]


class Cache(NamedTuple):
    """Keys and values of the tokens so far: key-value heads only, which is why sharing pays.

    Attributes:
        k: Keys.
        v: Values.
    """

    k: Float[Tensor, "batch kv_head pos d_k"]
    v: Float[Tensor, "batch kv_head pos d_value"]


def multi_head_attention(
    x: Float[Tensor, "..."],
    weights: Weights,
    *,
    source: Float[Tensor, "..."] | None = None,
    mask: Shaped[Tensor, "..."] | None = None,
    allow_empty: bool = False,
) -> MultiHead:
    """Multi-head attention, grouped if `weights` share keys; PyTorch's `nn.MultiheadAttention`.

    Args:
        x: What queries are made from, `[batch, pos, d_model]`.
        weights: Of all heads.
        source: What keys and values are made from, `[batch, source_pos, d_source]`: another
            sequence for cross-attention, x itself if left out.
        mask: Boolean, True where attention is allowed (PyTorch's module means the opposite);
            broadcasts to `[batch, head, query, key]`.
        allow_empty: As for `interp.attention.reference.attention`.

    Raises:
        InputError: If x or source do not fit the weights, or as `attention`.
    """
    q, k, v = _project(x, x if source is None else source, weights)
    attended = grouped_attention(q, k, v, mask=mask, allow_empty=allow_empty)
    return MultiHead(
        _output(attended.out, weights),
        attended.pattern,
        rearrange(attended.out, "batch head pos d -> batch pos head d"),
    )


def cached_attention(
    x: Float[Tensor, "..."],
    weights: Weights,
    cache: Cache | None = None,
    *,
    window: int | None = None,
) -> tuple[Float[Tensor, "batch new d_out"], Cache]:
    """Causal self-attention of new tokens to those in the cache and to each other.

    Step by step it gives what one pass over the whole sequence gives, since under a causal mask
    no key or value depends on what comes later.

    Args:
        x: The new tokens, one or more, `[batch, new, d_model]`.
        weights: Of all heads.
        cache: Of all tokens before; None: there are none. It is left as it is.
        window: How many keys a query sees, itself included; older ones leave the cache.

    Returns:
        The output at the new tokens, and the cache with them in it.

    Raises:
        InputError: If x does not fit the weights, or the cache fits neither.
    """
    if window is not None:
        check_window(window)
    q, k, v = _project(x, x, weights)
    if cache is not None:
        if not isinstance(cache, Cache):
            raise InputError(f"cache must be a Cache, got a {type(cache).__name__}")
        for name, old, new in (("k", cache.k, k), ("v", cache.v, v)):
            check_tensor(f"cache.{name}", old, "batch kv_head pos width")
            check_precise(x=x, **{f"cache.{name}": old})
            if (*old.shape[:2], old.shape[3]) != (*new.shape[:2], new.shape[3]):
                raise InputError(
                    f"cache.{name} must be [batch, kv_head, pos, width] like {tuple(new.shape)}"
                    f" but for pos, got {tuple(old.shape)}"
                )
        k, v = torch.cat([cache.k, k], dim=2), torch.cat([cache.v, v], dim=2)
    queries, keys = q.shape[2], k.shape[2]
    if window is None:
        mask = causal_mask(queries, keys)
    else:
        mask = sliding_window_mask(queries, keys, window=window)
    out = _output(grouped_attention(q, k, v, mask=mask).out, weights)
    held = slice(None) if window is None else slice(-window, None)
    return out, Cache(k[:, :, held], v[:, :, held])


def _project(x: Tensor, source: Tensor, weights: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each `[batch, head, pos, width]`."""
    if not isinstance(weights, Weights):
        raise InputError(f"weights must be Weights, got a {type(weights).__name__}")
    check_tensor("x", x, "batch pos d_model")
    check_tensor("source", source, "batch source_pos d_source")
    check_precise(W_Q=weights.W_Q, x=x, source=source)
    parts = {"Q": (x, weights.heads), "K": (source, weights.kv_heads)}
    parts["V"] = parts["K"]
    made = []
    for name, (rows, heads) in parts.items():
        weight, bias = getattr(weights, f"W_{name}"), getattr(weights, f"b_{name}")
        if rows.shape[-1] != weight.shape[0]:
            given = "x" if rows is x else "source"
            raise InputError(
                f"{given} must be as wide as W_{name} has rows, {weight.shape[0]},"
                f" got {rows.shape[-1]}"
            )
        flat = rows @ weight if bias is None else rows @ weight + bias
        made.append(rearrange(flat, "batch pos (head d) -> batch head pos d", head=heads))
    if len(x) != len(source):
        raise InputError(f"source must have as many rows as x, {len(x)}, got {len(source)}")
    q, k, v = made
    return q, k, v


def _output(z: Tensor, weights: Weights) -> Tensor:
    flat = rearrange(z, "batch head pos d -> batch pos (head d)") @ weights.W_O
    return flat if weights.b_O is None else flat + weights.b_O
