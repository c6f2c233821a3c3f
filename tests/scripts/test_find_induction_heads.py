import hashlib
import json
import pickle
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from forked import ASCII, forked
from invoked import invoke, refused
from places import SCRIPTS
from tiny_models import Marker, tiny, words_tokenizer

import interp

NAME = "find_induction_heads"
TABLES = {"heads.csv", "heads.parquet", "heads.json"}
FIGURES = {
    f"{name}.{ending}" for name in ("score_mosaic", "pattern_page") for ending in ("png", "svg")
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a tiny model, and what one run on it wrote to `out`."""
    path = tmp_path_factory.mktemp("run")
    tiny("gpt2").save_pretrained(path / "model")
    return path


@pytest.fixture(scope="module")
def tiny_run(home):
    done = invoke(NAME, "--model", home / "model", "--rows", 2, "--top", 2, "--out", home / "out")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Processes under an ASCII console."""
    with forked(tmp_path_factory.mktemp("printed"), **ASCII) as server:
        yield server


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_run_writes_tables_and_figures_and_prints_plain_text(home, tiny_run):
    assert {p.name for p in (home / "out").iterdir()} == TABLES | FIGURES
    assert all(name in tiny_run.stdout for name in (*TABLES, *FIGURES, "8 heads"))
    assert "\x1b" not in tiny_run.stdout + tiny_run.stderr
    assert tiny_run.stderr == ""  # No progress in a pipe.
    csv, *others = (interp.HeadScan.load(home / "out" / name).frame for name in sorted(TABLES))
    for table in others:
        assert list(table["name"]) == list(csv["name"])
        assert list(table["sink"]) == pytest.approx(list(csv["sink"]), abs=1e-6)  # Six decimals.


@pytest.mark.fault("B68", "B73")
def test_another_process_under_an_ascii_console_writes_the_same_bytes(home, tiny_run, processes):
    options = ("--model", home / "model", "--rows", 2, "--top", 2)
    again = processes.run(NAME, *options, "--out", home / "again")
    assert again.returncode == 0, again.stderr
    for name in sorted(TABLES | FIGURES):
        assert (home / "again" / name).read_bytes() == (home / "out" / name).read_bytes(), name


MISTAKES = {
    "hub id without a network": (["--model", "no-such/model"], "no-such/model"),
    "empty model name": (["--model", ""], "--model"),
    "unknown device": (["--device", "tpu7"], "--device"),
    "unknown score": (["--also", "luck"], "--also"),
    "no rows": (["--rows", "0"], "--rows"),
    "enormous seed": (["--seed", "99999999999999999999"], "--seed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_writes_nothing(mistake, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arguments, option = MISTAKES[mistake]
    assert refused(invoke(NAME, *arguments, "--out", tmp_path / "out"), option)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").write_text("kept")
    done = invoke(NAME, "--model", tmp_path / "missing", "--out", tmp_path / "file" / "out")
    assert refused(done, "folder must be writable")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.fault("B83")
def test_a_truncated_or_pickled_model_leaves_earlier_results_as_they_were(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "heads.csv").write_text("earlier")
    for content in (weights.read_bytes()[:1000], pickle.dumps(Marker(tmp_path / "marker"))):
        weights.write_bytes(content)
        done = invoke(NAME, "--model", tmp_path / "model", "--out", tmp_path / "out")
        assert refused(done, "model.safetensors")
        assert contents(tmp_path / "out") == {"heads.csv": b"earlier"}
    assert not (tmp_path / "marker").exists()


def test_results_of_another_model_are_kept(home, tiny_run, tmp_path):
    before = contents(home / "out")
    assert refused(invoke(NAME, "--model", tmp_path, "--out", home / "out"), "--out", "model")
    assert contents(home / "out") == before


def test_a_long_run_adds_scores_by_distance_and_on_request_the_explained_share(
    tmp_path, monkeypatch
):
    text = " ".join(f"w{3 + i * i % 190}" for i in range(600))
    monkeypatch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
    tiny("gpt2", n_positions=300, vocab_size=400).save_pretrained(tmp_path / "model")
    words_tokenizer().save_pretrained(tmp_path / "model")
    options = ["--model", tmp_path / "model", "--rows", 1, "--length", 257, "--format", "pdf"]
    done = invoke(NAME, *options, "--explained", "--preferred", "--out", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    columns = pd.read_csv(tmp_path / "o" / "heads.csv").columns
    assert {"induction_at_128", "explained_by_preferred"} <= {*columns}
    assert str(interp.HeadScan.load(tmp_path / "o" / "heads.json").explained()) in done.stdout
    figures = {"score_mosaic.pdf", "pattern_page.pdf", "induction_by_distance.pdf"}
    assert set(contents(tmp_path / "o")) == TABLES | figures | {"explained_map.pdf"}


WRITERS = {NAME: "--rows=1 --quick", "render_gallery": "--draw=page,layers"}
BEGUN, WRITTEN = ("open", ".interp-partial-"), ("os.rename", ".interp-partial-")
"""Steps: before any file is written, and when all files are written and none has moved."""


@pytest.fixture
def run(home, processes, tmp_path):
    """Runs a script, which writes to a folder in `tmp_path`, to its end or to a step."""

    def run(script, name, stop=None, by=signal.SIGKILL):
        options = ["--model", home / "model", "--format", "png", *WRITERS[script].split()]
        done = processes.run(script, *options, "--out", tmp_path / name, stop=stop, by=by)
        expected = 0 if stop is None else -9 if by == signal.SIGKILL else 128 + by
        assert done.returncode == expected, done.stderr
        return contents(tmp_path / name) if (tmp_path / name).exists() else None

    return run


@pytest.mark.parametrize("script", WRITERS)
def test_a_stopped_script_leaves_nothing(script, run, tmp_path):
    assert run(script, "new", WRITTEN, signal.SIGTERM) is None
    assert list(tmp_path.iterdir()) == []


def test_a_killed_script_leaves_whole_files_and_the_next_run_clears_up(run, tmp_path):
    assert run(NAME, "new", WRITTEN) is None
    new = run(NAME, "new")
    assert new is not None
    (tmp_path / "old").mkdir()
    old = dict.fromkeys(new, b"old")
    for file in old:
        (tmp_path / "old" / file).write_bytes(b"old")
    assert run(NAME, "old", BEGUN) == old
    last = max(new)
    assert run(NAME, "old", ("os.rename", f"/{last}")) == {**new, last: b"old"}
    assert run(NAME, "old") == new
    left = [path.name for name in ("", "new", "old") for path in (tmp_path / name).iterdir()]
    assert sorted(left) == sorted(["new", "old", *new, *new])


@pytest.mark.fault("B68")
def test_a_killed_run_on_prompts_is_gone_on_from(processes, folder, tmp_path):
    lines = [f"w{3 + i % 90} é → w5 w6 w7 w{3 + i % 90} é w6" for i in range(8)]
    (tmp_path / "p.txt").write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "out→"
    options = ("--model", folder, "--prompts", tmp_path / "p.txt", "--out", out)
    killed = processes.run("score_prompts", *options, stop=("os.rename", "/000002.parquet"))
    assert killed.returncode == -9
    assert {path.name for path in out.iterdir()} == {".parts"}
    kept = sorted(out.glob(".parts/*/0*.parquet"))
    assert [part.name for part in kept] == ["000000.parquet", "000001.parquet"]
    for part in kept:
        pd.read_parquet(part)  # Each is whole.
    done = processes.run("score_prompts", *options)
    assert done.returncode == 0, done.stderr
    assert "wrote scores.json, scores.parquet" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    interp.score_prompts(interp.load_model(folder), tmp_path / "p.txt", tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    made_by = json.loads((out / "scores.json").read_text(encoding="utf-8"))["made_by"]
    assert made_by["file"]["name"] == "p.txt"


@pytest.fixture(scope="module")
def given_run(tmp_path_factory):
    """A run on patterns in a file, where transformers cannot be imported."""
    path = tmp_path_factory.mktemp("given")
    ids = [1, *range(10, 20), *range(10, 20), 2]
    patterns = interp.attention_patterns(tiny("gpt2"), ids).numpy()
    np.savez(path / "p.npz", layer10=patterns[0], layer9=patterns[1])
    (path / "ids.json").write_text(json.dumps([ids]))
    code = "import sys; sys.modules['transformers'] = None; import runpy; del sys.argv[0];"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    options = ["--patterns", "p.npz", "--tokens", "ids.json", "--special", "2, 1", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPTS / f"{NAME}.py"), *options],
        capture_output=True,
        text=True,
        cwd=path,
    )
    assert done.returncode == 0, done.stderr
    return path, done, patterns, ids


def test_patterns_in_a_file_give_the_same_tables_and_figures_without_a_model(given_run):
    path, _, patterns, ids = given_run
    assert {p.name for p in (path / "out").iterdir()} == TABLES | FIGURES
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
def test_the_record_names_the_files_of_the_patterns_and_what_is_missing(given_run):
    path, done, _, _ = given_run
    made_by = interp.HeadScan.load(path / "out" / "heads.json").made_by
    for name, file in (("patterns", "p.npz"), ("tokens", "ids.json")):
        digest = hashlib.sha256((path / file).read_bytes()).hexdigest()
        assert made_by[name] == {"file": file, "sha256": digest}
    assert (made_by["special"], made_by["dtype"]) == ([1, 2], "float32")
    assert {"<kind>_null", "induction_logit_effect", "text_<kind>"} <= set(made_by["left_out"])
    assert "model" not in made_by
    assert "induction_logit_effect, ov_copying" in done.stdout
    assert "p.npz" in done.stdout


@pytest.mark.fault("B55")
def test_rows_that_sum_to_less_need_learned_sinks(given_run, tmp_path):
    path, _, patterns, _ = given_run
    np.save(tmp_path / "less.npy", 0.5 * patterns)
    options = ["--patterns", tmp_path / "less.npy", "--tokens", path / "ids.json"]
    assert refused(invoke(NAME, *options, "--out", tmp_path / "out"), "sum to 1, got 0.5")
    assert not (tmp_path / "out").exists()
    options += ["--learned-sinks", "--format", "png"]
    done = invoke(NAME, *options, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "learned sinks" in done.stdout


MISPLACED = {
    "a model too": (["--patterns", "p.npz", "--model", "SmolLM2-135M"], "--model"),
    "rows too": (["--patterns", "p.npz", "--rows", "16"], "--rows"),
    "tokens alone": (["--tokens", "ids.json"], "--tokens"),
    "no tokens": (["--patterns", "p.npz"], "--tokens"),
    "no such file": (["--patterns", "no.npy"], "path"),
    "words for ids": (["--patterns", "p.npz", "--special", "BOS"], "--special"),
}


@pytest.mark.parametrize("mistake", MISPLACED)
def test_options_without_effect_and_unreadable_patterns_are_refused(mistake, given_run, tmp_path):
    arguments, option = MISPLACED[mistake]
    options = [given_run[0] / a if a in ("p.npz", "ids.json") else a for a in arguments]
    assert refused(invoke(NAME, *options, "--out", tmp_path / "out"), f"error: {option} must")
    assert list(tmp_path.iterdir()) == []


# Measured independently of this package (random repeated tokens with BOS, stripe over the
# queries after the first repeat; the sinks on random tokens, "above .9").
KNOWN = {
    "induction": "L18H6 .90 L17H3 .75 L17H4 .73 L18H7 .59 L17H5 .56 L23H2 .50 L23H7 .46 L20H6 .43",
    "previous token": "L16H0 .90 L11H1 .86 L19H3 .75 L22H1 .72 L2H1 .72 L1H2 .68 L19H8 .62",
    "duplicate token": "L14H3 .69 L8H0 .68 L15H6 .42",
    "sink": "L18H8 1 L22H0 .95 L24H3 .95",
}


def known(label):
    words = KNOWN[label].split()
    return dict(zip(words[::2], map(float, words[1::2])))


def check_known(table):
    table = table.set_index("name")
    assert len(table) == 270
    for label in KNOWN:
        for name, score in known(label).items():
            assert label in table.loc[name, "labels"], name
            assert table.loc[name, label.replace(" ", "_")] == pytest.approx(score, abs=0.1), name
            if label != "sink":
                assert table.loc[name, "label"] == label
    assert set(table.index[table["label"] == "induction"]) == set(known("induction"))
    # About 200 of the 270 heads rest on a sink.
    assert 180 <= sum("sink" in labels for labels in table["labels"]) <= 230


@pytest.mark.real_model
def test_the_readmes_command_finds_the_known_heads_as_they_are_committed(
    real_model, real_scan, tmp_path, monkeypatch
):
    monkeypatch.setattr("interp.models.load.load_for", lambda out, **source: real_model)
    done = invoke(NAME, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == TABLES | FIGURES
    for label in ("induction", "previous token", "duplicate token"):
        assert all(name in done.stdout for name in known(label))
    frame = interp.HeadScan.load(tmp_path / "heads.parquet").frame
    check_known(frame)
    pd.testing.assert_frame_equal(frame, real_scan.frame, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.real_model
def test_another_seed_finds_the_known_heads_too(real_model):
    check_known(interp.scan_heads(real_model, seed=1, quick=True).to_frame())
