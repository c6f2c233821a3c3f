"""What a cut cache costs: losses by position, and by the label of the heads that are cut."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, QUIET, styled
from interp.show.figures.texts import inches, prose

SHADES = {
    "full": ("black", "-"),
    "window": (ACCENT, "-"),
    "other_window": ("#cc79a7", "-"),
    "sink_window": ("#0072b2", "-"),
    "sink_window_text_positions": ("#56b4e9", "--"),
}
"""Colour and line of each cache, in drawing order."""

BIN = 16
"""Positions whose mean is one point of a line: one alone depends on a few tokens of text."""


def sink_losses(result: Mapping[str, Any]) -> Figure:
    """Loss by position for each cache; attention on the first tokens and cost of a cut by label.

    Losses and costs are in nats, attention runs from 0 to 1, each label's heads are dots.

    Args:
        result: What `sink_experiment.json` holds.

    Raises:
        InputError: If there are no heads.
    """
    if not result["labels"]:
        raise InputError("result must have heads with a label, got none")
    made_by = result["made_by"]
    size, kept = made_by["size"], made_by["kept"]
    labels = list(result["labels"])
    name = prose(str(made_by["model"]))
    while inches(name, 10.0) > 3.6:
        name = "…" + name[2:]
    page = Page(
        f"{name}: a cache without the first tokens",
        f"{made_by['rows']} rows of {made_by['length']} tokens of text"
        + ("" if made_by["bos"] is None else ", BOS included")
        + f". A cut cache holds {size} tokens; until it is full nothing is cut (dashed).",
        width=7.2,
        body=5.2 + 0.1 * max(0, len(labels) - 6),
        notes=[
            f"Top: mean over rows and {BIN} positions. Bottom: heads by their first label. Left:"
            f" each head's mean attention on the first {kept} tokens while the cache is whole, from"
            f" query {result['counted_from']} on; the mean as a bar. Right: the loss with only"
            " the heads of that label cut minus the loss with none, with 95 % intervals over"
            " rows; with the first tokens kept they are numbered as in the text."
        ],
    )
    with styled():
        _draw_losses(page.panel(0.55, 0.2, 4.15, 2.4), result)
        page.figure.legend(
            *page.figure.axes[0].get_legend_handles_labels(),
            title="the cache holds: mean loss after the line",
            alignment="left",
            loc="upper left",
            bbox_to_anchor=page.at(4.75, 0.15),
        )
        height = page.body - 3.65
        left, right = page.panel(1.45, 3.25, 2.5, height), page.panel(4.2, 3.25, 2.6, height)
        _draw_heads(left, result, labels)
        _draw_costs(right, result, labels)
        for panel in page.figure.axes:
            panel.tick_params(length=2, width=0.5, pad=2, labelsize=6)
        page.figure.legend(
            *right.get_legend_handles_labels(),
            loc="upper left",
            bbox_to_anchor=page.at(4.1, 2.83),
            ncols=2,
        )
    return page.figure


def _draw_losses(panel: Axes, result: Mapping[str, Any]) -> None:
    for name, (shade, line) in SHADES.items():
        losses = np.array(result["loss_by_position"][name])
        pieces = [losses[i : i + BIN] for i in range(0, len(losses), BIN)]
        middles = [i * BIN + (len(piece) - 1) / 2 for i, piece in enumerate(pieces)]
        words = f"{result['caches'][name]}: {result['loss'][name]:.2f}"
        means = [piece.mean() for piece in pieces]
        panel.plot(middles, means, color=shade, linestyle=line, linewidth=1.2, label=words)
    panel.axvline(result["made_by"]["size"], color=QUIET, linewidth=0.5, linestyle="--")
    panel.set(xlim=(0, result["made_by"]["length"]), ylim=(0, None))
    panel.set_xlabel("position (tokens)", labelpad=1)
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
    panel.set_xlabel(f"attention on the first {result['made_by']['kept']} tokens", labelpad=1)


def _draw_costs(panel: Axes, result: Mapping[str, Any], labels: list[str]) -> None:
    for part, (key, words, up) in enumerate(
        (("cost", "only the last tokens", -0.2), ("cost_kept", "first tokens kept", 0.2))
    ):
        found = [result["labels"][label] for label in labels]
        values = np.array([label[key] for label in found])
        ends = np.array([label[f"{key}_interval"] for label in found])
        shade = SHADES["window" if part == 0 else "sink_window_text_positions"][0]
        places = np.arange(len(labels)) + up
        panel.barh(places, values, 0.36, color=shade, label=words)
        low, high = np.maximum(0, values - ends[:, 0]), np.maximum(0, ends[:, 1] - values)
        panel.errorbar(values, places, xerr=[low, high], fmt="none", ecolor="black", elinewidth=0.6)
    panel.axvline(0, color="black", linewidth=0.5)
    panel.set_yticks(range(len(labels)), [""] * len(labels))
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.set_xlabel("more loss with these heads cut (nats)", labelpad=1)
