"""Attention patterns with what was run, and the checks that arrays are attention."""

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from pydantic import Field, TypeAdapter
from torch import Tensor

from interp.errors import InputError, Whole, quoted, told, validated
from interp.kinds.targets import NONE, first_token, positions, within

MOST_LAYERS = 1000
"""Upper limit of the layers of a model, and of the heads in one, which count from 0."""

FUSED = (
    "patterns must hold attention, got none: a fused attention kernel returns no weights; load the"
    ' model with attn_implementation="eager" and call it with output_attentions=True'
)


AHEAD = (
    "; mark padding as -1 or give the attention_mask; give causal=False (--both-ways) only for the"
    " self-attention of a bidirectional model"
)
"""What to do about a query that looks ahead: most often it is one of padding."""

NO_HEAD = "patterns must be finite, got NaN or infinity in every head"


@dataclass(frozen=True, kw_only=True, eq=False)
class Ran:
    """A run's patterns with their context.

    Attributes:
        tokens: Token ids that were run, `[batch, pos]`; -1 is padding.
        layers: Number of each layer.
        arrays: `[batch, head, query, key]` for each layer, in the source's number format and not
            checked yet; empty where `AttentionPatterns` hold the numbers.
        texts: Text of each token, for each row, without padding; None where it is not known.
        special: Ids of special tokens.
        causal: Whether no query looks ahead.
        learned_sinks: Whether attention may go to learned sinks that are no key (gpt-oss), so
            that rows sum to less than 1.
        windows: For each layer how far back (or either way) it may look, the query included;
            None for a layer without a limit, or for all where no model says.
        alibi_slopes: Slope of each head, in score per token of distance (ALiBi).
        stack: `encoder`, `decoder` or `cross` of an encoder-decoder; None for other models.
        key_tokens: Of `cross`, the encoder's token ids; `tokens` are the decoder's.
        key_texts: Of `cross`, the texts of the encoder's tokens.
        numbered: Whether the source numbers its layers; if not, they count from 0.
        template: Tokens that a chat template added to messages; None without one.
        run_in: Number format of the model; None where it is not known.
        first_query: Number of queries at the beginning of each row without attention, since a
            decoder with a cache gives the last rows of a pattern alone. These rows are 0.
        checked: Whether `arrays` are known to be attention over the tokens.
    """

    tokens: Int[Tensor, "batch pos"]
    layers: Sequence[int] = ()
    arrays: Sequence[Tensor] = ()
    texts: Sequence[Sequence[str]] | None = None
    special: Collection[int] = frozenset()
    causal: bool = True
    learned_sinks: bool = False
    windows: Sequence[int | None] | None = None
    alibi_slopes: Sequence[float] | None = None
    stack: str | None = None
    key_tokens: Int[Tensor, "batch key"] | None = None
    key_texts: Sequence[Sequence[str]] | None = None
    numbered: bool = True
    template: Bool[Tensor, "batch pos"] | None = None
    run_in: str | None = None
    first_query: int = 0
    checked: bool = False

    def beginning(self, most: int) -> "Ran":
        """The same of the first `most` tokens of each row."""
        arrays = [layer[..., :most, :most] for layer in self.arrays]
        texts = {name: getattr(self, name) for name in ("texts", "key_texts")}
        cut = {name: rows and [row[:most] for row in rows] for name, rows in texts.items()}
        others = {name: getattr(self, name) for name in ("key_tokens", "template")}
        cut |= {name: rows if rows is None else rows[:, :most] for name, rows in others.items()}
        return replace(self, tokens=self.tokens[:, :most], arrays=arrays, **cut)


class _OwnNames(type(Tensor)):  # For `help`, without the thousand names of `torch.Tensor`.
    def __dir__(cls) -> list[str]:
        return [name for name in vars(cls) if not name.startswith("_")]


