"""Attention on another device, held against the CPU's: some have been wrong without an error."""

import logging
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from interp.errors import said
from interp.memory import refuse_beyond
from interp.models.switches import evaluating
from interp.models.wrapped import twin

LOG = logging.getLogger("interp")

_LENGTHS = (2, 9, 33)
"""Tokens that are run, each length by itself: some shapes alone may come out wrong."""


def off_cpu(model: Any, name: str) -> float | None:
    """How far a model's attention is from that of the same weights on the CPU.

    A few tokens are run on both, as transformers runs them. A warning tells of what is beyond
    rounding, and of a model that could not be compared.

    Args:
        model: Of transformers, with attention that is returned (`eager`).
        name: For the warning.

    Returns:
        The largest difference of an attention probability, in [0, 1]; None on the CPU, and where
        there is nothing to compare with.
    """
    if model.device.type == "cpu":
        return None
    what = f"attention of {name} on {model.device.type}"
    try:
        if any(hasattr(part, "_hf_hook") for part in model.modules()):
            raise ValueError("its weights are in several places")
        size = sum(t.nbytes for t in chain(model.parameters(), model.buffers()))
        refuse_beyond("its weights there", size, "a smaller model can be compared")
        off = largest_difference(model, twin(model, "cpu"))
    except Exception as error:
        # Weights that are packed for a device, and the like, fail in ways of their own.
        LOG.warning("%s could not be held against the CPU's: %s", what, said(error))
        return None
    if off > (1e-3 if model.dtype == torch.float32 else 5e-2):
        LOG.warning("%s is off the CPU's by up to %.2g: use the CPU", what, off)
    return off


def largest_difference(model: Any, other: Any) -> float:
    """Largest difference of an attention probability between two models, in [0, 1].

    What is no number in either counts as 1.
    """
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    lengths = [n for n in _LENGTHS if longest is None or n < longest]
    pairs = [pair for n in lengths for pair in zip(_attention(model, n), _attention(other, n))]
    return max((a - b).abs().nan_to_num(nan=1.0, posinf=1.0).max().item() for a, b in pairs)


def _attention(model: Any, length: int) -> list[Tensor]:
    """Attention in all layers, of all stacks, on two rows of so many tokens."""
    ids = torch.arange(2 * length).view(2, length) % model.config.get_text_config().vocab_size
    given = {"input_ids": ids.to(model.device)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = given["input_ids"]
    with torch.no_grad(), evaluating(model):
        found = model(**given, output_attentions=True)
    named = [layers for name, layers in found.items() if name.endswith("attentions")]
    return [each.float().cpu() for layers in named for each in layers if each is not None]
