"""The one door to matplotlib: from results to a `Figure`, and from a `Figure` to a file.

Figures are made without pyplot, so that no display is needed, and with settings of their
own, which the caller's do not reach. Every scale is fixed to [0, 1], so that any two figures
can be compared. Layers, heads and positions count from 0.
"""

import itertools
import os
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.labels import FORCED_WINDOW, LABELS
from interp.scores import Thresholds
from interp.sinks import halves, sink_columns, spaced
from interp.table import HeadScan
from interp.targets import NONE, TARGETS, earlier_copies, ordinary

if TYPE_CHECKING:
    from interp.hooks import AttentionPatterns

FONT = "DejaVu Sans"
"""The font that matplotlib itself brings, so that figures are alike everywhere."""

STYLE: dict[str, Any] = {
    "font.family": FONT,
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.titlepad": 4,
    "axes.linewidth": 0.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    # A `$` or a `\frac` in a name is text.
    "text.parse_math": False,
    # Letters drawn as shapes: the same picture with or without this font installed.
    "svg.fonttype": "path",
    # Publishers refuse the other kind, Type 3.
    "pdf.fonttype": 42,
    # Makes the names inside an SVG the same each time.
    "svg.hashsalt": "interp",
}

LOOKS = {
    "induction": "looks right after an earlier copy",
    "duplicate_token": "looks at earlier copies of the token",
    "previous_token": "looks one token back",
    "current_token": "looks at the token itself",
    "local_window": "looks at the last {window_width} tokens",
    "sink": "rests on the first token or another",
}
"""Where the heads of each kind look, in a few words."""

_ACCENT = "#d55e00"  # Vermilion, which every kind of colour vision tells from blue.
_GREY = "#e0e0e0"
# From light to dark: it reads without colour, and on paper. Where there is no value it is
# transparent, but grey: transparent black leaves a dark seam in PDF viewers.
_COLOURS = matplotlib.colormaps["Blues"].with_extremes(bad=to_rgba(_GREY, 0))
_QUIET = "#555555"
_HATCH: dict[str, Any] = {"facecolor": _GREY, "edgecolor": "#999999", "hatch": "//////"}
_SETTINGS = threading.RLock()
_METADATA = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def score_mosaic(scan: HeadScan) -> Figure:
    """The scores of all heads: one panel per kind of head, layers across, heads down.

    Colours run from 0 to 1, whatever the scores. Heads that carry the kind's label are
    outlined; missing scores are hatched grey, and the legend says so.

    Raises:
        InputError: If the scan holds no head.
    """
    frame, thresholds = scan.frame, _thresholds(scan)
    if frame.empty:
        raise InputError("scan must hold at least one head, got none")
    layers, heads = max(frame["layer"].tolist()) + 1, max(frame["head"].tolist()) + 1
    columns = 2 if layers > 1.6 * heads else 3
    slot = 6.85 / columns
    cell = min((slot - 0.3) / layers, 0.5)
    cell = cell, min(max(cell, 0.9 / heads), 3 / heads, 0.3)
    rows, step = len(TARGETS) // columns, heads * cell[1] + 0.48
    page = _Page(
        f"{_model_name(scan)}: where each attention head looks",
        _what_was_run(scan),
        width=7.2,
        body=rows * step + 0.85,
        notes=_mosaic_notes(scan),
    )
    legend = [Patch(facecolor="none", edgecolor=_ACCENT, label="head carries the label")]
    with _styled():
        for place, kind in enumerate(TARGETS):
            row, column = divmod(place, columns)
            scores = np.full((heads, layers), np.nan)
            at = frame["head"].to_numpy(int), frame["layer"].to_numpy(int)
            scores[at] = frame[kind].to_numpy(float, na_value=np.nan)
            labelled = scan.having(LABELS[kind])

            corner = 0.5 + column * slot, row * step + 0.38
            panel = page.panel(*corner, layers * cell[0], heads * cell[1])
            _paint(panel, scores)
            panel.patch.set(**_HATCH)
            panel.add_collection(_outlines(labelled, 72 * cell[0], 72 * cell[1]))
            measured = len(frame[kind].dropna())
            number = f"{len(labelled)} of {measured}" if measured else "not"
            counted = "heads" if measured == len(frame) else "measured"
            looks = LOOKS[kind].format(**thresholds)
            panel.set_title(f"{LABELS[kind]}: {number} {counted}\n{looks}", loc="left")
            _whole_ticks(panel, "layer", "head", bottom=row == rows - 1, first=column == 0)
            if np.isnan(scores).any() and len(legend) == 1:
                legend.append(Patch(**_HATCH, label="not measured"))
        page.foot("mean attention mass on the kind's targets", legend)
    return page.figure