def _of_run(name: str, meaning: str) -> Any:
    def change(patterns: "AttentionPatterns", value: Any) -> None:
        patterns.ran = replace(patterns.ran, **{name: value})

    return property(lambda patterns: getattr(patterns.ran, name), change, doc=meaning)


class AttentionPatterns(Tensor, metaclass=_OwnNames):
    """Attention patterns `[layer, batch, head, query, key]`, float32, with what was run.

    A tensor: what is computed from it is a plain one. Rows of padding are 0. Its text is one
    line that says what it holds; `patterns[0]` shows numbers.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> patterns = interp.attention_patterns(toy, [[0, 5, 6, 5]])
        >>> patterns.shape, patterns.tokens.tolist()
        (torch.Size([2, 1, 8, 4, 4]), [[0, 5, 6, 5]])
    """

    ran: Ran = Ran(tokens=torch.empty(0, 0, dtype=torch.long))
    tokens = _of_run("tokens", "Token ids that were run, `[batch, pos]`; -1 is padding.")
    layers = _of_run("layers", "Number of each layer.")
    texts = _of_run("texts", "Text of each token, for each row.")
    special = _of_run("special", "Ids of the model's special tokens.")
    causal = _of_run("causal", "Whether no query looks ahead.")
    learned_sinks = _of_run("learned_sinks", "Whether rows may sum to less than 1 (gpt-oss).")
    windows = _of_run("windows", "How far each layer may look; None without a limit.")
    alibi_slopes = _of_run("alibi_slopes", "Slope of each head, where the model has ALiBi.")
    stack = _of_run("stack", "`encoder`, `decoder` or `cross`; None without several stacks.")
    key_tokens = _of_run("key_tokens", "Of `cross`, the encoder's token ids.")
    key_texts = _of_run("key_texts", "Of `cross`, the texts of the encoder's tokens.")
    template = _of_run("template", "Tokens that a chat template added; None without one.")
    first_query = _of_run("first_query", "The first query whose attention is known.")

    @classmethod
    def of(cls, stack: Float[Tensor, "layer batch head query key"], ran: Ran) -> Any:
        """The patterns `stack` as those of a run."""
        patterns = stack.as_subclass(cls)
        patterns.ran = replace(ran, arrays=())
        return patterns

    def beginning(self, most: int) -> "AttentionPatterns":
        """Attention among the first `most` tokens: in causal patterns, all of it."""
        cut = self.as_subclass(Tensor)[..., :most, :most]
        return AttentionPatterns.of(cut, self.ran.beginning(most))

    def __dir__(self) -> list[str]:
        return sorted({*dir(Tensor), *dir(type(self)), *vars(self)})

    def __deepcopy__(self, memo: dict[int, Any]) -> "AttentionPatterns":
        ran = replace(self.ran, tokens=self.tokens.clone())
        return AttentionPatterns.of(self.as_subclass(Tensor).clone(), ran)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if self.ndim != 5 or not len(self.tokens):
            return super().__repr__(tensor_contents=tensor_contents)
        count, batch, heads = self.shape[:3]
        numbers = "" if [*self.layers] == [*range(count)] else f" {quoted([*self.layers])}"
        over = "" if self.key_tokens is None else f" over {_lengths(self.key_tokens)}"
        own, run_in = str(self.dtype).removeprefix("torch."), self.ran.run_in
        parts = [
            f"{_counted(count, 'layer')}{numbers} of {_counted(heads, 'head')}",
            f"{_counted(batch, 'prompt')} of {_lengths(self.tokens)}{over}",
            *([self.stack] if self.stack else []),
            *["both ways"] * (not self.causal and self.stack != "cross"),
            *["learned sinks"] * self.learned_sinks,
            *[f"queries from {self.first_query} on"] * bool(self.first_query),
            own if run_in in (None, own) else f"{own} from {run_in}",
            str(self.device),
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    # As for nn.Parameter: what is computed from it is a plain tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _lengths(tokens: Int[Tensor, "batch pos"]) -> str:
    """How many tokens rows have: `29 tokens`, or `3 to 29 tokens`."""
    counts = (tokens != NONE).sum(-1)
    least, most = int(counts.min()), int(counts.max())
    return _counted(most, "token") if least == most else f"{least} to {most} tokens"


def as_tokens(tokens: Any) -> Int[Tensor, "batch pos"]:
    """Token ids `[batch, pos]` from `[pos]` or `[batch, pos]` of any integer type.

    Ids are -1 (padding, at the ends of rows alone) or more.
    """
    ids = as_tensor(tokens, "tokens must be [pos] or [batch, pos] token ids")
    fractions = ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool
    if fractions or ids.ndim not in (1, 2) or ids.numel() == 0:
        got = f"{ids.dtype} {tuple(ids.shape)}"
        raise InputError(f"tokens must be whole numbers, [pos] or [batch, pos], got {got}")
    ids = ids.long().reshape(-1, ids.shape[-1])
    if ids.min() < NONE:
        raise InputError(f"tokens must be ids, or -1 for padding, got {ids.min().item()}")
    ends = torch.nn.functional.pad((ids != NONE).long(), (1, 1)).diff(dim=-1).abs().sum(-1)
    if (ends != 2).any():
        row = int((ends != 2).int().argmax())
        raise InputError(f"tokens must have padding (-1) at the ends of rows alone, got row {row}")
    return ids


def as_layers(patterns: Any, rows: int) -> Sequence[Float[Tensor, "batch head query key"]]:
    """One `[batch, head, query, key]` per layer, in the caller's dtype, for `rows` of tokens.

    With one row of tokens, several arrays `[head, query, key]` are layers.
    """
    shapes = "[head, query, key], [batch, head, query, key] or [layer, batch, head, query, key]"
    layers: list[Tensor] = []
    if isinstance(patterns, list | tuple):
        if not patterns or any(layer is None for layer in patterns):
            raise InputError(FUSED)
        axes = {getattr(layer, "ndim", 0) for layer in patterns}
        if axes <= {3, 4} and (rows == 1 or axes == {4}):
            layers = [as_tensor(one, f"patterns must be {shapes}") for one in patterns]
            layers = [layer[None] if layer.ndim == 3 else layer for layer in layers]
        elif axes & {2, 3}:  # As one array they would pass for the heads or a batch of one layer.
            got = f"{sorted(axes)} axes and {rows} rows of tokens"
            raise InputError(f"patterns of each layer must be [batch, head, query, key], got {got}")
    if not layers:
        stack = as_tensor(patterns, f"patterns must be {shapes}")
        if stack.ndim not in (3, 4, 5):
            raise InputError(f"patterns must be {shapes}, got {stack.dtype} {tuple(stack.shape)}")
        if stack.ndim == 4 and len(stack) != rows:
            if rows != 1:
                rule = f"be [batch, head, query, key] of {rows} rows of tokens, or [layer, head,"
                got = f"{tuple(stack.shape)}"
                raise InputError(f"patterns must {rule} query, key] of one row, got {got}")
            layers = [layer[None] for layer in stack]
        else:
            layers = [*stack[(None,) * (5 - stack.ndim)]]
    for layer in layers:
        if layer.numel() == 0 or layer.is_complex():
            raise InputError(f"patterns must be {shapes}, got {layer.dtype} {tuple(layer.shape)}")
    return layers


_LAYERS = TypeAdapter(list[Annotated[Whole, Field(ge=0, lt=MOST_LAYERS)]])


def items(values: Any) -> Any:
    """A list of an iterable, since pydantic refuses arrays; text and others as they are."""
    return [*values] if isinstance(values, Iterable) and not isinstance(values, str) else values


def as_numbers(layers: Any) -> list[int]:
    """Numbers of layers, from 0 to 999, each once."""
    numbers = validated("layers", items(layers), _LAYERS)
    if len(set(numbers)) < len(numbers):
        raise InputError(f"layers must name each layer once, got {numbers}")
    return numbers


def as_tensor(values: Any, rule: str) -> Tensor:
    """`values` as a tensor that shares their memory where it can; messages begin with `rule`."""
    if hasattr(values, "filled"):
        raise InputError(f"{rule}, got a masked array: fill what is masked first")
    try:
        if hasattr(values, "__array__") and not isinstance(values, Tensor):
            values = values.__array__()
            # Torch has neither the other byte order nor steps backwards.
            values = values.astype(values.dtype.newbyteorder("="), copy=False)
            values = values.copy() if any(step < 0 for step in values.strides) else values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Read-only arrays are fine.
            return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{rule}: {told(error)}") from None


def check_pattern(
    pattern: Float[Tensor, "batch head query key"],
    tokens: Int[Tensor, "row pos"],
    *,
    where: str,
    window: int | None = None,
    learned_sinks: bool = False,
    causal: bool = True,
    key_tokens: Int[Tensor, "row key"] | None = None,
    first_query: int = 0,
) -> Bool[Tensor, " head"]:
    """Refuse what cannot be attention over `tokens` within `window`; say which heads are finite.

    The row of a real query from `first_query` on is not negative, 0 ahead (if `causal`), on padding
    and beyond the window, and sums to 1 within 1 % (with `learned_sinks`: to no more), in heads
    that are finite. With `key_tokens` the keys are another text's, and `tokens` the queries alone.
    """
    keyed = tokens if key_tokens is None else key_tokens
    shapes = (*tokens.shape, *keyed.shape)
    if shapes != (len(pattern), pattern.shape[2], len(pattern), pattern.shape[3]):
        got = f"{tuple(tokens.shape)} for {tuple(pattern.shape)} in {where}"
        raise InputError(f"tokens must match the patterns [batch, head, query, key], got {got}")
    real = (tokens != NONE) & (positions(tokens) >= first_query)
    rows = torch.where(rearrange(real, "b q -> b 1 q 1"), pattern, 0)
    finite = rows.isfinite().all(-1).all(-1).all(0)
    if not finite.all():
        rows = torch.where(finite[:, None, None], rows, 0)
    if (rows < 0).any():
        least = f"{rows.min().item():.3g} in {where}"
        raise InputError(f"patterns must be attention after the softmax, got {least}")
    allowed = torch.ones(pattern.shape[2:], dtype=torch.bool, device=pattern.device)
    if window is not None:
        at, to = (positions(ids) - first_token(ids)[:, None] for ids in (tokens, keyed))
        allowed = within(window, at[:, None, :, None], to[:, None, None])
    allowed = (allowed.tril() if causal else allowed) & (keyed != NONE)[:, None, None]
    astray = (rows * ~allowed).sum(-1).amax().item()
    if astray > 1e-6:
        ahead = causal and rows.triu(1).sum(-1).amax().item() > 1e-6
        rule = f"{'be causal, ' * causal}leave padding alone and keep to the layer's window"
        puts = f"a query in {where} puts {astray:.3g} of its attention elsewhere"
        raise InputError(f"patterns must {rule}: {puts}{AHEAD * ahead}")
    above = rows.sum(-1) - 1
    judged = rearrange(real, "b q -> b 1 q") & finite[:, None]
    off = torch.where(judged, above if learned_sinks else above.abs(), 0)
    if off.max() > 0.01:
        row, head, at = (off == off.max()).nonzero()[0].tolist()
        total = rows[row, head, at].sum().item()
        rule = "sum to at most 1" if learned_sinks else "sum to 1"
        place = f"{where}, head {head}, query {at}"
        hint = "; call model.eval() first, for dropout changes the sums"
        hint += "; learned sinks need learned_sinks=True (--learned-sinks)" * (total < 1)
        raise InputError(f"pattern rows must {rule}, got {total:.3g} in {place}{hint}")
    return finite
