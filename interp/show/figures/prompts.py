"""The one prompt that a figure shows: labels for its tokens, a head's pattern, and its targets."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.collections import LineCollection
from torch import Tensor

from interp import errors
from interp.errors import InputError
from interp.heads import Head
from interp.kinds import kind as kinds
from interp.kinds.looks import marked_of_head
from interp.kinds.targets import NONE, earlier_copies
from interp.scan.table import HeadScan
from interp.show.figures.style import ACCENT
from interp.show.figures.texts import inches, legible
from interp.show.pages.prompts import LONGEST, Source, Text, sources, special_of, thresholds_of
from interp.text import apart


@dataclass(frozen=True)
class Shown:
    """One prompt of some patterns, without padding.

    Attributes:
        text: Its tokens, the queries.
        layers: The number of each layer, and its pattern.
        whole: Tokens of the whole prompt, of which these may be the first ones alone.
        keys: The tokens of the text that is looked at, where it is another.
        causal: Whether no query looks ahead.
        special: Ids of special tokens that the patterns know of.
    """

    text: Text
    layers: dict[int, Float[Tensor, "head query key"]]
    whole: int
    keys: Text | None = None
    causal: bool = True
    special: Collection[int] = ()

    @classmethod
    def of(
        cls,
        patterns: Any,
        tokens: Any = None,
        texts: Sequence[Any] | None = None,
        layers: Sequence[int] | None = None,
        row: int | None = None,
        whole: int | None = None,
        *,
        causal: Any = None,
    ) -> "Shown":
        """The prompt in `row` of patterns of any source, as `interp.gallery` takes them.

        Raises:
            InputError: If there are several prompts and no `row`, or no such row; the prompt is
                too long to draw, or longer than the whole; or patterns, tokens and texts do not
                fit each other.
        """
        rows: list[Source] = list(sources(patterns, tokens, texts, layers, causal=causal))
        if row is None and len(rows) > 1:
            raise InputError(f"row must be given for a batch of {len(rows)} prompts, got none")
        if row is not None and not 0 <= row < len(rows):
            raise InputError(f"row must be from 0 to {len(rows) - 1}, got {row}")
        chosen = rows[row or 0]
        there = len(chosen.text)
        if (most := max(there, len(chosen.keys or ()))) > LONGEST:
            hint = f": run the first {LONGEST:,} alone, which changes no weight"
            raise InputError(
                f"patterns must be of at most {LONGEST:,} tokens to be drawn, got"
                f" {most:,}{hint if chosen.causal else ''}"
            )
        whole = errors.whole("whole", there if whole is None else whole, least=there)
        own = chosen.keys, chosen.causal, chosen.special
        return cls(chosen.text, dict(chosen.layers), whole, *own)

    @property
    def across(self) -> Text:
        """The tokens that are looked at, along the other side of a pattern."""
        return self.text if self.keys is None else self.keys

    @property
    def hidden(self) -> Bool[Tensor, "query key"]:
        """The cells that are out of a query's sight."""
        cells = torch.full((len(self.text), len(self.across)), self.causal)
        return cells.triu(1)

    @property
    def size(self) -> str:
        """How many tokens there are, and whether they are all."""
        words = how_many(len(self.text), self.whole)
        if self.causal or len(self.text) == self.whole:
            return words
        return f"{words}, whose attention to the others is not shown"

    def refuse_another_text(self) -> None:
        """Raise InputError if the keys are another text's, which no kind of head is defined for."""
        if self.keys is not None:
            raise InputError(
                "patterns must be a text's attention to itself here, got cross-attention:"
                " head_page draws it"
            )

    def targets(
        self, kind: str, attention: Float[Tensor, "query key"], scan: HeadScan
    ) -> Bool[np.ndarray, "query key"]:
        """The cells where a head of the kind should look; for a sink, also where this one rests."""
        known = thresholds_of(scan), [*special_of(scan), *self.special]
        cells = marked_of_head(kind, self.text.ids, attention, *known, causal=self.causal)
        return cells.numpy()

    def pattern(self, head: Head) -> Float[Tensor, "query key"]:
        """The attention of `head`, from query (down) to key (across).

        Raises:
            InputError: If it is not there.
        """
        if head.layer not in self.layers or head.head >= len(self.layers[head.layer]):
            heads = len(next(iter(self.layers.values())))
            raise InputError(
                f"patterns must hold {head}, got layers {list(self.layers)} of {heads} heads"
            )
        return self.layers[head.layer][head.head].detach().cpu().float()


