"""Sweeps: one table from any number of workers, in any order, stopped or not."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor

import pandas as pd
import pytest
import torch
from tiny_models import tiny, words_tokenizer

import interp
from interp.errors import InputError
from interp.sweeps.sweep import read_sweep

FEW = {"rows": 2, "quick": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with two checkpoints each, and one checkpoint that cannot be loaded."""
    from interp.models import save

    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(("a/checkpoint-1", "a/checkpoint-20", "b/checkpoint-1")):
        model = tiny("gpt2")
        for weight in model.parameters():
            weight.data *= 1 + number
        save(interp.load_model(model, words_tokenizer()), folder / name)
    (folder / "b/checkpoint-20").mkdir()
    (folder / "b/checkpoint-20/config.json").write_text('{"model_type": "gpt2"}')
    return folder


@pytest.fixture(scope="module")
def swept(runs, tmp_path_factory):
    return interp.sweep(runs / "*" / "checkpoint-*", out=tmp_path_factory.mktemp("out"), **FEW)


def parts(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*-*.parquet")}


def test_the_package_does_not_hide_the_function():
    import interp.sweeps.sweep

    assert callable(interp.sweep)


def test_a_table_holds_each_checkpoints_scan_and_the_reason_of_each_failure(runs, swept):
    assert "4 units of 2 models: 3 done, 1 failed" in repr(swept)
    frame = swept.to_frame()
    assert list(frame["step"]) == [1] * 8 + [20] * 8 + [1] * 8 + [20]
    model = interp.load_model(runs / "a" / "checkpoint-20")
    scan = interp.scan_heads(model, **FEW).to_frame()
    rows = frame[(frame["model"] == "a") & (frame["step"] == 20)].reset_index(drop=True)
    for name in scan:
        assert rows[name].tolist() == scan[name].tolist() or rows[name].equals(scan[name])
    assert set(rows["digest"]) == {model.digest}
    assert rows["failed"].isna().all()
    failed = swept.failed().to_dict("records")
    assert [(row["model"], row["revision"]) for row in failed] == [("b", "checkpoint-20")]
    assert "safetensors" in failed[0]["failed"]


def test_the_folder_is_one_table_for_pandas(swept):
    frame = pd.read_parquet(swept.out)
    assert len(frame) == 25
    ours = swept.to_frame()
    assert [*map(str, frame["revision"].tolist())].count("checkpoint-20") == 9
    for name in ("induction", "layer", "failed"):
        assert sorted(frame[name].dropna()) == sorted(ours[name].dropna())
    assert set(frame.columns) | {"step"} == set(ours.columns)


def test_a_checkpoint_that_was_half_written_is_scanned_once_it_is_whole(runs, tmp_path):
    whole, half = runs / "a" / "checkpoint-1", tmp_path / "run" / "checkpoint-1"
    shutil.copytree(whole, half)
    weights = half / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    first = interp.sweep(half, out=tmp_path / "out", **FEW)
    assert "whole safetensors file" in first.failed()["failed"].item()
    shutil.copy(whole / weights.name, weights)
    done = interp.sweep(half, out=tmp_path / "out", **FEW)
    assert done.failed().empty
    assert len(done.to_frame()) == 8


def test_a_dry_run_over_revisions_of_the_hub_counts_them(tmp_path):
    plan = interp.sweep("org/model", "step{0..2000..500}", out=tmp_path / "out", dry_run=True)
    assert "5 units of 1 model: 5 to do)" in repr(plan)


def test_what_is_there_is_not_done_again_and_what_failed_only_when_asked(runs, tmp_path):
    out, models = tmp_path / "out", f"{runs}/a/checkpoint-*"
    plan = interp.sweep(models, out=out, dry_run=True, **FEW)
    assert list(plan.plan["state"]) == ["to do", "to do"]
    assert "2 to do" in repr(plan)
    assert not out.exists()
    calls = []
    interp.sweep(models, out=out, progress=lambda *done: calls.append(done), **FEW)
    assert calls == [(1, 2), (2, 2)]
    before = parts(out)
    lost = min(before)
    (out / lost).unlink()
    (out / lost.with_name(lost.name.replace("part", "failed"))).write_bytes(before[lost])
    again = interp.sweep(models, out=out, **FEW)
    assert "1 done, 1 failed" in repr(again)
    interp.sweep(models, out=out, retry_failed=True, **FEW)
    assert parts(out) == before


def test_other_workers_write_the_same_bytes(runs, swept, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        interp.sweep([runs / "b", runs / "a"], out=tmp_path, executor=pool, **FEW)
    assert parts(tmp_path) == parts(swept.out)


def test_results_with_other_settings_or_of_loaded_models_elsewhere_are_refused(swept, runs):
    with pytest.raises(InputError, match="settings must be some of"):
        interp.sweep(runs / "a", out=swept.out, row=3)
    with pytest.raises(InputError, match="out must have results with the same settings"):
        interp.sweep(runs / "a", out=swept.out, rows=3)
    with pytest.raises(InputError, match="models must be names or paths"):
        interp.sweep({"x": tiny("gpt2")}, out=swept.out, processes=1, **FEW)
    with pytest.raises(InputError, match="prompts must be left out for scan"):
        interp.sweep(runs / "a", prompts=["a"], out=swept.out)
    with pytest.raises(InputError, match="prompts must be given for effects"):
        interp.sweep(runs / "a", what="effects", out=swept.out)
    with pytest.raises(InputError, match="folder of a sweep"):
        read_sweep(runs)


class Dying:
    """An executor whose workers die on one model, and now and then on others."""

    def __init__(self):
        self.asked = 0

    def submit(self, function, task):
        self.asked += 1
        future = Future()
        if task[0].target.model == "b" or self.asked == 1:
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(function(task))
        return future


def test_a_worker_that_dies_is_replaced_and_what_kills_every_worker_fails(runs, tmp_path):
    models = [runs / "a", runs / "b" / "checkpoint-1"]
    done = interp.sweep(models, out=tmp_path, executor=Dying(), **FEW)
    assert "2 done, 1 failed" in repr(done)
    assert "the process that ran it died" in done.failed()["failed"].item()


def test_prompts_are_sliced_and_keep_their_numbers(runs, tmp_path):
    prompts = ["w3 w4 w5 w3 w4 w5 w3 w4", "w4 w5 w4 w5 w4 w5 w4 w5", "w5 w5 w5 w5 w5 w5"]
    done = interp.sweep(
        runs / "a" / "checkpoint-1", prompts=prompts, what="prompts", out=tmp_path, batch=2
    )
    assert len(done.plan) == 2
    whole = interp.score_prompts(runs / "a" / "checkpoint-1", prompts).to_frame()
    columns = ["prompt", "layer", "head", "score", "value"]
    key = columns[:-1]
    ours, theirs = (
        f[columns].sort_values(key, ignore_index=True) for f in (done.to_frame(), whole)
    )
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)


def test_effects_on_a_task_of_your_own(runs, tmp_path):
    pairs = "w3 w4,w3 w5, w4, w5\nw6 w4,w6 w5, w4, w5\n"
    (tmp_path / "pairs.csv").write_text(f"clean,corrupted,right,wrong\n{pairs}")
    options = {"what": "effects", "prompts": str(tmp_path / "pairs.csv"), "how": "zero"}
    done = interp.sweep(runs / "a" / "checkpoint-1", out=tmp_path / "out", **options)
    assert done.failed().empty, done.failed()["failed"].tolist()
    assert done.to_frame()["effect"].abs().gt(0).any()


def test_the_callers_threads_come_back(swept, runs, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    interp.sweep(runs / "b" / "checkpoint-20", out=tmp_path, **FEW)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_watching_takes_checkpoints_as_they_appear(runs, tmp_path, monkeypatch):
    from interp.sweeps import sweep as module

    whole, half = runs / "a" / "checkpoint-20", tmp_path / "run" / "checkpoint-20"
    copies = iter(sorted(whole.iterdir()))

    def sleep(_):  # One file more at each look.
        half.mkdir(parents=True, exist_ok=True)
        if (path := next(copies, None)) is not None:
            (half / path.name).symlink_to(path)

    monkeypatch.setattr(module.time, "sleep", sleep)
    done = interp.sweep(f"{half.parent}/*-*", out=tmp_path / "out", watch=0.5, **FEW)
    assert "1 units of 1 model: 1 done" in repr(done)


KILLED = """
import sys, interp
if __name__ == "__main__":
    number = int(sys.argv[3]) or None
    interp.sweep(sys.argv[1], out=sys.argv[2], processes=number, rows=2, quick=True)
"""


@pytest.mark.slow
def test_killed_sweeps_resume_and_processes_write_the_same_bytes(runs, swept, tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(KILLED)
    command = [sys.executable, str(script), f"{runs}/*/checkpoint-*", str(out)]
    for kill in range(5):
        running = subprocess.Popen([*command, str(kill % 2 * 2)])
        time.sleep(6 + kill)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    subprocess.run([*command, "2"], check=True)
    assert parts(out) == parts(swept.out)
    assert not list(out.rglob(".interp-partial-*"))
