"""One head: every query and key with its token, and the arcs of one query."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from interp.errors import InputError, Whole, checked
from interp.heads import Head
from interp.scan.table import HeadScan
from interp.show.figures.page import SIZE, Page, name_ticks, paint_pattern, pattern_legend
from interp.show.figures.style import ACCENT, BLUE, styled
from interp.show.figures.words import in_words, inches, labels_of, of_head, size
from interp.show.prompt import one_prompt

SLOT = 0.1
"""Inches between two tokens that are named."""


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
) -> Figure:
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
    (name, about, kind), pattern = of_head(scan, head, prompt), prompt.pattern(head)
    side = min(max(min(0.3 * prompt.longest, 5.6), SLOT * prompt.longest), 7.6)
    high, wide = (side * number / prompt.longest for number in pattern.shape)
    step = int(np.ceil(round(SLOT * prompt.longest / side, 6)))
    down, across = (
        labels_of(text, width=1.1, size=SIZE)[::step] for text in (prompt.text, prompt.across)
    )
    left, under = (0.45 + max(inches(word, SIZE) for word in words) for words in (down, across))
    ordinal = {2: "second", 3: "third"}.get(step, f"{step}th")
    named = "" if step == 1 else f" Every {ordinal} token is named."
    cut = " … marks a cut token." if any("…" in label for label in [*down, *across]) else ""
    page = Page(
        name,
        in_words(prompt, {} if scan is None else scan.made_by),
        width=max(7.2, left + wide + 0.2),
        body=0.1 + high + under + 0.6,
        notes=f"Layers and heads count from 0.{about}{named}{cut}",
    )
    with styled():
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
        added, marked = bool(prompt.templated), any(special)
        legend = pattern_legend(prompt.causal, targets, template=added, special=marked)
        page.foot("attention weight", legend)
    return page.figure


WIDEST, LEAST, NUMBERED = 6.0, 0.01, 0.1
"""Points of a line whose weight is 1; least weight that is drawn, and that has a number."""


@checked
def attention_arcs(
    patterns: Any,
    head: Any,
    query: Whole | None = None,
    tokens: Any = None,
    *,
    scan: HeadScan | None = None,
    **source: Any,
) -> Figure:
    """The attention of one query of a head: tokens in a row, an arc from the query to each key.

    The width of a line is the weight, from 0 to 1 on the same scale in every figure. With a scan,
    arcs to the targets of the head's kind are orange. Weights below 0.01 are not drawn; the notes
    give their sum.

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
    name, _, kind = of_head(scan, head, prompt)
    targets = prompt.targets_of(kind, scan, head)
    aimed = [False] * length if targets is None else targets[query].tolist()

    slot = min(6.6 / length, 0.45)
    strongest = sorted(range(query + 1 if prompt.causal else length), key=lambda k: -weights[k])
    farthest = max(query, 1) if prompt.causal else max(query, length - 1 - query, 1)
    # Heights of the curves' control points grow with distance; the peak of a curve is 3/4 of it.
    heights = [1.25 * (0.15 + 0.85 * abs(query - key) / farthest) for key in range(length)]
    named = _apart([query, *strongest, *range(length)], SLOT / slot)
    labels = labels_of(prompt.text, width=1.1, size=SIZE)
    drawn = [key for key in strongest if weights[key] >= LEAST]
    rest = sum(weights[key] for key in strongest if weights[key] < LEAST)
    page = Page(
        name,
        f"Attention of query {query} (“{labels[query]}”, black dot). Prompt: {size(prompt)}. The"
        " width of a line is its attention weight, from 0 to 1.",
        body=2.7 + max(inches(labels[place], SIZE) for place in named),
        notes=f"Weights under {LEAST:g} are not drawn: {rest:.2f} in all. Weights from {NUMBERED:g}"
        " on are numbered if there is room. Positions, layers and heads count from 0."
        + (" Some tokens have no room for a name." if len(named) < length else ""),
    )
    with styled():
        panel = page.panel(0.2, 0.1, slot * (length + 0.5), 2.0)
        panel.set(xlim=(-0.75, length - 0.25), ylim=(0, 1), yticks=[])
        panel.spines[["left", "right", "top"]].set_visible(False)
        for key in reversed(drawn):
            look: dict[str, Any] = {"facecolor": "none", "alpha": 0.85, "clip_on": False}
            look["edgecolor"] = ACCENT if aimed[key] else BLUE
            # From the query over to the key; to itself, a loop.
            loop, high = 0.3 / slot if key == query else 0, heights[key]
            points = [(query, 0), (query + loop, high), (key - loop, high), (key, 0)]
            path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
            panel.add_patch(PathPatch(path, linewidth=WIDEST * weights[key], **look))
        near: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
        near["path_effects"] = [withStroke(linewidth=1.5, foreground="white")]
        for key in _apart([key for key in drawn if weights[key] >= NUMBERED], 0.6 / slot):
            ends = ((query + key) / 2, 0.75 * heights[key]), (0, WIDEST * weights[key] / 2 + 1)
            panel.annotate(f"{weights[key]:.2f}", *ends, size=6, **near)
        special = prompt.text.special(prompt.special_ids(scan))
        name_ticks(panel.xaxis, named, [labels[place] for place in named], prompt, special)
        panel.tick_params(axis="x", labelrotation=90)
        panel.plot(query, 0, "o", color="black", markersize=4, clip_on=False, zorder=3)
        lines = [(BLUE, weight, f"weight {weight:g}") for weight in (0.1, 0.5, 1)]
        if kind is not None:
            lines.append((ACCENT, 0.5, f"to a target: {kind.label}"))
        widths = [(words, {"color": shade, "linewidth": WIDEST * w}) for shade, w, words in lines]
        handles = [Line2D([], [], label=words, **look) for words, look in widths]
        marks = pattern_legend(False, template=bool(prompt.templated), special=bool(special))
        page.legend([*handles, *marks], 0.1, page.body - 0.42, ncols=6)
    return page.figure


def _apart(places: Iterable[int], gap: float) -> list[int]:
    """The places that are at least `gap` from all chosen before them, in the given order."""
    chosen: list[int] = []
    for place in places:
        if all(abs(place - other) >= gap - 1e-9 for other in chosen):
            chosen.append(place)
    return chosen
