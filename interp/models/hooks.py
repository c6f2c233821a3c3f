"""Attention patterns out of a running model.

`run` sends token ids through a model and passes on each layer's pattern as soon as it exists, so
that memory holds one layer's patterns at a time; `attention_patterns` keeps them all.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from traceback import walk_tb
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, checked, told
from interp.kinds.targets import NONE
from interp.memory import refuse_beyond
from interp.models import Model, attention_layers, cheap_forward, evaluating, load_model
from interp.models.finite import refuse_not_finite
from interp.models.model import check_heads
from interp.models.plain import attention_of, plain_patterns, texts_of
from interp.models.rows import rows_by_length, to_run
from interp.patterns.tensor import AttentionPatterns, Ran

LOG = logging.getLogger("interp")

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
    _compare(model)
    real = (tokens != NONE).to(model.device)
    silent = set(wanted)

    def look(layer: int, pattern: Tensor, hook: Any) -> None:
        silent.discard(layer)
        check_heads(model, layer, pattern.shape[1])
        rows = torch.where(real[:, None, :, None], pattern.float(), 0)
        refuse_not_finite(rows, model, layer)
        if rows.triu(1).any():
            raise InputError(f"model must be causal, got {model.name}, which looks ahead")
        visit(layer, rows)

    _forward(model, tokens, {_PATTERN.format(layer): partial(look, layer) for layer in wanted})
    if silent:
        raise InputError(f"{model.name} must show attention in layers {sorted(silent)}, got none")


@checked
def attention_patterns(
    model: Any,
    inputs: Any,
    layers: Sequence[int] | None = None,
    *,
    bos: bool = True,
    stack: str | None = None,
    decoder_inputs: Any = None,
) -> AttentionPatterns:
    """Every head's attention on `inputs`, from hooks or, where not causal, from transformers.

    Args:
        model: A `Model`, or anything that `load_model` takes.
        inputs: A text, several texts, token ids or the output of a tokenizer, as for
            `Model.to_tokens`. Padding on either side comes after the tokens in the result. Rows
            of equal length run together and others apart: in some models rotary angles depend
            on the longest row (`longrope`), and no padding is ever run.
        layers: Numbers of layers; all if left out.
        bos: Whether a text opens with BOS (in a model that is not causal: gets all special tokens
            that its tokenizer adds).
        stack: Attention of an encoder-decoder: `encoder`, `decoder`, or `cross`, whose queries
            are the decoder's and whose keys are the encoder's.
        decoder_inputs: Inputs of the decoder, for `decoder` and `cross`, like `inputs`; a text
            follows the decoder's start token.

    Returns:
        `[layer, batch, head, query, key]` in float32 on the CPU, rows over `key` summing to
        1 (to less where `learned_sinks`), with attributes such as `tokens`, `texts`, `layers`
        and `causal`. It takes `4 * layers * batch * heads * pos ** 2` bytes; for scores only,
        use `interp.scan_heads`.

    Raises:
        InputError: If the patterns would not fit in memory (estimated before anything runs), or
            TransformerLens' hooks cannot run the model.

    Example:
        >>> attention_patterns("gpt2", "The cat sat on the cat", layers=[5])  # doctest: +SKIP
    """
    model = load_model(model)
    if model.direction != "causal" or stack is not None or decoder_inputs is not None:
        return plain_patterns(
            model, inputs, layers, bos=bos, stack=stack, decoder_inputs=decoder_inputs
        )
    tokens = model.to_tokens(inputs, bos=bos)
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

    for (size,), rows in rows_by_length(tokens).items():
        run(model, tokens[rows, :size], partial(keep, rows), layers=layers)
    ran = Ran(
        tokens=tokens,
        layers=tuple(order),
        texts=texts_of(model, tokens),
        special=model.special,
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
        _forward(model, tokens, {name: partial(keep, name) for name in names})
        absent = [name for name in names if name not in seen]
    if absent:
        raise InputError(f"model must have {absent[0]}, got {model.name}, which has none")
    return {name: seen[name] for name in names}


_COMPARED: WeakSet[Model] = WeakSet()


def _compare(model: Model) -> None:
    """Warn, once for a model, if TransformerLens gives different results for it.

    TransformerLens rebuilds what it hooks, by rules for each architecture and release. On a few
    tokens, its patterns and logits are compared with the model's own. Values that are not finite
    are refused where they first appear.
    """
    if model.plain is None or model in _COMPARED:
        return
    ids = model.vocabulary[: min(8, model.n_ctx)][None].to(model.device)
    seen: list[Tensor] = []
    names = [_PATTERN.format(layer) for layer in attention_layers(model, None)]
    hooks = dict.fromkeys(names, lambda pattern, hook: seen.append(pattern.float()))
    logits = _forward(model, ids, hooks, returns="logits")[:, -1].float()
    with torch.no_grad(), evaluating(model.plain):
        own = model.plain(ids, output_attentions=True)
    theirs = own.logits.float()
    by_logits = (logits - theirs[:, -1]).abs().max() / theirs.abs().max()
    returned = [each.float() for each in own.attentions or () if each is not None]
    off = [
        (a - b).abs().max().item()
        for a, b in (zip(seen, returned) if len(seen) == len(returned) else ())
        if a.shape == b.shape and b.min() >= 0 and b.sum(-1).max() < 1.01  # Falcon returns scores.
    ]
    by_pattern = max(filter(math.isfinite, off), default=0.0)
    least, least_of_logits = (1e-4, 1e-3) if model.dtype_name == "float32" else (5e-2, 5e-2)
    if by_pattern >= least or (by_logits.isfinite() and by_logits >= least_of_logits):
        LOG.warning(
            "TransformerLens gives different results for %s, a %s: attention differs by up to"
            " %.2g, logits by %.1f %%. Either its scores are very large, or its patterns by hooks"
            " are wrong",
            *(model.name, type(model.inner).__name__, by_pattern, 100 * by_logits),
        )
    _COMPARED.add(model)


def _forward(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    hooks: dict[str, Callable[..., None]],
    *,
    returns: str | None = None,
) -> Any:
    """Run in evaluation mode with eager attention; restore the caller's settings afterwards."""
    bridge = model.bridge
    inner: Any = bridge.original_model
    implementation = inner.config._attn_implementation
    ids = to_run(tokens).to(model.device)
    with ExitStack() as back, torch.no_grad(), evaluating(bridge):
        for module in bridge.modules():
            if hasattr(module, "_pattern"):  # Kept by some, although nothing reads it.
                back.enter_context(module.register_forward_hook(_drop))
        if implementation != "eager":
            back.callback(inner.set_attn_implementation, implementation)
            inner.set_attn_implementation("eager")
        back.enter_context(bridge.hooks(fwd_hooks=[*hooks.items()]))
        try:
            return bridge(ids, return_type=returns, **cheap_forward(model.inner))
        except Exception as error:
            beyond = error.__traceback__ and error.__traceback__.tb_next
            if any(frame.f_code.co_filename == __file__ for frame, _ in walk_tb(beyond)):
                raise  # A hook raised it.
            # The bridge wraps some architectures that it cannot run.
            raise InputError(
                f"model must run under TransformerLens' hooks, got {model.name}, a"
                f" {type(model.inner).__name__}: {told(error)}"
            ) from error


def _drop(module: Any, inputs: Any, output: Any) -> None:
    module._pattern = None
