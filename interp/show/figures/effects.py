"""Effects as pictures: a number for each head, heads by position, and paths between heads."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from interp.effects.edges import PATHS, PathEffects, parsed_source
from interp.effects.head_effects import HeadEffects
from interp.errors import Count, InputError, checked
from interp.heads import Head
from interp.scan.table import HeadScan
from interp.show.figures.page import LINE, SIZE, Page, drawn, outline, paint
from interp.show.figures.style import ACCENT, BLUE, COLOURS, DIFFERENCES, GREY, SKY
from interp.show.figures.words import inches, legible, prose
from interp.show.values import values_of

if TYPE_CHECKING:
    from interp.effects.why import Why

_LEAST = 0.05
"""Smallest share of the largest value with which a head is named."""

_FINEST = 1e-4
"""Smallest end of the colours: what is below it everywhere is rounding."""


@drawn
@checked
def head_map(
    values: Any,
    column: str | None = None,
    *,
    unit: str | None = None,
    top: Count = 6,
) -> Page:
    """A number for each head, layers across and heads down; the strongest heads are named.

    Colours run from 0 to the largest value, or with values below 0 as far to either side of 0,
    which is white. Heads without a value are grey.

    Args:
        values: A `HeadEffects`, a column of a `HeadScan`, a table of layers by heads or with a row
            a head, an array `[layer, head]`, or a mapping from heads to numbers.
        column: Column of a result or of a table with a row a head; `effect` if left out.
        unit: Unit of the values, under the colours; from the result if left out.
        top: Number of heads to name, the largest of either sign, at least 5 % of the largest.

    Example:
        >>> head_map([[0.1, -0.4], [0.0, 0.9]], unit="logits", notes=False).texts[-2].get_text()
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
    ranked = sorted(numbers, key=lambda head: -abs(numbers[head]))[:top]
    ranked = [head for head in ranked if abs(numbers[head]) >= _LEAST * high]
    of_model = f"{prose(str(made_by['model']))}: " if "model" in made_by else ""
    page = Page((of_model or "Heads: ") + f"{name} of each head", _what(made_by))
    wide = min((page.width - 0.6) / layers, 0.5)
    tall = min(max(wide, 0.9 / heads, 0.12), 3 / heads, 0.3)
    fits = wide > 0.075 * len(str(len(ranked))) and tall > 0.1
    page.notes = "Layers and heads count from 0."
    page.notes += (
        " Numbers on the map: the largest values, by name."
        if fits
        else " Outlined: the largest values."
    )
    names, ends = _words(values) if isinstance(values, HeadEffects) else ({}, {})
    panel = page.panel(0.45, 0.1, layers * wide, heads * tall)
    paint(panel, table, low, high, colours)
    panel.set(xlabel="layer", ylabel="head")
    lines = []
    for place, head in enumerate(ranked):
        value = numbers[head]
        if fits:
            _write(panel, head.layer, head.head, str(place + 1), value, high)
        lines.append(f"{place + 1}  {names.get(head, head)}  {_signed(value, low, high)}")
        lines[-1] += ends.get(head, "") if name == "effect" else ""
    if not fits:
        marked = np.zeros(table.shape, bool)
        marked[tuple(zip(*((head.head, head.layer) for head in ranked), strict=True))] = True
        outline(panel, marked, exact=True, colour="black")
    page.bar(unit or str(made_by.get("unit", name)), low, high, colours, "%.2g")
    # The names are beside the map, beside the colours, or below.
    one = max((inches(words, SIZE) for words in lines), default=0.0) + 0.2
    left, start = 0.45 + layers * wide + 0.25, 0.1
    if left + one > page.width or LINE * len(lines) > heads * tall + 0.8:
        left, start = page.foot or (0.0, 0.0)
    if left + one > page.width:
        left, start = 0.25, page.below(0.12)
    columns = max(1, min(2, int((page.width - left) / one)))
    down = math.ceil(len(lines) / columns)
    for place, words in enumerate(lines):
        across, row = divmod(place, down)
        page.text(left + across * one, start + LINE * row, words)
    return page


@drawn
@checked
def position_map(
    effects: HeadEffects, tokens: Sequence[str] | None = None, *, top: Count = 16
) -> Page:
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
    return tables_page(
        title, made_by, {"": table.set_axis(across, axis=1)}, made_by.get("unit", "")
    )


@drawn
@checked
def path_map(paths: PathEffects, measure: str | None = None, *, top: Count = 12) -> Page:
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
    return tables_page(title, made_by, shown, f"change of {unit}")


