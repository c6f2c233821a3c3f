"""Windows of attention, from the masks that a model makes itself."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from interp.errors import InputError
from interp.kinds.targets import within
from interp.models.families import Direction, attention_parts, body, context
from interp.models.switches import attend_with, cheap_forward, masks_for, sampled_queries
from interp.models.wrapped import PreTrainedModel

_FAR = 2**17
"""Keys in the masks of a model whose context is longer, or has no limit."""


@lru_cache(16, typed=True)  # Blocks of 4 equal 4.
def visible_rows(
    window: int | None, length: int, *, causal: bool = True
) -> Bool[Tensor, "query key"]:
    """The keys that `sampled_queries` see under our own mask."""
    query, key = torch.tensor(sampled_queries(length))[:, None], torch.arange(length)
    if not causal:
        return (query - key).abs() < (window or length)
    return (key <= query) & within(window or length, query, key)


def checked_windows(
    model: PreTrainedModel, windows: Sequence[int | None], way: Direction
) -> tuple[int | None, ...]:
    """The windows of the settings, or those of the model's own masks where these differ.

    The model runs on two tokens, without hooks of its user, but makes the masks of long prompts.
    Layers that make no mask, and models that do not run so, keep what the settings say.
    """
    if getattr(model.config, "attention_type", "") == "block_sparse":
        return tuple(windows)  # BigBird changes its attention for good when it runs a short prompt.
    length, causal = min(context(model, way) or _FAR, _FAR), way == "causal"
    layers = attention_parts(model)
    shown: dict[int, Tensor] = {}

    def attend(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        if module in layers and options.get("rows") is not None:
            shown[layers[module]] = options["rows"].cpu()
        return v.new_zeros(len(q), q.shape[2], q.shape[1], v.shape[-1]), None

    hooks = [each for p in model.modules() for each in (p._forward_pre_hooks, p._forward_hooks)]
    by_users = [dict(each) for each in hooks]
    try:
        for each in hooks:
            each.clear()
        with attend_with(model, attend), masks_for(length), torch.no_grad():
            runs = body(model)
            runs(torch.zeros(1, 2, dtype=torch.long, device=model.device), **cheap_forward(runs))
    except Exception:  # Models that are not on the interface fail in many ways.
        return tuple(windows)
    finally:
        for each, own in zip(
            hooks, by_users, strict=True
        ):  # transformers adds some in a first run.
            each.update(own)
    found = list(windows)
    for i, rows in shown.items():
        fitting = (
            window
            for window in (found[i], None, int(rows[0].sum()))
            if torch.equal(rows, visible_rows(window, length, causal=causal))
        )
        try:
            found[i] = next(fitting)
        except StopIteration:
            raise InputError(
                f"attention must see all tokens, a window or chunks, got another mask in layer {i}"
            ) from None
    return tuple(found)
