"""Attention patterns from any source: one way in for all of them, `read_patterns`.

Files, caches by hook name, what transformers or nnsight hand over, plain arrays: `take` finds
the layers and the token ids in it, in the order of the layers' numbers. Nothing here needs the
library that a thing comes from: it is known by its shape.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError, told, truth
from interp.kinds.targets import NONE
from interp.patterns.archives import read_arrays, read_tokens
from interp.patterns.generated import is_generated, stitched
from interp.patterns.tensor import (
    FUSED,
    AttentionPatterns,
    as_layers,
    as_tensor,
    as_tokens,
    check_pattern,
)

IDS = ("tokens", "input_ids", "token_ids", "sequences")
"""Names that token ids go by; `sequences` is what generation calls them."""

WHOLE = ("patterns", "pattern", "attentions", "attention", "attn")
"""Names of all layers together."""

STACKS = ("encoder_attentions", "decoder_attentions", "cross_attentions")

_OUTPUTS = {"logits", "last_hidden_state", "past_key_values", "cache"}
"""Names by which what a model returned is known where it has no attention."""

_KNOWN = ("learned_sinks", "causal", "windows", "alibi_slopes", "special", "stack")
_KNOWN += ("key_tokens", "key_texts")
"""What `AttentionPatterns` know of themselves."""

_MASK = "attention_mask"
_HOOK = "hook_pattern"
_WORD = re.compile(
    "layers?|blocks?|h|l|arr|model|transformer|self|attn|attentions?|patterns?|hook|weights|probs"
)
"""What a layer's name may consist of, besides its number."""


@dataclass(frozen=True)
class Layers:
    """Attention by layer, as its source had it, with the token ids it belongs to.

    Attributes:
        arrays: `[batch, head, query, key]` for each layer, in the source's own number format;
            not checked yet.
        numbers: The layers' own numbers.
        tokens: The token ids that were run; -1 is padding.
        learned_sinks: As `AttentionPatterns` has it, where the source says; so the rest.
        causal: Whether no query looks ahead.
        windows: For each layer how far it may look; None where the source tells of none.
        alibi_slopes: Of each head; None where the source tells of none.
        special: Ids of special tokens.
        texts: The text of each token, for each row; None where they are not known.
        stack: Which of an encoder-decoder's.
        key_tokens: Of cross-attention, the token ids of the text that is looked at.
        key_texts: Their texts.
        named: Whether the source numbers its layers; else they count from 0.
    """

    arrays: Sequence[Tensor]
    numbers: Sequence[int]
    tokens: Int[Tensor, "batch pos"]
    learned_sinks: bool = False
    causal: bool = True
    windows: Sequence[int | None] | None = None
    alibi_slopes: Sequence[float] | None = None
    special: Collection[int] = frozenset()
    texts: Sequence[Sequence[str]] | None = None
    stack: str | None = None
    key_tokens: Int[Tensor, "batch key"] | None = None
    key_texts: Sequence[Sequence[str]] | None = None
    named: bool = True


def read_patterns(
    source: Any,
    tokens: Any = None,
    *,
    learned_sinks: bool | None = None,
    causal: bool | None = None,
) -> AttentionPatterns:
    """Attention patterns of any source as `attention_patterns` gives them, checked.

    Args:
        source: A `.npy`, `.npz` or `.safetensors` file, an array or a list of one per layer,
            arrays by name (`layer0`, `0`, `blocks.0.attn.hook_pattern`: a TransformerLens
            cache), what a transformers model or its `generate` returned with
            `output_attentions=True`, or values that nnsight saved. An array is
            `[head, query, key]`, `[batch, head, query, key]` or
            `[layer, batch, head, query, key]`, of any float type.
        tokens: The token ids that were run, `[pos]` or `[batch, pos]`, -1 for padding; or what
            a tokenizer returned; or a file of them (also `.json` or `.txt`). May be left out
            where the source has them, as `tokens` or `input_ids`, and cannot be others then.
        learned_sinks: As for `interp.classify_heads`.
        causal: As there.

    Returns:
        `[layer, batch, head, query, key]` in float32, which knows its `tokens` and `layers`;
        its `texts` are the ids where no tokenizer is known. Rows of padding are 0.

    Raises:
        InputError: If there is no attention in it, names match no layer, or it is no attention
            over the tokens, as `interp.classify_heads` says; or `learned_sinks` or `causal` is
            neither True nor False.
    """
    taken = take(source, tokens)
    learned_sinks = truth(
        "learned_sinks", taken.learned_sinks if learned_sinks is None else learned_sinks
    )
    causal = truth("causal", taken.causal if causal is None else causal)
    shapes = {layer.shape for layer in taken.arrays}
    if len(shapes) > 1:
        raise InputError(
            "patterns of all layers must have one shape to stand in one array, got"
            f" {' and '.join(str(tuple(s)) for s in sorted(shapes))}; classify_heads takes them"
        )
    stack = torch.empty(len(taken.arrays), *next(iter(shapes)), dtype=torch.float32)
    ids = taken.tokens.cpu()
    for own, layer, number in zip(stack, taken.arrays, taken.numbers):
        own.copy_(layer.detach())
        check_pattern(
            own,
            ids,
            where=f"layer {number}",
            learned_sinks=learned_sinks,
            causal=causal,
            key_tokens=taken.key_tokens,
        )
    stack.masked_fill_((ids == NONE)[None, :, None, :, None], 0)
    patterns = stack.as_subclass(AttentionPatterns)
    patterns.tokens, patterns.layers = ids, tuple(taken.numbers)
    texts = taken.texts or [[f"<{i}>" for i in row[row != NONE].tolist()] for row in ids]
    patterns.texts = [list(row) for row in texts]
    patterns.learned_sinks, patterns.causal = learned_sinks, causal
    patterns.windows = None if taken.windows is None else tuple(taken.windows)
    patterns.alibi_slopes = None if taken.alibi_slopes is None else tuple(taken.alibi_slopes)
    patterns.special, patterns.stack = frozenset(taken.special), taken.stack
    patterns.key_tokens = taken.key_tokens
    if taken.key_texts is not None:
        patterns.key_texts = [list(row) for row in taken.key_texts]
    return patterns


