"""Circuits: side by side, as a diagram, and how they emerge in training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from interp.errors import InputError
from interp.heads import Head
from interp.show.figures.graph import draw_graph
from interp.show.figures.page import Page, drawn, paint, pattern_legend, whole
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREY, QUIET
from interp.show.figures.words import prose

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


@drawn
def circuit_patterns(circuits: Mapping[str, Mapping[str, Any]]) -> Page:
    """Both heads of each circuit on one repeated row, and how far each is from the first circuit's.

    A row for the earlier head and one for the induction head, weights from 0 to 1. The number is
    the share of attention that is elsewhere than in the first circuit, a mean over queries: half
    the sum of all differences, from 0 to 1.
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
    page = Page(
        "An induction circuit: built by hand, learned, and in a model",
        f"Attention on {length} tokens: BOS, then {length // 2} random tokens, twice.",
        notes="Each model reads tokens from its own vocabulary. Elsewhere: share of attention"
        f" that is on other tokens than that of “{first}”, a mean over queries. Positions, layers"
        f" and heads count from 0.{f' No such heads: {absent}.' if absent else ''}",
    )
    for role, words in ROLES.items():
        titles, top = [], page.heading(words)
        for name, pair in patterns.items():
            moved = np.abs(pair[role] - patterns[first][role]).sum(-1).mean() / 2
            apart = "" if name == first else f", {moved:.0%} elsewhere"
            titles.append(f"{prose(name)}\n{circuits[name]['heads'][role]}{apart}")
        look: dict[str, Any] = {"square": True, "across": "key", "down": "query", "most": 4}
        for panel, pair in zip(
            page.grid(titles, 2.2, **look, slot=1.2, top=top), patterns.values()
        ):
            paint(panel, np.where(later, np.nan, pair[role]))
    page.bar("attention weight")
    page.legend(pattern_legend(causal=True))
    return page


