"""Circuits: side by side, as a diagram, and how they emerge in training."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from interp.errors import InputError
from interp.heads import Head
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.style import ACCENT, BLUE, DASHED, DIFFERENCES, GREY, QUIET, styled
from interp.show.figures.words import prose, wrapped

NAMES = dict(absolute="by hand, absolute", rotary="by hand, rotary", learned="learned, two layers")
"""Columns of `scripts/compare_circuits.py`, in words; the last is the model's own name."""

ROLES = {"previous_token": "previous token head", "induction": "induction head"}

LEAST = 0.15  # Least change of a stripe that is drawn as an edge.


def comparison_figures(comparison: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a comparison, by name: `circuit_patterns` and `circuit_diagram`.

    A figure without measurements is absent. `comparison` is the content of `comparison.json`.
    """
    parts, figures = comparison["circuits"], {}
    circuits = {NAMES.get(name) or part["model"]: part for name, part in parts.items()}
    if any(circuit["patterns"] for circuit in circuits.values()):
        figures["circuit_patterns"] = circuit_patterns(circuits)
    if any(edge["path"] == "K" for edge in comparison["edges"]):
        figures["circuit_diagram"] = circuit_diagram([*parts.values()][-1], comparison["edges"])
    return figures


def circuit_patterns(circuits: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Both heads of each circuit on one repeated row, and the difference from the first circuit.

    Circuits across; down the earlier head and the induction head, each as its attention, from
    0 to 1, and as the difference from the first circuit's, from -1 to 1.
    `circuits` are those of `comparison.json` by name; those without patterns are left out.
    """
    absent = ", ".join(prose(name) for name, circuit in circuits.items() if not circuit["patterns"])
    patterns = {
        name: {role: np.array(circuit["patterns"][role], float) for role in ROLES}
        for name, circuit in circuits.items()
        if circuit["patterns"]
    }
    shapes = {pattern.shape for pair in patterns.values() for pattern in pair.values()}
    if len(shapes) != 1:
        raise InputError(f"circuits must have patterns of one shape, got {sorted(shapes)}")
    length = shapes.pop()[0]
    later = np.triu(np.ones((length, length), bool), 1)
    first = next(iter(patterns))
    size, slot, step = 1.3, 1.42, 1.62
    look: dict[str, Any] = {"vmin": -1, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}
    page = Page(
        "An induction circuit: built by hand, learned, and in a model",
        f"Attention on {length} tokens: BOS, then {length // 2} random tokens, then the same again."
        " Queries down, keys across.",
        width=max(7.0, 1.35 + slot * len(patterns)),
        body=4 * step + 1.05,
        notes="Each model reads random tokens from its own vocabulary. Positions, layers and heads"
        f" count from 0.{f' No such heads: {absent}.' if absent else ''}",
    )
    with styled():
        for row, (role, words) in enumerate(ROLES.items()):
            top = 2 * row * step + 0.42
            page.text(0.15, top, wrapped(words, 0.95), size=8, weight="bold")
            page.text(0.15, top + step, wrapped(f"difference from “{first}”", 0.95), color=QUIET)
            for column, (name, pair) in enumerate(patterns.items()):
                left = 1.25 + column * slot
                panel = page.panel(left, top, size, size)
                paint(panel, np.where(later, np.nan, pair[role]))
                heading = f"{wrapped(prose(name), size)}\n" if row == 0 else ""
                panel.set_title(f"{heading}{circuits[name]['heads'][role]}")
                bottom = row == 1 and name == first
                whole_ticks(panel, "key", "query", bottom=bottom, first=column == 0)
                if name != first:
                    panel = page.panel(left, top + step, size, size)
                    change = np.where(later, np.nan, pair[role] - patterns[first][role])
                    panel.imshow(change, DIFFERENCES, **look)
                    panel.patch.set_facecolor(GREY)
                    whole_ticks(panel, "key", "query", bottom=row == 1, first=column == 1)
        page.bar(1.25, "attention weight")
        page.bar(4.2, "difference of attention weights", -1.0, colours=DIFFERENCES)
    return page.figure


def circuit_diagram(circuit: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> Figure:
    """Which earlier heads feed the induction heads of a model through the keys.

    Induction heads above, earlier heads below, each sorted by layer. A line is drawn if the
    stripe (a share of attention, from 0 to 1) changes by `LEAST` or more when the earlier head's
    output is removed from the keys of that head only; its width is the change.

    Args:
        circuit: Part of `comparison.json`: `model`, `induction_heads` and `previous_token_heads`
            with their scores, so that heads that feed nothing are visible too.
        edges: Records `from`, `to`, `path`, `stripe_before`, `stripe_after` of that model.
    """
    drawn = {}
    for edge in edges:
        change = edge["stripe_after"] - edge["stripe_before"]
        if edge["path"] == "K" and abs(change) >= LEAST:
            drawn[edge["from"], edge["to"]] = change
    above, known = circuit["induction_heads"], circuit["previous_token_heads"]
    tops, bottoms = _places(above), _places({*known, *(source for source, _ in drawn)})
    widest = max(len(tops), len(bottoms), 4)
    page = Page(
        f"{prose(circuit['model'])}: heads that feed its induction heads",
        "Lines: change of an induction head's attention on its targets when the earlier head's"
        " output is removed from that head's keys, and from nothing else.",
        width=0.8 + max(0.72, 6.4 / widest) * widest,
        body=3.6,
        notes=f"Changes under {LEAST:g} are not drawn. In brackets: scores, the mean attention mass"
        " on the kind's targets. Layers and heads count from 0.",
    )
    with styled():
        panel = page.panel(0.4, 0.1, page.width - 0.8, 2.95)
        panel.set(xlim=(0, 1), ylim=(-0.25, 1.25))
        panel.axis("off")
        lines = sorted(drawn.items(), key=lambda item: (tops[item[0][1]], bottoms[item[0][0]]))
        look: dict[str, Any] = {"ha": "center", "va": "center"}
        for place, ((source, target), value) in enumerate(lines):
            x, style = (bottoms[source], tops[target]), {"solid_capstyle": "butt", **_way(value)}
            panel.plot(x, (0, 1), linewidth=0.5 + 5 * abs(value), zorder=1, **style)
            share = 0.62 + 0.2 * (place % 2)  # Alternating, so that neighbours do not overlap.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            at = x[0] + share * (x[1] - x[0]), share
            panel.text(*at, f"{value:+.2f}", size=6, bbox=box, zorder=3, **look)
        box = {"facecolor": "white", "edgecolor": QUIET, "linewidth": 0.6, "pad": 2.5}
        for names, height, scores in ((tops, 1, above), (bottoms, 0, known)):
            for name, x in names.items():
                score = f"\n({scores[name]:.2f})" if name in scores else ""
                panel.text(x, height, f"{name}{score}", bbox=box, zorder=4, **look)
        panel.text(0, 1.2, "induction heads (induction score)", color=QUIET, va="center")
        panel.text(0, -0.22, "earlier heads (previous token score)", color=QUIET, va="center")
        ways = [(-1, "lost attention on targets"), (1, "gained attention")]
        ways = ways[: 1 + any(value > 0 for value in drawn.values())]
        legend = [
            Line2D([], [], linewidth=3, label=words, **_way(float(way))) for way, words in ways
        ]
        page.legend(legend, 0.4, page.body - 0.45, ncols=2)
    return page.figure


def _way(value: float) -> dict[str, Any]:
    return {"color": ACCENT} if value < 0 else {"color": BLUE, "linestyle": "--"}


def _places(names: Iterable[str]) -> dict[str, float]:
    """A place from 0 to 1 for each head, by layer."""
    ordered = sorted(names, key=Head.parse)
    return {name: (i + 0.5) / len(ordered) for i, name in enumerate(ordered)}


def phase_change(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Losses and head scores of small models in training, one run in a column.

    From top to bottom: losses by step, on repeats and on new tokens; the scores of all heads by
    step, the best of each kind bold; and the loss on repeats by period after training. Losses are
    in nats, on one scale for all runs; scores run from 0 to 1. `records` are 1 to 3 results of
    `scripts/train_two_layer.py`.
    """
    if not 1 <= len(records) <= 3:
        raise InputError(f"records must be of 1 to 3 runs, got {len(records)}")
    recipe = records[0]["recipe"]
    page = Page(
        "How induction emerges in a two-layer model",
        f"Attention only, {recipe['heads']} heads in each layer, width {recipe['width']};"
        f" {recipe['vocabulary']} tokens, rows of {recipe['length']}."
        + (" The runs differ in how training rows repeat." if len(records) > 1 else ""),
        body=5.85,
        notes="Middle: a thin line per head, the best bold, on rows with a period each, scored from"
        " the first repeat on. Bottom: rows of one period each, after training; shaded: periods"
        " of the training rows. Dashed: loss of a uniform guess.",
    )
    most = max(look["first_copy"] for record in records for look in record["looks"])
    most_by_period = max(max(record["looks"][-1]["by_period"].values()) for record in records)
    lines = ("first_copy", "loss on new tokens", QUIET), ("second_copy", "loss on repeats", "black")
    slot = 6.6 / len(records)
    with styled():
        for column, record in enumerate(records):
            left, width = 0.55 + column * slot, slot - 0.3
            heights = (0.25, 1.45), (2.0, 1.45), (4.0, 1.15)
            top, middle, bottom = (page.panel(left, down, width, tall) for down, tall in heights)
            recipe, looks = record["recipe"], record["looks"]
            steps = [look["step"] for look in looks]
            for name, words, shade in lines:
                values = [np.nan if look[name] is None else look[name] for look in looks]
                top.plot(steps, values, color=shade, label=words)
            titles = {
                "varying": f"each row its own period, {recipe['least']} to {recipe['most']}",
                "fixed": f"control: period {recipe['only']} in all rows",
                "none": "control: rows never repeat",
            }
            top.set_title(titles[recipe["period"]], loc="left")
            for kind, shade, place in (("previous_token", BLUE, -30), ("induction", ACCENT, -3)):
                scores = np.array([look["scores"][kind] for look in looks]).reshape(len(looks), -1)
                best = int(scores[-1].argmax())
                middle.plot(steps, scores, color=shade, linewidth=0.4, alpha=0.6)
                words = f"best {kind.replace('_', ' ')} head"
                middle.plot(steps, scores[:, best], color=shade, linewidth=1.4, label=words)
                if scores[-1, best] >= 0.3:
                    look: dict[str, Any] = {"textcoords": "offset points", "ha": "right"}
                    head, end = Head(*divmod(best, recipe["heads"])), (steps[-1], scores[-1, best])
                    middle.annotate(str(head), end, (place, 3), color=shade, **look)
            middle.set(ylim=(0, 1.16), yticks=[0, 0.25, 0.5, 0.75, 1], xlabel="training step")
            losses = looks[-1]["by_period"]
            periods = list(map(int, losses))
            trained = {"varying": (recipe["least"], recipe["most"]), "fixed": [recipe["only"]] * 2}
            if recipe["period"] in trained:
                low, high = trained[recipe["period"]]
                bottom.axvspan(low - 0.5, high + 0.5, color=GREY, linewidth=0)
            bottom.plot(periods, list(losses.values()), color="black", linewidth=1, marker="o")
            bottom.set(xticks=periods[1::2], xlabel="period (tokens)")
            for panel, largest in ((top, most), (bottom, most_by_period)):
                panel.set_ylim(0, largest * 1.05)
                panel.axhline(np.log(recipe["vocabulary"]), **DASHED)
            top.set_xlim(0, steps[-1])
            middle.set_xlim(0, steps[-1])
            if column == 0:
                top.set_ylabel("loss (nats)")
                middle.set_ylabel("attention mass on targets")
                bottom.set_ylabel("loss on repeats (nats)")
        losses, scores = (axes.get_legend_handles_labels()[0] for axes in page.figure.axes[:2])
        page.legend(losses + scores, 0.5, page.body - 0.4, ncols=4)
    return page.figure
