"""The sink experiment: on a tiny model, as a user runs it, and on the default model."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from places import SCRIPTS
from tiny_models import tiny, words_tokenizer

import interp
from interp.effects import windowed
from interp.effects.sink_experiment import conditions, lines, sink_experiment, verdict
from interp.effects.windowed import Cut
from interp.kinds.probes import text as probe_of_text
from interp.models import hooks
from interp.models.ahead import name_of
from interp.models.load import FULL_NAME
from interp.scan.plan import encoded_passages
from interp.show import figures as plots

SCRIPT = SCRIPTS / "sink_experiment.py"
SIZES = {"size": 8, "kept": 2, "length": 30, "rows": 3}
CACHES = ["full", "window", "sink_window", "sink_window_text_positions", "other_window"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a tiny model, and the table of its heads."""
    path = tmp_path_factory.mktemp("sinks")
    tiny("llama").save_pretrained(path / "model")
    words_tokenizer().save_pretrained(path / "model")
    scan = interp.scan_heads(path / "model", rows=2, quick=True)
    scan.frame["label"] = ["induction", *["sink"] * 5, "mixed", "mixed"]
    scan.frame["labels"] = [[label] for label in scan.frame["label"]]
    scan.frame[["induction", "sink"]] = 1.0  # As heads with these labels have it.
    scan.save(path / "heads.json")
    return path


@pytest.fixture(scope="module")
def model(saved):
    return interp.load_model(saved / "model")


@pytest.fixture(scope="module")
def result(saved, model):
    return sink_experiment(model, interp.HeadScan.load(saved / "heads.json"), **SIZES)


def test_losses_are_means_over_the_queries_past_the_cache(model, result):
    tokens = torch.tensor([[*map(int, row.split())] for row in result["made_by"]["tokens"]])
    assert tokens.shape == (3, 30)
    assert (tokens[:, 0] == model.bos).all()
    assert list(result["loss"]) == CACHES
    for name, cut in conditions(8, 2).items():
        rows = windowed.losses(model, tokens, cut)
        assert result["loss"][name] == pytest.approx(float(rows[:, 10:].mean()))
        assert result["loss_by_position"][name] == pytest.approx(rows.mean(0).tolist())
        low, high = result["loss_interval"][name]
        assert low <= result["loss"][name] <= high
        gap = result["loss"][name] - result["loss"]["full"]
        assert result["cost"][name] == pytest.approx(gap, abs=1e-5)
        least, most = result["cost_interval"][name]
        assert least <= result["cost"][name] <= most
    assert result["counted_from"] == 10


def test_until_the_cache_is_full_all_conditions_are_alike(result):
    for name in CACHES:
        early = [result["loss_by_position"][n][:8] for n in (name, "full")]
        assert early[0] == pytest.approx(early[1], rel=1e-3, abs=1e-3)
    assert len(result["loss_by_position"]["full"]) == 29


def test_the_caches_compared_are_of_one_size_and_keep_what_they_say():
    held = {n: c.visible(30)[-1].nonzero()[:, 0].tolist() for n, c in conditions(8, 2).items() if c}
    assert held["window"] == [*range(22, 30)]
    assert held["sink_window"] == held["sink_window_text_positions"] == [0, 1, *range(24, 30)]
    assert held["other_window"] == [2, 3, *range(24, 30)]


def test_masses_are_those_of_the_patterns(model, result):
    tokens = torch.tensor([[*map(int, row.split())] for row in result["made_by"]["tokens"]])
    patterns = hooks.attention_patterns(model, tokens)
    late = torch.stack([*patterns])[..., 10:, :]
    first = late[..., :2].sum(-1).mean((1, 3)).flatten()
    away = (late * ~Cut(8).visible(30)[10:]).sum(-1).mean((1, 3)).flatten() - first
    assert [head["on_first"] for head in result["heads"]] == pytest.approx(first.tolist(), abs=1e-5)
    others = [head["on_others"] for head in result["heads"]]
    assert others == pytest.approx(away.tolist(), abs=1e-5)
    assert [head["name"] for head in result["heads"]][:5] == [
        "L0H0",
        "L0H1",
        "L0H2",
        "L0H3",
        "L1H0",
    ]


def test_each_label_has_its_own_heads_cut(model, result):
    tokens = torch.tensor([[*map(int, row.split())] for row in result["made_by"]["tokens"]])
    counts = {label: found["heads"] for label, found in result["labels"].items()}
    assert counts == {"induction": 1, "sink": 5, "mixed": 2}
    heads = torch.zeros(2, 4, dtype=torch.bool)
    heads[1, 2:] = True
    full = windowed.losses(model, tokens, None)[:, 10:].mean()
    caches = {"cost": Cut(8), "cost_kept": Cut(8, 2, renumbered=False)}
    for name, cut in caches.items():
        lost = windowed.losses(model, tokens, cut, heads=heads)[:, 10:].mean() - full
        assert result["labels"]["mixed"][name] == pytest.approx(float(lost), abs=1e-5)
    mean = (result["heads"][6]["on_first"] + result["heads"][7]["on_first"]) / 2
    assert result["labels"]["mixed"]["on_first"] == pytest.approx(mean)


