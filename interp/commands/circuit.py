"""Find the edges of a model that carry a task, and how faithful they are alone.

Scores every edge between embedding, heads, MLPs and logits by gradients, runs the model with the
best edges alone under three ablations, next to random edges, and resamples the prompts. Writes
circuit.json, a graph of the strongest edges and the faithfulness by size to the folder OUT.

Examples:
    interp circuit --task ioi --number 20
    interp circuit --model gpt2 --pairs pairs.jsonl
"""

from pathlib import Path
from typing import Annotated

import typer

from interp import command
from interp.commands.patch import Tasks, task_of


def main(
    source: command.Source,
    drawing: command.Drawing,
    out: Annotated[Path, typer.Option(help="Folder for circuit.json and figures.")] = Path(
        "results"
    ),
    task: Annotated[Tasks, typer.Option(help="Task whose pairs are run.")] = "ioi",
    pairs: command.PairsFile = None,
    number: Annotated[int, typer.Option(min=1, help="Number of pairs of the task.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the integrated gradients.")] = 5,
    edges: Annotated[int, typer.Option(min=1, help="Edges in the graph at most.")] = 60,
    seed: command.Seed = 0,
) -> None:
    import interp
    from interp import files
    from interp.models import load
    from interp.show import figures

    with files.staged(out) as scratch, command.progress(f"loading {source.model}") as step:
        model = load.load_for(out / "circuit.json", **vars(source))
        chosen = task_of(model, task, pairs, number, seed)
        solved = chosen.solved(model)
        step("scoring and running edges")
        found = interp.find_circuit(model, chosen, steps=steps, seed=seed, progress=step.advance)
        found.save(scratch / "circuit.json")
        drawn = {
            "circuit": figures.circuit_graph(found, edges),
            "faithfulness": figures.faithfulness_curve(found),
        }
        figures.save_figures(drawn, scratch, drawing.formats)
    areas = ", ".join(f"{how} {area:.3f}" for how, area in found.cmd.items())
    command.show(
        f"{chosen.name}: {model.name} prefers the right answer in {solved:.0%} of the pairs",
        repr(found),
        f"CMD: {areas}",
        f"wrote circuit.json, circuit and faithfulness to {out}",
        result=found,
    )
