"""The attention of the strongest heads of each kind, drawn in full."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.labels import LABELS
from interp.plots.page import Page, paint, whole_ticks
from interp.plots.style import ACCENT, GREY, QUIET, styled
from interp.plots.texts import visible, wrapped
from interp.plots.words import LOOKS, model_name, thresholds_of
from interp.scores import Thresholds, targets_of
from interp.sinks import halves, sink_columns, spaced
from interp.table import HeadScan
from interp.targets import NONE, TARGETS, earlier_copies, ordinary

if TYPE_CHECKING:
    from interp.hooks import AttentionPatterns


def pattern_page(
    scan: HeadScan,
    patterns: "AttentionPatterns",
    *,
    top: int = 4,
    heads: Collection[Head] | None = None,
    kinds: Collection[str] = tuple(TARGETS),
) -> Figure:
    """The attention of the strongest heads of each kind, on the first row of `patterns`.

    One row of pictures per kind that has heads, queries down and keys across, from 0 to 1.
    The kind's targets are outlined: for a sink, the first token and the other columns where
    this head rests. The number above a picture is the head's score in the scan.

    Args:
        scan: Which heads are what.
        patterns: From the same model, with the layers of the heads to be drawn.
        top: How many heads of each kind at most.
        heads: None but these; all if left out.
        kinds: None but these.

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
    tokens, thresholds = patterns.tokens[0, real].cpu(), thresholds_of(scan)
    special = [] if scan.made_by.get("bos") is None else [scan.made_by["bos"]]
    names = scan.frame["name"].tolist() if heads is None else [str(head) for head in heads]
    having = {kind: scan.having(LABELS[kind]) for kind in TARGETS if kind in kinds}
    shown = {kind: rows.loc[rows["name"].isin(names)].head(top) for kind, rows in having.items()}
    without = [kind for kind, rows in shown.items() if rows.empty]
    kinds = [kind for kind, rows in shown.items() if not rows.empty]
    widths = [len(shown[kind]) for kind in kinds] + [0]
    size, slot, step = 1.24, 1.37, 1.57
    page = Page(
        f"{model_name(scan)}: the strongest heads of each kind",
        _prompt(tokens, patterns.texts[0], scan.made_by),
        width=max(7.2, 1.75 + slot * max(widths)),
        body=len(kinds) * step + 0.85 if kinds else 0.15,
        notes=_page_notes(kinds, without, "head" if heads is None else "head of those chosen"),
    )
    with styled():
        for row, kind in enumerate(kinds):
            number = f"{widths[row]} of {len(having[kind])} shown"
            looks = wrapped(LOOKS[kind].format(**thresholds), 1.05)
            page.text(0.15, row * step + 0.24, LABELS[kind], size=8, weight="bold")
            page.text(0.15, row * step + 0.41, f"{looks}\n{number}", color=QUIET)
            drawn = shown[kind][["layer", "head", kind]].itertuples(index=False)
            for column, (layer, head, score) in enumerate(drawn):
                name = Head(layer, head)
                attention = _pattern_of(patterns, name)[real, real]
                targets = _targets(kind, tokens, attention, thresholds, special)
                panel = page.panel(1.65 + column * slot, row * step + 0.22, size, size)
                later = torch.ones_like(targets).triu(1)
                paint(panel, attention.masked_fill(later, np.nan).numpy())
                panel.patch.set_facecolor(GREY)
                panel.add_collection(_border(targets.numpy(), 72 * size / len(tokens)))
                panel.set_title(f"{name}  {'no score' if pd.isna(score) else f'{score:.2f}'}")
                lowest = column >= widths[row + 1]
                whole_ticks(panel, "key", "query", bottom=lowest, first=column == 0)
        if kinds:
            outlined = Patch(facecolor="none", edgecolor=ACCENT, label="targets of the kind")
            hidden = Patch(facecolor=GREY, label="later tokens: out of sight")
            page.foot("attention from query to key", [outlined, hidden])
    return page.figure


def _border(targets: Bool[np.ndarray, "pos pos"], cell: float) -> LineCollection:
    """Lines between targets and all else: they surround areas and cover no cell."""
    padded = np.pad(targets, 1)
    above, beside = (np.argwhere(np.diff(padded, axis=axis)) - 0.5 for axis in (0, 1))
    lines = [((k - 1, q), (k, q)) for q, k in above] + [((k, q - 1), (k, q)) for q, k in beside]
    return LineCollection(lines, colors=ACCENT, linewidths=min(0.5, cell / 9))


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
    widths = Thresholds(window_width=thresholds["window_width"])
    keys = targets_of(kind, tokens[None], special, widths)[0]
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


def _page_notes(kinds: Sequence[str], without: Sequence[str], head: str) -> list[str]:
    labels = ", ".join(LABELS[kind] for kind in without)
    if not kinds:
        return [f"No {head} carries any of the labels: {labels}."]
    notes = [
        "The numbers are scores from the scan: mean attention mass on the kind's targets over all"
        " its prompts (a sink before the first repeat, the others after it)."
        " The pictures show this one example prompt; every earlier copy is a target."
        " Layers, heads and positions count from 0."
    ]
    return notes + ([f"No {head} carries the label: {labels}."] if without else [])


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