@drawn
@checked
def why_bars(why: "Why", *, top: Count = 15) -> Page:
    """The terms of an attention score as bars, and what happens without the parts behind them.

    Left: the largest terms, those of the smallest set that carries 80 % in colour. Right: the
    change of the log-odds without parts, as the terms predict it, and with norms computed again.

    Args:
        why: Result of `interp.why`.
        top: Number of terms to show, the largest of either sign.
    """
    from interp.effects.why import SHARE  # Late: it needs a model.

    table, checks, texts = why.to_frame(), why.checks, why.made_by["texts"]
    largest = (-table["share"].abs().to_numpy()).argsort(kind="stable")[:top]
    shown = table.iloc[np.sort(largest)]
    names = [f"{q} x {k}" for q, k in zip(shown["query_part"], shown["key_part"])]
    without = [f"{part}, {side}" for part, side in zip(checks["part"], checks["side"])]
    query, key = (f"{at} ({legible(texts[at])})" for at in (why.query, why.key))
    count = int(table["in_smallest"].to_numpy().sum())
    page = Page(
        f"{prose(str(why.made_by['model']))}: why {why.head} attends from {query} to {key}",
        f"Attention {why.made_by['attention']:.2f}. Log-odds of this key against the mean of the"
        f" other visible keys: {why.log_odds:+.2f} nats, the sum of {table.shape[0]:,} terms.",
        notes=f"Left: parts at the query x parts at the key; {count} terms carry {SHARE:.0%}"
        " (orange). What all keys share is removed, as the softmax ignores it. Right: without these"
        " parts at the query or at the key; predicted by the terms, and with norms computed again.",
    )
    longest = max(inches(name, SIZE) for name in (*names, *without))
    left = min(0.25 + longest, page.width - 1.4)
    titles = ["terms (nats of log-odds)", "change without parts (nats)"]
    sides = [(len(shown), titles[0]), (len(checks), titles[1])]
    half = page.width > 5
    panels, start = [], 0.3
    for place, (number, title) in enumerate(sides):
        wide = page.width / 2 - left - 0.15 if half else page.width - left - 0.15
        corner = place * page.width / 2 * half + left
        panels.append(panel := page.panel(corner, start, wide, 0.16 * number))
        panel.set_title(title, loc="left")
        panel.set(ylim=(number - 0.5, -0.5))
        start += 0.0 if half else 0.16 * number + 0.55
    colours = [ACCENT if small else GREY for small in shown["in_smallest"]]
    panels[0].barh(range(len(shown)), shown["term"].to_numpy(), color=colours)
    panels[0].set_yticks(range(len(shown)), names)
    places = np.arange(len(checks))
    for name, shade, up in (("predicted", SKY, -0.2), ("recomputed", BLUE, 0.2)):
        panels[1].barh(places + up, checks[name].to_numpy(), 0.38, color=shade, label=name)
    panels[1].set_yticks(places, without)
    page.legend(panels[1].get_legend_handles_labels()[0])
    return page


def tables_page(
    title: str,
    made_by: dict[str, Any],
    tables: Mapping[str, pd.DataFrame],
    unit: str,
    *,
    notes: str = "",
    marked: np.ndarray | None = None,
) -> Page:
    """Panels of numbers with the same rows, named rows and columns, and one scale of colours.

    Cells that are `marked`, of the only panel, are outlined.
    """
    first = next(iter(tables.values()))
    low, high, colours = _scale(np.concatenate([t.to_numpy(float) for t in tables.values()], 1))
    rows, columns = first.shape
    left = 0.2 + max(inches(str(name), SIZE) for name in first.index)
    longest = max(inches(str(name), SIZE) for name in first.columns)
    page = Page(title, _what(made_by), notes=notes)
    # Columns wide enough for numbers, if there is room for them.
    slot = min(columns * 0.36, page.width - left - 0.15)
    panels = [*page.grid([*tables], rows * 0.16, slot=slot, left=left, under=0.03 + longest)]
    for panel, table in zip(panels, tables.values(), strict=True):
        numbers = table.to_numpy(float)
        wide = page.size_of(panel)[0] / columns
        paint(panel, numbers, low, high, colours)
        panel.set_xticks(range(columns), table.columns, rotation=90 * (longest > 0.9 * wide))
        panel.set_yticks(range(rows), table.index)
        panel.tick_params(length=0)
        for row, column in np.argwhere(np.abs(numbers) >= _LEAST * high).tolist():
            value = float(numbers[row, column])
            words = _signed(value, low, high)
            if wide > inches(words, SIZE):
                _write(panel, column, row, words, value, high)
        if marked is not None:
            outline(panel, marked, exact=True, colour="black")
    page.bar(unit, low, high, colours, "%.2g")
    return page


def _scale(table: np.ndarray) -> tuple[float, float, Colormap]:
    """The ends of the colours, and the colours: around 0 if some values are below it."""
    low, high = float(np.nanmin(table)), max(float(np.nanmax(np.abs(table))), _FINEST)
    return (-high, high, DIFFERENCES) if low < 0 else (0.0, high, COLOURS)


def _write(panel: Axes, x: int, y: int, words: str, value: float, high: float) -> None:
    """Words in a cell, white where it is dark."""
    dark = abs(value) > 0.6 * high
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
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
    words += [] if "agreement" not in made_by else ["estimated from gradients"]
    words += [f"{len(prompts)} prompts"] if isinstance(prompts, list) else []
    return f"{prose('; '.join(words))}." if words else ""
