"""Attention patterns: the strongest heads of each kind, the zoo, and heads designed by hand."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from interp.errors import Count, Whole, checked
from interp.heads import Head
from interp.kinds.builtin import kinds_of
from interp.kinds.looks import ideal
from interp.scan.table import HeadScan
from interp.show.about import scored_over, thresholds_of, zoo_heads
from interp.show.figures.page import Page, paint, paint_pattern, pattern_legend, whole_ticks
from interp.show.figures.style import QUIET, styled
from interp.show.figures.words import in_words, model_name, pooled_note, wrapped
from interp.show.prompt import one_prompt


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
        row: As for `head_page`.
        whole: As for `head_page`.
    """
    size, slot, gap = 1.24, 1.37, 1.57  # A panel's side; from one to the next, across and down.
    prompt, frame = one_prompt(patterns, row=row, whole=whole), scan.frame
    names = frame["name"].tolist() if heads is None else [str(Head.parse(head)) for head in heads]
    every = kinds_of(prompt.causal, scan.kinds)
    having = {name: scan.having(kind.label) for name, kind in every.items()}
    chosen = {kind: rows.loc[rows["name"].isin(names)].head(top) for kind, rows in having.items()}
    carried = any(len(rows) for rows in chosen.values())
    wanted = {kind: rows for kind, rows in chosen.items() if kinds is None or kind in kinds}
    without = ", ".join(every[kind].label for kind, rows in wanted.items() if rows.empty)
    # Each line has a name, words about it, a kind, and heads with their scores.
    lines = []
    for kind, rows in wanted.items():
        if not rows.empty:
            where = wrapped(every[kind].looks(thresholds_of(scan), causal=prompt.causal), 1.05)
            about = f"{where}\n{len(rows)} of {len(having[kind])} shown"
            scores = ["no score" if pd.isna(score) else f"{score:.2f}" for score in rows[kind]]
            drawn = dict(zip(map(Head.parse, rows["name"]), scores, strict=True))
            lines.append((every[kind].label, about, every[kind], drawn))
    title = f"the {'strongest ' if heads is None else ''}heads of each kind"
    notes = (
        "Above each picture: the score, the mean attention mass on the targets over"
        f" {scored_over(scan)}. Layers, heads and positions count from 0."
    ) * bool(lines)
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
        width=max(7.2, 1.75 + slot * max(widths, default=0)),
        body=len(lines) * gap + 0.85 if lines else 0.15,
        notes=notes.lstrip() + pooled_note(prompt, size),
    )
    with styled():
        for line, (name, about, kind, drawn) in enumerate(lines):
            page.text(0.15, line * gap + 0.24, name, size=8, weight="bold")
            page.text(0.15, line * gap + 0.41, about, color=QUIET)
            for column, (head, score) in enumerate(drawn.items()):
                panel = page.panel(1.65 + column * slot, line * gap + 0.22, size, size)
                targets = prompt.targets_of(kind, scan, head)
                paint_pattern(panel, prompt, prompt.pattern(head), targets)
                panel.set_title(f"{head}  {score}".rstrip())
                lowest = column >= [*widths, 0][line + 1]
                whole_ticks(panel, "key", "query", bottom=lowest, first=column == 0)
        if lines:
            outlined = None if lines[0][2] is None else "targets of the kind"
            legend = pattern_legend(prompt.causal, outlined, template=bool(prompt.templated))
            page.foot("attention weight", legend)
    return page.figure