def pattern_page(scan: HeadScan, patterns: "AttentionPatterns", *, top: int = 4) -> Figure:
    """The attention of the strongest heads of each kind, on the first row of `patterns`.

    One row of pictures per kind that has heads, queries down and keys across, from 0 to 1.
    The kind's targets are outlined: for a sink, the first token and the other columns where
    this head rests. The number above a picture is the head's score in the scan.

    Args:
        scan: Which heads are what.
        patterns: From the same model, with the layers of the heads to be drawn.
        top: How many heads of each kind at most.

    Raises:
        InputError: If `top` is not positive, the row is all padding, or `patterns` lack a
            head that is to be drawn.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, got {top}")
    place = (patterns.tokens[0] != NONE).nonzero().flatten().tolist()
    if not place:
        raise InputError("patterns must have a token in their first row, got padding only")
    real = slice(place[0], place[-1] + 1)
    tokens, thresholds = patterns.tokens[0, real].cpu(), _thresholds(scan)
    special = [] if scan.made_by.get("bos") is None else [scan.made_by["bos"]]
    shown = {kind: scan.having(LABELS[kind]).head(top) for kind in TARGETS}
    kinds = [kind for kind in TARGETS if len(shown[kind])]
    widths = [len(shown[kind]) for kind in kinds] + [0]
    size, slot, step = 1.24, 1.37, 1.57
    page = _Page(
        f"{_model_name(scan)}: the strongest heads of each kind",
        _prompt(tokens, patterns.texts[0], scan.made_by),
        width=max(7.2, 1.75 + slot * max(widths)),
        body=len(kinds) * step + 0.85 if kinds else 0.15,
        notes=_page_notes(kinds),
    )
    with _styled():
        for row, kind in enumerate(kinds):
            number = f"{widths[row]} of {len(scan.having(LABELS[kind]))} shown"
            looks = _wrapped(LOOKS[kind].format(**thresholds), 1.05)
            page.text(0.15, row * step + 0.24, LABELS[kind], size=8, weight="bold")
            page.text(0.15, row * step + 0.41, f"{looks}\n{number}", color=_QUIET)
            heads = shown[kind][["layer", "head", kind]].itertuples(index=False)
            for column, (layer, head, score) in enumerate(heads):
                name = Head(layer, head)
                attention = _pattern_of(patterns, name)[real, real]
                targets = _targets(kind, tokens, attention, thresholds, special)
                panel = page.panel(1.65 + column * slot, row * step + 0.22, size, size)
                later = torch.ones_like(targets).triu(1)
                _paint(panel, attention.masked_fill(later, np.nan).numpy())
                panel.patch.set_facecolor(_GREY)
                panel.add_collection(_border(targets.numpy(), 72 * size / len(tokens)))
                panel.set_title(f"{name}  {'no score' if pd.isna(score) else f'{score:.2f}'}")
                lowest = column >= widths[row + 1]
                _whole_ticks(panel, "key", "query", bottom=lowest, first=column == 0)
        if kinds:
            outlined = Patch(facecolor="none", edgecolor=_ACCENT, label="targets of the kind")
            hidden = Patch(facecolor=_GREY, label="later tokens: out of sight")
            page.foot("attention from query to key", [outlined, hidden])
    return page.figure


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
    threshold = _thresholds(scan)["induction"]
    page = _Page(
        f"{_model_name(scan)}: how far back induction reaches",
        "Two copies of random tokens, so many tokens apart; the second copy is scored.",
        width=7.2,
        body=3.9,
        notes=[
            f"Heads that reach {threshold:g} (dashed) at some distance are named, with their score"
            " at the farthest; the others are grey. Layers and heads count from 0."
        ],
    )
    with _styled():
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
        panel.axhline(threshold, color=_QUIET, linewidth=0.5, linestyle="--")
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
    page = _Page(
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
    shades = (_ACCENT, "#009e73", "#0072b2", "#cc79a7", "#56b4e9", "#555555")
    with _styled():
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
            panel.axvline(value, color=_QUIET, linewidth=0.5, linestyle="--")
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
        table: From `interp.sensitivity.compare_scans`. Sinks are left out: most heads are.
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
    page = _Page(
        f"{_prose(model)}: what scores depend on",
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
    with _styled():
        panel = page.panel(1.75, 0.1, 3.9, len(shown) * step + 0.1)
        for place, row in enumerate(shown.to_dict("records")):
            shade = _ACCENT if row["flips"] else "#bbbbbb"
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
    page = _Page(
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
    shades = ("#555555", _ACCENT, "#009e73", "#56b4e9", "#0072b2")
    with _styled():
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


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write `figure` as `.png` (300 dpi), `.svg` or `.pdf`: the same bytes each time.

    Raises:
        InputError: If the ending is none of these, or the folder is not there.
    """
    path = Path(path)
    if path.suffix not in _METADATA:
        raise InputError(f"path must end in {', '.join(_METADATA)}, got {path.name}")
    if not path.parent.is_dir():
        raise InputError(f"path must be in a folder that is there, got {path}")
    with _styled():
        figure.savefig(path, format=path.suffix[1:], dpi=300, metadata=_METADATA[path.suffix])


