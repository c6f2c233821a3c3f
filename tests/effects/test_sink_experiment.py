"""The sink experiment on a tiny model, its script, and its effect in the default model."""

import json
import shutil

import pytest
import torch
from invoked import invoke, refused
from labelled import common_words
from tiny_models import tiny

import interp
from interp.effects import windowed
from interp.effects.sink_experiment import (
    SinkExperiment,
    conditions,
    sink_experiment,
    verdict,
)
from interp.effects.windowed import Cut
from interp.kinds.probes import text as probe_of_text
from interp.models import hooks
from interp.models.load import FULL_NAME, name_of
from interp.scan.plan import encoded_passages
from interp.show import figures

SIZES = {"size": 8, "kept": 2, "length": 30, "rows": 3}
CACHES = ["full", "window", "sink_window", "sink_window_text_positions", "other_window"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a tiny model, and the table of its heads."""
    path = tmp_path_factory.mktemp("sinks")
    tiny("llama").save_pretrained(path / "model")
    common_words().save_pretrained(path / "model")
    scan = interp.scan_heads(path / "model", rows=2, quick=True)
    scan.frame["label"] = ["induction", *["sink"] * 5, "mixed", "mixed"]
    scan.frame["labels"] = [[label] for label in scan.frame["label"]]
    scan.frame[["induction", "sink"]] = 1.0  # The scores that heads with these labels have.
    scan.save(path / "heads.json")
    return path


@pytest.fixture(scope="module")
def model(saved):
    return interp.load_model(saved / "model")


@pytest.fixture(scope="module")
def result(saved, model):
    return sink_experiment(model, interp.HeadScan.load(saved / "heads.json"), **SIZES)


@pytest.fixture(scope="module")
def tokens(result):
    return torch.tensor([[*map(int, row.split())] for row in result["made_by"]["tokens"]])


def test_losses_are_means_over_the_queries_past_the_cache(model, result, tokens):
    assert tokens.shape == (3, 30)
    assert (tokens[:, 0] == model.bos).all()
    assert list(result["loss"]) == CACHES
    assert len(result["loss_by_position"]["full"]) == 29
    for name, (_, cut) in conditions(8, 2).items():
        rows = windowed.losses(model, tokens, cut)
        assert result["loss"][name] == pytest.approx(float(rows[:, 10:].mean()))
        by_position = result["loss_by_position"][name]
        assert by_position == pytest.approx(rows.mean(0).tolist())
        # Until the cache is full, all conditions are alike.
        full = result["loss_by_position"]["full"][:8]
        assert by_position[:8] == pytest.approx(full, rel=1e-3, abs=1e-3)
        low, high = result["loss_interval"][name]
        assert low <= result["loss"][name] <= high
        gap = result["loss"][name] - result["loss"]["full"]
        assert result["cost"][name] == pytest.approx(gap, abs=1e-5)
        least, most = result["cost_interval"][name]
        assert least <= result["cost"][name] <= most
    assert result["counted_from"] == 10


def test_the_compared_caches_have_one_size_and_keep_the_right_tokens():
    cuts = {name: cut for name, (_, cut) in conditions(8, 2).items() if cut}
    held = {name: cut.visible(30)[-1].nonzero()[:, 0].tolist() for name, cut in cuts.items()}
    assert held["window"] == [*range(22, 30)]
    assert held["sink_window"] == held["sink_window_text_positions"] == [0, 1, *range(24, 30)]
    assert held["other_window"] == [2, 3, *range(24, 30)]


def test_masses_are_those_of_the_patterns(model, result, tokens):
    late = torch.stack([*hooks.attention_patterns(model, tokens)])[..., 10:, :]
    first = late[..., :2].sum(-1).mean((1, 3)).flatten()
    away = (late * ~Cut(8).visible(30)[10:]).sum(-1).mean((1, 3)).flatten() - first
    assert [head["on_first"] for head in result["heads"]] == pytest.approx(first.tolist(), abs=1e-5)
    others = [head["on_others"] for head in result["heads"]]
    assert others == pytest.approx(away.tolist(), abs=1e-5)
    assert [head["name"] for head in result["heads"]][3:5] == ["L0H3", "L1H0"]


def test_each_label_has_its_own_heads_cut(model, result, tokens):
    counts = {label: group["heads"] for label, group in result["labels"].items()}
    assert counts == {"induction": 1, "sink": 5, "mixed": 2}
    heads = torch.zeros(2, 4, dtype=torch.bool)
    heads[1, 2:] = True
    full = windowed.losses(model, tokens, None)[:, 10:].mean()
    caches = {"cost": Cut(8), "cost_kept": Cut(8, 2, renumbered=False)}
    for name, cut in caches.items():
        cost = windowed.losses(model, tokens, cut, heads=heads)[:, 10:].mean() - full
        assert result["labels"]["mixed"][name] == pytest.approx(float(cost), abs=1e-5)
    mean = (result["heads"][6]["on_first"] + result["heads"][7]["on_first"]) / 2
    assert result["labels"]["mixed"]["on_first"] == pytest.approx(mean)


def test_the_verdict_depends_on_the_intervals(result):
    made_by = {"made_by": {"size": 8, "kept": 2}, "cost": {"window": 2.0, "sink_window": 0.5}}
    for window, with_first, word in (
        ([1.0, 3.0], [0.2, 0.8], "is clearly worse"),
        ([1.0, 3.0], [0.2, 1.1], "is not clearly worse"),
        ([-0.1, 3.0], [-0.8, -0.5], "is not clearly worse"),
    ):
        ends = {"window": window, "sink_window": with_first}
        assert word in verdict({**made_by, "cost_interval": ends})
    assert result["caches"]["other_window"] == "tokens 2 to 3 and the last 6"


def test_the_result_survives_its_file_and_is_a_table(result, tmp_path):
    result.save(tmp_path / "sinks.json")
    again = SinkExperiment.load(tmp_path / "sinks.json")
    assert again.to_json() == result.to_json()
    assert result["verdict"] in repr(again)
    frame = result.to_frame().set_index("condition")
    assert frame["loss"].to_dict() == result["loss"]
    assert frame.loc["window", "cost_low"] == result["cost_interval"]["window"][0]


def test_the_figure_has_all_losses_and_all_heads(result):
    top, heads, costs = figures.sink_losses(result).axes
    assert len(top.get_legend_handles_labels()[0]) == len(CACHES)
    dots = [line for line in heads.get_lines() if line.get_marker() == "o"]
    assert sorted(len(line.get_xdata()) for line in dots) == [1, 2, 5]
    assert len(costs.patches) == 6


def test_what_does_not_fit_is_refused(saved, model):
    scan = interp.HeadScan.load(saved / "heads.json")
    for name, value in (("kept", 0), ("kept", 8), ("length", 11), ("rows", 1), ("length", 65)):
        with pytest.raises(interp.InputError, match=f"^{name} must"):
            sink_experiment(model, scan, **{**SIZES, name: value})
    with pytest.raises(interp.InputError, match=r"^scan must be of the model"):
        sink_experiment(model, interp.HeadScan(scan.frame, {"model": "other"}), **SIZES)
    without_text = interp.load_model(tiny("llama"))
    with pytest.raises(interp.InputError, match="length must leave at least 2 rows of text"):
        sink_experiment(without_text, interp.HeadScan(scan.frame, {}), **SIZES)


def test_the_script_writes_numbers_and_figure_and_nothing_else(saved, tmp_path):
    sizes = [part for name, value in SIZES.items() for part in (f"--{name}", value)]
    files = ("--model", saved / "model", "--scan", saved / "heads.json", "--out", tmp_path / "out")
    done = invoke("sink_experiment", *files, *sizes)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "sink_experiment.json",
        "sink_experiment.png",
        "sink_experiment.svg",
    ]
    content = json.loads((tmp_path / "out" / "sink_experiment.json").read_text(encoding="utf-8"))
    assert content["verdict"] in done.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kept", 128), "--kept must be less than the cache's 128 tokens"),
        (("--length", 100), "--length must be at least size + kept + 2"),
        (("--length", 300), "--length must fit the model's context of 64 tokens"),
        (("--scan", "nowhere.json", "--size", 8, "--length", 60), "--scan:"),
    ],
)
def test_a_mistake_is_refused_before_the_weights_are_read(saved, tmp_path, options, words):
    shutil.copytree(saved / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"not read")
    folders = ("--model", tmp_path / "model", "--out", tmp_path / "out")
    assert refused(invoke("sink_experiment", *folders, *options), words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["SmolLM2-135M", "some/model", "folder", "file"])
def test_a_models_name_is_known_before_it_is_loaded(saved, name):
    given = {"folder": saved / "model", "file": saved / "heads.json"}.get(name, name)
    known = {"SmolLM2-135M": FULL_NAME, "folder": "model", "file": "heads.json"}.get(name, name)
    assert name_of(given) == known


@pytest.mark.slow
@pytest.mark.real_model
def test_without_its_first_tokens_the_default_model_is_clearly_worse(real_model):
    tokens = probe_of_text(
        encoded_passages(real_model).values(), rows=3, length=160, bos=real_model.bos
    ).tokens
    full, window, kept = (
        windowed.losses(real_model, tokens, cut)[:, 68:].mean(1)
        for cut in (None, Cut(64), Cut(64, kept=4))
    )
    assert ((window - full) > 0.5).all()
    assert ((kept - full) < 0.25 * (window - full)).all()
