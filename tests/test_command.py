import subprocess
import sys

import pytest
from invoked import invoke, refused
from places import SCRIPTS

from interp import InputError
from interp.command import heads, listed, whole_numbers

NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.mark.parametrize("script", NAMES)
def test_a_wrong_call_gets_one_line_and_exit_code_2(script):
    for option in ("--modle", "--out"):  # An unknown option, and one without its value.
        done = invoke(script, option)
        assert refused(done, option)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", NAMES)
def test_help_names_the_options_and_the_exit_codes(script):
    done = invoke(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("Options:", "--out", "Exit code"))


def test_labels_and_heads_are_read_in_every_spelling():
    allowed = ["sink", "previous token", "mul_induction"]
    asked = "previous_token, sink,mul induction"
    assert listed(asked, allowed, name="--label") == ["previous token", "sink", "mul_induction"]
    assert heads("L5H1,18.6, (5, 1),(0,2)", name="--heads") == [(5, 1), (18, 6), (0, 2)]
    assert whole_numbers("2, 1", name="--special", least=0) == [2, 1]


@pytest.mark.parametrize("text", ["", "duck", "sink,", "sink;sink"])
def test_other_texts_are_refused_with_the_options_name(text):
    for call in (
        lambda: listed(text, ["sink"], name="--label"),
        lambda: heads(text, name="--label"),
        lambda: whole_numbers(text, name="--label", least=0),
    ):
        with pytest.raises(InputError, match=r"^--label"):
            call()


PROGRAM = """
import warnings
from interp.command import run

def main(stop: bool = False) -> None:
    warnings.warn("row 0 opens with BOS twice")
    if stop:
        raise KeyboardInterrupt

run(main)
"""


@pytest.mark.parametrize(
    ("option", "code", "lines"),
    [("--no-stop", 0, []), ("--stop", 130, ["interrupted: no results were written"])],
)
def test_warnings_and_interrupts_are_one_line_each(option, code, lines):
    command = [sys.executable, "-c", PROGRAM, option]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert [line.rstrip() for line in done.stderr.splitlines()] == [
        "row 0 opens with BOS twice",
        *lines,
    ]
