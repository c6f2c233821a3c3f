"""The columns of a table of heads: what each one means and may hold."""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import pandas as pd

from interp.errors import InputError, quoted
from interp.heads import Head
from interp.kinds.builtin import KINDS, LABELS, kind_of, kinds_in
from interp.kinds.kind import Kind
from interp.kinds.labels import CROSS, MIXED, NOT_ENOUGH, NOT_FINITE
from interp.patterns.definitions import DEFINITIONS
from interp.patterns.tensor import MOST_LAYERS

DEFINED = "as_"

AT_DISTANCE = "induction_at_"
"""Prefix of the columns with the induction score at one distance between the copies."""

EFFECT = "induction_logit_effect"
"""Column with the effect on the logit of the right next token, through the induction targets."""

_FIRST = ("sink", "previous_token", "induction", "local_window")

SCORED = sorted(LABELS, key=lambda kind: _FIRST.index(kind) if kind in _FIRST else len(_FIRST))
"""The scores that every table has, in the order of their columns."""

SHARE, UP, ANY = (0.0, 1.0), (0.0, inf), (-inf, inf)
WHOLE, NUMBER, WORDS, LIST = "whole number", "number", "text", "list of text"


class Column(NamedTuple):
    """What the columns of one name hold; `limits` are the smallest and the largest number.

    In `name`, `<kind>` stands for a kind of head, and `<n>` for a distance in tokens.
    """

    name: str
    type: str
    limits: tuple[float, float]
    meaning: str


_BY_VALUE = "text_sink_value_weighted"
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
    Column(_BY_VALUE, NUMBER, SHARE, "sink score on text, keys weighted by the norm of v W_O"),
    Column(f"{AT_DISTANCE}<n>", NUMBER, SHARE, "induction score for copies `<n>` tokens apart"),
    Column(EFFECT, NUMBER, ANY, "effect on the right next token's logit via induction targets"),
    Column(f"{EFFECT}_low", NUMBER, ANY, "lower end of its bootstrap 95 % interval over rows"),
    Column(f"{EFFECT}_high", NUMBER, ANY, "upper end of its bootstrap 95 % interval over rows"),
    Column("ov_copying", NUMBER, (-1.0, 1.0), "copying score of W_OV; see `copying_scores`"),
    Column("outside_sinks", NUMBER, SHARE, "share of its attention on text that is not on sinks"),
    Column(
        "explained", NUMBER, SHARE, "explained share: of that, what lands on any kind's targets"
    ),
    Column("explained_null", NUMBER, SHARE, "explained share of as many keys drawn evenly"),
    Column("explained_low", NUMBER, SHARE, "lower end of its bootstrap 95 % interval over rows"),
    Column("explained_high", NUMBER, SHARE, "upper end of its bootstrap 95 % interval over rows"),
    Column("explained_by_<kind>", NUMBER, SHARE, "part of it on targets that no earlier kind has"),
    Column("explained_by_preferred", NUMBER, SHARE, "part of it on its preferred keys alone"),
    Column("preferred", WORDS, ANY, "tokens that the head prefers whatever the query"),
    Column("unexplained", WORDS, ANY, "query → key of the strongest pairs of no kind (weight)"),
    Column("entropy", NUMBER, UP, "mean entropy of a query's attention, in nats"),
    Column("mean_distance", NUMBER, UP, "mean distance from query to key, in tokens"),
    Column("sink_position", WHOLE, UP, "position of the head's sink in the row, from 0"),
    Column("sinks", WORDS, ANY, "position of each sink, and its share: `0 (0.64), 300 (0.40)`"),
    Column("sink_at", WORDS, ANY, "token and position of the sink, such as `[SEP] at 7`"),
    Column("window", WHOLE, (1.0, inf), "tokens that the architecture lets it look back"),
    Column("margin", NUMBER, (-inf, 1.0), "score above threshold or null; below 0 for `mixed`"),
    Column("borderline", WORDS, ANY, "kinds whose score may be on either side of the threshold"),
    Column("not_measured", WORDS, ANY, "why a kind has no score"),
    *(
        Column(f"{DEFINED}{name}", NUMBER, known.range, f"published definition `{name}`")
        for name, known in DEFINITIONS.items()
    ),
]
"""Every column that a scan may have; the first one that fits a name holds. Missing values are
missing, never NaN. A table may have further columns of numbers."""

_SLACK = 0.01
"""How far a number may be outside its range: attention in a narrow number format sums to 1
within 1 %, and `interp.patterns.tensor.check_pattern` accepts it."""


