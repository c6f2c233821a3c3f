"""The attention of the strongest heads of each kind, drawn in full."""

from collections.abc import Collection
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from interp.errors import Count, Whole, checked
from interp.heads import Head
from interp.kinds.kind import KINDS, kinds_in, kinds_of
from interp.scan.table import HeadScan
from interp.show.about import scored_over, thresholds_of
from interp.show.figures.page import Page, paint_pattern, pattern_legend, whole_ticks
from interp.show.figures.style import QUIET, styled
from interp.show.figures.texts import wrapped
from interp.show.figures.words import in_words, model_name, pooled_note
from interp.show.prompt import one_prompt

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
    frame = scan.frame
    names = frame["name"].tolist() if heads is None else [str(Head.parse(head)) for head in heads]
    known = kinds_in(frame.columns).keys() & kinds_of(prompt.causal).keys()
    having = {kind: scan.having(KINDS[kind].label) for kind in KINDS if kind in known}
    chosen = {kind: rows.loc[rows["name"].isin(names)].head(top) for kind, rows in having.items()}
    carried = any(len(rows) for rows in chosen.values())
    wanted = {kind: rows for kind, rows in chosen.items() if kinds is None or kind in kinds}
    without = ", ".join(KINDS[kind].label for kind, rows in wanted.items() if rows.empty)
    # Each line has a name, words about it, a kind, and heads with their scores.
    lines = []
    for kind, rows in wanted.items():
        if not rows.empty:
            where = wrapped(KINDS[kind].looks(thresholds_of(scan), causal=prompt.causal), 1.05)
            about = f"{where}\n{len(rows)} of {len(having[kind])} shown"
            scores = ["no score" if pd.isna(score) else f"{score:.2f}" for score in rows[kind]]
            drawn = dict(zip(map(Head.parse, rows["name"]), scores, strict=True))
            lines.append((KINDS[kind].label, about, kind, drawn))
    title = "the heads of each kind" if heads is not None else "the strongest heads of each kind"
    notes = ""
    if lines:
        notes = (
            "Above each picture: the score, the mean attention mass on the targets over"
            f" {scored_over(scan)}. Layers, heads and positions count from 0."
        )
    if without:
        subject = "No head" if heads is None else "None of the chosen heads"
        notes += f" {subject} carries {'the label' if lines else 'any of the labels'}: {without}."
    plain = [head for head in map(Head.parse, names) if head.layer in prompt.layers]
    if plain and not carried:
        title, drawn = "heads without a label", dict.fromkeys(plain[:top], "")
        lines = [("no label", f"{len(drawn)} of {len(plain)} shown", None, drawn)]
    widths = [len(drawn) for *_, drawn in lines]
    page = Page(
        f"{model_name(scan)}: {title}",
        in_words(prompt, scan.made_by),
        width=max(7.2, 1.75 + SLOT * max(widths, default=0)),
        body=len(lines) * STEP + 0.85 if lines else 0.15,
        notes=notes.lstrip() + pooled_note(prompt, SIZE),
    )
    with styled():
        for line, (name, about, kind, drawn) in enumerate(lines):
            page.text(0.15, line * STEP + 0.24, name, size=8, weight="bold")
            page.text(0.15, line * STEP + 0.41, about, color=QUIET)
            for column, (head, score) in enumerate(drawn.items()):
                panel = page.panel(1.65 + column * SLOT, line * STEP + 0.22, SIZE, SIZE)
                targets = prompt.targets_of(kind, head, scan)
                paint_pattern(panel, prompt, prompt.pattern(head), targets)
                panel.set_title(f"{head}  {score}".rstrip())
                lowest = column >= [*widths, 0][line + 1]
                whole_ticks(panel, "key", "query", bottom=lowest, first=column == 0)
        if lines:
            outlined = None if lines[0][2] is None else "targets of the kind"
            page.foot("attention weight", pattern_legend(prompt.causal, outlined))
    return page.figure
