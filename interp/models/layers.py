"""Which layers are meant, and which have attention."""

from collections.abc import Iterable
from typing import Any

from interp.errors import InputError, whole
from interp.models.model import Model


def attention_layers(model: Model, layers: Any, stack: str | None = None) -> list[int]:
    """The layers asked for, or all that have attention; `stack` is an encoder-decoder's.

    Raises:
        InputError: If one is not there or has no attention, or `layers` are no whole numbers.
    """
    number = model.layers_of(stack)
    there = list(range(number))
    if model.hooked is not None:
        hooks = model.hooked.hook_dict
        there = [layer for layer in there if f"blocks.{layer}.attn.hook_pattern" in hooks]
    if layers is None:
        return there
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise InputError(f"layers must be several whole numbers, got {layers!r}")
    wanted = [whole("layers", layer, least=0, most=number - 1) for layer in layers]
    if not wanted:
        raise InputError("layers must name at least one layer, got none")
    if absent := [layer for layer in wanted if layer not in there]:
        raise InputError(
            f"layers must have attention, got {absent}, which have none in {model.name}"
        )
    return wanted


def check_heads(model: Model, layer: int, number: int) -> None:
    """Refuse a layer of another number of heads than the settings tell of.

    Raises:
        InputError: If `number`, which layer `layer` has, is not the model's.
    """
    if number != model.n_heads:
        raise InputError(
            f"model must have its {model.n_heads} heads in every layer, got {model.name}, which"
            f" has {number} in layer {layer}"
        )
