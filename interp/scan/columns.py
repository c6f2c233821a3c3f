"""The columns of a table of heads: what each one means and may hold."""

import re
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from interp.errors import InputError, quoted
from interp.heads import Head
from interp.kinds.kind import KINDS, LABELS
from interp.kinds.labels import CROSS, MIXED, NOT_ENOUGH
from interp.patterns.definitions import DEFINITIONS
from interp.patterns.tensor import MOST_LAYERS

DEFINED = "as_"
"""Prefix of the columns with a score by somebody else's definition."""

AT_DISTANCE = "induction_at_"
"""Prefix of the columns with the induction score at one distance between the copies."""

EFFECT = "induction_logit_effect"
"""Column with the effect on the logit of the right next token, through the induction targets."""

_FIRST = ("sink", "previous_token", "induction", "local_window")

SCORED = sorted(LABELS, key=lambda kind: _FIRST.index(kind) if kind in _FIRST else len(_FIRST))
"""The scores that every table has, in the order of their columns."""


Limits = tuple[float, float]
SHARE, UP, ANY = (0.0, 1.0), (0.0, inf), (-inf, inf)
WHOLE, NUMBER, WORDS, LIST = "whole number", "number", "text", "list of text"


class Column(NamedTuple):
    """What the columns of one name hold.

    Attributes:
        name: Their name; `<kind>` stands for a kind of head, `<n>` for a distance in tokens.
        type: What the values are.
        limits: Smallest and largest number.
        meaning: What the values say.
    """

    name: str
    type: str
    limits: Limits
    meaning: str


_NULL = "mean score where there is nothing to find"
_RECURS = "a key that is drawn twice counts twice"

COLUMNS = [
    Column("layer", WHOLE, (0, MOST_LAYERS - 1), "layer of the head, counted from 0"),
    Column("head", WHOLE, (0, MOST_LAYERS - 1), "query head, counted from 0"),
    Column("name", WORDS, ANY, "layer and head: `L5H1` is head 1 of layer 5"),
    Column("label", WORDS, ANY, "the most specific kind of head that it is"),
    Column("labels", LIST, ANY, "all kinds of head that it is"),
    Column("<kind>", NUMBER, SHARE, "score: mean attention mass on the kind's targets"),
    Column("<kind>_chance", NUMBER, SHARE, "score of attention spread evenly"),
    Column("<kind>_low", NUMBER, SHARE, "lower end of its bootstrap 95 % interval over rows"),
    Column("<kind>_high", NUMBER, SHARE, "upper end of its bootstrap 95 % interval over rows"),
    Column("<kind>_spread", NUMBER, SHARE, "standard deviation of the score over rows"),
    Column("<drawn>_null", NUMBER, UP, f"{_NULL}; {_RECURS}"),
    Column("<drawn>_null_99", NUMBER, UP, f"99 % quantile of that null; {_RECURS}"),
    Column("<kind>_null", NUMBER, SHARE, _NULL),
    Column("<kind>_null_99", NUMBER, SHARE, "99 % quantile of the null; a label needs more"),
    Column("text_<kind>", NUMBER, SHARE, "score on natural text"),
    Column("text_<kind>_chance", NUMBER, SHARE, "chance on natural text"),
    Column(
        "text_sink_value_weighted",
        NUMBER,
        SHARE,
        "sink score on text, keys weighted by the norm of v W_O",
    ),
    Column(f"{AT_DISTANCE}<n>", NUMBER, SHARE, "induction score for copies `<n>` tokens apart"),
    Column(EFFECT, NUMBER, ANY, "effect on the right next token's logit via induction targets"),
    Column(f"{EFFECT}_low", NUMBER, ANY, "lower end of its bootstrap 95 % interval over rows"),
    Column(f"{EFFECT}_high", NUMBER, ANY, "upper end of its bootstrap 95 % interval over rows"),
    Column("ov_copying", NUMBER, (-1.0, 1.0), "copying score of W_OV; see `copying_scores`"),
    Column("entropy", NUMBER, UP, "mean entropy of a query's attention, in nats"),
    Column("mean_distance", NUMBER, UP, "mean distance from query to key, in tokens"),
    Column("sink_position", WHOLE, UP, "position of the head's sink in the row, from 0"),
    Column("sink_at", WORDS, ANY, "token and position of the sink, such as `[SEP] at 7`"),
    Column("window", WHOLE, (1.0, inf), "tokens that the architecture lets it look back"),
    Column("margin", NUMBER, (-inf, 1.0), "score above threshold or null; below 0 for `mixed`"),
    Column("not_measured", WORDS, ANY, "why a kind has no score"),
    *(
        Column(f"{DEFINED}{name}", NUMBER, known.range, f"published definition `{name}`")
        for name, known in DEFINITIONS.items()
    ),
]
"""Every column that a scan may have; the first one that fits a name holds. Missing values are
missing, never NaN. A table may have further columns of numbers."""