def visible(text: str) -> str:
    r"""`text` as a label in which nothing is lost: texts that differ look different.

    A space is ␣, a newline ⏎, a tab ⇥, an empty text ∅. What has no shape of its own
    (control, zero-width, bidirectional and combining characters, other blanks), what the
    font lacks, and those four signs themselves become their number, as U+200B. All else
    stays as it is.

    Example:
        >>> visible(" the"), visible("$x$"), visible("a\u200bb\n"), visible("")
        ('␣the', '$x$', 'aU+200Bb⏎', '∅')
    """
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    return "".join(marks.get(character) or _literal(character) for character in text) or "∅"


def _literal(character: str) -> str:
    # Unicode's kinds of what cannot be seen by itself: other, separator, mark; U+2800 is blank too.
    hidden = unicodedata.category(character)[0] in "CZM"
    if hidden or character in "␣⏎⇥∅\u2800" or ord(character) not in _glyphs():
        return f"U+{ord(character):04X}"
    return character


@lru_cache
def _glyphs() -> frozenset[int]:
    """The characters that the font can draw."""
    return frozenset(FT2Font(findfont(FONT)).get_charmap())


def _prose(text: str) -> str:
    return visible(text).replace("␣", " ")


def _inches(text: str, size: float) -> float:
    font = FontProperties(family=FONT, size=size)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def _wrapped(text: str, width: float) -> str:
    """Text of the usual size in lines of at most `width` inches, if no word is longer."""
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]} {word}".lstrip(" ")
        lines[-1:] = [line] if _inches(line, STYLE["font.size"]) <= width else [lines[-1], word]
    return "\n".join(lines)


@contextmanager
def _styled() -> Iterator[None]:
    """Matplotlib's own defaults and `STYLE`, whatever the caller has set, and that back after.

    Settings belong to the whole process, so one thread at a time.
    """
    with _SETTINGS, matplotlib.style.context(["default", STYLE]):
        yield


