"""The attention of the strongest heads of each kind, drawn in full."""

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import KINDS, kinds_in, kinds_of
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.prompts import Shown, border, in_words
from interp.show.figures.style import ACCENT, GREY, QUIET, styled
from interp.show.figures.texts import wrapped
from interp.show.figures.words import model_name
from interp.show.pages.prompts import thresholds_of
from interp.show.pages.scored import scored_over

if TYPE_CHECKING:
    from interp.models.hooks import AttentionPatterns


def pattern_page(
    scan: HeadScan,
    patterns: "AttentionPatterns",
    *,
    top: int = 4,
    heads: Collection[Head] | None = None,
    kinds: Collection[str] = tuple(KINDS),
    row: int | None = None,
    whole: int | None = None,
) -> Figure:
    """The attention of the strongest heads of each kind, on one prompt.

    One row of pictures per kind that has heads, queries down and keys across, from 0 to 1.
    The kind's targets are outlined: for a sink, the first token and the other columns where
    this head rests. The number above a picture is the head's score in `scan`. Where no head
    carries a label the first ones are drawn as they are.

    Args:
        scan: Which heads are what.
        patterns: From the same model, with the layers of the heads to be drawn.
        top: How many heads of each kind at most.
        heads: None but these; all if left out.
        kinds: None but these.
        row: Which prompt of a batch.
        whole: Tokens of the whole prompt, where `patterns` are of its first ones alone.

    Raises:
        InputError: If `top` is not positive, the prompt is all padding, longer than 1,024
            tokens, or one of several with no `row`, texts and tokens differ in number, or
            `patterns` lack a head that is to be drawn, or are of cross-attention.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, got {top}")
    prompt = Shown.of(patterns, row=row, whole=whole)
    prompt.refuse_another_text()
    length, thresholds, causal = len(prompt.text), thresholds_of(scan), prompt.causal
    there = kinds_in(scan.frame.columns)
    words = {name: k.label for name, k in there.items() if name in kinds_of(causal)}
    names = scan.frame["name"].tolist() if heads is None else [str(head) for head in heads]
    having = {kind: scan.having(word) for kind, word in words.items() if kind in kinds}
    shown = {kind: rows.loc[rows["name"].isin(names)].head(top) for kind, rows in having.items()}
    without = [kind for kind, rows in shown.items() if rows.empty]
    kinds = [kind for kind, rows in shown.items() if not rows.empty]
    plain = [] if kinds else _unlabelled(scan, names, list(words.values()), prompt)
    widths = [len(shown[kind]) for kind in kinds] or [len(plain[:top])]
    widths.append(0)
    size, slot, step = 1.24, 1.37, 1.57
    of_each = f"the {'strongest' if heads is None else 'chosen'} heads of each kind"
    page = Page(
        f"{model_name(scan)}: {'heads without a label' if plain else of_each}",
        in_words(prompt, scan.made_by),
        width=max(7.2, 1.75 + slot * max(widths)),
        body=max(len(kinds), 1) * step + 0.85 if kinds or plain else 0.15,
        notes=[
            *_page_notes(
                scored_over(scan),
                [words[kind] for kind in kinds],
                [words[kind] for kind in without],
                "head" if heads is None else "head of those chosen",
                "earlier" if causal else "other",
            ),
            *pooled_notes(length, size),
        ],
    )
    with styled():
        for line, kind in enumerate(kinds):
            number = f"{widths[line]} of {len(having[kind])} shown"
            where = wrapped(KINDS[kind].looks(thresholds, causal=causal), 1.05)
            page.text(0.15, line * step + 0.24, words[kind], size=8, weight="bold")
            page.text(0.15, line * step + 0.41, f"{where}\n{number}", color=QUIET)
            drawn = shown[kind][["layer", "head", kind]].itertuples(index=False)
            for column, (layer, head, score) in enumerate(drawn):
                name = Head(layer, head)
                attention = prompt.pattern(name)
                panel = page.panel(1.65 + column * slot, line * step + 0.22, size, size)
                paint(panel, attention.masked_fill(prompt.hidden, np.nan).numpy())
                panel.patch.set_facecolor(GREY)
                cells = prompt.targets(kind, attention, scan)
                panel.add_collection(border(cells, 72 * size / length))
                panel.set_title(f"{name}  {'no score' if pd.isna(score) else f'{score:.2f}'}")
                lowest = column >= widths[line + 1]
                whole_ticks(panel, "key", "query", bottom=lowest, first=column == 0)
        if plain:
            page.text(0.15, 0.24, "no label", size=8, weight="bold")
            page.text(0.15, 0.41, f"{widths[0]} of {len(plain)} shown", color=QUIET)
        for column, name in enumerate(plain[:top]):
            panel = page.panel(1.65 + column * slot, 0.22, size, size)
            paint(panel, prompt.pattern(name).masked_fill(prompt.hidden, np.nan).numpy())
            panel.patch.set_facecolor(GREY)
            panel.set_title(str(name))
            whole_ticks(panel, "key", "query", bottom=True, first=column == 0)
        if kinds or plain:
            outlined = "targets of the kind" if kinds else None
            page.foot("attention from query to key", legend(prompt, outlined))
    return page.figure


def _unlabelled(
    scan: HeadScan, names: Sequence[str], words: Sequence[str], prompt: Shown
) -> list[Head]:
    """Those of the heads that the patterns hold, if none of all these carries a label."""
    if any(scan.having(word)["name"].isin(names).any() for word in words):
        return []
    heads = map(Head.parse, names)
    return [head for head in heads if head.layer in prompt.layers]


def legend(prompt: Shown, targets: str | None) -> list[Patch]:
    """What the colours mean, besides the weights: the outlined `targets`, and what is hidden."""
    patches = []
    if targets is not None:
        patches.append(Patch(facecolor="none", edgecolor=ACCENT, label=targets))
    if prompt.causal:
        patches.append(Patch(facecolor=GREY, label="later tokens: out of sight"))
    return patches


def _page_notes(
    over: str, kinds: Sequence[str], without: Sequence[str], head: str, copy: str
) -> list[str]:
    labels = ", ".join(without)
    if not kinds:
        return [f"No {head} carries any of the labels: {labels}."]
    notes = [
        f"The numbers are scores: mean attention mass on the kind's targets over {over}."
        f" The pictures show this one example prompt; every {copy} copy is a target."
        " Layers, heads and positions count from 0."
    ]
    return notes + ([f"No {head} carries the label: {labels}."] if without else [])


def pooled_notes(tokens: int, size: float) -> list[str]:
    """A sentence for a panel of `size` inches that has no dot for each of so many tokens."""
    several = math.ceil(round(tokens / (300 * size), 6))
    told = f"A dot of a picture is the largest weight among {several} queries and {several} keys."
    return [told] if several > 1 else []
