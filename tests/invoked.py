"""Scripts run in this process, which saves the seconds that a new process spends on imports."""

import runpy
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from typing import Any

from places import SCRIPTS

from interp import command


@cache
def script(name: str) -> dict[str, Any]:
    """The names that a script defines."""
    return runpy.run_path(str(SCRIPTS / f"{name}.py"))


def invoke(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a script (its name without `.py`) with these command line arguments."""
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        code = command.call(script(name)["main"], [*map(str, arguments)])
    return subprocess.CompletedProcess([name], code, stdout.getvalue(), stderr.getvalue())


def refused(done: "subprocess.CompletedProcess[str]", *words: str) -> bool:
    """Whether a run ended with exit code 2 and one line that has these words.

    Lines about what was begun may come before it.
    """
    *_, line = done.stderr.splitlines()
    return (
        done.returncode == 2
        and done.stdout == ""
        and line.startswith("error: ")
        and all(word in line for word in words)
        and "Traceback" not in done.stderr
    )
