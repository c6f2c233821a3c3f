"""Loaded models as users have them: compiled, spread over devices, with adapters, offloaded."""

import copy
import itertools
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel as PreTrainedModel

from interp.errors import InputError, told

_WRAPPED = {"OptimizedModule": "_orig_mod", "DataParallel": "module"}
_WRAPPED["DistributedDataParallel"] = "module"
"""Attribute in which a wrapper that changes no number keeps the model."""


def twin(
    model: transformers.PreTrainedModel, device: str | None = None
) -> transformers.PreTrainedModel:
    """A second model over the same weights, or over copies of them on another device.

    Settings, modes and hooks are its own. Over the same weights, quantized layers and adapters are
    the given model's own: they move numbers between their weights and other places when they run.
    """
    memo: dict[int, Any] = {}
    if device is None:
        memo |= {id(part): part for part in model.modules() if _has_own_state(part)}
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = tensor
        if device is not None:
            data = tensor.detach().to(device)
            is_weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(data, tensor.requires_grad) if is_weight else data
    # Tensors of an earlier run that are part of a graph cannot be copied.
    left = itertools.chain.from_iterable(vars(part).values() for part in model.modules())
    memo |= {id(t): t.detach() for t in left if isinstance(t, torch.Tensor) and not t.is_leaf}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise InputError(
            f"model must be one that can be copied, got a {type(model).__name__}: {told(error)}"
        ) from error


def unwrapped(model: nn.Module) -> transformers.PreTrainedModel:
    """A second model over the weights of `model`, which stays unchanged.

    Wrappers are removed. Weights that an adapter changes (LoRA and others of PEFT) are copied and
    the adapter is merged into the copies, so that functions of weights see what the model runs.
    """
    inner: Any = model
    while (name := _WRAPPED.get(type(inner).__name__)) is not None:
        inner = getattr(inner, name)
    if hasattr(inner, "get_base_model") and hasattr(inner, "merge_and_unload"):
        inner = inner.get_base_model()
    if not isinstance(inner, transformers.PreTrainedModel):
        raise InputError(
            f"model must be a transformers model, got {type(inner).__name__}: give what it wraps"
        )
    absent = [name for name, weight in inner.named_parameters() if weight.is_meta]
    if absent and not any(hasattr(part, "_hf_hook") for part in inner.modules()):
        raise InputError(
            f"model must have its weights in memory, got {absent[0]} on the meta device"
        )
    own = twin(inner)
    for name, layer in list(own.named_modules()):
        if hasattr(layer, "base_layer") and hasattr(layer, "merged"):
            base = layer.get_base_layer()
            if all(weight.is_floating_point() for weight in base.parameters()):
                own.set_submodule(name, _merged(layer))
    for part in own.modules():
        part.training = part.training and _has_own_state(part)
    if left := [name for name, part in own.named_modules() if "peft." in type(part).__module__]:
        raise InputError(
            f"model must have adapters that change weights only, got another at {left[0]}:"
            " give the model that merge_and_unload() returns"
        )
    return own


def _has_own_state(part: nn.Module) -> bool:
    """Whether a part is a layer of another library: quantized or adapted, without settings."""
    origin = type(part).__module__
    if origin.startswith(("torch.", "transformers")) and ".integrations." not in origin:
        return False
    settings = (vars(each).get("config") for each in part.modules())
    return not any(isinstance(each, transformers.PreTrainedConfig) for each in settings)


def _merged(layer: Any) -> nn.Module:
    """A layer with the weights that an adapted layer runs now."""
    layer = copy.deepcopy(layer)
    base = layer.get_base_layer()
    is_on = not getattr(layer, "disable_adapters", False)
    if is_on != layer.merged:
        (layer.merge if is_on else layer.unmerge)()
    return layer.get_base_layer()
