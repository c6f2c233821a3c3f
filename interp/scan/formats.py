"""The files that a table of heads is kept in: CSV, Parquet, JSON."""

import csv
import json
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from interp.contents import parsed, text_of
from interp.errors import InputError

SCHEMA_VERSION = 1

TEXT = ("name", "label", "labels", "not_measured", "sink_at")
"""Columns of text; in a CSV file the labels are one."""

_PARTS = ("schema_version", "made_by", "heads")


class Format(NamedTuple):
    """How a table, and where there is room what made it, becomes a file and comes back."""

    write: Callable[[pd.DataFrame, dict[str, Any], Path], None]
    read: Callable[[bytes], tuple[pd.DataFrame, Any]]


def _write_csv(frame: pd.DataFrame, _: dict[str, Any], path: Path) -> None:
    frame = frame.assign(labels=[";".join(labels) for labels in frame["labels"]])
    frame.to_csv(path, index=False, float_format="%.6f", encoding="utf-8", lineterminator="\n")


def _read_csv(content: bytes) -> tuple[pd.DataFrame, Any]:
    text = text_of(content)
    if not text.endswith("\n"):
        raise InputError("the last line must end in a line break, got none: it may be cut")
    # Pandas would fill up a short line, and give a column another name that is there twice.
    names, *lines = (line for line in csv.reader(StringIO(text, newline="")) if line)
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"columns must have names of their own, got {twins[0][:80]!r} twice")
    for number, line in enumerate(lines):
        if len(line) != len(names):
            raise InputError(
                f"each line must have {len(names)} values, got {len(line)} for head {number}"
            )
    words: Any = dict.fromkeys(TEXT, str)
    return pd.read_csv(StringIO(text, newline=""), dtype=words), {}


def _write_parquet(frame: pd.DataFrame, made_by: dict[str, Any], path: Path) -> None:
    frame = frame.copy()
    frame.attrs = {"schema_version": SCHEMA_VERSION, "made_by": made_by}
    path.write_bytes(frame.to_parquet(index=False))  # Arrow itself takes UTF-8 names alone.


def _read_parquet(content: bytes) -> tuple[pd.DataFrame, Any]:
    frame = pd.read_parquet(BytesIO(content))
    told = dict(frame.attrs)
    frame.attrs.clear()
    if told:  # Else it is anyone's, who kept the columns alone.
        _check_parts(told, _PARTS[:2])
    return frame, told.get("made_by", {})


def _write_json(frame: pd.DataFrame, made_by: dict[str, Any], path: Path) -> None:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    content = {"schema_version": SCHEMA_VERSION, "made_by": made_by, "heads": rows}
    path.write_text(
        json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def _read_json(content: bytes) -> tuple[pd.DataFrame, Any]:
    told = parsed(content)
    _check_parts(told, _PARTS)
    heads = told["heads"]
    if not isinstance(heads, list) or not all(isinstance(head, dict) for head in heads):
        raise InputError("heads must be a list of objects, one for each head")
    for number, head in enumerate(heads):
        if odd := sorted(head.keys() ^ heads[0].keys()):
            raise InputError(
                f"heads must have the same columns each, got {odd[0][:80]!r} in number {number}"
                f" {'alone' if odd[0] in head else 'missing'}"
            )
    return pd.DataFrame.from_records(heads), told["made_by"]


def _check_parts(told: Any, parts: tuple[str, ...]) -> None:
    """Refuse what has not all `parts`, or is of another version."""
    if not isinstance(told, dict):
        raise InputError(f"it must be an object with {', '.join(parts)}")
    if (found := told.get("schema_version")) != SCHEMA_VERSION or type(found) is not int:
        raise InputError(f"schema_version must be {SCHEMA_VERSION}, got {repr(found)[:80]}")
    if absent := [part for part in parts if part not in told]:
        raise InputError(f"{' and '.join(absent)} must be there, got none")


FORMATS = {
    ".csv": Format(_write_csv, _read_csv),
    ".parquet": Format(_write_parquet, _read_parquet),
    ".json": Format(_write_json, _read_json),
}
"""By the ending of a file's name. Parquet and JSON hold `made_by` too."""
