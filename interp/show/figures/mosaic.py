"""All heads at a glance: a panel for each kind."""

import math

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from interp.errors import InputError
from interp.kinds.kind import FORCED_WINDOW, kinds_in
from interp.scan.table import HeadScan
from interp.show.about import thresholds_of
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.style import ACCENT, HATCH, styled
from interp.show.figures.texts import prose
from interp.show.figures.words import model_name, what_was_run


def score_mosaic(scan: HeadScan) -> Figure:
    """The scores of all heads: one panel per kind of head, layers across, heads down.

    Colours run from 0 to 1, whatever the scores. Heads that carry the kind's label are
    outlined; missing scores are hatched grey.
    """
    frame, thresholds = scan.frame, thresholds_of(scan)
    kinds = kinds_in(frame.columns)
    if frame.empty:
        raise InputError("scan must hold at least one head, got none")
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
    page = Page(
        f"{model_name(scan)}: scores of all attention heads",
        what_was_run(scan),
        body=math.ceil(len(kinds) / columns) * step + 0.85,
        notes=_notes(scan),
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
            cells = zip(labelled["layer"].tolist(), labelled["head"].tolist(), strict=True)
            boxes = [Rectangle((x - across / 2, y - down / 2), across, down) for x, y in cells]
            look = {"facecolor": "none", "edgecolor": ACCENT, "linewidth": line}
            panel.add_collection(PatchCollection(boxes, **look))
            measured = len(frame[kind.name].dropna())
            number = f"{len(labelled)} of {measured}" if measured else "not"
            counted = "heads" if measured == len(frame) else "measured"
            where = kind.looks(thresholds, causal="induction" in kinds)
            panel.set_title(f"{kind.label}: {number} {counted}\n{where}", loc="left")
            lowest = place + columns >= len(kinds)
            whole_ticks(panel, "layer", "head", bottom=lowest, first=column == 0)
            if np.isnan(scores).any() and len(legend) == 1:
                legend.append(Patch(**HATCH, label="not measured"))
        page.foot("mean attention mass on the kind's targets", legend)
    return page.figure


def _notes(scan: HeadScan) -> str:
    frame, thresholds = scan.frame, thresholds_of(scan)
    kinds = kinds_in(frame.columns).values()
    levels = ", ".join(f"{kind.label}\u00a0{thresholds[kind.name]:g}" for kind in kinds)
    null = ", and the score its null" if "induction_null_99" in frame else ""
    notes = (
        "Layers and heads count from 0. Label: (score - chance) / (1 - chance) reaches the"
        f" threshold{null}: {levels}."
    )
    if forced := sum(FORCED_WINDOW in labels for labels in frame["labels"]):
        notes += f" {forced} heads are local by architecture."
    reasons = set(frame["not_measured"]) - {""} if "not_measured" in frame else set()
    return notes + "".join(f" Not measured: {prose(w.replace('_', ' '))}." for w in sorted(reasons))
