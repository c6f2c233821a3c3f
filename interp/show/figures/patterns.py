"""Attention patterns: heads side by side, the strongest of each kind, the zoo, designed heads."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from interp.errors import Count, Whole, checked
from interp.heads import Head
from interp.kinds.builtin import kinds_of
from interp.kinds.looks import ideal
from interp.scan.table import HeadScan
from interp.show.about import scored_over, zoo_heads
from interp.show.figures.page import Page, drawn, paint, paint_pattern, pattern_legend
from interp.show.figures.words import in_words, inches, model_name, of_head, pooled_note
from interp.show.prompt import Prompt, one_prompt

SIDE = 1.55
"""Largest side of one of several patterns, in inches."""

ACROSS: dict[str, Any] = {"across": "key", "down": "query", "square": True, "slot": 0.8}


@drawn
@checked
def heads_row(
    patterns: Any,
    heads: Collection[Any],
    *,
    scan: HeadScan | None = None,
    row: Whole | None = None,
    whole: Whole | None = None,
) -> Page:
    """The attention of some heads on one prompt, side by side.

    Queries down and keys across, from 0 to 1. With a scan each head has its label and score
    above, and the targets of its kind are outlined.

    Args:
        patterns: As for `head_page`.
        heads: Heads in the order of the pictures; one that is given twice is drawn once.
        scan: Table of the same model.
        row: As for `head_page`.
        whole: As for `head_page`.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> patterns = interp.attention_patterns(toy, [[0, *range(5, 15), *range(5, 15)]])
        >>> row = heads_row(patterns, ["L0H3", "L1H5"], width=3.3, context="paper")
        >>> [panel.get_title(loc="left") for panel in row.axes[:2]]
        ['L0H3', 'L1H5']
    """
    prompt = one_prompt(patterns, row=row, whole=whole)
    chosen = [*dict.fromkeys(map(Head.parse, heads))]
    about = {head: of_head(scan, head, prompt) for head in chosen}
    title = " and ".join([", ".join(map(str, chosen[:-1]))] * (len(chosen) > 1) + [str(chosen[-1])])
    page = Page(
        f"{'' if scan is None else f'{model_name(scan)}: '}attention of {title}",
        in_words(prompt, {} if scan is None else scan.made_by),
        notes="Layers, heads and positions count from 0.",
    )
    titles = [f"{head}{short and f': {short}'}" for head, (_, short, _, _) in about.items()]
    most = max(3, page.width // 1.7)
    panels = page.grid(titles, 2.2, **ACROSS, most=int(most))
    for panel, head in zip(panels, chosen):
        kind = about[head][3]
        paint_pattern(panel, prompt, prompt.pattern(head), prompt.targets_of(kind, scan, head))
    _foot(page, prompt, "targets of the kind" if any(kind for *_, kind in about.values()) else None)
    return page


def _foot(page: Page, prompt: Prompt, outlined: str | None) -> None:
    """The legend of the patterns, and a note if they have no dot for each cell."""
    page.notes += pooled_note(prompt, page.size_of(page.figure.axes[0])[0])
    page.bar("attention weight")
    page.legend(pattern_legend(prompt.causal, outlined, template=bool(prompt.templated)))


@drawn
@checked
def pattern_page(
    scan: HeadScan,
    patterns: Any,
    *,
    top: Count = 4,
    heads: Collection[Any] | None = None,
    kinds: Collection[str] | None = None,
    repeat: bool = False,
    row: Whole | None = None,
    whole: Whole | None = None,
) -> Page:
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
        repeat: Whether a head that carries several labels is drawn with each of them, not only
            with the most specific one.
        row: As for `head_page`.
        whole: As for `head_page`.
    """
    prompt, frame = one_prompt(patterns, row=row, whole=whole), scan.frame
    names = frame["name"].tolist() if heads is None else [str(Head.parse(head)) for head in heads]
    every = kinds_of(prompt.causal, scan.kinds)
    having = {name: scan.having(kind.label) for name, kind in every.items()}
    wanted, taken = {}, set()
    for kind, rows in having.items():
        if kinds is None or kind in kinds:
            some = rows.loc[rows["name"].isin(names) & ~rows["name"].isin([*taken])]
            wanted[kind] = some.head(top)
            taken |= set() if repeat else {*wanted[kind]["name"]}
    carried = any(rows["name"].isin(names).any() for rows in having.values())
    empty = [kind for kind, rows in wanted.items() if rows.empty]
    above = [kind for kind in empty if taken & {*having[kind]["name"]}]
    without = ", ".join(every[kind].label for kind in empty if kind not in above)
    # Each line has a name, words about it, a kind, and heads with their scores.
    lines = []
    for kind, rows in wanted.items():
        if not rows.empty:
            where = every[kind].looks(scan.thresholds, causal=prompt.causal)
            about = f"{where}; {len(rows)} of {len(having[kind])} shown"
            scores = ["no score" if pd.isna(score) else f"{score:.2f}" for score in rows[kind]]
            shown = dict(zip(map(Head.parse, rows["name"]), scores, strict=True))
            lines.append((every[kind].label, about, every[kind], shown))
    title = f"the {'strongest ' if heads is None else ''}heads of each kind"
    notes = (
        "Above each picture: the score, the mean attention mass on the targets over"
        f" {scored_over(scan)}. Layers, heads and positions count from 0."
    ) * bool(lines)
    if without:
        subject = "No head" if heads is None else "None of the chosen heads"
        notes += f" {subject} carries {'the label' if lines else 'any of the labels'}: {without}."
    if above:
        notes += f" Drawn above: the heads of {', '.join(every[kind].label for kind in above)}."
    plain = [head for head in map(Head.parse, names) if head.layer in prompt.layers]
    if plain and not carried:
        title, shown = "heads without a label", dict.fromkeys(plain[:top], "")
        lines = [("no label", f"{len(shown)} of {len(plain)} shown", None, shown)]
    page = Page(
        f"{model_name(scan)}: {title}",
        in_words(prompt, scan.made_by),
        notes=notes.lstrip(),
    )
    for place, (name, about, kind, shown) in enumerate(lines):
        end = page.heading(name, about)
        titles = [f"{head}  {score}".rstrip() for head, score in shown.items()]
        look = ACROSS if place == len(lines) - 1 else {**ACROSS, "across": ""}
        panels = page.grid(titles, 1.12, **look, most=4, top=end)
        for panel, head in zip(panels, shown):
            targets = prompt.targets_of(kind, scan, head)
            paint_pattern(panel, prompt, prompt.pattern(head), targets)
    if lines:
        _foot(page, prompt, None if lines[0][2] is None else "targets of the kind")
    return page


