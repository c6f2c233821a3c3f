"""Scores and costs as lines."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.errors import Count, InputError, checked
from interp.kinds.kind import KINDS
from interp.scan.table import HeadScan
from interp.show.about import thresholds_of
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREEN, PINK, QUIET, SKY, styled
from interp.show.figures.texts import prose
from interp.show.figures.words import model_name


def distance_curves(scan: HeadScan) -> Figure:
    """The induction score of each head by the distance between the copies.

    Heads that reach the threshold of the label at some distance have a colour and a name, at
    the end of their line; all others are grey. Scores are in [0, 1], distances in tokens.
    """
    columns = scan.by_distance()
    if not columns:
        raise InputError("scan must have scores by distance, got none: scan with a longer length")
    distances, threshold = list(columns), thresholds_of(scan)["induction"]
    page = Page(
        f"{model_name(scan)}: induction score by distance",
        "Random tokens, and the same again after the distance; the second copy is scored.",
        body=3.9,
        notes=f"Named: heads that reach {threshold:g} (dashed) at some distance, with their score"
        " at the largest. Layers and heads count from 0.",
    )
    with styled():
        panel = page.panel(0.6, 0.1, 5.6, 3.35)
        scores = scan.frame[list(columns.values())].to_numpy(float, na_value=np.nan)
        named = np.nan_to_num(scores).max(axis=1) >= threshold
        panel.plot(distances, scores[~named].T, color="#cccccc", linewidth=0.5)
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(1, named.sum())))
        lines = zip(scan.frame["name"][named], scores[named], shades)
        place = -np.inf
        for name, line, shade in sorted(lines, key=lambda entry: entry[1][-1]):
            panel.plot(distances, line, color=shade, marker="o")
            place = max(line[-1], place + 0.035)  # Names that would overlap move up.
            panel.annotate(
                f"{name}  {line[-1]:.2f}",
                (max(distances), line[-1]),
                (1.03, place),
                textcoords=("axes fraction", "data"),
                color=shade,
                va="center",
                arrowprops={"arrowstyle": "-", "color": shade, "linewidth": 0.3},
            )
        panel.axhline(threshold, **DASHED)
        panel.set_xscale("log", base=2)
        panel.set_xticks(distances, map(str, distances))
        panel.set(ylim=(0, 1), xlabel="distance between the copies (tokens)")
        panel.set_ylabel("mean attention mass on the induction targets")
        panel.minorticks_off()
    return page.figure


def accuracy_curve(result: Mapping[str, Any]) -> Figure:
    """Share of the planted heads of each kind that get their label, by their strength.

    Marks below the lines are the strengths of the real heads with that label; the thresholds are
    dashed. Both axes run from 0 to 1. `result` is that of `scripts/measure_accuracy.py`.
    """
    records = result.get("by_strength", [])
    if not records:
        raise InputError("result must have records by strength, got none")
    low, high = result["interval"]
    page = Page(
        "Share of planted heads with the right label, by strength",
        f"{min(record['heads'] for record in records)} planted heads at each strength, in random"
        f" rows. At the strength of real heads {result['accuracy']:.1%} of"
        f" {result['sizes']['report']} labels are right (95 % interval {low:.1%} to {high:.1%}),"
        " near misses among them.",
        body=3.6,
        notes="Strength: attention on the kind's targets beyond even attention. Marks below: real"
        " heads by their first label. Dashed: thresholds.",
    )
    shades = itertools.cycle((ACCENT, GREEN, BLUE, PINK, SKY, QUIET))
    with styled():
        panel = page.panel(0.6, 0.1, 4.4, 3.0)
        place = -0.01
        for (kind, real), shade in zip(result["strengths"].items(), shades):
            known = [
                (record["strength"], record["labelled_by_kind"][kind])
                for record in records
                if kind in record["labelled_by_kind"]
            ]
            panel.plot(*zip(*known), label=KINDS[kind].label, color=shade, marker="o")
            place -= 0.02
            panel.plot(real, [place] * len(real), "|", color=shade, markersize=3)
        for value in sorted({result["thresholds"][kind] for kind in result["strengths"]}):
            panel.axvline(value, **DASHED)
        panel.set(xlim=(0, 1), ylim=(place - 0.03, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
        panel.set(xlabel="strength of the planted head", ylabel="share with the right label")
        page.legend(panel.get_legend_handles_labels()[0], 5.2, 0.1)
    return page.figure


@checked
def sensitivity_chart(table: pd.DataFrame, model: str, *, most: Count = 40) -> Figure:
    """Each labelled head's score under several conditions, one line per head.

    Args:
        table: Result of `interp.trust.sensitivity.compare_scans`. Sinks are left out: most heads
            are sinks.
        model: Name of the model, for the title.
        most: Most heads to draw; those with the largest spread are drawn.
    """
    conditions = list(table.columns[2 : table.columns.get_loc("lowest")])
    work = table.loc[table["kind"] != "sink"]
    if work.empty:
        raise InputError("table must hold a head with a label other than sink, got none")
    shown = work.sort_values(by="spread", ascending=False).head(most).sort_index()
    left_out = f", {most} of {len(work)} by spread" if len(work) > most else ""
    height = len(shown) * 0.15 + 0.1
    page = Page(
        f"{prose(model)}: sensitivity of the scores",
        f"{len(conditions)} conditions; {conditions[0]} is the default scan.",
        body=len(shown) * 0.15 + 0.65,
        notes=f"Heads with the label under some condition{left_out}, sinks excepted. Orange: the"
        " label changes with the condition.",
    )
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(conditions)))
    with styled():
        panel = page.panel(1.75, 0.1, 3.9, height)
        for place, row in enumerate(shown.to_dict("records")):
            shade = ACCENT if row["flips"] else "#bbbbbb"
            panel.plot([row["lowest"], row["highest"]], [place] * 2, color=shade, linewidth=2.5)
        for condition, shade, mark in zip(conditions, shades, itertools.cycle("o^svD<>pP*X")):
            known = shown[condition].to_numpy(float, na_value=np.nan)
            look = {"s": 9, "color": shade, "linewidths": 0, "zorder": 3, "label": condition}
            panel.scatter(known, range(len(shown)), marker=mark, **look)
        pairs = zip(shown["name"], shown["kind"], strict=True)
        names = [f"{name}  {KINDS[kind].label}" for name, kind in pairs]
        panel.set_yticks(range(len(shown)), names)
        panel.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5))
        panel.set_xlabel("mean attention mass on the kind's targets")
        panel.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=6)
    return page.figure


COSTS = {
    "forward": ("plain forward pass", QUIET),
    "stream": ("all scores, streamed", ACCENT),
    "output_attentions": ("transformers, output_attentions (no score)", GREEN),
    "transformer_lens_shared": ("TransformerLens, three scores, one shared cache", SKY),
    "transformer_lens": ("TransformerLens, three scores as documented", BLUE),
}
"""Ways to run a prompt, by their name in `benchmarks/streaming.py`, in words, with a colour."""


def cost_curves(records: Sequence[dict[str, Any]]) -> Figure:
    """Time and peak memory of each way to run a prompt, by its length.

    Args:
        records: Results of `benchmarks/streaming.py`: seconds as `<way>_s`, and peak memory above
            the loaded model as `<way>_memory_mb` in MiB; a way without measurements has no line.
    """
    threads = records[0].get("made_on", {}).get("threads", "?")
    lengths = [record["length"] for record in records]
    page = Page(
        "Cost of scoring every head of SmolLM2-135M",
        f"{threads} threads, float32. Left: median seconds for one prompt."
        " Right: peak memory above the loaded model.",
        body=3.3,
        notes="Logarithmic axes. Ways that keep every pattern run one prompt and end where 24 GB"
        " are full; the first two run as many prompts as make 2,048 tokens.",
    )
    with styled():
        for left, unit, label in ((0.55, "s", "seconds"), (4.1, "memory_mb", "MiB")):
            panel = page.panel(left, 0.1, 2.85, 2.1)
            for way, (words, shade) in COSTS.items():
                known = [(r["length"], r[f"{way}_{unit}"]) for r in records if f"{way}_{unit}" in r]
                if known:
                    panel.plot(*zip(*known), label=words, marker="o", color=shade)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:,g}")
            panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
            panel.set(xlabel="tokens", ylabel=label)
            panel.minorticks_off()
        handles = page.figure.axes[0].get_legend_handles_labels()[0]
        page.legend(handles, 0.4, page.body - 0.72, ncols=2)
    return page.figure
