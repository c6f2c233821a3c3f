"""Attention of models that are not causal, as transformers itself returns it.

TransformerLens has hooks for few of them, so `output_attentions` reads them: bidirectional models
(BERT) and encoder-decoders (T5), whose three kinds of attention have separate names.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, quoted, told
from interp.kinds.targets import NONE
from interp.memory import refuse_beyond
from interp.models import Model, attention_layers, cheap_forward, evaluating
from interp.models.families import text_config, windows
from interp.models.finite import refuse_not_finite
from interp.models.rows import rows_by_length, segments_of
from interp.models.switches import eager
from interp.patterns.tensor import AttentionPatterns, Ran

_COPIES = 3
"""Copies of all patterns: as returned, in float32 without padding, and those kept."""

_OFF = 0.01
"""Largest error of a row's sum, in 16 bits."""


def attention_of(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    *,
    stack: str | None = None,
    decoder_tokens: Int[Tensor, "batch query"] | None = None,
    segments: Int[Tensor, "batch pos"] | None = None,
) -> list[Float[Tensor, "batch head query key"]]:
    """Every layer's attention on `tokens`, in float32; rows and columns of padding are 0.

    Rows of equal length run together and others apart, so that no padding is ever run: in some
    models padding changes the attention of other tokens.

    Args:
        model: A model that is not causal.
        tokens: Input of the model, or of its encoder; -1 is padding, on the right.
        stack: Attention of an encoder-decoder: `encoder`, `decoder` or `cross`.
        decoder_tokens: Input of the decoder, for its own and for cross-attention.
        segments: Number of the text that each token belongs to (`token_type_ids`).
    """
    rows, keys = tokens.shape
    pairs = model.layers_of(None) * keys**2
    if decoder_tokens is not None:
        length = decoder_tokens.shape[1]
        pairs += model.layers_of("decoder") * length * (length + keys)
    refuse_beyond(
        "patterns",
        4 * _COPIES * rows * model.n_heads * pairs,
        "give fewer rows or tokens; fewer layers need no less, since all are returned together",
    )
    queries = tokens if decoder_tokens is None else decoder_tokens
    key_tokens = queries if stack == "decoder" else tokens
    patterns: list[Tensor] = []
    for (size, *rest), group in rows_by_length(tokens, decoder_tokens).items():
        inputs = {"input_ids": tokens[group, :size]}
        if decoder_tokens is not None:
            inputs["decoder_input_ids"] = decoder_tokens[group, : rest[0]]
        for name, ids in list(inputs.items()):
            inputs[name.replace("input_ids", "attention_mask")] = torch.ones_like(ids)
        if segments is not None:
            inputs["token_type_ids"] = segments[group, :size]
        found = _returned(model, inputs, stack)
        shape = (len(tokens), found[0].shape[1], queries.shape[1], key_tokens.shape[1])
        patterns = patterns or [found[0].new_zeros(shape) for _ in found]
        for pattern, part in zip(patterns, found, strict=True):
            pattern[group, :, : part.shape[2], : part.shape[3]] = part
    return patterns


def _returned(model: Model, inputs: dict[str, Tensor], stack: str | None) -> list[Tensor]:
    """Attention that transformers returns for rows without padding, checked, in float32."""
    inner: Any = model.inner.get_encoder() if stack == "encoder" else model.inner
    name = "attentions" if stack in (None, "encoder") else f"{stack}_attentions"
    who = f"{model.name}, a {type(model.inner).__name__}"
    on_device = {each: ids.to(model.device) for each, ids in inputs.items()}
    with torch.no_grad(), evaluating(inner), eager(inner):
        try:
            outputs = inner(**on_device, output_attentions=True, **cheap_forward(inner))
            found: Any = getattr(outputs, name, None)
            found = found if isinstance(found, tuple | list) else (found,)
        except Exception as error:  # Whisper needs sound, X-MOD a language.
            raise InputError(
                f"model must run on these token ids, got {who}: {told(error)}"
            ) from error
    read = inputs["input_ids"]
    queries = inputs.get("decoder_input_ids", read)
    keys = queries if stack == "decoder" else read
    shapes = [tuple(each.shape) if torch.is_tensor(each) else () for each in found]
    wanted = (len(read), model.heads_of(stack), queries.shape[1], keys.shape[1])
    if shapes != [wanted] * model.layers_of(stack):
        raise InputError(
            f"model must return attention [batch, head, query, key] {wanted} from each of"
            f" {model.layers_of(stack)} layers, got {quoted(shapes)} from {who}"
        )
    patterns = [attention.float() for attention in found]
    for layer, pattern in enumerate(patterns):
        refuse_not_attention(pattern, model, layer)
        if stack == "decoder" and pattern.triu(1).any():
            raise InputError(
                f"decoder must be causal, got {who}, which looks ahead in layer {layer}"
            )
    return patterns