@drawn
@checked
def head_zoo(
    scan: HeadScan, patterns: Any, *, row: Whole | None = None, whole: Whole | None = None
) -> Page:
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
    prompt = one_prompt(patterns, row=row, whole=whole)
    kinds, heads, causal = kinds_of(prompt.causal, scan.kinds), zoo_heads(scan), prompt.causal
    kinds = {name: kind for name, kind in kinds.items() if kind.has_rule}
    known = prompt.text.ids, scan.thresholds, prompt.special_ids(scan)
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
        notes="Left: attention spread evenly over the targets, else on the first token. Right: the"
        " strongest head with the label first, and its score, the mean attention mass on the"
        f" targets over {scored_over(scan)}."
        + (f" No query of this prompt has a target of these kinds: {none}." if none else ""),
    )
    titles, over, scores = [], [], scan.frame.set_index("name")
    for name, kind in kinds.items():
        head = heads.get(name)
        real = f"{head}  {scores[name].to_dict()[str(head)]:.2f}" if head else "no head"
        titles += ["ideal", real]
        over.append(f"{kind.label}: {kind.looks(known[1], causal=causal)}")
    panels = page.grid(titles, 1.3, **{**ACROSS, "slot": 0.9}, most=6, group=2, over=over)
    for name, kind in kinds.items():
        paint_pattern(next(panels), prompt, ideal(kind, *known, **more), aims[name])
        panel = next(panels)
        if head := heads.get(name):
            real = prompt.pattern(head), prompt.targets_of(kind, scan, head)
            paint_pattern(panel, prompt, *real)
        else:
            panel.set_axis_off()
    _foot(page, prompt, "targets of the kind")
    return page


@drawn
def designed_heads(
    words: Sequence[str], patterns: Mapping[str, Float[Tensor, "query key"]], *, window: int
) -> Page:
    """Attention pattern of each head designed by hand; queries down, keys across, from 0 to 1.

    `words` are the tokens, `patterns` those of `interp.course.designed.patterns` by name, and
    `window` is the number of tokens that the local head sees, the query included.
    """
    page = Page(
        "Four heads designed by hand",
        f"Causal attention on “{' '.join(words)}” from W_Q and W_K; the local window has"
        f" {window} tokens.",
        notes="noun to pronoun: “it” is the only pronoun, so all other rows are even.",
    )
    left = 0.35 + max(inches(word, 7) for word in words)
    panels = page.grid([*patterns], SIDE, **{**ACROSS, "slot": 1.1}, most=4, left=left)
    for panel, pattern in zip(panels, patterns.values()):
        later = np.triu(np.ones(pattern.shape, dtype=bool), 1)
        paint(panel, np.where(later, np.nan, pattern.numpy()))
        panel.set_xticks(range(len(words)), words, rotation=90)
        panel.set_yticks(range(len(words)), words)
    page.bar("attention weight")
    page.legend(pattern_legend(causal=True))
    return page
