"""Numbers measured beside the ones expected, kept and printed alike."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Number = float | int
Numbers = Number | Sequence["Numbers"]


@dataclass(frozen=True)
class Record:
    """One number, or one row of numbers, measured and expected.

    Attributes:
        table: The table that it is a line of.
        name: What was measured; no two records share it.
        expected: What the explanation says.
        measured: The same by this package, now.
        tolerance: How far they may be apart, in the same unit: rounding, the order of sums, five
            standard errors where there is luck, orders of magnitude where there is time.
        unit: What is counted, `1` for a pure number.
        note: What else a reader may want to know.
    """

    table: str
    name: str
    expected: Any
    measured: Any
    tolerance: float
    unit: str = "1"
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether every measured number is within `tolerance` of the expected one."""
        expected = torch.as_tensor(self.expected, dtype=torch.float64)
        measured = torch.as_tensor(self.measured, dtype=torch.float64)
        apart = (measured - expected).abs()
        return measured.shape == expected.shape and bool((apart <= self.tolerance).all())

    def to_json(self) -> dict[str, Any]:
        """The record as a dictionary of plain values, `ok` among them."""
        return {**vars(self), "ok": self.ok}


def lines(records: Sequence[Record]) -> Iterator[str]:
    """The records as tables for people, one after the other, and how many are right."""
    for table in dict.fromkeys(record.table for record in records):
        group = [record for record in records if record.table == table]
        notes = {record.note for record in group}
        heads = [table, "expected", "measured", "within"]
        cells = [_cells(record) for record in group]
        widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
        yield _line(heads, widths)
        for record, line in zip(group, cells, strict=True):
            end = f"  ({record.note})" if record.note and len(notes) > 1 else ""
            yield _line(line, widths) + ("  ok" if record.ok else "  NOT OK") + end
        if len(notes) == 1:
            yield from (note for note in notes if note)
        yield ""
    right = sum(record.ok for record in records)
    yield f"{right} of {len(records)} numbers are as expected"


def _cells(record: Record) -> list[str]:
    within = f"{record.tolerance:.2g}" + (f" {record.unit}" if record.unit != "1" else "")
    return [record.name, _text(record.expected), _text(record.measured), within]


def _text(value: Numbers) -> str:
    if isinstance(value, Sequence):
        return " ".join(_text(part) for part in value)
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 0.001 or abs(value) >= 1000 else f"{value:.4f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell + " " * (width - _width(cell)) if i == 0 else " " * (width - _width(cell)) + cell
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others])


def _width(text: str) -> int:
    """Columns in a terminal: letters of Korean take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
