"""Who runs the units: this process, spawned processes, or anything with `submit`."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from interp.errors import InputError, told
from interp.sweeps.units import Unit, Work

Task = Sequence[Unit]
"""Units of one checkpoint, which a worker loads once."""

_POLL = 0.02
"""Seconds between two looks at the tasks that an executor runs."""


def run_tasks(
    work: Work,
    tasks: Sequence[Task],
    processes: int | None,
    executor: Any,
    done: Callable[[], None],
) -> None:
    """Run all tasks; `done` is called after each unit.

    A task whose worker dies is run again, and in the end alone; if that worker dies too, its
    units fail. One whose executor reports an error fails.
    """
    if executor is None and processes is None:
        for task in tasks:
            work.run(task, done)
        return
    _check_sendable(work, tasks)
    left = [*tasks]
    alone = False
    while left:
        some = left[:1] if alone else left
        with _pool(1 if alone else processes or 1, executor) as submit:
            dead = [task for task, error in _finished(work, submit, some, done) if error]
        if alone and dead:
            for unit in dead[0]:
                work.write(unit, None, "the process that ran it died, perhaps for lack of memory")
                done()
            dead = []
        alone = alone or len(dead) == len(some)
        left = dead + left[len(some) :]


def _finished(
    work: Work, submit: Callable[..., Any], tasks: Sequence[Task], done: Callable[[], None]
) -> Iterator[tuple[Task, bool]]:
    """Each task once it has ended, and whether its worker died."""
    running = {index: submit(work.run, task) for index, task in enumerate(tasks)}
    while running:
        for index in [index for index, future in running.items() if future.done()]:
            task, dead = tasks[index], False
            try:
                running.pop(index).result()
            except BrokenExecutor:
                dead = True
            except Exception as error:
                for unit in task:
                    work.write(unit, None, f"its worker failed: {told(error)}")
            if not dead:
                for _ in task:
                    done()
            yield task, dead
        time.sleep(_POLL)


@contextmanager
def _pool(processes: int, executor: Any) -> Iterator[Callable[..., Any]]:
    if executor is not None:
        yield executor.submit
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_end_with_parent)
    try:
        yield pool.submit
    except BaseException:  # An interrupt: what is not finished stays absent.
        for process in [*(pool._processes or {}).values()]:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker when the process that started it ends in any way."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _check_sendable(work: Work, tasks: Sequence[Task]) -> None:
    if any(not isinstance(task[0].target.source, str) for task in tasks):
        raise InputError("models must be names or paths with processes or executor, got a loaded")
    try:
        ForkingPickler.dumps(work)
    except Exception as error:
        raise InputError(
            "settings must be values that other processes can receive: name your own kinds as"
            f" FILE.py:NAME ({told(error)})"
        ) from None
