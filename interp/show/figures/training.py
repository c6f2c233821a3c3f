"""How a model learned: losses and scores by training step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREY, QUIET, styled

NAMED = 0.3
"""Least score of a head that is named."""


def phase_change(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Losses and head scores of small models in training, one run in a column.

    From top to bottom: losses by step, on repeats and on new tokens; the scores of all heads by
    step, the best of each kind bold; and the loss on repeats by period after training. Losses are
    in nats, on one scale for all runs; scores run from 0 to 1.

    Args:
        records: Results of `scripts/train_two_layer.py`, at most 3.
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
    slot = 6.6 / len(records)
    with styled():
        for column, record in enumerate(records):
            left, width = 0.55 + column * slot, slot - 0.3
            heights = (0.25, 1.45), (2.0, 1.45), (4.0, 1.15)
            top, middle, bottom = (page.panel(left, down, width, tall) for down, tall in heights)
            _draw_losses(top, record)
            _draw_scores(middle, record)
            _draw_periods(bottom, record)
            for panel, largest in ((top, most), (bottom, most_by_period)):
                panel.set_ylim(0, largest * 1.05)
                panel.axhline(np.log(record["recipe"]["vocabulary"]), **DASHED)
            for panel in (top, middle):
                panel.set_xlim(0, record["looks"][-1]["step"])
            middle.set_xlabel("training step")
            bottom.set_xlabel("period (tokens)")
            if column == 0:
                top.set_ylabel("loss (nats)")
                middle.set_ylabel("attention mass on targets")
                bottom.set_ylabel("loss on repeats (nats)")
        losses, scores = (axes.get_legend_handles_labels()[0] for axes in page.figure.axes[:2])
        page.legend(losses + scores, 0.5, page.body - 0.4, ncols=4)
    return page.figure


def _draw_losses(panel: Axes, record: Mapping[str, Any]) -> None:
    recipe, looks = record["recipe"], record["looks"]
    steps = [look["step"] for look in looks]
    lines = ("first_copy", "loss on new tokens", QUIET), ("second_copy", "loss on repeats", "black")
    for name, words, shade in lines:
        values = [np.nan if look[name] is None else look[name] for look in looks]
        panel.plot(steps, values, color=shade, label=words)
    titles = {
        "varying": f"each row its own period, {recipe['least']} to {recipe['most']}",
        "fixed": f"control: period {recipe['only']} in all rows",
        "none": "control: rows never repeat",
    }
    panel.set_title(titles[recipe["period"]], loc="left")


def _draw_scores(panel: Axes, record: Mapping[str, Any]) -> None:
    steps = [look["step"] for look in record["looks"]]
    for kind, shade, place in (("previous_token", BLUE, -30), ("induction", ACCENT, -3)):
        scores = np.array([look["scores"][kind] for look in record["looks"]])
        layer, head = np.unravel_index(scores[-1].argmax(), scores[-1].shape)
        best = scores[:, layer, head]
        panel.plot(steps, scores.reshape(len(steps), -1), color=shade, linewidth=0.4, alpha=0.6)
        words = f"best {kind.replace('_', ' ')} head"
        panel.plot(steps, best, color=shade, linewidth=1.4, label=words)
        if best[-1] >= NAMED:
            look: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "color": shade}
            panel.annotate(f"L{layer}H{head}", (steps[-1], best[-1]), (place, 3), **look)
    panel.set(ylim=(0, 1.16), yticks=[0, 0.25, 0.5, 0.75, 1])


def _draw_periods(panel: Axes, record: Mapping[str, Any]) -> None:
    recipe, losses = record["recipe"], record["looks"][-1]["by_period"]
    periods = [int(period) for period in losses]
    trained = {"varying": (recipe["least"], recipe["most"]), "fixed": [recipe["only"]] * 2}
    if recipe["period"] in trained:
        low, high = trained[recipe["period"]]
        panel.axvspan(low - 0.5, high + 0.5, color=GREY, linewidth=0)
    panel.plot(periods, list(losses.values()), color="black", linewidth=1, marker="o")
    panel.set_xticks(periods[1::2])
