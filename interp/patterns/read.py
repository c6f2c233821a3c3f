"""Attention patterns from any source: `read_patterns`.

Files, caches by hook name, what transformers or nnsight return, plain arrays: `take` finds the
layers and the token ids, in the order of the layers' numbers. A source is recognized by its
shape, so that the library it comes from need not be installed.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, checked, quoted
from interp.heads import Head
from interp.kinds.targets import NONE
from interp.patterns.archives import ARRAYS, TEXTS, read_file
from interp.patterns.tensor import (
    FUSED,
    NO_HEAD,
    AttentionPatterns,
    Ran,
    as_layers,
    as_tensor,
    as_tokens,
    check_pattern,
)

IDS = ("tokens", "input_ids", "token_ids", "sequences")
"""Names of token ids; `sequences` is that of generation."""

WHOLE = ("patterns", "pattern", "attentions", "attention", "attn")
"""Names of all layers together."""

STACKS = ("encoder_attentions", "decoder_attentions", "cross_attentions")

_OUTPUTS = {"logits", "last_hidden_state", "past_key_values", "cache"}
"""Names that show a model's output, also where it has no attention."""

_MASK = "attention_mask"
_WORDS = (
    "(?:layers?|blocks?|h|l|arr|model|transformer|self|attn|attentions?|patterns?|hook|weights"
    "|probs|[_./ ])*"
)
_LAYER = re.compile(f"{_WORDS}([0-9]{{1,9}}){_WORDS}", re.IGNORECASE | re.ASCII)


@checked
def read_patterns(
    source: Any,
    tokens: Any = None,
    *,
    learned_sinks: bool | None = None,
    causal: bool | None = None,
) -> AttentionPatterns:
    """Check attention patterns of any source, as `attention_patterns` returns them.

    Args:
        source: A `.npy`, `.npz` or `.safetensors` file, an array or a list of one per layer,
            arrays by name (`layer0`, `0`, `blocks.0.attn.hook_pattern`: a TransformerLens
            cache), what a transformers model or its `generate` returned with
            `output_attentions=True`, or values that nnsight saved. An array is
            `[head, query, key]`, `[batch, head, query, key]` or
            `[layer, batch, head, query, key]`, of any float type; with one row of tokens
            `[layer, head, query, key]` too. Fewer queries than keys are a row's last queries.
        tokens: Token ids that were run, `[pos]` or `[batch, pos]`, -1 for padding; or what
            a tokenizer returned; or a file of them (also `.json` or `.txt`). Not needed where
            the source has them, as `tokens` or `input_ids`.
        learned_sinks: Whether rows may sum to less than 1, as for `interp.classify_heads`.
        causal: Whether no query looks ahead, as for `interp.classify_heads`.

    Returns:
        `[layer, batch, head, query, key]` in float32 with its `tokens` and `layers`;
        its `texts` are the ids where no tokenizer is known. Rows of padding are 0. A warning
        lists heads that are not finite, which stay as they are.

    Example:
        >>> import torch
        >>> even = torch.ones(2, 4, 4).tril() / torch.arange(1, 5)[:, None]
        >>> read_patterns(even, [0, 5, 6, 7]).shape  # One layer, one row, two heads.
        torch.Size([1, 1, 2, 4, 4])
    """
    ran = take(source, tokens)
    options = {"learned_sinks": learned_sinks, "causal": causal}
    ran = replace(ran, **{name: one for name, one in options.items() if one is not None})
    shape, *others = {tuple(layer.shape) for layer in ran.arrays}
    if others:
        heads = "or call classify_heads or gallery, which take layers of several numbers of heads"
        got = f"{[shape, *others]}: give the layers of one shape, {heads}"
        raise InputError(f"patterns must have one shape a layer, got {got}")
    stack = torch.empty(len(ran.arrays), *shape, dtype=torch.float32)
    ran, wrong = copied(ran, stack.unbind())
    if wrong:
        warnings.warn(f"these heads are not finite: {', '.join(map(str, wrong))}", stacklevel=3)
    texts = ran.texts or [[f"<{i}>" for i in row[row != NONE].tolist()] for row in ran.tokens]
    return AttentionPatterns.of(stack, replace(ran, texts=[list(row) for row in texts]))


