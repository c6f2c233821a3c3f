"""A training run in a file: where it stands, whole at any time, to go on from.

One safetensors file holds it all, so that weights, optimiser, luck and what was seen on the way
are always of the same step. It replaces the one before in one move.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from interp.circuits.training import Recipe, Run
from interp.errors import InputError, whole
from interp.files import staged

FILE = "checkpoint.safetensors"

RECORD = "training.json"
"""What a finished run tells, in the same folder: see `scripts/train_two_layer.py`."""


LOOK = ("step", "second_copy", "first_copy", "by_period", "scores")
"""What each look at a run has."""


def save(run: Run, folder: str | os.PathLike[str]) -> None:
    """Write `run` to `folder`, in the place of what was there of it.

    Raises:
        InputError: If it was trained and never looked at, or the folder cannot be written to.
    """
    _check_looks(run)
    told = {"recipe": asdict(run.recipe), "looks": run.looks}
    with staged(folder) as scratch:
        save_file(run.state(), scratch / FILE, metadata={"run": json.dumps(told)})


def resumed(model: nn.Module, recipe: Recipe, folder: str | os.PathLike[str]) -> Run:
    """The run in `folder` as it stands there, or one that has not begun if there is none.

    Args:
        model: Of the shape that the recipe says; takes on the run's weights.
        recipe: What the run must be made by.
        folder: From `save`.

    Raises:
        InputError: If the file is of another recipe, or is damaged.
    """
    run, path = Run(model, recipe), Path(folder) / FILE
    if not path.exists():
        return run
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads((file.metadata() or {})["run"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        theirs, ours = dict(told["recipe"]), asdict(recipe)
        run.looks = told["looks"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"what cannot be read ({error})") from None
    if theirs != ours:
        differing = [name for name in ours if theirs.get(name) != ours[name]]
        words = ", ".join(f"{name} {theirs.get(name)}, not {ours[name]}" for name in differing)
        raise InputError(
            f"{folder} must hold a run of the same settings or none, got one with"
            f" {words or 'others'}: choose another folder"
        )
    try:
        run.restore(state)
        _check_looks(run)
    except (InputError, RuntimeError) as error:  # Of torch, where its luck is none.
        raise _damaged(path, f"one in which {error}") from None
    return run


def _check_looks(run: Run) -> None:
    """Raise unless the looks are those of a run that was looked at on its way."""
    try:
        lacking = {name for look in run.looks for name in LOOK if name not in look}
        steps = [] if lacking else [whole("step", look["step"], least=0) for look in run.looks]
    except TypeError:
        raise InputError("looks must be a list of what was seen") from None
    if lacking:
        raise InputError(f"each look must have {', '.join(LOOK)}, got one without {min(lacking)}")
    if steps != sorted(set(steps)) or (steps and steps[-1] > run.step):
        raise InputError(f"looks must be in order and not after step {run.step}, got {steps}")
    if run.step and not steps:
        raise InputError(f"looks must be there after {run.step} steps, got none")


def _damaged(path: Path, told: str) -> InputError:
    return InputError(f"{path} must be a checkpoint of a run, got {told}: delete it")


def record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a finished run in `folder` tells.

    Raises:
        InputError: If there is none.
    """
    path = Path(folder) / RECORD
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        Recipe(**told["recipe"])
        told["looks"][-1]["scores"]
    except (OSError, KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(f"{path} must be the record of a finished run: {error}") from None
    return told