_DRAWN = [kind.name for kind in KINDS.values() if kind.null == "drawn"]

_PLACEHOLDERS = {
    "<kind>": f"({'|'.join(KINDS)})",
    "<drawn>": f"({'|'.join(_DRAWN)})",
    "<n>": "[1-9][0-9]{0,8}",
}

_SLACK = 0.01
"""How far a number may be outside its range: attention in a narrow number format sums to 1
within 1 %, and `interp.patterns.tensor.check_pattern` accepts it."""

_RANK = {
    label: rank + (0.5 if label == kind.forced else 0.0)
    for rank, kind in enumerate(KINDS.values())
    for label in kind.labels
}
"""Place of every label in a list of labels, the most specific first."""

_SHOWN_BY = {
    label: ("window", kind.name) if label == kind.forced else (kind.name,)
    for kind in KINDS.values()
    for label in kind.labels
}
"""The columns of which a head with a label must have one."""


def column(name: str) -> Column:
    """What the column of that name holds; of an unknown one, any number."""
    for known in COLUMNS:
        pattern = known.name
        for placeholder, values in _PLACEHOLDERS.items():
            pattern = pattern.replace(placeholder, values)
        if re.fullmatch(pattern, name):
            return known
    if name.startswith(AT_DISTANCE):
        raise InputError(f"column must end in a distance, got {quoted(name)}")
    return Column(name, NUMBER, ANY, "")


def columns_page() -> str:
    """The columns as a Markdown page, `docs/columns.md`."""
    kinds = ", ".join(f"`{kind}`" for kind in KINDS)
    lines = [
        "# Columns of a scan\n",
        "One row per head. `<kind>` is each of",
        kinds,
        "(`next_token` in bidirectional models only), `<drawn>` each that goes by position.",
        "A value that was not measured is missing.\n",
        "| column | type | range | meaning |\n|---|---|---|---|",
    ]
    for name, kind, (low, high), meaning in COLUMNS:
        limits = f"{low:g} to {high:g}".replace("-inf to inf", "").replace("to inf", "and more")
        lines.append(f"| `{name}` | {kind} | {limits.replace('-inf', 'up')} | {meaning} |")
    return "\n".join(lines) + "\n"


def typed(frame: Any) -> pd.DataFrame:
    """A copy of the table with one type per column; missing values are missing, never NaN.

    Raises:
        InputError: If a column is absent, a value is outside its range, or a label has no
            score above chance.
    """
    if not isinstance(frame, pd.DataFrame) or frame.empty:
        raise InputError(f"frame must be a pandas table with a row per head, got {quoted(frame)}")
    if not frame.columns.is_unique or not all(isinstance(name, str) for name in frame.columns):
        raise InputError("columns must be unique names")
    scores = [*SCORED, *(kind for kind in KINDS if kind not in SCORED and kind in frame)]
    needed = ["layer", "head", "name", "label", "labels", *scores]
    needed += [f"{kind}_chance" for kind in scores]
    if absent := [name for name in needed if name not in frame]:
        raise InputError(f"table must have the columns {', '.join(absent)}")
    makers = {WORDS: _texts, LIST: _lists, NUMBER: _numbers, WHOLE: _numbers}
    columns = {}
    for name in frame.columns:
        known = column(name)
        columns[name] = makers[known.type](pd.Series(frame[name]), known, name)
    frame = pd.DataFrame(columns, index=frame.index)
    heads = [str(Head(*place)) for place in places(frame)]
    if heads != frame["name"].tolist() or len(set(heads)) < len(heads):
        raise InputError("table must have one row per head, its name made of layer and head")
    _check_intervals(frame)
    chances = [f"{kind}_chance" for kind in KINDS]
    decisive = ["name", "label", "labels", *KINDS, *chances, "window"]
    for row in frame[[name for name in decisive if name in frame]].to_dict("records"):
        _check_labels(row)
    return frame


