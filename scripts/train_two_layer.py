"""Train a two-layer model of attention alone until it finds induction by itself.

Watches every head on the way and draws when the heads of the circuit come about.
"""

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from interp import command

MODEL = ("config.json", "generation_config.json", "model.safetensors")
"""The files of a model without a tokenizer."""


def main(
    out: Annotated[
        Path, typer.Option(help="Folder for the model, its record and the figure.")
    ] = Path("results/two-layer"),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Of all luck.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 3000,
    period: Annotated[
        str,
        typer.Option(
            help="varying; or, as controls, fixed (one for all rows) or none (no repeat)."
        ),
    ] = "varying",
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a finished run, to be drawn beside this one; any number."),
    ] = None,
    format: Annotated[str, typer.Option(help="Of the figure: png, svg, pdf.")] = "png,svg",
) -> None:
    """Train a two-layer model of attention alone until it finds induction by itself.

    Writes to the folder OUT: the model (config.json, model.safetensors; load it with
    interp.load_model), training.json (settings; losses in nats and every head's scores on the
    way; the labels of its heads at the end), the figure phase_change, and checkpoint.safetensors.
    The same command goes on from that checkpoint if it was stopped, and with more STEPS if it
    was not; the result is the same to the bit.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    from interp.circuits import checkpoint
    from interp.circuits.training import LOOK_EVERY, SAVE_EVERY, Recipe
    from interp.errors import InputError

    formats = command.listed(format, ("png", "svg", "pdf"), name="--format")
    recipe = Recipe(period=period, seed=seed)
    if len(beside or []) > 2:
        raise InputError(f"--beside must name at most 2 folders, got {len(beside or [])}")
    pictures = (f"phase_change.{ending}" for ending in (*formats, "json"))
    for name in (checkpoint.FILE, checkpoint.RECORD, *MODEL, *pictures):
        if (out / name).is_dir():
            raise InputError(f"{out / name} must be a file, got a folder of that name")
    others = [checkpoint.record(folder) for folder in beside or []]

    import torch

    import interp
    from interp import files, models
    from interp.show import figures as plots

    torch.set_num_threads(1)  # The same numbers on any number of cores, and hardly slower.
    model = models.attention_only(
        n_ids=recipe.vocabulary + 1,
        n_ctx=recipe.length,
        d_model=recipe.width,
        n_heads=recipe.heads,
        n_layers=2,
        seed=seed,
    )
    run = checkpoint.resumed(model, recipe, out)
    if run.step > steps:
        raise InputError(f"--steps must be at least {run.step}, as {out} has, got {steps}")
    with command.progress(f"training from step {run.step}") as step:
        try:
            while run.step < steps:
                if run.step % LOOK_EVERY == 0:
                    run.look()
                    step.advance(run.step, steps)
                run.advance()
                if run.step % SAVE_EVERY == 0 or run.step == steps:
                    checkpoint.save(run, out)
        except KeyboardInterrupt:
            kept = f"{out} keeps the last checkpoint, and the same command goes on from there"
            raise KeyboardInterrupt(kept) from None
        run.look()
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
                "versions": {name: version(name) for name in ("interp", "torch", "transformers")},
            }
            text = json.dumps(record, allow_nan=False)
            (scratch / checkpoint.RECORD).write_text(text + "\n", encoding="utf-8")
            if others:
                together = json.dumps({"runs": [record, *others]}, allow_nan=False)
                (scratch / "phase_change.json").write_text(together + "\n", encoding="utf-8")
            step("drawing")
            figure = plots.phase_change([record, *others])
            for ending in formats:
                plots.save_figure(figure, scratch / f"phase_change.{ending}")
    last = run.looks[-1]
    command.show(f"after {steps} steps: loss on new tokens {last['first_copy']} nats")
    if last["second_copy"] is not None:
        command.show(f"on repeats {last['second_copy']} nats")
    for label in ("previous token", "induction"):
        command.show(f"{label}: {', '.join(map(str, scan.heads(label))) or 'no head'}")
    command.show(f"wrote the model, {checkpoint.RECORD} and phase_change to {out}")


if __name__ == "__main__":
    command.run(main)
