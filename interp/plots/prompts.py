"""The one prompt that a figure shows: labels for its tokens, a head's pattern, and its targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.collections import LineCollection
from torch import Tensor

from interp import errors
from interp.errors import InputError
from interp.heads import Head
from interp.labels import ANTI_INDUCTION, LABELS
from interp.pages.prompts import LONGEST, Source, sources
from interp.pages.visible import apart
from interp.plots.style import ACCENT
from interp.plots.texts import inches, legible
from interp.table import HeadScan
from interp.targets import NONE, earlier_copies


@dataclass(frozen=True)
class Shown:
    """One prompt of some patterns, without padding.

    Attributes:
        ids: Its token ids.
        texts: Their texts, as they are.
        layers: The number of each layer, and its pattern.
        whole: Tokens of the whole prompt, of which these may be the first ones alone.
    """

    ids: Int[Tensor, " pos"]
    texts: Sequence[str]
    layers: dict[int, Float[Tensor, "head query key"]]
    whole: int

    @classmethod
    def of(
        cls,
        patterns: Any,
        tokens: Any = None,
        texts: Sequence[Any] | None = None,
        layers: Sequence[int] | None = None,
        row: int | None = None,
        whole: int | None = None,
    ) -> "Shown":
        """The prompt in `row` of patterns of any source, as `interp.gallery` takes them.

        Raises:
            InputError: If there are several prompts and no `row`, or no such row; the prompt is
                too long to draw, or longer than the whole; or patterns, tokens and texts do not
                fit each other.
        """
        rows: list[Source] = list(sources(patterns, tokens, texts, layers))
        if row is None and len(rows) > 1:
            raise InputError(f"row must be given for a batch of {len(rows)} prompts, got none")
        if row is not None and not 0 <= row < len(rows):
            raise InputError(f"row must be from 0 to {len(rows) - 1}, got {row}")
        chosen = rows[row or 0]
        if len(chosen.ids) > LONGEST:
            raise InputError(
                f"patterns must be of at most {LONGEST:,} tokens to be drawn, got"
                f" {len(chosen.ids):,}: run the first {LONGEST:,} alone, which changes no weight"
            )
        there = len(chosen.ids)
        whole = errors.whole("whole", there if whole is None else whole, least=there)
        return cls(chosen.ids, chosen.texts, dict(chosen.layers), whole)

    def pattern(self, head: Head) -> Float[Tensor, "pos pos"]:
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

    def labels(self, *, width: float, size: float) -> list[str]:
        """Each token as a label; what is wider than `width` inches ends in … there.

        Tokens that differ and then look alike have their ids, too.
        """
        words = [cut(legible(text), width=width, size=size) for text in self.texts]
        return apart(words, self.ids.tolist())


def cut(label: str, *, width: float, size: float) -> str:
    """The beginning of a label, and …, where it is wider than `width` inches."""
    if inches(label, size) <= width:
        return label
    label = label[:200]
    while inches(f"{label}…", size) > width:
        label = label[:-1]
    return f"{label}…"


def border(cells: Bool[np.ndarray, "pos pos"], cell: float) -> LineCollection:
    """Lines between targets and all else: they cover no cell, whose side is `cell` points."""
    padded = np.pad(cells, 1)
    above, beside = (np.argwhere(np.diff(padded, axis=axis)) - 0.5 for axis in (0, 1))
    lines = [((k - 1, q), (k, q)) for q, k in above] + [((k, q - 1), (k, q)) for q, k in beside]
    return LineCollection(lines, colors=ACCENT, linewidths=min(0.5, cell / 9))


def kind_of(scan: HeadScan, head: Head) -> str | None:
    """The kind behind the head's label; None if no kind gave it, or the scan lacks the head."""
    found = scan.frame.loc[scan.frame["name"] == str(head), "label"].tolist()
    words = {word: kind for kind, word in LABELS.items()} | {ANTI_INDUCTION: "induction"}
    return words.get(found[0]) if found else None


def in_words(shown: Shown, made_by: dict[str, Any]) -> str:
    """The prompt in words: how long, BOS or not, where it repeats, how it begins."""
    tokens, texts = shown.ids, shown.texts
    words, bos = [how_many(len(tokens), shown.whole)], made_by.get("bos")
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
    labels = (legible(text) for text in texts[:10])
    # The dot stays on the line of the token before it.
    begins = "\u00a0· ".join(label if len(label) < 25 else label[:23] + "…" for label in labels)
    return f"Prompt: {', '.join(words)}. It begins: {begins}{' …' if len(texts) > 10 else ''}"


def how_many(shown: int, whole: int) -> str:
    """How many tokens there are, and whether they are all.

    Example:
        >>> how_many(1, 1), how_many(1024, 3000)
        ('1 token', 'the first 1,024 of 3,000 tokens')
    """
    words = f"{whole:,} token{'' if whole == 1 else 's'}"
    return words if shown == whole else f"the first {shown:,} of {words}"
