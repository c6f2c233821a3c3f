"""Write one page to play with attention: scores, masks, weights, heads, a circuit, cost.

The page is self-contained: it needs no network and no build, works with the keyboard and on a
phone. It computes as it is moved, by the formulas of interp/attention.py.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from interp import command

TABLE = Path(__file__).parent.parent / "figures" / "heads.json"


def main(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("results/lab.html"),
    model: command.ModelName = "SmolLM2-135M",
    scan: Annotated[
        Path | None,
        typer.Option(
            help="Table of this model's heads from find_induction_heads.py (heads.json,"
            " heads.parquet, heads.csv).  [default: the one in figures/, for the default model;"
            " made anew for another]"
        ),
    ] = None,
    zoo: Annotated[
        bool, typer.Option(help="With the heads of a real model, which has to be loaded.")
    ] = True,
    seed: command.Seed = 0,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
) -> None:
    """Write one page to play with attention: scores, masks, weights, heads, a circuit, cost.

    Exit code: 0 when the file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import files

    if out.suffix != ".html":
        raise interp.InputError(f"out must be a file name that ends in .html, got {out}")
    if scan is not None and not zoo:
        raise interp.InputError("--scan must stand without --no-zoo, got both")
    given = scan or (TABLE if model == "SmolLM2-135M" and TABLE.exists() else None)
    with command.about("--scan"):
        table = interp.HeadScan.load(given) if given and zoo else None
    # Late: a mistake in the call need not wait for transformers.
    from interp.course import lab, stepped
    from interp.show.pages import zoo as real

    with files.staged(out.parent) as scratch:
        with command.progress("running the circuit") as step:
            parts: dict[str, Any] = {"circuit": stepped.circuit()}
            if zoo:
                step(f"loading {model}")
                opened = interp.load_model(model, dtype=dtype, device=device)
                if table is None:
                    step(f"scanning {opened.name}")
                    table = interp.scan_heads(opened, seed=seed, progress=step.advance)
                elif (of := table.made_by.get("model", opened.name)) != opened.name:
                    raise interp.InputError(f"--scan must be of {opened.name}, got one of {of}")
                parts["zoo"] = real.zoo(opened, table, seed=seed)
        page = lab.lab(parts)
        (scratch / out.name).write_text(page, encoding="utf-8", newline="\n")
    command.show(f"wrote {out}, {len(page) / 1e6:.2f} million bytes")


if __name__ == "__main__":
    command.run(main)
