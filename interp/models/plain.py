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

from interp.errors import InputError, told
from interp.kinds.targets import NONE
from interp.memory import refuse_beyond
from interp.models import Model, cheap_forward, evaluating
from interp.models.finite import refuse_not_finite
from interp.models.kinds import windows
from interp.models.layers import attention_layers
from interp.models.rows import rows_by_length, segments_of
from interp.patterns.tensor import AttentionPatterns

Stack = Literal["encoder", "decoder", "cross"]
"""Of an encoder-decoder: which attention is meant."""

_COPIES = 3
"""Of all patterns: as they are returned, in float32 without padding, and those that are kept."""

_OFF = 0.01
"""How far the sum of a row may be from 1, as in `interp.patterns.tensor.check_pattern`: 16 bits
round."""

Layers = tuple[Float[Tensor, "batch head query key"], ...]


def attention_of(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    *,
    stack: Stack | None = None,
    decoder_tokens: Int[Tensor, "batch query"] | None = None,
    segments: Int[Tensor, "batch pos"] | None = None,
) -> Layers:
    """Every layer's attention on `tokens`, in float32; rows and columns of padding are 0.

    Rows of one length are run together and others apart, so that no padding is ever run: what
    some models make of it changes the attention beside it.

    Args:
        model: One that is not causal.
        tokens: What it reads, or its encoder; -1 is padding, on the right.
        stack: For an encoder-decoder.
        decoder_tokens: For its decoder and for cross-attention.
        segments: Which text each token belongs to (`token_type_ids`); all to one if left out.

    Raises:
        InputError: If the attention of all layers would not fit in memory (estimated before
            anything is run), the model does not return any, or some of it is not finite, no
            share of all attention, or of a decoder that looks ahead.
    """
    _refuse_too_many(model, tokens, decoder_tokens)
    queries = tokens if decoder_tokens is None else decoder_tokens
    keys = queries if stack == "decoder" else tokens
    patterns: list[Tensor] = []
    for (size, *rest), rows in rows_by_length(tokens, decoder_tokens).items():
        read = {"": tokens[rows, :size]}
        if decoder_tokens is not None:
            read["decoder_"] = decoder_tokens[rows, : rest[0]]
        inputs = {f"{whose}input_ids": ids for whose, ids in read.items()}
        inputs |= {f"{whose}attention_mask": torch.ones_like(ids) for whose, ids in read.items()}
        if segments is not None:
            inputs["token_type_ids"] = segments[rows, :size]
        found = _returned(model, inputs, stack)
        shape = (len(tokens), found[0].shape[1], queries.shape[1], keys.shape[1])
        patterns = patterns or [found[0].new_zeros(shape) for _ in found]
        for pattern, part in zip(patterns, found, strict=True):
            pattern[rows, :, : part.shape[2], : part.shape[3]] = part
    return tuple(patterns)


def _returned(model: Model, inputs: dict[str, Tensor], stack: Stack | None) -> Layers:
    """What transformers returns of rows without padding, in float32, held against what it must be.

    Raises:
        InputError: As `attention_of`.
    """
    own: Any = model.inner.get_encoder() if stack == "encoder" else model.inner
    name = "attentions" if stack in (None, "encoder") else f"{stack}_attentions"
    given = {each: ids.to(model.device) for each, ids in inputs.items()}
    with torch.no_grad(), evaluating(own):
        try:
            returned = own(**given, output_attentions=True, **cheap_forward(own))
            found = getattr(returned, name, None)
        except Exception as error:
            # Whisper listens where others read, X-MOD wants a language, some want more tokens.
            raise InputError(
                f"{model.name}, a {type(model.inner).__name__}, could not be run on these token"
                f" ids: {told(error)}"
            ) from error
    read = inputs["input_ids"]
    queries = inputs.get("decoder_input_ids", read)
    keys = queries if stack == "decoder" else read
    shape = (len(read), queries.shape[1], keys.shape[1])
    if not found or any(not torch.is_tensor(a) or _all_but_heads(a) != shape for a in found):
        raise InputError(
            f"model must return the attention of every query to every key, got {model.name}, a"
            f" {type(model.inner).__name__}, which does not"
        )
    heads = sorted({attention.shape[1] for attention in found})
    if len(heads) > 1 or len(found) != model.layers_of(stack):
        raise InputError(
            f"model must return as many heads from each of {model.layers_of(stack)} layers, got"
            f" {model.name}, a {type(model.inner).__name__}, with {len(found)} of"
            f" {' or '.join(map(str, heads))}"
        )
    patterns = tuple(attention.float() for attention in found)
    for layer, pattern in enumerate(patterns):
        refuse_not_finite(pattern, layer, model.dtype_name)
        _refuse_no_shares(model, layer, pattern, causal=stack == "decoder")
    return patterns


def _all_but_heads(attention: Tensor) -> tuple[int, ...]:
    return (len(attention), *attention.shape[-2:])


def _refuse_no_shares(
    model: Model, layer: int, pattern: Float[Tensor, "batch head query key"], *, causal: bool
) -> None:
    """Refuse what is no attention: scores (SqueezeBERT), or parts of blocks (BigBird)."""
    what = f"got {model.name}, a {type(model.inner).__name__}"
    above = pattern.sum(-1) - 1
    off = (above if model.learned_sinks else above.abs()).max().item()
    if pattern.min() < 0 or off > _OFF:
        raise InputError(
            f"model must return shares of all attention, {what}, which returns no attention"
            f" probabilities in layer {layer}: a weight is {pattern.min().item():.3g}, and a row"
            f" sums to {off:.3g} off 1"
        )
    if causal and pattern.triu(1).any():
        raise InputError(
            f"the decoder of a model must be causal, {what}, which looks ahead in layer {layer}"
        )


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
    if stack != "cross":
        widths = _decoder_windows(model) if stack == "decoder" else model.windows
        patterns.windows = tuple(widths[layer] for layer in wanted)
    if stack == "cross":
        patterns.key_tokens, patterns.key_texts = tokens, _texts(model, tokens)
    return patterns


def _decoder_windows(model: Model) -> tuple[int | None, ...]:
    """As `Model.windows`, which are the encoder's: some (T5Gemma) set the two stacks apart."""
    config = model.inner.config
    return windows(getattr(config, "decoder", config), model.layers_of("decoder"))


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


def _texts(model: Model, tokens: Int[Tensor, "batch pos"]) -> list[list[str]]:
    return [model.texts_of(row[row != NONE]) for row in tokens]
