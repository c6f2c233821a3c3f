"""Many models, checkpoints and prompts in one call that can be stopped and resumed: `sweep`."""

import json
import logging
import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field
from safetensors import safe_open

from interp.errors import Count, InputError, checked, quoted, reading
from interp.files import content_of, parsed, staged, versions, write_json
from interp.sweeps.targets import Target, step_of, targets_of
from interp.sweeps.units import Unit, Work, prompts_of
from interp.sweeps.workers import run_tasks

LOG = logging.getLogger("interp")

MANIFEST = "_manifest.json"
_LOOK = 1.0
"""Seconds between two looks for new checkpoints."""

_ORDER = ("model", "step", "prompt", "layer", "head", "score")


@dataclass(frozen=True, eq=False)
class Sweep:
    """The folder of a sweep: its results, and what is left to do.

    Attributes:
        out: Folder of the results.
        plan: A row per unit: `model`, `revision`, `unit`, `state` (`done`, `failed` or `to do`),
            and `bytes` of the weights in float32, missing if they are not files here.
    """

    out: Path
    plan: pd.DataFrame

    def __repr__(self) -> str:
        states = self.plan["state"].value_counts()
        number = ", ".join(f"{states[s]} {s}" for s in ("done", "failed", "to do") if s in states)
        models, units = self.plan["model"].nunique(), len(self.plan)
        words = f"{units} units of {models} model{'s' * (models != 1)}: {number}"
        seconds, left = seconds_a_unit(self.out), states.get("to do", 0)
        if left and seconds is not None:
            words += f"; {_duration(left * seconds)} at {seconds:.1f} s a unit so far"
        sizes = self.plan.loc[self.plan["state"] == "to do", "bytes"].dropna()
        if len(sizes):
            words += f"; weights of up to {sizes.max() / 2**30:.2f} GiB a worker"
        return f"Sweep({self.out}: {words})"

    def to_frame(self) -> pd.DataFrame:
        """All rows, sorted by model, checkpoint, prompt and head; see `read_sweep`."""
        return read_sweep(self.out)

    def failed(self) -> pd.DataFrame:
        """The checkpoints that failed: `model`, `revision`, `failed` (the reason)."""
        frame = self.to_frame()
        return frame.loc[frame["failed"].notna(), ["model", "revision", "failed"]]


