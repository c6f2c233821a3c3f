"""A scan as a notebook shows it: the report's tables on a small page, the scores as a picture."""

import html
import io
from typing import Any

from interp import plots
from interp.pages import webpage
from interp.pages.visible import prose
from interp.plots.style import styled
from interp.report import report
from interp.table import HeadScan

TOP = 3
"""Heads shown of each kind."""


def scan_page(scan: HeadScan) -> str:
    """What `interp.report.report` says of a scan, as one HTML document without any script.

    The line before a table is its caption; the other lines stand below, folded.
    """
    tables, lines = [], []
    for part in report(scan, TOP):
        if isinstance(part, str):
            lines.append(part)
        else:
            tables.append(_table(part, caption=lines.pop()))
    return webpage.still_document(
        "scan.html",
        f"{scan.made_by.get('model', 'attention patterns')}: heads",
        tables="\n".join(tables),
        lines="\n".join(f"<p>{_escaped(line)}</p>" for line in lines),
    )


def scan_frame(scan: HeadScan) -> str:
    """That page in a frame of its own, as tall as its longer table."""
    longest = max(part.row_count for part in report(scan, TOP) if not isinstance(part, str))
    name = "Attention heads by label, with the evidence"
    return webpage.frame(scan_page(scan), height=150 + 23 * longest, title=name, scripts=False)


def scan_picture(scan: HeadScan) -> bytes:
    """`plots.score_mosaic` as a PNG, for where pages cannot be shown."""
    file = io.BytesIO()
    with styled():
        plots.score_mosaic(scan).savefig(file, format="png", dpi=144)
    return file.getvalue()


def _table(table: Any, caption: str) -> str:
    """One of the report's tables: columns with headers, sides and cells."""
    sides = [' class="right"' if column.justify == "right" else "" for column in table.columns]
    columns = [[*column.cells] for column in table.columns]
    head = "".join(
        f'<th scope="col"{side}>{_escaped(str(column.header))}</th>'
        for side, column in zip(sides, table.columns, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{side}>{_escaped(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        + "</tr>"
        for row in zip(*columns, strict=True)
    )
    return (
        f"<table><caption>{_escaped(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>"
    )


def _escaped(text: str) -> str:
    return html.escape(prose(text)) if text else ""
