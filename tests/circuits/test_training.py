"""Training a two-layer model: the rows, what is looked at, and going on where it stopped."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from places import TESTS
from safetensors import safe_open
from safetensors.torch import save_file

from interp.circuits import checkpoint
from interp.circuits.training import BOS, Recipe, Run, copy_losses, draw_rows
from interp.errors import InputError
from interp.models import attention_only

SMALL = {"vocabulary": 40, "length": 25, "least": 3, "most": 9, "rows": 4, "only": 6}


def model_for(recipe: Recipe):
    return attention_only(
        n_ids=recipe.vocabulary + 1,
        n_ctx=recipe.length,
        d_model=recipe.width,
        n_heads=recipe.heads,
        n_layers=2,
        seed=recipe.seed,
    )


def same(one: dict, two: dict) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def trained(run: Run, steps: int) -> Run:
    for _ in range(steps):
        run.advance()
    return run


def luck(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_row_is_new_up_to_its_start_and_comes_again_at_its_period_from_there_on():
    probe = draw_rows(Recipe(**SMALL), 200, luck())
    starts = probe.parts["random"].sum(1) - 1
    assert probe.tokens[:, 0].eq(BOS).all()
    for row, period, start in zip(probe.tokens[:, 1:], probe.periods, starts.tolist(), strict=True):
        assert len(set(row[:start].tolist())) == start
        assert torch.equal(row[start:], row[start - period : -period])
        assert period <= start <= 24 - period or period == start
    at_once = sum(p == s for p, s in zip(probe.periods, starts.tolist(), strict=True))
    assert 0.65 < at_once / 200 < 0.9
    assert probe.tokens[:, 1:].min() >= 1
    assert probe.tokens.max() == 40


def test_every_period_and_every_start_is_drawn():
    probe = draw_rows(Recipe(**SMALL), 2000, luck())
    assert set(probe.periods) == set(range(3, 10))
    assert set((probe.parts["random"].sum(1) - 1).tolist()) == set(range(3, 22))


def test_the_controls_have_one_period_or_no_repeat():
    fixed = draw_rows(Recipe(**SMALL, period="fixed"), 50, luck())
    assert set(fixed.periods) == {6}
    none = draw_rows(Recipe(**SMALL, period="none"), 50, luck())
    assert none.periods == ()
    assert not none.parts["repeated"].any()
    assert all(len(set(row.tolist())) == 25 for row in none.tokens)


def test_the_loss_of_a_model_without_weights_is_that_of_a_guess():
    recipe = Recipe(**SMALL)
    model = model_for(recipe)
    torch.nn.init.zeros_(model.lm_head.weight)
    losses = copy_losses(model, draw_rows(recipe, 8, luck()))
    guess = pytest.approx(torch.tensor(41.0).log().item(), abs=1e-3)
    assert losses == {"second_copy": guess, "first_copy": guess}
    none = copy_losses(model, draw_rows(Recipe(**SMALL, period="none"), 8, luck()))
    assert none == {"second_copy": None, "first_copy": guess}


def test_the_repeats_counted_are_those_that_can_be_looked_up():
    recipe = Recipe(**SMALL)
    probe = draw_rows(recipe, 1, luck())
    start = int(probe.parts["random"].sum()) - 1
    model = model_for(recipe)

    class Certain(torch.nn.Module):
        """Says the next token, but at the queries in `wrong`."""

        def forward(self, input_ids, use_cache):
            logits = 100.0 * torch.nn.functional.one_hot(input_ids.roll(-1, 1), 41)
            logits[:, wrong] = 0.0
            return type(model(input_ids=input_ids))(logits=logits)

    wrong = [start]  # Its next token repeats, but nothing in sight says so.
    assert copy_losses(Certain(), probe) == {"second_copy": 0.0, "first_copy": 0.0}
    wrong = [start + 1]
    assert copy_losses(Certain(), probe)["second_copy"] > 0
    wrong = [start - 1]
    assert copy_losses(Certain(), probe)["first_copy"] > 0


def test_training_lowers_the_loss_and_leaves_mlps_and_the_global_generator_alone():
    before = torch.random.get_rng_state()
    recipe = Recipe(**SMALL, warm_up=1)
    run = Run(model_for(recipe), recipe)
    run.look()
    trained(run, 40)
    run.look()
    run.look()  # Twice at a step is once.
    assert [look["step"] for look in run.looks] == [0, 40]
    assert run.looks[1]["first_copy"] < run.looks[0]["first_copy"] - 0.2
    mlps = [value for name, value in run.model.named_parameters() if ".mlp." in name]
    assert len(mlps) == 8
    assert all(not value.any() for value in mlps)
    assert torch.equal(before, torch.random.get_rng_state())


def test_scores_on_the_way_are_those_of_a_scan():
    import interp

    recipe = Recipe(**SMALL)
    run = Run(model_for(recipe), recipe)
    run.look()
    scan = interp.scan_heads(run.model, seed=recipe.seed + 1, rows=16).frame
    for kind in ("induction", "previous_token", "duplicate_token", "current_token", "sink"):
        seen = [score for layer in run.looks[0]["scores"][kind] for score in layer]
        assert seen == pytest.approx(scan[kind].tolist(), abs=1e-4), kind


def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path):
    recipe = Recipe(**SMALL, warm_up=3)
    whole = Run(model_for(recipe), recipe)
    whole.look()
    trained(whole, 4).look()
    trained(whole, 3).look()

    part = Run(model_for(recipe), recipe)
    part.look()
    trained(part, 4).look()
    checkpoint.save(part, tmp_path)
    resumed = checkpoint.resumed(model_for(recipe), recipe, tmp_path)
    assert resumed.step == 4
    trained(resumed, 3).look()
    assert same(resumed.state(), whole.state())
    assert resumed.looks == whole.looks


ENDLESS = """
import sys
sys.path.insert(0, sys.argv[2])
from test_training import *
recipe = Recipe(**SMALL, warm_up=3)
run = Run(model_for(recipe), recipe)
while True:
    checkpoint.save(trained(run, 1), sys.argv[1])
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_its_last_whole_checkpoint(tmp_path):
    folders = [tmp_path, TESTS / "circuits"]
    path = {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(TESTS)])}
    endless = subprocess.Popen([sys.executable, "-c", ENDLESS, *folders], env=os.environ | path)
    until = time.monotonic() + 120
    while not (tmp_path / checkpoint.FILE).exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    endless.send_signal(signal.SIGKILL)
    endless.wait()

    recipe = Recipe(**SMALL, warm_up=3)
    resumed = checkpoint.resumed(model_for(recipe), recipe, tmp_path)
    assert resumed.step >= 1
    assert same(resumed.state(), trained(Run(model_for(recipe), recipe), resumed.step).state())


