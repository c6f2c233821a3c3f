"""Attention patterns out of a running model.

`run` sends token ids through a model and passes on each layer's pattern as soon as it exists, so
that memory holds one layer's patterns at a time; `attention_patterns` keeps them all.
"""

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.errors import InputError, checked, quoted, told
from interp.kinds.targets import NONE
from interp.memory import refuse_beyond
from interp.models import Model, attention_layers, cheap_forward, evaluating, load_model
from interp.models.families import attention_modules, body
from interp.models.model import check_heads, warn_of_bridge_hooks
from interp.models.plain import attention_of, plain_patterns, refuse_not_attention, texts_of
from interp.models.rows import rows_by_length, to_run
from interp.models.switches import eager
from interp.patterns.tensor import AttentionPatterns, Ran

_PATTERN = "blocks.{}.attn.hook_pattern"

_AT_WORK = 5
"""Tensors of the size of one layer's patterns that exist while a layer attends."""


def run(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    visit: Callable[[int, Float[Tensor, "batch head query key"]], None],
    *,
    layers: Sequence[int] | None = None,
) -> None:
    """Run `tokens` once and call `visit(layer, pattern)` with each layer's pattern.

    The pattern is float32, checked, and dropped when `visit` returns. Rows of padding (-1, on the
    right) are 0.
    """
    wanted = attention_layers(model, layers)
    if model.direction == "both ways":
        found = attention_of(model, tokens)
        for layer in wanted:
            check_heads(model, layer, found[layer].shape[1])
            visit(layer, found[layer])
        return
    real = (tokens != NONE).to(model.device)
    silent = set(wanted)

    def look(layer: int, pattern: Tensor, hook: Any = None) -> None:
        if layer not in wanted:
            return
        if layer not in silent:  # HRM runs its layers again and again.
            raise InputError(
                f"attention must be computed once in a layer, got again in {layer} of {model.name}"
            )
        silent.remove(layer)
        check_heads(model, layer, pattern.shape[1])
        refuse_not_attention(pattern := pattern.float(), model, layer)
        rows = torch.where(real[:, None, :, None], pattern, 0)
        if rows.triu(1).any():
            raise InputError(f"model must be causal, got {model.name}, which looks ahead")
        visit(layer, rows)

    if model.given is not None:
        hooks = {_PATTERN.format(layer): partial(look, layer) for layer in wanted}
        _forward(model, tokens, hooks)
    else:
        _attend(model, to_run(tokens).to(model.device), look)
    if silent:
        raise InputError(
            f"model must return attention from each attention module, got none from"
            f" layers {sorted(silent)} of {model.name}"
        )