@checked
def sweep(
    models: Any,
    revisions: str | Iterable[str] | None = None,
    prompts: Any = None,
    what: str = "scan",
    *,
    out: str | os.PathLike[str],
    processes: Count | None = None,
    executor: Any = None,
    threads: Count = 1,
    batch: Count = 64,
    retry_failed: bool = False,
    dry_run: bool = False,
    watch: Annotated[float, Field(ge=0)] = 0.0,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Sweep:
    """Scan many models or checkpoints, and keep each result in a folder as soon as it is there.

    A unit of work is a checkpoint, with a slice of the prompts if there are any. Its result is one
    file, complete or absent, `out/model=.../revision=.../part-HASH.parquet`. A sweep does what is
    absent: repeat the call after a stop, with other `processes`, or on a second machine with the
    same folder. The numbers do not depend on who computes them. A checkpoint that cannot be loaded
    or fails has one row with the reason in the column `failed`, and the sweep goes on.

    Args:
        models: Names, folders, globs (`runs/*/checkpoint-*`), a `.txt` file with one per line,
            loaded models, a list of these, or a mapping from names to these. Braces count:
            `pythia-{70m,160m}`. In a folder `run/checkpoint-500`, `run` is the model and
            `checkpoint-500` the revision.
        revisions: Revisions of hub ids, such as `step{0..143000..1000}`.
        prompts: Prompts, as for `interp.score_prompts`; for `effects` the name of a task (`ioi`)
            or a file of pairs.
        what: `scan` (`interp.scan_heads`), `explained` (the same with `explained=True`), `prompts`
            (`interp.score_prompts`), or `effects` (`interp.patch` on a task; `how="mean"`,
            `zero` or `resample`: `interp.ablate`).
        out: Folder of the results, of this sweep alone.
        processes: Number of processes to start, each with one model at a time; if left out, this
            process does the work. A script needs `if __name__ == "__main__":`.
        executor: Anything with `submit(function, *args)` whose results have `done()` and
            `result()`, such as those of `concurrent.futures`, dask, submitit or
            `interp.sweeps.cluster.RayExecutor`; its workers see `out` and the models by the same
            paths.
        threads: Threads of torch in each worker; their number changes the last bits of results.
        batch: Prompts in a unit.
        retry_failed: Whether to try again what has failed.
        dry_run: Whether to compute nothing: the result says what is left.
        watch: Seconds to wait for further checkpoints before the sweep ends. A checkpoint is
            taken when its files no longer change.
        progress: Function called with (units done, units in all).
        settings: Arguments of the function, such as `rows`, `kinds`, `quick`, `seed`, and
            `device`, `dtype` and `tokenizer` of `interp.load_model`.

    Raises:
        InputError: If an argument is wrong, or `out` has results with other settings.

    Example:
        >>> import tempfile
        >>> import interp
        >>> toys = [interp.build_circuit("rotary", 64, 65, previous=p) for p in (False, True)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = interp.sweep({"toy": toys}, out=folder, rows=2, quick=True)
        ...     done.to_frame().groupby("revision")["induction"].max().round(1).to_dict()
        {'step-0': 0.0, 'step-1': 1.0}
    """
    work = Work(Path(out), what, prompts_of(what, prompts), batch, threads, settings)
    if executor is not None and processes is not None:
        raise InputError("processes must be left out with executor")
    check_manifest(work, write=not dry_run)
    cache = None if dry_run else work.out / "_files"
    changed, seen, found = time.monotonic(), {}, {}
    while True:
        fresh = [target for target in _targets(models, revisions, watch) if target not in found]
        files = {target: target.files() for target in fresh}
        ready = [t for t in fresh if not watch or seen.get(t) == files[t]]
        found |= {target: work.units(target, cache) for target in ready}
        if ready and not dry_run:
            units = [unit for target in ready for unit in found[target]]
            _run(work, units, retry_failed, processes, executor, progress)
        if ready or files != seen:
            changed = time.monotonic()
        seen = files
        if time.monotonic() - changed >= watch or dry_run:
            break
        time.sleep(min(_LOOK, watch))
    return Sweep(work.out, _plan(work, [unit for units in found.values() for unit in units]))


def _targets(models: Any, revisions: Any, watch: float) -> list[Target]:
    try:
        return targets_of(models, revisions)
    except InputError:
        if watch:
            return []  # Nothing matches yet.
        raise


def check_manifest(work: Work, *, write: bool) -> None:
    """Compare the settings with the manifest, or write one."""
    path, record = work.out / MANIFEST, work.record()
    if not path.exists():
        if not write:
            return
        machine = {"platform": platform.platform(), "processors": os.cpu_count()}
        with staged(work.out) as scratch:
            content = {**record, "versions": versions(), "machine": machine}
            write_json(scratch / MANIFEST, content)
        return
    with reading(path, "the manifest of a sweep"):
        known = parsed(content_of(path))
        theirs = {name: known.get(name) for name in record}
    if theirs != json.loads(json.dumps(record)):
        name = next(name for name in record if theirs[name] != record[name])
        raise InputError(
            f"out must have results with the same settings, got {name} {quoted(record[name])} and"
            f" {quoted(theirs[name])} in {path}: choose another folder"
        )
    if known.get("versions") != versions():
        LOG.warning("%s was begun with other versions: %s", work.out, known.get("versions"))


def _run(
    work: Work,
    units: list[Unit],
    retry_failed: bool,
    processes: int | None,
    executor: Any,
    progress: Callable[[int, int], None] | None,
) -> None:
    states = {"to do", "failed"} if retry_failed else {"to do"}
    left = [unit for unit in units if work.state(unit) in states]
    by_target: dict[Target, list[Unit]] = {}
    for unit in left:
        by_target.setdefault(unit.target, []).append(unit)
    # Of few checkpoints with many slices each, several workers share one.
    share = math.ceil((processes or 1) / max(1, len(by_target)))
    tasks = [task[i::share] for task in by_target.values() for i in range(share) if task[i::share]]
    random.shuffle(tasks)  # A second machine on the same folder begins elsewhere.
    begun, said, number = time.monotonic(), time.monotonic(), 0

    def done() -> None:
        nonlocal number, said
        number += 1
        if progress is not None:
            progress(len(units) - len(left) + number, len(units))
        now = time.monotonic()
        if now - said > 10 or number == len(left):
            rate, said = number / max(now - begun, 1e-9), now
            rest = _duration((len(left) - number) / rate)
            LOG.info("%d of %d units, %.1f a minute, %s left", number, len(left), 60 * rate, rest)

    try:
        run_tasks(work, tasks, processes, executor, done)
    except KeyboardInterrupt:
        kept = f"{number} of {len(left)} units are done in {work.out}: repeat the call to resume"
        raise KeyboardInterrupt(kept) from None


def _plan(work: Work, units: list[Unit]) -> pd.DataFrame:
    sizes = {unit.target: _bytes(unit.target) for unit in units}
    rows = [
        (unit.target.model, unit.target.revision, unit.key, work.state(unit), sizes[unit.target])
        for unit in units
    ]
    columns = ["model", "revision", "unit", "state", "bytes"]
    return pd.DataFrame(rows, columns=pd.Index(columns)).astype({"bytes": "Int64"})


def _bytes(target: Target) -> int | None:
    """Bytes of the weights in float32, by the headers of their files."""
    total, path = 0, target.path
    for file in path.glob("*.safetensors") if path and path.is_dir() else ():
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    total += 4 * math.prod(weights.get_slice(name).get_shape())
        except Exception:
            return None  # The sweep reports what is wrong with the file.
    return total or None


def seconds_a_unit(out: Path) -> float | None:
    """Median time between two results in a folder, in seconds; None with fewer than three."""
    times = sorted(path.stat().st_mtime for path in out.glob("model=*/revision=*/part-*.parquet"))
    return float(pd.Series(times).diff().median()) if len(times) > 2 else None


def _duration(seconds: float) -> str:
    hours, minutes = seconds / 3600, seconds / 60
    return (
        f"{hours:.1f} h"
        if hours >= 1
        else f"{minutes:.0f} min"
        if minutes >= 2
        else (f"{seconds:.0f} s")
    )


def read_sweep(out: str | os.PathLike[str]) -> pd.DataFrame:
    """All rows of a sweep, sorted by model, checkpoint, prompt and head.

    Columns: `model`, `revision`, `step` (the number in it), `digest` (of the weights), `failed`
    (why there is no result, else missing), and those of the results.
    """
    found = sorted(Path(out).glob("model=*/revision=*/*-*.parquet"))
    files = [file for file in found if _is_last(file)]
    if not files:
        raise InputError(f"out must be the folder of a sweep, got {quoted(str(out))}")
    tables = []
    for file in files:
        with reading(file, "a whole result (remove it to compute it again)"):
            tables.append(pq.ParquetFile(file).read())
    frame = pa.concat_tables(tables, promote_options="permissive").to_pandas(
        types_mapper={pa.float64(): pd.Float64Dtype(), pa.int64(): pd.Int64Dtype()}.get
    )
    frame = frame.astype({"model": "string", "revision": "string"})
    frame.insert(2, "step", frame["revision"].map(step_of))
    order = [name for name in _ORDER if name in frame]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _is_last(file: Path) -> bool:
    """Whether no later try replaced the file."""
    kind, _, key = file.name.partition("-")
    return kind == "part" or not file.with_name(f"part-{key}").exists()
