"""What heads say directly must add up to what the model says."""

import pytest
import torch
import transformers
from einops import einsum, rearrange
from packed import Packed
from tiny_models import CONFIGS, FURTHER, GROUPED, SIZES, scaled, tiny

import interp
from interp.kinds import probes as tokens
from interp.kinds.builtin import as_kinds
from interp.kinds.mass import FromQK
from interp.kinds.scores import Thresholds, ask, score_layer
from interp.weights.direct import Readout, StripeEffects, logit_parts, value_norms
from interp.weights.linear import linear_pass

KINDS = {
    "cohere": (transformers.CohereConfig, {"logit_scale": 0.0625}),  # Blocks in parallel.
    "granite": (  # Multipliers everywhere.
        transformers.GraniteConfig,
        {"logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    ),
    "olmo2": (transformers.Olmo2Config, {}),  # Norms after attention and MLP only.
}
if hasattr(transformers, "LagunaConfig"):  # Gates that read the stream after the heads attend.
    KINDS["laguna"] = (transformers.LagunaConfig, {"num_experts": 4, "num_experts_per_tok": 2})
SUMS = ["gpt2", "gemma2", "cohere", "granite", "olmo2", "qwen3next", "deepseek2", "jamba"]
SUMS += ["laguna"] * ("laguna" in KINDS)
REST = sorted({*CONFIGS, *FURTHER} - {*SUMS})
REST = [pytest.param(name, marks=pytest.mark.slow) for name in REST]


def loaded(family: str) -> interp.Model:
    """A small random model in which norms and biases are not what they are initialized to."""
    torch.manual_seed(0)
    if family in KINDS:
        kind, changes = KINDS[family]
        sizes = {**SIZES, **GROUPED, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
        model = scaled(transformers.AutoModelForCausalLM.from_config(kind(**sizes, **changes)))
    else:
        model = tiny(family)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and ("norm" in name or "ln_" in name or "bias" in name):
                weight += torch.rand_like(weight) / 4
    return interp.load_model(model)


def model_and_rows(family: str) -> tuple[interp.Model, tokens.Probe]:
    model = loaded(family)
    return model, tokens.repeated(model.vocabulary, rows=2, length=40, bos=1, seed=0)


def summed(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    of_layers = parts["heads"].sum(2) + parts["attention_bias"] + parts["mlp"]
    return of_layers.sum(0) + parts["embedding"] + parts["constant"]


@pytest.mark.parametrize("family", [*SUMS, *REST])
def test_the_effects_of_all_parts_sum_to_the_logits(family):
    model, probe = model_and_rows(family)
    answers = probe.tokens.roll(-1, 1)
    readout = Readout(model)
    readout.check()
    parts = logit_parts(model, probe.tokens, answers, readout=readout)
    with torch.no_grad():
        logits = model.plain(probe.tokens).logits
    cap = getattr(model.plain.config, "final_logit_softcapping", None)
    if cap is not None:
        logits = cap * torch.atanh(logits.double() / cap)  # No table: by this test alone.
    assert readout.cap == pytest.approx(cap)
    logits = (logits - logits.mean(-1, keepdim=True)).gather(-1, answers[..., None])[..., 0]
    # float32 sums of parts that are larger than the whole.
    assert torch.allclose(summed(parts), logits.float(), rtol=1e-3, atol=1e-3 * logits.abs().max())
    attending = parts["heads"].abs().amax((1, 2, 3)) > 1e-2 * logits.abs().max()
    assert set(attending.nonzero().flatten().tolist()) == set(model.attending)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3next"])
def test_a_heads_effect_through_all_keys_is_its_whole_effect(family):
    model, probe = model_and_rows(family)
    answers = probe.tokens.roll(-1, 1)
    readout, brought = Readout(model), {}
    everything = torch.arange(40).expand(2, 40, 40)
    everything = torch.where(everything <= torch.arange(40)[:, None], everything, -1)

    def look(layer, attention):
        brought[layer] = attention.brought(everything)

    run = linear_pass(model, probe.tokens, look, readout.norms)
    heads = logit_parts(model, probe.tokens, answers)["heads"]
    gradients = run.gradients(readout.towards(answers), [run.heads[i] for i in brought])
    for (layer, out), gradient in zip(brought.items(), gradients, strict=True):
        effect = einsum(out, gradient, "b h q d, b q h d -> b h q")
        assert torch.allclose(effect, heads[layer], atol=1e-4 * heads[layer].abs().max().item())


def test_the_effect_through_a_norm_after_the_heads_is_the_one_written_out_by_hand():
    """Of Gemma 2: W_O, the norm after attention and the final norm, with their scales held."""
    model, probe = model_and_rows("gemma2")
    answers, seen = probe.tokens.roll(-1, 1), {}
    inner = model.plain.model
    watched = [layer.self_attn.o_proj for layer in inner.layers]
    watched += [*(layer.post_attention_layernorm for layer in inner.layers), inner.norm]
    handles = [
        module.register_forward_pre_hook(lambda m, inputs: seen.__setitem__(m, inputs[0]))
        for module in watched
    ]
    with torch.no_grad():
        model.plain(probe.tokens)
    for handle in handles:
        handle.remove()

    def frozen(norm, part):
        scale = (seen[norm].square().mean(-1) + norm.eps).sqrt()
        return part * (1 + norm.weight) / scale.view(2, 1, 40, 1)

    W_U = model.plain.lm_head.weight
    towards = (W_U - W_U.mean(0))[answers]
    heads = logit_parts(model, probe.tokens, answers)["heads"]
    for number, layer in enumerate(inner.layers):
        W_O = rearrange(layer.self_attn.o_proj.weight, "d (h e) -> h e d", h=4)
        z = rearrange(seen[layer.self_attn.o_proj], "b q (h e) -> b h q e", h=4)
        part = einsum(z, W_O, "b h q e, h e d -> b h q d")
        part = frozen(inner.norm, frozen(layer.post_attention_layernorm, part))
        by_hand = (part * towards[:, None]).sum(-1)
        assert torch.allclose(heads[number], by_hand, rtol=1e-4, atol=1e-5)


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
    keys, brought = asked.keys["induction"], {}

    def look(layer, attention):
        effects.look(layer, attention, keys, asked.fit)
        brought[layer] = attention.brought(keys)

    tallies = effects.tallies(linear_pass(model, probe.tokens, look, readout.norms))
    # Another way: each query's answer, its targets' share of the value, all written out.
    inner, scales = model.plain.model, []
    handle = inner.norm.register_forward_pre_hook(lambda m, inputs: scales.append(inputs[0]))
    with torch.no_grad():
        model.plain(probe.tokens)
    handle.remove()
    scale = (scales[0].square().mean(-1) + inner.norm.variance_epsilon).sqrt()
    W_U = model.plain.lm_head.weight
    towards = (W_U - W_U.mean(0))[probe.tokens.roll(-1, 1)] * inner.norm.weight
    there = (keys != -1).any(-1) & asked.fit & (torch.arange(40) < 39)
    for layer, out in brought.items():
        W_O = inner.layers[layer].self_attn.o_proj.weight.unflatten(1, (4, 8))
        effect = einsum(out, W_O, towards, "b h q e, d h e, b q d -> b h q") / scale[:, None]
        mean = torch.where(there[:, None], effect, 0).sum((0, 2)) / there.sum()
        assert torch.allclose(tallies[layer].mean.float(), mean, atol=1e-5)
    counted = (keys != -1).any(-1) & asked.fit
    assert tallies[0].queries.tolist() == (counted.sum(-1) - 1).tolist()
    assert tallies[1].mean.abs().max() > 0


@pytest.mark.parametrize(
    ("family", "factor", "cap"),
    [("gemma2", 1, 30), ("cohere", 0.0625, None), ("granite", 1 / 8, None)],
)
def test_factor_and_cap_of_the_logits_are_found_by_trial(family, factor, cap):
    model = loaded(family)
    readout = Readout(model)
    assert (readout.factor, readout.cap) == (pytest.approx(factor), pytest.approx(cap))


def test_a_scan_has_effects_also_where_a_norm_follows_the_heads():
    scan = interp.scan_heads(tiny("gemma2"), rows=2, length=40)
    assert {"induction_logit_effect", "ov_copying"} <= {*scan.frame}
    assert [*scan.made_by["left_out"]] == ["text_sink_value_weighted"]  # No text was run.


def cubed(module, inputs, output):
    return output + output**3 / 10


def test_a_stream_that_is_no_plain_sum_is_refused():
    model = loaded("llama")
    handle = model.plain.model.layers[0].register_forward_hook(cubed)
    with pytest.raises(interp.InputError, match="do not sum to the logits"):
        Readout(model).check()
    left_out = interp.scan_heads(model, rows=2, length=40).made_by["left_out"]
    assert "do not sum to the logits" in left_out["induction_logit_effect"]
    handle.remove()
    model.plain.register_forward_hook(lambda m, i, out: setattr(out, "logits", out.logits.cos()))
    with pytest.raises(interp.InputError, match="the logits are not what the unembedding gives"):
        Readout(model).check()


class Rest(torch.nn.Module):
    """The second half of a layer, which adds to the stream by itself."""

    def __init__(self, norm, mlp):
        super().__init__()
        self.norm, self.mlp = norm, mlp

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def test_a_stream_that_a_branch_hides_is_refused():
    """Else the branch would take all effects of the heads before it, and the sum would hold."""
    model = loaded("llama")
    layer = model.plain.model.layers[1]
    layer.mlp = Rest(layer.post_attention_layernorm, layer.mlp)
    del layer.post_attention_layernorm
    attention, norm = layer.self_attn, layer.input_layernorm
    layer.forward = lambda x, **options: layer.mlp(x + attention(norm(x), **options)[0])
    with pytest.raises(interp.InputError, match="the residual stream does not reach the logits"):
        Readout(model).check()


@pytest.mark.fault("B87")
def test_a_scan_of_a_packed_unembedding_says_so():
    model = tiny("llama")
    model.lm_head = Packed(model.lm_head)
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
    assert torch.allclose(value_norms(v, W_O @ W_O.mT), by_hand, atol=1e-4)


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
    asked = ask(tokens, thresholds=Thresholds(), kinds=as_kinds("sink"))
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
