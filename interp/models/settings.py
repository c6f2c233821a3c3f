"""A model's settings: numbers that no model has are refused by name, before weights are read."""

from collections.abc import Iterator, Mapping
from typing import Any

from interp.errors import InputError, is_number, whole

_MOST = 2**31 - 1
"""No size, length or factor of a model comes near it; products of those beyond overflow."""

_WHOLE = dict.fromkeys(
    (
        *("hidden_size", "n_embd", "d_model", "d_kv", "vocab_size", "word_embed_proj_dim"),
        *("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"),
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
        *("encoder_attention_heads", "decoder_attention_heads"),
        *("num_key_value_heads", "num_kv_heads"),
        *("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
        *("num_decoder_layers", "encoder_layers", "decoder_layers"),
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "head_dim"),
        "attention_chunk_size",
    ),
    1,
) | dict.fromkeys(("sliding_window", "window_size", "local_attention"), 0)
"""Whole numbers that are read here, or that the shapes of weights are made of: the least of each.

A window of 0 is none.
"""

_POSITIVE = ("rope_theta", "rotary_emb_base", "rotary_embedding_base", "query_pre_attn_scalar")
_POSITIVE += ("attn_logit_softcapping", "final_logit_softcapping", "factor")

_SPECIAL = ("bos", "eos", "pad", "cls", "sep")
"""Special tokens that settings and tokenizers name."""

_NOT_NEGATIVE = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps", "norm_epsilon")


def check_settings(settings: Mapping[Any, Any]) -> None:
    """Refuse settings, at any depth, with a number that no model has.

    What is null or a list is left to the family that it belongs to; which ids a model has is said
    by `beyond_vocabulary`.

    Raises:
        InputError: If there is one; the message names the setting and its value.

    Example:
        >>> check_settings({"text_config": {"num_attention_heads": 0}})
        Traceback (most recent call last):
        interp.errors.InputError: num_attention_heads must be from 1 to 2147483647, got 0
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            check_settings(value)
        elif value is None:
            continue
        elif str(name).endswith("_token_id"):
            for i in value if isinstance(value, list) else [value]:
                whole(name, i, least=-_MOST, most=_MOST)
        elif isinstance(value, list | tuple):
            continue
        elif name == "head_dim" and value == 0 and settings.get("kv_lora_rank"):
            continue  # Latent attention makes no use of it.
        elif name in _WHOLE:
            number = int(value) if isinstance(value, float) and value.is_integer() else value
            whole(name, number, least=_WHOLE[name], most=_MOST)
        elif name in _POSITIVE and not (is_number(value) and 0 < value <= _MOST):
            raise InputError(f"{name} must be above 0 and at most {_MOST}, got {value!r}")
        elif name in _NOT_NEGATIVE and not (is_number(value) and 0 <= value <= _MOST):
            raise InputError(f"{name} must be from 0 to {_MOST}, got {value!r}")


def special_ids(named: Any) -> Iterator[tuple[str, int]]:
    """The special tokens that settings or a tokenizer name: each one's setting, and its id."""
    for end in _SPECIAL:
        ids = getattr(named, setting := f"{end}_token_id", None)
        for i in ids if isinstance(ids, list) else [ids]:
            if i is not None:
                yield setting, i


def beyond_vocabulary(named: Any, n_ids: int) -> list[str]:
    """What special tokens are named although a model of `n_ids` ids has no such id, in words."""
    return [f"{name} {i}" for name, i in special_ids(named) if not 0 <= i < n_ids]
