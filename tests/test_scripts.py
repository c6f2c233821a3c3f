"""The scripts as a user runs them, in a process of their own."""

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from forked import forked
from places import ROOT
from tiny_models import tiny

import interp

SCRIPT = ROOT / "scripts" / "find_induction_heads.py"
TABLES = {"heads.csv", "heads.parquet", "heads.json"}
FIGURES = {
    f"{name}.{ending}" for name in ("score_mosaic", "pattern_page") for ending in ("png", "svg")
}


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """One run on a tiny local model: the folder written to, and what was printed."""
    path = tmp_path_factory.mktemp("run")
    tiny("gpt2").save_pretrained(path / "model")
    done = run("--model", path / "model", "--rows", 2, "--top", 2, "--out", path / "out")
    assert done.returncode == 0, done.stderr
    return path, done


def test_a_run_writes_the_tables_and_figures_and_nothing_else(tiny_run):
    path, done = tiny_run
    assert {p.name for p in (path / "out").iterdir()} == TABLES | FIGURES
    for name in TABLES | FIGURES:
        assert name in done.stdout


def test_what_is_piped_is_plain_text_and_progress_goes_to_standard_error(tiny_run):
    _, done = tiny_run
    assert "\x1b" not in done.stdout + done.stderr
    assert "8 heads by their most specific label" in done.stdout
    assert "scanning" in done.stderr
    assert "scanning" not in done.stdout


def test_the_tables_agree_and_have_the_columns_that_others_rely_on(tiny_run):
    path, _ = tiny_run
    table = pd.read_csv(path / "out" / "heads.csv")
    columns = "layer head name label labels sink previous_token induction local_window"
    assert {*columns.split(), "duplicate_token", "current_token"} <= set(table.columns)
    assert list(pd.read_parquet(path / "out" / "heads.parquet")["name"]) == list(table["name"])
    content = json.loads((path / "out" / "heads.json").read_text(encoding="utf-8"))
    assert [head["name"] for head in content["heads"]] == list(table["name"])
    # The CSV keeps six decimals.
    assert [head["sink"] for head in content["heads"]] == pytest.approx(
        list(table["sink"]), abs=1e-6
    )


@pytest.mark.fault("B73")
def test_the_same_seed_gives_the_same_bytes_in_another_process(tiny_run):
    path, _ = tiny_run
    again = path / "again"
    assert run("--model", path / "model", "--rows", 2, "--top", 2, "--out", again).returncode == 0
    for name in sorted(TABLES | FIGURES):
        assert (again / name).read_bytes() == (path / "out" / name).read_bytes(), name


def test_only_the_formats_asked_for_are_drawn(tiny_run, tmp_path):
    path, _ = tiny_run
    done = run("--model", path / "model", "--rows", 1, "--format", "pdf", "--out", tmp_path)
    assert done.returncode == 0
    assert {p.name for p in tmp_path.iterdir()} == TABLES | {"score_mosaic.pdf", "pattern_page.pdf"}


@pytest.mark.fault("B68")
def test_an_ascii_console_gets_the_same_files(tiny_run, tmp_path):
    path, _ = tiny_run
    ascii_only = {
        "PYTHONUTF8": "0",
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONCOERCECLOCALE": "0",
    }
    done = run("--model", path / "model", "--rows", 1, "--out", tmp_path, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.iterdir()} == TABLES | FIGURES


