"""Anyone's arrays, taken in and checked: attention patterns and the token ids they belong to."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, quoted, said, whole
from interp.kinds.targets import NONE, first_token, positions, within

MOST_LAYERS = 1000
"""Layers, and the heads in one, are numbered from 0 to one less."""


class AttentionPatterns(torch.Tensor):
    """Attention patterns `[layer, batch, head, query, key]`, float32, with what was run.

    It is a tensor; whatever is computed from it is a plain one. Rows of padding are 0. As text
    it is one line that says what it holds: `patterns[0]` shows numbers.

    Attributes:
        tokens: The token ids that were really run, `[batch, pos]`; -1 is padding.
        layers: The number of each layer.
        texts: The text of each token, for each row.
        learned_sinks: Whether the model learned sinks that are no key (gpt-oss): a row then
            sums to less than 1 by what went there.
        causal: Whether no query looks ahead.
        windows: For each layer how far back (or either way) the model lets it look, the query
            included; None for a layer without a limit, or for all where no model tells.
        alibi_slopes: What each head's scores lose per token of distance, where the model has ALiBi.
        special: The model's special ids.
        stack: Of an encoder-decoder `encoder`, `decoder` or `cross`; None for other models.
            `cross` is `[layer, batch, head, query=decoder, key=encoder]`, and its `tokens` and
            `texts` are the decoder's.
        key_tokens: For `cross`, the encoder's token ids.
        key_texts: For `cross`, their texts.
    """

    tokens: Int[Tensor, "batch pos"]
    layers: tuple[int, ...]
    texts: list[list[str]]
    learned_sinks: bool = False
    causal: bool = True
    windows: tuple[int | None, ...] | None = None
    alibi_slopes: tuple[float, ...] | None = None
    special: frozenset[int] = frozenset()
    stack: str | None = None
    key_tokens: Int[Tensor, "batch key"] | None = None
    key_texts: list[list[str]] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "AttentionPatterns":
        twin = self.as_subclass(torch.Tensor).clone().as_subclass(AttentionPatterns)
        for name, value in vars(self).items():
            setattr(twin, name, value)
        twin.tokens = self.tokens.clone()
        return twin

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """What it holds, in one line; the numbers as torch has them where that is not said."""
        if self.ndim != 5 or not {"tokens", "layers"} <= vars(self).keys():
            return super().__repr__(tensor_contents=tensor_contents)
        count, batch, heads = self.shape[:3]
        first = self.layers == tuple(range(count))
        layers = _counted(count, "layer") if first else _numbered(self.layers)
        read = _lengths(self.tokens)
        if self.key_tokens is not None:
            read += f" over {_lengths(self.key_tokens)}"
        notes = [self.stack] if self.stack else []
        notes += ["both ways"] * (not self.causal and self.stack != "cross")
        notes += ["learned sinks"] * self.learned_sinks
        parts = [
            f"{layers} of {_counted(heads, 'head')}",
            f"{_counted(batch, 'prompt')} of {read}",
            *notes,
            str(self.dtype).removeprefix("torch."),
            str(self.device),
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    # As for nn.Parameter: what is computed from it is a plain tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _numbered(layers: Sequence[int]) -> str:
    """Layers by number, those that follow each other as `3 to 7`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    named = [" to ".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in runs]
    beyond = f" and {len(named) - 8} more" if len(named) > 8 else ""
    if len(layers) == 1:
        return f"layer {named[0]}"
    return f"layers {', '.join(named[:8])}{beyond}, each"


def _lengths(tokens: Int[Tensor, "batch pos"]) -> str:
    """How many tokens rows have: `29 tokens`, or `3 to 29 tokens`."""
    counts = (tokens != NONE).sum(-1)
    least, most = int(counts.min()), int(counts.max())
    return _counted(most, "token") if least == most else f"{least} to {most} tokens"


def beginning(patterns: AttentionPatterns, most: int) -> AttentionPatterns:
    """The same of the first `most` tokens alone: attention among them, and to no others.

    Rows of causal patterns are whole; those of others lack what goes to later tokens.
    """
    cut = patterns.as_subclass(torch.Tensor)[..., :most, :most].as_subclass(AttentionPatterns)
    for name, value in vars(patterns).items():
        setattr(cut, name, value)
    cut.tokens, cut.texts = patterns.tokens[:, :most], [row[:most] for row in patterns.texts]
    if patterns.key_tokens is not None and patterns.key_texts is not None:
        cut.key_tokens = patterns.key_tokens[:, :most]
        cut.key_texts = [row[:most] for row in patterns.key_texts]
    return cut


