"""Scripts in processes that can be stopped at a chosen step; all imports happen only once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from places import SCRIPTS

ASCII = {
    "PYTHONUTF8": "0",
    "LC_ALL": "C",
    "PYTHONIOENCODING": "ascii",
    "PYTHONCOERCECLOCALE": "0",
}
"""Environment of a console that knows ASCII only."""

_SERVER = """
import json, os, runpy, sys, traceback
import interp.models, interp.show.pages.gallery, interp.show.figures
import interp.scan.prompts, interp.scan.scan

def hook(last, part, number):
    def see(event, about):
        nonlocal number
        if event == last and part in str(about[0]) and number:
            number, now = 0, number
            os.kill(os.getpid(), now)
    return see

for line in sys.stdin:
    arguments, outputs, stop = json.loads(line)
    arguments = [os.fsdecode(bytes.fromhex(argument)) for argument in arguments]
    if (child := os.fork()) == 0:
        for number, name in enumerate(outputs, 1):
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
    """A server process that runs one script after the other, each in a child process."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._outputs = [str(folder / name) for name in ("stdout", "stderr")]

    def run(
        self,
        script: str,
        *arguments: object,
        stop: tuple[str, str] | None = None,
        by: int = signal.SIGKILL,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script to its end, or send it a signal before a chosen step (see `sys.audit`).

        Args:
            script: Name without `.py`.
            arguments: Arguments of the command line.
            stop: Name of the step, and part of the name of the file that it is about.
            by: Number of the signal.
        """
        call = [str(SCRIPTS / f"{script}.py"), *map(str, arguments)]
        sent = [os.fsencode(argument).hex() for argument in call]  # Safe in any locale.
        assert self._process.stdin
        assert self._process.stdout
        message = [sent, self._outputs, stop and [*stop, int(by)]]
        print(json.dumps(message), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        stdout, stderr = (Path(name).read_text(encoding="utf-8") for name in self._outputs)
        return subprocess.CompletedProcess(call, code, stdout, stderr)


@contextmanager
def forked(folder: Path, **environment: str) -> Iterator[Forked]:
    """Run scripts with these environment variables; `folder` keeps what they print."""
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
