"""Measure how often the labels are right, on heads whose kind is known.

Plants HEADS heads: half are of a kind, as strong as the heads with that label in TABLE, half are
near misses. Half as many others serve to choose a threshold, and as many again for the curve by
strength. Then trains a small model on one fixed period, whose stripe is position alone. Writes
accuracy.json (accuracy, confusion, by_strength, near_misses, chosen, shortcut and more) and the
figure accuracy to the folder OUT.

With KINDS it writes kinds.json instead: for each of these kinds, your own too, the heads of TABLE
that carry it and how often HEADS planted heads and near misses are labelled right.

Examples:
    interp accuracy --table results/heads.csv
    interp accuracy --table results/heads.csv --kinds my_kinds.py:last_comma
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from interp import command

FEWEST = 336
"""As `interp.trust.accuracy.FEWEST`, which takes seconds to import."""

TABLE = Path(__file__).parents[2] / "figures" / "heads.csv"


def main(
    drawing: command.Drawing,
    seed: command.Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for accuracy.json and the figure.")] = Path(
        "results"
    ),
    heads: Annotated[
        int,
        typer.Option(min=FEWEST, help="Number of heads: 336 have every kind at every strength."),
    ] = 1500,
    table: Annotated[
        Path, typer.Option(help="Table of a scan, which gives the strengths of real heads.")
    ] = TABLE,
    kinds: command.Kinds = None,
) -> None:
    from interp import HeadScan, files
    from interp.show import figures as plots
    from interp.trust import accuracy, any_kind, shortcut

    if kinds is not None:
        with command.about("--table"):
            scan = HeadScan.load(table, kinds=kinds)
        with files.staged(out) as scratch, command.progress("planting heads") as step:
            found = any_kind.describe_kinds(scan, heads=heads, seed=seed, progress=step.advance)
            made_by = {"heads": heads, "table": table.name, "versions": files.versions()}
            any_kind.Report({**found, "made_by": made_by}).save(scratch / "kinds.json")
        for row in found["kinds"]:
            right = f"{row['planted']['right']} of {row['planted']['heads']} planted heads right"
            command.show(f"{row['name']}: {row['heads']} heads; {right}")
        command.show(f"wrote kinds.json to {out}", result=found)
        return
    with command.about("--table"):
        strengths = accuracy.real_strengths(HeadScan.load(table).frame.to_dict("records"))
    with files.staged(out) as scratch, command.progress("planting heads") as step:
        result = accuracy.measure_accuracy(strengths, heads=heads, seed=seed, progress=step.advance)
        step("training on one period")
        fooling = shortcut.positional_shortcut(seed=seed)
        made_by = {"seed": seed, "heads": heads, "table": table.name, "versions": files.versions()}
        more = {"shortcut": {**asdict(fooling), "head": str(fooling.head)}, "made_by": made_by}
        result = accuracy.Accuracy({**result, "strengths": strengths, **more})
        result.save(scratch / "accuracy.json")
        plots.save_figures({"accuracy": plots.accuracy_curve(result)}, scratch, drawing.formats)
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*accuracy.lines(result), *shortcut.lines(fooling), result=result)
    command.show(f"wrote {', '.join(written)} to {out}")