FUSED = (
    "patterns must hold attention, got none: a fused attention kernel returns no weights; load the"
    ' model with attn_implementation="eager" and call it with output_attentions=True'
)


def as_tokens(tokens: Any) -> Int[Tensor, "batch pos"]:
    """Token ids `[batch, pos]` from `[pos]` or `[batch, pos]` of any integer kind.

    Raises:
        InputError: If they are not whole numbers from -1 (padding) up, in that shape; True and
            False are none; or a row is padding alone.
    """
    if isinstance(tokens, list | tuple):
        for one in _singly(tokens):  # There torch would take True for 1.
            whole("each of tokens", one, least=NONE, most=2**63 - 1)
    ids = as_tensor(tokens, "tokens must be [pos] or [batch, pos] token ids")
    if ids.ndim not in (1, 2) or ids.numel() == 0:
        raise InputError(
            "tokens must be [pos] or [batch, pos] with at least one token,"
            f" got shape {tuple(ids.shape)}"
        )
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"tokens must be whole numbers, got {ids.dtype}")
    if ids.dtype == torch.uint64 and (ids.long() < 0).any():
        raise InputError("tokens must be ids that a model can have, got one of 2 ** 63 or more")
    ids = ids.long()
    if ids.min() < NONE:
        raise InputError(f"tokens must be ids, or -1 for padding, got {ids.min().item()}")
    real = (ids != NONE).reshape(-1, ids.shape[-1])
    if not real.any(-1).all():
        row = int(real.any(-1).int().argmin())
        raise InputError(f"tokens must be more than padding in each row, got none in row {row}")
    ends = torch.nn.functional.pad(real.long(), (1, 1))
    if (ends.diff(dim=-1).abs().sum(-1) > 2).any():
        raise InputError("padding (-1) must be at the ends of a row, got it in the middle")
    return ids.reshape(-1, ids.shape[-1])


def as_layers(patterns: Any) -> Sequence[Float[Tensor, "batch head query key"]]:
    """One `[batch, head, query, key]` per layer, still in the caller's dtype.

    Raises:
        InputError: If there are none, or they have no such shape.
    """
    if isinstance(patterns, list | tuple):
        if not patterns or any(layer is None for layer in patterns):
            raise InputError(FUSED)
        if all(getattr(layer, "ndim", 0) == 4 for layer in patterns):
            return [layer for one in patterns for layer in as_layers(one)]
        if all(getattr(layer, "ndim", 0) == 3 for layer in patterns):
            raise InputError(
                "patterns given layer by layer must be [batch, head, query, key] each,"
                f" got shape {tuple(patterns[0].shape)}"
            )
    stack = as_tensor(patterns, "patterns must be an array of numbers")
    if stack.is_complex():
        raise InputError(f"patterns must be real numbers, got {stack.dtype}")
    if stack.ndim not in (3, 4, 5) or stack.numel() == 0:
        raise InputError(
            "patterns must be [head, query, key], [batch, head, query, key] or"
            f" [layer, batch, head, query, key], got shape {tuple(stack.shape)}"
        )
    return stack[(None,) * (5 - stack.ndim)].unbind(0)


def as_numbers(layers: Any) -> list[int]:
    """The layers' own numbers, each once.

    Raises:
        InputError: If one is no whole number from 0 to 999, or is there twice.
    """
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise InputError(f"layers must be several whole numbers, got {layers!r}")
    numbers = [whole("layers", layer, least=0, most=MOST_LAYERS - 1) for layer in layers]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"layers must name each layer once, got {numbers}")
    return numbers


def as_special(special: Any) -> frozenset[int]:
    """Ids of special tokens.

    Raises:
        InputError: If one is no whole number that a token's id can be.
    """
    if isinstance(special, str) or not isinstance(special, Iterable):
        raise InputError(f"special must be several token ids, got {special!r}")
    return frozenset(whole("special", i, least=0, most=2**63 - 1) for i in special)


