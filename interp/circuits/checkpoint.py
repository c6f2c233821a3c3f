"""A training run in a file, complete at any time, to continue from.

One safetensors file holds weights, optimiser, generator and measurements, so that they are always
of the same step. It replaces the previous file in one move.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from interp.circuits.training import Recipe, Run
from interp.errors import InputError, reading
from interp.files import content_of, staged

FILE = "checkpoint.safetensors"

RECORD = "training.json"
"""The record of a finished run, in the same folder: see `scripts/train_two_layer.py`."""


def save(run: Run, folder: str | os.PathLike[str]) -> None:
    """Write `run` to `folder`, replacing its previous checkpoint."""
    content = {"recipe": asdict(run.recipe), "looks": run.looks}
    with staged(folder) as scratch:
        save_file(run.state(), scratch / FILE, metadata={"run": json.dumps(content)})


def resumed(model: nn.Module, recipe: Recipe, folder: str | os.PathLike[str]) -> Run:
    """The run of this recipe that `save` wrote to `folder`, or a new one if there is none.

    The model, of the recipe's shape, gets the run's weights. A file of another recipe is refused.
    """
    run, path = Run(model, recipe), Path(folder) / FILE
    if not path.exists():
        return run
    with reading(path, "a whole checkpoint of a run"):
        with safe_open(path, framework="pt") as file:
            content = json.loads(file.metadata()["run"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        ours, theirs = asdict(recipe), asdict(Recipe(**content["recipe"]))
        differing = [name for name in ours | theirs if theirs.get(name) != ours.get(name)]
        if differing:
            words = ", ".join(f"{n} {theirs.get(n)}, not {ours.get(n)}" for n in differing)
            raise InputError(f"folder must hold no other run, got {words}: choose another folder")
        run.looks = list(content["looks"])
        run.restore(state)
    return run


def record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The record of the finished run in `folder`."""
    path = Path(folder) / RECORD
    with reading(path, "the record of a finished run"):
        content = json.loads(content_of(path))
        Recipe(**content["recipe"])
        int(content["looks"][-1]["step"])
    return content
