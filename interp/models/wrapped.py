"""Loaded models as users have them: compiled, spread over devices, adapted, quantized, traced."""

import copy
import itertools
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel as PreTrainedModel

from interp.errors import InputError, told
from interp.models.switches import evaluating

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


def _has_own_state(part: nn.Module) -> bool:
    """Whether a part is a layer of another library: quantized or adapted, without settings."""
    origin = type(part).__module__
    if origin.startswith(("torch.", "transformers")) and ".integrations." not in origin:
        return False
    settings = (vars(each).get("config") for each in part.modules())
    return not any(isinstance(each, transformers.PreTrainedConfig) for each in settings)


def without_recorders(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """A twin without the hooks that transformers adds in its first run: no pickle can hold them."""
    own = twin(model)
    for part in own.modules():
        vars(part).pop("_output_capturing_hooks_installed", None)  # They are added again.
        for key, hook in list(part._forward_hooks.items()):
            if getattr(hook, "__module__", None) == "transformers.utils.output_capturing":
                del part._forward_hooks[key]
    return own


def module_of(model: Any) -> Any:
    """The module in an object that is none, as of nnsight or a pipeline; others as they are."""
    if isinstance(model, transformers.Pipeline):
        return model.model
    if not any(kind.__module__.startswith("nnsight.") for kind in type(model).__mro__):
        return model
    if model._edits:
        raise InputError("model must have no edits of nnsight, got some: call clear_edits() first")
    return model._module


def unwrapped(model: nn.Module) -> transformers.PreTrainedModel:
    """A second model over the weights of `model`, which stays unchanged.

    Wrappers are removed. Weights that an adapter changes (LoRA and others of PEFT) are copied and
    the adapter is merged into the copies, so that functions of weights see what the model runs.
    Adapters of quantized weights stay as they are: merging would round the weights again.
    """
    inner: Any = model
    while True:
        if (name := _WRAPPED.get(type(inner).__name__)) is not None:
            inner = getattr(inner, name)
        elif type(inner).__module__.startswith("peft."):
            inner = _inside(inner)
        else:
            break
    if not isinstance(inner, transformers.PreTrainedModel):
        raise InputError(
            f"model must be a transformers model, got {type(inner).__name__}: give what it wraps"
        )
    absent = [name for name, weight in inner.named_parameters() if weight.is_meta]
    if absent and not any(hasattr(part, "_hf_hook") for part in inner.modules()):
        raise InputError(
            f"model must have its weights in memory, got {absent[0]} on the meta device"
        )
    own, given = twin(inner), {*inner.modules()}
    for part in {*own.modules()} - given:
        part.training = False
        for name, layer in list(part.named_children()):
            if hasattr(layer, "base_layer") and hasattr(layer, "merged"):
                setattr(part, name, _merged(layer))
    return own


def _inside(model: Any) -> nn.Module:
    """The model inside one of PEFT, if the two give the same results."""
    base, why = model.base_model, ""
    active = [model.peft_config[name] for name in model.active_adapters]
    if virtual := sum(getattr(each, "num_virtual_tokens", None) or 0 for each in active):
        why = f"its {virtual} virtual tokens would be missing"
    elif any(getattr(each, "alora_invocation_tokens", None) for each in active):
        why = "it is active after some tokens only"
    else:
        try:
            base = base.model
            inputs = {"input_ids": torch.arange(4, device=base.device)[None]}
            if base.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = inputs["input_ids"]
            with torch.no_grad(), evaluating(model):
                whole, part = (each(**inputs)[0] for each in (model, base))
            if whole.shape != part.shape or (whole - part).abs().max() > 1e-4 * part.abs().max():
                why = "it changes more than the layers inside"
        except Exception as error:
            why = told(error)
    if why:
        kinds = ", ".join(str(getattr(each.peft_type, "value", each.peft_type)) for each in active)
        raise InputError(
            f"model must run without what PEFT adds around it, got {kinds}: {why}. To leave the"
            " adapter out, give get_base_model()"
        )
    return base


def _merged(layer: Any) -> nn.Module:
    """A layer with the weights that an adapted layer runs now; itself if it is quantized."""
    if not all(weight.is_floating_point() for weight in layer.get_base_layer().parameters()):
        return layer
    layer = copy.deepcopy(layer)
    is_on = not getattr(layer, "disable_adapters", False)
    if is_on != layer.merged:
        (layer.merge if is_on else layer.unmerge)()
    return layer.get_base_layer()
