"""Weights of real architectures must give the scores that the models themselves compute."""

import pytest
import torch
import transformers
from packed import Packed
from tiny_models import GROUPED, SIZES, SMALL, scaled, tiny

import interp
from interp.errors import InputError
from interp.kinds import probes as tokens
from interp.models.hooks import run_with
from interp.weights.composition import KINDS
from interp.weights.direct import Readout
from interp.weights.folded import (
    composition_scores,
    embedding,
    head_weights,
    norm_before,
    token_sample,
)
from interp.weights.heads import ov_copy, qk_match

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
MORE = {
    "gptj": lambda: transformers.GPTJConfig(
        vocab_size=200, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, **GROUPED),
    "gemma": lambda: transformers.GemmaConfig(**SIZES, **GROUPED),
    "falcon": lambda: transformers.FalconConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False
    ),
    "falcon, many keys": lambda: transformers.FalconConfig(
        vocab_size=200, **SMALL, alibi=False, multi_query=False
    ),
    "phi3": lambda: transformers.Phi3Config(**SIZES, **GROUPED),
    "capped": lambda: transformers.Gemma2Config(
        **SIZES, **GROUPED, query_pre_attn_scalar=100, attn_logit_softcapping=5.0
    ),
    "cohere": lambda: transformers.CohereConfig(**SIZES, **GROUPED),
    "theta": lambda: transformers.LlamaConfig(**SIZES, **GROUPED, rope_theta=5e6),
    **{
        name: lambda name=name: transformers.LlamaConfig(
            **SIZES,
            **GROUPED,
            rope_theta=5e6,
            rope_scaling={"rope_type": name, "factor": 4.0, **ROPES[name]},
        )
        for name in ROPES
    },
}
QUICK = ("gpt2", "neox", "llama", "mistral", "gptoss", "opt", "gptj", "capped", "yarn")
"""One family for each way to store or to change queries and keys."""

FAMILIES = [
    *QUICK,
    *(
        pytest.param(family, marks=pytest.mark.slow)
        for family in ("phi", "gemma2", "neo", *MORE)
        if family not in QUICK
    ),
]


def with_norms(family: str) -> transformers.PreTrainedModel:
    """A tiny model whose norms and biases are random too."""
    if family in MORE:
        config = MORE[family]()
        for name, value in {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}.items():
            setattr(config, name, value)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            source = scaled(transformers.AutoModelForCausalLM.from_config(config))
    else:
        source = tiny(family)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in source.parameters():
            if weight.dim() == 1:
                weight.copy_(torch.rand(weight.shape, generator=generator) + 0.1)
    return source


def scores_seen(model: interp.Model, ids: torch.Tensor) -> list[torch.Tensor]:
    """Each layer's pattern as TransformerLens shows it, as scores less what a row shares."""
    names = [f"blocks.{i}.attn.hook_pattern" for i in range(model.n_layers)]
    return [p.float() for p in run_with(model, ids, names).values()]


@pytest.mark.fault("B30", "B48", "B50", "B112")
@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_come_out_of_the_weights(family):
    """On tokens and positions that the weights were not tried on."""
    model = interp.load_model(with_norms(family))
    ids = tokens.repeated(model.vocabulary, rows=2, length=64, bos=1, seed=0).tokens
    names = [f"blocks.{i}.hook_resid_pre" for i in range(model.n_layers)]
    entering = run_with(model, ids, names).values()
    weights = head_weights(model)
    seen = scores_seen(model, ids)
    for layer, (x, pattern) in enumerate(zip(entering, seen, strict=True)):
        scores = weights[layer].scores(x, norm_before(model, layer).scale_of(x))
        window = model.windows[layer] or 64
        hidden = ~torch.ones(64, 64, dtype=torch.bool).tril().triu(1 - window)
        ours = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        # A learned sink takes its share of each row (gpt-oss).
        assert torch.allclose(ours * pattern.sum(-1, keepdim=True), pattern, atol=1e-4)
        uniform = (~hidden).float() / (~hidden).sum(-1, keepdim=True)
        assert (ours - uniform).abs().max() > 0.2


@pytest.mark.real_model
def test_scores_of_the_real_model_come_out_of_its_weights(real_model):
    ids = real_model.to_tokens("The cat sat on the mat. The cat sat on the mat.")
    weights = head_weights(real_model)
    for layer in (0, 1, 15, 29):
        names = [f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.attn.hook_attn_scores"]
        x, true = run_with(real_model, ids, names).values()
        scores = weights[layer].scores(x, norm_before(real_model, layer).scale_of(x))
        seen = torch.ones_like(true, dtype=torch.bool).tril()
        assert (scores - true)[seen].abs().max() < 1e-4 * max(1, true[seen].abs().max())


def test_weights_as_stored_read_the_norms_output():
    model = interp.load_model(with_norms("gpt2"))
    ids = model.vocabulary[:20][None]
    stored, folded = head_weights(model, [1], fold=False)[1], head_weights(model, [1])[1]
    (x,) = run_with(model, ids, ["blocks.1.hook_resid_pre"]).values()
    norm = norm_before(model, 1)
    with torch.no_grad():
        read = norm.module(x)
    ours = stored.scores(read, torch.ones(1, 20))
    assert torch.allclose(ours, folded.scores(x, norm.scale_of(x)), atol=1e-3)
    assert torch.equal(stored.W_O, folded.W_O)
    value = read @ stored.W_V + stored.b_V[:, None]
    same = x / norm.scale_of(x)[..., None] @ folded.W_V + folded.b_V[:, None]
    assert torch.allclose(value, same, atol=1e-3)
    assert (folded.W_V.sum(1).abs().max(), folded.centred) < (1e-3, True)


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


@pytest.mark.fault("B96")
@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("qwen3", "q_norm and k_norm of layer 0 normalize each query and key"),
        ("bloom", "ALiBi adds a bias by distance"),
    ],
)
def test_scores_without_a_bilinear_form_are_refused(family, why):
    with pytest.raises(InputError, match=why) as error:
        head_weights(tiny(family))
    assert "\n" not in str(error.value)


