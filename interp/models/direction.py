"""Which way a model's attention looks, by its settings, and the class its weights are for."""

from typing import Any, Literal

import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

Direction = Literal["causal", "both ways", "encoder-decoder"]


def direction(config: Any, architecture: str | None) -> Direction:
    """Which way a model of that class looks.

    Args:
        config: Its settings.
        architecture: The name of its class; None where the settings do not tell it.
    """
    encoder = (architecture or "").endswith("EncoderModel")
    if getattr(config, "is_encoder_decoder", False) and not encoder:
        return "encoder-decoder"
    # XLM and Flaubert are told by `causal` that no query is to look ahead.
    if getattr(config, "is_decoder", False) or getattr(config, "causal", False):
        return "causal"
    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # Decoders too are run without a causal mask where their settings say so (embedders).
    open_both_ways = getattr(config, "is_causal", True) is False
    return "both ways" if masked or encoder or open_both_ways else "causal"


def class_for(config: Any) -> Any:
    """The class of transformers that loads the weights which belong to these settings."""
    listed = getattr(config, "architectures", None)
    named = listed[0] if listed and isinstance(listed, list) else None
    way = direction(config, named)
    if way == "causal":
        return transformers.AutoModelForCausalLM
    own = getattr(transformers, str(named), None)
    if isinstance(own, type) and getattr(own, "config_class", None) is type(config):
        return own
    if way == "both ways":
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForSeq2SeqLM


def longest(model: nn.Module, config: Any) -> int | None:
    """How many tokens a model that is not causal takes; None: no limit."""
    size = getattr(config, "max_position_embeddings", None)
    places = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    # RoBERTa and its like count positions from after the padding's id.
    before = getattr(places, "padding_idx", None)
    return size if size is None or before is None else size - before - 1
