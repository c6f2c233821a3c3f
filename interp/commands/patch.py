"""Measure what each attention head does in a task, by patching.

Takes pairs of a clean and a corrupted prompt, of a TASK or of your own PAIRS, reports how well the
model solves them, puts each head's activation in the clean prompts into the run of the corrupted
ones, and writes the effects with their intervals to patch.csv and patch.json in the folder OUT, and
a map of all heads to head_map. An effect of 1 brings the clean answer back, 0 changes nothing.

Examples:
    interp patch --task ioi
    interp patch --pairs pairs.jsonl --what v --position -1 --model gpt2
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from interp import command

Tasks = Literal["ioi", "agreement", "pronouns", "successors", "capitals", "repeats"]


def main(
    source: command.Source,
    drawing: command.Drawing,
    task: Annotated[Tasks, typer.Option(help="Task whose pairs are patched.")] = "ioi",
    pairs: command.PairsFile = None,
    number: Annotated[int, typer.Option(min=1, help="Number of pairs of the task.")] = 16,
    metric: Annotated[
        Literal["logit_difference", "loss", "probability"], typer.Option(help="Metric.")
    ] = "logit_difference",
    what: Annotated[
        Literal["z", "q", "k", "v", "pattern"],
        typer.Option(help="What is patched: a head's output, queries, keys, values or attention."),
    ] = "z",
    position: Annotated[
        int | None,
        typer.Option(help="Token where it is patched, from the end if negative.  [default: all]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for patch.csv, patch.json, head_map.")] = (
        Path("results")
    ),
    top: Annotated[int, typer.Option(min=1, help="Heads to print and to name on the map.")] = 8,
    seed: command.Seed = 0,
) -> None:
    import interp
    from interp import files
    from interp.effects import metrics
    from interp.models import load

    with files.staged(out) as scratch, command.progress(f"loading {source.model}") as step:
        model = load.load_for(out, **vars(source))
        chosen = task_of(model, task, pairs, number, seed)
        solved = chosen.solved(model)
        step(f"patching {len(chosen)} pairs")
        effects = interp.patch(
            model,
            chosen.clean,
            chosen.corrupted,
            getattr(metrics, metric)(chosen),
            what,
            position=position,
            seed=seed,
            progress=step.advance,
        )
        effects.made_by.update(task=chosen.name, solved=solved)
        effects.save(scratch / "patch.json")
        effects.to_frame().to_csv(scratch / "patch.csv", index=False, lineterminator="\n")
        from interp.show import figures

        figures.save_figures(
            {"head_map": figures.head_map(effects, top=top)}, scratch, drawing.formats
        )
    lines = (
        f"{row['name']} {row['effect']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
        for row in effects.strongest(top).to_dict("records")
    )
    command.show(
        f"{model.name} solves {solved:.0%} of {len(chosen)} pairs ({chosen.name})",
        f"{effects.made_by['unit']}, with 95 % interval over pairs:",
        *lines,
        f"wrote patch.csv, patch.json and head_map to {out}",
        result=effects,
    )


def task_of(model: Any, task: Tasks, pairs: Path | None, number: int, seed: int) -> Any:
    """The pairs of the file, or else so many of the task."""
    from interp import tasks

    if pairs is not None:
        return tasks.from_file(model, pairs)
    return getattr(tasks, task)(model, number, seed=seed)
