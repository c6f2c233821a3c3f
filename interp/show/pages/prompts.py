"""Attention patterns of any source, as the prompts of a page: tokens, targets, packed weights."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from interp.errors import InputError, truth
from interp.heads import Head
from interp.kinds.kind import kinds_of
from interp.kinds.looks import marked, resting_columns
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE
from interp.patterns.read import carries_tokens, take
from interp.patterns.tensor import AttentionPatterns, as_numbers, check_pattern
from interp.scan.table import HeadScan
from interp.show.pages.packing import as_steps, packed, thumbnail, unpacked
from interp.show.pages.sheet import SIDE
from interp.text import distinct, prose

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
class Text:
    """Tokens as they stand along one side of a pattern.

    Attributes:
        ids: The token ids that were run, without padding.
        texts: The text of each, as it is.
    """

    ids: Int[Tensor, " pos"]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> list[str]:
        """The visible text of each token."""
        return distinct(self.texts, self.ids.tolist())

    def beginning(self, most: int) -> "Text":
        """The first `most` tokens."""
        return Text(self.ids[:most].cpu(), list(self.texts[:most]))


@dataclass(frozen=True)
class Source:
    """One prompt's patterns, before they are packed.

    Attributes:
        text: Its tokens, the queries.
        layers: The number of each layer, and its pattern.
        named: Whether those numbers were given; else layers count from 0.
        causal: Whether no query looks ahead.
        special: Ids of special tokens.
        keys: The tokens of the text that is looked at, where it is another.
        reads: The whole as text, where a tokenizer knows it; its tokens one by one else.
    """

    text: Text
    layers: list[tuple[int, Float[Tensor, "head query key"]]]
    named: bool
    causal: bool = True
    special: Collection[int] = ()
    keys: Text | None = None
    reads: str | None = None


@dataclass(frozen=True)
class Prompt:
    """One prompt as the page shows it.

    Attributes:
        title: What it is called.
        text: Its tokens, the queries.
        whole: Tokens of the whole prompt, of which these are the first; of two texts, of the
            longer.
        targets: By kind, for each query the keys where such a head should look.
        thresholds: What makes a column a sink.
        special: The ids that are no ordinary queries.
        causal: Whether no query looks ahead.
        keys: The tokens of the text that is looked at, where it is another.
        sinks: By head, the columns where it rests, found in its own attention.
        weights: By head, the packed weights.
        pictures: By head, a small picture.
    """

    title: str
    text: Text
    whole: int
    targets: dict[str, list[list[int]]]
    thresholds: dict[str, Any]
    special: list[int]
    causal: bool = True
    keys: Text | None = None
    sinks: dict[Head, list[int]] = field(default_factory=dict)
    weights: dict[Head, str] = field(default_factory=dict)
    pictures: dict[Head, UInt8[Tensor, "down across"]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source, scan: HeadScan, title: str | None) -> "Prompt":
        """A prompt still without weights, cut to what a page shows.

        Without a title it is called after how it begins.
        """
        thresholds, text = thresholds_of(scan), source.text
        special = sorted({*special_of(scan), *source.special})
        shown = text.beginning(LONGEST)
        targets = {}
        if source.keys is None:
            for kind in kinds_of(source.causal):
                cells = marked(kind, shown.ids, thresholds, special, causal=source.causal)
                targets[kind] = [row.nonzero().flatten().tolist() for row in cells]
        if title is None:
            begins = prose("".join(text.texts[:40]) if source.reads is None else source.reads)
            begins = begins if len(begins) < 60 else begins[:58] + "…"
            title = f"{len(text)} token{'' if len(text) == 1 else 's'}: {begins}"
        return cls(
            prose(title),
            shown,
            max(len(text), len(source.keys or ())),
            targets,
            thresholds,
            special,
            source.causal,
            source.keys and source.keys.beginning(LONGEST),
        )

    @property
    def ids(self) -> list[int]:
        """The ids of its tokens."""
        return self.text.ids.tolist()

    @property
    def labels(self) -> list[str]:
        """The visible text of each token."""
        return self.text.labels

    @property
    def across(self) -> Text:
        """The tokens that are looked at, along the other side of a pattern."""
        return self.text if self.keys is None else self.keys

    @property
    def notes(self) -> list[str]:
        """What a reader must know of what is not shown."""
        shown = max(len(self.text), len(self.across))
        if shown == self.whole:
            return []
        note = (
            f"A prompt of {self.whole:,} tokens is cut to its first {shown:,}; the weights"
            " shown are the same as in the whole."
        )
        return [note if self.causal else f"{note} What goes to the others is not shown."]

    def add(self, layer: int, pattern: Float[Tensor, "head query key"], heads: Collection[Head]):
        """Keep those of the layer's heads that are in `heads`; later tokens are cut off."""
        wanted = [head for head in range(len(pattern)) if Head(layer, head) in heads]
        if not wanted:
            return
        own = pattern[wanted, : len(self.text), : len(self.across)].detach().float()
        steps = as_steps(own, where=f"layer {layer}", causal=self.causal)
        if self.keys is None:
            ids = self.text.ids.to(own.device)
            resting = resting_columns(
                own, ids, self.thresholds, self.special, causal=self.causal
            ).cpu()
            for head, columns in zip(wanted, resting, strict=True):
                self.sinks[Head(layer, head)] = columns.nonzero().flatten().tolist()
        for head, own, picture in zip(wanted, steps, thumbnail(steps, most=SIDE), strict=True):
            self.weights[Head(layer, head)] = packed(own, causal=self.causal)
            self.pictures[Head(layer, head)] = picture.cpu()

    def pattern(self, head: Head) -> Float[Tensor, "query key"]:
        """The weights of `head` that the page keeps."""
        return unpacked(self.weights[head], keys=None if self.causal else len(self.across))


