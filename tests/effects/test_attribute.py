"""Attribution, compared with finite differences on models of transformers, and with patching."""

import numpy as np
import pandas as pd
import pytest
import torch
from hooked import PROJECTIONS, answers, metric, prompts
from tiny_models import tiny

import interp
from interp.effects import replaced as engine
from interp.effects.metrics import divergence


def slopes(family, share) -> torch.Tensor:
    """[layer, head] slopes of the mean logit difference as each head's z goes to the clean one.

    Of runs whose embeddings are a mixture of clean and corrupted ones.
    """
    model = tiny(family).double()
    clean, corrupted = (model.get_input_embeddings()(torch.tensor(ids[:2])) for ids in prompts())
    mixed = corrupted + share * (clean - corrupted)
    right, wrong = (torch.tensor(ids[:2])[:, None] for ids in answers(family))

    def run(embeddings, layer, edit) -> torch.Tensor:
        def before(module, inputs):
            z = inputs[0].clone()
            edit(z.unflatten(-1, (4, -1)))
            return (z,)

        projection = model.get_submodule(PROJECTIONS[family].format(layer))
        handle = projection.register_forward_pre_hook(before)
        logits = model(inputs_embeds=embeddings, use_cache=False).logits[:, -1]
        handle.remove()
        return (logits.gather(-1, right) - logits.gather(-1, wrong)).mean()

    def z_of(embeddings, layer):
        seen = []
        run(embeddings, layer, lambda z: seen.append(z.clone()))
        return seen[0]

    table = torch.zeros(2, 4).double()
    with torch.no_grad():
        for layer in range(2):
            away = z_of(clean, layer) - z_of(corrupted, layer)
            for head in range(4):
                ends = []
                for step in (1e-4, -1e-4):

                    def edit(z, head=head, step=step, away=away):
                        z[:, :, head] += step * away[:, :, head]

                    ends.append(run(mixed, layer, edit))
                table[layer, head] = (ends[0] - ends[1]) / 2e-4
    return table


@pytest.mark.parametrize(
    ("family", "method"), [("llama", "patching"), ("gemma2", "patching"), ("llama", "integrated")]
)
def test_effects_are_the_slopes_of_the_metric(family, method, monkeypatch):
    monkeypatch.setattr(engine, "_GRADED", 9)  # Each prompt has a backward pass to itself.
    clean, corrupted = (ids[:2] for ids in prompts())
    measure = metric(family, slice(2))
    made = interp.attribute(tiny(family), clean, corrupted, measure, method, steps=1, top=0)
    assert made.to_frame()["exact"].isna().all()
    whole = made.made_by["clean_mean"] - made.made_by["corrupted_mean"]
    expected = slopes(family, 0 if method == "patching" else 0.5) / whole
    assert expected.abs().max() > 1e-2
    assert torch.allclose(torch.tensor(made.matrix().to_numpy()), expected, atol=1e-3)


@pytest.fixture(scope="module")
def straight():
    """A model whose logits are linear in what the heads of its last layer put out, and pairs."""
    model = tiny("llama")
    model.model.norm = torch.nn.Identity()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.zero_()
    clean, corrupted = (ids[:2] for ids in prompts())
    return interp.load_model(model), clean, corrupted, metric("llama", slice(2))


@pytest.mark.parametrize("what", ["z", "q", "k", "v", "pattern"])
def test_effects_are_exact_where_the_metric_is_linear(straight, what):
    whole = interp.patch(*straight, what, position="each")
    exact = whole.matrix().filter(like="L1", axis=0)
    assert exact.abs().max().max() > 0.02
    for method in ("patching", "integrated"):
        made = interp.attribute(*straight, method, what, position="each", steps=3, top=6)
        assert np.allclose(made.matrix().loc[exact.index], exact, atol=1e-4)
        frame = made.to_frame().dropna(subset="exact")
        same = frame.merge(whole.to_frame(), on=["name", "position"])
        assert len(frame) == 6
        assert np.allclose(same["exact"], same["effect_y"], atol=1e-6)


def test_agreement_is_that_of_the_largest_effects(tmp_path):
    clean, corrupted = prompts()
    made = interp.attribute(tiny("gpt2"), clean, corrupted, metric("gpt2"), top=5)
    frame = made.strongest(5)
    checked = made.made_by["agreement"]
    assert frame["exact"].notna().all()
    assert checked["pearson"] == pytest.approx(frame["effect"].corr(frame["exact"]))
    ranks = frame[["effect", "exact"]].rank()
    assert checked["spearman"] == pytest.approx(ranks["effect"].corr(ranks["exact"]))
    assert f"exact patching of the top 5: correlation {checked['pearson']:.2f}" in repr(made)
    made.save(tmp_path / "map.json")
    loaded = interp.HeadEffects.load(tmp_path / "map.json")
    pd.testing.assert_frame_equal(loaded.to_frame(), made.to_frame())
    some = interp.attribute(tiny("gpt2"), clean, corrupted, metric("gpt2"), heads="L0H1", top=5)
    assert some.made_by["agreement"] == {"heads": 1, "pearson": None, "spearman": None}


def test_a_metric_without_gradient_is_refused_and_nothing_stays_behind():
    model, pairs = interp.load_model(tiny("llama").requires_grad_(requires_grad=False)), prompts()

    def hard(logits, tokens):
        return logits[torch.arange(4), (tokens >= 0).sum(1) - 1].argmax(-1).float()

    with pytest.raises(interp.InputError, match="metric must be differentiable"):
        interp.attribute(model, *pairs, hard)
    with pytest.raises(interp.InputError, match="method must be one of patching, integrated"):
        interp.attribute(model, *pairs, metric("llama"), "gradients")
    interp.attribute(model, *pairs, metric("llama"), top=0)
    for part in model.plain.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
        assert "forward" not in vars(part)
    assert not any(weight.requires_grad for weight in model.plain.parameters())
    assert not torch.is_inference_mode_enabled()


def test_divergence_from_the_clean_run_is_0_there():
    clean, corrupted = prompts()
    model = interp.load_model(tiny("llama"))
    reference = engine.last_logits(model, model.to_tokens(clean))
    made = interp.attribute(model, clean, corrupted, divergence(reference), "integrated", top=8)
    assert made.made_by["clean_mean"] == pytest.approx(0, abs=1e-6)
    after = engine.last_logits(model, model.to_tokens(corrupted))
    p, q = (torch.distributions.Categorical(logits=each) for each in (reference, after))
    expected = torch.distributions.kl_divergence(p, q).mean()
    assert made.made_by["corrupted_mean"] == pytest.approx(float(expected), rel=1e-4)
    assert made.made_by["agreement"]["heads"] == 8
    with pytest.raises(interp.InputError, match="reference must be logits"):
        interp.patch(model, clean, corrupted, divergence(reference[:2]))
