"""The script as a user runs it, in a process of its own."""

import json
import subprocess
import sys

import pytest
from places import SCRIPTS

import interp
from interp.show.figures import phase_change

SCRIPT = SCRIPTS / "train_two_layer.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("two-layer")
    done = run("--steps", 2, "--period", "none", "--format", "svg", "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_writes_a_model_that_opens_its_record_and_its_figure(finished):
    assert {path.name for path in finished.iterdir()} >= {
        *("config.json", "model.safetensors", "training.json"),
        *("phase_change.svg", "checkpoint.safetensors"),
    }
    model = interp.load_model(finished)
    assert (model.n_layers, model.n_heads, model.n_ctx, model.bos) == (2, 4, 65, 0)
    record = json.loads((finished / "training.json").read_text(encoding="utf-8"))
    assert record["recipe"]["period"] == "none"
    assert [look["step"] for look in record["looks"]] == [0, 2]
    assert [head["name"] for head in record["heads"]] == [
        f"L{i}H{j}" for i in (0, 1) for j in range(4)
    ]


def test_it_goes_on_from_its_checkpoint_and_draws_another_run_beside_its_own(finished):
    done = run(
        *("--steps", 3, "--period", "none", "--format", "svg", "--out", finished),
        *("--beside", finished),
    )
    assert done.returncode == 0, done.stderr
    assert "from step 2" in done.stderr
    record = json.loads((finished / "phase_change.json").read_text(encoding="utf-8"))
    assert [each["steps"] for each in record["runs"]] == [3, 2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--period", "weekly"), "period must be"),
        (("--beside", "nowhere"), "nowhere/training.json must be the record of a finished run"),
        (("--beside", ".", "--beside", ".", "--beside", "."), "--beside must name at most 2"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2_and_writes_nothing(tmp_path, arguments, told):
    done = run(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["config.json", "phase_change.svg", "checkpoint.safetensors"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_training(tmp_path, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    done = run("--steps", 2, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"out/{name} must be a file, got a folder of that name" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_a_folder_of_another_run_is_left_alone(finished):
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    done = run("--steps", 3, "--period", "fixed", "--out", finished)
    assert done.returncode == 2
    assert "got one with period none, not fixed: choose another folder" in done.stderr
    assert before == {path.name: path.read_bytes() for path in finished.iterdir()}


@pytest.mark.parametrize("runs", [0, 4])
def test_a_figure_of_no_run_or_too_many_is_refused(runs):
    with pytest.raises(interp.InputError, match=f"records must be of 1 to 3 runs, got {runs}"):
        phase_change([{}] * runs)