class _Page:
    """A title, what was run, a body of panels with a foot, and notes; places are in inches.

    Places inside the body count from its top left corner.
    """

    def __init__(
        self, title: str, subtitle: str, *, width: float, body: float, notes: Sequence[str]
    ) -> None:
        subtitle, *notes = (_wrapped(text, width - 0.3) for text in (subtitle, *notes))
        line = 0.135
        self.top = 0.4 + line * len(subtitle.splitlines())
        self.width, self.body = width, body
        self.height = self.top + body + line * len("\n".join(notes).splitlines()) + 0.1
        with _styled():
            self.figure = Figure(figsize=(width, self.height), facecolor="white")
            self.text(0.15, 0.12 - self.top, title, size=10)
            self.text(0.15, 0.34 - self.top, subtitle, color=_QUIET)
            self.text(0.15, body, "\n".join(notes), color=_QUIET)

    def at(self, left: float, top: float) -> tuple[float, float]:
        return left / self.width, 1 - (self.top + top) / self.height

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        self.figure.text(*self.at(left, top), text, va="top", linespacing=1.35, **style)

    def panel(self, left: float, top: float, width: float, height: float) -> Axes:
        bounds = *self.at(left, top + height), width / self.width, height / self.height
        return self.figure.add_axes(bounds)

    def foot(self, label: str, legend: list[Patch]) -> None:
        """The one colour bar, and what the other colours mean."""
        bar = self.panel(0.5, self.body - 0.52, 2.6, 0.1)
        colours = ScalarMappable(Normalize(0, 1), _COLOURS)
        self.figure.colorbar(colours, bar, orientation="horizontal", ticks=[0, 0.5, 1], label=label)
        bar.tick_params(length=2, width=0.5, pad=2)
        corner = self.at(3.4, self.body - 0.62)
        self.figure.legend(handles=legend, loc="upper left", bbox_to_anchor=corner, ncols=2)


def _paint(panel: Axes, values: Float[np.ndarray, "down across"]) -> None:
    """Values from 0 to 1 as colours; where there is none (NaN) the panel's ground shows."""
    panel.imshow(values, _COLOURS, vmin=0, vmax=1, interpolation="nearest", aspect="auto")


def _whole_ticks(panel: Axes, across: str, down: str, *, bottom: bool, first: bool) -> None:
    """Whole numbers on both axes; words and numbers at the outer panels only."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    panel.tick_params(length=2, width=0.5, labelsize=6, pad=2, labelbottom=bottom, labelleft=first)
    panel.set_xlabel(across if bottom else "", labelpad=1)
    panel.set_ylabel(down if first else "", labelpad=2)


def _outlines(heads: pd.DataFrame, width: float, height: float) -> PatchCollection:
    """A frame inside the cell of each of `heads`; a cell's sides are in points."""
    line = min(1.0, max(0.3, min(width, height) / 10))
    across, down = 1 - line / width, 1 - line / height
    boxes = [
        Rectangle((layer - across / 2, head - down / 2), across, down)
        for layer, head in zip(heads["layer"].tolist(), heads["head"].tolist())
    ]
    return PatchCollection(boxes, facecolor="none", edgecolor=_ACCENT, linewidth=line)


def _border(targets: Bool[np.ndarray, "pos pos"], cell: float) -> LineCollection:
    """Lines between targets and all else: they surround areas and cover no cell."""
    padded = np.pad(targets, 1)
    above, beside = (np.argwhere(np.diff(padded, axis=axis)) - 0.5 for axis in (0, 1))
    lines = [((k - 1, q), (k, q)) for q, k in above] + [((k, q - 1), (k, q)) for q, k in beside]
    return LineCollection(lines, colors=_ACCENT, linewidths=min(0.5, cell / 9))


def _pattern_of(patterns: "AttentionPatterns", name: Head) -> Float[Tensor, "pos pos"]:
    layers, heads = list(patterns.layers), patterns.shape[2]
    if name.layer not in layers or name.head >= heads:
        raise InputError(f"patterns must hold {name}, got layers {layers} of {heads} heads")
    return patterns[layers.index(name.layer), 0, name.head].detach().cpu().float()


def _targets(
    kind: str,
    tokens: Int[Tensor, " pos"],
    attention: Float[Tensor, "pos pos"],
    thresholds: dict[str, Any],
    special: list[int],
) -> Bool[Tensor, "pos pos"]:
    """Which cells `[query, key]` are targets of the kind; for a sink, of this head."""
    width = {"width": thresholds["window_width"]} if kind == "local_window" else {}
    keys = TARGETS[kind](tokens[None], special, **width)[0]
    length = len(tokens)
    marked = torch.zeros(length, length + 1, dtype=torch.bool)
    marked.scatter_(1, keys % (length + 1), True)  # No target, -1, goes to the column cut off.
    marked = marked[:, :-1]
    if kind == "sink":
        fit = ordinary(tokens[None], special)
        share, least = thresholds["sink_column"], thresholds["sink_queries"]
        queries = spaced(fit)
        rows = attention[None, None, queries[0].clamp(min=0)] * (queries[0] != NONE)[:, None]
        later = halves(queries, length)
        columns = sink_columns(rows, later, share=share, least=least)[0][0]
        marked = marked | (fit.T & columns).tril(-1)
    return marked


