"""Measure how head scores and labels depend on seed, length, BOS and number format.

Scans the model under each condition in turn; the first is a scan as `interp heads` makes
it. Writes sensitivity.csv (a row per head and kind that some condition labels: its score under
each condition, the spread, and the conditions under which the label flips) and a figure to the
folder OUT. Conditions that do not fit the model's context are left out and reported.

Examples:
    interp sensitivity --seeds 3
    interp sensitivity --model gpt2 --lengths 65,129
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp import command


def main(
    source: command.Source,
    drawing: command.Drawing,
    out: Annotated[Path, typer.Option(help="Folder for sensitivity.csv and the figure.")] = Path(
        "results"
    ),
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds.")] = 5,
    rows: Annotated[int, typer.Option(min=2, help="Rows of random tokens in a scan.")] = 16,
    lengths: Annotated[
        str, typer.Option(help="Tokens in a row, comma-separated; each length has other periods.")
    ] = "65,129,257",
) -> None:
    import interp
    from interp import InputError, files
    from interp.kinds import probes
    from interp.scan.plan import row_length
    from interp.show import figures as plots
    from interp.trust.sensitivity import compare_scans

    sizes = command.whole_numbers(lengths, name="--lengths", least=12)
    with files.staged(out) as scratch, command.progress(f"loading {source.model}") as step:
        opened = interp.load_model(**vars(source))
        usual = row_length(opened)
        if (longest := max(sizes)) > opened.n_ctx:
            raise InputError(
                f"lengths must fit the model's context of {opened.n_ctx} tokens, got {longest}"
            )
        conditions: dict[str, dict[str, Any]] = {f"seed {i}": {"seed": i} for i in range(seeds)}
        conditions |= {f"{size} tokens": {"length": size} for size in sizes if size != usual}
        if opened.bos is not None:
            conditions |= {"no BOS": {"bos": 0}}
            if usual >= probes.SHORTEST + 2:
                conditions |= {"two BOS": {"bos": 2}}
        conditions |= {"bfloat16": {}}
        scans = {}
        for name, options in conditions.items():
            step(f"scanning: {name}")
            half = {**vars(source), "dtype": name}
            scanned = interp.load_model(**half) if name == "bfloat16" else opened
            scans[name] = interp.scan_heads(
                scanned, rows=rows, quick=True, progress=step.advance, **options
            )
        step("drawing")
        table = compare_scans(scans)
        table.to_csv(scratch / "sensitivity.csv", index=False, float_format="%.4f")
        drawn = bool((table["kind"] != "sink").any())
        if drawn:
            figure = plots.sensitivity_chart(table, opened.name)
            plots.save_figures({"sensitivity": figure}, scratch, drawing.formats)
        written = sorted(path.name for path in scratch.iterdir())
    flips = table.loc[table["flips"] != ""]
    command.show(
        f"{opened.name}: {len(flips)} of {len(table)} labels flip over {len(scans)} conditions,"
        f" {int((flips['kind'] == 'sink').sum())} of them sinks"
    )
    for row in flips.to_dict("records"):
        command.show(
            f"{row['name']} {row['kind'].replace('_', ' ')} flips: {row['flips']}"
            f" (scores {row['lowest']:.2f} to {row['highest']:.2f})"
        )
    if opened.bos is not None and "two BOS" not in scans:
        command.show(f"left out: two BOS: a context of {opened.n_ctx} tokens is too short for it")
    if not drawn:
        command.show("no figure: no head has a label other than sink under any condition")
    written = f"wrote {', '.join(written)} to {out}"
    command.show(written, result=table.to_dict("records"))
