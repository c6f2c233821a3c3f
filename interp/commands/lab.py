"""Write the attention lab: an interactive page on scores, masks, weights, heads and cost.

The page, lab.html, is self-contained: it needs no network, works with the keyboard and on a
phone, and computes by the formulas of interp/attention.

Examples:
    interp lab --out lab
    interp lab --no-zoo
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp import command

TABLE = Path(__file__).parents[2] / "figures" / "heads.json"


def main(
    source: command.Source,
    out: Annotated[Path, typer.Option(help="Folder for lab.html.")] = Path("results"),
    scan: Annotated[
        Path | None,
        typer.Option(
            help="Table of this model's heads that `interp heads` wrote.  [default: the"
            " one in figures/ for the default model, a new scan for another]"
        ),
    ] = None,
    zoo: Annotated[bool, typer.Option(help="Show heads of the model, which is loaded.")] = True,
    seed: command.Seed = 0,
) -> None:
    import interp
    from interp import files

    if scan is not None and not zoo:
        raise interp.InputError("--scan must be left out with --no-zoo, got both")
    given = scan or (TABLE if source.model == "SmolLM2-135M" and TABLE.exists() else None)
    with command.about("--scan"):
        table = interp.HeadScan.load(given) if given and zoo else None
    # Late: a mistake in the call is reported without these imports.
    from interp.course import lab, stepped
    from interp.course import zoo as heads
    from interp.scan.record import check_made_by

    with files.staged(out) as scratch, command.progress("running the circuit") as step:
        parts: dict[str, Any] = {"circuit": stepped.circuit()}
        if zoo:
            step(f"loading {source.model}")
            opened = interp.load_model(**vars(source))
            if table is None:
                step(f"scanning {opened.name}")
                table = interp.scan_heads(opened, seed=seed, progress=step.advance)
            else:
                check_made_by(table.made_by, opened, "scan")
            parts["zoo"] = heads.zoo(opened, table, seed=seed)
        page = lab.lab(parts)
        (scratch / "lab.html").write_text(page, encoding="utf-8", newline="\n")
    command.show(f"wrote lab.html ({len(page) / 1e6:.2f} million bytes) to {out}")
