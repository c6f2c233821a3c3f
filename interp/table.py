"""One model's table of heads: a `HeadScan`, and its files."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.contents import as_path, content_of, shown
from interp.definitions import DEFINITIONS
from interp.errors import InputError
from interp.files import staged
from interp.formats import FORMATS, TEXT, Format
from interp.heads import Head
from interp.labels import (
    ANTI_INDUCTION,
    CROSS,
    FORCED_WINDOW,
    LABELS,
    MIXED,
    NEXT_TOKEN,
    NOT_ENOUGH,
    HeadLabel,
)
from interp.pages.visible import prose
from interp.patterns import MOST_LAYERS
from interp.scores import STATISTICS, VALUE_WEIGHTED
from interp.targets import KINDS, TARGETS
from interp.told import check_told, is_text

DEFINED = "as_"
"""Beginning of the columns with a score as somebody else defines it."""

AT_DISTANCE = "induction_at_"
"""Beginning of the columns with the induction score at one distance between the copies."""

EFFECT = "induction_logit_effect"
"""Column with the effect on the logit of the right next token, through the induction targets."""

WORDS = [LABELS["induction"], ANTI_INDUCTION, *list(LABELS.values())[1:]]
"""Every label that a score gives, the most specific first."""


@dataclass(frozen=True, eq=False)
class HeadScan:
    """What was found: a table with one row per head, and how it was made.

    Attributes:
        frame: One row per head, its columns as below.
        made_by: Model, probes with the token ids that were run, seed, thresholds and versions;
            `left_out` says which columns are absent, and why.

    Columns, where `<kind>` is each of `induction`, `duplicate_token`, `previous_token`,
    `current_token`, `local_window`, `sink`, and of a model that looks both ways `next_token`;
    what could not be measured is missing:

    - `layer`, `head`, `name`: which head, counted from 0; `L5H1` is head 1 of layer 5.
    - `label`, `labels`: the most specific kind that holds, and all that hold.
    - `<kind>`: its score, the mean attention mass on the kind's targets, in [0, 1].
    - `<kind>_chance`: the score of attention spread evenly.
    - `<kind>_low`, `<kind>_high`: ends of the score's bootstrap 95 % interval over rows.
    - `<kind>_spread`: standard deviation of the score over rows, and so over periods.
    - `<kind>_null`, `<kind>_null_99`: mean and 99 % quantile over rows of the score where there
      is nothing to find; a label needs more than the latter. For a local window and a sink,
      where one key may be drawn for several, they can be above 1.
    - `margin`: what the label has to spare of excess, or of score above the null if that is
      nearer; below 0 what `mixed` lacks.
    - `text_<kind>`, `text_<kind>_chance`: score and chance on natural text.
    - `text_sink_value_weighted`: the sink's share on text when each key counts by the size of
      what it brings.
    - `induction_at_<n>`: the induction score for two copies `n` tokens apart.
    - `induction_logit_effect`: what the head adds, through its induction targets alone, to the
      logit of the right next token, less the mean over the vocabulary.
    - `induction_logit_effect_low`, `induction_logit_effect_high`: ends of its 95 % interval.
    - `ov_copying`: whether the head's weights copy what it attends to, in [-1, 1].
    - `entropy`: of a query's attention, mean, in nats.
    - `mean_distance`: from query to key, mean, in tokens.
    - `sink_position`: where a sink head rests, counted from the first token; `sink_at` says it in
      words, as `[SEP] at 7`, where texts are known.
    - `window`: how many tokens back the architecture lets the layer look.
    - `not_measured`: why a kind has no score.
    - `as_<name>`: the score that `interp.definitions.DEFINITIONS` has by that name.
    """

    frame: pd.DataFrame
    made_by: dict[str, Any]

    @classmethod
    def of(
        cls,
        verdicts: Sequence[HeadLabel],
        others: Sequence[dict[str, float]] | None = None,
        made_by: dict[str, Any] | None = None,
    ) -> "HeadScan":
        """A table of `verdicts`, such as `classify_heads` gives.

        Args:
            verdicts: One for each head.
            others: For each of them, further columns and their values.
            made_by: What made them, in text, numbers, lists and objects.

        Raises:
            InputError: If they are no verdicts, or not one for each head, `others` are not one
                for each, or a value is none that its column can hold.
        """
        listed = list(verdicts) if isinstance(verdicts, Iterable) else []
        if not listed or not all(isinstance(verdict, HeadLabel) for verdict in listed):
            raise InputError(
                "verdicts must be one HeadLabel for each head, such as classify_heads gives, got"
                f" {' '.join(repr(verdicts).split())[:80]}"
            )
        more = [{}] * len(listed) if others is None else others
        if not (
            isinstance(more, Sequence)
            and len(more) == len(listed)
            and all(isinstance(other, Mapping) for other in more)
        ):
            raise InputError(
                f"others must be one dict for each of {len(listed)} heads, got"
                f" {' '.join(repr(more).split())[:80]}"
            )
        if not isinstance(made_by, dict | None):
            raise InputError(f"made_by must be a dict, got {type(made_by).__name__}")
        records = [{**_record(one), **other} for one, other in zip(listed, more, strict=True)]
        return cls(_typed(pd.DataFrame.from_records(records)), made_by or {})

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {label}" for label, number in self.summary().items())
        name = prose(str(self.made_by.get("model", "patterns")))
        return f"HeadScan({name}: {len(self.frame)} heads: {counts})"

    def _repr_html_(self) -> str:
        """In a notebook: heads by label and the strongest with their evidence."""
        from interp.pages.summary import scan_view

        return scan_view(self)

    def _repr_png_(self) -> bytes:
        """In a notebook that shows no pages: all scores as a picture."""
        from interp.pages.still import scan_picture

        return scan_picture(self)

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table: one row per head."""
        return self.frame.copy()

    def to_long(self) -> pd.DataFrame:
        """One row per (model, prompt, layer, head, score), with its value."""
        pieces = []
        for column in self.frame.columns:
            kind = column.removeprefix("text_")
            far = kind.startswith(AT_DISTANCE)
            if kind not in (*KINDS, *STATISTICS, EFFECT) and not far:
                continue
            own = self.made_by.get("scored_on", {}).get(
                kind, "repeated" if far or kind == EFFECT else "patterns"
            )
            prompt = own if kind == column else "text"
            piece = self.frame[["layer", "head"]].assign(
                model=self.made_by.get("model", ""),
                prompt=prompt,
                score=kind,
                value=self.frame[column],
            )
            pieces.append(piece)
        columns = ["model", "prompt", "layer", "head", "score", "value"]
        return (
            pd.concat(pieces, ignore_index=True)
            .reindex(columns=columns)
            .dropna()
            .reset_index(drop=True)
        )

    def heads(self, label: str) -> list[Head]:
        """The heads that have `label`, alone or among others, the strongest first.

        Raises:
            InputError: If there is no such label.
        """
        return [Head.parse(name) for name in self.having(label)["name"].tolist()]

    def having(self, label: str) -> pd.DataFrame:
        """The rows of the heads that have `label`, the strongest first.

        Raises:
            InputError: If there is no such label.
        """
        known = {label for labels in self.frame["labels"] for label in labels}
        words = [*WORDS, *([NEXT_TOKEN] if "next_token" in self.frame else [])]
        words += sorted(known - set(words))
        if label not in words:
            raise InputError(f"label must be one of {', '.join(words)}, got {label!r}")
        rows = self.frame.loc[[label in labels for labels in self.frame["labels"]]]
        score = "induction" if label == ANTI_INDUCTION else label.replace(" ", "_")
        if score not in rows:
            return rows
        return rows.sort_values(by=[score, "layer", "head"], ascending=[False, True, True])

    def by_distance(self) -> dict[int, str]:
        """The columns with the induction score for copies so many tokens apart, by distance."""
        names = [name for name in self.frame.columns if name.startswith(AT_DISTANCE)]
        return {int(name.removeprefix(AT_DISTANCE)): name for name in names}

    def summary(self) -> dict[str, int]:
        """How many heads have each primary label, the most specific label first."""
        counts = Counter(self.frame["label"].tolist())
        words = [*WORDS[:2], *(kind.replace("_", " ") for kind in KINDS[1:])]
        order = [label for label in words if label in counts]
        return {label: counts[label] for label in [*order, *sorted(set(counts) - set(order))]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a `.csv`, `.parquet` or `.json` file, whole or not at all.

        Parquet and JSON carry `made_by` too; the CSV keeps six decimals.

        Raises:
            InputError: If the ending is none of these, the folder cannot be written to, or the
                table or `made_by` is none that `load` would take: then nothing is written.
        """
        path, form = _format(path)
        frame = _typed(self.frame)
        made_by = check_told(self.made_by, _places(frame))
        with staged(path.parent) as scratch:
            form.write(frame, made_by, scratch / path.name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadScan":
        """Read what `save` wrote.

        Raises:
            InputError: If there is no such file, or it is no table of heads: a column or a part
                of `made_by` is absent, of another kind, beyond its range or at odds with another.
        """
        path, form = _format(path)
        content = content_of(path)
        try:
            frame, made_by = form.read(content)
            frame = _typed(frame)
            return cls(frame, check_told(made_by, _places(frame)))
        except InputError as error:
            told = str(error)
        # What a damaged file can set off is not for the readers of pandas to say: all of it.
        except Exception as error:
            why = " ".join(str(error).split())[:80]
            told = f"it is no whole {path.suffix} file, got {type(error).__name__} {why}"
        raise InputError(f"{shown(path)} must be a table of heads: {told}")


def _format(path: Any) -> tuple[Path, Format]:
    """The path, and by its ending what is to be written there or read from it."""
    path = as_path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"path must end in {', '.join(FORMATS)}, got {shown(Path(path.name))}")
    return path, FORMATS[path.suffix.lower()]


def _record(verdict: HeadLabel) -> dict[str, Any]:
    record: dict[str, Any] = {
        "layer": verdict.head.layer,
        "head": verdict.head.head,
        "name": str(verdict.head),
        "label": verdict.label,
        "labels": list(verdict.labels),
    }
    record |= {kind: verdict.scores.get(kind) for kind in sorted(TARGETS, key=_COLUMNS.index)}
    record |= {
        f"{kind}_chance": verdict.chance.get(kind) for kind in sorted(TARGETS, key=_COLUMNS.index)
    }
    if "next_token" in verdict.scores:
        record |= {"next_token": verdict.scores["next_token"]}
        record |= {"next_token_chance": verdict.chance["next_token"]}
    record |= {name: getattr(verdict, name) for name in STATISTICS}
    record |= {"sink_position": verdict.sink_position, "window": verdict.window}
    record |= {} if verdict.sink_at is None else {"sink_at": verdict.sink_at}
    record["margin"] = verdict.margin
    record["not_measured"] = "; ".join(
        f"{kind}: {why}" for kind, why in verdict.not_measured.items()
    )
    return record


_COLUMNS = [
    "sink",
    "previous_token",
    "induction",
    "local_window",
    "duplicate_token",
    "current_token",
]
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
sums to 1 within 1 %, and `interp.patterns.check_pattern` takes it."""

_RANK = {kind.replace("_", " "): float(rank) for rank, kind in enumerate(KINDS)}
_RANK |= {ANTI_INDUCTION: _RANK["induction"], FORCED_WINDOW: _RANK["local window"] + 0.5}
"""Place of every label that can stand beside others, the most specific first."""

_SHOWN_BY = {label: (label.replace(" ", "_"),) for label in _RANK}
_SHOWN_BY |= {ANTI_INDUCTION: ("induction",), FORCED_WINDOW: ("window", "local_window")}
"""The columns of which a head with a label must have one."""


def _typed(frame: Any) -> pd.DataFrame:
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
    scores = [*_COLUMNS, *(["next_token"] if "next_token" in frame else [])]
    needed = ["layer", "head", "name", "label", "labels", *scores]
    needed += [f"{kind}_chance" for kind in scores]
    if absent := [column for column in needed if column not in frame]:
        raise InputError(f"table must have the columns {', '.join(absent)}")
    frame = frame.copy()
    for column in frame.columns:
        typed = _lists if column == "labels" else _texts if column in TEXT else _numbers
        frame[column] = typed(frame[column], column)
    heads = [str(Head(*place)) for place in _places(frame)]
    if heads != frame["name"].tolist() or len(set(heads)) < len(heads):
        raise InputError("table must have one row per head, its name made of layer and head")
    _check_intervals(frame)
    _check_labels(frame)
    return frame


def _places(frame: pd.DataFrame) -> list[tuple[int, int]]:
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
    """Refuse labels that no scan gives, in another order than theirs, or without a score."""
    columns = [column for column in (*KINDS, "window") if column in frame]
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
