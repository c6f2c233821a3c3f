"""The layers of the heads of each kind."""

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from interp.errors import InputError
from interp.kinds.kind import kinds_in
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, whole_ticks
from interp.show.figures.style import ACCENT, QUIET, styled
from interp.show.figures.words import model_name, what_was_run

OTHER = "#aaaaaa"


def score_by_layer(scan: HeadScan) -> Figure:
    """The score of every head by its layer, a panel for each kind; the line is the layers' mean.

    Scores run from 0 to 1. Heads with the kind's label are orange and larger, and the strongest
    of them is named. A kind without measurements has a sentence instead of dots.
    """
    frame, kinds = scan.frame, kinds_in(scan.frame.columns)
    if frame.empty:
        raise InputError("scan must hold at least one head, got none")
    at, step = frame["layer"].to_numpy(int), 1.72
    layers = int(at.max()) + 1
    page = Page(
        f"{model_name(scan)}: scores by layer",
        what_was_run(scan),
        body=math.ceil(len(kinds) / 3) * step + 0.55,
        notes="Score: mean attention mass on the kind's targets, from 0 to 1. Named: the strongest"
        " head with the label. Layers and heads count from 0.",
    )
    with styled():
        for place, kind in enumerate(kinds.values()):
            row, column = divmod(place, 3)
            panel = page.panel(0.5 + column * 2.28, row * step + 0.25, 1.95, 1.3)
            scores = frame[kind.name].to_numpy(float, na_value=np.nan)
            held = frame["name"].isin(scan.having(kind.label)["name"]).to_numpy()
            panel.scatter(at[~held], scores[~held], s=4, color=OTHER, linewidths=0)
            panel.scatter(at[held], scores[held], s=9, color=ACCENT, linewidths=0, zorder=3)
            measured = sorted(set(at[~np.isnan(scores)].tolist()))
            means = [np.nanmean(scores[at == layer]) for layer in measured]
            panel.plot(measured, means, color="black", linewidth=0.8, zorder=2)
            lowest = place + 3 >= len(kinds)
            whole_ticks(panel, "layer", "score", bottom=lowest, first=column == 0)
            panel.set(xlim=(-0.7, layers - 0.3), ylim=(0, 1.16), yticks=[0, 0.25, 0.5, 0.75, 1])
            if not measured:
                middle: dict[str, Any] = {"transform": panel.transAxes, "ha": "center"}
                panel.text(0.5, 0.5, "not measured", color=QUIET, **middle)
            elif held.any():
                best = int(np.nanargmax(np.where(held, scores, -np.inf)))
                edge = at[best] / layers
                side = "left" if edge < 0.1 else "right" if edge > 0.9 else "center"
                look: dict[str, Any] = {"textcoords": "offset points", "ha": side, "va": "bottom"}
                name, dot_at = frame["name"].tolist()[best], (at[best], scores[best])
                panel.annotate(name, dot_at, (0, 3), size=6, **look)
            panel.set_title(f"{kind.label}: {held.sum()} of {len(frame)} heads", loc="left")
        dot: dict[str, Any] = {"linestyle": "none", "marker": "o"}
        legend = [
            Line2D([], [], color=ACCENT, markersize=3, label="head with the label", **dot),
            Line2D([], [], color=OTHER, markersize=2, label="other head", **dot),
            Line2D([], [], color="black", linewidth=0.8, label="mean over the layer's heads"),
        ]
        page.legend(legend, 0.4, page.body - 0.3, ncols=3)
    return page.figure
