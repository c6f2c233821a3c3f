"""How much do head scores depend on seed, length, BOS and number format?

Scans a model under each condition in turn, writes every score with its spread and the labels
that flip, and draws them.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp import command


def main(
    model: command.ModelName = "SmolLM2-135M",
    out: Annotated[Path, typer.Option(help="Folder for sensitivity.csv and the figure.")] = Path(
        "results"
    ),
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds.")] = 5,
    rows: Annotated[int, typer.Option(min=2, help="Rows of random tokens in a scan.")] = 16,
    lengths: Annotated[
        str, typer.Option(help="Tokens in a row, separated by commas: each has other periods.")
    ] = "65,129,257",
    format: Annotated[str, typer.Option(help="Of the figure: png, svg, pdf.")] = "png,svg",
) -> None:
    """Measure how head scores depend on seed, length and period, BOS and number format.

    The first condition is a scan as find_induction_heads.py makes it. Writes sensitivity.csv
    (one row per head and kind that holds somewhere, its score under each condition, the
    spread, and under which conditions the label flips) and a figure to the folder OUT. A
    condition that the model's context is too short for is left out, and said to be.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import InputError, files
    from interp.kinds import probes as tokens
    from interp.show import figures as plots
    from interp.trust.sensitivity import compare_scans

    formats = command.listed(format, ("png", "svg", "pdf"), name="--format")
    sizes = command.whole_numbers(lengths, name="--lengths", least=12)
    with files.staged(out) as scratch:
        scans = {}
        with command.progress(f"loading {model}") as step:
            opened = interp.load_model(model)
            usual = min(129, opened.n_ctx)
            if (longest := max(sizes)) > opened.n_ctx:
                raise InputError(
                    f"lengths must fit the model's context of {opened.n_ctx} tokens, got {longest}"
                )
            conditions: dict[str, dict[str, Any]] = {
                f"seed {seed}": {"seed": seed} for seed in range(seeds)
            }
            conditions |= {f"{n} tokens": {"length": n} for n in sizes if n != usual}
            if opened.bos is not None:
                conditions |= {"no BOS": {"bos": 0}}
                if usual >= tokens.SHORTEST + 2:
                    conditions |= {"two BOS": {"bos": 2}}
            for name, options in conditions.items():
                step(f"scanning: {name}")
                scans[name] = interp.scan_heads(
                    opened, rows=rows, quick=True, progress=step.advance, **options
                )
            step("scanning: bfloat16")
            other = interp.load_model(model, dtype="bfloat16")
            scans["bfloat16"] = interp.scan_heads(
                other, rows=rows, quick=True, progress=step.advance
            )
            step("drawing")
            table = compare_scans(scans)
            table.to_csv(scratch / "sensitivity.csv", index=False, float_format="%.4f")
            drawn = bool((table["kind"] != "sink").any())
            for ending in formats if drawn else ():
                figure = plots.sensitivity_chart(table, opened.name)
                plots.save_figure(figure, scratch / f"sensitivity.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    flips = table.loc[table["flips"] != ""]
    command.show(
        f"{opened.name}: of {len(table)} labels that hold under some of {len(scans)} conditions"
        f" {len(flips)} flip, {int((flips['kind'] == 'sink').sum())} of them sinks"
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
    command.show(f"wrote {', '.join(written)} to {out}")


if __name__ == "__main__":
    command.run(main)
