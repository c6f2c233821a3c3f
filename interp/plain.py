"""Attention of models that are not causal, as transformers itself returns it.

TransformerLens has hooks for few of them, so they are read by `output_attentions`: those that look
both ways (BERT and its like) and encoder-decoders (T5 and its like), whose three kinds of attention
are called by name and never mixed.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.finite import refuse_not_finite
from interp.memory import refuse_beyond
from interp.models import Model, evaluating
from interp.models.layers import attention_layers
from interp.models.rows import segments_of
from interp.patterns import AttentionPatterns
from interp.targets import NONE

Stack = Literal["encoder", "decoder", "cross"]
"""Of an encoder-decoder: which attention is meant."""

_COPIES = 3
"""Of all patterns: as they are returned, in float32 without padding, and those that are kept."""

Layers = tuple[Float[Tensor, "batch head query key"], ...]


def attention_of(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    *,
    stack: Stack | None = None,
    decoder_tokens: Int[Tensor, "batch query"] | None = None,
    segments: Int[Tensor, "batch pos"] | None = None,
) -> Layers:
    """Every layer's attention on `tokens`, in float32; rows of padding are 0.

    Args:
        model: One that is not causal.
        tokens: What it reads, or its encoder; -1 is padding, on the right.
        stack: For an encoder-decoder.
        decoder_tokens: For its decoder and for cross-attention.
        segments: Which text each token belongs to (`token_type_ids`); all to one if left out.

    Raises:
        InputError: If the attention of all layers would not fit in memory (estimated before
            anything is run), the model does not return any, or some of it is not finite.
    """
    _refuse_too_many(model, tokens, decoder_tokens)
    own: Any = model.inner
    inputs = _masked(tokens, model, "")
    if segments is not None:
        inputs["token_type_ids"] = segments.to(model.device)
    queries, name = tokens, "attentions"
    if stack == "encoder":
        own = own.get_encoder()
    elif decoder_tokens is not None:
        inputs |= _masked(decoder_tokens, model, "decoder_")
        queries, name = decoder_tokens, f"{stack}_attentions"
    with torch.no_grad(), evaluating(own):
        try:
            found = getattr(own(**inputs, output_attentions=True), name, None)
        except (TypeError, AttributeError) as error:
            # Whisper and its like listen where others read.
            raise InputError(
                f"model must read token ids, got {model.name}, a {type(model.inner).__name__}:"
                f" {' '.join(str(error).split())[:120]}"
            ) from error
    keys = queries if stack == "decoder" else tokens
    shape = (len(tokens), queries.shape[1], keys.shape[1])
    if not found or any((len(a), *a.shape[-2:]) != shape for a in found):
        raise InputError(
            f"model must return the attention of every query to every key, got {model.name}, a"
            f" {type(model.inner).__name__}, which does not"
        )
    real = (queries != NONE).to(model.device)[:, None, :, None]
    patterns = tuple(torch.where(real, attention.float(), 0) for attention in found)
    for layer, pattern in enumerate(patterns):
        refuse_not_finite(pattern, layer, model.dtype_name)
    return patterns


def plain_patterns(
    model: Model,
    inputs: Any,
    layers: Any = None,
    *,
    bos: bool = True,
    stack: str | None = None,
    decoder_inputs: Any = None,
) -> AttentionPatterns:
    """`interp.attention_patterns` of a model that is not causal.

    Raises:
        InputError: If `stack` does not name a stack where there are several, or names one where
            there are none, `decoder_inputs` are there in vain or not there, or have another number
            of rows; and as `interp.attention_patterns`.
    """
    stack = _stack(model, stack, decoder_inputs)
    segments = segments_of(inputs) if isinstance(inputs, Mapping) else None
    if segments is not None:
        inputs = {name: inputs[name] for name in inputs if name != "token_type_ids"}
    tokens = model.to_tokens(inputs, bos=bos)
    decoded = None
    if decoder_inputs is not None:
        decoded = model.to_tokens(decoder_inputs, bos=bos, decoder=True)
        if len(decoded) != len(tokens):
            raise InputError(
                f"decoder_inputs must have a row for each of {len(tokens)}, got {len(decoded)}"
            )
    wanted = attention_layers(model, layers, stack)
    found = attention_of(model, tokens, stack=stack, decoder_tokens=decoded, segments=segments)
    kept = torch.stack([found[layer].cpu() for layer in wanted])
    patterns = kept.as_subclass(AttentionPatterns)
    patterns.tokens = tokens if decoded is None else decoded
    patterns.texts = _texts(model, patterns.tokens)
    patterns.layers, patterns.special = tuple(wanted), model.special
    patterns.learned_sinks, patterns.stack = False, stack
    patterns.causal = stack == "decoder"
    if stack == "cross":
        patterns.key_tokens, patterns.key_texts = tokens, _texts(model, tokens)
    return patterns


def _refuse_too_many(
    model: Model, tokens: Int[Tensor, "batch pos"], decoded: Int[Tensor, "batch query"] | None
) -> None:
    """Refuse what transformers would return, which is every layer's attention in every stack."""
    rows, keys = tokens.shape
    pairs = model.layers_of(None) * keys**2
    if decoded is not None:
        queries = decoded.shape[1]
        pairs += model.layers_of("decoder") * queries * (queries + keys)
    refuse_beyond(
        "patterns",
        4 * _COPIES * rows * model.n_heads * pairs,
        "give fewer rows or tokens; fewer layers need no less, since all are returned together",
    )


def _stack(model: Model, stack: str | None, decoder_inputs: Any) -> Stack | None:
    named = get_args(Stack)
    if model.direction != "encoder-decoder":
        if stack is not None or decoder_inputs is not None:
            raise InputError(
                f"stack and decoder_inputs must be left out, got them for {model.name},"
                " which is no encoder-decoder"
            )
        return None
    if stack not in named:
        raise InputError(
            f"stack must be one of {', '.join(named)} for an encoder-decoder, got {stack!r}"
        )
    if (stack == "encoder") != (decoder_inputs is None):
        rule = "left out" if stack == "encoder" else "given"
        raise InputError(f"decoder_inputs must be {rule} for stack {stack!r}")
    return named[named.index(stack)]


def _masked(tokens: Int[Tensor, "batch pos"], model: Model, whose: str) -> dict[str, Any]:
    tokens = tokens.to(model.device)
    return {
        f"{whose}input_ids": tokens.clamp(min=0),
        f"{whose}attention_mask": (tokens != NONE).long(),
    }


def _texts(model: Model, tokens: Int[Tensor, "batch pos"]) -> list[list[str]]:
    return [model.texts_of(row[row != NONE]) for row in tokens]
