"""Scores of all heads: by layer and head, by layer, and by distance."""

import math
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from interp.kinds.builtin import FORCED_WINDOW
from interp.scan.table import HeadScan
from interp.show.about import thresholds_of
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.style import ACCENT, HATCH, QUIET, styled
from interp.show.figures.words import model_name, prose, what_was_run


def score_mosaic(scan: HeadScan) -> Figure:
    """The scores of all heads: one panel per kind of head, layers across, heads down.

    Colours run from 0 to 1, whatever the scores. Heads that carry the kind's label are
    outlined; missing scores are hatched grey.
    """
    frame, thresholds = scan.frame, thresholds_of(scan)
    kinds = scan.kinds
    at = frame["head"].to_numpy(int), frame["layer"].to_numpy(int)
    heads, layers = (int(numbers.max()) + 1 for numbers in at)
    columns = 2 if layers > 1.6 * heads else 3
    slot = 6.85 / columns
    wide = min((slot - 0.3) / layers, 0.5)
    high = min(max(wide, 0.9 / heads), 3 / heads, 0.3)
    line = min(1.0, max(0.3, min(72 * wide, 72 * high) / 10))
    # Outlines lie inside their cells.
    across, down = 1 - line / (72 * wide), 1 - line / (72 * high)
    step = heads * high + 0.48
    levels = ", ".join(f"{kind.label}\u00a0{thresholds[name]:g}" for name, kind in kinds.items())
    null = ", and the score its null" if "induction_null_99" in frame else ""
    notes = (
        "Layers and heads count from 0. Label: (score - chance) / (1 - chance) reaches the"
        f" threshold{null}: {levels}."
    )
    if forced := sum(FORCED_WINDOW in labels for labels in frame["labels"]):
        notes += f" {forced} heads are local by architecture."
    reasons = set(frame["not_measured"]) - {""} if "not_measured" in frame else ()
    notes += "".join(f" Not measured: {prose(w.replace('_', ' '))}." for w in sorted(reasons))
    page = Page(
        f"{model_name(scan)}: scores of all attention heads",
        what_was_run(scan),
        body=math.ceil(len(kinds) / columns) * step + 0.85,
        notes=notes,
    )
    legend = [Patch(facecolor="none", edgecolor=ACCENT, label="head with the label")]
    with styled():
        for place, kind in enumerate(kinds.values()):
            row, column = divmod(place, columns)
            scores = np.full((heads, layers), np.nan)
            scores[at] = frame[kind.name].to_numpy(float, na_value=np.nan)
            labelled = scan.having(kind.label)
            corner = 0.5 + column * slot, row * step + 0.38
            panel = page.panel(*corner, layers * wide, heads * high)
            paint(panel, scores)
            panel.patch.set(**HATCH)
            cells = labelled[["layer", "head"]].to_numpy(int) - (across / 2, down / 2)
            boxes = [Rectangle((x, y), across, down) for x, y in cells]
            look = {"facecolor": "none", "edgecolor": ACCENT, "linewidth": line}
            panel.add_collection(PatchCollection(boxes, **look))
            measured = len(frame[kind.name].dropna())
            number = f"{len(labelled)} of {measured}" if measured else "not"
            counted = "heads" if measured == len(frame) else "measured"
            where = kind.looks(thresholds, causal=scan.causal)
            panel.set_title(f"{kind.label}: {number} {counted}\n{where}", loc="left")
            lowest = place + columns >= len(kinds)
            whole_ticks(panel, "layer", "head", bottom=lowest, first=column == 0)
            if np.isnan(scores).any() and len(legend) == 1:
                legend.append(Patch(**HATCH, label="not measured"))
        page.foot("mean attention mass on the kind's targets", legend)
    return page.figure


OTHER = "#aaaaaa"


def score_by_layer(scan: HeadScan) -> Figure:
    """The score of every head by its layer, a panel for each kind; the line is the layers' mean.

    Scores run from 0 to 1. Heads with the kind's label are orange; the strongest is named.
    """
    frame, kinds = scan.frame, scan.kinds
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
