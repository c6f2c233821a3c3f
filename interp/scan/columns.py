"""The columns of a table of heads: what each may hold, and what must agree between them."""

import re
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.labels import ANTI_INDUCTION, CROSS, FORCED_WINDOW, MIXED, NOT_ENOUGH
from interp.kinds.scores import STATISTICS, VALUE_WEIGHTED
from interp.kinds.targets import KINDS
from interp.patterns.definitions import DEFINITIONS
from interp.patterns.tensor import MOST_LAYERS
from interp.scan.formats import TEXT
from interp.scan.told import is_text

DEFINED = "as_"
"""Beginning of the columns with a score as somebody else defines it."""

AT_DISTANCE = "induction_at_"
"""Beginning of the columns with the induction score at one distance between the copies."""

EFFECT = "induction_logit_effect"
"""Column with the effect on the logit of the right next token, through the induction targets."""

SCORED = [
    "sink",
    "previous_token",
    "induction",
    "local_window",
    "duplicate_token",
    "current_token",
]
"""The scores that every table has."""

_WHOLE = ("layer", "head", "sink_position", "window")

_SHARE, _UP, _ANY = (0.0, 1.0), (0.0, inf), (-inf, inf)

_DRAWN = [f"{kind}_null{end}" for kind in ("local_window", "sink") for end in ("", "_99")]
"""Nulls of several keys a query, drawn evenly: one that is drawn twice counts twice, and the sum
can be more than 1."""

RANGES: dict[str, tuple[float, float]] = {
    "layer": (0, MOST_LAYERS - 1),
    "head": (0, MOST_LAYERS - 1),
    **{
        column.replace("<kind>", kind): _SHARE
        for kind in KINDS
        for column in (
            *("<kind>", "<kind>_chance", "<kind>_low", "<kind>_high", "<kind>_spread"),
            *("<kind>_null", "<kind>_null_99", "text_<kind>", "text_<kind>_chance"),
        )
    },
    f"text_{VALUE_WEIGHTED}": _SHARE,
    "margin": (-inf, 1.0),
    "ov_copying": (-1.0, 1.0),
    **dict.fromkeys(_DRAWN, _UP),
    **dict.fromkeys(STATISTICS, _UP),
    "sink_position": _UP,
    "window": (1, inf),
    **{f"{DEFINED}{name}": definition.range for name, definition in DEFINITIONS.items()},
}
"""The least and the greatest number in each column; what is not here holds any finite one."""

_DISTANCE = re.compile(rf"{AT_DISTANCE}[1-9][0-9]{{0,8}}")

_SLACK = 0.01
"""How far beyond its range a number may be that is not whole: attention in a narrow number format
sums to 1 within 1 %, and `interp.patterns.tensor.check_pattern` takes it."""

_RANK = {kind.replace("_", " "): float(rank) for rank, kind in enumerate(KINDS)}
_RANK |= {ANTI_INDUCTION: _RANK["induction"], FORCED_WINDOW: _RANK["local window"] + 0.5}
"""Place of every label that can stand beside others, the most specific first."""

_SHOWN_BY = {label: (label.replace(" ", "_"),) for label in _RANK}
_SHOWN_BY |= {ANTI_INDUCTION: ("induction",), FORCED_WINDOW: ("window", "local_window")}
"""The columns of which a head with a label must have one."""


def typed(frame: Any) -> pd.DataFrame:
    """The table with one type per column; missing is missing, never NaN.

    Raises:
        InputError: If a column, a value or a label is none that a scan can have.
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"frame must be a pandas table, got {type(frame).__name__}")
    if frame.empty:
        raise InputError("table must hold at least one head, got none")
    if not frame.columns.is_unique or not all(map(is_text, frame.columns)):
        raise InputError("columns must have names of their own")
    scores = [*SCORED, *(["next_token"] if "next_token" in frame else [])]
    needed = ["layer", "head", "name", "label", "labels", *scores]
    needed += [f"{kind}_chance" for kind in scores]
    if absent := [column for column in needed if column not in frame]:
        raise InputError(f"table must have the columns {', '.join(absent)}")
    frame = frame.copy()
    for column in frame.columns:
        made = _lists if column == "labels" else _texts if column in TEXT else _numbers
        frame[column] = made(frame[column], column)
    heads = [str(Head(*place)) for place in places(frame)]
    if heads != frame["name"].tolist() or len(set(heads)) < len(heads):
        raise InputError("table must have one row per head, its name made of layer and head")
    _check_intervals(frame)
    _check_labels(frame)
    return frame


def places(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Layer and head of each row."""
    return list(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))


