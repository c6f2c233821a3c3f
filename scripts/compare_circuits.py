"""Compare the induction circuit of a model with one built by hand and one learned small.

Measures all of them alike, prints the measures side by side and the heads that feed the model's
induction heads, and writes all numbers and two figures.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp import command

if TYPE_CHECKING:
    from rich.table import Table

    from interp.circuits.compare import Circuit, Comparison


def main(
    model: command.ModelName = "SmolLM2-135M",
    out: Annotated[
        Path, typer.Option(help="Folder for comparison.json and the two figures.")
    ] = Path("results"),
    seed: command.Seed = 0,
    rows: Annotated[int, typer.Option(min=2, help="Rows of random tokens for each measure.")] = 8,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
    format: Annotated[str, typer.Option(help="Of the figures: png, svg, pdf.")] = "png,svg",
) -> None:
    """Compare the induction circuit of MODEL with one built by hand and one learned small.

    The columns are two circuits with weights set by hand (absolute and rotary positions), a
    two-layer model trained on repeated tokens, and MODEL. Writes comparison.json, and as figures
    circuit_patterns (both heads of each circuit) and circuit_diagram (which earlier heads feed
    MODEL's induction heads) to the folder OUT. Where MODEL has no induction head there is no
    diagram.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import files
    from interp.circuits import compare, learned
    from interp.show import figures as plots

    formats = command.listed(format, ("png", "svg", "pdf"), name="--format")
    with files.staged(out) as scratch:
        with command.progress(f"loading {model}") as step:
            asked = interp.load_model(model, dtype=dtype, device=device)
            models = {
                "absolute": interp.build_circuit("absolute", 128, 129, seed=seed),
                "rotary": interp.build_circuit("rotary", 128, 129, seed=seed),
                "learned": interp.load_model(learned.FOLDER),
                "real": asked,
            }
            found = compare.compare_circuits(models, seed=seed, rows=rows, progress=step)
            step("drawing")
            found.save(scratch / "comparison.json")
            for name, figure in plots.comparison_figures(found.to_json()).items():
                for ending in formats:
                    plots.save_figure(figure, scratch / f"{name}.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*_lines(found))
    for name in ("circuit_patterns", "circuit_diagram"):
        if not any(file.startswith(name) for file in written):
            command.show(f"no {name}: nothing to draw; one in {out} is of an earlier run")
    command.show(f"wrote {', '.join(written)} to {out}")


def _lines(found: "Comparison") -> Iterator["str | Table"]:
    from interp.circuits.compare import MEASURES
    from interp.scan.report import plain_table

    table = plain_table("measure", *(f">{name}" for name in found.circuits))
    table.add_row("earlier head", *(_head(c, "previous_token") for c in found.circuits.values()))
    table.add_row("induction head", *(_head(c, "induction") for c in found.circuits.values()))
    for name, words in MEASURES.items():
        values = [circuit.measures.get(name) for circuit in found.circuits.values()]
        table.add_row(words, *("-" if v is None else _number(name, v) for v in values))
    yield table
    yield "absolute, rotary: built by hand; learned: a two-layer model; real: the one asked for"
    for column, circuit in found.circuits.items():
        for reason in dict.fromkeys(circuit.left_out.values()):
            yield f"left out of {column}: {reason}"
    *_, circuit = found.circuits.values()
    yield from _feeding(circuit)


def _feeding(circuit: "Circuit") -> Iterator[str]:
    """Which heads feed the model's induction heads, and which might but do not."""
    if not circuit.edges:
        return
    yield f"\n{circuit.model}: what an induction head loses without an earlier head in its keys"
    keys = [edge for edge in circuit.edges if edge.path == "K"]
    for target in circuit.found["induction"]:
        own = sorted((e for e in keys if str(e.to) == target), key=lambda e: e.change("stripe"))
        told = ", ".join(
            f"{e.source} {e.stripe_before:.2f} to {e.stripe_after:.2f}" for e in own[:3]
        )
        yield f"  {target}: {told}"
    yield "previous-token heads, and the most that any induction head loses without them there"
    for name, score in circuit.found["previous token"].items():
        own = [edge.change("stripe") for edge in keys if str(edge.source) == name]
        yield f"  {name} ({score:.2f}): " + (f"{min(own):+.2f}" if own else "comes after them all")


def _head(circuit: "Circuit", role: str) -> str:
    return str(circuit.heads.get(role, "-"))


def _number(name: str, value: float) -> str:
    return f"{value:.0f}" if name.endswith("_rank") else f"{value:.3f}"


if __name__ == "__main__":
    command.run(main)