def sources(
    patterns: Any,
    tokens: Any = None,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    *,
    causal: Any = None,
) -> Iterator[Source]:
    """A source for each row of a batch, padding cut off; `interp.gallery` says what it takes.

    Raises:
        InputError: If tokens are missing, shapes or lengths disagree, a pattern is no
            attention, or `causal` is neither True nor False.
    """
    if isinstance(patterns, list | tuple) and not patterns:
        raise InputError("patterns must hold at least one prompt, got none")
    several = isinstance(patterns, list | tuple) and all(map(carries_tokens, patterns))
    for one in patterns if several else [patterns]:
        yield from _rows_of(one, tokens, texts, layers, causal)


def _rows_of(
    patterns: Any, tokens: Any, texts: Any, layers: Sequence[int] | None, causal: Any
) -> Iterator[Source]:
    taken = take(patterns, tokens)
    causal = truth("causal", taken.causal if causal is None else causal)
    ids, stack = taken.tokens.cpu(), taken.arrays
    numbers = as_numbers(taken.numbers if layers is None else layers)
    if len(numbers) != len(stack):
        raise InputError(f"layers must name all {len(stack)} layers, got {len(numbers)} numbers")
    # What `attention_patterns` returned was checked when it was made.
    as_made = isinstance(patterns, AttentionPatterns) and causal == taken.causal
    for number, pattern in zip(numbers, stack, strict=True):
        if not as_made or ids.shape != (len(pattern), pattern.shape[2]):
            check_pattern(
                pattern.detach().float().cpu(),
                ids,
                where=f"layer {number}",
                learned_sinks=taken.learned_sinks,
                causal=causal,
                key_tokens=taken.key_tokens,
            )
    queries = _texts_of(ids, taken.texts if texts is None else texts)
    keys = [(place, None) for place, _ in queries]
    if taken.key_tokens is not None:
        keys = _texts_of(taken.key_tokens.cpu(), taken.key_texts)
    for row, ((down, text), (across, other)) in enumerate(zip(queries, keys, strict=True)):
        yield Source(
            text,
            [(n, layer[row][:, down, across]) for n, layer in zip(numbers, stack, strict=True)],
            named=layers is not None or taken.named,
            causal=causal,
            special=taken.special,
            keys=other,
        )


def _texts_of(
    ids: Int[Tensor, "batch pos"], texts: Sequence[Any] | None
) -> list[tuple[slice, Text]]:
    """Where each row's tokens stand, without its padding, and the tokens."""
    if texts is not None and all(isinstance(text, str) for text in texts):
        texts = [texts]
    if texts is not None and len(texts) != len(ids):
        raise InputError(
            f"texts must be a list for each row of the batch, got {len(texts)} for {len(ids)} rows"
        )
    rows = []
    for row, own in enumerate(ids):
        place = (own != NONE).nonzero().flatten()
        if not len(place):
            raise InputError(f"prompt must have at least one token, got none in row {row}")
        real = slice(int(place[0]), int(place[-1]) + 1)
        words = [f"<{i}>" for i in own[real].tolist()] if texts is None else list(texts[row])
        if not all(isinstance(word, str) for word in words):
            raise InputError(f"texts must be the text of each token, got others in row {row}")
        if len(words) != len(place):
            raise InputError(
                f"texts must have one entry per token, got {len(words)} for the"
                f" {len(place)} tokens of row {row}"
            )
        rows.append((real, Text(own[real], words)))
    return rows
