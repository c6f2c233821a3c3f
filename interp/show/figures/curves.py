"""Results of experiments: scores, losses and costs as lines and bars."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from interp.errors import InputError
from interp.scan.table import HeadScan
from interp.show.about import thresholds_of
from interp.show.figures.page import Page
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREEN, PINK, QUIET, SKY, styled
from interp.show.figures.words import ending, model_name, prose


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
            ends = (max(distances), line[-1]), (1.03, place)
            look: dict[str, Any] = {"textcoords": ("axes fraction", "data"), "va": "center"}
            look["arrowprops"] = {"arrowstyle": "-", "color": shade, "linewidth": 0.3}
            panel.annotate(f"{name}  {line[-1]:.2f}", *ends, color=shade, **look)
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
    records, (low, high) = result["by_strength"], result["interval"]
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
            shares = [
                (record["strength"], record["labelled_by_kind"].get(kind)) for record in records
            ]
            known = [(strength, share) for strength, share in shares if share is not None]
            panel.plot(*zip(*known), label=kind.replace("_", " "), color=shade, marker="o")
            place -= 0.02
            panel.plot(real, [place] * len(real), "|", color=shade, markersize=3)
        for value in sorted({result["thresholds"][kind] for kind in result["strengths"]}):
            panel.axvline(value, **DASHED)
        panel.set(xlim=(0, 1), ylim=(place - 0.03, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
        panel.set(xlabel="strength of the planted head", ylabel="share with the right label")
        page.legend(panel.get_legend_handles_labels()[0], 5.2, 0.1)
    return page.figure


def sensitivity_chart(table: pd.DataFrame, model: str) -> Figure:
    """Each labelled head's score under several conditions, one line per head.

    Sinks are left out: most heads are sinks. Of many heads the 40 of largest spread are drawn.
    `table` is the result of `interp.trust.sensitivity.compare_scans`, `model` goes in the title.
    """
    conditions = list(table.columns[2 : table.columns.get_loc("lowest")])
    work = table.loc[table["kind"] != "sink"]
    if work.empty:
        raise InputError("table must hold a head with a label other than sink, got none")
    shown = work.sort_values(by="spread", ascending=False).head(40).sort_index()
    left_out = f", 40 of {len(work)} by spread" if len(work) > 40 else ""
    page = Page(
        f"{prose(model)}: sensitivity of the scores",
        f"{len(conditions)} conditions; {conditions[0]} is the default scan.",
        body=len(shown) * 0.15 + 0.65,
        notes=f"Heads with the label under some condition{left_out}, sinks excepted. Orange: the"
        " label changes with the condition.",
    )
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(conditions)))
    with styled():
        panel = page.panel(1.75, 0.1, 3.9, len(shown) * 0.15 + 0.1)
        for place, row in enumerate(shown.to_dict("records")):
            shade = ACCENT if row["flips"] else "#bbbbbb"
            panel.plot([row["lowest"], row["highest"]], [place] * 2, color=shade, linewidth=2.5)
        for condition, shade, mark in zip(conditions, shades, itertools.cycle("o^svD<>pP*X")):
            known = shown[condition].to_numpy(float, na_value=np.nan)
            look = {"s": 9, "color": shade, "linewidths": 0, "zorder": 3, "label": condition}
            panel.scatter(known, range(len(shown)), marker=mark, **look)
        names = shown["name"] + "  " + shown["kind"].str.replace("_", " ")
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

    `records` are results of `benchmarks/streaming.py`: seconds as `<way>_s`, and peak memory above
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


CACHES = "full", "window", "other_window", "sink_window", "sink_window_text_positions"

BIN = 16  # Positions whose mean is one point of a line: a single one depends on few tokens.


def sink_losses(result: Mapping[str, Any]) -> Figure:
    """Loss by position for each cache; attention on the first tokens and cost of a cut by label.

    Losses and costs are in nats, attention runs from 0 to 1, each label's heads are dots.
    `result` is the content of `sink_experiment.json`.
    """
    made_by, labels = result["made_by"], result["labels"]
    page = Page(
        f"{ending(str(made_by['model']), 3.6)}: a cache without the first tokens",
        f"{made_by['rows']} rows of {made_by['length']} tokens of text"
        + ("" if made_by["bos"] is None else ", BOS included")
        + f". A cut cache holds {made_by['size']} tokens and is full at the dashed line.",
        body=5.2 + 0.1 * max(0, len(labels) - 6),
        notes=f"Top: means over rows and {BIN} positions. Left: a dot per head (first label),"
        f" queries from {result['counted_from']} on, whole cache; bars: means. Right: increase of"
        " the loss if only these heads are cut, 95 % intervals over rows.",
    )
    height, places = page.body - 3.65, np.arange(len(labels))
    with styled():
        panel = page.panel(0.55, 0.2, 4.15, 2.4)
        for name, shade in zip(CACHES, ("black", ACCENT, PINK, BLUE, SKY)):
            losses = np.array(result["loss_by_position"][name])
            starts = range(0, len(losses), BIN)
            pieces = [losses[i : i + BIN] for i in starts]
            middles = [i + (len(piece) - 1) / 2 for i, piece in zip(starts, pieces)]
            words = f"{result['caches'][name]}: {result['loss'][name]:.2f}"
            look: dict[str, Any] = {"linestyle": "--" if name.endswith("positions") else "-"}
            panel.plot(middles, [p.mean() for p in pieces], color=shade, label=words, **look)
        panel.axvline(made_by["size"], **DASHED)
        panel.set(xlim=(0, made_by["length"]), ylim=(0, None), xlabel="position (tokens)")
        panel.set_ylabel("loss of the next token (nats)")
        look = {"title": "cache: mean loss after the line", "alignment": "left"}
        page.legend(panel.get_legend_handles_labels()[0], 4.75, 0.15, **look)

        panel, generator = page.panel(1.45, 3.25, 2.5, height), np.random.default_rng(0)
        look = {"color": QUIET, "alpha": 0.45, "markersize": 2, "markeredgewidth": 0}
        for place, label in enumerate(labels):
            masses = [head["on_first"] for head in result["heads"] if head["label"] == label]
            apart = place + generator.uniform(-0.28, 0.28, len(masses))
            panel.plot(masses, apart, "o", **look)
            bar = [place - 0.36, place + 0.36]
            panel.plot([np.mean(masses)] * 2, bar, color=ACCENT, linewidth=1.5)
        panel.set_yticks(places, [f"{name} ({of['heads']})" for name, of in labels.items()])
        panel.set(xlim=(0, 1), ylim=(len(labels) - 0.5, -0.5))
        panel.set_xlabel(f"attention on the first {made_by['kept']} tokens")

        panel = page.panel(4.2, 3.25, 2.6, height)
        for key, words, shade, up in (
            ("cost", "only the last tokens", ACCENT, -0.2),
            ("cost_kept", "first tokens kept", SKY, 0.2),
        ):
            values = np.array([of[key] for of in labels.values()])
            low, high = np.array([of[f"{key}_interval"] for of in labels.values()]).T
            panel.barh(places + up, values, 0.36, color=shade, label=words)
            look = {"fmt": "none", "ecolor": "black", "elinewidth": 0.6}
            errors = np.maximum(0, [values - low, high - values])
            panel.errorbar(values, places + up, xerr=errors, **look)
        panel.axvline(0, color="black", linewidth=0.5)
        panel.set_yticks(places, [""] * len(labels))
        xlabel = "increase of the loss with these heads cut (nats)"
        panel.set(ylim=(len(labels) - 0.5, -0.5), xlabel=xlabel)
        page.legend(panel.get_legend_handles_labels()[0], 4.1, 2.83, ncols=2)
    return page.figure


def exam_scores(table: pd.DataFrame) -> Figure:
    """How well methods tell the edges of circuits from others: a dot for each model of the exam.

    `table` is the result of `interp.trust.exam.exam`. Both measures are in [0, 1].
    """
    edges = table.loc[table["of"] == "edges"]
    medians = edges.groupby("method")["auroc"].median()
    order = sorted(medians.index, key=lambda method: -medians[method])
    groups = edges["group"].unique()
    page = Page(
        "How well methods find the edges of known circuits",
        f"{edges['model'].nunique()} small models, a dot each; the black line is the median, with"
        " its value on the right.",
        body=0.42 * len(order) + 0.85,
        notes="AUROC: share of pairs of a true and another edge in which the true one has the"
        " larger score. Average precision: mean share of true edges among the best, at each one.",
    )
    shades = dict(zip(groups, itertools.cycle((ACCENT, GREEN, BLUE, PINK, SKY, QUIET, "black"))))
    panels: dict[str, Any] = {"auroc": "AUROC", "average_precision": "average precision"}
    with styled():
        for at, (column, label) in enumerate(panels.items()):
            panel = page.panel(1.35 + 2.95 * at, 0.05, 2.4, 0.42 * len(order))
            generator = np.random.default_rng(0)
            for place, method in enumerate(order):
                rows = edges.loc[(edges["method"] == method) & edges[column].notna()]
                apart = place + generator.uniform(-0.3, 0.3, len(rows))
                panel.scatter(
                    rows[column], apart, s=7, c=[shades[group] for group in rows["group"]], lw=0
                )
                median = rows[column].median()
                panel.plot([median] * 2, [place - 0.38, place + 0.38], color="black", linewidth=1.2)
                look: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
                panel.annotate(f"{median:.2f}", (1.02, place), va="center", **look)
            panel.set(xlim=(0, 1.02), ylim=(len(order) - 0.5, -0.5), xlabel=label)
            panel.set_yticks(range(len(order)), order if at == 0 else [""] * len(order))
        handles = [Line2D([], [], marker="o", ls="", color=shades[g], label=g) for g in groups]
        page.legend(handles, 0.4, page.body - 0.4, ncols=len(groups))
    return page.figure
