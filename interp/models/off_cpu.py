"""Attention on another device compared with the CPU: some devices give wrong numbers silently."""

import logging
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from interp.errors import told
from interp.memory import refuse_beyond
from interp.models.switches import evaluating
from interp.models.wrapped import twin

LOG = logging.getLogger("interp")

_LENGTHS = (2, 9, 33)
"""Tokens in each run: a fault may depend on the shape."""


def off_cpu(model: Any, name: str) -> float | None:
    """How far a model's attention is from that of the same weights on the CPU.

    The largest difference of an attention probability, in [0, 1], on a few tokens; None on the
    CPU, and where the comparison failed. `model` is of transformers and returns its attention. A
    warning reports a difference beyond rounding, and a failed comparison.
    """
    if model.device.type == "cpu":
        return None
    what = f"attention of {name} on {model.device.type}"
    try:
        if any(hasattr(part, "_hf_hook") for part in model.modules()):
            raise ValueError("its weights are in several places")
        size = sum(t.nbytes for t in chain(model.parameters(), model.buffers()))
        refuse_beyond("its weights on the CPU", size, "compare a smaller model")
        off = largest_difference(model, twin(model, "cpu"))
    except Exception as error:  # Weights packed for a device fail in many ways.
        LOG.warning("%s could not be compared with the CPU: %s", what, told(error))
        return None
    if off > (1e-3 if model.dtype == torch.float32 else 5e-2):
        LOG.warning("%s differs from the CPU by up to %.2g: use the CPU", what, off)
    return off


def largest_difference(model: Any, other: Any) -> float:
    """Largest difference of an attention probability; NaN or infinity in either counts as 1."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 99
    pairs = chain.from_iterable(
        zip(_attention(model, n), _attention(other, n)) for n in _LENGTHS if n < longest
    )
    return max((a - b).abs().nan_to_num(nan=1.0, posinf=1.0).max().item() for a, b in pairs)


def _attention(model: Any, length: int) -> list[Tensor]:
    """Attention in all layers of all stacks, on two rows of `length` tokens."""
    ids = torch.arange(2 * length).view(2, length) % model.config.get_text_config().vocab_size
    inputs = {"input_ids": ids.to(model.device)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad(), evaluating(model):
        outputs = model(**inputs, output_attentions=True)
    stacks = [layers for name, layers in outputs.items() if name.endswith("attentions")]
    return [each.float().cpu() for layers in stacks for each in layers if each is not None]
