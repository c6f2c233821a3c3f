"""How a model learned: losses and scores by step of training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, GREY, QUIET, styled

BLUE = "#0072b2"
"""For previous-token heads, as the accent is for induction heads."""

MOST = 3
"""Runs that fit beside each other on a page."""

NAMED = 0.3
"""Score from which on the best head of a kind is named."""


def phase_change(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Losses and head scores of small models in training, one run in a column.

    From top to bottom: losses by step, on repeats and on new tokens; the scores of all heads by
    step, the best of each kind bold; and the loss on repeats by period once trained. Losses are
    in nats, on one scale for all runs; scores run from 0 to 1.

    Args:
        records: From `scripts/train_two_layer.py`, at most `MOST` of them.

    Raises:
        InputError: If there are no records, or more.
    """
    if not 1 <= len(records) <= MOST:
        raise InputError(f"records must be of 1 to {MOST} runs, got {len(records)}")
    recipe = records[0]["recipe"]
    page = Page(
        "How induction comes about in a two-layer model",
        f"Attention only, {recipe['heads']} heads in each layer, width {recipe['width']};"
        f" {recipe['vocabulary']} tokens, rows of {recipe['length']}."
        + (" The runs differ in how training rows repeat." if len(records) > 1 else ""),
        width=7.2,
        body=5.85,
        notes=[
            "Top: on rows as in training; dashed, the loss of a guess among all tokens. Middle:"
            " mean attention mass on the kind's targets, on rows that each have a period of their"
            " own, from the first repeat on; every head has a thin line, the best one a bold one."
            " Previous-token heads begin with the early places, where the tokens stand that are"
            " looked up; this score counts the late ones, which follow. Bottom: after training, on"
            " rows of one period each; shaded: periods seen in training. A period that divides the"
            " only one seen fits that one too."
        ],
    )
    most = max(look["first_copy"] for record in records for look in record["looks"])
    last = [record["looks"][-1]["by_period"].values() for record in records]
    most_by_period = max(max(values) for values in last)
    slot = 6.6 / len(records)
    with styled():
        for column, record in enumerate(records):
            left, width = 0.55 + column * slot, slot - 0.3
            heights = (0.25, 1.45), (2.0, 1.45), (4.0, 1.15)
            top, middle, bottom = (page.panel(left, down, width, tall) for down, tall in heights)
            _draw_losses(top, record)
            _draw_scores(middle, record)
            _draw_periods(bottom, record)
            chance = np.log(record["recipe"]["vocabulary"])
            for panel, largest in ((top, most), (bottom, most_by_period)):
                panel.set_ylim(0, largest * 1.05)
                panel.axhline(chance, color=QUIET, linewidth=0.5, linestyle="--")
            for panel in (top, middle):
                panel.set_xlim(0, record["looks"][-1]["step"])
            middle.set_xlabel("step of training", labelpad=1)
            bottom.set_xlabel("period (tokens)", labelpad=1)
            if column == 0:
                top.set_ylabel("loss (nats)")
                middle.set_ylabel("attention mass on targets")
                bottom.set_ylabel("loss on repeats (nats)")
            for panel in (top, middle, bottom):
                panel.tick_params(length=2, width=0.5, pad=2, labelsize=6)
        lines = [line for panel in page.figure.axes[:2] for line in panel.get_lines()]
        page.figure.legend(
            handles=[line for line in lines if not str(line.get_label()).startswith("_")],
            loc="upper left",
            bbox_to_anchor=page.at(0.5, page.body - 0.4),
            ncols=4,
        )
    return page.figure


def _draw_losses(panel: Axes, record: Mapping[str, Any]) -> None:
    recipe, looks = record["recipe"], record["looks"]
    steps = [look["step"] for look in looks]
    for name, words, shade in (
        ("first_copy", "loss on new tokens", QUIET),
        ("second_copy", "loss on repeats", "black"),
    ):
        values = [np.nan if look[name] is None else look[name] for look in looks]
        panel.plot(steps, values, color=shade, linewidth=1.2, label=words)
    told = {
        "varying": f"each row its own period, {recipe['least']} to {recipe['most']}",
        "fixed": f"control: period {recipe['only']} in all rows",
        "none": "control: rows never repeat",
    }
    panel.set_title(told[recipe["period"]], loc="left")


def _draw_scores(panel: Axes, record: Mapping[str, Any]) -> None:
    steps = [look["step"] for look in record["looks"]]
    for kind, shade, place in (("previous_token", BLUE, -30), ("induction", ACCENT, -3)):
        scores = np.array([look["scores"][kind] for look in record["looks"]])
        layer, head = np.unravel_index(scores[-1].argmax(), scores[-1].shape)
        panel.plot(steps, scores.reshape(len(steps), -1), color=shade, linewidth=0.4, alpha=0.6)
        words = f"best {kind.replace('_', ' ')} head"
        panel.plot(steps, scores[:, layer, head], color=shade, linewidth=1.4, label=words)
        if scores[-1, layer, head] < NAMED:
            continue
        panel.annotate(
            f"L{layer}H{head}",
            (steps[-1], scores[-1, layer, head]),
            (place, 3),
            textcoords="offset points",
            ha="right",
            color=shade,
        )
    panel.set(ylim=(0, 1.16), yticks=[0, 0.25, 0.5, 0.75, 1])


def _draw_periods(panel: Axes, record: Mapping[str, Any]) -> None:
    recipe, last = record["recipe"], record["looks"][-1]["by_period"]
    periods = [int(period) for period in last]
    seen = {
        "varying": (recipe["least"] - 0.5, recipe["most"] + 0.5),
        "fixed": (recipe["only"] - 0.5, recipe["only"] + 0.5),
    }.get(recipe["period"])
    if seen is not None:
        panel.axvspan(*seen, color=GREY, linewidth=0)
    panel.plot(periods, list(last.values()), color="black", linewidth=1, marker="o", markersize=2.5)
    panel.set_xticks(periods[1::2])
