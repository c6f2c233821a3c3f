"""The files that a table of heads is kept in: CSV, Parquet, JSON."""

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from interp.errors import InputError, quoted
from interp.files import parsed, write_json
from interp.scan.columns import COLUMNS, LIST, WORDS

SCHEMA_VERSION = 1

_TEXT = {column.name: pa.string() for column in COLUMNS if column.type in (WORDS, LIST)}


class Format(NamedTuple):
    """How a table and its record become a file and come back."""

    write: Callable[[pd.DataFrame, dict[str, Any], Path], object]
    read: Callable[[bytes], tuple[pd.DataFrame, Any]]


def _write_csv(frame: pd.DataFrame, _: dict[str, Any], path: Path) -> None:
    frame = frame.assign(labels=[";".join(labels) for labels in frame["labels"]])
    frame.to_csv(path, index=False, float_format="%.6f", encoding="utf-8", lineterminator="\n")


def _read_csv(content: bytes) -> tuple[pd.DataFrame, Any]:
    if not content.endswith(b"\n"):
        raise InputError("the last line must end in a line break: the file may be cut")
    # Arrow refuses a short line, where pandas would fill it up.
    table = csv.read_csv(
        BytesIO(content),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=_TEXT),
    )
    if len(set(table.column_names)) < table.num_columns:
        raise InputError("columns must be unique names")
    return table.to_pandas(), {}


def _write_parquet(frame: pd.DataFrame, made_by: dict[str, Any], path: Path) -> None:
    frame = frame.copy()
    frame.attrs = {"schema_version": SCHEMA_VERSION, "made_by": made_by}
    path.write_bytes(frame.to_parquet(index=False))  # Arrow itself accepts only UTF-8 names.


def _read_parquet(content: bytes) -> tuple[pd.DataFrame, Any]:
    frame = pd.read_parquet(BytesIO(content))
    attrs = dict(frame.attrs)
    frame.attrs.clear()
    return frame, _part(attrs, "made_by") if attrs else {}


def _write_json(frame: pd.DataFrame, made_by: dict[str, Any], path: Path) -> None:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    write_json(path, {"schema_version": SCHEMA_VERSION, "made_by": made_by, "heads": rows})


def _read_json(content: bytes) -> tuple[pd.DataFrame, Any]:
    parts = parsed(content)
    heads = _part(parts, "heads")
    if any(head.keys() != heads[0].keys() for head in heads):
        raise InputError("heads must have the same columns each")
    return pd.DataFrame.from_records(heads), _part(parts, "made_by")


def _part(content: Mapping[Any, Any], name: str) -> Any:
    """A part of a file's content, if that is of this version."""
    version = content.get("schema_version")
    if version != SCHEMA_VERSION or type(version) is not int:
        raise InputError(f"schema_version must be {SCHEMA_VERSION}, got {quoted(version)}")
    return content[name]


FORMATS = {
    ".csv": Format(_write_csv, _read_csv),
    ".parquet": Format(_write_parquet, _read_parquet),
    ".json": Format(_write_json, _read_json),
}
"""By file name extension. Parquet and JSON hold `made_by` too."""