@checked
def head_zoo(
    scan: HeadScan, patterns: Any, *, row: Whole | None = None, whole: Whole | None = None
) -> Figure:
    """For each kind its ideal pattern, from the targets, and that of the strongest real head.

    An ideal head spreads its attention evenly over its targets; a query without targets attends
    to the first token. Queries down, keys across, from 0 to 1; the targets are outlined.

    Args:
        scan: Labels of the heads; `zoo_heads` returns those that are drawn.
        patterns: Patterns of the same model on a prompt with repeated tokens, with the layers of
            those heads.
        row: As for `head_page`.
        whole: As for `head_page`.
    """
    size, slot, step = 1.02, 2.3, 1.7  # A panel's side; from a pair to the next, across and down.
    prompt = one_prompt(patterns, row=row, whole=whole)
    kinds, heads, causal = kinds_of(prompt.causal, scan.kinds), zoo_heads(scan), prompt.causal
    kinds = {name: kind for name, kind in kinds.items() if kind.has_rule}
    known = prompt.text.ids, thresholds_of(scan), prompt.special_ids(scan)
    more = {"causal": causal, "texts": prompt.text.texts}
    aims = {name: prompt.targets_of(kind, scan) for name, kind in kinds.items()}
    none = ", ".join(
        kind.label
        for name, kind in kinds.items()
        if (cells := aims[name]) is not None and not cells.any()
    )
    page = Page(
        f"{model_name(scan)}: each kind of head, ideal and real",
        in_words(prompt, scan.made_by),
        body=math.ceil(len(kinds) / 3) * step + 0.75,
        notes="Left: attention spread evenly over the targets, else on the first token. Right: the"
        " strongest head with the label first, and its score, the mean attention mass on the"
        f" targets over {scored_over(scan)}."
        + (f" No query of this prompt has a target of these kinds: {none}." if none else "")
        + pooled_note(prompt, size),
    )
    with styled():
        for place, (name, kind) in enumerate(kinds.items()):
            down, across = divmod(place, 3)
            left, top = 0.45 + across * slot, down * step
            page.text(left, top + 0.02, kind.label, size=8, weight="bold")
            page.text(left, top + 0.17, kind.looks(known[1], causal=causal), color=QUIET)
            pictures: list[Any] = [("ideal", ideal(kind, *known, **more), aims[name])]
            if head := heads.get(name):
                score = scan.frame.set_index("name")[name].to_dict()[str(head)]
                real = prompt.pattern(head), prompt.targets_of(kind, scan, head)
                pictures.append((f"{head}  {score:.2f}", *real))
            else:
                words = wrapped("No head carries the label.", size - 0.1)
                page.text(left + size + 0.12, top + 0.5, words, color=QUIET)
            for column, (title, pattern, targets) in enumerate(pictures):
                panel = page.panel(left + column * (size + 0.06), top + 0.46, size, size)
                paint_pattern(panel, prompt, pattern, targets)
                panel.set_title(title)
                lowest, first = place + 3 >= len(kinds), across == column == 0
                whole_ticks(panel, "key", "query", bottom=lowest, first=first)
        legend = pattern_legend(causal, "targets of the kind", template=bool(prompt.templated))
        page.foot("attention weight", legend)
    return page.figure


def designed_heads(
    words: Sequence[str], patterns: Mapping[str, Float[Tensor, "query key"]], *, window: int
) -> Figure:
    """Attention pattern of each head designed by hand; queries down, keys across, from 0 to 1.

    `words` are the tokens, `patterns` those of `interp.course.designed.patterns` by name, and
    `window` is the number of tokens that the local head sees, the query included.
    """
    page = Page(
        "Four heads designed by hand",
        f"Causal attention on “{' '.join(words)}” from W_Q and W_K; the local window has"
        f" {window} tokens.",
        body=3.05,
        notes="noun to pronoun: “it” is the only pronoun, so all other rows are even.",
    )
    with styled():
        for place, (name, pattern) in enumerate(patterns.items()):
            panel = page.panel(0.65 + place * 1.6, 0.25, 1.45, 1.45)
            later = np.triu(np.ones(pattern.shape, dtype=bool), 1)
            paint(panel, np.where(later, np.nan, pattern.numpy()))
            panel.set_title(name)
            panel.set_xticks(range(len(words)), words, rotation=90)
            panel.set_yticks(range(len(words)), words)
            panel.tick_params(labelleft=place == 0)
            panel.set(xlabel="key", ylabel="query" if place == 0 else "")
        page.foot("attention weight", pattern_legend(causal=True))
    return page.figure