def copied(ran: Ran, layers: Sequence[Tensor] | None = None) -> tuple[Ran, list[Head]]:
    """The run with checked copies of its layers on the CPU, and the heads that are not finite.

    The copies are written to `layers`, if given; their rows of padding are 0.
    """
    ran = replace(ran, tokens=ran.tokens.cpu())
    if layers is None:
        layers = [torch.empty(layer.shape, dtype=torch.float32) for layer in ran.arrays]
    names = ("learned_sinks", "causal", "key_tokens", "first_query")
    known = {name: getattr(ran, name) for name in names}
    wrong, count = [], 0
    for copy, layer, number in zip(layers, ran.arrays, ran.layers, strict=True):
        copy.copy_(layer.detach())
        finite = check_pattern(copy, ran.tokens, where=f"layer {number}", **known)
        copy.masked_fill_((ran.tokens == NONE)[:, None, :, None], 0)
        wrong += [Head(number, head) for head in (~finite).nonzero().flatten().tolist()]
        count += len(finite)
    if len(wrong) == count:
        raise InputError(NO_HEAD)
    return replace(ran, arrays=layers, checked=True), wrong


def take(source: Any, tokens: Any = None) -> Ran:
    """The layers and token ids of any source that `read_patterns` accepts, not checked yet.

    What a buffer of fixed size has beyond the tokens is left out if it is 0.
    """
    if isinstance(source, Ran):
        return source if tokens is None else replace(source, tokens=_ids(tokens, source.tokens))
    source = saved(source)
    if isinstance(source, str | os.PathLike):
        source = read_file(source, "patterns", ARRAYS)
    if isinstance(source, AttentionPatterns):
        ids = _ids(tokens, source.tokens if len(source.tokens) else None)
        arrays = as_layers(source.as_subclass(Tensor), len(ids))
        if source.key_tokens is None:
            arrays = [_cropped(layer, ids.shape[1]) for layer in arrays]
        texts = source.texts if tokens is None else None
        template = source.ran.template
        template = None if template is None else template[:, : ids.shape[1]]
        return replace(source.ran, tokens=ids, texts=texts, arrays=arrays, template=template)
    carried, numbers = None, None
    if _is_mapping(source):
        carried = source if any(name in source for name in IDS) else None
        source, numbers = by_layer(source)
    source, ids = saved(source), _ids(tokens, carried)
    if _is_generated(source):
        source = _stitched(source)
        # The last token was chosen and never run.
        length = source[0].shape[-1]
        ids = ids[:, :length] if ids.shape[1] == length + 1 else ids
    arrays = [_cropped(layer, ids.shape[1]) for layer in as_layers(source, len(ids))]
    arrays, first = _completed(arrays, ids)
    return Ran(
        tokens=ids,
        layers=tuple(range(len(arrays)) if numbers is None else numbers),
        arrays=arrays,
        numbered=numbers is not None,
        first_query=first,
        run_in=str(arrays[0].dtype).removeprefix("torch."),
    )


def _ids(given: Any, carried: Any) -> Int[Tensor, "batch pos"]:
    """The given token ids, or else those of the source; both must agree."""
    if given is None and carried is None:
        raise InputError("tokens must be given: these patterns do not carry their token ids")
    ids = token_ids(carried if given is None else given)
    if given is not None and carried is not None:
        _refuse_differing(ids, token_ids(carried), "those that came with the patterns")
    return ids


def _refuse_differing(ids: Tensor, others: Tensor, which: str) -> None:
    """Refuse ids that differ from others of the same rows, padding aside."""
    length = min(ids.shape[1], others.shape[1])
    one, other = ids[:, :length].cpu(), others[:, :length].cpu()
    if len(one) != len(other) or ((one != other) & (one != NONE) & (other != NONE)).any():
        raise InputError(f"tokens must be the same as {which}, got others: leave one of them out")


