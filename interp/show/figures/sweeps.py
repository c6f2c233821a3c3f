"""Sweeps: when kinds of heads emerge, in which layers, and models side by side."""

import itertools
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from interp.errors import InputError
from interp.show.figures.page import SIZE, Page, drawn, paint, whole
from interp.show.figures.style import ACCENT, BLUE, GREEN, GREY, HATCH, PINK, QUIET, SKY
from interp.show.figures.words import inches, prose
from interp.sweeps.trajectories import Trajectories

_SHADES = (ACCENT, BLUE, GREEN, PINK, SKY, "#e69f00", "black", "#8c564b")
_MOST = 40
"""Models that fit on one page."""


@drawn
def emergence_curves(over: Trajectories) -> Page:
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
    page = Page(
        "When kinds of heads emerge",
        f"The strongest head of each kind at {best['step'].nunique()} checkpoints of"
        f" {len(models)} model{'s' * (len(models) != 1)}.",
        notes="Score: mean attention mass on the kind's targets; band: 95 % interval over rows."
        " Marks below: onset of a model's first head, the first checkpoint whose lower end is above"
        " the null (99 %). Title: median over the models and its 95 % interval.",
    )
    titles = []
    for kind in over.kinds:
        words = "no onset"
        if kind in order.index:
            of = order.loc[kind]
            words = f"{of['median']:g} [{of['low']:g}, {of['high']:g}]"
        titles.append(f"{kind.replace('_', ' ')}: {words}")
    panels = page.grid(titles, slot=1.3, across="step", down="score")
    for panel, kind in zip(panels, over.kinds):
        first = onsets[onsets["kind"] == kind].groupby("model")["onset"].min()
        for model, shade in zip(models, shades):
            line = best[(best["kind"] == kind) & (best["model"] == model)]
            steps = line["step"].to_numpy(float)
            panel.fill_between(steps, 0, line["null_99"], color=GREY, linewidth=0, zorder=0)
            panel.fill_between(
                steps, line["low"], line["high"], color=shade, alpha=0.2, linewidth=0
            )
            panel.plot(steps, line["score"], color=shade, linewidth=0.8)
            if model in first:
                look: dict[str, Any] = {"color": shade, "markersize": 5, "clip_on": False}
                panel.plot([float(first[model])], [0], "|", **look)
        _step_axis(panel, best["step"].to_numpy(float))
        panel.set(ylim=(0, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
    named = [
        Line2D([], [], color=shade, linewidth=0.8, label=prose(model))
        for model, shade in zip(models, shades)
    ]
    shown = named if len(named) <= 12 else []
    page.legend([*shown, Patch(color=GREY, label="null of that head (99 %)")])
    return page


@drawn
def layer_map(over: Trajectories, model: str | None = None) -> Page:
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
    number = frame["model"].nunique()
    whose = prose(str(frame["model"].iloc[0])) if number == 1 else f"mean of {number} models"
    page = Page(
        "Where kinds of heads emerge, by layer and checkpoint",
        f"The strongest head of each layer; {whose}.",
        notes="Score: mean attention mass on the kind's targets. Checkpoints are in order, not to"
        " scale. Layers count from 0.",
    )
    titles = [kind.replace("_", " ") for kind in over.kinds]
    for panel, kind in zip(
        page.grid(titles, high, slot=1.3, across="step", down="layer"), over.kinds
    ):
        table: Any = means.loc[kind].unstack("step") if kind in means.index else pd.DataFrame()
        values = table.reindex(range(layers)).to_numpy(float)
        paint(panel, values)
        panel.patch.set(**HATCH)
        most = max(2, int(page.size_of(panel)[0] / 0.42))
        at = np.unique(np.linspace(0, values.shape[1] - 1, min(5, most)).round().astype(int))
        panel.set_xticks(at, [f"{table.columns[i]:,}" for i in at])
    page.bar("score of the layer's strongest head")
    return page


@drawn
def model_comparison(over: Trajectories) -> Page:
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
    page = Page(
        "Models side by side",
        "Share of heads by first label, and the strongest head of each kind, with its 95 % interval"
        " and its null (grey).",
        notes="At the last checkpoint of each model. Score: mean attention mass on the kind's"
        " targets. Null: its 99 % quantile.",
    )
    places, names = np.arange(len(models)), [prose(model)[:24] for model in models]
    left = 0.2 + max(inches(name, SIZE) for name in names)
    titles = ["heads by label", *(kind.replace("_", " ") for kind in over.kinds)]
    look: dict[str, Any] = {
        "across": "share, score",
        "slot": 0.6,
        "most": len(titles),
        "left": left,
    }
    shared, *sides = page.grid(titles, 0.16 * len(models) + 0.1, **look)
    start = np.zeros(len(models))
    shades = matplotlib.colormaps["tab20"](np.arange(20))
    for label, shade in zip(labels, itertools.cycle(shades)):
        share = shares[label].reindex(models).to_numpy(float)
        shared.barh(places, share, left=start, height=0.8, color=shade, label=prose(label))
        start += share
    for kind, side in zip(over.kinds, sides, strict=True):
        rows = best[best["kind"] == kind].set_index("model").reindex(models)
        score, null = rows["score"].to_numpy(float), rows["null_99"].to_numpy(float)
        side.barh(places, null, height=0.8, color=GREY)
        ends = np.abs(rows[["low", "high"]].to_numpy(float).T - score)
        look = {"fmt": "o", "color": QUIET, "elinewidth": 0.8}
        side.errorbar(score, places, xerr=ends, **look)
    for panel in (shared, *sides):
        panel.set_yticks(places, names)
        panel.set(xlim=(0, 1), xticks=[0, 1], ylim=(len(models) - 0.5, -0.5))
    page.legend(shared.get_legend_handles_labels()[0])
    return page


def _step_axis(panel: Axes, steps: np.ndarray) -> None:
    """Steps on a linear axis, or a logarithmic one if they span more than a factor of 300."""
    positive = steps[steps > 0]
    if len(positive) and positive.max() / positive.min() > 300:
        panel.set_xscale("symlog", linthresh=positive.min(), linscale=0.3)
    else:
        panel.xaxis.set_major_locator(
            whole(prune="upper")
        )  # Its number would touch the next panel.
    panel.set_xlim(steps.min(), max(steps.max(), steps.min() + 1))
