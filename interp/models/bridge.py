"""TransformerLens' view of a model: the only file that imports it, and only when hooks are used."""

from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import (
    build_bridge_from_module,
    detect_tokenizer_bos_eos,
)

from interp.errors import InputError, told
from interp.models.switches import evaluating, is_ours
from interp.models.wrapped import twin


def build(model: Any, tokenizer: Any, name: str) -> TransformerBridge:
    """A bridge around a twin of `model`, which stays as it is, whatever interrupts this."""
    architecture = type(model).__name__
    hooks = [
        hook
        for part in model.modules()
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    if any(map(is_ours, hooks)):
        raise InputError("model.bridge must be built before a block that changes the model")
    try:
        # Some adapters draw random numbers while they build.
        with torch.random.fork_rng(devices=[]), evaluating(model):
            copy = twin(model)
            bridge = build_bridge_from_module(
                copy, architecture, hf_config=copy.config, model_name=name
            )
        if tokenizer is not None:
            # With a tokenizer, the builder would load another one by name, perhaps from the hub.
            bridge.tokenizer = tokenizer
            ends = detect_tokenizer_bos_eos(tokenizer)
            bridge.cfg.tokenizer_prepends_bos, bridge.cfg.tokenizer_appends_eos = ends
    except Exception as error:
        raise InputError(
            f"model must be one that TransformerLens can open, got {name}, a {architecture}:"
            f" {told(error)}"
        ) from error
    return bridge