def as_tensor(values: Any, rule: str) -> Tensor:
    """`values` as a tensor that shares their memory where it can; nothing here writes to it.

    Raises:
        InputError: If they are no numbers; the message begins with `rule`.
    """
    if isinstance(values, Tensor) and (
        values.layout != torch.strided or values.is_meta or values.is_quantized
    ):
        raise InputError(f"{rule}, got a tensor that is sparse, rounded or without its numbers")
    if hasattr(values, "filled"):
        raise InputError(f"{rule}, got a masked array: fill what is masked first")
    try:
        if hasattr(values, "__array__") and not isinstance(values, Tensor):
            values = values.__array__()
            # Torch has neither the other byte order nor steps backwards.
            values = values.astype(values.dtype.newbyteorder("="), copy=False)
            values = values.copy() if any(step < 0 for step in values.strides) else values
        with warnings.catch_warnings():
            # Arrays that cannot be written to are fine.
            warnings.simplefilter("ignore")
            return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        for one in _singly(values):
            if not isinstance(one, int | float | complex | Tensor):
                raise InputError(f"{rule}, got {quoted(one)}") from None
        raise InputError(f"{rule}: {said(error)}") from None


def _singly(values: Any) -> Iterator[Any]:
    """What is in lists within lists, or in arrays within them, one by one."""
    waiting = [values]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor) and not (one.is_meta or one.layout != torch.strided):
            one = one.tolist()
        elif hasattr(one, "__array__") and not isinstance(one, Tensor):
            one = one.__array__().tolist()
        if isinstance(one, list | tuple):
            waiting.extend(reversed(one))
        else:
            yield one


def check_pattern(
    pattern: Float[Tensor, "batch head query key"],
    tokens: Int[Tensor, "row pos"],
    *,
    where: str,
    window: int | None = None,
    learned_sinks: bool = False,
    causal: bool = True,
    key_tokens: Int[Tensor, "row key"] | None = None,
) -> None:
    """Refuse what cannot be attention over `tokens` within `window`, causal unless told otherwise.

    With `learned_sinks` part of the attention may go to what is no key, and rows may sum to
    less than 1. With `key_tokens` the keys are another text's, and `tokens` the queries alone.

    Raises:
        InputError: If shapes disagree, or a real query's row holds NaN or negative entries,
            looks ahead (where `causal`), at padding or beyond the window, or does not sum to 1
            within 1 % (with `learned_sinks`: to more than that).
    """
    batch, _, query, key = pattern.shape
    if key_tokens is None and query != key:
        raise InputError(f"patterns must be square, got {query} queries and {key} keys in {where}")
    keyed = tokens if key_tokens is None else key_tokens
    for ids, places in ((tokens, query), (keyed, key)):
        if ids.shape != (batch, places):
            raise InputError(
                f"tokens must match the patterns, got {len(ids)} rows of {ids.shape[1]} tokens"
                f" for {batch} patterns over {places} positions"
            )
    real = tokens != NONE
    rows = torch.where(rearrange(real, "b q -> b 1 q 1"), pattern, 0)
    if not rows.isfinite().all():
        _, head, at, _ = (~rows.isfinite()).nonzero()[0].tolist()
        raise InputError(
            f"patterns must be finite, got NaN or infinity in {where}, head {head}, query {at}"
        )
    if (rows < 0).any():
        raise InputError(
            f"patterns must be attention after the softmax, got {rows.min().item():.3g} in {where}"
        )
    allowed = torch.ones(query, key, dtype=torch.bool, device=pattern.device)
    if window is not None:
        at, to = (positions(ids) - first_token(ids)[:, None] for ids in (tokens, keyed))
        allowed = within(window, at[:, None, :, None], to[:, None, None])
    allowed = allowed.tril() if causal else allowed
    astray = (rows * ~(allowed & (keyed != NONE)[:, None, None])).sum(-1).amax().item()
    if astray > 1e-6:
        rule = "be causal, leave padding alone" if causal else "leave padding alone"
        ahead = causal and rows.triu(1).sum(-1).amax().item() > 1e-6
        hint = "; of a model that looks both ways, give causal=False (--both-ways)" if ahead else ""
        raise InputError(
            f"patterns must {rule} and keep to the layer's window:"
            f" a query in {where} puts {astray:.3g} of its attention elsewhere{hint}"
        )
    above = rows.sum(-1) - 1
    off = torch.where(real[:, None], above if learned_sinks else above.abs(), 0)
    if off.max() > 0.01:
        row, head, at = (off == off.max()).nonzero()[0].tolist()
        total = rows[row, head, at].sum().item()
        rule = "sum to at most 1" if learned_sinks else "sum to 1"
        hint = (
            "; less is right with learned sinks alone (learned_sinks=True, --learned-sinks)"
            if total < 1
            else ""
        )
        raise InputError(
            f"pattern rows must {rule}, got {total:.3g} in {where}, head {head}, query {at}{hint}"
        )