def test_the_verdict_goes_by_the_intervals(result):
    made_by = {"made_by": {"size": 8, "kept": 2}, "cost": {"window": 2.0, "sink_window": 0.5}}
    apart = {"window": [1.0, 3.0], "sink_window": [0.2, 0.8]}
    assert verdict({**made_by, "cost_interval": apart}) == (
        "the window alone is clearly worse: a cache of the last 8 tokens costs +2.00 nats"
        " [+1.00, +3.00], one of the first 2 and the last 6 +0.50 nats [+0.20, +0.80]"
    )
    near = {"window": [1.0, 3.0], "sink_window": [0.2, 1.1]}
    assert "not clearly worse" in verdict({**made_by, "cost_interval": near})
    below = {"window": [-0.1, 3.0], "sink_window": [-0.8, -0.5]}
    assert "not clearly worse" in verdict({**made_by, "cost_interval": below})
    told = "\n".join(lines(result))
    assert "the first 2 and the last 6" in told
    assert result["verdict"] in told
    assert "tokens 2 to 3 and the last 6" in told
    assert "5 heads" in told


def test_the_figure_has_all_losses_and_all_heads(result):
    top, heads, costs = plots.sink_losses(result).axes
    assert len(top.get_legend_handles_labels()[0]) == len(CACHES)
    dots = [line for line in heads.get_lines() if line.get_marker() == "o"]
    assert sorted(len(line.get_xdata()) for line in dots) == [1, 2, 5]
    assert len(costs.patches) == 6
    with pytest.raises(interp.InputError, match="result must have heads with a label"):
        plots.sink_losses({**result, "labels": {}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kept": 0}, "kept must be at least 1, got 0"),
        ({"kept": 8}, "kept must be less than the cache's 8 tokens, got 8"),
        ({"length": 11}, r"length must be at least size \+ kept \+ 2, 12 tokens, got 11"),
        ({"rows": 1}, "rows must be at least 2, got 1"),
        ({"length": 65}, "length must fit the model's context of 64 tokens, got 65"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(saved, model, changes, said):
    scan = interp.HeadScan.load(saved / "heads.json")
    with pytest.raises(interp.InputError, match=said):
        sink_experiment(model, scan, **{**SIZES, **changes})


def test_a_scan_of_another_model_and_a_model_without_text_are_refused(saved, model):
    scan = interp.HeadScan.load(saved / "heads.json")
    bare = interp.load_model(tiny("llama"))
    other = interp.HeadScan(scan.frame, {"model": "other"})
    with pytest.raises(
        interp.InputError, match="scan must be of the model, model, got one of other"
    ):
        sink_experiment(model, other, **SIZES)
    fewer = interp.HeadScan(scan.frame.iloc[:4], {})
    with pytest.raises(interp.InputError, match="model with 8 heads, got one with 4"):
        sink_experiment(model, fewer, **SIZES)
    nameless = interp.HeadScan(scan.frame, {})
    with pytest.raises(interp.InputError, match="length must leave at least 2 rows of text, got 0"):
        sink_experiment(bare, nameless, **SIZES)


def test_the_script_writes_numbers_and_figure_and_nothing_else(saved, tmp_path):
    sizes = [part for name, value in SIZES.items() for part in (f"--{name}", value)]
    done = run(
        *("--model", saved / "model", "--scan", saved / "heads.json", "--out", tmp_path / "out"),
        *sizes,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "sink_experiment.json",
        "sink_experiment.png",
        "sink_experiment.svg",
    ]
    text = (tmp_path / "out" / "sink_experiment.json").read_text(encoding="utf-8")
    content = json.loads(text)
    assert {"full", "window", "sink_window"} <= content["loss"].keys()
    assert content["verdict"] in done.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kept", 128), "--kept must be less than the cache's 128 tokens, got 128"),
        (("--length", 100), "--length must be at least size + kept + 2, 134 tokens, got 100"),
        (("--format", "gif"), "--format must list some of png, svg, pdf, got 'gif'"),
        (("--scan", "nowhere.json", "--size", 8, "--length", 60), "--scan:"),
        (("--rows", 1), "--rows"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(saved, tmp_path, options, said):
    failed = run("--model", saved / "model", "--out", tmp_path / "out", *options)
    assert failed.returncode == 2
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--length", 300), "--length must fit the model's context of 64 tokens, got 300"),
        (("--scan", "other.json"), "--scan: scan must be of the model, model, got one of other"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_its_weights_are_read(
    saved, tmp_path, options, said
):
    folder = tmp_path / "model"
    shutil.copytree(saved / "model", folder)
    (folder / "model.safetensors").write_bytes(b"none of this is read")
    scan = interp.HeadScan.load(saved / "heads.json")
    interp.HeadScan(scan.frame, {**scan.made_by, "model": "other"}).save(tmp_path / "other.json")
    options = [tmp_path / part if part == "other.json" else part for part in options]
    short = () if "--length" in options else ("--size", 8, "--kept", 2, "--length", 30)
    failed = run("--model", folder, "--out", tmp_path / "out", *short, *options)
    assert (failed.returncode, failed.stderr.strip()) == (2, f"error: {said}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["SmolLM2-135M", "some/model", "folder", "file"])
def test_a_models_name_is_known_before_it_is_loaded(saved, name):
    given = {"folder": saved / "model", "file": saved / "heads.json"}.get(name, name)
    told = {"SmolLM2-135M": FULL_NAME, "folder": "model", "file": "heads.json"}.get(name, name)
    assert name_of(given) == told


@pytest.mark.real_model
def test_without_its_first_tokens_the_default_model_is_clearly_worse(real_model, real_scan):
    tokens = probe_of_text(
        encoded_passages(real_model), rows=3, length=160, bos=real_model.bos
    ).tokens
    full, window, kept = (
        windowed.losses(real_model, tokens, cut)[:, 68:].mean(1)
        for cut in (None, Cut(64), Cut(64, kept=4))
    )
    assert ((window - full) > 0.5).all()
    assert ((kept - full) < 0.25 * (window - full)).all()
