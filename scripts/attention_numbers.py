"""The numbers of attention explained step by step, each measured on the spot.

Prints tables of what is expected beside what this package computes now, and saves them.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from interp import command


def main(
    out: Annotated[Path, typer.Option(help="Folder for attention_numbers.json.")] = Path("results"),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Of random inputs.")] = 0,
    figure: Annotated[
        Path | None,
        typer.Option(help="Figure of the designed heads, if wanted: .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Measure every number of the explanation of attention, beside the expected one.

    Writes attention_numbers.json to the folder OUT: a list of records, each with name,
    expected, measured, tolerance and ok, and with table, unit and note. With --figure also draws
    the heads designed by hand. No model is needed.

    Exit code: 0 when every number is as expected, 1 when one is not (the file is there all
    the same), 2 for a mistake in the call.
    """
    from interp import InputError, files
    from interp.course import costs, numbers, records

    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"figure must end in .png, .svg or .pdf, got {figure.name!r}")
    with files.staged(out) as scratch:
        with command.progress("measuring"):
            measured = [*numbers.numbers(seed), *costs.costs(seed)]
        text = json.dumps(
            [record.to_json() for record in measured], indent=1, ensure_ascii=False, allow_nan=False
        )
        (scratch / "attention_numbers.json").write_text(text + "\n", encoding="utf-8")
    if figure is not None:
        from interp.course.designed import EXAMPLE, patterns
        from interp.show.figures.designed import designed_heads
        from interp.show.figures.style import save_figure

        with files.staged(figure.parent) as scratch:
            save_figure(designed_heads(EXAMPLE.words, patterns(), window=4), scratch / figure.name)
    command.show(*records.lines(measured), f"wrote attention_numbers.json to {out}")
    if not all(record.ok for record in measured):
        raise typer.Exit(1)


if __name__ == "__main__":
    command.run(main)
