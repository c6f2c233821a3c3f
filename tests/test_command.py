"""What every script does alike when it is called wrongly, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from places import SCRIPTS

SCRIPTS = sorted((SCRIPTS).glob("*.py"))


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


MISTAKES = {
    "an option that is not there": ["--modle"],
    "no value": ["--out"],
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_wrong_call_is_told_in_one_line_with_exit_code_2(script, mistake):
    done = run(script, *MISTAKES[mistake])
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert MISTAKES[mistake][0] in line


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_is_shown_with_exit_code_0(script):
    done = run(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Options:" in done.stdout


BAD_VALUES = {
    "find_induction_heads": [("--rows", "two"), ("--seed", "-1"), ("--model", "./none")],
    "verify_heads": [("--draws", "0"), ("--dtype", "float12")],
    "measure_accuracy": [("--heads", "335"), ("--figure", "curve.gif")],
    "measure_sensitivity": [("--seeds", "1"), ("--lengths", "4")],
}


@pytest.mark.parametrize(
    ("script", "option", "value"),
    [(script, *pair) for script, pairs in BAD_VALUES.items() for pair in pairs],
)
def test_a_bad_value_is_told_with_its_options_name(script, option, value, tmp_path):
    path = next(path for path in SCRIPTS if path.stem == script)
    out = tmp_path / ("out.json" if script in ("verify_heads", "measure_accuracy") else "out")
    done = run(path, option, value, "--out", str(out))
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert option in line
    assert len(done.stderr.splitlines()) <= 2  # The other says what was begun.
    assert list(tmp_path.iterdir()) == []


WARNS = """
import warnings
from interp.command import run

def main() -> None:
    warnings.warn("row 0 opens with BOS twice")

run(main)
"""


def test_a_warning_is_one_line_without_a_place_in_the_source():
    done = subprocess.run([sys.executable, "-c", WARNS], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "row 0 opens with BOS twice")
