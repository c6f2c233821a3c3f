"""Measure how often the labels are right, on heads whose kind is known.

Plants heads of every kind and near misses, labels them, and counts; and trains a small model
that fools whoever looks for a stripe on rows of one period.
"""

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from interp import command

FEWEST = 336
"""As `interp.trust.accuracy.FEWEST`, which takes seconds to import."""

TABLE = Path(__file__).parent.parent / "figures" / "heads.csv"


def main(
    seed: command.Seed = 0,
    out: Annotated[Path, typer.Option(help="File to write, ending in .json.")] = Path(
        "results/accuracy.json"
    ),
    heads: Annotated[
        int,
        typer.Option(
            min=FEWEST,
            help="Heads to plant and label: it takes 336 to see every kind at every strength.",
        ),
    ] = 1500,
    table: Annotated[
        Path, typer.Option(help="Table of a scan, whose heads say how strong real heads are.")
    ] = TABLE,
    figure: Annotated[
        Path | None, typer.Option(help="Figure of the curve, if wanted: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Measure how often the labels are right, on heads whose kind is known.

    Plants HEADS heads to report on: half are of a kind, as strong as the heads with that label in
    TABLE, half are near misses. Half as many others are planted to choose a threshold, and half
    as many for the curve by strength. Then trains a small model on one fixed period, whose stripe
    is position alone. Writes accuracy, confusion, by_strength, near_misses, chosen, shortcut and
    more to the file OUT.

    Exit code: 0 when the file is there and whole, 2 for a mistake in the call.
    """
    from interp import HeadScan, InputError, files
    from interp.show import figures as plots
    from interp.trust import accuracy, shortcut

    if out.suffix != ".json":
        raise InputError(f"out must end in .json, got {out.name!r}")
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"figure must end in .png, .svg or .pdf, got {figure.name!r}")
    with command.about("--table"):
        strengths = accuracy.real_strengths(HeadScan.load(table).frame.to_dict("records"))
    with files.staged(out.parent) as scratch:
        with command.progress("planting heads") as step:
            result = accuracy.measure_accuracy(
                strengths, heads=heads, seed=seed, progress=step.advance
            )
            step("training on one period")
            fooling = shortcut.positional_shortcut(seed=seed)
        result["strengths"] = strengths
        result["shortcut"] = {**asdict(fooling), "head": str(fooling.head)}
        result["made_by"] = {
            "seed": seed,
            "heads": heads,
            "table": table.name,
            "versions": {name: version(name) for name in ("interp", "torch")},
        }
        text = json.dumps(result, indent=1, allow_nan=False)
        (scratch / out.name).write_text(text + "\n", encoding="utf-8")
    if figure is not None:
        with files.staged(figure.parent) as scratch:
            plots.save_figure(plots.accuracy_curve(result), scratch / figure.name)
    command.show(*accuracy.lines(result), *shortcut.lines(fooling), f"wrote {out}")


if __name__ == "__main__":
    command.run(main)