def take(source: Any, tokens: Any = None) -> Layers:
    """The layers and the token ids in `source`, which may be all that `read_patterns` takes.

    What is beyond the tokens of a buffer of fixed size and 0 is left out.

    Raises:
        InputError: If there is no attention in it, names match no layer, or token ids are
            neither given nor in it, or both and differ.
    """
    if isinstance(source, Layers):
        return source if tokens is None else replace(source, tokens=_ids(tokens, source.tokens))
    source = saved(source)
    if isinstance(source, str | os.PathLike):
        source = read_arrays(source)
    numbers, known = None, {}
    if _is_mapping(source):
        carried = source if any(name in source for name in IDS) else None
        source, numbers = by_layer(source)
    else:
        carried = getattr(source, "tokens", None)
        numbers = getattr(source, "layers", None)
        if isinstance(source, AttentionPatterns):
            known = {name: getattr(source, name) for name in _KNOWN}
        if tokens is None:
            known["texts"] = getattr(source, "texts", None)
    if tokens is None and carried is None:
        raise InputError("tokens must be given: these patterns do not carry their token ids")
    source, ids = saved(source), _ids(tokens, carried)
    if is_generated(source):
        source = stitched(source)
        # The last token was chosen and never run.
        length = source[0].shape[-1]
        ids = ids[:, :length] if ids.shape[1] == length + 1 else ids
    arrays = as_layers(source)
    if known.get("key_tokens") is None:
        arrays = [_cropped(layer, ids.shape[1]) for layer in arrays]
    named = numbers is not None
    numbers = list(numbers) if named else list(range(len(arrays)))
    return Layers(arrays, numbers, ids, named=named, **known)


def _ids(given: Any, carried: Any) -> Int[Tensor, "batch pos"]:
    """The token ids that are given, or else those that came with the patterns.

    Raises:
        InputError: If there are both and they differ.
    """
    if given is None or carried is None:
        return token_ids(carried if given is None else given)
    ids = token_ids(given)
    _refuse_differing(ids, token_ids(carried), "those that came with the patterns")
    return ids


def _refuse_differing(
    ids: Int[Tensor, "batch pos"], others: Int[Tensor, "batch length"], which: str
) -> None:
    """Refuse two lots of ids of the same rows that are not the same; padding says nothing."""
    length = min(ids.shape[1], others.shape[1])
    one, other = ids[:, :length].cpu(), others[:, :length].cpu()
    if len(one) != len(other) or ((one != other) & (one != NONE) & (other != NONE)).any():
        raise InputError(f"tokens must be the same as {which}, got others: leave one of them out")


