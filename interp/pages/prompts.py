"""Attention patterns of any source, as the prompts of a page: tokens, targets, packed weights."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.pages.kinds import marked, resting_columns
from interp.pages.packing import as_steps, packed, thumbnail
from interp.pages.sheet import SIDE
from interp.pages.visible import distinct, prose
from interp.patterns import as_layers, as_numbers, as_tokens, check_pattern
from interp.scores import Thresholds
from interp.table import HeadScan
from interp.targets import NONE, TARGETS

LONGEST = 1024
"""Tokens of a prompt that a page shows; of a longer one the first so many."""


def thresholds_of(scan: HeadScan) -> dict[str, Any]:
    """The thresholds of the scan; the usual ones where it does not say."""
    return asdict(Thresholds()) | scan.made_by.get("thresholds", {})


def special_of(scan: HeadScan | None) -> list[int]:
    """The ids of special tokens that a scan knows of."""
    made_by = {} if scan is None else scan.made_by
    bos = made_by.get("bos")
    return sorted({*made_by.get("special", []), *([] if bos is None else [bos])})


@dataclass(frozen=True)
class Prompt:
    """One prompt as the page shows it.

    Attributes:
        title: What it is called.
        ids: The token ids that were run, without padding.
        texts: The text of each, as it is.
        whole: Tokens of the whole prompt, of which these are the first.
        targets: By kind, for each query the keys where such a head should look.
        sinks: By head, the columns where it rests, found in its own attention.
        weights: By head, the packed weights.
        pictures: By head, a small picture.
        thresholds: What makes a column a sink.
        special: The ids that are no ordinary queries.
    """

    title: str
    ids: list[int]
    texts: list[str]
    whole: int
    targets: dict[str, list[list[int]]]
    thresholds: dict[str, Any]
    special: list[int]
    sinks: dict[Head, list[int]] = field(default_factory=dict)
    weights: dict[Head, str] = field(default_factory=dict)
    pictures: dict[Head, UInt8[Tensor, "down across"]] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The visible text of each token."""
        return distinct(self.texts, self.ids)

    @property
    def notes(self) -> list[str]:
        """What a reader must know of what is not shown."""
        if len(self.ids) == self.whole:
            return []
        return [
            f"A prompt of {self.whole:,} tokens is cut to its first {len(self.ids):,}; the weights"
            " shown are the same as in the whole."
        ]

    def add(self, layer: int, pattern: Float[Tensor, "head query key"], heads: Collection[Head]):
        """Keep those of the layer's heads that are in `heads`; later tokens are cut off."""
        wanted = [head for head in range(len(pattern)) if Head(layer, head) in heads]
        if not wanted:
            return
        shown = slice(len(self.ids))
        own = pattern[wanted, shown, shown].detach().float()
        steps = as_steps(own, where=f"layer {layer}")
        ids = torch.tensor(self.ids, device=own.device)
        resting = resting_columns(own, ids, self.thresholds, self.special).cpu()
        for head, columns in zip(wanted, resting, strict=True):
            self.sinks[Head(layer, head)] = columns.nonzero().flatten().tolist()
        for head, own, picture in zip(wanted, steps, thumbnail(steps, most=SIDE), strict=True):
            self.weights[Head(layer, head)] = packed(own)
            self.pictures[Head(layer, head)] = picture.cpu()


@dataclass(frozen=True)
class Source:
    """One prompt's patterns, before they are packed.

    Attributes:
        ids: Its token ids, without padding.
        texts: Their texts.
        layers: The number of each layer, and its pattern.
        named: Whether those numbers were given; else layers count from 0.
    """

    ids: Int[Tensor, " pos"]
    texts: Sequence[str]
    layers: list[tuple[int, Float[Tensor, "head query key"]]]
    named: bool


def sources(
    patterns: Any,
    tokens: Any = None,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
) -> Iterator[Source]:
    """A source for each row of a batch, padding cut off; `interp.gallery` says what it takes.

    Raises:
        InputError: If tokens are missing, shapes or lengths disagree, or a pattern is no
            attention.
    """
    if isinstance(patterns, list | tuple) and not patterns:
        raise InputError("patterns must hold at least one prompt, got none")
    several = isinstance(patterns, list | tuple) and all(hasattr(p, "tokens") for p in patterns)
    for one in patterns if several else [patterns]:
        yield from _rows_of(one, tokens, texts, layers)


def _rows_of(
    patterns: Any, tokens: Any, texts: Any, layers: Sequence[int] | None
) -> Iterator[Source]:
    tokens = getattr(patterns, "tokens", None) if tokens is None else tokens
    if tokens is None:
        raise InputError("tokens must be given: these patterns do not carry their token ids")
    ids, stack = as_tokens(tokens).cpu(), as_layers(patterns)
    carried = hasattr(patterns, "layers")
    layers = getattr(patterns, "layers", None) if layers is None else layers
    numbers = as_numbers(range(len(stack)) if layers is None else layers)
    if len(numbers) != len(stack):
        raise InputError(f"layers must name all {len(stack)} layers, got {len(numbers)} numbers")
    for number, pattern in zip(numbers, stack, strict=True):
        # What `attention_patterns` returned was checked when it was made.
        if not carried or ids.shape != (len(pattern), pattern.shape[-1]):
            check_pattern(pattern.detach().float().cpu(), ids, where=f"layer {number}")
    texts = getattr(patterns, "texts", None) if texts is None else texts
    for row, own in enumerate(ids):
        place = (own != NONE).nonzero().flatten()
        if not len(place):
            raise InputError(f"prompt must have at least one token, got none in row {row}")
        real = slice(int(place[0]), int(place[-1]) + 1)
        words = [f"<{i}>" for i in own[real].tolist()] if texts is None else _texts(texts, row, ids)
        if len(words) != len(place):
            raise InputError(
                f"texts must have one entry per token, got {len(words)} for the"
                f" {len(place)} tokens of row {row}"
            )
        yield Source(
            own[real],
            words,
            [(n, layer[row][:, real, real]) for n, layer in zip(numbers, stack, strict=True)],
            named=layers is not None,
        )


def _texts(texts: Sequence[Any], row: int, ids: Int[Tensor, "batch pos"]) -> list[str]:
    if all(isinstance(text, str) for text in texts):
        texts = [texts]
    if len(texts) != len(ids):
        raise InputError(
            f"texts must be a list for each row of the batch, got {len(texts)} for {len(ids)} rows"
        )
    return list(texts[row])


def begin(
    ids: Int[Tensor, " pos"], texts: Sequence[str], scan: HeadScan, title: str | None
) -> Prompt:
    """A prompt still without weights, cut to what a page shows; without a title, how it begins."""
    thresholds, special = thresholds_of(scan), special_of(scan)
    shown = ids[:LONGEST].cpu()
    targets = {
        kind: [row.nonzero().flatten().tolist() for row in marked(kind, shown, thresholds, special)]
        for kind in TARGETS
    }
    if title is None:
        begins = prose("".join(texts[:40]))
        begins = begins if len(begins) < 60 else begins[:58] + "…"
        title = f"{len(ids)} token{'' if len(ids) == 1 else 's'}: {begins}"
    own = list(texts[:LONGEST])
    return Prompt(prose(title), shown.tolist(), own, len(ids), targets, thresholds, special)