def token_ids(tokens: Any) -> Int[Tensor, "batch pos"]:
    """Token ids from an array, a list, what a tokenizer returned, or a file of any of these.

    An `attention_mask`, where there is one, says what is padding.
    """
    tokens = saved(tokens)
    if isinstance(tokens, str | os.PathLike):
        tokens = read_file(tokens, "tokens", ARRAYS + TEXTS)
    if not _is_mapping(tokens):
        return as_tokens(tokens)
    names = list(tokens.keys())
    named = [name for name in IDS if name in tokens] or names
    if named is names and len(names) != 1:
        raise InputError(f"tokens must be named tokens or input_ids, got {quoted(names)}")
    ids = as_tokens(tokens[named[0]])
    for name in named[1:]:
        _refuse_differing(ids, as_tokens(tokens[name]), f"the {name}")
    if _MASK not in tokens:
        return ids
    mask = as_tensor(saved(tokens[_MASK]), f"{_MASK} must be an array")
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != ids.shape:
        shapes = f"{tuple(ids.shape)}, got {tuple(mask.shape)}"
        raise InputError(f"{_MASK} must be of the tokens' shape {shapes}")
    return as_tokens(torch.where(mask.to(ids.device) == 0, NONE, ids))


def by_layer(named: Any) -> tuple[Any, list[int] | None]:
    """The arrays of a mapping: all layers together, or one for each layer, with the numbers."""
    names = [name for name in named.keys() if name not in (*IDS, _MASK)]  # noqa: SIM118
    if "beam_indices" in names:
        raise InputError("patterns must be of one run, got a beam search; run the model once")
    whole = [name for name in names if name in WHOLE]
    if not whole and (stacks := [name for name in names if name in STACKS]):
        raise InputError(f"patterns must be of one stack, got {', '.join(stacks)}: give one")
    hooked = [name for name in names if isinstance(name, str) and name.endswith("hook_pattern")]
    numbered = {name: layer_number(name) for name in hooked or names}
    known = {name: number for name, number in numbered.items() if number is not None}
    if len(whole) == 1 and not known:
        return named[whole[0]], None
    if not known and not hooked and _OUTPUTS & {*names}:
        raise InputError(FUSED)
    unknown = [name for name in numbered if name not in known]
    if unknown or not known:
        rule = "named by layer, as layer0, 0 or blocks.0.attn.hook_pattern"
        raise InputError(f"patterns must be {rule}, got {quoted(unknown)}")
    if [*known] == ["arr_0"]:  # numpy's name of an array without one.
        return named["arr_0"], None
    order = sorted(known, key=lambda name: known[name])
    if len(set(known.values())) < len(known):
        raise InputError(f"patterns must have one array a layer, got {quoted(order)}")
    layers = [as_tensor(saved(named[name]), f"{name} must be an array") for name in order]
    layers = [layer[None] if layer.ndim == 3 else layer for layer in layers]
    if any(layer.ndim != 4 for layer in layers):
        shapes = quoted([tuple(layer.shape) for layer in layers])
        raise InputError(f"patterns of a layer must be [head, query, key], got shapes {shapes}")
    return layers, [known[name] for name in order]


def layer_number(name: Any) -> int | None:
    """The number in a layer's name; None for what names no layer's attention.

    Example:
        >>> [layer_number(name) for name in ("layer10", "blocks.2.attn.hook_pattern", 3)]
        [10, 2, 3]
        >>> layer_number("blocks.2.mlp.hook_post")
    """
    found = _LAYER.fullmatch(str(name))
    return int(found[1]) if found else None


def saved(value: Any) -> Any:
    """The `value` of a proxy that nnsight saved; anything else as it is."""
    if type(value) in (list, tuple):
        return type(value)(saved(item) for item in value)
    inner = getattr(value, "value", value)
    return value if inner is value else saved(inner)


