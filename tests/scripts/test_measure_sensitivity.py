"""The script as a user runs it, in a process of its own."""

import subprocess
import sys

import pandas as pd
from places import SCRIPTS
from tiny_models import tiny

SCRIPT = SCRIPTS / "measure_sensitivity.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_every_condition_has_a_column_and_every_labelled_head_a_line(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    done = run(
        *("--model", tmp_path / "model", "--rows", 2, "--seeds", 2, "--lengths", "40,64"),
        *("--format", "svg", "--out", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "sensitivity.csv", keep_default_na=False)
    conditions = ["seed 0", "seed 1", "40 tokens", "no BOS", "two BOS", "bfloat16"]
    assert list(table.columns) == [
        *("name", "kind", *conditions, "lowest", "highest", "spread", "flips")
    ]
    drawn = (table["kind"] != "sink").any()
    assert (tmp_path / "out" / "sensitivity.svg").exists() == drawn
    assert ("no figure" in done.stdout) != drawn


def test_a_context_too_short_for_two_bos_leaves_that_condition_out_and_says_so(tmp_path):
    tiny("gpt2", n_positions=12).save_pretrained(tmp_path / "model")
    done = run(
        *("--model", tmp_path / "model", "--rows", 2, "--seeds", 2, "--lengths", "12"),
        *("--format", "svg", "--out", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    columns = pd.read_csv(tmp_path / "out" / "sensitivity.csv").columns
    assert "no BOS" in columns
    assert "two BOS" not in columns
    assert "left out: two BOS: a context of 12 tokens is too short for it" in done.stdout


def test_a_length_beyond_the_context_is_refused_before_any_scan(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    done = run("--model", tmp_path / "model", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "--lengths must fit the model's context of 64 tokens, got 257" in done.stderr
    assert "scanning" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_mistake_gets_one_line_and_exit_code_2_and_writes_nothing(tmp_path):
    done = run("--lengths", "4", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "--lengths" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
