"""Which checkpoints a sweep finds, and what it calls them."""

import pytest
from tiny_models import tiny

from interp.errors import InputError
from interp.sweeps.targets import step_of, targets_of


def checkpoints(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")


def labels(*given, **more):
    return [(target.model, target.revision) for target in targets_of(*given, **more)]


def test_globs_folders_and_lists_find_the_checkpoints_of_each_run_by_number(tmp_path):
    names = [f"{run}/checkpoint-{n}" for run in ("0", "b") for n in (5, 40, 300)]
    checkpoints(tmp_path, *names, "plain")
    of_runs = [(run, f"checkpoint-{n}") for run in ("run-0", "b") for n in (5, 40, 300)]
    assert labels(f"{tmp_path}/*/checkpoint-*") == of_runs
    assert labels([tmp_path / "0", tmp_path / "b"]) == of_runs
    (tmp_path / "list.txt").write_text(f"{tmp_path}/0\n\n{tmp_path}/b\n")
    assert labels(tmp_path / "list.txt") == of_runs
    assert labels(tmp_path / "plain") == [("plain", "main")]
    assert labels({"mine": tmp_path / "plain"}) == [("mine", "main")]
    assert [step_of(revision) for _, revision in of_runs[:3]] == [5, 40, 300]


def test_revisions_of_names_on_the_hub_are_expanded():
    found = targets_of("org/pythia-{70m,160m}", "step{0..2000..1000}")
    assert [target.revision for target in found[:3]] == ["step0", "step1000", "step2000"]
    assert {target.model for target in found} == {"org/pythia-70m", "org/pythia-160m"}
    assert all(target.on_hub for target in found)
    assert not targets_of("org/pythia-70m")[0].on_hub


def test_what_would_mix_two_models_is_refused(tmp_path):
    checkpoints(tmp_path, "a/run/checkpoint-1", "b/run/checkpoint-2", "c/plain", "d/plain")
    for models in (f"{tmp_path}/*/run/*", f"{tmp_path}/*/plain", {"x": f"{tmp_path}/*/run/*"}):
        with pytest.raises(InputError, match="models must have different names"):
            targets_of(models)
    assert len(targets_of({"one": f"{tmp_path}/a/run", "two": f"{tmp_path}/b/run"})) == 2
    with pytest.raises(InputError, match="revisions must come with hub ids"):
        targets_of(tmp_path / "c/plain", "main")
    with pytest.raises(InputError, match="matches nothing"):
        targets_of(f"{tmp_path}/nothing-*")
    with pytest.raises(InputError, match="count up"):
        targets_of("gpt2", "step{5..1}")


def test_the_digest_follows_the_contents_of_the_files(tmp_path):
    checkpoints(tmp_path, "a/run/checkpoint-1")
    target = targets_of(tmp_path / "a/run/checkpoint-1")[0]
    before = target.digest(tmp_path / "cache")
    assert before == target.digest(tmp_path / "cache") == target.digest(None)
    (tmp_path / "a/run/checkpoint-1/optimizer.pt").write_text("not of the model")
    assert target.digest(None) == before
    (tmp_path / "a/run/checkpoint-1/config.json").write_text('{"other": 1}')
    assert target.digest(tmp_path / "cache") != before
    model = tiny("gpt2")
    loaded = targets_of({"toy": [model]})[0]
    assert loaded.digest(None) == targets_of({"other": model})[0].digest(None)
    assert (loaded.model, loaded.revision) == ("toy", "step-0")
