import json

import pytest
from invoked import invoke, refused

import interp

OPTIONS = ("--period", "none", "--format", "svg", "--width", 32, "--layers", 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("two-layer")
    options = (*OPTIONS, "--checkpoints", 2)
    done = invoke("train_two_layer", "--steps", 2, *options, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_writes_a_model_that_opens_its_record_and_its_figure(finished):
    assert {path.name for path in finished.iterdir()} >= {
        *("config.json", "model.safetensors", "training.json"),
        *("phase_change.svg", "checkpoint.safetensors"),
    }
    folders = [finished / f"checkpoint-{step}" for step in (0, 2)]
    first, model = (interp.load_model(folder).digest for folder in folders)
    assert first != model
    model = interp.load_model(finished)
    assert (model.n_layers, model.n_heads, model.n_ctx, model.bos) == (3, 4, 65, 0)
    assert model.plain.config.n_embd == 32
    record = json.loads((finished / "training.json").read_text(encoding="utf-8"))
    assert record["recipe"]["period"] == "none"
    assert [look["step"] for look in record["looks"]] == [0, 2]
    assert [head["name"] for head in record["heads"]] == [
        f"L{i}H{j}" for i in range(3) for j in range(4)
    ]


def test_it_resumes_from_its_checkpoint_and_draws_two_runs(finished):
    options = ("--steps", 3, *OPTIONS, "--out", finished, "--compare", finished)
    done = invoke("train_two_layer", *options)
    assert done.returncode == 0, done.stderr
    record = json.loads((finished / "phase_change.json").read_text(encoding="utf-8"))
    assert [each["steps"] for each in record["runs"]] == [3, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--period", "weekly"), "period must be"),
        (("--compare", "nowhere"), "nowhere"),
        (("--compare", ".", "--compare", ".", "--compare", "."), "--compare must name at most 2"),
    ],
)
def test_a_mistake_gets_one_line_and_writes_nothing(tmp_path, arguments, words):
    assert refused(invoke("train_two_layer", *arguments, "--out", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()


def test_a_folder_in_the_place_of_a_file_is_refused_before_training(tmp_path):
    (tmp_path / "out" / "config.json").mkdir(parents=True)
    assert refused(invoke("train_two_layer", "--out", tmp_path / "out"), "config.json")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_another_run_is_left_alone(finished):
    before = contents(finished)
    done = invoke("train_two_layer", "--steps", 3, "--period", "fixed", "--out", finished)
    assert refused(done, "period none, not fixed")
    assert before == contents(finished)
