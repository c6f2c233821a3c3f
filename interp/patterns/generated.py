"""The attention that `generate` returns by step, joined to one square pattern a layer."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.patterns.tensor import FUSED, as_tensor


def is_generated(attention: Any) -> bool:
    """Whether layers are nested in steps, as `generate(output_attentions=True)` does."""
    return (
        isinstance(attention, list | tuple)
        and len(attention) > 0
        and all(isinstance(step, list | tuple) for step in attention)
        and all(
            layer is None or getattr(layer, "ndim", 0) == 4 for step in attention for layer in step
        )
    )


def stitched(steps: Sequence[Sequence[Any]]) -> list[Float[Tensor, "batch head pos pos"]]:
    """One `[batch, head, pos, pos]` a layer from what each step of generation returned.

    The first step has a row for each token of the prompt, each later step a row for the token
    before it. With a cache the keys grow by one a step; without one each step has all rows
    again; a cache of fixed size has columns of 0 for tokens to come.

    Raises:
        InputError: If there is no attention, steps do not grow so, or some attention is on
            tokens to come.
    """
    counts = {len(step) for step in steps}
    if 0 in counts or any(layer is None for step in steps for layer in step):
        raise InputError(FUSED)
    if len(counts) > 1:
        raise InputError(f"patterns must have all layers at each step, got {sorted(counts)}")
    return [_stitch(layer, [step[layer] for step in steps]) for layer in range(len(steps[0]))]


def _stitch(layer: int, steps: Sequence[Any]) -> Float[Tensor, "batch head pos pos"]:
    blocks: list[Tensor] = []
    done = 0
    for number, step in enumerate(steps):
        block = as_tensor(step, "patterns must be arrays of numbers").detach()
        queries, keys = block.shape[2:]
        if blocks and queries == keys == done + 1:
            blocks, done = [], 0  # All rows again: there was no cache.
        done += queries
        grows = not blocks or block.shape[:2] == blocks[0].shape[:2]
        if not grows or keys < done:
            raise InputError(
                f"patterns of generation must grow by one key a step, got {tuple(block.shape)}"
                f" at step {number} of layer {layer}; run the model once on the whole text instead"
            )
        if block[..., done:].any():  # So are rows of left padding in a cache of fixed size.
            raise InputError(
                f"patterns of generation must be 0 after token {done}, got more at step {number}"
                f" of layer {layer}; run the model once on the whole text instead"
            )
        blocks.append(block)
    # A negative pad cuts the unfilled columns of a cache of fixed size.
    rows = [torch.nn.functional.pad(block, (0, done - block.shape[3])) for block in blocks]
    return torch.cat(rows, dim=2)
