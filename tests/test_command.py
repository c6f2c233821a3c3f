import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from invoked import invoke, refused, script
from places import ROOT, SCRIPTS

import interp
from interp import InputError
from interp.__main__ import main
from interp.command import call, heads, listed, program, whole_numbers
from interp.commands import GROUPS, doctor

WIDE = {**os.environ, "COLUMNS": "100"}
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_call_gets_one_line_and_exit_code_2(name):
    for option in ("--modle", "--out"):  # An unknown option, and one without its value.
        done = invoke(name, option)
        assert refused(done, option)
        assert len(done.stderr.splitlines()) == 1


HELP = """
import runpy, sys
from interp import command
for name in sys.argv[1:]:
    command.call(runpy.run_path(name)["main"], ["--help"], "interp")
    print("END")
"""


def test_help_has_groups_examples_and_exit_codes_and_fits_on_a_screen():
    # In a process without the import hook of the tests, which drops docstrings of modules.
    files = [str(SCRIPTS / f"{name}.py") for name in NAMES]
    run = [sys.executable, "-c", HELP, *files]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=WIDE)
    *pages, _ = done.stdout.split("END\n")
    assert len(pages) == len(NAMES)
    for page in pages:
        assert all(word in page for word in ("Options:", "Output:", "--json", "Exit code"))
        assert len(page.splitlines()) <= 60
        examples = page.partition("Examples:\n")[2].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in examples] == ["interp", "interp"]


def test_interp_lists_each_command_with_its_script_and_runs_it():
    listed = {name for group in GROUPS.values() for name in group}
    files = (ROOT / "interp" / "commands").glob("*.py")
    assert listed == {path.stem for path in files} - {"__init__"}
    scripts = {script(name)["main"].__module__.rpartition(".")[2] for name in NAMES}
    assert listed == scripts | {"doctor"}
    run = [sys.executable, "-m", "interp", "--version"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == interp.__version__
    assert entry_points(group="console_scripts")["interp"].load() is main


def test_the_doctor_names_versions_device_and_cache(capsys):
    assert call(program(doctor.main), ["--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["result"]
    assert facts["interp"] == interp.__version__
    assert {"torch", "python", "cuda", "cache", "default model"} <= facts.keys()


def test_json_is_one_object_with_the_result_and_the_lines(tmp_path):
    done = invoke("attention_numbers", "--out", tmp_path, "--json")
    shown = json.loads(done.stdout)
    assert shown["result"] == json.loads((tmp_path / "attention_numbers.json").read_text())
    assert shown["lines"][-1].startswith("wrote ")


def test_labels_and_heads_are_read_in_every_spelling():
    allowed = ["sink", "previous token", "mul_induction"]
    asked = "previous_token, sink,mul induction"
    assert listed(asked, allowed, name="--label") == ["previous token", "sink", "mul_induction"]
    assert heads("L5H1,18.6, (5, 1),(0,2)", name="--heads") == [(5, 1), (18, 6), (0, 2)]
    assert whole_numbers("2, 1", name="--special", least=0) == [2, 1]


@pytest.mark.parametrize("text", ["", "duck", "sink,", "sink;sink"])
def test_other_texts_are_refused_with_the_options_name(text):
    for read in (
        lambda: listed(text, ["sink"], name="--label"),
        lambda: heads(text, name="--label"),
        lambda: whole_numbers(text, name="--label", least=0),
    ):
        with pytest.raises(InputError, match=r"^--label"):
            read()


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
