"""Weights of real architectures must give the scores that the models themselves compute."""

import copy
from typing import Any

import accelerate
import pytest
import torch
import transformers
from packed import Packed
from tiny_models import (
    ENDS,
    EXPERTS,
    GROUPED,
    LATENT,
    MIXED,
    SIZES,
    SMALL,
    made,
    named,
    scaled,
    tiny,
)
from torch import Tensor

import interp
from interp.errors import InputError
from interp.kinds import probes as tokens
from interp.models.stream import stream
from interp.weights.composition import KINDS
from interp.weights.direct import Readout
from interp.weights.folded import (
    TRIED_ON,
    composition_scores,
    embedding,
    head_weights,
    norm_before,
    token_sample,
    values,
)
from interp.weights.heads import HeadWeights, ov_copy, qk_match

ROPES = {
    "linear": {},
    "dynamic": {},
    "yarn": {"original_max_position_embeddings": 16},
    "llama3": {
        "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}
UNSIZED: dict[str, Any] = {name: size for name, size in GROUPED.items() if name != "head_dim"}
LATENT_HEADS = {**SMALL, **LATENT, "num_key_value_heads": 4, "intermediate_size": 64}
LATENT_HEADS["v_head_dim"] = 6
MORE = {
    "falcon, many keys": named("Falcon", **SMALL, alibi=False, multi_query=False),
    "falcon, groups": named(
        "Falcon", **SMALL, alibi=False, num_kv_heads=2, new_decoder_architecture=True
    ),
    "gemma": named("Gemma", **GROUPED),
    "capped": named("Gemma2", **GROUPED, query_pre_attn_scalar=100, attn_logit_softcapping=5.0),
    "cohere": named("Cohere", **GROUPED),
    "theta": named("Llama", **GROUPED, rope_theta=5e6),
    **{
        name: named(
            "Llama",
            **GROUPED,
            rope_theta=5e6,
            rope_scaling={"rope_type": name, "factor": 4.0, **ROPES[name]},
        )
        for name in ROPES
    },
    "smollm3": named("SmolLM3", **GROUPED, no_rope_layers=[1, 0]),
}
"""More families whose scores are products of what queries and keys read."""

NORMED = {
    "cohere, normed": named("Cohere", **GROUPED, use_qk_norm=True),
    "stablelm": named("StableLm", **UNSIZED, qk_layernorm=True, use_qkv_bias=True),
    "nanochat": named("NanoChat", **UNSIZED),
    "bitnet": named("BitNet", **UNSIZED),
}
"""Families with norms inside the attention."""

OTHER = {
    "minicpm3": named("MiniCPM3", **LATENT_HEADS),
    "deepseek3": named(
        "DeepseekV3", **LATENT_HEADS, **EXPERTS, n_routed_experts=4, n_group=1, topk_group=1
    ),
    "llama4, mixed": named(
        "Llama4Text",
        **GROUPED,
        num_local_experts=2,
        intermediate_size_mlp=64,
        attention_chunk_size=8,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
    "gemma3n": named(
        "Gemma3nText",
        **{**GROUPED, "intermediate_size": [64, 64]},
        layer_types=MIXED,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=200,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0, 0.0],
    ),
}

QUICK = ("gpt2", "neox", "llama", "gptoss", "opt", "bloom", "gptj", "falcon", "capped", "yarn")
"""One family for each way to store or to change queries and keys."""

SLOW = ("mistral", "phi", "gemma2", "neo", "mpt", "qwen2", "jamba", "granite", "phi3", "glm4")
SLOW += ("helium", "biogpt", "cohere2", *MORE)


def some_slow(quick: tuple[str, ...], slow: tuple[str, ...]) -> list:
    marked = (pytest.param(name, marks=pytest.mark.slow) for name in slow if name not in quick)
    return [*quick, *marked]


def with_norms(family: str) -> transformers.PreTrainedModel:
    """A tiny model whose norms and biases are random too."""
    further = {**MORE, **NORMED, **OTHER}
    source = made(further[family](), **ENDS) if family in further else tiny(family)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in source.named_parameters():
            if weight.dim() == 1 or "norm" in name:
                weight.copy_(torch.rand(weight.shape, generator=generator) + 0.1)
    return source


def entering(source: transformers.PreTrainedModel, ids: Tensor) -> tuple[Tensor, ...]:
    """The residual stream before each layer, by the model itself."""
    with torch.no_grad():
        return source(ids, output_hidden_states=True, use_cache=False).hidden_states


def scores_of(weights: HeadWeights, model: interp.Model, layer: int, x: Tensor) -> Tensor:
    return weights.scores(x, norm_before(model, layer).scale_of(x))


def random_ids(model: interp.Model) -> Tensor:
    """Tokens and positions on which the weights were not tried."""
    return tokens.repeated(model.vocabulary, rows=2, length=64, bos=1, seed=0).tokens


@pytest.mark.fault("B30", "B48", "B50", "B96", "B112")
@pytest.mark.parametrize("family", some_slow(QUICK, SLOW))
def test_patterns_come_out_of_the_weights(family):
    source = with_norms(family)
    model = interp.load_model(source)
    ids, weights = random_ids(model), head_weights(model)
    slopes = torch.tensor(model.alibi_slopes or [0.0] * 4)
    away = torch.arange(64)[:, None] - torch.arange(64)
    streams, patterns = entering(source, ids), interp.attention_patterns(model, ids)
    for layer, pattern in zip(patterns.layers, patterns.as_subclass(Tensor), strict=True):
        scores = scores_of(weights[layer], model, layer, streams[layer])
        scores = scores - slopes[:, None, None] * away
        window = model.windows[layer] or 64
        hidden = ~torch.ones(64, 64, dtype=torch.bool).tril().triu(1 - window)
        ours = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        # A learned sink takes its share of each row (gpt-oss).
        assert torch.allclose(ours * pattern.sum(-1, keepdim=True), pattern, atol=1e-4)
        uniform = (~hidden).float() / (~hidden).sum(-1, keepdim=True)
        assert (ours - uniform).abs().max() > 0.2


def factors(ours: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers for each query and for each key that turn `ours` into `own`, by least squares."""
    a, b = torch.ones_like(own[..., :1]), torch.ones_like(own[..., :1, :])
    for _ in range(50):
        a = (own * ours * b).sum(-1, keepdim=True) / (ours * b).square().sum(-1, keepdim=True)
        b = (own * ours * a).sum(-2, keepdim=True) / (ours * a).square().sum(-2, keepdim=True)
    return a, b


@pytest.mark.parametrize(
    "family",
    some_slow(
        ("qwen3", "olmo2", "llama4"),
        ("gemma3", "lfm2", "qwen3next", "llama4, mixed", *NORMED),
    ),
)
def test_norms_of_queries_and_keys_only_multiply_scores_by_positive_numbers(family):
    source = with_norms(family)
    model = interp.load_model(source)
    ids, weights, own = random_ids(model), head_weights(model), {}

    def look(layer, seen):
        scores = torch.einsum("bqkge,bske->bkgqs", seen.q, seen.k) * seen.scale
        own[layer] = scores.flatten(1, 2)

    stream(model, ids, look)
    streams = entering(source, ids)
    for layer, scores in own.items():
        ours = scores_of(weights[layer], model, layer, streams[layer])
        a, b = factors(ours, scores)
        assert (a * ours * b - scores).abs().max() < 1e-4 * scores.abs().max()
        both = a * b
        assert both.min() > 0
        # The scale is the mean over other tokens.
        assert 0.5 < both.mean() < 2


def alike(ours: Tensor, by_hand: Tensor) -> bool:
    """Whether two matrices are the same up to a positive factor."""
    return torch.allclose(ours / ours.norm(), by_hand / by_hand.norm(), atol=1e-5)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs i and i + 4 of 8 dimensions, turned as Llama does."""
    a, b = x[..., :4], x[..., 4:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def test_the_gains_of_norms_of_queries_and_keys_are_folded_in():
    source = with_norms("qwen3")
    layer = source.model.layers[1]
    attention, gain = layer.self_attn, layer.input_layernorm.weight.detach()
    weights = head_weights(source, [1])[1]
    stored = head_weights(source, [1], fold=False)[1]
    angles = 3 * 10_000 ** (-torch.arange(4) / 4)
    products = []
    for head in range(4):
        q = attention.q_proj.weight.detach().view(4, 8, 32)[head].T
        k = attention.k_proj.weight.detach().view(2, 8, 32)[head // 2].T
        for ours, theirs in zip(stored.QK(head), (q, k), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5)
        q = gain[:, None] * q * attention.q_norm.weight.detach()
        k = gain[:, None] * k * attention.k_norm.weight.detach()
        left, right = weights.QK(head, distance=3)
        products.append(turned(q, angles) @ k.T)
        assert alike(left @ right.T, products[head])
    found = composition_scores(source, distance=3)
    A = torch.linalg.multi_dot(head_weights(source, [0])[0].OV(2))
    B = products[3]
    by_hand = (A @ B).norm() / A.norm() / B.norm()
    assert found.Q[0, 2, 1, 3].item() == pytest.approx(by_hand.item(), rel=1e-4)


@pytest.mark.fault("B97")
@pytest.mark.parametrize("family", some_slow(("deepseek2",), ("minicpm3", "deepseek3")))
def test_latent_attention_has_keys_and_values_through_the_compressed_vector(family):
    """Its norm divides one part of a key, on average over the tokens."""
    source = with_norms(family)
    layer = source.model.layers[1]
    read, attention = layer.input_layernorm.weight.detach(), layer.self_attn
    seen = []
    attention.kv_a_layernorm.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model = interp.load_model(source)
    with torch.no_grad():
        source(token_sample(model, TRIED_ON)[None])
    by_norm = seen[0].square().mean(-1).rsqrt().mean()
    weights, stored = head_weights(model, [1])[1], head_weights(model, [1], fold=False)[1]
    down = attention.kv_a_proj_with_mqa.weight.detach().T
    gain = attention.kv_a_layernorm.weight.detach()
    up = attention.kv_b_proj.weight.detach().view(4, 14, 16)
    for head in range(4):
        whole = read[:, None] * down[:, :16] * gain @ up[head].T * by_norm
        assert torch.allclose(weights.W_V[head], whole[:, 8:], rtol=1e-3, atol=1e-3)
        compressed, turned = weights.W_K[head].split((8, 4), dim=1)
        assert torch.allclose(compressed, whole[:, :8], rtol=1e-3, atol=1e-3)
        alone = read[:, None] * down[:, 16:]
        assert torch.allclose(turned @ turned.T, alone @ alone.T, rtol=1e-3, atol=1e-3)
        plain = down[:, :16] @ up[head, :8].T
        assert torch.allclose(stored.W_K[head, :, :8], plain, rtol=1e-3, atol=1e-3)
    assert weights.rotary is not None
    assert (weights.rotary.first, len(weights.rotary.angles)) == (8, 2)


@pytest.mark.parametrize(
    ("family", "turn"),
    [
        ("llama4, mixed", [True, False]),
        pytest.param("smollm3", [True, False], marks=pytest.mark.slow),
        pytest.param("cohere2", [True, False], marks=pytest.mark.slow),
        pytest.param("gptoss", [True, True], marks=pytest.mark.slow),
    ],
)
def test_layers_without_rotary_positions_are_found(family, turn):
    found = head_weights(with_norms(family))
    assert [weights.rotary is not None for weights in found.values()] == turn


def test_each_layer_has_the_rotary_table_that_it_uses():
    source = tiny("gemma3")
    bases = [source.config.rope_parameters[kind]["rope_theta"] for kind in MIXED]
    assert bases[0] != bases[1]
    for base, weights in zip(bases, head_weights(source).values(), strict=True):
        assert weights.rotary is not None
        assert torch.allclose(weights.rotary.angles, base ** (-torch.arange(4) / 4))


def test_a_gate_after_the_heads_is_part_of_what_they_write():
    source = with_norms("qwen3next")
    attention = source.model.layers[1].self_attn
    plain = attention.o_proj.weight.detach().T.view(4, 8, 32)
    assert torch.allclose(head_weights(source, [1], fold=False)[1].W_O, plain, rtol=1e-5)
    gates = head_weights(source, [1])[1].W_O / plain
    assert torch.allclose(gates, gates[..., :1].expand_as(gates), rtol=1e-3)
    assert ((gates > 0) & (gates < 1)).all()
    with torch.no_grad():
        attention.q_proj.weight.view(4, 2, 8, 32)[:, 1] = 0
    assert torch.allclose(head_weights(source, [1])[1].W_O, plain / 2, rtol=1e-3)


@pytest.mark.real_model
def test_scores_of_the_real_model_come_out_of_its_weights(real_model):
    ids = real_model.to_tokens("The cat sat on the mat. The cat sat on the mat.")
    weights, own = head_weights(real_model, [0, 1, 15, 29]), {}
    stream(real_model, ids, own.__setitem__)
    streams = entering(real_model.plain, ids)
    for layer in (0, 1, 15, 29):
        true = torch.einsum("bqkge,bske->bkgqs", own[layer].q, own[layer].k).flatten(1, 2)
        true = true * own[layer].scale
        scores = scores_of(weights[layer], real_model, layer, streams[layer])
        assert (scores - true).abs().max() < 1e-4 * max(1, true.abs().max())


def test_weights_as_stored_read_the_norms_output():
    model = interp.load_model(with_norms("gpt2"))
    ids = model.vocabulary[:20][None]
    stored, folded = head_weights(model, [1], fold=False)[1], head_weights(model, [1])[1]
    x = entering(model.plain, ids)[1]
    norm = norm_before(model, 1)
    with torch.no_grad():
        read = norm.module(x)
    ours = stored.scores(read, torch.ones(1, 20))
    assert torch.allclose(ours, folded.scores(x, norm.scale_of(x)), atol=1e-3)
    assert torch.equal(stored.W_O, folded.W_O)
    value = read @ stored.W_V + stored.b_V[:, None]
    same = x / norm.scale_of(x)[..., None] @ folded.W_V + folded.b_V[:, None]
    assert torch.allclose(value, same, atol=1e-3)
    assert folded.W_V.sum(1).abs().max() < 1e-3
    assert folded.centred


@pytest.mark.fault("B30")
def test_each_head_reads_the_keys_of_its_group():
    source = with_norms("llama")
    plain = source.model.layers[1]
    folded = head_weights(interp.load_model(source), [1])[1]
    gain = plain.input_layernorm.weight.detach()
    for head in range(4):
        _, right = folded.QK(head)
        rows = plain.self_attn.k_proj.weight.detach()[8 * (head // 2) : 8 * (head // 2 + 1)]
        assert torch.allclose(right, (rows * gain).T, rtol=1e-4)


def test_what_a_norm_after_the_heads_changes_is_folded_into_what_they_write():
    source = with_norms("gemma2")
    layer = source.model.layers[0]
    folded = head_weights(interp.load_model(source), [0])[0]
    gain = 1 + layer.post_attention_layernorm.weight.detach()
    stored = layer.self_attn.o_proj.weight.detach().T.view(4, 8, 32)
    assert torch.allclose(folded.W_O, stored * gain, rtol=1e-4)


@pytest.mark.fault("B112")
def test_weights_stay_when_the_model_turns_a_longer_prompt_otherwise():
    longer = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0]}
    settings = {"original_max_position_embeddings": 32}
    scaling = {"rope_type": "longrope", **settings, **longer}
    config = named("Phi3", **GROUPED, **settings, rope_scaling=scaling, **ENDS)()
    model = interp.load_model(made(config))
    rotary = head_weights(model, [0])[0].rotary
    assert rotary is not None
    short = rotary.angles.clone()
    entering(model.plain, model.vocabulary[:64][None])
    table = model.plain.model.rotary_emb.inv_freq
    assert not torch.equal(table, short)
    assert torch.equal(rotary.angles, short)


@pytest.mark.fault("B87")
def test_packed_and_adapted_weights_are_those_that_run():
    source, same = tiny("llama"), tiny("llama")
    attention, other = source.model.layers[1].self_attn, same.model.layers[1].self_attn
    attention.k_proj = packed = Packed(attention.k_proj)
    with torch.no_grad():
        other.k_proj.weight.copy_(packed(torch.eye(32)).T)
        other.q_proj.weight.mul_(1.5)
    attention.q_proj.register_forward_hook(lambda module, inputs, output: output * 1.5)
    ours, theirs = composition_scores(source), composition_scores(same)
    for kind in KINDS:
        assert torch.allclose(ours.scores(kind), theirs.scores(kind), atol=1e-6, equal_nan=True)


def test_a_large_bias_takes_no_digits_from_the_weights():
    source = tiny("qwen2").to(torch.bfloat16)
    with torch.no_grad():
        for layer in source.model.layers:
            layer.self_attn.k_proj.bias.fill_(300)
    same = copy.deepcopy(source).float()
    ours, exact = head_weights(source)[1], head_weights(same)[1]
    assert torch.allclose(ours.W_K, exact.W_K, rtol=1e-5)
    assert torch.allclose(ours.b_K, exact.b_K)


@pytest.mark.fault("B108")
def test_weights_that_are_fetched_when_they_run_are_read(tmp_path):
    source = tiny("llama")
    expected = composition_scores(tiny("llama"))
    parts = ("model.embed_tokens", "model.layers.0", "model.norm", "lm_head", "model.rotary_emb")
    places: Any = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    accelerate.dispatch_model(
        source, places, main_device=torch.device("cpu"), offload_dir=tmp_path, force_hooks=True
    )
    assert source.model.layers[1].self_attn.q_proj.weight.is_meta
    assert torch.equal(composition_scores(source).K.nan_to_num(), expected.K.nan_to_num())


@pytest.mark.fault("B48", "B50")
def test_weights_that_do_not_give_the_scores_are_refused():
    """As where queries are no linear function of the stream."""
    source = tiny("llama")
    source.model.layers[1].self_attn.q_proj.register_forward_hook(
        lambda module, inputs, output: output.clamp(-1, 1)
    )
    with pytest.raises(InputError, match=r"layer 1 are .* off: this attention is not known"):
        head_weights(source)


class Louder(transformers.models.llama.modeling_llama.LlamaAttention):
    """Attention whose output is multiplied after W_O, dimension by dimension."""

    def forward(self, *args, **options):
        output, weights = super().forward(*args, **options)
        return output * torch.linspace(0.01, 3, 32), weights


def test_values_and_outputs_that_the_weights_do_not_give_are_refused():
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.__class__ = Louder
    for function in (interp.composition_scores, values):
        with pytest.raises(interp.InputError, match="this attention is not known"):
            function(interp.load_model(model))


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("diffllama", "W_O must read each head's output by itself, got a mix of them in layer 0"),
        ("gemma3n", "must read the residual stream, or a norm of it, got another input in layer 0"),
    ],
)
def test_attention_without_weights_by_head_is_refused(family, why):
    with pytest.raises(InputError, match=why) as error:
        head_weights(with_norms(family))
    assert "\n" not in str(error.value)


def test_attention_that_reads_something_else_than_the_stream_is_refused():
    source = tiny("llama")
    norm = source.model.layers[1].input_layernorm
    norm.register_forward_pre_hook(lambda module, inputs: inputs[0].roll(1, -1))
    with pytest.raises(InputError, match="a norm of it, got another input in layer 1"):
        head_weights(source)


def test_heads_that_write_what_a_norm_divides_have_no_composition():
    sizes = {**SIZES, **SMALL, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = transformers.OPTConfig(
        **sizes, ffn_dim=64, word_embed_proj_dim=32, do_layer_norm_before=False
    )
    source = scaled(transformers.AutoModelForCausalLM.from_config(config))
    W = head_weights(source, [0])[0].W_V
    stored = source.model.decoder.layers[0].self_attn.v_proj.weight.detach().T
    assert torch.allclose(W, stored.view(32, 4, 8).transpose(0, 1))
    with pytest.raises(InputError, match="such as a norm, changes before layer 1 of OPT"):
        composition_scores(source)


def test_layers_come_in_the_order_asked_for_and_each_once():
    model = interp.load_model(tiny("llama"))
    every, found = head_weights(model), head_weights(model, (1, 0, 1))
    assert list(found) == [1, 0]
    assert all(torch.equal(found[i].W_Q, every[i].W_Q) for i in found)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("layers.1.self_attn.q_proj", "finite, got NaN or infinity, first in layer 1, head 0"),
        ("layers.0.mlp.down_proj", "finite, got NaN or infinity, first in layer 1, head 0"),
        ("layers.1.self_attn.v_proj", "not all are in W_V of layer 1 of LlamaForCausalLM"),
        ("layers.1.self_attn.o_proj", "not all are in W_O of layer 1 of LlamaForCausalLM"),
    ],
)
def test_what_is_not_finite_is_called_so(place, told):
    source = tiny("llama")
    with torch.no_grad():
        source.model.get_submodule(place).weight[0] = torch.nan
    with pytest.raises(InputError, match=told):
        head_weights(source)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_layer_whose_queries_are_nothing_is_known_all_the_same(family):
    source = tiny(family)
    with torch.no_grad():
        source.model.layers[1].self_attn.q_proj.weight.zero_()
    found = composition_scores(source)
    assert not head_weights(source)[1].W_Q.any()
    assert found.Q[0, :, 1].isnan().all()
    assert found.V[0, :, 1].isfinite().all()


def test_an_embedding_of_another_width_is_refused():
    sizes = {**SIZES, **SMALL, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = transformers.OPTConfig(**sizes, ffn_dim=64, word_embed_proj_dim=16)
    model = interp.load_model(transformers.AutoModelForCausalLM.from_config(config).eval())
    with pytest.raises(InputError, match="got 16 dimensions in a stream of 32"):
        embedding(model, model.vocabulary[:3])


@pytest.mark.parametrize("outside", [200, -1])
def test_ids_outside_the_embedding_are_refused(outside):
    with pytest.raises(InputError, match=f"^ids must be from 0 to 199, got {outside}$"):
        embedding(tiny("llama"), torch.tensor([5, outside]))


def test_the_model_is_left_as_it_was():
    model = interp.load_model(tiny("llama"))
    before = {name: weight.clone() for name, weight in model.plain.named_parameters()}
    state = torch.random.get_rng_state()
    composition_scores(model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[name], w) for name, w in model.plain.named_parameters())


def test_composition_goes_through_grouped_heads_and_folded_norms():
    source = with_norms("llama")
    found = composition_scores(source, distance=2)
    weights = head_weights(source)
    for h1, h2 in ((0, 0), (1, 3), (3, 2)):
        A = torch.linalg.multi_dot(weights[0].OV(h1))
        left, right = weights[1].QK(h2, distance=2)
        B = right @ left.T
        by_hand = (A @ B).norm() / A.norm() / B.norm()
        assert found.K[0, h1, 1, h2].item() == pytest.approx(by_hand.item(), rel=1e-4)
    assert found.floor == 32**-0.5
    assert composition_scores(with_norms("gpt2")).floor == pytest.approx(31**-0.5)
    raw = composition_scores(source, fold=False)
    assert not torch.allclose(raw.V, found.V, rtol=1e-2, equal_nan=True)
    with pytest.raises(InputError, match="at least two layers, got 1"):
        composition_scores(tiny("llama", num_hidden_layers=1, layer_types=None))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_of_weights_as_stored_the_scores_are_those_of_transformer_lens(family):
    model = interp.load_model(with_norms(family))
    found = composition_scores(model, fold=False)
    for kind in KINDS:
        theirs = model.bridge.all_composition_scores(kind).scores.detach()
        assert torch.allclose(found.scores(kind).nan_to_num(), theirs, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_the_embedding_is_what_the_first_layer_reads(family):
    model = interp.load_model(with_norms(family))
    ids = model.vocabulary[5:15]
    x = entering(model.plain, ids[:, None])[0]
    if family == "gpt2":
        x = x - model.plain.transformer.wpe.weight[0]
    norm = norm_before(model, 0)
    with torch.no_grad():
        read = (norm.module(x.detach()) - norm.bias) / norm.gain
    ours = embedding(model, ids)
    ours = ours - ours.mean(-1, keepdim=True) if norm.centred else ours
    assert torch.allclose(ours, read[:, 0], atol=1e-3)


def test_the_effective_embedding_adds_the_first_mlp():
    model = interp.load_model(with_norms("opt"))
    layer, ids = model.plain.model.decoder.layers[0], model.vocabulary[5:15]
    with torch.no_grad():
        x = model.plain.get_input_embeddings()(ids)
        x = x + layer.fc2(layer.fc1(layer.final_layer_norm(x)).relu())
    by_hand = x / norm_before(model, 0).scale_of(x[None])[0, :, None]
    assert torch.allclose(embedding(model, ids, through_mlp=True), by_hand, atol=1e-4)


def test_the_effective_embedding_goes_through_the_norm_after_the_mlp():
    source = with_norms("gemma2")
    with torch.no_grad():
        source.model.layers[0].self_attn.o_proj.weight.zero_()  # So that no head is in between.
    model = interp.load_model(source)
    ids = model.vocabulary[5:15]
    x = entering(model.plain, ids[:, None])[1]
    ours = embedding(model, ids, through_mlp=True)
    along = torch.nn.functional.cosine_similarity(ours, x[:, 0], dim=-1)
    assert torch.allclose(along, torch.ones(10), atol=1e-4)
    plain = torch.nn.functional.cosine_similarity(embedding(model, ids), x[:, 0], dim=-1)
    assert plain.min() < 0.99


def test_a_sample_of_tokens_is_seeded_and_holds_no_token_twice():
    model = interp.load_model(tiny("llama"))
    ids = token_sample(model, 50, seed=1)
    assert len(set(ids.tolist())) == 50
    assert torch.equal(ids, token_sample(model, 50, seed=1))
    assert not torch.equal(ids, token_sample(model, 50, seed=2))
    assert torch.equal(token_sample(model, 10_000), model.vocabulary)


@pytest.mark.slow
@pytest.mark.real_model
def test_the_head_that_feeds_the_induction_heads_comes_first_by_weights(real_model):
    """Numbers measured with another tool on the weights as stored."""
    found = composition_scores(real_model, fold=False)
    for later, score in (((17, 3), 0.219), ((18, 7), 0.208), ((17, 4), 0.206), ((18, 6), 0.202)):
        first, second = found.strongest("K", 2, later=later).to_dict("records")
        assert first["earlier"] == "L16H0"
        assert first["score"] == pytest.approx(score, abs=6e-4)
        assert found.rank("K")[11, 1, *later] > 1
        assert second["score"] < first["score"]
    assert found.floor == pytest.approx(0.0417, abs=1e-4)


@pytest.mark.real_model
def test_induction_heads_match_by_what_the_previous_token_head_wrote_and_copy(real_model):
    """And not by what a head writes that is as strong by attention."""
    ids = token_sample(real_model, 1024)
    weights = head_weights(real_model, [11, 16, 17, 23])
    effective = embedding(real_model, ids, through_mlp=True)

    def match(layer: int, head: int) -> float:
        return qk_match(effective, weights[layer], head, weights[17], 3, distance=20)

    assert match(16, 0) > 0.2  # By chance 0.001.
    assert match(11, 1) < 0.01
    # That head moves what it finds on to later heads; one of layer 23 speaks to the output.
    readout = Readout(real_model)
    W_U = readout.W_U @ readout.tail
    assert ov_copy(effective, weights[23], 2, W_U, ids) > 0.1  # By chance 0.00002.
    assert ov_copy(effective, weights[17], 3, W_U, ids) < 0.01
