"""Train a small attention-only model until it finds induction by itself.

Writes to the folder OUT the model (config.json, model.safetensors; interp.load_model reads it),
training.json (settings, losses in nats and every head's scores during training, labels at the end),
the figure phase_change, and checkpoint.safetensors. With CHECKPOINTS it also writes the models on
the way, which interp sweep scans. After a stop the same command resumes from the
checkpoint, and with more STEPS it continues a finished run; the result is the same to the bit.

Examples:
    interp train --steps 3000 --out two-layer
    interp train --period fixed --compare two-layer --out fixed
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from interp import command

LOOK_EVERY = 25
"""Steps between two looks at the model."""

SAVE_EVERY = 100
"""Steps between two checkpoints; a multiple of `LOOK_EVERY`."""


def main(
    drawing: command.Drawing,
    out: Annotated[
        Path, typer.Option(help="Folder for the model, its record and the figure.")
    ] = Path("results/two-layer"),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Random seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3000,
    period: Annotated[
        str,
        typer.Option(help="varying, or as controls fixed (one for all rows) or none (no repeat)."),
    ] = "varying",
    width: Annotated[
        int, typer.Option(min=4, help="Width of the residual stream, a multiple of 4.")
    ] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Layers; induction takes two.")] = 2,
    checkpoints: Annotated[
        int,
        typer.Option(
            min=0, help="Number of models on the way, as folders OUT/checkpoint-STEP for a sweep."
        ),
    ] = 0,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a finished run to draw next to this one; at most two."),
    ] = None,
) -> None:
    from interp.circuits import checkpoint
    from interp.circuits.training import Recipe
    from interp.errors import InputError

    recipe = Recipe(period=cast(Any, period), seed=seed, width=width, layers=layers)
    if len(compare or []) > 2:
        raise InputError(f"--compare must name at most 2 folders, got {len(compare or [])}")
    for name in ("config.json", "model.safetensors", checkpoint.FILE, checkpoint.RECORD):
        if (out / name).is_dir():  # Found now rather than after the training.
            raise InputError(f"{out / name} must be a file, got a folder of that name")
    others = [checkpoint.record(folder) for folder in compare or []]

    import torch

    import interp
    from interp import files, models
    from interp.show import figures as plots

    torch.set_num_threads(1)  # The same numbers on any number of cores, and as fast.
    model = models.attention_only(
        n_ids=recipe.vocabulary + 1,
        n_ctx=recipe.length,
        d_model=recipe.width,
        n_heads=recipe.heads,
        n_layers=recipe.layers,
        seed=seed,
    )
    run = checkpoint.resumed(model, recipe, out)
    if run.step > steps:
        raise InputError(f"--steps must be at least {run.step}, as {out} has, got {steps}")

    def keep() -> None:
        if checkpoints and run.step % max(1, steps // checkpoints) == 0:
            folder = out / f"checkpoint-{run.step}"
            models.save(interp.load_model(model, name=folder.name), folder)

    with command.progress(f"training from step {run.step}") as step:
        try:
            while run.step < steps:
                keep()
                if run.step % LOOK_EVERY == 0:
                    run.look()
                    step.advance(run.step, steps)
                run.advance()
                if run.step % SAVE_EVERY == 0 or run.step == steps:
                    checkpoint.save(run, out)
        except KeyboardInterrupt:
            message = f"{out} keeps the last checkpoint; the same command resumes from it"
            raise KeyboardInterrupt(message) from None
        run.look()
        keep()
        with files.staged(out) as scratch:
            step("scanning")
            opened = interp.load_model(model)
            models.save(opened, scratch)
            scan = interp.scan_heads(opened)
            columns = ["name", "label", "previous_token", "induction", "induction_logit_effect"]
            record = {
                "recipe": asdict(recipe),
                "steps": steps,
                "looks": run.looks,
                "heads": json.loads(scan.to_frame()[columns].to_json(orient="records") or ""),
                "versions": files.versions(),
            }
            files.write_json(scratch / checkpoint.RECORD, record, indent=None)
            if others:
                runs = {"runs": [record, *others]}
                files.write_json(scratch / "phase_change.json", runs, indent=None)
            step("drawing")
            figure = plots.phase_change([record, *others])
            plots.save_figures({"phase_change": figure}, scratch, drawing.formats)
    last = run.looks[-1]
    command.show(f"after {steps} steps: loss on new tokens {last['first_copy']} nats")
    if last["second_copy"] is not None:
        command.show(f"on repeats {last['second_copy']} nats")
    for label in ("previous token", "induction"):
        command.show(f"{label}: {', '.join(map(str, scan.heads(label))) or 'no head'}")
    command.show(f"wrote the model, {checkpoint.RECORD} and phase_change to {out}")
