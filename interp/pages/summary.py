"""A scan as a notebook shows it: the report's tables, with nothing that runs."""

import html
from typing import Any

from interp.pages import webpage
from interp.report import report
from interp.table import HeadScan

TOP = 3
"""Heads shown of each kind."""


def scan_view(scan: HeadScan) -> str:
    """What `interp.report.report` says of a scan, as HTML that is as tall as what is in it.

    The line before a table is its caption; the other lines stand below, folded.
    """
    tables, lines = [], []
    for part in report(scan, TOP):
        if isinstance(part, str):
            lines.append(part)
        else:
            tables.append(_table(part, caption=lines.pop()))
    return webpage.fragment(
        "scan.html",
        tables="\n".join(tables),
        lines="\n".join(f"<p>{html.escape(line)}</p>" for line in lines),
    )


def _table(table: Any, caption: str) -> str:
    """One of the report's tables: columns with headers, sides and cells."""
    sides = [' class="right"' if column.justify == "right" else "" for column in table.columns]
    columns = [[*column.cells] for column in table.columns]
    head = "".join(
        f'<th scope="col"{side}>{html.escape(str(column.header))}</th>'
        for side, column in zip(sides, table.columns, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{side}>{html.escape(cell)}</td>" for side, cell in zip(sides, row, strict=True)
        )
        + "</tr>"
        for row in zip(*columns, strict=True)
    )
    return (
        f"<table><caption>{html.escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>"
    )
