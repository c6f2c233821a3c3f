"""Scores of all heads: by layer and head, by layer, and by distance."""

from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from interp.kinds.builtin import FORCED_WINDOW
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, drawn, outline, paint, whole
from interp.show.figures.style import ACCENT, HATCH, QUIET
from interp.show.figures.words import model_name, prose, what_was_run


@drawn
def score_mosaic(scan: HeadScan) -> Page:
    """The scores of all heads: one panel per kind of head, layers across, heads down.

    Colours run from 0 to 1, whatever the scores. Heads that carry the kind's label are
    outlined, the strongest are named above; missing scores are hatched grey.
    """
    frame, thresholds = scan.frame, scan.thresholds
    kinds = scan.kinds
    at = frame["head"].to_numpy(int), frame["layer"].to_numpy(int)
    heads, layers = (int(numbers.max()) + 1 for numbers in at)
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
    title = f"{model_name(scan)}: scores of all attention heads"
    page = Page(title, what_was_run(scan), notes=notes)
    titles = []
    for kind in kinds.values():
        held, measured = scan.having(kind.label), len(frame[kind.name].dropna())
        number = f"{len(held)} of {measured}" if measured else "not"
        counted = "heads" if measured == len(frame) else "measured"
        where = kind.looks(thresholds, causal=scan.causal)
        best = f"strongest: {', '.join(held['name'].tolist()[:3])}" if len(held) else "no head"
        titles.append(f"{kind.label}: {number} {counted}\n{where}\n{best}")
    wide = layers > 1.6 * heads
    high = min(max((2.9 if wide else 1.9) * heads / layers, 0.9), 3.0, 0.3 * heads)
    look: dict[str, Any] = {"slot": 2.4 if wide else 1.4, "most": 2 if wide else 3}
    panels = page.grid(titles, high, **look, across="layer", down="head")
    for panel, kind in zip(panels, kinds.values()):
        scores, held = np.full((heads, layers), np.nan), np.zeros((heads, layers), bool)
        scores[at] = frame[kind.name].to_numpy(float, na_value=np.nan)
        held[at] = frame["name"].isin(scan.having(kind.label)["name"])
        paint(panel, scores)
        panel.patch.set(**HATCH)
        outline(panel, held, exact=True)
    page.bar("mean attention mass on the kind's targets")
    hatched = [Patch(**HATCH, label="not measured")] * int(frame[[*kinds]].isna().to_numpy().any())
    page.legend([Patch(facecolor="none", edgecolor=ACCENT, label="heads with the label"), *hatched])
    return page


OTHER = "#aaaaaa"


@drawn
def score_by_layer(scan: HeadScan) -> Page:
    """The score of every head by its layer, a panel for each kind; the line is the layers' mean.

    Scores run from 0 to 1. Heads with the kind's label are orange; the strongest is named.
    """
    frame, kinds = scan.frame, scan.kinds
    at = frame["layer"].to_numpy(int)
    layers = int(at.max()) + 1
    page = Page(
        f"{model_name(scan)}: scores by layer",
        what_was_run(scan),
        notes="Score: mean attention mass on the kind's targets, from 0 to 1. Named: the strongest"
        " head with the label. Layers and heads count from 0.",
    )
    held = {
        name: frame["name"].isin(scan.having(kind.label)["name"]).to_numpy()
        for name, kind in kinds.items()
    }
    titles = [
        f"{kind.label}: {held[name].sum()} of {len(frame)} heads" for name, kind in kinds.items()
    ]
    for panel, name in zip(page.grid(titles, slot=1.25, across="layer", down="score"), kinds):
        scores, labelled = frame[name].to_numpy(float, na_value=np.nan), held[name]
        panel.scatter(at[~labelled], scores[~labelled], s=4, color=OTHER, linewidths=0)
        panel.scatter(at[labelled], scores[labelled], s=9, color=ACCENT, linewidths=0, zorder=3)
        measured = sorted(set(at[~np.isnan(scores)].tolist()))
        means = [np.nanmean(scores[at == layer]) for layer in measured]
        panel.plot(measured, means, color="black", linewidth=0.8, zorder=2)
        panel.xaxis.set_major_locator(whole())
        panel.set(xlim=(-0.7, layers - 0.3), ylim=(0, 1.19), yticks=[0, 0.25, 0.5, 0.75, 1])
        if not measured:
            middle: dict[str, Any] = {"transform": panel.transAxes, "ha": "center"}
            panel.text(0.5, 0.5, "not measured", color=QUIET, **middle)
        elif labelled.any():
            best = int(np.nanargmax(np.where(labelled, scores, -np.inf)))
            edge = at[best] / layers
            side = "left" if edge < 0.15 else "right" if edge > 0.85 else "center"
            look: dict[str, Any] = {"textcoords": "offset points", "ha": side, "va": "bottom"}
            panel.annotate(frame["name"].tolist()[best], (at[best], scores[best]), (0, 2), **look)
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o"}
    page.legend(
        [
            Line2D([], [], color=ACCENT, markersize=3, label="head with the label", **dot),
            Line2D([], [], color=OTHER, markersize=2, label="other head", **dot),
            Line2D([], [], color="black", linewidth=0.8, label="mean over the layer's heads"),
        ]
    )
    return page
