"""Patch maps, compared with plain hooks on models of transformers."""

import numpy as np
import pandas as pd
import pytest
import torch
from hooked import PROJECTIONS, answers, by_hand, inside, metric, prompts, whole, z_of
from tiny_models import tiny

import interp
from interp.effects import replaced as engine
from interp.effects.metrics import last


@pytest.mark.parametrize(
    ("family", "position"), [*zip(PROJECTIONS, [None] * 9), ("llama", -1), ("neox", 3)]
)
def test_a_patch_map_equals_plain_hooks_one_head_and_one_prompt_at_a_time(family, position):
    clean, corrupted = prompts()
    at = slice(None) if position is None else [position]
    patched = by_hand(family, lambda m, row, layer: z_of(m, family, clean[row], layer), at)
    before, after = whole(family, corrupted), whole(family, clean)
    expected = (patched.mean(0) - before.mean()) / (after - before).mean()
    assert expected.abs().max() > 1e-3
    effects = interp.patch(tiny(family), clean, corrupted, metric(family), position=position)
    assert torch.allclose(torch.tensor(effects.matrix().to_numpy()), expected, atol=1e-4)
    # A bootstrap by hand of one head.
    change, total = patched[:, 1, 2] - before, after - before
    times = torch.randint(4, (2000, 4), generator=torch.Generator().manual_seed(0))
    drawn = change[times].mean(1) / total[times].mean(1)
    row = effects.to_frame().set_index("name").loc["L1H2"]
    for name, level in (("low", 0.025), ("high", 0.975)):
        assert row[name] == pytest.approx(float(drawn.quantile(level)), rel=1e-3, abs=1e-4)
    # The band of an ordinary head.
    flat = expected.numpy()
    half = 1.96 * 1.4826 * np.median(abs(flat - np.median(flat)))
    assert row["random_low"] == pytest.approx(np.median(flat) - half, abs=1e-3)
    assert row["random_high"] == pytest.approx(np.median(flat) + half, abs=1e-3)


@pytest.mark.parametrize("what", ["q", "k", "v", "pattern"])
@pytest.mark.parametrize("family", ["gpt2", "neox", "llama", "gemma2", "bloom", "qwen3"])
def test_queries_keys_values_and_patterns_are_patched_as_by_plain_hooks(family, what):
    rows = slice(2)
    clean, corrupted = (ids[rows] for ids in prompts())
    model, measure = interp.load_model(tiny(family)), metric(family, rows)
    before, after = (whole(family, ids).mean() for ids in (corrupted, clean))
    effects = interp.patch(model, clean, corrupted, measure, what)
    expected = (inside(family, what) - before) / (after - before)
    assert expected.abs().max() > 1e-3
    assert torch.allclose(torch.tensor(effects.matrix().to_numpy()), expected, atol=1e-4)
    shared = what in "kv" and family in ("llama", "gemma2", "qwen3")
    assert effects.to_frame()["name"].iloc[-1] == ("L1KV1" if shared else "L1H3")
    by_token = interp.patch(model, clean, corrupted, measure, what, position="each")
    expected = (inside(family, what, [3]) - before) / (after - before)
    assert torch.allclose(
        torch.tensor(by_token.matrix()[3].to_numpy()), expected.ravel(), atol=1e-4
    )


def test_nothing_depends_on_what_is_skipped_or_runs_together(monkeypatch):
    clean, corrupted = prompts()
    together = interp.patch(tiny("llama"), clean, corrupted, metric("llama")).matrix()
    ran = []
    model = interp.load_model(tiny("llama"))
    model.plain.model.layers[0].mlp.register_forward_hook(lambda *_: ran.append(1))
    interp.patch(model, clean, corrupted, metric("llama"), heads="L1H0")
    skipped = len(ran)
    monkeypatch.setattr(engine, "_skippable", lambda *_: engine._Skips(False, False))
    monkeypatch.setattr(engine, "_TOKENS", 9)
    assert (
        interp.patch(model, clean, corrupted, metric("llama")).matrix() - together
    ).abs().max().max() < 1e-4
    ran.clear()
    monkeypatch.setattr(engine, "_TOKENS", 2048)
    interp.patch(model, clean, corrupted, metric("llama"), heads="L1H0")
    assert len(ran) > skipped - 4