def carries_tokens(source: Any) -> bool:
    """Whether a source has its token ids, or is a file, which may have them."""
    named = _is_mapping(source) and any(name in source for name in IDS)
    return named or hasattr(source, "tokens") or isinstance(source, str | os.PathLike)


def _is_mapping(source: Any) -> bool:
    """Whether arrays go by name: also in an ActivationCache, but not in a pandas column."""
    named = hasattr(source, "keys") and hasattr(source, "__getitem__")
    return isinstance(source, Mapping) or (named and getattr(source, "ndim", 0) != 1)


def _cropped(layer: Tensor, length: int) -> Tensor:
    """Without what a buffer of fixed size has after the tokens, if that is all 0."""
    small = min(layer.shape[2:]) < length
    if small or layer[:, :, length:].any() or layer[..., length:].any():
        return layer
    return layer[:, :, :length, :length]


def _completed(arrays: Sequence[Tensor], ids: Tensor) -> tuple[Sequence[Tensor], int]:
    """Square arrays of those that hold a row's last queries alone, and the first of these queries.

    Rows of the queries before it are 0.
    """
    length = ids.shape[1]
    queries, *others = {layer.shape[2] for layer in arrays}
    if others or queries >= length or any(layer.shape[3] != length for layer in arrays):
        return arrays, 0
    if (ids[:, length - queries :] == NONE).any():
        got = f"padding among the last {queries} tokens"
        raise InputError(f"patterns of the last queries must be of tokens, got {got}")
    above = (0, 0, length - queries, 0)
    return [torch.nn.functional.pad(layer, above) for layer in arrays], length - queries


def _is_generated(attention: Any) -> bool:
    """Whether layers are nested in steps, as `generate(output_attentions=True)` does."""
    nested = isinstance(attention, list | tuple) and len(attention) > 0
    if not nested or not all(isinstance(step, list | tuple) for step in attention):
        return False
    return all(getattr(one, "ndim", 4 * (one is None)) == 4 for step in attention for one in step)


def _stitched(steps: Sequence[Sequence[Any]]) -> list[Float[Tensor, "batch head query pos"]]:
    """One `[batch, head, query, pos]` a layer from what each step of generation returned.

    The first step has a row for each token of the prompt, each later step a row for the token
    before it. With a cache the keys grow by one a step; without one each step has all rows
    again; a cache of fixed size has columns of 0 for tokens to come.
    """
    counts = {len(step) for step in steps}
    if 0 in counts or any(layer is None for step in steps for layer in step):
        raise InputError(FUSED)
    if len(counts) > 1:
        raise InputError(f"patterns must have all layers at each step, got {sorted(counts)}")
    return [_stitch(layer, [step[layer] for step in steps]) for layer in range(len(steps[0]))]


def _stitch(layer: int, steps: Sequence[Any]) -> Float[Tensor, "batch head query pos"]:
    blocks: list[Tensor] = []
    done = 0
    for number, step in enumerate(steps):
        block = as_tensor(step, "patterns must be arrays of numbers").detach()
        place = f"step {number} of layer {layer}; run the model once on the whole text instead"
        queries, keys = block.shape[2:]
        if not blocks and block[..., queries:].any():
            done = keys - queries  # The steps before these were left out.
        if blocks and queries == keys == done + 1:
            blocks, done = [], 0  # All rows again: there was no cache.
        done += queries
        grows = not blocks or block.shape[:2] == blocks[0].shape[:2]
        if not grows or keys < done:
            got = f"{tuple(block.shape)} at {place}"
            raise InputError(f"patterns of generation must grow by one key a step, got {got}")
        if block[..., done:].any():  # So are rows of left padding in a cache of fixed size.
            rule = f"be 0 after token {done}, got more at {place}"
            raise InputError(f"patterns of generation must {rule}")
        blocks.append(block)
    # A negative pad cuts the unfilled columns of a cache of fixed size.
    rows = [torch.nn.functional.pad(block, (0, done - block.shape[3])) for block in blocks]
    return torch.cat(rows, dim=2)