@pytest.mark.fault("B97")
def test_latent_attention_is_refused():
    config = transformers.DeepseekV2Config(
        **SIZES,
        **SMALL,
        intermediate_size=64,
        kv_lora_rank=8,
        q_lora_rank=None,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        first_k_dense_replace=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    source = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(InputError, match="latent attention has no separate keys"):
        head_weights(source)


@pytest.mark.fault("B112")
def test_weights_stay_when_the_model_turns_a_longer_prompt_otherwise():
    longer = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0]}
    config = transformers.Phi3Config(
        **SIZES,
        **GROUPED,
        original_max_position_embeddings=32,
        rope_scaling={"rope_type": "longrope", "original_max_position_embeddings": 32, **longer},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = interp.load_model(scaled(transformers.AutoModelForCausalLM.from_config(config)))
    rotary = head_weights(model, [0])[0].rotary
    assert rotary is not None
    short = rotary.angles.clone()
    run_with(model, model.vocabulary[:64][None], ["blocks.0.hook_resid_pre"])
    table = model.plain.model.rotary_emb.inv_freq
    assert not torch.equal(table, short)
    assert torch.equal(rotary.angles, short)


@pytest.mark.fault("B87")
def test_patterns_of_packed_weights_come_from_the_model_and_weights_are_refused():
    source, same = tiny("llama"), tiny("llama")
    attention, other = source.model.layers[1].self_attn, same.model.layers[1].self_attn
    attention.k_proj = packed = Packed(attention.k_proj)
    with torch.no_grad():
        other.k_proj.weight.copy_(packed(torch.eye(32)).T)
    ids = torch.arange(3, 30)[None]
    shown, expected = (interp.attention_patterns(m, ids) for m in (source, same))
    assert torch.allclose(shown, expected, atol=1e-6)
    for function in (head_weights, composition_scores):
        with pytest.raises(InputError, match=r"got k_proj\.weight of layer 1 packed as uint8"):
            function(source)


@pytest.mark.fault("B108")
def test_weights_that_are_elsewhere_are_refused():
    model = interp.load_model(tiny("llama"))
    attention = model.bridge.blocks[0].attn.original_component
    attention.v_proj.weight = torch.nn.Parameter(attention.v_proj.weight.to("meta"))
    with pytest.raises(InputError, match=r"must be in memory, got v_proj\.weight of layer 0"):
        head_weights(model)
    inner = model.plain
    for part in (inner.get_input_embeddings(), inner.get_output_embeddings()):
        part.weight = torch.nn.Parameter(part.weight.to("meta"))
    with pytest.raises(InputError, match="must be in memory, got the embedding elsewhere"):
        embedding(model, model.vocabulary[:3])
    with pytest.raises(InputError, match="must be in memory, got the unembedding elsewhere"):
        Readout(model)


@pytest.mark.fault("B48", "B50")
def test_weights_that_do_not_give_the_scores_are_refused():
    """As where an adapter works beside them."""
    model = interp.load_model(tiny("llama"))
    twin = model.plain.model.layers[1].self_attn.q_proj
    twin.register_forward_hook(lambda module, inputs, output: output * 1.01)
    with pytest.raises(InputError, match=r"layer 1 are .* off: this attention is not known"):
        head_weights(model)


def test_layers_come_in_the_order_asked_for_and_each_once():
    model = interp.load_model(tiny("llama"))
    every, found = head_weights(model), head_weights(model, (1, 0, 1))
    assert list(found) == [1, 0]
    assert all(torch.equal(found[i].W_Q, every[i].W_Q) for i in found)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("layers.1.self_attn.q_proj", "not all are in W_Q of layer 1 of LlamaForCausalLM"),
        ("layers.1.input_layernorm", "not all are in W_Q of layer 1 .* or in the norm before it"),
        ("layers.0.mlp.down_proj", "activations are not finite where the norm, a LlamaRMSNorm, is"),
    ],
)
def test_what_is_not_finite_is_called_so(place, told):
    source = tiny("llama")
    with torch.no_grad():
        source.model.get_submodule(place).weight[0] = torch.nan
    with pytest.raises(InputError, match=told):
        head_weights(source)


def test_a_layer_whose_queries_are_nothing_is_known_all_the_same():
    source = tiny("llama")
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
    (x,) = run_with(model, ids[:, None], ["blocks.0.hook_resid_pre"]).values()
    if family == "gpt2":
        x = x - model.plain.transformer.wpe.weight[0]
    norm = norm_before(model, 0)
    with torch.no_grad():
        read = (norm.module(x.detach()) - norm.bias) / norm.gain
    ours = embedding(model, ids)
    ours = ours - ours.mean(-1, keepdim=True) if norm.centred else ours
    assert torch.allclose(ours, read[:, 0], atol=1e-3)


@pytest.mark.parametrize("family", ["gemma2"])
def test_the_effective_embedding_adds_the_first_mlp(family):
    source = with_norms(family)
    with torch.no_grad():
        source.model.layers[0].self_attn.o_proj.weight.zero_()  # So that no head is in between.
    model = interp.load_model(source)
    ids = model.vocabulary[5:15]
    (x,) = run_with(model, ids[:, None], ["blocks.1.hook_resid_pre"]).values()
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
