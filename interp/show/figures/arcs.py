"""Where one query looks: an arc to each key, as wide as its weight."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import KINDS
from interp.scan.table import HeadScan
from interp.show.figures.head import SIZE, SLOT
from interp.show.figures.page import Page
from interp.show.figures.prompts import Shown, kind_of, labels_of
from interp.show.figures.style import ACCENT, styled
from interp.show.figures.texts import inches
from interp.show.figures.words import head_name

BLUE = "#0072b2"

WIDEST = 6.0
"""Points of a line whose weight is 1."""

LEAST = 0.01
"""Least weight that is drawn."""

NUMBERED = 0.1
"""Weight from which on the number stands at the arc."""


def attention_arcs(
    patterns: Any,
    head: Any,
    query: int | None = None,
    tokens: Any = None,
    *,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    row: int | None = None,
    whole: int | None = None,
    scan: HeadScan | None = None,
    causal: bool | None = None,
) -> Figure:
    """The attention of one query of a head: tokens in a row, an arc from the query to each key.

    The width of a line is the weight, from 0 to 1 on the same scale in every figure. Arcs to the
    targets of the head's kind, where a scan tells the kind, are orange. Weights below 0.01 are
    not drawn, and the notes say how much they are together.

    Args:
        patterns: As for `head_page`, like all that is not named here.
        head: `L5H1` or `Head(5, 1)`.
        query: Its position; the last token's if left out.
        tokens: The token ids that were run.
        texts: The text of each token.
        layers: The layers' own numbers.
        row: Which prompt of a batch.
        whole: Tokens of the whole prompt.
        scan: Of the same model.
        causal: Whether no query looks ahead.

    Raises:
        InputError: As `head_page`, and if there is no such query, or it looks at another text.
    """
    head = Head.parse(head)
    prompt = Shown.of(patterns, tokens, texts, layers, row, whole, causal=causal)
    prompt.refuse_another_text()
    length = len(prompt.text)
    query = length - 1 if query is None else query
    if not 0 <= query < length:
        raise InputError(f"query must be from 0 to {length - 1}, got {query}")
    attention = prompt.pattern(head)
    weights = attention[query].tolist()
    kind = kind_of(scan, head, prompt)
    aimed = [False] * length
    if kind is not None and scan is not None:
        aimed = prompt.targets(kind, attention, scan)[query].tolist()

    slot = min(6.6 / length, 0.45)
    strongest = sorted(range(query + 1 if prompt.causal else length), key=lambda k: -weights[k])
    farthest = query if prompt.causal else max(query, length - 1 - query)
    named = _apart([query, *strongest, *range(length)], SLOT / slot)
    labels = labels_of(prompt.text, width=1.1, size=SIZE)
    longest = max(inches(labels[place], SIZE) for place in named)
    drawn = [key for key in strongest if weights[key] >= LEAST]
    rest = sum(weights[key] for key in strongest if weights[key] < LEAST)
    page = Page(
        head_name(scan, head),
        f"Where the query at position {query}, {labels[query]} (dot), looks. Prompt:"
        f" {prompt.size}. The width of a line is its attention weight, from 0"
        " to 1.",
        width=7.2,
        body=2.1 + longest + 0.6,
        notes=[
            f"Weights under {LEAST:g} are not drawn: {rest:.2f} in all. Numbers stand at weights"
            f" from {NUMBERED:g} on, where there is room. Positions, layers and heads count from 0."
            + (" Tokens without room have no name." if len(named) < length else "")
        ],
    )
    with styled():
        panel = page.panel(0.2, 0.1, slot * (length + 0.5), 2.0)
        panel.set(xlim=(-0.75, length - 0.25), ylim=(0, 1))
        panel.spines[["left", "right", "top"]].set_visible(False)
        panel.set_yticks([])
        for key in reversed(drawn):
            shade = ACCENT if aimed[key] else BLUE
            style: dict[str, Any] = {
                "linewidth": WIDEST * weights[key],
                "edgecolor": shade,
                "alpha": 0.85,
            }
            height = _height(query - key, farthest)
            arc = PathPatch(_arc(query, key, height, 0.3 / slot), facecolor="none", **style)
            panel.add_patch(arc).set_clip_on(False)
        numbers = [key for key in drawn if weights[key] >= NUMBERED]
        for key in _apart(numbers, 0.6 / slot):
            at = (query + key) / 2, 0.75 * _height(query - key, farthest)
            above = 0, WIDEST * weights[key] / 2 + 1
            panel.annotate(
                f"{weights[key]:.2f}",
                at,
                above,
                textcoords="offset points",
                size=6,
                ha="center",
                va="bottom",
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )
        panel.set_xticks(named, [labels[place] for place in named], rotation=90, size=SIZE)
        panel.tick_params(length=2, width=0.5, pad=1.5)
        panel.plot(query, 0, "o", color="black", markersize=4, clip_on=False, zorder=3)
        widths = [
            Line2D([], [], color=BLUE, linewidth=WIDEST * weight, label=f"weight {weight:g}")
            for weight in (0.1, 0.5, 1)
        ]
        if kind is not None:
            words = f"to a target: {KINDS[kind].label}"
            widths.append(Line2D([], [], color=ACCENT, linewidth=WIDEST / 2, label=words))
        corner = page.at(0.1, page.body - 0.42)
        page.figure.legend(handles=widths, loc="upper left", bbox_to_anchor=corner, ncols=4)
    return page.figure


def _arc(query: int, key: int, height: float, loop: float) -> Path:
    """From the query over to the key; to itself, a loop of that width."""
    ends = (query, key) if key != query else (query + loop, query - loop)
    points = [(query, 0), (ends[0], height), (ends[1], height), (key, 0)]
    return Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])


def _height(away: int, farthest: int) -> float:
    """Of the points that bend the curve, the higher the farther; it rises to three quarters."""
    return 1.25 * (0.15 + 0.85 * abs(away) / max(farthest, 1))


def _apart(places: Iterable[int], gap: float) -> list[int]:
    """Those places, the first ones first, that stand at least `gap` from all before them."""
    chosen: list[int] = []
    for place in places:
        if all(abs(place - other) >= gap - 1e-9 for other in chosen):
            chosen.append(place)
    return chosen
