"""What heads say directly must add up to what the model says."""

import pytest
import torch
import transformers
from packed import Packed
from tiny_models import GROUPED, SIZES, scaled, tiny

import interp
from interp.kinds import probes as tokens
from interp.kinds.mass import FromQK
from interp.kinds.scores import Thresholds, ask, score_layer
from interp.models.stream import stream
from interp.weights.direct import Readout, StripeEffects, logit_parts, through, value_norms

SUMS = [
    *("gpt2", "llama", "neox"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", "opt", "phi", "qwen3")),
]


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
    # Another way: each query's answer, its targets' share of the value, all written out.
    found = {}
    towards = readout.towards(probe.tokens.roll(-1, 1))

    def by_hand(layer, attention):
        found[layer] = through(attention, keys, readout.head_directions(layer, towards))

    stream(model, probe.tokens, by_hand)
    has_next = torch.arange(40) < 39
    for layer, effect in found.items():
        there = (keys != -1).any(-1) & asked.fit & has_next
        mean = torch.where(there[:, None], effect / scales[0][:, None], 0).sum((0, 2)) / there.sum()
        assert torch.allclose(tallies[layer].mean.float(), mean, atol=1e-5)
    counted = (keys != -1).any(-1) & asked.fit
    assert tallies[0].queries.tolist() == (counted.sum(-1) - 1).tolist()
    assert tallies[1].mean.abs().max() > 0


def test_where_a_norm_follows_the_heads_there_is_no_direct_effect_and_the_scan_says_so():
    model = interp.load_model(tiny("gemma2"))
    with pytest.raises(interp.InputError, match="a norm follows the heads' output"):
        Readout(model)
    scan = interp.scan_heads(model, rows=2)
    assert scan.made_by["left_out"]["induction_logit_effect"] == "a norm follows the heads' output"
    assert "induction_logit_effect" not in scan.frame


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("granite", {"logits_scaling": 8.0}, "do not sum to the logits"),
        ("cohere", {"logit_scale": 0.0625}, "do not sum to the logits"),
    ],
)
def test_a_readout_that_is_no_plain_sum_is_left_out(family, changes, why):
    sizes = {**SIZES, **GROUPED, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    kinds = {"granite": transformers.GraniteConfig, "cohere": transformers.CohereConfig}
    config = kinds[family](**sizes, **changes)
    model = interp.load_model(scaled(transformers.AutoModelForCausalLM.from_config(config)))
    left_out = interp.scan_heads(model, rows=2).made_by["left_out"]
    assert why in left_out.get("induction_logit_effect", "nothing is left out")
    tokens = torch.tensor([[1, 5, 6, 7]])
    with pytest.raises(interp.InputError, match=why):
        logit_parts(model, tokens, tokens)


@pytest.mark.fault("B87")
@pytest.mark.parametrize("part", ["v_proj", "lm_head"])
def test_a_scan_of_packed_weights_says_which_are_packed(part):
    model = tiny("llama")
    owner = model if part == "lm_head" else model.model.layers[1].self_attn
    setattr(owner, part, Packed(getattr(owner, part)))
    left_out = interp.scan_heads(model, rows=1, length=40).made_by["left_out"]
    assert all("packed as uint8" in why for why in left_out.values() if "text" not in why)
    assert "NotImplementedError" not in str(left_out)
    assert "packed as uint8" in left_out["ov_copying"]


def test_layers_whose_window_hides_the_stripe_do_not_hide_the_sign_of_others(monkeypatch):
    import interp.scan.scan

    largest = []
    original = interp.scan.scan.judge_layer

    def spy(*arguments, **options):
        largest.append(options["largest_effect"])
        return original(*arguments, **options)

    monkeypatch.setattr(interp.scan.scan, "judge_layer", spy)
    interp.scan_heads(tiny("mistral", layer_types=None), rows=2)
    interp.scan_heads(tiny("gptoss"), rows=2)
    assert all(size == size for size in largest)  # No NaN.


def test_the_norms_of_values_are_those_of_what_reaches_the_stream():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 2, 5, 4, generator=generator)
    W_O = torch.randn(6, 4, 16, generator=generator)
    by_hand = torch.stack([(v[:, h // 3] @ W_O[h]).norm(dim=-1) for h in range(6)], 1)
    assert torch.allclose(value_norms(v, W_O), by_hand, atol=1e-4)


def test_the_copying_score_folds_in_what_the_norms_scale():
    source = tiny("llama")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in source.named_parameters():
            if "norm" in name:
                weight.copy_(torch.rand(weight.shape, generator=generator) + 0.1)
    model = interp.load_model(source)
    plain = model.plain.model
    W_E, W_U = plain.embed_tokens.weight, model.plain.lm_head.weight * plain.norm.weight
    W_U = W_U - W_U.mean(0)
    scores = Readout(model).copying()
    for layer, block in enumerate(plain.layers):
        W_V = (block.self_attn.v_proj.weight * block.input_layernorm.weight).view(2, 8, 32)
        W_O = block.self_attn.o_proj.weight.view(32, 4, 8)
        for head in range(4):
            whole = W_E @ W_V[head // 2].T @ W_O[:, head].T @ W_U.T
            values = torch.linalg.eigvals(whole.detach().double())
            by_hand = (values.real.sum() / values.abs().sum()).item()
            assert scores[layer, head].item() == pytest.approx(by_hand, abs=1e-4)


def test_attention_to_values_that_bring_nothing_is_no_sink_by_value():
    """Of four heads on two keys' heads, each with norms of its own."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, h, 60, 8, generator=generator) for h in (4, 2))
    k[:, :, 0] *= 4
    tokens = torch.arange(10, 70)[None]
    scores = (q @ k.repeat_interleave(2, 1).mT).masked_fill(
        torch.ones(60, 60).triu(1).bool(), -torch.inf
    )
    attention = FromQK(q, k, scores.logsumexp(-1), 1.0)
    norms = torch.rand(1, 4, 60, generator=generator) + 0.5
    norms[:, 1, 0] = 0  # To the first key head 1 may attend as it likes.
    attention.norms = norms
    asked = ask(tokens, thresholds=Thresholds(), kinds=["sink"])
    tallies = score_layer(attention, asked, Thresholds()).tallies
    weighted = scores.softmax(-1) * norms[:, :, None]
    share = (weighted[..., 0] / weighted.sum(-1))[:, :, 1:].mean(-1)[0]
    only_first = ~(tallies["sink"].uniform > tallies["sink"].uniform.min() + 1e-9)[0]
    assert only_first.any()
    ours = tallies["sink_value_weighted"].mean.float()
    assert torch.allclose(ours[only_first], share[only_first], atol=1e-5)
    assert ours[1] < tallies["sink"].mean[1] / 2


@pytest.mark.real_model
def test_induction_heads_of_the_real_model_push_the_right_token_up(real_scan):
    frame = real_scan.frame.set_index("name")
    found = frame.loc[[str(head) for head in real_scan.heads("induction")]]
    assert (found["induction_logit_effect_low"] > 0).sum() >= len(found) - 1
    others = frame.drop(found.index)["induction_logit_effect"].abs()
    assert found["induction_logit_effect"].median() > 10 * others.median()