def _attend(
    model: Model, ids: Int[Tensor, "batch pos"], look: Callable[[int, Tensor], None]
) -> None:
    """Run the model with eager attention, and `look` at the weights that each layer returns."""
    warn_of_bridge_hooks(model)
    plain: Any = model.plain
    # A module may serve several layers: its calls are theirs in order.
    layers: dict[nn.Module, deque[int]] = {}
    for layer, module in attention_modules(plain).items():
        layers.setdefault(module, deque()).append(layer)
    raised: list[Exception] = []

    def ask(module: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, options | {"output_attentions": True}

    def after(module: nn.Module, args: Any, output: Any) -> None:
        layer = layers[module][0]
        layers[module].rotate(-1)
        try:
            if (weights := _weights_in(output, model, layer, ids)) is not None:
                look(layer, weights)
        except Exception as error:
            raised.append(error)
            raise

    with ExitStack() as back, torch.no_grad(), evaluating(plain), eager(plain):
        for module in layers:
            if "output_attentions" in inspect.signature(module.forward).parameters:
                back.enter_context(module.register_forward_pre_hook(ask, with_kwargs=True))
            back.enter_context(module.register_forward_hook(after, prepend=True))
        try:
            runs = body(plain)
            runs(ids, **cheap_forward(runs))
        except Exception as error:
            if error in raised:
                raise
            raise InputError(
                f"model must run on these token ids, got {model.name}, a"
                f" {type(plain).__name__}: {told(error)}"
            ) from error


def _weights_in(
    output: Any, model: Model, layer: int, ids: Tensor
) -> Float[Tensor, "batch head query key"] | None:
    """The weights among what an attention module returned; None where there are no tensors."""
    returned = output[1:] if isinstance(output, tuple | list) else ()
    tensors = [each for each in returned if torch.is_tensor(each)]
    batch, length = ids.shape
    shapes = [tuple(each.shape) for each in tensors]
    for tensor, shape in zip(tensors, shapes, strict=True):
        if len(shape) == 4 and (shape[0], *shape[2:]) == (batch, length, length):
            return tensor
    if shapes:
        raise InputError(
            f"model must return attention [batch, head, query, key]"
            f" {(batch, model.n_heads, length, length)}, got {quoted(shapes)} from layer {layer}"
            f" of {model.name}"
        )
    return None


@checked
def attention_patterns(
    model: Any,
    inputs: Any,
    layers: Sequence[int] | None = None,
    *,
    bos: bool = True,
    special_as_text: bool = False,
    stack: str | None = None,
    decoder_inputs: Any = None,
) -> AttentionPatterns:
    """Every head's attention on `inputs`, as the model itself computes it with eager attention.

    Args:
        model: A `Model`, or anything that `load_model` takes.
        inputs: A text, several texts, chat messages, token ids or the output of a tokenizer, as for
            `Model.to_tokens`. Padding on either side comes after the tokens in the result. Rows
            of equal length run together and others apart: in some models rotary angles depend
            on the longest row (`longrope`), and no padding is ever run.
        layers: Numbers of layers; all if left out.
        bos: Whether a text opens with BOS (in a model that is not causal: gets all special tokens
            that its tokenizer adds).
        special_as_text: Whether the name of a special token in a text is plain text.
        stack: Attention of an encoder-decoder: `encoder`, `decoder`, or `cross`, whose queries
            are the decoder's and whose keys are the encoder's.
        decoder_inputs: Inputs of the decoder, for `decoder` and `cross`, like `inputs`; a text
            follows the decoder's start token.

    Returns:
        `[layer, batch, head, query, key]` in float32 on the CPU, rows over `key` summing to
        1 (to less where `learned_sinks`), with attributes such as `tokens`, `texts`, `layers`,
        `causal` and `template`, the tokens that a chat template added. It takes
        `4 * layers * batch * heads * pos ** 2` bytes; for scores only, use `interp.scan_heads`.

    Raises:
        InputError: If the patterns would not fit in memory (estimated before anything runs), or
            the model returns no attention.

    Example:
        >>> attention_patterns("gpt2", "The cat sat on the cat", layers=[5])  # doctest: +SKIP
    """
    model = load_model(model)
    if model.direction != "causal" or stack is not None or decoder_inputs is not None:
        how = {"bos": bos, "special_as_text": special_as_text}
        return plain_patterns(
            model, inputs, layers, how, stack=stack, decoder_inputs=decoder_inputs
        )
    rows = model.rows_of(inputs, bos=bos, special_as_text=special_as_text)
    tokens = rows.tokens
    order = attention_layers(model, layers)
    batch, length = tokens.shape
    refuse_beyond(
        "patterns",
        4 * (len(order) + _AT_WORK) * batch * model.n_heads * length**2,
        "give fewer layers or tokens, or use interp.scan_heads, which keeps none",
    )
    patterns = torch.zeros(len(order), batch, model.n_heads, length, length, dtype=torch.float32)

    def keep(rows: list[int], layer: int, pattern: Tensor) -> None:
        size = pattern.shape[-1]
        for place, wanted in enumerate(order):
            if wanted == layer:
                patterns[place, rows, :, :size, :size] = pattern.cpu()

    for (size,), group in rows_by_length(tokens).items():
        run(model, tokens[group, :size], partial(keep, group), layers=layers)
    ran = Ran(
        tokens=tokens,
        layers=tuple(order),
        texts=texts_of(model, tokens),
        special=model.special,
        template=rows.template if rows.template.any() else None,
        run_in=model.dtype_name,
        learned_sinks=model.learned_sinks,
        windows=tuple(model.windows[layer] for layer in order),
        alibi_slopes=model.alibi_slopes,
    )
    return AttentionPatterns.of(patterns, ran)


def run_with(
    model: Model, tokens: Int[Tensor, "batch pos"], names: Sequence[str]
) -> dict[str, Tensor]:
    """Run `tokens` once, and return the value at each of the named hooks, in their order."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor, hook: Any) -> None:
        seen[name] = value.detach()

    absent = [name for name in names if name not in model.bridge.hook_dict]
    if not absent:
        try:
            _forward(model, tokens, {name: partial(keep, name) for name in names})
        except Exception as error:
            raise InputError(
                f"model must run under TransformerLens' hooks, got {model.name}, a"
                f" {type(model.inner).__name__}: {told(error)}"
            ) from error
        absent = [name for name in names if name not in seen]
    if absent:
        raise InputError(f"model must have {absent[0]}, got {model.name}, which has none")
    return {name: seen[name] for name in names}


def _forward(
    model: Model, tokens: Int[Tensor, "batch pos"], hooks: dict[str, Callable[..., None]]
) -> None:
    """Run TransformerLens' view of the model in evaluation mode, with eager attention."""
    bridge = model.bridge
    inner: Any = bridge.original_model
    ids = to_run(tokens).to(model.device)
    with ExitStack() as back, torch.no_grad(), evaluating(bridge), eager(inner):
        for module in bridge.modules():
            if hasattr(module, "_pattern"):  # Kept by some, although nothing reads it.
                back.enter_context(module.register_forward_hook(_drop))
        back.enter_context(bridge.hooks(fwd_hooks=[*hooks.items()]))
        bridge(ids, return_type=None, **cheap_forward(inner))


def _drop(module: Any, inputs: Any, output: Any) -> None:
    module._pattern = None
