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
) -> None:
    """Measure every number of the explanation of attention, beside the expected one.

    Writes attention_numbers.json to the folder OUT: a list of records, each with name,
    expected, measured, tolerance and ok, and with table, unit and note. No model is needed.

    Exit code: 0 when every number is as expected, 1 when one is not (the file is there all
    the same), 2 for a mistake in the call.
    """
    from interp import costs, files, numbers, records

    with files.staged(out) as scratch:
        with command.progress("measuring"):
            measured = [*numbers.numbers(seed), *costs.costs(seed)]
        text = json.dumps(
            [record.to_json() for record in measured], indent=1, ensure_ascii=False, allow_nan=False
        )
        (scratch / "attention_numbers.json").write_text(text + "\n", encoding="utf-8")
    command.show(*records.lines(measured), f"wrote attention_numbers.json to {out}")
    if not all(record.ok for record in measured):
        raise typer.Exit(1)


if __name__ == "__main__":
    command.run(main)
