"""Attention of a running model without patterns: queries, keys and log-sum-exps.

A function of ours replaces the model's attention (transformers' attention interface). It calls the
same fused kernel as the plain forward pass, which returns the log-sum-exp of every row next to the
output, and passes queries, keys and log-sum-exps on as `FromQK`. Everything computed from them is
exact, in memory that grows with the length. Where scores are so large that float32 cannot resolve
their differences, they are computed in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.errors import InputError
from interp.kinds.mass import LARGE, FromQK, by_tiles, has_float64, norms, score_bound
from interp.kinds.targets import NONE
from interp.models import Model, attend_with, attention_layers, cheap_forward
from interp.models.families import body
from interp.models.finite import refuse_not_finite
from interp.models.masks import visible_rows
from interp.models.model import check_heads, warn_of_bridge_hooks
from interp.models.rows import to_run

Visit = Callable[[int, FromQK], None]

FUSED_ON = ("cpu",)
"""Device types with a fused kernel that returns log-sum-exps; tiles serve the others."""


def stream(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    visit: Visit,
    passed_on: Callable[[int, Tensor], Tensor] = lambda layer, out: out,
) -> None:
    """Run `tokens` once and call `visit(layer, attention)` as each layer attends.

    Padding (-1) is on the right; values of its queries are meaningless. `passed_on(layer, out)`
    may replace the output of the heads, `[batch, pos, head, d_value]`.
    """
    real = (tokens != NONE).to(model.device)
    with streaming(model, visit, passed_on, real):
        _run(model, tokens)


@contextmanager
def streaming(
    model: Model,
    visit: Visit,
    passed_on: Callable[[int, Tensor], Tensor] = lambda layer, out: out,
    real: Bool[Tensor, "batch pos"] | None = None,
) -> Iterator[None]:
    """Let every run of `model.plain` in the block be streamed, as by `stream`.

    `real` is False for padding.
    """

    def attend(module: Any, *args: Any, **options: Any) -> tuple[Tensor, None]:
        layer = model.parts[module]
        out, attention = attended(module, layer, model.windows[layer], *args, **options)
        check_heads(model, layer, attention.n_heads)
        lse = attention.lse if real is None else torch.where(real[:, None], attention.lse, 0)
        refuse_not_finite(lse, model, layer)
        visit(layer, attention)
        return passed_on(layer, out), None

    with attend_with(model.plain, attend):
        yield


def around(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    visit: Visit,
    passed_on: Callable[[int, Tensor], Tensor],
) -> None:
    """`stream` for a model that looks both ways and tokens without padding.

    `visit` gets queries, keys and values; all that needs log-sum-exps is NaN.
    """

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        rows: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        layer, length = model.parts[module], query.shape[2]
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        place = torch.arange(length, device=query.device)
        seen = (place[:, None] - place).abs() < (model.windows[layer] or length)
        rows_due = visible_rows(model.windows[layer], length, causal=False)
        known = rows is not None and torch.equal(rows.cpu(), rows_due)
        others = ("softcap", "s_aux", "slopes", "position_bias")
        if mask is not None or not known or any(options.get(n) is not None for n in others):
            raise InputError("attention must have a known mask and no bias to be streamed")
        check_heads(model, layer, query.shape[1])
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, seen, scale=scale, enable_gqa=True
        ).transpose(1, 2)
        visit(layer, FromQK(query, key, query[..., 0] * torch.nan, scale, v=value))
        return passed_on(layer, out).contiguous(), None

    with attend_with(model.plain, attend):
        _run(model, tokens)


def _run(model: Model, tokens: Int[Tensor, "batch pos"]) -> None:
    with torch.no_grad():
        warn_of_bridge_hooks(model)
        runs = body(model.plain)
        runs(to_run(tokens).to(model.device), **cheap_forward(runs))


def streams(model: Model) -> bool:
    """Whether every attention layer of `model` can be streamed, tried on two tokens."""
    if model.plain is None or model.direction != "causal":
        return False
    seen = []
    try:
        stream(model, model.vocabulary[:2][None], lambda layer, attention: seen.append(layer))
    except Exception:  # Models that are not on the interface fail in many ways.
        return False
    return sorted(seen) == attention_layers(model, None)


def attended(
    module: Any,
    layer: int,
    width: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    slopes: Tensor | None = None,
    rows: Bool[Tensor, "query key"] | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, FromQK]:
    """Attention as transformers calls it, with our own causal mask and window.

    `width` is the window, which must give `rows` if the layer makes a mask.
    """
    biased = attention_mask is not None or position_bias is not None
    if biased or query.shape[2] != key.shape[2] or not getattr(module, "is_causal", True):
        raise InputError("attention must be causal, of a whole prompt and unbiased to be streamed")
    group, rest = divmod(query.shape[1], key.shape[1])
    if rest:  # The fused kernel would crash the process.
        raise InputError(f"key-value heads must divide {query.shape[1]}, got {key.shape[1]}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    length = query.shape[2]
    window = width if width and width < length else None
    if rows is not None and not torch.equal(visible_rows(window, length), rows.cpu()):
        raise InputError("attention must have the mask of its window to be streamed, got another")
    options = {"softcap": softcap, "window": window, "sinks": s_aux, "slopes": slopes}
    out, lse = _fused(query, key, value, scale, options)
    q_norms, k_norms = norms(query), norms(key)
    finite = q_norms.isfinite() & k_norms.isfinite().repeat_interleave(group, 1)
    bound = score_bound(q_norms, k_norms, scale, s_aux)
    if finer := told_apart(query, key, bound, layer=layer):
        query, key = finer
        lse = by_tiles(query, key, value[..., :1], scale, **options).lse
    # The fused kernel treats a row of NaN as one without keys, and returns 0.
    lse = lse.where(finite, torch.nan)
    attention = FromQK(query, key, lse, scale, v=value, **options)
    return out.transpose(1, 2).contiguous(), attention


def outputs_of(
    attention: FromQK,
    q: Float[Tensor, "batch pos kv_head group d"],
    k: Float[Tensor, "batch pos kv_head d"],
    v: Float[Tensor, "batch pos kv_head d_value"],
) -> Float[Tensor, "batch pos head d_value"]:
    """What the heads of a streamed layer put out with other queries, keys or values."""
    query = rearrange(q.to(v.dtype), "b q kv g d -> b (kv g) q d")
    key = k.to(v.dtype).transpose(1, 2)
    with torch.no_grad():
        out, _ = _fused(query, key, v.transpose(1, 2), attention.scale, attention.options())
    return out.transpose(1, 2)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, scale: float, options: dict[str, Any]
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head pos"]]:
    """Heads' outputs and log-sum-exps, by the fused kernel where it can."""
    plain = all(option is None for option in options.values())
    plain = plain and query.shape[-1] == value.shape[-1] and not torch.is_grad_enabled()
    if plain and query.device.type in FUSED_ON:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return fused(query, key, value, 0.0, True, attn_mask=None, scale=scale)
    tiled = by_tiles(query, key, value, scale, **options)
    return tiled.out.to(query.dtype), tiled.lse


def told_apart(
    query: Tensor, key: Tensor, bound: Tensor, *, layer: int, heads: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """Queries and keys in float64 if float32 resolves their scores too coarsely, else None.

    `bound` is the `score_bound` of each head, and `heads` are the numbers of these heads in the
    layer; None: all. Refuses scores for which float64 is too coarse too, or not on the device.
    """
    top = bound.max().item()
    if top <= LARGE:
        return None
    if top > (LARGE << 29 if has_float64(query.device) else LARGE):
        head = int(bound.argmax())
        raise InputError(
            f"scores must be small enough for floating point to resolve, got {top:.3g} in layer"
            f" {layer}, head {head if heads is None else int(heads[head])}: read patterns instead,"
            " or check its weights"
        )
    return query.double(), key.double()