def _lists(values: pd.Series, column: str) -> pd.Series:
    """Labels as lists, whether they were one text or several."""
    split = [one.split(";") if isinstance(one, str) else one for one in values]
    if not all(isinstance(one, list | tuple | np.ndarray) and len(one) for one in split) or not all(
        is_text(label) for labels in split for label in labels
    ):
        raise InputError(f"{column} must be words, one at least for each head")
    return pd.Series([list(labels) for labels in split], index=values.index, dtype=object)


def _texts(values: pd.Series, column: str) -> pd.Series:
    """Text, empty where it is missing."""
    if not all(is_text(one) for one in values.dropna()):
        raise InputError(f"column {column} must hold text")
    return values.astype("string").fillna("")


def _numbers(values: pd.Series, column: str) -> pd.Series:
    """Numbers within the range of their column."""
    name, whole = repr(column)[1:-1][:80], column in _WHOLE
    try:
        if not all(_is_number(one) for one in values.dropna().tolist()):
            raise TypeError
        with np.errstate(invalid="ignore"):  # What no whole number can hold is refused.
            found = pd.Series(pd.to_numeric(values), dtype="Int64" if whole else "Float64")
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"column {name} must hold {'whole ' if whole else ''}numbers") from None
    if column in ("layer", "head") and found.isna().any():
        raise InputError(f"column {name} must hold a number for each head")
    if column.startswith(AT_DISTANCE) and not _DISTANCE.fullmatch(column):
        raise InputError(f"column must be named {AT_DISTANCE} and a distance, got {name}")
    least, most = _SHARE if column.startswith(AT_DISTANCE) else RANGES.get(column, _ANY)
    numbers, slack = found.dropna().to_numpy(float), 0 if whole else _SLACK
    within = np.isfinite(numbers) & (numbers >= least - slack) & (numbers <= most + slack)
    if not within.all():
        low, high = np.isfinite([least, most])
        rule = f"from {least:g} to {most:g}" if low and high else "finite"
        rule = f"at least {least:g}" if low and not high else rule
        rule = f"at most {most:g}" if high and not low else rule
        raise InputError(f"column {name} must be {rule}, got {numbers[~within][0]:g}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _check_intervals(frame: pd.DataFrame) -> None:
    """Refuse an interval that has one end alone, or its ends the wrong way round."""
    for low in (column for column in frame.columns if column.endswith("_low")):
        high = f"{low.removesuffix('_low')}_high"
        if high not in frame or bool((frame[low].isna() != frame[high].isna()).any()):
            raise InputError(f"columns {low} and {high} must be there or missing together")
        if bool((frame[low] > frame[high]).any()):
            raise InputError(f"column {low} must be at most {high}, got more")


def _check_labels(frame: pd.DataFrame) -> None:
    """Refuse labels that no scan gives, in another order, or that no score bears out."""
    chances = [f"{kind}_chance" for kind in KINDS]
    columns = [column for column in (*KINDS, *chances, "window") if column in frame]
    for row in frame.reindex(columns=["name", "label", "labels", *columns]).to_dict("records"):
        name, label, labels = row["name"], row["label"], row["labels"]
        there = {column for column in columns if not pd.isna(row[column])}
        got = f"got {', '.join(labels)[:80]!r} for {name}"
        if label != labels[0]:
            raise InputError(f"label must be the first of labels, got {label[:80]!r} for {name}")
        if labels in ([MIXED], [NOT_ENOUGH], [CROSS]):
            if (labels == [MIXED]) != bool(there & {*KINDS}):
                rule = f"{MIXED} where there are scores, {NOT_ENOUGH} where there are none"
                raise InputError(f"label must be {rule}, {got}")
            continue
        ranks = [_RANK.get(label, -1.0) for label in labels]
        if -1.0 in ranks:
            raise InputError(f"labels must be among {', '.join(_RANK)}, or one alone, {got}")
        if ranks != sorted(set(ranks)):
            raise InputError(f"labels must be listed once, the most specific first, {got}")
        for label in labels:
            if there.isdisjoint(_SHOWN_BY[label]):
                raise InputError(f"label must have a score in {_SHOWN_BY[label][0]}, {got}")
            kind = _SHOWN_BY[label][0]  # A window of the architecture has no chance.
            if {kind, f"{kind}_chance"} <= there and row[kind] < row[f"{kind}_chance"] - _SLACK:
                raise InputError(f"label must have a score in {kind} above its chance, {got}")