def test_a_checkpoint_of_other_settings_is_refused_with_what_differs(tmp_path):
    checkpoint.save(Run(model_for(Recipe(**SMALL)), Recipe(**SMALL)), tmp_path)
    other = Recipe(**{**SMALL, "rows": 5}, seed=3)
    with pytest.raises(InputError, match=r"seed 0, not 3, rows 4, not 5: choose another folder"):
        checkpoint.resumed(model_for(other), other, tmp_path)


WTE = "model.transformer.wte.weight"
DAMAGES = {
    "a weight is missing": lambda tensors: tensors.pop("model.lm_head.weight"),
    "a moment is missing": lambda tensors: tensors.pop("optimiser.0.exp_avg"),
    "a weight is too small": lambda tensors: tensors.update({WTE: tensors[WTE][:40].clone()}),
    "no generator": lambda tensors: tensors.pop("luck"),
    "a generator of zeros": lambda tensors: tensors["luck"].zero_(),
    "no step": lambda tensors: tensors.pop("step"),
    "a step below 0": lambda tensors: tensors.update(step=torch.tensor(-3)),
    "a step that is no integer": lambda tensors: tensors.update(step=torch.tensor(2.0)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path, damage):
    recipe = Recipe(**SMALL)
    checkpoint.save(trained(Run(model_for(recipe), recipe), 2), tmp_path)
    assert checkpoint.resumed(model_for(recipe), recipe, tmp_path).step == 2
    path = tmp_path / checkpoint.FILE
    with safe_open(path, framework="pt") as file:
        words = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    DAMAGES[damage](tensors)
    save_file(tensors, path, metadata=words)
    with pytest.raises(InputError, match="checkpoint"):
        checkpoint.resumed(model_for(recipe), recipe, tmp_path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="path must be a whole checkpoint of a run"):
        checkpoint.resumed(model_for(recipe), recipe, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("period", "sometimes"),
        ("seed", -1),
        ("length", 5),
        ("vocabulary", 20),
        ("most", 30),
        ("late", 1.5),
        ("rate", float("nan")),
        ("rate", 0),
        ("warm_up", 0),
        ("decay", -1),
    ],
)
def test_a_recipe_out_of_range_is_refused(name, value):
    with pytest.raises(InputError, match=rf"^{name} must"):
        Recipe(**{**SMALL, name: value})
    with pytest.raises(InputError, match=r"^width must be a multiple of heads"):
        Recipe(**SMALL, heads=5)
