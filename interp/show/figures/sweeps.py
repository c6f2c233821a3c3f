"""Sweeps: when kinds of heads emerge, in which layers, and models side by side."""

import itertools
import math
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from interp.errors import InputError
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.style import ACCENT, BLUE, GREEN, GREY, HATCH, PINK, QUIET, SKY, styled
from interp.show.figures.words import prose
from interp.sweeps.trajectories import Trajectories

_SHADES = (ACCENT, BLUE, GREEN, PINK, SKY, "#e69f00", "black", "#8c564b")
_MOST = 40
"""Models that fit on one page."""


def emergence_curves(over: Trajectories) -> Figure:
    """The strongest head of each kind over the checkpoints: a panel per kind, a line per model.

    The score is a share of attention, from 0 to 1. The band is the 95 % interval, and grey the
    null of that head. Marks along the bottom are the onsets: the first checkpoint at which the
    lower end of a head's interval is above its null.
    """
    best: Any = over.strongest()
    onsets: Any = over.onsets()
    order: Any = over.order().set_index("kind")
    models = [*dict.fromkeys(best["model"])]
    ramp = matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(models)))
    shades = _SHADES if len(models) <= len(_SHADES) else ramp
    down = math.ceil(len(over.kinds) / 3)
    named = len(models) if len(models) <= 12 else 0
    columns = max(1, min(7, int(6.8 / (0.4 + 0.057 * max(map(len, models))))))
    page = Page(
        "When kinds of heads emerge",
        f"The strongest head of each kind at {best['step'].nunique()} checkpoints of"
        f" {len(models)} model{'s' * (len(models) != 1)}.",
        body=down * 1.75 + 0.4 + 0.15 * math.ceil((named + 1) / columns),
        notes="Score: mean attention mass on the kind's targets; band: 95 % interval over rows."
        " Marks below: onset of a model's first head, the first checkpoint whose lower end is above"
        " the null (99 %). Title: median over the models and its 95 % interval.",
    )
    with styled():
        for place, kind in enumerate(over.kinds):
            row, column = divmod(place, 3)
            panel = page.panel(0.5 + column * 2.28, row * 1.75 + 0.25, 1.95, 1.2)
            first = onsets[onsets["kind"] == kind].groupby("model")["onset"].min()
            for model, shade in zip(models, shades):
                line = best[(best["kind"] == kind) & (best["model"] == model)]
                steps = line["step"].to_numpy(float)
                panel.fill_between(steps, 0, line["null_99"], color=GREY, linewidth=0, zorder=0)
                ends = line["low"], line["high"]
                panel.fill_between(steps, *ends, color=shade, alpha=0.2, linewidth=0)
                panel.plot(steps, line["score"], color=shade, linewidth=0.8)
                if model in first:
                    look: dict[str, Any] = {"color": shade, "markersize": 5, "clip_on": False}
                    panel.plot([float(first[model])], [0], "|", **look)
            _step_axis(panel, best["step"].to_numpy(float))
            panel.set(ylim=(0, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
            panel.set_xlabel("step" if place + 3 >= len(over.kinds) else "")
            panel.set_ylabel("score" if column == 0 else "")
            panel.tick_params(labelleft=column == 0)
            words = "no onset"
            if kind in order.index:
                of = order.loc[kind]
                words = f"{of['median']:g} [{of['low']:g}, {of['high']:g}]"
            panel.set_title(f"{kind.replace('_', ' ')}: {words}", loc="left")
        shown = [
            Line2D([], [], color=shade, linewidth=0.8, label=prose(model))
            for model, shade in zip(models[:named], shades)
        ]
        null = Patch(color=GREY, label="null of that head (99 %)")
        page.legend([*shown, null], 0.4, down * 1.75 + 0.2, ncols=columns)
    return page.figure


def layer_map(over: Trajectories, model: str | None = None) -> Figure:
    """The strongest score of each layer at each checkpoint: a panel per kind, layers down.

    Scores are from 0 to 1, of `model`, or the mean over all models.

    Raises:
        InputError: If `model` is left out, and the models have different numbers of layers.
    """
    frame: Any = over.scores
    if model is None and frame.groupby("model")["layer"].max().nunique() > 1:
        raise InputError(
            "model must be given for models with different numbers of layers, got none"
        )
    if model is not None:
        frame = frame[frame["model"].isin(over.last(model)["model"])]
    best = frame.groupby(["kind", "model", "layer", "step"])["score"].max()
    means = best.groupby(["kind", "layer", "step"]).mean()
    layers = int(frame["layer"].max()) + 1
    high = min(1.2, max(0.35, 0.12 * layers))
    step, down = high + 0.5, math.ceil(len(over.kinds) / 3)
    number = frame["model"].nunique()
    whose = prose(str(frame["model"].iloc[0])) if number == 1 else f"mean of {number} models"
    page = Page(
        "Where kinds of heads emerge, by layer and checkpoint",
        f"The strongest head of each layer; {whose}.",
        body=down * step + 0.75,
        notes="Score: mean attention mass on the kind's targets. Checkpoints are in order, not to"
        " scale. Layers count from 0.",
    )
    with styled():
        for place, kind in enumerate(over.kinds):
            row, column = divmod(place, 3)
            panel = page.panel(0.5 + column * 2.28, row * step + 0.25, 1.95, high)
            table: Any = means.loc[kind].unstack("step") if kind in means.index else pd.DataFrame()
            values = table.reindex(range(layers)).to_numpy(float)
            paint(panel, values)
            panel.patch.set(**HATCH)
            last = place + 3 >= len(over.kinds)
            whole_ticks(panel, "step", "layer", bottom=last, first=column == 0)
            at = np.unique(np.linspace(0, values.shape[1] - 1, 5).round().astype(int))
            panel.set_xticks(at, [f"{table.columns[i]:,}" for i in at])
            panel.set_title(kind.replace("_", " "), loc="left")
        page.bar(0.5, "score of the layer's strongest head")
    return page.figure


def model_comparison(over: Trajectories) -> Figure:
    """Models side by side at their last checkpoints: labels, and the strongest head per kind.

    Left the share of heads with each first label; right the score of the strongest head of each
    kind with its 95 % interval, and its null as a grey band; both from 0 to 1.
    """
    models = [*dict.fromkeys(over.table["model"])][:_MOST]
    last: Any = pd.concat([over.last(model) for model in models])
    shares = last.groupby("model")["label"].value_counts(normalize=True).unstack(fill_value=0)
    labels = [*shares.sum().sort_values(ascending=False).index]
    best: Any = over.strongest()
    best = best[best["step"] == best.groupby("model")["step"].transform("max")]
    tall = 0.16 * len(models)
    page = Page(
        "Models side by side",
        "Left: share of heads by first label. Right: the strongest head of each kind, its 95 %"
        " interval, and its null (grey).",
        body=tall + 1.15,
        notes="At the last checkpoint of each model. Score: mean attention mass on the kind's"
        " targets. Null: its 99 % quantile.",
    )
    places = np.arange(len(models))
    with styled():
        panel = page.panel(1.25, 0.25, 1.9, tall)
        start = np.zeros(len(models))
        shades = matplotlib.colormaps["tab20"](np.arange(20))
        for label, shade in zip(labels, itertools.cycle(shades)):
            share = shares[label].reindex(models).to_numpy(float)
            panel.barh(places, share, left=start, height=0.8, color=shade, label=prose(label))
            start += share
        panel.set_yticks(places, [prose(model)[:24] for model in models])
        panel.set(xlim=(0, 1), xticks=[0, 0.5, 1], ylim=(len(models) - 0.5, -0.5))
        panel.set_xlabel("share of heads")
        page.legend(panel.get_legend_handles_labels()[0], 0.1, page.body - 0.45, ncols=5)
        width = 3.75 / len(over.kinds)
        for place, kind in enumerate(over.kinds):
            side = page.panel(3.3 + place * width, 0.25, width - 0.12, tall)
            rows = best[best["kind"] == kind].set_index("model").reindex(models)
            score, null = rows["score"].to_numpy(float), rows["null_99"].to_numpy(float)
            side.barh(places, null, height=0.8, color=GREY)
            ends = np.abs(rows[["low", "high"]].to_numpy(float).T - score)
            look: dict[str, Any] = {"fmt": "o", "color": QUIET, "elinewidth": 0.8}
            side.errorbar(score, places, xerr=ends, **look)
            side.set(xlim=(0, 1), xticks=[0, 1], ylim=(len(models) - 0.5, -0.5), yticks=[])
            side.set_title(kind.replace("_", "\n"), size=6)
            side.set_xlabel("score" if place == 0 else "")
    return page.figure


def _step_axis(panel: Axes, steps: np.ndarray) -> None:
    """Steps on a linear axis, or a logarithmic one if they span more than a factor of 300."""
    positive = steps[steps > 0]
    if len(positive) and positive.max() / positive.min() > 300:
        panel.set_xscale("symlog", linthresh=positive.min(), linscale=0.3)
    panel.set_xlim(steps.min(), max(steps.max(), steps.min() + 1))