def places(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Layer and head of each row."""
    return list(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))


def _lists(values: pd.Series, known: Column, name: str) -> pd.Series:
    """Labels as lists; a CSV file joins them with semicolons."""
    split = [one.split(";") if isinstance(one, str) else one for one in values]
    if not all(isinstance(one, list | tuple | np.ndarray) and len(one) for one in split) or not all(
        isinstance(label, str) for labels in split for label in labels
    ):
        raise InputError(f"{name} must be at least one word for each head")
    return pd.Series([list(labels) for labels in split], index=values.index, dtype=object)


def _texts(values: pd.Series, known: Column, name: str) -> pd.Series:
    if not all(isinstance(one, str) for one in values.dropna()):
        raise InputError(f"column {name} must hold text")
    return values.astype("string").fillna("")


def _numbers(values: pd.Series, known: Column, name: str) -> pd.Series:
    (low, high), whole, shown = known.limits, known.type == WHOLE, quoted(name)[1:-1]
    there = values.dropna().tolist()
    try:
        if not all(
            isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in there
        ):
            raise TypeError
        numbers = pd.Series(pd.to_numeric(values), dtype="Int64" if whole else "Float64")
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"column {shown} must hold {'whole ' if whole else ''}numbers") from None
    if name in ("layer", "head") and numbers.isna().any():
        raise InputError(f"column {shown} must hold a number for each head")
    found, slack = numbers.dropna().to_numpy(float), 0 if whole else _SLACK
    inside = np.isfinite(found) & (found >= low - slack) & (found <= high + slack)
    if not inside.all():
        rule = f"from {low:g} to {high:g}"
        rule = "finite" if rule == "from -inf to inf" else rule
        raise InputError(f"column {shown} must be {rule}, got {found[~inside][0]:g}")
    return numbers


def _check_intervals(frame: pd.DataFrame) -> None:
    """Refuse an interval with one end missing or its ends the wrong way round."""
    for low in (name for name in frame.columns if name.endswith("_low")):
        high = f"{low.removesuffix('_low')}_high"
        if high not in frame or bool((frame[low].isna() != frame[high].isna()).any()):
            raise InputError(f"columns {low} and {high} must be there or missing together")
        if bool((frame[low] > frame[high]).any()):
            raise InputError(f"column {low} must be at most {high}, got more")


def _check_labels(row: dict[str, Any]) -> None:
    """Refuse labels that a scan does not give, in another order, or without a score."""
    label, labels = row["label"], row["labels"]
    there = {name for name, value in row.items() if name != "labels" and not pd.isna(value)}
    got = f"got {quoted(', '.join(labels))} for {row['name']}"
    if label != labels[0]:
        raise InputError(f"label must be the first of labels, got {quoted(label)}, {got}")
    if labels in ([MIXED], [NOT_ENOUGH], [CROSS]):
        if (labels == [MIXED]) != bool(there & {*KINDS}):
            rule = f"{MIXED} with scores and {NOT_ENOUGH} without"
            raise InputError(f"label must be {rule}, {got}")
        return
    ranks = [_RANK.get(label, -1.0) for label in labels]
    if -1.0 in ranks:
        raise InputError(f"labels must be among {', '.join(_RANK)}, or one alone, {got}")
    if ranks != sorted(set(ranks)):
        raise InputError(f"labels must be listed once, the most specific first, {got}")
    for label in labels:
        kind = _SHOWN_BY[label][0]  # A window of the architecture has no chance.
        if there.isdisjoint(_SHOWN_BY[label]):
            raise InputError(f"label must have a score in {kind}, {got}")
        if {kind, f"{kind}_chance"} <= there and row[kind] < row[f"{kind}_chance"] - _SLACK:
            raise InputError(f"label must have a score in {kind} above its chance, {got}")
