"""Measure every number of docs/attention.md and compare it with the expected one.

Prints the tables and writes attention_numbers.json (a list of records: name, expected, measured,
tolerance, ok, table, unit, note) and a figure of the heads designed by hand (designed_heads) to
the folder OUT. No model is needed. The exit code is 1 if a number differs; the files are written
all the same.

Examples:
    interp numbers --out numbers
    interp numbers --seed 1 --format svg
"""

from pathlib import Path
from typing import Annotated

import typer

from interp import command


def main(
    drawing: command.Drawing,
    out: Annotated[Path, typer.Option(help="Folder for the record and figure.")] = Path("results"),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the random inputs.")] = 0,
) -> None:
    from interp import files
    from interp.course import costs, numbers
    from interp.course.designed import EXAMPLE, patterns
    from interp.show.figures import save_figures
    from interp.show.figures.patterns import designed_heads

    with files.staged(out) as scratch, command.progress("measuring"):
        measured = [*numbers.numbers(seed), *costs.costs(seed)]
        files.write_json(
            scratch / "attention_numbers.json", [record.to_json() for record in measured]
        )
        figure = designed_heads(EXAMPLE.words, patterns(), window=4)
        save_figures({"designed_heads": figure}, scratch, drawing.formats)
    records = [record.to_json() for record in measured]
    written = f"wrote attention_numbers.json to {out}"
    command.show(*numbers.lines(measured), written, result=records)
    if not all(record.ok for record in measured):
        raise typer.Exit(1)