MISTAKES = {
    "missing folder": (["--model", "./missing"], "no such file or folder"),
    "hub id without a network": (["--model", "no-such/model"], "could not be loaded"),
    "empty model name": (["--model", ""], "model must be a name"),
    "unknown dtype": (["--dtype", "float12"], "dtype must be one of float32"),
    "unknown device": (["--device", "tpu7"], "device must be one that is here, got tpu7"),
    "unknown format": (["--format", "gif"], "--format must list some of png, svg, pdf, got 'gif'"),
    "no rows": (["--rows", "0"], "--rows"),
    "negative seed": (["--seed", "-1"], "--seed"),
    "enormous seed": (["--seed", "99999999999999999999"], "--seed"),
    "unknown option": (["--modle", "gpt2"], "--modle"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_line_and_exit_code_2_and_writes_nothing(mistake, tmp_path):
    arguments, message = MISTAKES[mistake]
    done = run(*arguments, "--out", tmp_path / "out", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_is_refused_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").write_text("kept")
    done = run("--out", tmp_path / "file" / "out")
    assert done.returncode == 2
    assert "folder must be writable" in done.stderr
    assert "loading" not in done.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_a_truncated_model_leaves_earlier_results_as_they_were(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "heads.csv").write_text("earlier")
    done = run("--model", tmp_path / "model", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "model.safetensors" in done.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["heads.csv"]
    assert (tmp_path / "out" / "heads.csv").read_text() == "earlier"


def test_a_model_without_labelled_heads_shows_its_highest_scores(tiny_run):
    _, done = tiny_run
    assert "No head carries any of these labels" in done.stdout
    assert "without a tokenizer natural text was not run" in done.stdout


def test_a_long_run_adds_the_scores_by_distance_and_their_figure(tmp_path):
    tiny("gpt2", n_positions=300, vocab_size=400).save_pretrained(tmp_path / "model")
    done = run("--model", tmp_path / "model", "--rows", 1, "--length", 257, "--out", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    assert "induction_at_128" in pd.read_csv(tmp_path / "o" / "heads.csv")
    assert (tmp_path / "o" / "induction_by_distance.svg").exists()


def test_a_terminated_run_leaves_nothing_behind(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--model", str(tmp_path / "model"), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr
        process.stderr.readline()  # It has begun.
        process.terminate()
        assert process.wait() == 128 + 15
    assert not out.exists()


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    with forked(tmp_path_factory.mktemp("told")) as found:
        yield found


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


WRITERS = {"find_induction_heads": "--rows=1 --quick", "render_gallery": "--draw=page,layers"}
BEGUN, WRITTEN = ("open", ".interp-partial-"), ("os.rename", ".interp-partial-")
"""Before anything is done, and when all files are written and none has moved."""


@pytest.mark.parametrize("script", WRITERS)
def test_a_script_that_is_killed_leaves_whole_files_and_the_next_run_those_of_any(
    script, scripts, tmp_path
):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    options = ["--model", tmp_path / "model", "--format", "png", *WRITERS[script].split()]

    def run(name, stop=None):
        done = scripts.run(script, *options, "--out", tmp_path / name, stop=stop)
        assert done.returncode == (-9 if stop else 0), done.stderr
        return contents(tmp_path / name) if (tmp_path / name).exists() else None

    assert run("new", WRITTEN) is None
    new = run("new")
    assert new is not None
    (tmp_path / "old").mkdir()
    old = dict.fromkeys(new, b"old")
    for file in old:
        (tmp_path / "old" / file).write_bytes(b"old")
    assert run("old", BEGUN) == old
    last = max(new)
    assert run("old", ("os.rename", f"/{last}")) == {**new, last: b"old"}
    # Who comes next moves first what was left, and is killed, too.
    assert run("old", BEGUN) == new
    assert run("old") == new
    left = [path.name for name in ("", "new", "old") for path in (tmp_path / name).iterdir()]
    assert sorted(left) == sorted(["model", "new", "old", *new, *new])


class Marker:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.fault("B83")
def test_a_hostile_model_is_refused_with_exit_code_2_and_nothing_is_left(scripts, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(pickle.dumps(Marker(tmp_path / "marker")))
    options = ("--model", tmp_path / "model", "--out", tmp_path / "out")
    done = scripts.run("find_induction_heads", *options)
    assert done.returncode == 2
    assert "must be a safetensors file" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.fixture(scope="module")
def given_run(tmp_path_factory):
    """One run on patterns in a file, for a model that was never there: folder, output, and ids."""
    path = tmp_path_factory.mktemp("given")
    ids = [1, *range(10, 20), *range(10, 20), 2]
    patterns = interp.attention_patterns(tiny("gpt2"), ids).numpy()
    np.savez(path / "p.npz", layer10=patterns[0], layer9=patterns[1])
    (path / "ids.json").write_text(json.dumps([ids]))
    code = "import sys; sys.modules['transformers'] = None; import runpy; del sys.argv[0];"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    options = ["--patterns", "p.npz", "--tokens", "ids.json", "--special", "2, 1", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        cwd=path,
    )
    assert done.returncode == 0, done.stderr
    return path, done, patterns, ids


def test_patterns_in_a_file_give_the_same_tables_and_figures_with_no_model_at_all(given_run):
    path, done, patterns, ids = given_run
    assert {p.name for p in (path / "out").iterdir()} == TABLES | FIGURES
    assert "loading" not in done.stderr
    frames = [interp.HeadScan.load(path / "out" / name).to_frame() for name in sorted(TABLES)]
    verdicts = interp.classify_heads(patterns, ids, special=(1, 2), layers=[10, 9])
    by_name = {str(verdict.head): verdict for verdict in verdicts}
    for frame in frames:
        assert frame["name"].tolist() == [f"L{i}H{j}" for i in (9, 10) for j in range(4)]
        for row in frame.to_dict("records"):
            verdict = by_name[row["name"]]
            assert row["label"] == verdict.label
            for kind, score in verdict.scores.items():
                assert row[kind] == pytest.approx(score, abs=1e-6)  # The CSV's six decimals.
        assert not {"induction_low", "induction_null", "text_sink", "ov_copying"} & {*frame}


@pytest.mark.fault("B113")
def test_the_record_says_where_patterns_came_from_and_what_they_cannot_tell(given_run):
    path, done, _, _ = given_run
    made_by = interp.HeadScan.load(path / "out" / "heads.json").made_by
    for name, file in (("patterns", "p.npz"), ("tokens", "ids.json")):
        digest = hashlib.sha256((path / file).read_bytes()).hexdigest()
        assert made_by[name] == {"file": file, "sha256": digest}
    assert (made_by["special"], made_by["dtype"]) == ([1, 2], "float32")
    assert {"<kind>_null", "induction_logit_effect", "text_<kind>"} <= set(made_by["left_out"])
    assert "model" not in made_by
    assert "induction_logit_effect, ov_copying: patterns were given, and no model" in done.stdout
    assert "from p.npz: 1 row of 22 tokens, in float32" in done.stdout
    assert "special tokens, which are no queries and no targets: 1, 2" in done.stdout


@pytest.mark.fault("B55")
def test_rows_that_sum_to_less_are_taken_when_the_script_is_told_so(given_run, tmp_path):
    path, _, patterns, _ = given_run
    np.save(tmp_path / "less.npy", 0.5 * patterns)
    options = ["--patterns", tmp_path / "less.npy", "--tokens", path / "ids.json"]
    refused = run(*options, "--out", tmp_path / "out")
    assert refused.returncode == 2
    assert "sum to 1, got 0.5 in layer 0, head 0" in refused.stderr
    assert not (tmp_path / "out").exists()
    taken = run(*options, "--out", tmp_path / "out", "--learned-sinks", "--format", "png")
    assert taken.returncode == 0, taken.stderr
    assert "learned sinks: scores are shares of all attention" in taken.stdout


ASTRAY = {
    "a model too": (["--patterns", "p.npz", "--model", "SmolLM2-135M"], "--model must be left out"),
    "rows too": (
        ["--patterns", "p.npz", "--rows", "16"],
        "--rows must be left out with --patterns",
    ),
    "tokens alone": (["--tokens", "ids.json"], "--tokens must stand with --patterns"),
    "no tokens": (["--patterns", "p.npz"], "--tokens must be given: these patterns do not carry"),
    "no such file": (["--patterns", "no.npy"], "--patterns must be a file that is there"),
    "words for ids": (["--patterns", "p.npz", "--special", "BOS"], "--special must list whole"),
}


@pytest.mark.parametrize("mistake", ASTRAY)
def test_what_makes_no_sense_with_patterns_is_refused_in_a_line(mistake, given_run, tmp_path):
    arguments, message = ASTRAY[mistake]
    options = [given_run[0] / a if a in ("p.npz", "ids.json") else a for a in arguments]
    done = run(*options, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option_and_file():
    text = run("--help").stdout
    for word in (
        "--model",
        "--out",
        "--seed",
        "--rows",
        "--top",
        "--device",
        "--dtype",
        "--format",
        "--patterns",
        "--tokens",
        "--special",
        "--learned-sinks",
    ):
        assert word in text
    for word in ("heads.csv", "heads.parquet", "heads.json", "Exit code"):
        assert word in text


# Measured independently of this package (random repeated tokens with BOS, stripe over the
# queries after the first repeat; the sinks on random tokens, "above .9").
KNOWN = {
    "induction": {
        "L18H6": 0.90,
        "L17H3": 0.75,
        "L17H4": 0.73,
        "L18H7": 0.59,
        "L17H5": 0.56,
        "L23H2": 0.50,
        "L23H7": 0.46,
        "L20H6": 0.43,
    },
    "previous token": {
        "L16H0": 0.90,
        "L11H1": 0.86,
        "L19H3": 0.75,
        "L22H1": 0.72,
        "L2H1": 0.72,
        "L1H2": 0.68,
        "L19H8": 0.62,
    },
    "duplicate token": {"L14H3": 0.69, "L8H0": 0.68, "L15H6": 0.42},
    "sink": {"L18H8": 1.00, "L22H0": 0.95, "L24H3": 0.95},
}


@pytest.mark.real_model
@pytest.mark.parametrize("seed", [0, 1])
def test_the_known_heads_of_the_real_model_are_found(seed, tmp_path, real_model):
    done = run("--out", tmp_path, "--seed", seed, "--format", "png")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "heads.csv").set_index("name")
    assert len(table) == 270
    for label, heads in KNOWN.items():
        for name, score in heads.items():
            assert label in table.loc[name, "labels"].split(";"), name
            assert table.loc[name, label.replace(" ", "_")] == pytest.approx(score, abs=0.1), name
            if label != "sink":
                assert table.loc[name, "label"] == label
            assert name in done.stdout or label == "sink"
    assert set(table.index[table["label"] == "induction"]) == set(KNOWN["induction"])
    # About 200 of the 270 heads rest on a sink.
    assert 180 <= table["labels"].str.contains("sink").sum() <= 230