def _thresholds(scan: HeadScan) -> dict[str, Any]:
    return asdict(Thresholds()) | scan.made_by.get("thresholds", {})


def _model_name(scan: HeadScan) -> str:
    """The model's name; of a long one the end."""
    name = _prose(str(scan.made_by.get("model", "attention patterns")))
    while _inches(name, 10.0) > 4.2:
        name = "…" + name[2:]
    return name


def _what_was_run(scan: HeadScan) -> str:
    """The probe that the scores come from, in words."""
    probe = next((p for p in scan.made_by.get("probes", []) if p.get("periods")), None)
    if probe is None:
        return "Labels of given attention patterns: no record of what was run."
    bos = "" if scan.made_by.get("bos") is None else "BOS, then "
    scored_on = scan.made_by.get("scored_on", {})
    early = " and ".join(LABELS[kind] for kind in TARGETS if scored_on.get(kind) == "random")
    return (
        f"{probe['rows']} prompts of {probe['length']} tokens: {bos}random tokens that repeat"
        f" every {min(probe['periods'])} to {max(probe['periods'])} tokens"
        f" (seed {scan.made_by.get('seed')}, {scan.made_by.get('dtype')}). Scored from the first"
        f" repeat on{f', but {early} before it' if early else ''}."
    )


def _mosaic_notes(scan: HeadScan) -> list[str]:
    frame, thresholds = scan.frame, _thresholds(scan)
    levels = ", ".join(f"{LABELS[kind]}\u00a0{thresholds[kind]:g}" for kind in TARGETS)
    notes = [
        "Layers and heads count from 0. A head carries a label if its excess over even attention,"
        f" (score - chance) / (1 - chance), reaches the threshold: {levels}"
        + ("; and if the score beats its null." if "induction_null_99" in frame else ".")
    ]
    if forced := sum(FORCED_WINDOW in labels for labels in frame["labels"]):
        notes.append(f"{forced} heads are local by architecture: their layers see no farther.")
    reasons = set(frame["not_measured"]) - {""} if "not_measured" in frame else set()
    return notes + [f"Not measured: {_prose(why.replace('_', ' '))}." for why in sorted(reasons)]


def _page_notes(kinds: Sequence[str]) -> list[str]:
    without = ", ".join(LABELS[kind] for kind in TARGETS if kind not in kinds)
    if not kinds:
        return [f"No head carries any of the labels: {without}."]
    notes = [
        "The numbers are scores from the scan: mean attention mass on the kind's targets over all"
        " its prompts (a sink before the first repeat, the others after it)."
        " The pictures show this one example prompt; every earlier copy is a target."
        " Layers, heads and positions count from 0."
    ]
    return notes + ([f"No head carries the label: {without}."] if without else [])


def _prompt(tokens: Int[Tensor, " pos"], texts: list[str], made_by: dict[str, Any]) -> str:
    """The example prompt in words: how long, BOS or not, where it repeats, how it begins."""
    words, bos = [f"{len(tokens)} tokens"], made_by.get("bos")
    opening = int((tokens == bos).int().cumprod(0).sum()) if bos is not None else 0
    if "bos" in made_by:
        words.append(["without BOS", "opened by BOS", "BOS doubled"][min(opening, 2)])
    body = tokens[opening:]
    copies = enumerate(earlier_copies(body[None])[0, :, 0].tolist())
    period = next((here - copy for here, copy in copies if copy != NONE), None)
    if period is None:
        words.append("no token comes again")
    elif torch.equal(body[period:], body[:-period]):
        repeat = f"the repeat starts at position {opening + period}"
        words.append(f"then the same {period} over and over; {repeat}")
    else:
        words.append("some tokens come again")
    labels = (visible(text) for text in texts[:10])
    # The dot stays on the line of the token before it.
    shown = "\u00a0· ".join(label if len(label) < 25 else label[:23] + "…" for label in labels)
    return f"Prompt: {', '.join(words)}. It begins: {shown}{' …' if len(texts) > 10 else ''}"
