"""Attention patterns are those that the model itself computes, and it stays as it was."""

import copy

import pytest
import torch
import transformers
from tiny_models import GROUPED, SIZES, SMALL, tiny, words_tokenizer
from transformers.models.llama.modeling_llama import LlamaAttention

import interp
from interp.kinds.builtin import FORCED_WINDOW
from interp.models.hooks import run, run_with


def own_attention(model, ids) -> torch.Tensor:
    """The model's attention as transformers gives it: [layer, batch, head, query, key]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return torch.stack(model(ids, output_attentions=True, use_cache=False).attentions)


@pytest.mark.fault("B32", "B33")
@pytest.mark.parametrize("family", ["gpt2", "neox", "llama", "neo"])
def test_patterns_are_what_the_model_itself_gives(family):
    ids = torch.randint(3, 200, (2, 24), generator=torch.Generator().manual_seed(0))
    patterns = interp.attention_patterns(tiny(family), ids)
    assert patterns.shape == (2, 2, 4, 24, 24)
    assert torch.equal(patterns, own_attention(tiny(family), ids))
    # A weak oracle otherwise: near-uniform attention looks alike whatever is wrong.
    assert patterns[..., -1, :].amax() > 0.25


def test_patterns_carry_what_was_run():
    model = interp.load_model(tiny("gpt2"), words_tokenizer())
    patterns = interp.attention_patterns(model, ["w5 w6 w7", "w8"])
    assert patterns.tokens.tolist() == [[1, 5, 6, 7], [1, 8, -1, -1]]
    assert patterns.texts == [["<s>", "w5", "w6", "w7"], ["<s>", "w8"]]
    assert patterns.layers == (0, 1)
    assert patterns.dtype == torch.float32
    assert type(patterns + 1) is torch.Tensor
    labels = interp.classify_heads(patterns)
    assert [label.head for label in labels] == [
        (layer, head) for layer in (0, 1) for head in range(4)
    ]


@pytest.mark.fault("B34")
def test_layers_are_chosen_by_number_and_others_refused():
    model, ids = interp.load_model(tiny("gpt2")), [1, 5, 6, 7]
    every = interp.attention_patterns(model, ids)
    chosen = interp.attention_patterns(model, ids, layers=[1, 0])
    assert chosen.layers == (1, 0)
    assert torch.equal(chosen, every.flip(0))
    for layers in ([99], [-1], []):
        with pytest.raises(interp.InputError, match=r"^layers must"):
            interp.attention_patterns(model, ids, layers=layers)


@pytest.mark.fault("B16")
def test_patterns_too_large_for_memory_are_refused_before_anything_runs(monkeypatch):
    model = interp.load_model(tiny("gpt2", n_positions=1024, vocab_size=400, n_layer=12))
    one = 4 * 4 * 1024**2
    monkeypatch.setattr("interp.memory.available", lambda: 2 * one)
    monkeypatch.setattr("interp.models.hooks._attend", None)
    with pytest.raises(interp.InputError, match=r"patterns must fit in memory, got 0\.27 GiB"):
        interp.attention_patterns(model, [5] * 1024)


@pytest.mark.fault("B15")
def test_dropout_is_off_while_looking_and_on_again_afterwards():
    model = interp.load_model(tiny("gpt2", attn_pdrop=0.5))
    model.plain.train()
    first, second = (interp.attention_patterns(model, [1, 5, 6, 7]) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.allclose(first.sum(-1), torch.ones(()), atol=1e-6)  # float32 sums of 4
    assert all(module.training for module in model.plain.modules())


@pytest.mark.fault("B25")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failing_visit_leaves_no_hook_and_no_changed_setting(error):
    model = interp.load_model(tiny("llama"))
    model.plain.train()
    model.plain.set_attn_implementation("sdpa")

    def hooks() -> int:
        parts = model.plain.modules()
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in parts)

    def fail(layer, pattern):
        assert model.plain.config._attn_implementation == "eager"
        raise error

    before = hooks()
    with pytest.raises(error):
        run(model, torch.tensor([[1, 5, 6]]), fail)
    assert hooks() == before
    assert model.plain.training
    assert model.plain.config._attn_implementation == "sdpa"


def test_attention_that_is_not_finite_is_reported_with_its_layer():
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.fill_(float("nan"))
    with pytest.raises(interp.InputError, match=r"first in layer 1, head 0, in float32"):
        interp.attention_patterns(model, [1, 5, 6])


UNUSUAL = {
    "a norm after the block": lambda: transformers.OPTConfig(
        **SIZES, **SMALL, ffn_dim=64, word_embed_proj_dim=32, do_layer_norm_before=False
    ),
    "CodeGen": lambda: transformers.CodeGenConfig(
        vocab_size=200, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4
    ),
    "Persimmon": lambda: transformers.PersimmonConfig(**SIZES, **SMALL, intermediate_size=64),
    "Helium": lambda: transformers.HeliumConfig(**SIZES, **GROUPED),
    "Granite MoE": lambda: transformers.GraniteMoeConfig(**SIZES, **GROUPED, num_local_experts=2),
    "GPT, whose modules return lists": lambda: transformers.OpenAIGPTConfig(
        vocab_size=200, n_positions=64, n_embd=32, n_layer=2, n_head=4
    ),
}
"""Families that TransformerLens cannot open, or gives other numbers for."""


@pytest.mark.fault("C02", "C23")
@pytest.mark.parametrize("family", UNUSUAL)
def test_a_family_that_transformerlens_does_not_know_is_read(family):
    own = transformers.AutoModelForCausalLM.from_config(UNUSUAL[family]())
    ids = torch.arange(3, 15)[None]
    first, second = (interp.attention_patterns(own, ids) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first, own_attention(own.eval(), ids))


@pytest.mark.fault("C02")
def test_a_subclass_of_a_known_class_is_read_like_it():
    class Renamed(transformers.LlamaForCausalLM):
        pass

    own = tiny("llama")
    other = Renamed(own.config)
    other.load_state_dict(own.state_dict())
    ids = [1, 5, 6, 7]
    assert torch.equal(interp.attention_patterns(other, ids), interp.attention_patterns(own, ids))


def changed(change) -> interp.Model:
    """A Llama whose layer 1 returns its attention weights changed."""

    class Changed(LlamaAttention):
        def forward(self, *args, **options):
            output, weights = super().forward(*args, **options)
            return output, change(weights)

    own = tiny("llama")
    own.model.layers[1].self_attn.__class__ = Changed
    return interp.load_model(own)


@pytest.mark.fault("C35")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.mean(1), r"got \[\(1, 3, 3\)\] from layer 1"),
        (lambda weights: weights[None], r"got \[\(1, 1, 4, 3, 3\)\] from layer 1"),
        (lambda weights: weights[:, :2], r"its 4 heads in every layer.* has 2 in layer 1"),
        (lambda weights: weights * 2, "in layer 1 a weight is 0, and a row sums to 1 off 1"),
        (lambda weights: None, r"got none from layers \[1\]"),
    ],
)
def test_what_is_not_the_attention_of_every_head_is_refused_with_its_layer(change, message):
    with pytest.raises(interp.InputError, match=message):
        interp.attention_patterns(changed(change), [1, 5, 6])


@pytest.mark.fault("C11")
def test_a_block_that_serves_several_layers_is_read_by_depth():
    own = tiny("llama", num_hidden_layers=3)
    own.model.layers[2] = own.model.layers[0]
    expected = own_attention(own, torch.tensor([[1, 5, 6, 7]]))
    model = interp.load_model(own)
    patterns = interp.attention_patterns(model, [1, 5, 6, 7])
    assert patterns.layers == (0, 1, 2)
    assert torch.equal(patterns, expected)
    assert not torch.allclose(patterns[0], patterns[2], atol=0.01)
    assert interp.scan_heads(model, rows=1, quick=True).made_by["method"] == "hooks"
    with (
        pytest.raises(interp.InputError, match="for each layer alone, got none in layer 0"),
        interp.ablated(model, "L0H1"),
    ):
        pass


@pytest.mark.fault("B55")
def test_patterns_know_that_rows_of_learned_sinks_sum_to_less_than_one():
    patterns = interp.attention_patterns(tiny("gptoss"), [1, 5, 6, 7, 8, 5, 6, 7, 8])
    assert patterns.learned_sinks
    assert copy.deepcopy(patterns).learned_sinks
    assert patterns.sum(-1).min() < 0.9
    assert len(interp.classify_heads(patterns)) == 8
    with pytest.raises(interp.InputError, match=r"sum to 1, got .*learned_sinks=True"):
        interp.classify_heads(patterns, learned_sinks=False)
    plain = torch.as_tensor(patterns.numpy())
    with pytest.raises(interp.InputError, match=r"sum to 1, got .*learned_sinks=True"):
        interp.classify_heads(plain, patterns.tokens)
    labels = interp.classify_heads(
        plain, patterns.tokens, learned_sinks=True, windows=patterns.windows
    )
    assert labels == interp.classify_heads(patterns)
    more = plain * 1.5 / plain.sum(-1, keepdim=True)
    with pytest.raises(interp.InputError, match="at most 1"):
        interp.classify_heads(more, patterns.tokens, learned_sinks=True)
    assert not interp.attention_patterns(tiny("gpt2"), [1, 5]).learned_sinks


def even_with_windows(**settings) -> interp.Model:
    """A Mistral whose heads spread themselves evenly over what the window shows them."""
    inner = tiny("mistral", **settings)
    with torch.no_grad():
        for layer in inner.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    return interp.load_model(inner)


@pytest.mark.fault("B53")
def test_patterns_know_the_windows_of_their_layers_and_labels_take_them():
    ids = [1, *range(5, 40), *range(5, 30)]
    patterns = interp.attention_patterns(even_with_windows(sliding_window=4), ids)
    assert patterns.windows == (4, 4)
    verdicts = interp.classify_heads(patterns)
    assert {verdict.label for verdict in verdicts} == {FORCED_WINDOW}
    for verdict in verdicts:
        assert verdict.scores["current_token"] == pytest.approx(
            verdict.chance["current_token"], abs=1e-5
        )
    plain = torch.as_tensor(patterns.numpy())
    assert verdicts == interp.classify_heads(plain, patterns.tokens, windows=[4, 4])
    again = interp.read_patterns(copy.deepcopy(patterns))
    assert again.windows == (4, 4)
    assert verdicts == interp.classify_heads(again)
    without = interp.classify_heads(patterns, windows=[None, None])
    assert without == interp.classify_heads(plain, patterns.tokens)
    assert {verdict.window for verdict in without} == {None}


def test_each_chosen_layer_keeps_its_own_window():
    chosen = interp.attention_patterns(tiny("gemma3"), list(range(3, 20)), layers=[1, 0])
    assert chosen.windows == (None, 4)
    assert [v.window for v in interp.classify_heads(chosen)] == [None] * 4 + [4] * 4


@pytest.mark.fault("B38")
def test_a_mask_that_real_scores_fall_below_is_refused_for_the_future_it_shows():
    own = tiny("llama")
    with torch.no_grad():
        for layer in own.model.layers:
            layer.self_attn.q_proj.weight *= 1e6
    model = interp.load_model(own)
    interp.attention_patterns(model, [1, 5, 6, 7])

    def to_a_constant(module, given, named):
        return given, named | {"attention_mask": named["attention_mask"].clamp(min=-1e4)}

    for layer in model.plain.model.layers:
        layer.self_attn.register_forward_pre_hook(to_a_constant, with_kwargs=True)
    with pytest.raises(interp.InputError, match=r"model must be causal, got .* looks ahead"):
        interp.attention_patterns(model, [1, 5, 6, 7])


def test_what_passes_comes_in_the_order_of_the_names_and_a_hook_that_is_not_there_is_refused():
    model = interp.load_model(tiny("gpt2"))
    names = ["blocks.1.attn.hook_pattern", "blocks.0.hook_resid_pre"]
    assert list(run_with(model, torch.tensor([[5, 6]]), names)) == names
    with pytest.raises(interp.InputError, match=r"blocks\.2\.attn\.hook_z"):
        run_with(model, torch.tensor([[5, 6]]), ["blocks.2.attn.hook_z"])


@pytest.mark.fault("B74")
def test_a_cache_that_is_on_makes_no_pattern_longer():
    model = interp.load_model(tiny("llama", use_cache=True))
    cached, kept = transformers.DynamicCache(), []
    model.plain.register_forward_hook(lambda _, given, output: kept.append(output.past_key_values))
    # Where some keep what they ran before.
    model.plain.config.past_key_values = cached
    ids = [1, 5, 6, 7]
    first, second = (interp.attention_patterns(model, ids) for _ in range(2))
    assert first.shape == (2, 1, 4, 4, 4)
    assert torch.equal(first, second)
    assert torch.equal(first, interp.attention_patterns(tiny("llama", use_cache=False), ids))
    scores = [interp.scan_heads(model, rows=1, quick=True).frame for _ in range(2)]
    assert scores[0].equals(scores[1])
    assert cached.get_seq_length() == 0
    assert kept
    assert set(kept) == {None}
    assert model.plain.config.use_cache


@pytest.mark.fault("B20")
@pytest.mark.parametrize("rows", [1, 3])
def test_prompts_of_one_token_keep_their_axis_of_the_batch(rows):
    patterns = interp.attention_patterns(tiny("gpt2"), [[5]] * rows)
    assert torch.equal(patterns, torch.ones(2, rows, 4, 1, 1))
    assert len(patterns.texts) == rows


@pytest.mark.fault("C16")
def test_a_layer_with_another_number_of_heads_gets_the_same_answer_from_every_function():
    own = tiny("llama")
    fewer = tiny("llama", num_attention_heads=2, head_dim=8)
    own.model.layers[1].self_attn = fewer.model.layers[1].self_attn
    model, message = interp.load_model(own), "its 4 heads in every layer, got .* has 2 in layer 1"
    for ask in (
        lambda: interp.attention_patterns(model, [1, 5, 6]),
        lambda: interp.scan_heads(model, rows=1, quick=True),
        lambda: interp.scan_heads(model, rows=1, method="hooks"),
    ):
        with pytest.raises(interp.InputError, match=message):
            ask()