def test_layers_are_not_skipped_where_that_would_change_the_result(monkeypatch):
    """A hook of the user's on a layer's output would run on its own result."""
    model = interp.load_model(tiny("llama"))
    model.plain.model.layers[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    maps = [interp.patch(model, *prompts(), metric("llama")).matrix()]
    monkeypatch.setattr(engine, "_skippable", lambda *_: engine._Skips(False, False))
    maps.append(interp.patch(model, *prompts(), metric("llama")).matrix())
    assert (maps[0] - maps[1]).abs().max().max() < 1e-4


def test_your_own_metric_sees_all_positions_and_padding_as_nan():
    clean, corrupted = prompts()
    seen = []

    def own(logits, tokens):
        seen.append((logits.shape, logits[2, 6:].isnan().all(), logits[2, :6].isnan().any()))
        at_last = last(logits, tokens)
        rows = torch.arange(len(tokens))
        right, wrong = answers("gpt2")
        return at_last[rows, right] - at_last[rows, wrong]

    model = tiny("gpt2")
    ours, theirs = (
        interp.patch(model, clean, corrupted, m).matrix() for m in (own, metric("gpt2"))
    )
    assert (ours - theirs).abs().max().max() < 1e-5
    assert {tuple(map(str, each)) for each in seen} == {
        (str(torch.Size([4, 9, 200])), "tensor(True)", "tensor(False)")
    }
    with pytest.raises(interp.InputError, match="metric must be finite, got nan for prompt 2"):
        interp.patch(model, clean, corrupted, lambda logits, tokens: logits[:, -1, 0])
    with pytest.raises(interp.InputError, match=r"metric must return \[batch\], here \(4,\)"):
        interp.patch(model, clean, corrupted, lambda logits, tokens: logits.mean())


def test_the_model_and_the_random_state_stay_as_they_were():
    own = tiny("llama", attention_dropout=0.5).train()
    model = interp.load_model(own)
    model.plain.train()
    hooks = [(p, dict(p._forward_hooks), dict(p._forward_pre_hooks)) for p in model.plain.modules()]
    state, clean_and_corrupted = torch.get_rng_state(), prompts()

    def stops(logits, tokens):
        raise KeyboardInterrupt

    effects = interp.patch(model, *clean_and_corrupted, metric("llama"))
    pd.testing.assert_frame_equal(
        interp.patch(tiny("llama"), *clean_and_corrupted, metric("llama")).to_frame(),
        effects.to_frame(),
    )
    with pytest.raises(KeyboardInterrupt):
        interp.ablate(model, clean_and_corrupted[0], stops)
    assert torch.equal(torch.get_rng_state(), state)
    for part, after, before in hooks:
        assert part.training
        assert (dict(part._forward_hooks), dict(part._forward_pre_hooks)) == (after, before)
        assert "forward" not in vars(part)


def test_effects_are_saved_and_shown(tmp_path):
    clean, corrupted = prompts()
    effects = interp.patch(tiny("gpt2"), clean, corrupted, metric("gpt2"))
    assert effects.made_by["prompts"][2] == " ".join(map(str, corrupted[2]))
    effects.save(tmp_path / "map.json")
    loaded = interp.HeadEffects.load(tmp_path / "map.json")
    pd.testing.assert_frame_equal(loaded.to_frame(), effects.to_frame())
    assert loaded.made_by == effects.made_by
    first = effects.strongest(1).iloc[0]
    assert f"strongest: {first['name']} {first['effect']:+.2f} [" in repr(loaded)
    assert effects.matrix("low").loc["L1", "H3"] == effects.to_frame()["low"].iloc[7]
    single = interp.patch(tiny("gpt2"), clean[:1], corrupted[:1], metric("gpt2", slice(1)))
    assert single.to_frame()["low"].isna().all()
    single.save(tmp_path / "one.json")
    pd.testing.assert_frame_equal(
        interp.HeadEffects.load(tmp_path / "one.json").to_frame(), single.to_frame()
    )


def test_what_cannot_be_measured_is_refused(caplog):
    model, (clean, corrupted) = interp.load_model(tiny("gpt2")), prompts()
    for wrong, words in (
        ({"what": "x"}, "what must be"),
        ({"position": 6}, "position must be from -6 to 5, as the shortest prompt has 6 tokens"),
        ({"position": "each"}, "position must be a number for prompts of 6 to 9 tokens, got each"),
        ({"heads": "L9H0"}, "heads must be heads of"),
        ({"heads": []}, "heads must be at least one"),
        ({"corrupted": clean}, "metric must differ between clean and corrupted"),
        ({"corrupted": clean[:2]}, "clean and corrupted must be as many"),
        (
            {"metric": metric("gpt2", slice(1))},
            "answers must be one for each prompt, got 1 for 4 prompts",
        ),
        ({"corrupted": [*clean[:3], clean[3][:8]]}, "got 9 and 8 in pair 3: from token 8 on"),
    ):
        with pytest.raises(interp.InputError, match=words):
            interp.patch(
                model, **{"clean": clean, "corrupted": corrupted, "metric": metric("gpt2")} | wrong
            )
    with pytest.raises(interp.InputError, match="model must be causal"):
        interp.patch(tiny("bert"), clean, corrupted, metric("gpt2"))
    same = [clean[0], corrupted[0], *clean[2:]], [corrupted[0], clean[0], *clean[2:3], corrupted[3]]
    either = interp.logit_difference(right=[10] * 4, wrong=[20] * 4)
    interp.patch(model, *same, either)
    assert "effects are divided by this difference" in caplog.text


@pytest.mark.slow
@pytest.mark.real_model
def test_name_movers_of_the_default_model(real_model):
    """By prompts of names, L23H3 brings back about half of the answer from its last position."""
    task = interp.tasks.ioi(real_model, 8)
    heads = ["L23H3", "L29H1", "L29H0"]
    measure = interp.logit_difference(task)
    effects = interp.patch(
        real_model, task.clean, task.corrupted, measure, heads=heads, position=-1
    )
    by_name = effects.to_frame().set_index("name")["effect"]
    assert by_name.idxmax() == "L23H3"
    assert 0.4 < by_name["L23H3"] < 0.6
    assert by_name["L29H1"] > 0.2
    assert by_name["L29H0"] < -0.2


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.parametrize("what", ["z", "q", "k", "v", "pattern"])
def test_maps_of_the_default_model_equal_plain_hooks(real_model, what):
    """Some heads and two pairs, one prompt and one change at a time."""
    task, plain = interp.tasks.ioi(real_model, 2), real_model.plain
    clean, corrupted = (real_model.to_tokens([*each]) for each in (task.clean, task.corrupted))
    heads, d_head = [(20, 0), (23, 3), (29, 1)], real_model.plain.config.head_dim

    def run(row, tokens, module=None, edit=lambda x: None, is_input=False):
        def hook(module, inputs, output=None):
            x = (inputs[0] if is_input else output).clone()
            edit(x.unflatten(-1, (-1, d_head))[0])
            return (x,) if is_input else x

        add = "register_forward_pre_hook" if is_input else "register_forward_hook"
        handle = getattr(module or torch.nn.Identity(), add)(hook)
        with torch.no_grad():
            logits = plain(tokens[row][tokens[row] >= 0][None], use_cache=False).logits[0, -1]
        handle.remove()
        return float(logits[task.right_ids[row]] - logits[task.wrong_ids[row]])

    def seen(row, tokens, module, is_input=False):
        kept = []
        run(row, tokens, module, lambda x: kept.append(x.clone()), is_input)
        return kept[0]

    before, after = (np.array([run(i, ids) for i in range(2)]) for ids in (corrupted, clean))
    expected = []
    for layer, head in heads:
        attention, patched = plain.model.layers[layer].self_attn, []
        name, is_input = ("o", True) if what in ("z", "pattern") else (what, False)
        module = attention.get_submodule(f"{name}_proj")
        at = head // (real_model.n_heads // plain.config.num_key_value_heads)
        place = at if what in ("k", "v") else head
        for row in range(2):
            new = seen(row, clean, module, is_input)[:, place]
            if what == "pattern":
                pattern = interp.attention_patterns(real_model, [task.clean[row]]).numpy()
                values = seen(row, corrupted, attention.v_proj)[:, at]
                new = torch.tensor(pattern[layer, 0, head]) @ values
            edit = lambda x, new=new, place=place: x.__setitem__((slice(None), place), new)  # noqa: E731
            patched.append(run(row, corrupted, module, edit, is_input))
        expected.append((np.array(patched) - before).mean() / (after - before).mean())
    metric = interp.logit_difference(task)
    effects = interp.patch(real_model, task.clean, task.corrupted, metric, what, heads=heads)
    assert max(map(abs, expected)) > 0.01
    assert effects.to_frame()["effect"].to_numpy() == pytest.approx(np.array(expected), abs=1e-4)


def test_reverse_puts_corrupted_activations_into_the_clean_run():
    clean, corrupted = prompts()
    measure = metric("llama")
    ours = interp.patch(tiny("llama"), clean, corrupted, measure, "k", reverse=True)
    swapped = interp.patch(tiny("llama"), corrupted, clean, measure, "k")
    pd.testing.assert_frame_equal(ours.to_frame(), swapped.to_frame())
    assert ours.made_by["unit"] == "share of the corrupted run: 0 clean, 1 corrupted"
    assert ours.made_by["clean"] == ours.made_by["prompts"] == swapped.made_by["prompts"]
    one = interp.patch(tiny("llama"), clean, corrupted, measure, "k", heads="L1H3", reverse=True)
    assert [*one.to_frame()["name"]] == ["L1KV1"]


@pytest.mark.parametrize(("family", "runs"), [("llama", 7), ("jamba", 9), ("gemma3n", 9)])
def test_positions_before_the_first_change_do_not_run_again(family, runs):
    """Where the model keeps more of them than keys and values, they do."""
    clean, corrupted = (ids[:2] for ids in prompts())
    model, seen = interp.load_model(tiny(family)), []
    either = interp.logit_difference(right=[10] * 2, wrong=[20] * 2)
    last_layer = [*engine.layer_modules(model.plain).values()][-1]

    def look(module, inputs, output):
        seen.append((output[0] if isinstance(output, tuple) else output).shape[-2])

    last_layer.register_forward_hook(look)
    interp.patch(model, clean, corrupted, either)
    assert seen[-1] == runs
