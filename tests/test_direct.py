"""What heads say directly must add up to what the model says."""

import pytest
import torch
from tiny_models import tiny

import interp
from interp import tokens
from interp.direct import Readout, StripeEffects, logit_parts, through, value_norms
from interp.scores import Thresholds, ask
from interp.stream import stream

SUMS = ("gpt2", "llama", "mistral", "neox", "opt", "phi", "qwen3")
GATED = ("gemma2", "gemma3")


def model_and_rows(family: str) -> tuple[interp.Model, tokens.Probe]:
    model = interp.load_model(tiny(family))
    return model, tokens.repeated(model.vocabulary, rows=2, length=40, bos=1, seed=0)


def centred_logits(model: interp.Model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model.plain(ids).logits
    return logits - logits.mean(-1, keepdim=True)


@pytest.mark.parametrize("family", SUMS)
def test_the_effects_of_all_parts_sum_to_the_logits(family):
    model, probe = model_and_rows(family)
    answers = probe.tokens.roll(-1, 1)
    parts = logit_parts(model, probe.tokens, answers)
    total = (
        parts["heads"].sum((0, 2))
        + parts["attention_bias"].sum(0)
        + parts["mlp"].sum(0)
        + parts["embedding"]
        + parts["constant"]
    )
    logits = centred_logits(model, probe.tokens).gather(-1, answers[..., None])[..., 0]
    # float32 sums of parts that are larger than the whole.
    assert torch.allclose(total, logits, rtol=1e-3, atol=1e-3 * logits.abs().max().item())
    assert parts["heads"].abs().max() > 1e-2 * logits.abs().max()


@pytest.mark.parametrize("family", SUMS)
def test_attention_adds_its_heads_and_its_bias_and_nothing_else(family):
    model, probe = model_and_rows(family)
    answers = probe.tokens.roll(-1, 1)
    readout = Readout(model)
    with readout.watching() as scales, torch.no_grad():
        model.plain(probe.tokens)
    parts = logit_parts(model, probe.tokens, answers)
    for layer, bias in enumerate(parts["attention_bias"]):
        b_O = getattr(model.bridge.blocks[layer].attn, "b_O", None)
        own = 0 if b_O is None else readout.towards(answers) @ b_O.detach() / scales[0]
        size = parts["heads"][layer].abs().max()
        assert torch.allclose(bias, torch.zeros_like(bias) + own, atol=1e-4 * size.item())


@pytest.mark.parametrize("family", SUMS)
def test_a_heads_effect_through_all_keys_is_its_whole_effect(family):
    model, probe = model_and_rows(family)
    answers = probe.tokens.roll(-1, 1)
    readout, found = Readout(model), {}
    towards = readout.towards(answers)
    everything = torch.arange(40).expand(2, 40, 40)
    everything = torch.where(everything <= torch.arange(40)[:, None], everything, -1)

    def look(layer, attention):
        directions = readout.head_directions(layer, towards)
        found[layer] = through(attention, everything, directions)

    with readout.watching() as scales:
        stream(model, probe.tokens, look)
    heads = logit_parts(model, probe.tokens, answers)["heads"]
    for layer, effect in found.items():
        size = heads[layer].abs().max().item()
        assert torch.allclose(effect / scales[0][:, None], heads[layer], atol=1e-4 * size)


def test_the_stripes_effect_counts_the_queries_that_have_a_next_token():
    model, probe = model_and_rows("llama")
    readout = Readout(model)
    effects = StripeEffects(readout, probe.tokens)
    asked = ask(
        probe.tokens,
        counted=probe.parts["repeated"],
        special=model.special,
        thresholds=Thresholds(),
    )
    keys = asked.keys["induction"]
    with readout.watching() as scales:
        stream(model, probe.tokens, lambda i, a: effects.look(i, a, keys, asked.fit))
    tallies = effects.tallies(scales[0])
    counted = (keys != -1).any(-1) & asked.fit
    assert tallies[0].queries.tolist() == (counted.sum(-1) - 1).tolist()
    assert tallies[1].mean.abs().max() > 0


@pytest.mark.parametrize("family", GATED)
def test_where_a_norm_follows_the_heads_there_is_no_direct_effect_and_the_scan_says_so(family):
    model = interp.load_model(tiny(family))
    with pytest.raises(interp.InputError, match="a norm follows the heads' output"):
        Readout(model)
    scan = interp.scan_heads(model, rows=2)
    assert scan.made_by["left_out"]["induction_logit_effect"] == "a norm follows the heads' output"
    assert "induction_logit_effect" not in scan.frame


def test_the_norms_of_values_are_those_of_what_reaches_the_stream():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 2, 5, 4, generator=generator)
    W_O = torch.randn(6, 4, 16, generator=generator)
    by_hand = torch.stack([(v[:, h // 3] @ W_O[h]).norm(dim=-1) for h in range(6)], 1)
    assert torch.allclose(value_norms(v, W_O), by_hand, atol=1e-4)


@pytest.mark.real_model
def test_induction_heads_of_the_real_model_push_the_right_token_up(real_scan):
    frame = real_scan.frame.set_index("name")
    found = frame.loc[[str(head) for head in real_scan.heads("induction")]]
    assert (found["induction_logit_effect_low"] > 0).sum() >= len(found) - 1
    others = frame.drop(found.index)["induction_logit_effect"].abs()
    assert found["induction_logit_effect"].median() > 10 * others.median()
