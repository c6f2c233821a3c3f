"""Results of experiments: scores, losses and costs as lines and bars."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from interp.errors import InputError
from interp.scan.table import HeadScan
from interp.show.figures.effects import tables_page
from interp.show.figures.page import SIZE, Page, drawn
from interp.show.figures.style import ACCENT, BLUE, DASHED, GREEN, PINK, QUIET, SKY
from interp.show.figures.words import ending, inches, model_name, prose


@drawn
def distance_curves(scan: HeadScan) -> Page:
    """The induction score of each head by the distance between the copies.

    Heads that reach the threshold of the label at some distance have a colour and a name, at
    the end of their line; all others are grey. Scores are in [0, 1], distances in tokens.
    """
    columns = scan.by_distance()
    if not columns:
        raise InputError("scan must have scores by distance, got none: scan with a longer length")
    distances, threshold = list(columns), scan.thresholds["induction"]
    page = Page(
        f"{model_name(scan)}: induction score by distance",
        "Random tokens, and the same again after the distance; the second copy is scored.",
        notes=f"Named: heads that reach {threshold:g} (dashed) at some distance, with their score"
        " at the largest. Layers and heads count from 0.",
    )
    scores = scan.frame[list(columns.values())].to_numpy(float, na_value=np.nan)
    named = np.nan_to_num(scores).max(axis=1) >= threshold
    high = max(2.6, 0.115 * named.sum())
    panel = page.panel(0.5, 0.1, page.width - 1.45, high)
    panel.plot(distances, scores[~named].T, color="#cccccc", linewidth=0.5)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(1, named.sum())))
    lines = sorted(zip(scan.frame["name"][named], scores[named]), key=lambda one: one[1][-1])
    place = -np.inf
    for (name, line), shade in zip(lines, shades):
        panel.plot(distances, line, color=shade, marker="o")
        place = max(line[-1], place + 0.115 / high)  # Names that would overlap move up.
        ends = (max(distances), line[-1]), (1.04, place)
        look: dict[str, Any] = {"textcoords": ("axes fraction", "data"), "va": "center"}
        look["arrowprops"] = {"arrowstyle": "-", "color": shade, "linewidth": 0.3}
        panel.annotate(f"{name}  {line[-1]:.2f}", *ends, color=shade, **look)
    panel.axhline(threshold, **DASHED)
    panel.set_xscale("log", base=2)
    # As many numbers as fit.
    every = max(1, round(0.4 * len(distances) / (page.width - 1.45)))
    panel.set_xticks(distances[::every], map(str, distances[::every]))
    panel.set(ylim=(0, 1), xlabel="distance between the copies (tokens)")
    panel.set_ylabel("attention on the induction targets")
    panel.minorticks_off()
    return page


@drawn
def accuracy_curve(result: Mapping[str, Any]) -> Page:
    """Share of the planted heads that get their label, by their strength: a panel for each kind.

    Marks along the bottom are the strengths of the real heads with that label; the threshold is
    dashed. Both axes run from 0 to 1. `result` is that of `scripts/measure_accuracy.py`.
    """
    records, (low, high) = result["by_strength"], result["interval"]
    page = Page(
        "Share of planted heads with the right label, by strength",
        f"{min(record['heads'] for record in records)} planted heads at each strength, in random"
        f" rows. At the strength of real heads {result['accuracy']:.1%} of"
        f" {result['sizes']['report']} labels are right (95 % interval {low:.1%} to {high:.1%}),"
        " near misses among them.",
        notes="Strength: attention on the kind's targets beyond even attention.",
    )
    titles = [kind.replace("_", " ") for kind in result["strengths"]]
    look: dict[str, Any] = {"across": "strength", "down": "share with label", "slot": 1.25}
    for panel, (kind, real) in zip(page.grid(titles, **look), result["strengths"].items()):
        shares = [(record["strength"], record["labelled_by_kind"].get(kind)) for record in records]
        known = [(strength, share) for strength, share in shares if share is not None]
        panel.axvline(result["thresholds"][kind], **DASHED)
        panel.plot(*zip(*known), color=BLUE, marker="o", label="planted heads")
        panel.plot(real, [-0.09] * len(real), "|", color=ACCENT, markersize=4, label="a real head")
        panel.set(xlim=(0, 1), ylim=(-0.18, 1.05))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_ticks([0, 0.5, 1], ["0", "0.5", "1"])
    lines = page.figure.axes[0].lines
    page.legend([*lines[1:], Line2D([], [], **DASHED, label="threshold of the label")])
    return page


@drawn
def sensitivity_chart(table: pd.DataFrame, model: str) -> Page:
    """How each condition changes the score of each labelled head: heads down, conditions across.

    A number is the score under the condition minus that of the first one, which is the default
    scan and has its score behind the head's name. Outlined: the label changes. Sinks are left out:
    most heads are sinks. Of many heads the 40 of largest spread are drawn. `table` is the result of
    `interp.trust.sensitivity.compare_scans`, `model` goes in the title.
    """
    usual, *others = table.columns[2 : table.columns.get_loc("lowest")]
    work = table.loc[table["kind"] != "sink"]
    if work.empty:
        raise InputError("table must hold a head with a label other than sink, got none")
    shown = work.sort_values(by="spread", ascending=False).head(40).sort_index()
    columns = [shown[name].to_numpy(float, na_value=np.nan) for name in (usual, *others)]
    scores = np.stack(columns, 1)
    rows = zip(shown["name"], shown["kind"].str.replace("_", " "), scores[:, 0], strict=True)
    names = [
        f"{name}  {kind}  {'' if np.isnan(score) else f'{score:.2f}'}" for name, kind, score in rows
    ]
    change = pd.DataFrame(scores[:, 1:] - scores[:, :1], names, others)
    flips = [[name in words.split(", ") for name in others] for words in shown["flips"]]
    return tables_page(
        f"{prose(model)}: sensitivity of the scores",
        {},
        {"": change},
        f"change of the score from {usual}, the default scan",
        notes=f"Behind each head: its score under {usual}. Outlined: the label differs from that of"
        f" {usual}. Heads with a label but sink under some condition"
        + (
            f", the {len(shown)} of {len(work)} with the largest spread." if len(work) > 40 else "."
        ),
        marked=np.array(flips),
    )


COSTS = {
    "forward": ("plain forward pass", QUIET),
    "stream": ("all scores, streamed", ACCENT),
    "output_attentions": ("transformers, output_attentions (no score)", GREEN),
    "transformer_lens_shared": ("TransformerLens, three scores, one shared cache", SKY),
    "transformer_lens": ("TransformerLens, three scores as documented", BLUE),
}
"""Ways to run a prompt, by their name in `benchmarks/streaming.py`, in words, with a colour."""


@drawn
def cost_curves(records: Sequence[dict[str, Any]]) -> Page:
    """Time and peak memory of each way to run a prompt, by its length.

    `records` are results of `benchmarks/streaming.py`: seconds as `<way>_s`, and peak memory above
    the loaded model as `<way>_memory_mb` in MiB; a way without measurements has no line.
    """
    threads = records[0].get("made_on", {}).get("threads", "?")
    lengths = [record["length"] for record in records]
    page = Page(
        "Cost of scoring every head of SmolLM2-135M",
        f"{threads} threads, float32. Memory is the peak above the loaded model.",
        notes="Logarithmic axes. Ways that keep every pattern run one prompt and end where 24 GB"
        " are full; the first two run as many prompts as make 2,048 tokens.",
    )
    units = {"median seconds for one prompt": "s", "peak memory (MiB)": "memory_mb"}
    for panel, unit in zip(page.grid([*units], 2.0, slot=2.4, under=0.35), units.values()):
        for way, (words, shade) in COSTS.items():
            known = [(r["length"], r[f"{way}_{unit}"]) for r in records if f"{way}_{unit}" in r]
            if known:
                panel.plot(*zip(*known), label=words, marker="o", color=shade)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
        panel.set(xlabel="tokens")
        panel.tick_params(labelleft=True)
        panel.minorticks_off()
    page.legend(page.figure.axes[0].get_legend_handles_labels()[0])
    return page


CACHES = "full", "window", "other_window", "sink_window", "sink_window_text_positions"

BIN = 16  # Positions whose mean is one point of a line: a single one depends on few tokens.


@drawn
def sink_losses(result: Mapping[str, Any]) -> Page:
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
        notes=f"Lines: means over rows and {BIN} positions. Dots: heads, by their first label;"
        f" attention of queries from {result['counted_from']} on, with the whole cache. Thin lines:"
        " 95 % intervals over rows.",
    )
    (panel,) = page.grid(["Loss with a cache of"], 2.0, slot=2.0)
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
    panel.set_title("Loss by position, and its mean after the dashed line", loc="left")
    page.legend(panel.get_legend_handles_labels()[0])

    places, generator = np.arange(len(labels)), np.random.default_rng(0)
    names = [f"{name} ({of['heads']})" for name, of in labels.items()]
    left = 0.2 + max(inches(name, SIZE) for name in names)
    titles = [
        f"Attention on the first {made_by['kept']} tokens",
        "Loss if only these heads have a cut cache",
    ]
    # Side by side, or one above the other, each with its names.
    room = page.width - left
    slot = min(2.0, room - 0.2)
    high = 0.19 * len(labels) + 0.1
    attention, cost = page.grid(titles, high, slot=slot, left=left, under=0.34, top=page.below(0.2))
    look = {"color": QUIET, "alpha": 0.45, "markersize": 2, "markeredgewidth": 0}
    for place, label in enumerate(labels):
        masses = [head["on_first"] for head in result["heads"] if head["label"] == label]
        apart = place + generator.uniform(-0.28, 0.28, len(masses))
        attention.plot(masses, apart, "o", **look, label="a head")
        bar = [place - 0.36, place + 0.36]
        attention.plot([np.mean(masses)] * 2, bar, color="black", linewidth=1.5, label="mean")
    attention.set(xlim=(0, 1), xlabel="attention weight")
    for key, shade, up in (
        ("cost", ACCENT, -0.2),
        ("cost_kept", BLUE, 0.2),
    ):
        values = np.array([of[key] for of in labels.values()])
        low, high = np.array([of[f"{key}_interval"] for of in labels.values()]).T
        cost.barh(places + up, values, 0.36, color=shade)
        look = {"fmt": "none", "ecolor": "black", "elinewidth": 0.6}
        cost.errorbar(
            values, places + up, xerr=np.maximum(0, [values - low, high - values]), **look
        )
    cost.axvline(0, color="black", linewidth=0.5)
    cost.set(xlabel="increase of the loss (nats)")
    for panel in (attention, cost):
        panel.set_yticks(places, names)
        panel.set(ylim=(len(labels) - 0.5, -0.5))
    of_heads = attention.get_legend_handles_labels()[0][:2]
    kept = [
        Patch(color=ACCENT, label="their cache holds the last tokens only"),
        Patch(color=BLUE, label="and the first tokens too"),
    ]
    page.legend([*of_heads, *kept])
    return page


@drawn
def exam_scores(table: pd.DataFrame) -> Page:
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
        notes="AUROC: share of pairs of a true and another edge in which the true one has the"
        " larger score. Average precision: mean share of true edges among the best, at each one.",
    )
    shades = dict(zip(groups, itertools.cycle((ACCENT, GREEN, BLUE, PINK, SKY, QUIET, "black"))))
    columns = {"AUROC": "auroc", "average precision": "average_precision"}
    left = 0.2 + max(inches(method, SIZE) for method in order)
    look: dict[str, Any] = {"left": left, "slot": min(2.0, page.width - left - 0.2)}
    panels = page.grid([*columns], 0.36 * len(order), under=0.25, **look)
    for panel, column in zip(panels, columns.values()):
        generator = np.random.default_rng(0)
        for place, method in enumerate(order):
            rows = edges.loc[(edges["method"] == method) & edges[column].notna()]
            apart = place + generator.uniform(-0.3, 0.3, len(rows))
            dots = [shades[group] for group in rows["group"]]
            panel.scatter(rows[column], apart, s=7, c=dots, lw=0)
            median = rows[column].median()
            panel.plot([median] * 2, [place - 0.38, place + 0.38], color="black", linewidth=1.2)
            panel.text(1.05, place, f"{median:.2f}", va="center")
        panel.set(xlim=(0, 1.25), xticks=[0, 0.5, 1], ylim=(len(order) - 0.5, -0.5))
        panel.set_yticks(range(len(order)), order)
    page.legend([Line2D([], [], marker="o", ls="", color=shades[g], label=g) for g in groups])
    return page
