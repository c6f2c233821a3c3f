"""The attention of the strongest heads of each kind, drawn in full."""

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from interp.errors import Count, Whole, checked
from interp.heads import Head
from interp.kinds.kind import KINDS, kinds_in, kinds_of
from interp.scan.table import HeadScan
from interp.show.about import scored_over, thresholds_of
from interp.show.figures.page import Page, paint_pattern, pattern_legend, pooled, whole_ticks
from interp.show.figures.style import QUIET, styled
from interp.show.figures.texts import wrapped
from interp.show.figures.words import in_words, model_name
from interp.show.prompt import Prompt, one_prompt

SIZE, SLOT, STEP = 1.24, 1.37, 1.57
"""Inches of a panel's side, and from one to the next, across and down."""


@checked
def pattern_page(
    scan: HeadScan,
    patterns: Any,
    *,
    top: Count = 4,
    heads: Collection[Any] | None = None,
    kinds: Collection[str] | None = None,
    row: Whole | None = None,
    whole: Whole | None = None,
) -> Figure:
    """The attention of the strongest heads of each kind, on one prompt.

    One row of pictures per kind that has heads, queries down and keys across, from 0 to 1.
    The kind's targets are outlined: for a sink, the first token and the other columns where
    this head rests. The number above a picture is the head's score in `scan`. If no head carries
    a label, the first ones are drawn as they are.

    Args:
        scan: Labels and scores of the heads.
        patterns: Patterns of the same model, with the layers of the heads to draw.
        top: Most heads of each kind.
        heads: Heads to choose from; all by default.
        kinds: Kinds to draw; all by default.
        row: Row of a batch; a batch of several prompts requires it.
        whole: Number of tokens of the whole prompt, if `patterns` are of its first ones only.
    """
    prompt = one_prompt(patterns, row=row, whole=whole)
    thresholds, causal = thresholds_of(scan), prompt.causal
    known = kinds_in(scan.frame.columns).keys() & kinds_of(causal).keys()
    words = {name: kind.label for name, kind in KINDS.items() if name in known}
    names = (
        scan.frame["name"].tolist() if heads is None else [str(Head.parse(head)) for head in heads]
    )
    having = {
        kind: scan.having(word) for kind, word in words.items() if kinds is None or kind in kinds
    }
    shown = {kind: rows.loc[rows["name"].isin(names)].head(top) for kind, rows in having.items()}
    without = ", ".join(words[kind] for kind, rows in shown.items() if rows.empty)
    shown = {kind: rows for kind, rows in shown.items() if not rows.empty}
    plain = [] if shown else _unlabelled(scan, names, list(words.values()), prompt)
    widths = [len(rows) for rows in shown.values()] or [len(plain[:top])]
    rows = max(len(shown), 1) if shown or plain else 0
    title = "heads without a label" if plain else "the heads of each kind"
    if heads is None and not plain:
        title = "the strongest heads of each kind"
    head = "No head" if heads is None else "None of the chosen heads"
    notes = [f"{head} carries {'the label' if shown else 'any of the labels'}: {without}."]
    notes = notes if without else []
    if shown:
        notes.insert(
            0,
            f"Above each picture: the score, the mean attention mass on the targets over"
            f" {scored_over(scan)}. Layers, heads and positions count from 0.",
        )
    page = Page(
        f"{model_name(scan)}: {title}",
        in_words(prompt, scan.made_by),
        width=max(7.2, 1.75 + SLOT * max(widths)),
        body=rows * STEP + 0.85 if rows else 0.15,
        notes=[" ".join(notes + pooled_note(prompt, SIZE))],
    )
    with styled():
        for line, (kind, drawn) in enumerate(shown.items()):
            where = wrapped(KINDS[kind].looks(thresholds, causal=causal), 1.05)
            counted = f"{where}\n{len(drawn)} of {len(having[kind])} shown"
            _label(page, line, words[kind], counted)
            for column, record in enumerate(drawn.to_dict("records")):
                name, score = Head.parse(record["name"]), record[kind]
                panel = page.panel(1.65 + column * SLOT, line * STEP + 0.22, SIZE, SIZE)
                targets = prompt.targets_of(kind, name, scan)
                paint_pattern(panel, prompt, prompt.pattern(name), targets)
                panel.set_title(f"{name}  {'no score' if pd.isna(score) else f'{score:.2f}'}")
                lowest = column >= [*widths, 0][line + 1]
                whole_ticks(panel, "key", "query", bottom=lowest, first=column == 0)
        if plain:
            _label(page, 0, "no label", f"{widths[0]} of {len(plain)} shown")
        for column, name in enumerate(plain[:top]):
            panel = page.panel(1.65 + column * SLOT, 0.22, SIZE, SIZE)
            paint_pattern(panel, prompt, prompt.pattern(name))
            panel.set_title(str(name))
            whole_ticks(panel, "key", "query", bottom=True, first=column == 0)
        if rows:
            outlined = "targets of the kind" if shown else None
            page.foot("attention weight", pattern_legend(prompt, outlined))
    return page.figure


def _label(page: Page, line: int, name: str, about: str) -> None:
    """The words to the left of a row of pictures."""
    page.text(0.15, line * STEP + 0.24, name, size=8, weight="bold")
    page.text(0.15, line * STEP + 0.41, about, color=QUIET)


def _unlabelled(
    scan: HeadScan, names: Sequence[str], words: Sequence[str], prompt: Prompt
) -> list[Head]:
    """The heads that the patterns hold; empty if one of `names` carries a label."""
    if any(scan.having(word)["name"].isin(names).any() for word in words):
        return []
    return [head for head in map(Head.parse, names) if head.layer in prompt.layers]


def pooled_note(prompt: Prompt, size: float) -> list[str]:
    """A sentence for a panel of `size` inches that has no dot for each cell."""
    pool = pooled(prompt.longest, size)
    return [f"Each dot is the largest weight of {pool} x {pool} cells."] if pool > 1 else []
