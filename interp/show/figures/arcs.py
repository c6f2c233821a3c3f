"""The attention of one query: an arc to each key, as wide as its weight."""

from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from interp.errors import InputError, Whole, checked
from interp.heads import Head
from interp.kinds.kind import KINDS
from interp.scan.table import HeadScan
from interp.show.figures.head import SIZE, SLOT
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, BLUE, styled
from interp.show.figures.texts import inches, labels_of
from interp.show.figures.words import head_name, kind_of_head, size
from interp.show.prompt import one_prompt

WIDEST = 6.0
"""Points of a line whose weight is 1."""

LEAST, NUMBERED = 0.01, 0.1
"""Least weight that is drawn, and least weight with a number at its arc."""


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
    prompt = one_prompt(patterns, tokens, **source)
    head = Head.parse(head)
    length = len(prompt.text)
    query = length - 1 if query is None else query
    if not 0 <= query < length:
        raise InputError(f"query must be from 0 to {length - 1}, got {query}")
    weights = prompt.pattern(head)[query].tolist()
    kind = kind_of_head(scan, head, prompt)
    targets = prompt.targets_of(kind, head, scan)
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
        head_name(scan, head),
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
            look |= {
                "linewidth": WIDEST * weights[key],
                "edgecolor": ACCENT if aimed[key] else BLUE,
            }
            # From the query over to the key; to itself, a loop.
            loop = 0.3 / slot if key == query else 0
            points = [
                (query, 0),
                (query + loop, heights[key]),
                (key - loop, heights[key]),
                (key, 0),
            ]
            path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
            panel.add_patch(PathPatch(path, **look))
        for key in _apart([key for key in drawn if weights[key] >= NUMBERED], 0.6 / slot):
            panel.annotate(
                f"{weights[key]:.2f}",
                ((query + key) / 2, 0.75 * heights[key]),
                (0, WIDEST * weights[key] / 2 + 1),
                textcoords="offset points",
                size=6,
                ha="center",
                va="bottom",
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )
        panel.set_xticks(named, [labels[place] for place in named], rotation=90, size=SIZE)
        panel.plot(query, 0, "o", color="black", markersize=4, clip_on=False, zorder=3)
        lines = [(BLUE, weight, f"weight {weight:g}") for weight in (0.1, 0.5, 1)]
        if kind is not None:
            lines.append((ACCENT, 0.5, f"to a target: {KINDS[kind].label}"))
        handles = [
            Line2D([], [], color=shade, linewidth=WIDEST * weight, label=words)
            for shade, weight, words in lines
        ]
        page.legend(handles, 0.1, page.body - 0.42, ncols=4)
    return page.figure


def _apart(places: Iterable[int], gap: float) -> list[int]:
    """The places that are at least `gap` from all chosen before them, in the given order."""
    chosen: list[int] = []
    for place in places:
        if all(abs(place - other) >= gap - 1e-9 for other in chosen):
            chosen.append(place)
    return chosen
