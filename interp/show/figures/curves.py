"""Scores and costs as lines."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.kinds.kind import LABELS
from interp.scan.table import HeadScan
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, QUIET, styled
from interp.show.figures.texts import prose
from interp.show.figures.words import model_name
from interp.show.pages.prompts import thresholds_of


def distance_curves(scan: HeadScan) -> Figure:
    """The induction score of each head by the distance between the copies.

    Heads that reach the threshold of the label at some distance have a colour and a name, at
    the end of their line; all others are grey. Scores are in [0, 1], distances in tokens.

    Raises:
        InputError: If the scan has no scores by distance.
    """
    columns = scan.by_distance()
    if not columns:
        raise InputError("scan must have scores by distance, got none: scan with a longer length")
    threshold = thresholds_of(scan)["induction"]
    page = Page(
        f"{model_name(scan)}: how far back induction reaches",
        "Two copies of random tokens, so many tokens apart; the second copy is scored.",
        width=7.2,
        body=3.9,
        notes=[
            f"Heads that reach {threshold:g} (dashed) at some distance are named, with their score"
            " at the farthest; the others are grey. Layers and heads count from 0."
        ],
    )
    with styled():
        panel = page.panel(0.6, 0.1, 5.6, 3.35)
        scores = scan.frame[list(columns.values())].to_numpy(float, na_value=np.nan)
        named = np.nan_to_num(scores).max(axis=1) >= threshold
        panel.plot(list(columns), scores[~named].T, color="#cccccc", linewidth=0.5)
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(1, named.sum())))
        lines = zip(scan.frame["name"][named], scores[named], shades)
        place = -np.inf
        for name, line, shade in sorted(lines, key=lambda entry: entry[1][-1]):
            panel.plot(list(columns), line, color=shade, linewidth=1.2, marker="o", markersize=2)
            place = max(line[-1], place + 0.035)  # Names that would overlap move up.
            panel.annotate(
                f"{name}  {line[-1]:.2f}",
                (max(columns), line[-1]),
                (1.03, place),
                textcoords=("axes fraction", "data"),
                color=shade,
                va="center",
                arrowprops={"arrowstyle": "-", "color": shade, "linewidth": 0.3},
            )
        panel.axhline(threshold, color=QUIET, linewidth=0.5, linestyle="--")
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(columns), [str(distance) for distance in columns])
        panel.set(ylim=(0, 1), xlabel="distance between the copies (tokens)")
        panel.set_ylabel("mean attention mass on the induction targets")
        panel.tick_params(length=2, width=0.5, pad=2)
        panel.minorticks_off()
    return page.figure


def accuracy_curve(result: Mapping[str, Any]) -> Figure:
    """How often planted heads of each kind get their label, by their strength.

    The strengths of the real heads with that label are marked below the lines, and the
    threshold at which the truth changes is dashed. Both axes run from 0 to 1.

    Args:
        result: From `scripts/measure_accuracy.py`.

    Raises:
        InputError: If the result has no strengths.
    """
    records = result.get("by_strength", [])
    if not records:
        raise InputError("result must have records by strength, got none")
    thresholds = result["thresholds"]
    fewest = min(record["heads"] for record in records)
    sizes, low, high = result["sizes"], *result["interval"]
    page = Page(
        "How strong a head must be to get its label",
        f"{fewest} planted heads at each strength, in random rows. At the strength of real heads"
        f" {result['accuracy']:.1%} of {sizes['report']} labels are right"
        f" (95 % interval {low:.1%} to {high:.1%}), near misses among them.",
        width=7.2,
        body=3.6,
        notes=[
            "Strength: attention on the kind's targets beyond even attention. Marks below: real"
            " heads with the label as their first. Dashed: thresholds."
        ],
    )
    colours = (ACCENT, "#009e73", "#0072b2", "#cc79a7", "#56b4e9", "#555555")
    shades = itertools.cycle(colours)
    with styled():
        panel = page.panel(0.6, 0.1, 4.4, 3.0)
        for place, ((kind, label), shade) in enumerate(zip(LABELS.items(), shades)):
            known = [
                (record["strength"], record["labelled_by_kind"][kind])
                for record in records
                if kind in record["labelled_by_kind"]
            ]
            panel.plot(
                *zip(*known), label=label, color=shade, linewidth=1.2, marker="o", markersize=2
            )
            real = result["strengths"][kind]
            height = -0.03 - 0.02 * place
            panel.plot(real, [height] * len(real), "|", color=shade, markersize=3)
        for value in sorted({thresholds[kind] for kind in LABELS}):
            panel.axvline(value, color=QUIET, linewidth=0.5, linestyle="--")
        panel.set(xlim=(0, 1), ylim=(-0.16, 1.03), xlabel="strength of the planted head")
        panel.set_ylabel("share that gets its label")
        panel.set_yticks([0, 0.25, 0.5, 0.75, 1])
        panel.tick_params(length=2, width=0.5, pad=2)
        corner = page.at(5.2, 0.1)
        page.figure.legend(
            *panel.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=corner
        )
    return page.figure


def sensitivity_chart(table: pd.DataFrame, model: str, *, most: int = 40) -> Figure:
    """Each labelled head's score under several conditions, one line a head.

    Args:
        table: From `interp.trust.sensitivity.compare_scans`. Sinks are left out: most heads are.
        model: Its name, for the title.
        most: How many heads at most, those with the largest spread.

    Raises:
        InputError: If no head holds a label other than sink.
    """
    conditions = list(table.columns[2 : table.columns.get_loc("lowest")])
    work = table.loc[table["kind"] != "sink"]
    if work.empty:
        raise InputError("table must hold a head with a label other than sink, got none")
    shown = work.sort_values(by="spread", ascending=False).head(most).sort_index()
    left_out = (
        f" Of {len(work)} heads the {most} of the largest spread." if len(work) > most else ""
    )
    step = 0.15
    page = Page(
        f"{prose(model)}: what scores depend on",
        f"Under {len(conditions)} conditions, of which {conditions[0]} is the usual scan.",
        width=7.2,
        body=len(shown) * step + 0.65,
        notes=[
            "Heads that carry the label under some condition; in orange those whose label flips."
            f"{left_out} Sinks, which most heads are, are left out."
        ],
    )
    marks = dict(zip(conditions, itertools.cycle("o^svD<>pP*X")))
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(conditions)))
    with styled():
        panel = page.panel(1.75, 0.1, 3.9, len(shown) * step + 0.1)
        for place, row in enumerate(shown.to_dict("records")):
            shade = ACCENT if row["flips"] else "#bbbbbb"
            panel.plot([row["lowest"], row["highest"]], [place] * 2, color=shade, linewidth=2.5)
        for condition, shade in zip(conditions, shades):
            known = shown[condition].to_numpy(float, na_value=np.nan)
            style = {"s": 9, "color": shade, "linewidths": 0, "zorder": 3}
            panel.scatter(
                known, range(len(shown)), marker=marks[condition], label=condition, **style
            )
        names = [f"{r['name']}  {LABELS[r['kind']]}" for r in shown.to_dict("records")]
        panel.set_yticks(range(len(shown)), names)
        panel.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5))
        panel.set_xlabel("mean attention mass on the kind's targets")
        panel.tick_params(length=2, width=0.5, pad=2)
        panel.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=6)
    return page.figure


COSTS = {
    "forward": "plain forward pass",
    "stream": "all six scores, streamed",
    "output_attentions": "transformers, output_attentions (no score)",
    "transformer_lens_shared": "TransformerLens, three scores, one shared cache",
    "transformer_lens": "TransformerLens, three scores as documented",
}
"""Ways to run a prompt, as `benchmarks/streaming.py` names them."""


def cost_curves(records: Sequence[dict[str, Any]]) -> Figure:
    """Time and peak memory of each way to run a prompt, by its length.

    Args:
        records: From `benchmarks/streaming.py`: seconds as `<way>_s`, and peak memory above the
            loaded model as `<way>_memory_mb` in MiB; a way that was not measured has no line.

    Raises:
        InputError: If there are no records.
    """
    if not records:
        raise InputError("records must hold at least one length, got none")
    machine = records[0].get("made_on", {})
    page = Page(
        "What scoring every head of SmolLM2-135M costs",
        f"{machine.get('threads', '?')} threads, float32. Left: median seconds for one prompt."
        " Right: peak memory above the loaded model.",
        width=7.2,
        body=3.3,
        notes=[
            "Axes are logarithmic. Ways that keep every pattern end where they no longer fit into"
            " 24 GB; they run one prompt, the first two as many as make 2,048 tokens."
        ],
    )
    shades = ("#555555", ACCENT, "#009e73", "#56b4e9", "#0072b2")
    with styled():
        panels = page.panel(0.55, 0.1, 2.85, 2.1), page.panel(4.1, 0.1, 2.85, 2.1)
        for panel, unit, label in zip(panels, ("s", "memory_mb"), ("seconds", "MiB")):
            for (way, words), shade in zip(COSTS.items(), shades):
                known = [(r["length"], r[f"{way}_{unit}"]) for r in records if f"{way}_{unit}" in r]
                if known:
                    line = {"marker": "o", "markersize": 2.5, "linewidth": 1.2, "color": shade}
                    panel.plot(*zip(*known), label=words, **line)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:,g}")
            panel.set_xticks([r["length"] for r in records], [f"{r['length']:,}" for r in records])
            panel.set(xlabel="tokens", ylabel=label)
            panel.tick_params(length=2, width=0.5, pad=2, labelsize=6)
            panel.minorticks_off()
        corner = page.at(0.4, page.body - 0.72)
        handles = panels[0].get_legend_handles_labels()
        page.figure.legend(*handles, loc="upper left", bbox_to_anchor=corner, ncols=2)
    return page.figure