def labels_of(text: Text, *, width: float, size: float) -> list[str]:
    """Each token as a label; what is wider than `width` inches ends in … there.

    Tokens that differ and then look alike have their ids, too.
    """
    words = [cut(legible(token), width=width, size=size) for token in text.texts]
    return apart(words, text.ids.tolist())


def cut(label: str, *, width: float, size: float) -> str:
    """The beginning of a label, and …, where it is wider than `width` inches."""
    if inches(label, size) <= width:
        return label
    label = label[:200]
    while inches(f"{label}…", size) > width:
        label = label[:-1]
    return f"{label}…"


def border(cells: Bool[np.ndarray, "query key"], cell: float) -> LineCollection:
    """Lines between targets and all else: they cover no cell, whose side is `cell` points."""
    padded = np.pad(cells, 1)
    above, beside = (np.argwhere(np.diff(padded, axis=axis)) - 0.5 for axis in (0, 1))
    lines = [((k - 1, q), (k, q)) for q, k in above] + [((k, q - 1), (k, q)) for q, k in beside]
    return LineCollection(lines, colors=ACCENT, linewidths=min(0.5, cell / 9))


def kind_of(scan: HeadScan | None, head: Head, shown: Shown) -> str | None:
    """The kind behind the head's label; None if no kind gave it, or the scan lacks the head."""
    if scan is None or shown.keys is not None:
        return None
    found = scan.frame.loc[scan.frame["name"] == str(head), "label"].tolist()
    kind = kinds.kind_of(found[0]) if found and found[0] != kinds.FORCED_WINDOW else None
    return kind.name if kind and kind.name in kinds.kinds_of(shown.causal) else None


def in_words(shown: Shown, made_by: dict[str, Any]) -> str:
    """The prompt in words: how long, BOS or not, where it repeats, how it begins."""
    tokens = shown.text.ids
    words, bos = [shown.size], made_by.get("bos")
    if shown.keys is not None:
        words.append(f"looking at {how_many(len(shown.keys), len(shown.keys))} of another text")
    opening = int((tokens == bos).int().cumprod(0).sum()) if bos is not None else 0
    if "bos" in made_by:
        words.append(["without BOS", "opened by BOS", "BOS doubled"][min(opening, 2)])
    body = tokens[opening:]
    copies = enumerate(earlier_copies(body[None])[0, :, 0].tolist())
    period = next((here - copy for here, copy in copies if copy != NONE), None)
    if period is None:
        words.append("no token comes again")
    elif torch.equal(body[period:], body[:-period]):
        repeat = f"the repeat starts at position {opening + period}"
        words.append(f"then the same {period} over and over; {repeat}")
    else:
        words.append("some tokens come again")
    if shown.keys is None:
        return f"Prompt: {', '.join(words)}. It begins: {_begins(shown.text)}"
    both = f"{_begins(shown.text)}; the other: {_begins(shown.keys)}"
    return f"Prompt: {', '.join(words)}. It begins: {both}"


def _begins(text: Text) -> str:
    labels = (legible(token) for token in text.texts[:10])
    # The dot stays on the line of the token before it.
    begins = "\u00a0· ".join(label if len(label) < 25 else label[:23] + "…" for label in labels)
    return f"{begins}{' …' if len(text) > 10 else ''}"


def how_many(shown: int, whole: int) -> str:
    """How many tokens there are, and whether they are all.

    Example:
        >>> how_many(1, 1), how_many(1024, 3000)
        ('1 token', 'the first 1,024 of 3,000 tokens')
    """
    words = f"{whole:,} token{'' if whole == 1 else 's'}"
    return words if shown == whole else f"the first {shown:,} of {words}"
