"""Scans during training: a callback for the `Trainer` of transformers."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from interp.errors import Count, checked
from interp.models import load_model
from interp.sweeps.sweep import check_manifest
from interp.sweeps.targets import Target
from interp.sweeps.units import Work


class ScanCallback:
    """Scan the model in training, into a folder that `interp.trajectories` reads.

    Add it to a `Trainer`: `callbacks=[ScanCallback("sweep", "run", every=500)]`. It scans before
    the first step and then after every `every` steps, as checkpoint `checkpoint-STEP`, and leaves
    the model, its mode and the random numbers of the training as they were. A scan that fails is a
    row with the reason, and the training goes on.

    Args:
        out: Folder of the results; several runs may share it.
        name: Name of the run.
        every: Steps between two scans.
        settings: Arguments of `interp.scan_heads`, such as `rows` and `kinds`.

    Attributes:
        seconds: Time of each scan.
    """

    @checked
    def __init__(
        self, out: str | os.PathLike[str], name: str = "run", every: Count = 500, **settings: Any
    ) -> None:
        self._work = Work(Path(out), "scan", None, 1, torch.get_num_threads(), settings)
        self._name, self._every = name, every
        self.seconds: list[float] = []
        check_manifest(self._work, write=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Scan the model before its first step."""
        self._scan(state, **more)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Scan the model after every so many steps."""
        if state.global_step % self._every == 0:
            self._scan(state, **more)

    def _scan(self, state: Any, model: Any, processing_class: Any = None, **_: Any) -> None:
        if state.is_world_process_zero:
            begun = time.perf_counter()
            opened = load_model(model, processing_class)
            target = Target(self._name, f"checkpoint-{state.global_step}", opened)
            self._work.run(self._work.units(target))
            self.seconds.append(time.perf_counter() - begun)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """The events of a `Trainer` that it does not follow."""
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)
