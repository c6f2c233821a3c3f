"""Effects as pictures: a number for each head, heads by position, and paths between heads."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from interp.effects.edges import PATHS, PathEffects, parsed_source
from interp.effects.head_effects import HeadEffects
from interp.effects.why import SHARE, Why
from interp.errors import Count, InputError, checked
from interp.heads import Head
from interp.scan.table import HeadScan
from interp.show.figures.page import LINE, SIZE, Page, paint, whole_ticks
from interp.show.figures.style import ACCENT, BLUE, COLOURS, DIFFERENCES, GREY, SKY, styled
from interp.show.figures.words import inches, legible, prose
from interp.show.values import values_of

_LEAST = 0.05
"""Smallest share of the largest value with which a head is named."""

_FINEST = 1e-4
"""Smallest end of the colours: what is below it everywhere is rounding."""


@checked
def head_map(
    values: Any,
    column: str | None = None,
    *,
    title: str | None = None,
    unit: str | None = None,
    top: Count = 6,
) -> Figure:
    """A number for each head, layers across and heads down; the strongest heads are named.

    Colours run from 0 to the largest value, or with values below 0 as far to either side of 0,
    which is white. Heads without a value are grey.

    Args:
        values: A `HeadEffects`, a column of a `HeadScan`, a table of layers by heads or with a row
            a head, an array `[layer, head]`, or a mapping from heads to numbers.
        column: Column of a result or of a table with a row a head; `effect` if left out.
        title: Title of the figure; from the result if left out.
        unit: Unit of the values, under the colours; from the result if left out.
        top: Number of heads to name, the largest of either sign, at least 5 % of the largest.

    Example:
        >>> head_map([[0.1, -0.4], [0.0, 0.9]], unit="logits").texts[-2].get_text()
        '2  L0H1  -0.40'
    """
    numbers = values_of(values, column)
    made_by = values.made_by if isinstance(values, HeadEffects | HeadScan) else {}
    name = (column or "effect").replace("_", " ")
    at = np.array([*numbers])
    layers, heads = (at.max(0) + 1).tolist()
    table = np.full((heads, layers), np.nan)
    table[at[:, 1], at[:, 0]] = [*numbers.values()]
    low, high, colours = _scale(table)
    wide = min(6.4 / layers, 0.5)
    tall = min(max(wide, 0.9 / heads), 3 / heads, 0.3)
    ranked = sorted(numbers, key=lambda head: -abs(numbers[head]))[:top]
    ranked = [head for head in ranked if abs(numbers[head]) >= _LEAST * high]
    right, bottom = 0.5 + layers * wide, 0.1 + heads * tall
    lines, corner, below = math.ceil(len(ranked) / 2), (3.5, bottom + 0.35), 0.75
    if right < 4.8 and LINE * len(ranked) <= heads * tall:  # Names fit beside the map.
        lines, corner = len(ranked), (right + 0.3, 0.1)
    else:
        below = max(below, 0.35 + LINE * lines)
    of_model = f"{prose(str(made_by['model']))}: " if "model" in made_by else ""
    page = Page(
        title or (of_model or "Heads: ") + f"{name} of each head",
        _what(made_by),
        body=bottom + below + 0.15,
        notes="Layers and heads count from 0. Numbers on the map: the largest values, by name.",
    )
    names, ends = _words(values) if isinstance(values, HeadEffects) else ({}, {})
    with styled():
        panel = page.panel(0.5, 0.1, layers * wide, heads * tall)
        paint(panel, table, low, high, colours)
        whole_ticks(panel, "layer", "head", bottom=True, first=True)
        size = min(7.0, 60 * min(wide, tall))
        page.bar(0.5, unit or str(made_by.get("unit", name)), low, high, colours, "%.2g")
        for place, head in enumerate(ranked):
            value, (column_at, row) = numbers[head], divmod(place, lines)
            _write(panel, head.layer, head.head, str(place + 1), value, high, size)
            words = f"{place + 1}  {names.get(head, head)}  {_signed(value, low, high)}"
            words += ends.get(head, "") if name == "effect" else ""
            page.text(corner[0] + 1.8 * column_at, corner[1] + LINE * row, words)
    return page.figure


@checked
def position_map(
    effects: HeadEffects, tokens: Sequence[str] | None = None, *, top: Count = 16
) -> Figure:
    """The effects of the strongest heads at each position: heads down, positions across.

    Args:
        effects: Effects of one position each, such as `interp.patch(..., position="each")`.
        tokens: Text of the token at each position, such as those of the first prompt.
        top: Number of heads to show, those with the largest effect of either sign anywhere.
    """
    table = effects.matrix() if "position" in effects.to_frame() else pd.DataFrame()
    if table.shape[1] < 2:
        raise InputError("effects must be of several positions, got one of them or all together")
    if tokens is not None and len(tokens) != table.shape[1]:
        raise InputError(
            f"tokens must be one for each position, {table.shape[1]}, got {len(tokens)}"
        )
    rows = table.abs().max(axis=1).nlargest(top).index
    table = table.loc[[name for name in table.index if name in rows]]
    names = tokens if tokens is not None else map(str, table.columns)
    made_by = effects.made_by
    title = f"{prose(str(made_by.get('model', 'Heads')))}: effect of each head by position"
    across = [legible(name) for name in names]
    return _tables(title, made_by, {"": table.set_axis(across, axis=1)}, made_by.get("unit", ""))


@checked
def path_map(paths: PathEffects, measure: str | None = None, *, top: Count = 12) -> Figure:
    """The strongest paths into some heads: a panel for queries, keys and values.

    Sources down, the heads that read them across; the change by replacing the source in that input.

    Args:
        paths: Result of `interp.path_effects`.
        measure: Measure that changes: `metric`, or without one `stripe` or `effect`.
        top: Number of sources to show, those with the largest change of either sign on any path.
    """
    measure = measure or paths.measures[0]
    kept = [path for path in PATHS if (path, measure) != ("V", "stripe")]
    tables = {path: paths.matrix(path, measure) for path in kept}
    largest = pd.concat([table.abs().max(axis=1) for table in tables.values()], axis=1).max(axis=1)
    rows = sorted(largest.nlargest(top).index, key=parsed_source)
    made_by = paths.made_by
    unit = made_by.get(
        "metric",
        {"stripe": "attention on induction targets", "effect": "logits"}.get(measure, measure),
    )
    title = f"{prose(str(made_by.get('model', 'Heads')))}: which earlier heads they read"
    words = {"Q": "queries", "K": "keys", "V": "values"}
    shown = {f"through {words[path]}": table.loc[rows] for path, table in tables.items()}
    return _tables(title, made_by, shown, f"change of {unit}")


@checked
def why_bars(why: Why, *, top: Count = 15) -> Figure:
    """The terms of an attention score as bars, and what happens without the parts behind them.

    Left: the largest terms, those of the smallest set that carries 80 % in colour. Right: the
    change of the log-odds without parts, as the terms predict it, and with norms computed again.

    Args:
        why: Result of `interp.why`.
        top: Number of terms to show, the largest of either sign.
    """
    table, checks, texts = why.to_frame(), why.checks, why.made_by["texts"]
    largest = (-table["share"].abs().to_numpy()).argsort(kind="stable")[:top]
    shown = table.iloc[np.sort(largest)]
    names = [f"{q} x {k}" for q, k in zip(shown["query_part"], shown["key_part"])]
    without = [f"{part}, {side}" for part, side in zip(checks["part"], checks["side"])]
    query, key = (f"{at} ({legible(texts[at])})" for at in (why.query, why.key))
    rows, count = max(len(shown), len(checks)), int(table["in_smallest"].to_numpy().sum())
    page = Page(
        f"{prose(str(why.made_by['model']))}: why {why.head} attends from {query} to {key}",
        f"Attention {why.made_by['attention']:.2f}. Log-odds of this key against the mean of the"
        f" other visible keys: {why.log_odds:+.2f} nats, the sum of {table.shape[0]:,} terms.",
        body=0.35 + 0.16 * rows + 0.5,
        notes=f"Left: parts at the query x parts at the key; {count} terms carry {SHARE:.0%}"
        " (orange). What all keys share is removed, as the softmax ignores it. Right: without these"
        " parts at the query or at the key; predicted by the terms, and with norms computed again.",
    )
    with styled():
        panel = page.panel(1.45, 0.3, 2.0, 0.16 * len(shown))
        colours = [ACCENT if small else GREY for small in shown["in_smallest"]]
        panel.barh(range(len(shown)), shown["term"].to_numpy(), color=colours)
        panel.set_yticks(range(len(shown)), names, size=SIZE)
        panel.set(ylim=(len(shown) - 0.5, -0.5), xlabel="term (nats of log-odds)")
        panel = page.panel(4.95, 0.3, 1.95, 0.16 * len(checks))
        places = np.arange(len(checks))
        for name, shade, up in (("predicted", SKY, -0.2), ("recomputed", BLUE, 0.2)):
            panel.barh(places + up, checks[name].to_numpy(), 0.38, color=shade, label=name)
        panel.set_yticks(places, without, size=SIZE)
        panel.set(ylim=(len(checks) - 0.5, -0.5), xlabel="change of the log-odds (nats)")
        page.legend(panel.get_legend_handles_labels()[0], 4.95, 0.0, ncols=2)
    return page.figure


def _tables(
    title: str, made_by: dict[str, Any], tables: dict[str, pd.DataFrame], unit: str
) -> Figure:
    """Panels of numbers with the same rows, named rows and columns, and one scale of colours."""
    every = np.concatenate([table.to_numpy(float) for table in tables.values()], 1)
    low, high, colours = _scale(every)
    rows, columns = next(iter(tables.values())).shape
    wide, tall = min(6.2 / every.shape[1], 0.6), 0.2
    names = next(iter(tables.values())).columns
    turned = max(inches(str(name), SIZE) for name in names) > 0.9 * wide
    below = 0.1 + (max(inches(str(name), SIZE) for name in names) if turned else 0.1)
    page = Page(title, _what(made_by), body=0.25 + rows * tall + below + 0.85, notes="")
    with styled():
        for index, (name, table) in enumerate(tables.items()):
            left = 0.65 + index * (columns * wide + 0.15)
            panel = page.panel(left, 0.25, columns * wide, rows * tall)
            numbers = table.to_numpy(float)
            paint(panel, numbers, low, high, colours)
            panel.set_title(name, loc="left")
            panel.set_xticks(range(columns), table.columns, rotation=90 * turned, size=SIZE)
            panel.set_yticks(range(rows), table.index if index == 0 else [""] * rows, size=SIZE)
            panel.tick_params(length=0)
            for row, column in np.argwhere(np.abs(numbers) >= _LEAST * high).tolist():
                if wide > 0.3:
                    value = float(numbers[row, column])
                    _write(panel, column, row, _signed(value, low, high), value, high, SIZE)
        page.bar(0.65, unit, low, high, colours, "%.2g")
    return page.figure


def _scale(table: np.ndarray) -> tuple[float, float, Colormap]:
    """The ends of the colours, and the colours: around 0 if some values are below it."""
    low, high = float(np.nanmin(table)), max(float(np.nanmax(np.abs(table))), _FINEST)
    return (-high, high, DIFFERENCES) if low < 0 else (0.0, high, COLOURS)


def _write(panel: Axes, x: int, y: int, words: str, value: float, high: float, size: float) -> None:
    """Words in a cell, white where it is dark."""
    dark = abs(value) > 0.6 * high
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "size": size}
    panel.text(x, y, words, color="white" if dark else "black", **look)


def _signed(value: float, low: float, high: float) -> str:
    """A number with the digits that the largest needs, and a sign where some are below 0."""
    digits = min(4, max(2, 1 - math.floor(math.log10(high))))
    return f"{value:{'+' * (low < 0)}.{digits}f}"


def _words(effects: HeadEffects) -> tuple[dict[Head, str], dict[Head, str]]:
    """The name of each head, or key-value head, and its interval, where there is one."""
    rows = {Head(row["layer"], row["head"]): row for row in effects.frame.to_dict("records")}
    ends = {
        head: f"  [{row['low']:.2f}, {row['high']:.2f}]"
        for head, row in rows.items()
        if row["low"] == row["low"]  # NaN of a single prompt.
    }
    return {head: row["name"] for head, row in rows.items()}, ends


def _what(made_by: dict[str, Any]) -> str:
    """What was measured, as far as a result says so."""
    replaced, prompts = made_by.get("what", made_by.get("removed")), made_by.get("prompts")
    words = [f"Metric: {made_by['metric']}"] if "metric" in made_by else []
    words += [] if replaced is None else [str(replaced)]
    words += [f"{len(prompts)} prompts"] if isinstance(prompts, list) else []
    return f"{prose('; '.join(words))}." if words else ""
