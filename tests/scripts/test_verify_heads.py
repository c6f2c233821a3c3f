"""The script as a user runs it, in a process of its own."""

import json
import os
import re
import subprocess
import sys

import pytest
from places import SCRIPTS
from tiny_models import tiny, words_tokenizer

import interp

SCRIPT = SCRIPTS / "verify_heads.py"
QUICK = ("--rows", 2, "--length", 20, "--draws", 2)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a tiny model, and a table that calls one of its heads an induction head."""
    path = tmp_path_factory.mktemp("verify")
    tiny("llama").save_pretrained(path / "model")
    words_tokenizer().save_pretrained(path / "model")
    scan = interp.scan_heads(path / "model", rows=2)
    frame = scan.to_frame()
    chosen = frame["name"] == "L1H2"
    frame["label"] = frame["label"].where(~chosen, "induction")
    frame["labels"] = [
        ["induction"] if name == "L1H2" else [x for x in labels if x != "induction"]
        for name, labels in zip(frame["name"], frame["labels"])
    ]
    frame["induction"] = frame["induction"].where(~chosen, 0.9)
    interp.HeadScan(frame, scan.made_by).save(path / "heads.json")
    return path


@pytest.fixture(scope="module")
def done(saved):
    """One run on the saved table."""
    ran = run(
        *("--model", saved / "model", "--scan", saved / "heads.json", "--seed", 3),
        *("--label", "induction, duplicate token", "--out", saved / "out" / "effects.json"),
        *QUICK,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def test_a_run_writes_the_file_and_nothing_else(saved, done):
    assert [path.name for path in (saved / "out").iterdir()] == ["effects.json"]
    content = json.loads((saved / "out" / "effects.json").read_text(encoding="utf-8"))
    assert list(content["labels"]) == ["induction", "duplicate token"]
    found = content["labels"]["induction"]
    assert found["heads"][0] == "L1H2"
    assert found["labelled"] == 1
    assert isinstance(found["effect"], float)
    assert found["interval"][0] <= found["effect"] <= found["interval"][1]
    assert len(found["random_effects"]) == 2
    assert set(found["measures"]) == {"zero", "mean"}
    made_by = content["made_by"]
    assert (made_by["seed"], made_by["draws"], made_by["model"]) == (3, 2, "model")
    assert [probe["parts"] for probe in made_by["probes"]] == [["random", "repeated"], ["text"]]


def test_what_is_printed_says_the_verdict_for_each_label_and_measure(saved, done):
    content = json.loads((saved / "out" / "effects.json").read_text(encoding="utf-8"))
    assert f"induction: {content['labels']['induction']['verdict']}" in done.stdout
    for method, measures in content["labels"]["induction"]["measures"].items():
        for name, effect in measures.items():
            words = "in-context score" if "context" in name else name.replace("_", " ")
            line = f"{method}, {words}: {effect['verdict']}"
            assert line in done.stdout
    assert "taken out: L1H2" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "scanning" not in done.stderr


def test_a_run_for_some_labels_has_a_file_of_its_own(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "effects.json").write_text("of all labels")
    ran = run(
        *("--model", saved / "model", "--scan", saved / "heads.json", "--method", "zero"),
        *("--label", "induction, previous token", *QUICK),
    )
    assert ran.returncode == 0, ran.stderr
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "effects.json",
        "effects_induction_previous_token.json",
    }
    assert (tmp_path / "results" / "effects.json").read_text() == "of all labels"
    assert "effects_induction_previous_token.json" in ran.stdout


def test_two_draws_are_called_few_in_the_verdict_and_in_the_file(saved, done):
    content = json.loads((saved / "out" / "effects.json").read_text(encoding="utf-8"))
    found = content["labels"]["induction"]
    assert " (few draws): " in found["verdict"]
    for measures in found["measures"].values():
        assert all(" (few draws): " in measure["verdict"] for measure in measures.values())
    assert "few draws: fewer than 20" in done.stdout
    assert "anything else is not decided" in done.stdout


def test_without_a_table_the_model_is_scanned_first_and_all_labels_are_judged(saved, tmp_path):
    ran = run("--model", saved / "model", "--out", tmp_path / "e.json", "--method", "mean", *QUICK)
    assert ran.returncode == 0, ran.stderr
    assert "scanning" in ran.stderr
    content = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))
    assert {"induction", "duplicate token", "previous token", "sink"} <= set(content["labels"])
    for found in content["labels"].values():
        if not found["heads"]:
            assert found["verdict"] == "not judged: no heads of that label"
        else:
            assert list(found["measures"]) == ["mean"]


MISTAKES = {
    "missing table": (["--scan", "missing.json"], "--scan: path must be a file that is there"),
    "unknown method": (["--method", "half"], "--method must list some of zero, mean, got 'half'"),
    "no draws": (["--draws", "0"], "--draws"),
    "one row": (["--rows", "1"], "--rows"),
    "unknown model": (["--model", "./missing"], "no such file or folder"),
    "unknown label": (["--label", "duck"], "got 'duck'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_line_and_exit_code_2_and_writes_nothing(mistake, tmp_path):
    arguments, message = MISTAKES[mistake]
    ran = run(*arguments, "--out", tmp_path / "out" / "effects.json")
    assert ran.returncode == 2
    assert message in re.sub(r"\s+", " ", ran.stderr)
    assert "Traceback" not in ran.stderr
    assert "scanning" not in ran.stderr
    assert ran.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_kind_is_refused_before_anything_is_loaded(tmp_path):
    ran = run("--out", tmp_path / "effects.csv")
    assert ran.returncode == 2
    assert "out must be a file that ends in .json" in ran.stderr
    assert "loading" not in ran.stderr


def test_help_names_every_option():
    text = run("--help").stdout
    options = "model out scan label top draws rows length method seed device dtype"
    for word in options.split():
        assert f"--{word}" in text
    assert "Exit code" in text
