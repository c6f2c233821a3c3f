"""Loaded models as they come: compiled, spread over devices, adapted, with weights elsewhere."""

import copy
import itertools
from typing import Any

import torch
import transformers
from torch import nn

from interp.errors import InputError, told

_AROUND = {"OptimizedModule": "_orig_mod", "DataParallel": "module"}
_AROUND |= {"DistributedDataParallel": "module"}
"""Where wrappers that change nothing keep the model: `torch.compile`'s and those of training."""


def twin(
    model: transformers.PreTrainedModel, device: str | None = None
) -> transformers.PreTrainedModel:
    """A second model over the same weights, or over copies of them on another device.

    Raises:
        InputError: If the model holds what cannot be copied.
    """
    shared = itertools.chain(model.parameters(), model.buffers())
    memo: dict[int, Any] = {id(t): t if device is None else _at(t, device) for t in shared}
    # What an earlier run left in a part, and its gradient hangs on, has no copy of its own.
    left = itertools.chain.from_iterable(vars(part).values() for part in model.modules())
    memo |= {id(t): t.detach() for t in left if isinstance(t, torch.Tensor) and not t.is_leaf}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise InputError(
            f"model must be one that can be copied, got a {type(model).__name__}: {told(error)}"
        ) from error


def _at(tensor: torch.Tensor, device: str) -> torch.Tensor:
    moved = tensor.detach().to(device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(moved, tensor.requires_grad)
    return moved


def unwrapped(model: nn.Module) -> transformers.PreTrainedModel:
    """A model of its own over the weights of `model`, which stays as it is.

    Wrappers are taken off. Weights that an adapter changes (LoRA and the like, of PEFT) are
    copied and the adapter added to the copies, so that they are those the model runs with, for
    functions of weights too.

    Raises:
        InputError: If there is no model of transformers in it, the adapter is no change of
            weights, or the weights are not in memory.
    """
    inner: Any = model
    while (name := _AROUND.get(type(inner).__name__)) is not None:
        inner = getattr(inner, name)
    if hasattr(inner, "get_base_model") and hasattr(inner, "merge_and_unload"):
        inner = inner.get_base_model()
    if not isinstance(inner, transformers.PreTrainedModel):
        raise InputError(
            f"model must be a transformers model itself, got {type(inner).__name__}:"
            " give what it wraps"
        )
    _check_at_hand(inner)
    own = twin(inner)
    for name, layer in list(own.named_modules()):
        if hasattr(layer, "base_layer") and hasattr(layer, "merged"):
            own.set_submodule(name, _merged(layer))
    if left := [name for name, part in own.named_modules() if "peft." in type(part).__module__]:
        raise InputError(
            f"model must have adapters that are changes of weights, got another at {left[0]}:"
            " give the model that merge_and_unload() returns"
        )
    return own


def _merged(layer: Any) -> nn.Module:
    """What an adapted layer does now, as a layer with weights of its own."""
    base = layer.get_base_layer()
    for name, weight in list(base.named_parameters(recurse=False)):
        setattr(base, name, nn.Parameter(weight.detach().clone(), weight.requires_grad))
    wanted = not getattr(layer, "disable_adapters", False)
    if wanted and not layer.merged:
        layer.merge()
    elif layer.merged and not wanted:
        layer.unmerge()
    return layer.get_base_layer()


def _check_at_hand(model: nn.Module) -> None:
    """Raise where weights have no numbers and nothing fetches them when they are used."""
    absent = [name for name, weight in model.named_parameters() if weight.is_meta]
    if absent and not any(hasattr(part, "_hf_hook") for part in model.modules()):
        raise InputError(
            f"model must have its weights in memory, got {absent[0]} on the meta device:"
            " load it with its weights"
        )
