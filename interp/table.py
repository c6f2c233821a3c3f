"""One model's table of heads: a `HeadScan`, and its files."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import InputError
from interp.files import staged
from interp.heads import Head
from interp.labels import ANTI_INDUCTION, LABELS, NEXT_TOKEN, HeadLabel
from interp.patterns import MOST_LAYERS
from interp.scores import STATISTICS
from interp.targets import KINDS, TARGETS
from interp.told import check_told

SCHEMA_VERSION = 1

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
      is nothing to find; a label needs more than the latter.
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
        """A table of `verdicts`, such as `classify_heads` gives."""
        records = [_record(verdict) for verdict in verdicts]
        for record, other in zip(records, others or [], strict=False):
            record.update(other)
        return cls(_typed(pd.DataFrame.from_records(records)), made_by or {})

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {label}" for label, number in self.summary().items())
        return (
            f"HeadScan({self.made_by.get('model', 'patterns')}: {len(self.frame)} heads: {counts})"
        )

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
        order = [label for label in WORDS if label in counts]
        return {label: counts[label] for label in [*order, *sorted(set(counts) - set(order))]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a `.csv`, `.parquet` or `.json` file, whole or not at all.

        Parquet and JSON carry `made_by` too; the CSV keeps six decimals.

        Raises:
            InputError: If the ending is none of these, or the folder cannot be written to.
        """
        path = Path(path)
        write = _FORMATS.get(path.suffix, (None, None))[0]
        if write is None:
            raise InputError(f"path must end in {', '.join(_FORMATS)}, got {path.name}")
        with staged(path.parent) as scratch:
            write(self, scratch / path.name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadScan":
        """Read what `save` wrote.

        Raises:
            InputError: If there is no such file, or it is not a table of heads.
        """
        path = Path(path)
        read = _FORMATS.get(path.suffix, (None, None))[1]
        if read is None:
            raise InputError(f"path must end in {', '.join(_FORMATS)}, got {path.name}")
        try:
            frame, made_by = read(path)
            return cls(_typed(frame), check_told(made_by))
        except FileNotFoundError:
            raise InputError(f"path must be a file that is there, got {path}") from None
        except Exception as error:
            raise InputError(
                f"{path} must be a table of heads, got: {str(error).splitlines()[0]}"
            ) from error


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
_TEXT = ("name", "label", "not_measured", "sink_at")
_WHOLE = ("layer", "head", "sink_position", "window")


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with one type per column; missing is missing, never NaN."""
    if absent := [
        c for c in ("layer", "head", "name", "label", "labels", *_COLUMNS) if c not in frame
    ]:
        raise InputError(f"table must have the columns {', '.join(absent)}")
    frame = frame.copy()
    if frame.empty:
        raise InputError("table must hold at least one head, got none")
    for column in frame.columns:
        if column == "labels":
            split = [x.split(";") if isinstance(x, str) else list(x) for x in frame[column]]
            if not all(isinstance(label, str) for labels in split for label in labels):
                raise InputError("labels must be words")
            frame[column] = pd.Series(split, index=frame.index, dtype=object)
        elif column in _TEXT:
            frame[column] = frame[column].astype("string").fillna("")
        else:
            kind = "Int64" if column in _WHOLE else "Float64"
            try:
                with np.errstate(invalid="ignore"):  # What no whole number can hold is refused.
                    frame[column] = pd.Series(pd.to_numeric(frame[column]), dtype=kind)
            except (TypeError, ValueError):
                raise InputError(f"column {column} must hold numbers") from None
    heads = [f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"])]
    if heads != frame["name"].tolist() or len(set(heads)) < len(heads):
        raise InputError("table must have one row per head, its name made of layer and head")
    places = frame[["layer", "head"]].to_numpy(int)
    if places.min() < 0 or places.max() >= MOST_LAYERS:
        raise InputError(f"layers and heads must be from 0 to {MOST_LAYERS - 1}")
    scores = frame[[kind for kind in KINDS if kind in frame]].to_numpy(float, na_value=0)
    if scores.min() < 0 or scores.max() > 1 + 1e-4:
        raise InputError(f"scores must be from 0 to 1, got {scores.min()} to {scores.max()}")
    return frame


def _write_csv(scan: HeadScan, path: Path) -> None:
    frame = scan.frame.assign(labels=[";".join(labels) for labels in scan.frame["labels"]])
    frame.to_csv(path, index=False, float_format="%.6f", encoding="utf-8", lineterminator="\n")


def _read_csv(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    return pd.read_csv(path, encoding="utf-8"), {}


def _write_parquet(scan: HeadScan, path: Path) -> None:
    frame = scan.frame.copy()
    frame.attrs = {"schema_version": SCHEMA_VERSION, "made_by": scan.made_by}
    path.write_bytes(frame.to_parquet(index=False))  # Arrow itself takes UTF-8 names alone.


def _read_parquet(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    frame = pd.read_parquet(BytesIO(path.read_bytes()))
    made_by = frame.attrs.pop("made_by", {})
    frame.attrs.clear()
    return frame, made_by


def _write_json(scan: HeadScan, path: Path) -> None:
    rows = scan.frame.astype(object).where(scan.frame.notna(), None).to_dict("records")
    content = {"schema_version": SCHEMA_VERSION, "made_by": scan.made_by, "heads": rows}
    path.write_text(
        json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def _read_json(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"schema_version must be {SCHEMA_VERSION}")
    return pd.DataFrame.from_records(content["heads"]), content["made_by"]


_FORMATS = {
    ".csv": (_write_csv, _read_csv),
    ".parquet": (_write_parquet, _read_parquet),
    ".json": (_write_json, _read_json),
}