def refuse_not_attention(
    pattern: Float[Tensor, "batch head query key"], model: Model, layer: int
) -> None:
    """Refuse a layer's weights that are not finite, negative, or do not sum to 1."""
    refuse_not_finite(pattern, model, layer)
    above = pattern.sum(-1) - 1
    off = (above if model.learned_sinks else above.abs()).max().item()
    if model.has_sinks(layer) and (pattern[:, :, 0, 0] == 1).all():  # GraniteSWA
        raise InputError(
            f"model must return attention that its learned sinks have a share of, got {model.name},"
            " which returns it without: use scan_heads, which computes their share"
        )
    least = pattern.min().item()
    if least < 0 or off > _OFF:  # Scores (SqueezeBERT), or parts of blocks (BigBird).
        raise InputError(
            f"model must return attention probabilities, got {model.name}, a"
            f" {type(model.inner).__name__}: in layer {layer} a weight is {least:.3g}, and a row"
            f" sums to {off:.3g} off 1"
        )


def plain_patterns(
    model: Model,
    inputs: Any,
    layers: Any,
    how: dict[str, bool],
    *,
    stack: str | None,
    decoder_inputs: Any,
) -> AttentionPatterns:
    """`interp.attention_patterns` of a model that is not causal; `how` is for `Model.rows_of`."""
    kinds = ("encoder", "decoder", "cross") if model.direction == "encoder-decoder" else (None,)
    if stack not in kinds or (decoder_inputs is not None) != (stack in kinds[1:]):
        raise InputError(
            f"stack must be {' or '.join(map(str, kinds))} for {model.name}, with decoder_inputs"
            f" for decoder and cross only, got {quoted(stack)}"
        )
    segments = segments_of(inputs) if isinstance(inputs, Mapping) else None
    if segments is not None:
        inputs = {name: inputs[name] for name in inputs if name != "token_type_ids"}
    read = queried = model.rows_of(inputs, **how)
    tokens = queries = read.tokens
    decoded = None
    if decoder_inputs is not None:
        queried = model.rows_of(decoder_inputs, **how, decoder=True)
        decoded = queries = queried.tokens
        if len(decoded) != len(tokens):
            raise InputError(
                f"decoder_inputs must have a row for each of {len(tokens)}, got {len(decoded)}"
            )
    wanted = attention_layers(model, layers, stack)
    found = attention_of(model, tokens, stack=stack, decoder_tokens=decoded, segments=segments)
    cross, widths = stack == "cross", model.windows
    if stack == "decoder":  # T5Gemma has settings for each stack.
        widths = windows(text_config(model.inner, "decoder"), model.layers_of("decoder"))
    ran = Ran(
        tokens=queries,
        layers=tuple(wanted),
        texts=texts_of(model, queries),
        special=model.special,
        causal=stack == "decoder",
        windows=None if cross else tuple(widths[layer] for layer in wanted),
        stack=stack,
        template=queried.template if queried.template.any() else None,
        run_in=model.dtype_name,
        key_tokens=tokens if cross else None,
        key_texts=texts_of(model, tokens) if cross else None,
    )
    return AttentionPatterns.of(torch.stack([found[layer].cpu() for layer in wanted]), ran)


def texts_of(model: Model, tokens: Int[Tensor, "batch pos"]) -> list[list[str]]:
    """Texts of each row's tokens, without padding."""
    return [model.texts_of(row[row != NONE]) for row in tokens]