@lru_cache
def _patterns(kinds: tuple[str, ...]) -> dict[re.Pattern[str], Column]:
    """The columns by pattern of their names, in a table with these kinds."""
    drawn = (name for name in kinds if name not in KINDS or KINDS[name].null == "drawn")
    values = {"<kind>": f"({'|'.join(kinds)})", "<drawn>": f"({'|'.join(drawn)})"}
    values["<n>"] = "[1-9][0-9]{0,8}"

    def pattern(name: str) -> re.Pattern[str]:
        for placeholder, those in values.items():
            name = name.replace(placeholder, those)
        return re.compile(name)

    return {pattern(known.name): known for known in COLUMNS}


def column(name: str, kinds: Collection[str] = ()) -> Column:
    """What the column of that name holds; of an unknown one, any number.

    `kinds` are the names of the table's kinds besides those of a default scan.
    """
    patterns = _patterns((*KINDS, *(kind for kind in kinds if kind not in KINDS)))
    found = (known for pattern, known in patterns.items() if pattern.fullmatch(name))
    return next(found, Column(name, NUMBER, ANY, ""))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy of the table with one type per column; missing values are missing, never NaN.

    Raises:
        InputError: If a column is absent, a value is outside its range, or a label has no score.
    """
    if frame.empty or not frame.columns.is_unique:
        raise InputError("table must have a row per head and unique column names")
    kinds = kinds_in([*map(str, frame.columns)])
    scores = [*SCORED, *(name for name in kinds if name not in SCORED)]
    chances = [f"{kind}_chance" for kind in scores]
    needed = ["layer", "head", "name", "label", "labels", *scores, *chances]
    if absent := [name for name in needed if name not in frame]:
        raise InputError(f"table must have the columns {', '.join(absent)}")
    frame = pd.DataFrame(
        {name: _typed(pd.Series(frame[name]), column(name, kinds), name) for name in frame.columns},
        index=frame.index,
    )
    heads = [str(Head(*place)) for place in places(frame)]
    if heads != frame["name"].tolist() or len(set(heads)) < len(heads):
        raise InputError("table must have one row per head, its name made of layer and head")
    for low in (name for name in frame.columns if name.endswith("_low")):
        high = f"{low.removesuffix('_low')}_high"
        if high not in frame or not frame[low].isna().equals(frame[high].isna()):
            raise InputError(f"columns {low} and {high} must be there or missing together")
        if bool((frame[low] > frame[high]).any()):
            raise InputError(f"column {low} must be at most {high}, got more")
    measured = frame.notna()
    there = {name: measured[name].tolist() for name in (*kinds, "window") if name in frame}
    for at, (name, label, labels) in enumerate(
        zip(*(frame[one].tolist() for one in ("name", "label", "labels")), strict=True)
    ):
        known = {column for column, at_head in there.items() if at_head[at]}
        _check_labels(name, label, labels, known, kinds)
    return frame


def places(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Layer and head of each row."""
    return list(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))


def _typed(values: pd.Series, known: Column, name: str) -> pd.Series:
    if known.type == WORDS:
        return values.astype("string").fillna("")
    if known.type == LIST:  # A CSV file joins labels with semicolons.
        split = [one.split(";") if isinstance(one, str) else list(one) for one in values]
        return pd.Series(split, index=values.index, dtype=object)
    (low, high), whole, shown = known.limits, known.type == WHOLE, quoted(name)[1:-1]
    try:
        numbers = values.astype("Int64" if whole else "Float64")
        measured = numbers.dropna().to_numpy(float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"column {shown} must hold {'whole ' if whole else ''}numbers") from None
    slack = 0 if whole else _SLACK
    inside = np.isfinite(measured) & (measured >= low - slack) & (measured <= high + slack)
    if not inside.all():
        rule = f"from {low:g} to {high:g}" if known.limits != ANY else "finite"
        raise InputError(f"column {shown} must be {rule}, got {measured[~inside][0]:g}")
    return numbers


def _check_labels(
    name: str, first: str, labels: list[str], there: set[str], kinds: Mapping[str, Kind]
) -> None:
    """Refuse labels of a head that no scan gives, or whose score is not `there`."""

    def shown_by(label: str) -> set[str]:
        kind = kind_of(label, kinds)
        return set() if kind is None else {kind.name, *["window"] * (label == kind.forced)}

    scored = (not there.isdisjoint(shown_by(label)) for label in labels)
    alone = labels in ([MIXED], [NOT_ENOUGH], [NOT_FINITE], [CROSS])
    if first != labels[0] or not (alone or all(scored)):
        rule = "labels must be known, have a score each, and begin with label"
        raise InputError(f"{rule}, got {quoted(labels)} for {name}")