@drawn
def circuit_diagram(circuit: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> Page:
    """Which earlier heads feed the induction heads of a model through the keys.

    Each head stands above its layer. An arrow is drawn if the stripe (a share of attention, from 0
    to 1) changes by `LEAST` or more when the earlier head's output is removed from the keys of that
    head only; its width and number are what is lost, and it is dashed if attention is gained.

    Args:
        circuit: Part of `comparison.json`: `model`, `induction_heads` and `previous_token_heads`
            with their scores.
        edges: Records `from`, `to`, `path`, `stripe_before`, `stripe_after` of that model.
    """
    lost = [
        (e["from"], e["to"], "", e["stripe_before"] - e["stripe_after"])
        for e in edges
        if e["path"] == "K"
    ]
    arrows = sorted((one for one in lost if abs(one[3]) >= LEAST), key=lambda one: -one[3])
    fed, known = circuit["induction_heads"], circuit["previous_token_heads"]
    linked = {name for source, target, *_ in arrows for name in (source, target)}
    alone = [f"{name}\u00a0({score:.2f})" for name, score in known.items() if name not in linked]
    unfed = [name for name in fed if name not in linked]
    page = Page(
        f"{prose(circuit['model'])}: heads that feed its induction heads",
        "Circles: heads, by number. Arrows: attention on its targets that an induction head loses"
        " when the earlier head's output is removed from its keys, and from nothing else.",
        notes=f"Changes under {LEAST:g} are not drawn."
        + f" Previous-token heads that feed none (score): {', '.join(alone)}." * bool(alone)
        + f" Induction heads that none feeds alone: {', '.join(unfed)}." * bool(unfed)
        + " Layers and heads count from 0.",
    )
    shades = dict.fromkeys(known, "#b7d4ea") | dict.fromkeys(fed, "#f5c9a3")
    if arrows:
        draw_graph(page, arrows, colours=shades, numbered=True)
    look: dict[str, Any] = {"edgecolor": QUIET, "linewidth": 0.6}
    page.legend(
        [
            Patch(facecolor="#f5c9a3", label="induction head", **look),
            Patch(facecolor="#b7d4ea", label="previous-token head", **look),
            Patch(facecolor="white", label="another head", **look),
        ]
    )
    return page


@drawn
def phase_change(records: Sequence[Mapping[str, Any]]) -> Page:
    """Losses and head scores of small models in training, a panel for each run.

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
        notes="Scores from the first repeat on, in rows with a period each.",
    )
    titles = [
        {
            "varying": f"period {one['least']} to {one['most']} tokens",
            "fixed": f"control: {one['only']} tokens",
            "none": "control: no repeats",
        }[one["period"]]
        for one in (record["recipe"] for record in records)
    ]
    most = max(look["first_copy"] for record in records for look in record["looks"])
    most_by_period = max(max(record["looks"][-1]["by_period"].values()) for record in records)
    guess: dict[str, Any] = {**DASHED, "label": "loss of a uniform guess"}
    lines = ("first_copy", "on new tokens", QUIET), ("second_copy", "on repeats", "black")
    grid: dict[str, Any] = {"slot": 1.2, "under": 0.33}
    grid["high"] = 1.2 if page.width > 5 else 0.8

    top = page.heading("Loss while it learns")
    for panel, record in zip(page.grid(titles, **grid, down="loss (nats)", top=top), records):
        looks, recipe = record["looks"], record["recipe"]
        steps = [look["step"] for look in looks]
        for name, words, shade in lines:
            values = [np.nan if look[name] is None else look[name] for look in looks]
            panel.plot(steps, values, color=shade, label=words)
        panel.axhline(np.log(recipe["vocabulary"]), **guess)
        _steps(panel, steps, most * 1.05)
    page.legend(page.figure.axes[0].get_legend_handles_labels()[0])

    top, number = (
        page.heading("Heads", "a thin line for each, the best bold"),
        len(page.figure.axes),
    )
    for panel, record in zip(page.grid(titles, **grid, down="score", top=top), records):
        looks, recipe = record["looks"], record["recipe"]
        steps = [look["step"] for look in looks]
        for kind, shade, place in (("previous_token", BLUE, -12), ("induction", ACCENT, -3)):
            scores = np.array([look["scores"][kind] for look in looks]).reshape(len(looks), -1)
            best = int(scores[-1].argmax())
            panel.plot(steps, scores, color=shade, linewidth=0.4, alpha=0.6)
            words = f"best {kind.replace('_', ' ')} head"
            panel.plot(steps, scores[:, best], color=shade, linewidth=1.4, label=words)
            if scores[-1, best] >= 0.3:
                look: dict[str, Any] = {"textcoords": "offset points", "ha": "right"}
                head, end = Head(*divmod(best, recipe["heads"])), (steps[-1], scores[-1, best])
                panel.annotate(str(head), end, (place, 3), color=shade, **look)
        _steps(panel, steps, 1.2)
        panel.set(yticks=[0, 0.5, 1])
    page.legend(page.figure.axes[number].get_legend_handles_labels()[0])

    top = page.heading("Loss on repeats after training", "by their period in tokens")
    for panel, record in zip(page.grid(titles, **grid, down="loss (nats)", top=top), records):
        losses, recipe = record["looks"][-1]["by_period"], record["recipe"]
        periods = list(map(int, losses))
        trained = {"varying": (recipe["least"], recipe["most"]), "fixed": [recipe["only"]] * 2}
        if recipe["period"] in trained:
            low, high = trained[recipe["period"]]
            panel.axvspan(low - 0.5, high + 0.5, color=GREY, linewidth=0)
        panel.plot(periods, list(losses.values()), color="black", linewidth=1, marker="o")
        panel.axhline(np.log(recipe["vocabulary"]), **guess)
        panel.set(ylim=(0, most_by_period * 1.05), xticks=periods[1::2], xlabel="period (tokens)")
    page.legend([Patch(color=GREY, label="periods in training"), Line2D([], [], **guess)])
    return page


def _steps(panel: Axes, steps: Sequence[int], high: float) -> None:
    """Steps across, numbers up to `high`."""
    panel.xaxis.set_major_locator(whole())
    panel.set(xlim=(0, steps[-1]), ylim=(0, high), xlabel="training step")
