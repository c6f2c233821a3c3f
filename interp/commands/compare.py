"""Compare a model's induction circuit with circuits built by hand and one learned by a small model.

Measures two hand-built circuits (absolute and rotary positions), a two-layer model trained on
repeated tokens, and MODEL. Prints the measures side by side and the heads that feed MODEL's
induction heads. Writes comparison.json and the figures circuit_patterns (both heads of each
circuit) and circuit_diagram (which earlier heads feed MODEL's induction heads; only if it has
some) to the folder OUT.

Examples:
    interp compare
    interp compare --model gpt2 --rows 16
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
    source: command.Source,
    drawing: command.Drawing,
    out: Annotated[
        Path, typer.Option(help="Folder for comparison.json and the two figures.")
    ] = Path("results"),
    seed: command.Seed = 0,
    rows: Annotated[int, typer.Option(min=2, help="Rows of random tokens for each measure.")] = 8,
) -> None:
    import interp
    from interp import files
    from interp.circuits import compare, learned
    from interp.show import figures as plots

    with files.staged(out) as scratch, command.progress(f"loading {source.model}") as step:
        opened = interp.load_model(**vars(source))
        models = {
            "absolute": interp.build_circuit("absolute", 128, 129, seed=seed),
            "rotary": interp.build_circuit("rotary", 128, 129, seed=seed),
            "learned": interp.load_model(learned.FOLDER),
            "real": opened,
        }
        result = compare.compare_circuits(models, seed=seed, rows=rows, progress=step)
        step("drawing")
        result.save(scratch / "comparison.json")
        plots.save_figures(plots.comparison_figures(result.to_json()), scratch, drawing.formats)
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*_lines(result), result=result)
    for name in ("circuit_patterns", "circuit_diagram"):
        if not any(file.startswith(name) for file in written):
            command.show(f"no {name}: nothing to draw; one in {out} is of an earlier run")
    command.show(f"wrote {', '.join(written)} to {out}")


def _lines(result: "Comparison") -> Iterator["str | Table"]:
    from interp.circuits.compare import MEASURES
    from interp.scan.report import plain_table

    table = plain_table("measure", *(f">{name}" for name in result.circuits))
    table.add_row("earlier head", *(_head(c, "previous_token") for c in result.circuits.values()))
    table.add_row("induction head", *(_head(c, "induction") for c in result.circuits.values()))
    for name, words in MEASURES.items():
        values = [circuit.measures.get(name) for circuit in result.circuits.values()]
        table.add_row(words, *("-" if v is None else _number(name, v) for v in values))
    yield table
    yield "absolute, rotary: built by hand; learned: a trained two-layer model; real: your model"
    for column, circuit in result.circuits.items():
        for reason in dict.fromkeys(circuit.left_out.values()):
            yield f"left out of {column}: {reason}"
    *_, circuit = result.circuits.values()
    yield from _feeding(circuit)


def _feeding(circuit: "Circuit") -> Iterator[str]:
    """The heads that feed the model's induction heads, and previous-token heads that do not."""
    if not circuit.edges:
        return
    yield f"\n{circuit.model}: score of an induction head without an earlier head in its keys"
    keys = [edge for edge in circuit.edges if edge.path == "K"]
    for target in circuit.found["induction"]:
        edges = sorted((e for e in keys if str(e.to) == target), key=lambda e: e.change("stripe"))
        changes = ", ".join(
            f"{e.source} {e.stripe_before:.2f} to {e.stripe_after:.2f}" for e in edges[:3]
        )
        yield f"  {target}: {changes}"
    yield "previous-token heads, and the largest loss of any induction head without them"
    for name, score in circuit.found["previous token"].items():
        changes = [edge.change("stripe") for edge in keys if str(edge.source) == name]
        loss = f"{min(changes):+.2f}" if changes else "no induction head is in a later layer"
        yield f"  {name} ({score:.2f}): {loss}"


def _head(circuit: "Circuit", role: str) -> str:
    return str(circuit.heads.get(role, "-"))


def _number(name: str, value: float) -> str:
    return f"{value:.0f}" if name.endswith("_rank") else f"{value:.3f}"
