"""Scripts, each in a process of its own that can be killed on its way; all import but once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from places import SCRIPTS

_SERVER = """
import json, os, runpy, signal, sys, traceback
import interp.models, interp.show.pages.gallery, interp.show.figures
import interp.scan.prompts, interp.scan.scan

def hook(last, part):
    def see(event, about):
        if event == last and part in str(about[0]):
            os.kill(os.getpid(), signal.SIGKILL)
    return see

for line in sys.stdin:
    arguments, told, stop = json.loads(line)
    arguments = [os.fsdecode(bytes.fromhex(argument)) for argument in arguments]
    if (child := os.fork()) == 0:
        for number, name in enumerate(told, 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if stop:
            sys.addaudithook(hook(*stop))
        sys.argv, code = arguments, 1
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


class Forked:
    """Where scripts are run one after the other."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process, self._told = process, [str(folder / name) for name in ("stdout", "stderr")]

    def run(
        self, script: str, *arguments: object, stop: tuple[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script to its end, or kill it before a step of that name (see `sys.audit`).

        Args:
            script: Name without `.py`.
            arguments: Of the command line.
            stop: Name of the step, and part of the name of the file that it is about.
        """
        call = [str(SCRIPTS / f"{script}.py"), *map(str, arguments)]
        sent = [os.fsencode(argument).hex() for argument in call]  # In any locale of the other's.
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([sent, self._told, stop]), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        stdout, stderr = (Path(name).read_text(encoding="utf-8") for name in self._told)
        return subprocess.CompletedProcess(call, code, stdout, stderr)


@contextmanager
def forked(folder: Path, **environment: str) -> Iterator[Forked]:
    """Keep what scripts print in `folder`, and run them with these settings too."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    ) as process:
        yield Forked(process, folder)
        assert process.stdin
        process.stdin.close()
