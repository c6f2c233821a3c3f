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
from interp.contents import content_of
from interp.errors import InputError, is_number, whole
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
    _check_looks(run.looks, run.step)
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
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, f"what cannot be read ({error})") from None
    if theirs != ours:
        differing = [name for name in ours if theirs.get(name) != ours[name]]
        words = ", ".join(f"{name} {theirs.get(name)}, not {ours[name]}" for name in differing)
        raise InputError(
            f"{folder} must hold a run of the same settings or none, got one with"
            f" {words or 'others'}: choose another folder"
        )
    try:
        _check_looks(run.looks, int(state.get("step", -1)))
        run.restore(state)
    except (InputError, RuntimeError) as error:  # Of torch, where its luck is none.
        raise _damaged(path, f"one in which {error}") from None
    return run


def _check_looks(looks: Any, step: int) -> None:
    """Raise unless the looks are those of a run that was looked at on its way to a step."""
    if not isinstance(looks, list):
        raise InputError("looks must be a list of what was seen")
    for look in looks:
        _check_look(look)
    sizes = {(len(rows), len(rows[0])) for look in looks for rows in look["scores"].values()}
    if len(sizes) > 1:
        raise InputError("scores must be of the same heads in every look and of every kind")
    steps = [whole("step", look["step"], least=0) for look in looks]
    if steps != sorted(set(steps)) or (steps and steps[-1] > max(step, 0)):
        raise InputError(f"looks must be in order and not after step {step}, got {steps}")
    if step > 0 and not steps:
        raise InputError(f"looks must be there after {step} steps, got none")


def _check_look(look: Any) -> None:
    lacking = [name for name in LOOK if not isinstance(look, dict) or name not in look]
    if lacking:
        raise InputError(f"each look must have {', '.join(LOOK)}, got one without {min(lacking)}")
    periods, scores, second = look["by_period"], look["scores"], look["second_copy"]
    if not isinstance(periods, dict) or not all(period.isdecimal() for period in periods):
        raise InputError("by_period must have a loss for each period")
    losses = [look["first_copy"], *periods.values(), *([] if second is None else [second])]
    if not periods or not all(map(is_number, losses)):
        raise InputError("losses must be numbers")
    if not isinstance(scores, dict) or not {"induction", "previous_token"} <= set(scores):
        raise InputError("scores must be those of every kind")
    for kind, found in scores.items():
        rows: list[Any] = found if isinstance(found, list) else []
        if not rows or not all(isinstance(row, list) and row for row in rows):
            raise InputError(f"scores of {kind[:40]} must be rows of heads, one a layer")
        if len({len(row) for row in rows}) > 1 or not all(is_number(n) for r in rows for n in r):
            raise InputError(f"scores of {kind[:40]} must be a number for each head")


def _damaged(path: Path, told: str) -> InputError:
    return InputError(f"{path} must be a checkpoint of a run, got {told}: delete it")


def record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a finished run in `folder` tells.

    Raises:
        InputError: If there is none.
    """
    path = Path(folder) / RECORD
    try:
        told = json.loads(content_of(path))
        Recipe(**told["recipe"])
        _check_looks(told["looks"], whole("step", told["looks"][-1]["step"], least=0))
    except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise InputError(f"{path} must be the record of a finished run: {error}") from None
    return told
