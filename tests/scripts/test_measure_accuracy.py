"""The script as a user runs it, in a process of its own."""

import json
import re
import subprocess
import sys

import pytest
from places import ROOT

from interp.trust import accuracy

SCRIPT = ROOT / "scripts" / "measure_accuracy.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run with few heads: the file, and what was printed."""
    out = tmp_path_factory.mktemp("run") / "deep" / "accuracy.json"
    done = run("--seed", 3, "--heads", 336, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_file_has_the_names_that_others_rely_on(small_run):
    out, _ = small_run
    result = json.loads(out.read_text(encoding="utf-8"))
    assert 0.98 <= result["accuracy"] <= 1
    assert sum(sum(row.values()) for row in result["confusion"].values()) == 336
    assert result["sizes"] == {"choose": 168, "report": 336, "curve": 168}
    assert {0.0, 0.4, 0.5, 1.0} <= {record["strength"] for record in result["by_strength"]}
    assert result["made_by"]["seed"] == 3
    assert {"interp", "torch"} <= set(result["made_by"]["versions"])
    shortcut = result["shortcut"]
    assert shortcut["naive_stripe"] > 0.85
    assert shortcut["label"] != "induction"
    assert shortcut["score"] < 0.2
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_it_prints_a_short_table(small_run):
    out, done = small_run
    assert f"accuracy {json.loads(out.read_text())['accuracy']:.4f}" in done.stdout
    assert "labelled as their kind" in done.stdout
    assert "position alone" in done.stdout
    assert "planting heads" in done.stderr
    assert len(done.stdout.splitlines()) < 50
    for explained in ("accuracy {", "accuracy in any rows {", "stripe threshold: ", "strength: "):
        assert explained.removesuffix("{") in done.stdout


def test_the_same_seed_gives_the_same_numbers(small_run):
    out, _ = small_run
    again = out.parent.parent / "again.json"
    assert run("--seed", 3, "--heads", 336, "--out", again).returncode == 0
    one, two = (json.loads(path.read_text(encoding="utf-8")) for path in (out, again))
    trained, once_more = one.pop("shortcut"), two.pop("shortcut")
    assert one == two
    # Training adds float32 sums up in an order of its own with more than one thread.
    for name, value in trained.items():
        close = pytest.approx(value, abs=1e-2) if isinstance(value, float) else value
        assert once_more[name] == close


MISTAKES = {
    "other ending": (["--out", "accuracy.csv"], "--out must end in .json, got 'accuracy.csv'"),
    "no such table": (["--table", "missing.csv"], "--table: path must be a file that is there"),
    "too few heads": (["--heads", "335"], "Invalid value for '--heads'"),
    "other figure": (["--figure", "a.gif"], "--figure must end in .png, .svg or .pdf, got 'a.gif'"),
    "negative seed": (["--seed", "-1"], "--seed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_line_and_exit_code_2_and_writes_nothing(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[mistake]
    done = run(*arguments)
    assert done.returncode == 2
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option():
    text = run("--help").stdout
    assert f"x>={accuracy.FEWEST}" in text
    for word in ("--seed", "--out", "--heads", "--table", "by_strength", "Exit code"):
        assert word in text
