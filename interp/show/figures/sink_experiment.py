"""The cost of a cut cache: losses by position, and by the label of the heads that are cut."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, BLUE, DASHED, PINK, QUIET, SKY, styled
from interp.show.figures.texts import ending

SHADES = {
    "full": ("black", "-"),
    "window": (ACCENT, "-"),
    "other_window": (PINK, "-"),
    "sink_window": (BLUE, "-"),
    "sink_window_text_positions": (SKY, "--"),
}
"""Colour and line of each cache, in drawing order."""

BIN = 16
"""Positions whose mean is one point of a line: a single one depends on a few tokens of text."""


def sink_losses(result: Mapping[str, Any]) -> Figure:
    """Loss by position for each cache; attention on the first tokens and cost of a cut by label.

    Losses and costs are in nats, attention runs from 0 to 1, each label's heads are dots.
    `result` is the content of `sink_experiment.json`.
    """
    if not result["labels"]:
        raise InputError("result must have heads with a label, got none")
    made_by, labels = result["made_by"], list(result["labels"])
    page = Page(
        f"{ending(str(made_by['model']), 3.6)}: a cache without the first tokens",
        f"{made_by['rows']} rows of {made_by['length']} tokens of text"
        + ("" if made_by["bos"] is None else ", BOS included")
        + f". A cut cache holds {made_by['size']} tokens and is full at the dashed line.",
        body=5.2 + 0.1 * max(0, len(labels) - 6),
        notes=f"Top: means over rows and {BIN} positions. Left: a dot per head (first label),"
        f" queries from {result['counted_from']} on, whole cache; bars: means. Right: increase of"
        " the loss if only these heads are cut, 95 % intervals over rows.",
    )
    with styled():
        top = page.panel(0.55, 0.2, 4.15, 2.4)
        _draw_losses(top, result)
        look: dict[str, Any] = {"title": "cache: mean loss after the line", "alignment": "left"}
        page.legend(top.get_legend_handles_labels()[0], 4.75, 0.15, **look)
        height = page.body - 3.65
        left, right = page.panel(1.45, 3.25, 2.5, height), page.panel(4.2, 3.25, 2.6, height)
        _draw_heads(left, result, labels)
        _draw_costs(right, result, labels)
        page.legend(right.get_legend_handles_labels()[0], 4.1, 2.83, ncols=2)
    return page.figure


def _draw_losses(panel: Axes, result: Mapping[str, Any]) -> None:
    for name, (shade, line) in SHADES.items():
        losses = np.array(result["loss_by_position"][name])
        pieces = [losses[i : i + BIN] for i in range(0, len(losses), BIN)]
        middles = [i * BIN + (len(piece) - 1) / 2 for i, piece in enumerate(pieces)]
        words = f"{result['caches'][name]}: {result['loss'][name]:.2f}"
        means = [piece.mean() for piece in pieces]
        panel.plot(middles, means, color=shade, linestyle=line, label=words)
    panel.axvline(result["made_by"]["size"], **DASHED)
    panel.set(xlim=(0, result["made_by"]["length"]), ylim=(0, None), xlabel="position (tokens)")
    panel.set_ylabel("loss of the next token (nats)")


def _draw_heads(panel: Axes, result: Mapping[str, Any], labels: list[str]) -> None:
    generator = np.random.default_rng(0)
    for place, label in enumerate(labels):
        masses = [head["on_first"] for head in result["heads"] if head["label"] == label]
        apart = place + generator.uniform(-0.28, 0.28, len(masses))
        panel.plot(masses, apart, "o", color=QUIET, alpha=0.45, markersize=2, markeredgewidth=0)
        panel.plot([np.mean(masses)] * 2, [place - 0.36, place + 0.36], color=ACCENT, linewidth=1.5)
    names = [f"{label} ({result['labels'][label]['heads']})" for label in labels]
    panel.set_yticks(range(len(labels)), names)
    panel.set(xlim=(0, 1), ylim=(len(labels) - 0.5, -0.5))
    panel.set_xlabel(f"attention on the first {result['made_by']['kept']} tokens")


def _draw_costs(panel: Axes, result: Mapping[str, Any], labels: list[str]) -> None:
    costs = [result["labels"][label] for label in labels]
    for key, words, shade, up in (
        ("cost", "only the last tokens", ACCENT, -0.2),
        ("cost_kept", "first tokens kept", SKY, 0.2),
    ):
        values = np.array([label[key] for label in costs])
        ends = np.array([label[f"{key}_interval"] for label in costs])
        places = np.arange(len(labels)) + up
        panel.barh(places, values, 0.36, color=shade, label=words)
        errors = np.maximum(0, [values - ends[:, 0], ends[:, 1] - values])
        panel.errorbar(values, places, xerr=errors, fmt="none", ecolor="black", elinewidth=0.6)
    panel.axvline(0, color="black", linewidth=0.5)
    panel.set_yticks(range(len(labels)), [""] * len(labels))
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.set_xlabel("increase of the loss with these heads cut (nats)")