def token_ids(tokens: Any) -> Int[Tensor, "batch pos"]:
    """Token ids from an array, a list, what a tokenizer returned, or a file of any of these.

    Where there is an `attention_mask`, it says what is padding.

    Raises:
        InputError: If there are none, they are no token ids, or two names hold different ones.
    """
    tokens = saved(tokens)
    if isinstance(tokens, str | os.PathLike):
        tokens = read_tokens(tokens)
    if not _is_mapping(tokens):
        return as_tokens(tokens)
    named = [name for name in IDS if name in tokens]
    names = list(tokens.keys())
    if not named and len(names) == 1:
        named = names
    if not named:
        raise InputError(f"tokens must be named tokens or input_ids, got {_listed(names)}")
    ids = as_tokens(tokens[named[0]])
    for name in named[1:]:
        _refuse_differing(ids, as_tokens(tokens[name]), f"the {name} beside them")
    if _MASK not in tokens:
        return ids
    mask = as_tensor(saved(tokens[_MASK]), f"{_MASK} must be an array")
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != ids.shape:
        raise InputError(
            f"{_MASK} must be of the tokens' shape {tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    return as_tokens(torch.where(mask.to(ids.device) == 0, NONE, ids))


def by_layer(named: Any) -> tuple[Any, list[int] | None]:
    """What is in a mapping as all layers together, or as one array for each layer's number.

    Raises:
        InputError: If names match no layer, or two the same.
    """
    names = [name for name in named.keys() if name not in (*IDS, _MASK)]  # noqa: SIM118
    if "beam_indices" in names:
        raise InputError(
            "patterns must be of one continued text, got a beam search, whose rows change"
            " places; run the model once on its result"
        )
    whole = [name for name in names if name in WHOLE]
    if not whole and (stacks := [name for name in names if name in STACKS]):
        raise InputError(
            f"patterns must be one kind of attention, got an encoder-decoder's"
            f" {', '.join(stacks)}: give one of them by name, as output.{stacks[0]}"
        )
    hooked = [name for name in names if isinstance(name, str) and name.endswith(_HOOK)]
    numbered = {name: layer_number(name) for name in hooked or names}
    known = {name: number for name, number in numbered.items() if number is not None}
    if len(whole) == 1 and not known:
        return named[whole[0]], None
    if not known and not hooked and _OUTPUTS & {*names}:
        raise InputError(FUSED)
    if unknown := [name for name in numbered if name not in known]:
        raise InputError(
            "patterns must be named by layer, as layer0, 0 or blocks.0.attn.hook_pattern,"
            f" got {_listed(unknown)}{_near(unknown)}"
        )
    if not known:
        raise InputError("patterns must hold arrays, got none")
    if len(known) == 1 and (only := next(iter(known))) == "arr_0":
        # What numpy calls an array that was given no name: all layers, if it has five axes.
        return named[only], None
    order = sorted(known, key=lambda name: known[name])
    for one, other in pairwise(order):
        if known[one] == known[other]:
            raise InputError(f"patterns must have one array a layer, got {one} and {other}")
    layers = [as_tensor(saved(named[name]), f"{name} must be an array") for name in order]
    layers = [layer[None] if layer.ndim == 3 else layer for layer in layers]
    for name, layer in zip(order, layers):
        if layer.ndim != 4:
            raise InputError(
                f"{name} must be [head, query, key] or [batch, head, query, key],"
                f" got shape {tuple(layer.shape)}"
            )
    return layers, [known[name] for name in order]


def layer_number(name: Any) -> int | None:
    """The number in a layer's name; None for what names no layer's attention.

    Example:
        >>> [layer_number(name) for name in ("layer10", "blocks.2.attn.hook_pattern", 3)]
        [10, 2, 3]
        >>> layer_number("blocks.2.mlp.hook_post")
    """
    if isinstance(name, int) and not isinstance(name, bool):
        return name if name >= 0 else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_./ ]+", name):
        return None
    parts = re.findall(r"[a-z]+|[0-9]+", name.lower())
    numbers = [part for part in parts if part.isdigit()]
    words = [part for part in parts if not part.isdigit()]
    if len(numbers) != 1 or len(numbers[0]) > 9 or not all(_WORD.fullmatch(word) for word in words):
        return None
    return int(numbers[0])


def saved(value: Any) -> Any:
    """What a proxy that nnsight saved holds as its `value`; anything else as it is.

    Raises:
        InputError: If the proxy has none, since nothing was run or saved.
    """
    if type(value) in (list, tuple):
        return type(value)(saved(item) for item in value)
    try:
        inner = value.value
    except AttributeError:
        return value
    except Exception as error:  # Whatever a library raises where nothing was run.
        raise InputError(
            f"patterns must be run and saved, got a {type(value).__name__} without a value:"
            f" {told(error)}"
        ) from error
    return value if inner is value else saved(inner)


def carries_tokens(source: Any) -> bool:
    """Whether something brings its token ids with it, or is a file, which may."""
    if hasattr(source, "tokens") or isinstance(source, str | os.PathLike):
        return True
    return _is_mapping(source) and any(name in source for name in IDS)


def _is_mapping(source: Any) -> bool:
    """Whether arrays are asked for by name: an ActivationCache is no dict, and acts as one.

    A column of a pandas table does so too, and is an array.
    """
    return isinstance(source, Mapping) or (
        hasattr(source, "keys")
        and hasattr(source, "__getitem__")
        and getattr(source, "ndim", 0) != 1
    )


def _cropped(layer: Tensor, length: int) -> Tensor:
    """Without what a buffer of fixed size has beyond the tokens, where that is all 0."""
    if layer.shape[2] < length or layer.shape[3] < length:
        return layer
    beyond = bool(layer[:, :, length:].any() or layer[..., length:].any())
    return layer if beyond else layer[:, :, :length, :length]


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(repr(name)[:60] for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _near(names: Sequence[Any]) -> str:
    for name in map(str, names):
        number = (re.findall(r"\d+", name) or ["0"])[0]
        likely = [f"blocks.{number}.attn.{_HOOK}", f"layer{number}", *WHOLE]
        if close := get_close_matches(name, likely, 1):
            return f"; {close[0]} comes near"
    return ""
