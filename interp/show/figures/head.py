"""One head: every query and key with its token, the arcs of one query, and its evidence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from interp.errors import InputError, Whole, checked
from interp.heads import Head
from interp.scan.explain import row_of
from interp.scan.table import HeadScan
from interp.show.figures.page import (
    LINE,
    SIZE,
    Page,
    drawn,
    name_ticks,
    paint_pattern,
    pattern_legend,
)
from interp.show.figures.style import ACCENT, BLUE, QUIET, SKY, SPECIAL, TEMPLATE
from interp.show.figures.words import (
    in_words,
    inches,
    labels_of,
    model_name,
    of_head,
    size,
    what_was_run,
    wrapped,
)
from interp.show.prompt import one_prompt

SLOT = 0.115
"""Inches between two tokens that are named."""


@drawn
@checked
def head_page(
    patterns: Any,
    head: Any,
    tokens: Any = None,
    *,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    row: Whole | None = None,
    whole: Whole | None = None,
    scan: HeadScan | None = None,
    causal: bool | None = None,
) -> Page:
    """The attention of one head on one prompt, each cell at its tokens.

    Queries down, keys across, from 0 to 1; keys that a causal head cannot see are grey. With a
    scan the targets of the head's kind are outlined. If there is no room for every token's name,
    every second, third and so on has one.

    Args:
        patterns: Result of `attention_patterns`, or attention after the softmax of any source
            that `interp.read_patterns` takes.
        head: `L5H1`, `5.1`, `(5, 1)` or `Head(5, 1)`.
        tokens: Token ids that were run, if `patterns` do not carry them.
        texts: Text of each token; `<id>` by default.
        layers: Numbers of the layers, if `patterns` do not carry them; `0, 1, ...` by default.
        row: Row of a batch; a batch of several prompts requires it.
        whole: Number of tokens of the whole prompt, if `patterns` are of its first ones only.
        scan: Table of the same model, for its name, the head's label and its score.
        causal: Whether each query sees only itself and earlier tokens, as for `interp.gallery`.
    """
    source = {"tokens": tokens, "texts": texts, "layers": layers, "causal": causal}
    prompt = one_prompt(patterns, row=row, whole=whole, cross=True, **source)
    head = Head.parse(head)
    (name, label, about, kind), pattern = of_head(scan, head, prompt), prompt.pattern(head)
    page = Page(
        f"{name}{label and f', {label}'}",
        in_words(prompt, {} if scan is None else scan.made_by),
        least=min(1.3 + SLOT * prompt.longest, 8.8),
    )
    longest = min(1.1, page.width / 6)
    named = [labels_of(text, width=longest, size=SIZE) for text in (prompt.text, prompt.across)]
    left = 0.35 + max(inches(word, SIZE) for word in named[0])
    side = min(
        max(0.3 * prompt.longest, 1.5), 5.6 if page.width < 7 else 9, page.width - left - 0.15
    )
    high, wide = (side * number / prompt.longest for number in pattern.shape)
    step = int(np.ceil(round(SLOT * prompt.longest / side, 6)))
    down, across = (labels[::step] for labels in named)
    page.notes = f"Layers and heads count from 0.{about}"
    if step > 1:
        page.notes += f" Every {({2: 'second', 3: 'third'}).get(step, f'{step}th')} token is named."
    page.notes += " … marks a cut token." * any("…" in label for label in [*down, *across])
    panel = page.panel(left, 0.1, wide, high)
    paint_pattern(panel, prompt, pattern, prompt.targets_of(kind, scan, head))
    queries, keys = (range(0, number, step) for number in pattern.shape)
    ids = prompt.special_ids(scan)
    special = [text.special(ids) for text in (prompt.across, prompt.text)]
    name_ticks(panel.xaxis, keys, across, prompt, special[0])
    name_ticks(panel.yaxis, queries, down, prompt, special[1])
    panel.tick_params(axis="x", labelrotation=90)
    panel.set(xlabel="key", ylabel="query")
    targets = f"targets: {kind.label}" if kind is not None else None
    page.bar("attention weight")
    more = {"template": bool(prompt.templated), "special": any(special)}
    page.legend(pattern_legend(prompt.causal, targets, **more))
    return page


WIDEST, LEAST, NUMBERED = 6.0, 0.01, 0.1
"""Points of a line whose weight is 1; least weight that is drawn, and that has a number."""


@drawn
@checked
def attention_arcs(
    patterns: Any,
    head: Any,
    query: Whole | None = None,
    tokens: Any = None,
    *,
    scan: HeadScan | None = None,
    **source: Any,
) -> Page:
    """The attention of one query of a head: the prompt as text, an arc from the query to each key.

    The width of a line is the weight, from 0 to 1 on the same scale in every figure; numbers are
    below the keys. With a scan, arcs to the targets of the head's kind are orange. Weights below
    0.01 are not drawn; the notes give their sum.

    Arguments are those of `head_page` (`texts`, `layers`, `row`, `whole` and `causal` too), and
    `query`, the position of the query (by default the last). Cross-attention is refused.
    """
    prompt = one_prompt(patterns, tokens=tokens, **source)
    head = Head.parse(head)
    length = len(prompt.text)
    query = length - 1 if query is None else query
    if not 0 <= query < length:
        raise InputError(f"query must be from 0 to {length - 1}, got {query}")
    weights = prompt.pattern(head)[query].tolist()
    name, label, _, kind = of_head(scan, head, prompt)
    targets = prompt.targets_of(kind, scan, head)
    aimed = [False] * length if targets is None else targets[query].tolist()
    labels = labels_of(prompt.text, width=1.1, size=SIZE)
    shown = [key for key in np.argsort(weights)[::-1].tolist() if weights[key] >= LEAST]
    rest = sum(weight for weight in weights if weight < LEAST)
    page = Page(
        f"{name}{label and f', {label}'}",
        f"Attention of query {query}, “{labels[query]}” (framed). Prompt: {size(prompt)}.",
        notes=f"Width: attention weight. Weights under {LEAST:g} are not drawn: {rest:.2f} in all."
        " Positions, layers and heads count from 0.",
    )
    places, lines = _running(labels, {*shown, query}, page.width)
    # A line of text is as high as its arcs, of which those to other lines need little.
    tops, top = [], 0.0
    for line in range(lines):
        inside = [key for key in shown if places[key][0] == line == places[query][0]]
        far = max((abs(places[key][1] - places[query][1]) for key in inside), default=0.0)
        marked = any(places[key][0] == line for key in (*shown, query))
        top += 0.17 + 0.2 * (line == places[query][0]) + min(0.25 * far, 0.9) * bool(inside)
        tops.append(top)
        top += LINE * marked
    panel = page.panel(0.0, 0.0, page.width, top + 0.05)
    panel.set(xlim=(0, page.width), ylim=(top + 0.05, 0))
    panel.axis("off")
    special = {*prompt.text.special(prompt.special_ids(scan))}
    for place, (line, x, _) in enumerate(places):
        shade = TEMPLATE if place in prompt.templated else "black"
        look: dict[str, Any] = {"ha": "center", "va": "baseline", "zorder": 4}
        look["path_effects"] = [withStroke(linewidth=2, foreground="white")]
        look["color"] = SPECIAL if place in special else shade
        if place == query:
            look |= {"bbox": {"facecolor": "none", "linewidth": 0.8, "pad": 1.5}}
        panel.text(x, tops[line], labels[place], gid=f"token {place}", **look)
        if place in shown and weights[place] >= NUMBERED:
            look |= {"color": ACCENT if aimed[place] else BLUE, "bbox": None}
            panel.text(x, tops[line] + LINE, f"{weights[place]:.2f}", **look)
    for key in reversed(shown):
        (line, x, _), (at, from_x, _) = places[key], places[query]
        start, end = tops[at] - 0.11, tops[line] - 0.11
        if line == at:
            # The peak of a curve is 3/4 as high as its control points; to itself, a loop.
            up = 4 / 3 * min(0.05 + 0.25 * abs(x - from_x), 0.95)
            loop = 0.2 if key == query else 0.0
            points = [(from_x, start), (from_x + loop, start - up), (x - loop, end - up), (x, end)]
        else:
            end += 0.0 if line > at else 0.15 + LINE * (weights[key] >= NUMBERED)
            points = [
                (from_x, start),
                (from_x, (start + end) / 2),
                (x, (start + end) / 2),
                (x, end),
            ]
        path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        look = {"facecolor": "none", "alpha": 0.8, "gid": f"{query} to {key}"}
        look["edgecolor"] = ACCENT if aimed[key] else BLUE
        panel.add_patch(PathPatch(path, linewidth=WIDEST * weights[key], **look))
    keys = [(BLUE, weight, f"weight {weight:g}") for weight in (0.1, 0.5, 1)]
    if kind is not None:
        keys.append((ACCENT, 0.5, f"to a target: {kind.label}"))
    handles = [Line2D([], [], color=c, linewidth=WIDEST * w, label=words) for c, w, words in keys]
    marks = pattern_legend(False, template=bool(prompt.templated), special=bool(special))
    page.legend([*handles, *marks])
    return page


def _running(
    labels: Sequence[str], numbered: set[int], width: float
) -> tuple[list[tuple[int, float, float]], int]:
    """The line, middle and width in inches of each token of running text, and how many lines."""
    places, line, left = [], 0, 0.12
    for place, label in enumerate(labels):
        wide = max(inches(label, SIZE), 0.24 if place in numbered else 0.0)
        if left + wide > width - 0.12:
            line, left = line + 1, 0.12
        places.append((line, left + wide / 2, wide))
        left += wide + 0.05
    return places, line + 1


@drawn
@checked
def head_card(
    scan: HeadScan, head: Any, patterns: Any = None, *, others: Sequence[Any] = ()
) -> Page:
    """One head for a colleague: its score of every kind, its pattern, and the evidence in words.

    A bar is a score, from 0 to 1, with its 95 % interval; it is orange if the head has the label.
    Black marks are the scores that a label needs, grey bars what is found where there is nothing
    to find (the null).

    Args:
        scan: Table with the head.
        head: `L5H1`, `5.1`, `(5, 1)` or `Head(5, 1)`.
        patterns: Patterns of the same model on one prompt, as for `head_page`; no picture without.
        others: Further results, as for `HeadScan.explain`.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> card = head_card(interp.scan_heads(toy, rows=2, quick=True), "L1H5", width=3.3)
        >>> [label.get_text() for label in card.axes[0].get_yticklabels()][:2]
        ['induction', 'duplicate token']
    """
    head = Head.parse(head)
    name, *lines = scan.explain(head, others).splitlines()
    row = row_of(scan, head)
    page = Page(f"{model_name(scan)}: {name}", what_was_run(scan))
    kinds = {name: kind for name, kind in scan.kinds.items() if name in row}
    left = 0.2 + max(inches(kind.label, SIZE) for kind in kinds.values())
    high = max(0.21 * len(kinds), 1.25)
    pictured = patterns is not None
    beside = pictured and page.width > 5
    wide = page.width - left - 0.15 - beside * (high + 0.7)
    panel = page.panel(left, 0.05, wide, high)
    for place, (name, kind) in enumerate(kinds.items()):
        held = {*kind.scored_labels} & {*row["labels"]}
        panel.barh(place, row[name], 0.5, color=ACCENT if held else SKY)
        panel.barh(place, row.get(f"{name}_null_99", 0.0), 0.8, color=QUIET, alpha=0.35)
        if f"{name}_low" in row:
            ends = [row[f"{name}_low"], row[f"{name}_high"]]
            panel.plot(ends, [place] * 2, color="black", linewidth=0.8)
        chance = row.get(f"{name}_chance", 0.0)
        needed = chance + scan.thresholds[name] * (1 - chance)
        panel.plot([needed] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.2)
    panel.set_yticks(range(len(kinds)), [kind.label for kind in kinds.values()])
    panel.set(xlim=(0, 1), ylim=(len(kinds) - 0.5, -0.5), xlabel="score")
    if pictured:
        prompt = one_prompt(patterns)
        side = high if beside else min(2.2, page.width - 0.8)
        corner = (page.width - 0.15 - side, 0.05) if beside else (0.5, page.below(0.12))
        picture = page.panel(*corner, side, side)
        *_, kind = of_head(scan, head, prompt)
        paint_pattern(picture, prompt, prompt.pattern(head), prompt.targets_of(kind, scan, head))
        picture.set(xlabel="key", ylabel="query")
    marks = [
        Patch(color=ACCENT, label="score of its labels"),
        Patch(color=SKY, label="other score"),
        Patch(color=QUIET, alpha=0.35, label="null (99 %)"),
        Line2D(
            [],
            [],
            color="black",
            linewidth=0,
            marker="|",
            markersize=6,
            label="score that a label needs",
        ),
    ]
    page.legend(marks)
    top = page.below(0.12)
    for line in lines:
        words = wrapped(line, page.width - 0.2)
        page.text(0.1, top, words)
        top += LINE * (words.count("\n") + 1) + 0.05
    return page
