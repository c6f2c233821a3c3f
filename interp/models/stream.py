"""Attention of a running model without patterns: queries, keys and log-sum-exps.

A function of ours takes the place of the model's attention (transformers' attention
interface). It calls the same fused kernel as the plain forward pass, which returns the
log-sum-exp of every row beside the output, and hands queries, keys and log-sum-exps over as
`FromQK`; what is then asked of them is exact and costs memory that grows with the length. Where
scores are so large that float32 tells them apart too coarsely, they are computed in float64.
"""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from interp.attention.tiles import tiled_attention
from interp.errors import InputError
from interp.kinds.mass import LARGE, WITHOUT_FLOAT64, FromQK, score_bound
from interp.kinds.targets import NONE
from interp.models import STREAM, Model, attend_with, cheap_forward, holding
from interp.models.finite import refuse_not_finite
from interp.models.layers import attention_layers, check_heads
from interp.models.rows import to_run

Visit = Callable[[int, FromQK], None]

LOG = logging.getLogger("interp")

FUSED_ON = ("cpu",)
"""Kinds of device with a fused kernel that hands over the log-sum-exps; tiles serve the others."""

_VISIT: ContextVar[Visit] = ContextVar("visit")


def stream(model: Model, tokens: Int[Tensor, "batch pos"], visit: Visit) -> None:
    """Run `tokens` once and call `visit(layer, attention)` as each layer attends.

    Padding (-1) is on the right; what is said of its queries means nothing.

    Raises:
        InputError: If a layer has another number of heads, its attention is not finite, or scores
            are too large to be told apart; the message names layer and head.
    """
    real = (tokens != NONE).to(model.device)

    def look(layer: int, attention: FromQK) -> None:
        check_heads(model, layer, attention.lse.shape[1])
        lse = torch.where(real[:, None], attention.lse, 0)
        refuse_not_finite(lse, layer, model.dtype_name)
        visit(layer, attention)

    attending = attend_with(model.plain, STREAM, _attend)
    with holding(_VISIT, look), attending, torch.no_grad():
        ids = to_run(tokens).to(model.device)
        model.plain(ids, **cheap_forward(model.plain))


def streams(model: Model) -> bool:
    """Whether every attention layer of `model` can be streamed: found out on two tokens."""
    if model.plain is None or model.chunked or model.direction != "causal":
        return False
    seen = []
    try:
        ids = model.vocabulary[:2][None]
        stream(model, ids, lambda layer, attention: seen.append(layer))
    except Exception:
        # Models that are not on the interface fail in ways of their own; none of them matters,
        # since there is another way to read them.
        return False
    return sorted(seen) == attention_layers(model, None)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it; the mask is ours, causal and within the window."""
    if attention_mask is not None or position_bias is not None or query.shape[2] != key.shape[2]:
        raise NotImplementedError("only causal attention of a whole prompt can be streamed")
    if query.shape[1] % key.shape[1]:
        # The fused kernel would end the whole process.
        raise InputError(
            f"key-value heads must divide the {query.shape[1]} heads, got {key.shape[1]}"
        )
    if not getattr(module, "is_causal", True):
        raise NotImplementedError("only causal attention can be streamed")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window = sliding_window if sliding_window and sliding_window < query.shape[2] else None
    options = {"softcap": softcap, "window": window, "sinks": s_aux}
    out, lse = _output_and_lse(query, key, value, scale, options)
    # The fused kernel takes a row of NaN for one that sees nothing, and gives it 0.
    group = query.shape[1] // key.shape[1]
    finite = query.isfinite().all(-1) & key.isfinite().all(-1).repeat_interleave(group, 1)
    lse = lse.where(finite, torch.nan)
    finer = told_apart(query, key, scale, s_aux, layer=module.layer_idx)
    if finer is not None:
        query, key = finer
        lse = tiled_attention(query, key, value[..., :1], scale=scale, **options).lse
        lse = lse.where(finite, torch.nan)
    attention = FromQK(query, key, lse, scale, softcap=softcap, window=window, sinks=s_aux, v=value)
    _VISIT.get()(module.layer_idx, attention)
    return out.transpose(1, 2).contiguous(), None


def told_apart(
    query: Tensor,
    key: Tensor,
    scale: float,
    sinks: Tensor | None,
    *,
    layer: int,
    heads: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Queries and keys in float64 if float32 tells their scores apart too coarsely, else None.

    Args:
        query: As the model's attention gets them.
        key: Likewise.
        scale: Of `q . k`.
        sinks: Learned scores of the heads, if any.
        layer: For the message.
        heads: Which heads of the layer these are; None: all of them.

    Raises:
        InputError: If float64 tells them apart too coarsely too, or the device has none.
    """
    bound = score_bound(query, key, scale, sinks)
    top = bound.max().item()
    if top <= LARGE:
        return None
    if top > (LARGE if query.device.type in WITHOUT_FLOAT64 else LARGE << 29):
        head = int(bound.argmax())
        raise InputError(
            f"scores must be such as floating point can tell apart, got {top:.3g} in layer"
            f" {layer}, head {head if heads is None else int(heads[head])}: read patterns, or look"
            " at its weights"
        )
    return query.double(), key.double()


def _output_and_lse(
    query: Tensor, key: Tensor, value: Tensor, scale: float, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """By the fused kernel where it returns both, else by tiles."""
    plain = all(option is None for option in options.values())
    if plain and query.device.type in FUSED_ON and query.shape[-1] == value.shape[-1]:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return fused(query, key, value, 0.0, True, attn_mask=None, scale=scale)
    tiled = tiled_attention(query, key, value, scale=scale, **options)
    return tiled.out.to(query.dtype), tiled.lse
