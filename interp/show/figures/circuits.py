"""Induction circuits side by side, and the circuit of one model as a diagram."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from interp.errors import InputError
from interp.heads import Head
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.style import ACCENT, COLOURS, DIFFERENCES, GREY, QUIET, styled
from interp.show.figures.texts import prose, wrapped

NAMES = {
    "absolute": "by hand, absolute",
    "rotary": "by hand, rotary",
    "learned": "learned, two layers",
}
"""Columns of `scripts/compare_circuits.py`, in words; the last is the model's own name."""

ROLES = {"previous_token": "previous token head", "induction": "induction head"}


def comparison_figures(comparison: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a comparison, by name: `circuit_patterns` and `circuit_diagram`.

    A figure for which nothing was measured is absent.

    Args:
        comparison: What `comparison.json` holds.
    """
    circuits = {
        NAMES[name] if name in NAMES else circuit["model"]: circuit
        for name, circuit in comparison["circuits"].items()
    }
    *_, asked = circuits.values()
    figures = {}
    if any(circuit["patterns"] for circuit in circuits.values()):
        figures["circuit_patterns"] = circuit_patterns(circuits)
    if any(edge["path"] == "K" for edge in comparison["edges"]):
        figures["circuit_diagram"] = circuit_diagram(asked, comparison["edges"])
    return figures


def circuit_patterns(circuits: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Both heads of each circuit on one repeated row, and what differs from the first circuit.

    Circuits across; down the earlier head and the induction head, each as its attention, from
    0 to 1, and as the difference from the first circuit's, from -1 to 1.

    Args:
        circuits: By name, from `comparison.json`. Those without patterns are left out.

    Raises:
        InputError: If no circuit has patterns, or their rows differ in length.
    """
    shown = {name: circuit for name, circuit in circuits.items() if circuit["patterns"]}
    if not shown:
        raise InputError("circuits must have patterns, got none")
    absent = [name for name in circuits if name not in shown]
    drawn = {
        name: {role: np.array(circuit["patterns"][role], float) for role in ROLES}
        for name, circuit in shown.items()
    }
    shapes = {pattern.shape for pair in drawn.values() for pattern in pair.values()}
    if len(shapes) > 1:
        raise InputError(f"circuits must have patterns of one shape, got {sorted(shapes)}")
    length = shapes.pop()[0]
    later = np.triu(np.ones((length, length), bool), 1)
    first = next(iter(drawn))
    size, slot, step = 1.3, 1.42, 1.62
    page = Page(
        "One circuit, built by hand, learned, and found",
        f"Attention on {length} tokens: BOS, then {length // 2} random tokens, then the same again."
        " Queries down, keys across.",
        width=max(7.0, 1.35 + slot * len(drawn)),
        body=4 * step + 1.05,
        notes=[
            f"The differences are from the first column, the circuit {first}. Positions, layers and"
            " heads count from 0. Each model has random tokens of its own vocabulary.",
            *(f"Not drawn, for want of such heads: {prose(name)}." for name in absent),
        ],
    )
    with styled():
        for row, (role, words) in enumerate(ROLES.items()):
            top = 2 * row * step
            page.text(0.15, top + 0.42, wrapped(words, 0.95), size=8, weight="bold")
            page.text(
                0.15, top + step + 0.42, wrapped("difference from the first", 0.95), color=QUIET
            )
            for column, (name, pair) in enumerate(drawn.items()):
                left = 1.25 + column * slot
                for below in (0, 1):
                    if below and name == first:
                        continue
                    panel = page.panel(left, top + below * step + 0.42, size, size)
                    panel.patch.set_facecolor(GREY)
                    values = pair[role] - drawn[first][role] if below else pair[role]
                    values = np.where(later, np.nan, values)
                    if below:
                        limits = {"vmin": -1, "vmax": 1, "interpolation": "nearest"}
                        panel.imshow(values, DIFFERENCES, aspect="auto", **limits)
                    else:
                        paint(panel, values)
                        heading = wrapped(prose(name), size) if row == 0 else ""
                        head = shown[name]["heads"][role]
                        panel.set_title(f"{heading}\n{head}".strip("\n"))
                    lowest = row == 1 and (below == 1 or name == first)
                    whole_ticks(panel, "key", "query", bottom=lowest, first=column == below)
        page.bar(1.25, "attention from query to key", COLOURS, 0.0, 1.0)
        page.bar(4.2, "difference from the first", DIFFERENCES, -1.0, 1.0)
    return page.figure


GAINED = "#0072b2"

LEAST = 0.15
"""Least change of a stripe that is drawn as an edge."""


def circuit_diagram(circuit: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> Figure:
    """Which earlier heads feed the induction heads of a model: through the keys.

    Induction heads above, earlier heads below, each sorted by layer. A line is drawn where the
    stripe (a share of attention, from 0 to 1) changes by `LEAST` or more once the earlier head's
    output is out of the keys of that head alone; its width is the change.

    Args:
        circuit: From `comparison.json`: `model`, `induction_heads` and `previous_token_heads`
            with their scores, so that heads that feed nothing are seen too.
        edges: Records `from`, `to`, `path`, `stripe_before`, `stripe_after` of that model.

    Raises:
        InputError: If there is no edge through keys.
    """
    change = {
        (edge["from"], edge["to"]): edge["stripe_after"] - edge["stripe_before"]
        for edge in edges
        if edge["path"] == "K"
    }
    if not change:
        raise InputError("edges must hold an edge through keys, got none")
    seen = {pair: value for pair, value in change.items() if abs(value) >= LEAST}
    above, known = circuit["induction_heads"], circuit["previous_token_heads"]
    below = {*known, *(source for source, _ in seen)}
    above, below = (sorted(names, key=Head.parse) for names in (above, below))
    widest = max(len(above), len(below), 4)
    slot = max(0.72, 6.4 / widest)
    page = Page(
        f"{prose(circuit['model'])}: which heads feed its induction heads",
        "Lines: how much of an induction head's attention on its targets is lost (or gained) when"
        " the earlier head's output is taken out of that head's keys, and of nothing else.",
        width=0.8 + slot * widest,
        body=3.6,
        notes=[
            f"Changes under {LEAST:g} are not drawn. Numbers in brackets are scores: mean attention"
            " on the kind's targets. Layers and heads count from 0."
        ],
    )

    def places(names: Sequence[str]) -> dict[str, float]:
        return {name: (i + 0.5) / len(names) for i, name in enumerate(names)}

    tops, bottoms = places(above), places(below)
    with styled():
        panel = page.panel(0.4, 0.1, page.width - 0.8, 2.95)
        panel.set(xlim=(0, 1), ylim=(-0.25, 1.25))
        panel.axis("off")
        lines = sorted(seen.items(), key=lambda item: (tops[item[0][1]], bottoms[item[0][0]]))
        for place, ((source, target), value) in enumerate(lines):
            style: dict[str, Any] = (
                {"color": ACCENT} if value < 0 else {"color": GAINED, "linestyle": "--"}
            )
            x, y = (bottoms[source], tops[target]), (0.0, 1.0)
            panel.plot(
                x, y, linewidth=0.5 + 5 * abs(value), solid_capstyle="butt", zorder=1, **style
            )
            share = 0.62 + 0.2 * (place % 2)  # By turns, so that numbers side by side do not meet.
            at = x[0] + share * (x[1] - x[0]), share
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            panel.text(*at, f"{value:+.2f}", size=6, ha="center", va="center", bbox=box, zorder=3)
        rows = ((tops, 1.0, circuit["induction_heads"]), (bottoms, 0.0, known))
        for names, height, scores in rows:
            for name, x in names.items():
                score = f"\n({scores[name]:.2f})" if name in scores else ""
                box = {"facecolor": "white", "edgecolor": QUIET, "linewidth": 0.6, "pad": 2.5}
                panel.text(
                    x, height, f"{name}{score}", ha="center", va="center", bbox=box, zorder=4
                )
        panel.text(0, 1.2, "induction heads (induction score)", color=QUIET, va="center")
        panel.text(
            0,
            -0.22,
            "earlier heads (previous token score, if they have the label)",
            color=QUIET,
            va="center",
        )
        keys = [Line2D([], [], color=ACCENT, linewidth=3, label="attention on its targets lost")]
        if any(value > 0 for value in seen.values()):
            gained = {"color": GAINED, "linewidth": 3, "linestyle": "--"}
            keys.append(Line2D([], [], label="attention on its targets gained", **gained))
        corner = page.at(0.4, page.body - 0.45)
        page.figure.legend(handles=keys, loc="upper left", bbox_to_anchor=corner, ncols=2)
    return page.figure
