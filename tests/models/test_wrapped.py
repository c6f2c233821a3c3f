"""Loaded models as users have them: compiled, spread, adapted, quantized, traced, pickled."""

import copy
import pickle
from typing import Any

import accelerate
import peft
import pytest
import torch
import transformers
from tiny_models import tiny, words_tokenizer

import interp
from interp.models.stream import stream
from interp.models.wrapped import unwrapped

# Warnings of torch.compile and PEFT about each other.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

IDS = torch.tensor([[1, 5, 6, 7, 5, 6, 7]])


def adapted(model: transformers.PreTrainedModel | None = None, **settings) -> Any:
    config = peft.LoraConfig(
        target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False, **settings
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peft.get_peft_model(model or tiny("llama"), config).eval()


def own_patterns(model) -> torch.Tensor:
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return torch.stack(model(IDS, output_attentions=True).attentions)


@pytest.mark.fault("B104")
@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel])
def test_a_wrapper_that_changes_nothing_is_taken_off(wrap):
    model = tiny("llama")
    wrapped = interp.attention_patterns(wrap(model), IDS)
    assert torch.equal(wrapped, interp.attention_patterns(model, IDS))


@pytest.mark.fault("B104")
@pytest.mark.slow
def test_a_compiled_part_of_a_model_is_read_too():
    model = tiny("llama")
    expected = interp.attention_patterns(model, IDS)
    attention = model.model.layers[0].self_attn
    model.model.layers[0].self_attn = torch.compile(attention, backend="eager")
    assert torch.allclose(interp.attention_patterns(model, IDS), expected, atol=1e-5)


@pytest.mark.fault("B104")
@pytest.mark.parametrize("merged", [False, True])
def test_an_adapter_is_part_of_the_weights_and_the_model_stays_as_it_was(merged):
    model = adapted()
    expected = own_patterns(model.get_base_model())
    if merged:
        model.merge_adapter()
    before = copy.deepcopy(model.state_dict())
    opened = interp.load_model(model)
    found = interp.attention_patterns(opened, IDS)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, interp.attention_patterns(tiny("llama"), IDS), atol=0.1)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    if not merged:
        model.merge_adapter()
    weight, own = (
        m.model.layers[0].self_attn.q_proj.weight for m in (opened.plain, model.get_base_model())
    )
    assert torch.equal(weight, own)


def test_an_adapter_that_is_switched_off_is_left_out():
    model = adapted()
    model.base_model.disable_adapter_layers()
    ours = interp.attention_patterns(model, IDS)
    assert torch.equal(ours, interp.attention_patterns(tiny("llama"), IDS))


def test_trained_copies_and_tokens_are_read_where_they_are_and_stay_there():
    tokens = adapted(trainable_token_indices=[5, 6])
    copies = adapted(modules_to_save=["lm_head"])
    with torch.no_grad():
        copies.lm_head.modules_to_save["default"].weight *= 2
        tokens.model.model.embed_tokens.token_adapter.trainable_tokens_delta["default"] *= 2
    for model in (tokens, copies):
        parts, logits = [*model.modules()], model(IDS).logits
        assert torch.allclose(unwrapped(model)(IDS).logits, logits, atol=1e-4)
        assert parts == [*model.modules()]
        assert torch.equal(model(IDS).logits, logits)


def test_several_adapters_of_different_kinds_are_read_together():
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    compiled: Any = torch.compile(tiny("llama"), backend="eager")
    model: Any = peft.get_peft_model(compiled, config, mixed=True)
    model.add_adapter("other", peft.LoHaConfig(target_modules=["k_proj"], init_weights=False))
    model.set_adapter(["default", "other"])
    expected = own_patterns(model.eval().base_model.model._orig_mod)
    assert torch.allclose(interp.attention_patterns(model, IDS), expected, atol=1e-5)


@pytest.mark.fault("C24")
@pytest.mark.parametrize("kind", ["PrefixTuning", "PromptTuning"])
def test_virtual_tokens_are_never_left_out_silently(kind):
    config = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny("llama"), config)
    with pytest.raises(interp.InputError, match="its 3 virtual tokens would be missing"):
        interp.load_model(model)


def test_an_adapter_that_works_around_the_layers_is_refused():
    layers = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    later = peft.LoraConfig(alora_invocation_tokens=[5, 6], **layers)
    by_task = peft.PolyConfig(n_tasks=2, **layers)
    for config, reason in ((later, "active after some tokens"), (by_task, "task_ids")):
        with pytest.raises(interp.InputError, match=f"without what PEFT adds .*{reason}"):
            interp.load_model(peft.get_peft_model(tiny("llama"), config))


def quantized(bits: int, folder) -> transformers.PreTrainedModel:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    # Rows of 64 numbers, as bitsandbytes packs them for some CPUs.
    tiny("llama", hidden_size=64, head_dim=16).save_pretrained(folder)
    settings = transformers.BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=settings)


@pytest.mark.fault("C04")
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_model_is_read_as_it_runs_and_left_as_it_was(bits, tmp_path):
    other, model = (quantized(bits, tmp_path) for _ in range(2))
    with torch.no_grad():
        logits = other(IDS).logits
    opened = interp.load_model(model)
    patterns = interp.attention_patterns(opened, IDS)
    assert torch.equal(patterns, own_patterns(other))
    streamed: list[torch.Tensor] = []
    back = (torch.arange(IDS.shape[1]) - 1)[None, :, None]
    stream(opened, IDS, lambda layer, attention: streamed.append(attention.mass(back)[..., 1:]))
    previous = patterns.diagonal(-1, -2, -1)
    assert torch.allclose(torch.stack(streamed), previous, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, logits)


@pytest.mark.fault("C03")
@pytest.mark.parametrize("bits", [8, 4])
def test_an_adapter_over_quantized_weights_attends_as_it_runs(bits, tmp_path):
    model = adapted(quantized(bits, tmp_path), lora_dropout=0.5).train()
    found = interp.attention_patterns(model, IDS)
    assert all(part.training for part in model.modules())
    expected = own_patterns(model.eval().get_base_model())
    assert torch.equal(found, expected)
    with model.disable_adapter():
        assert not torch.allclose(own_patterns(model.get_base_model()), expected, atol=0.1)


@pytest.mark.fault("C25")
def test_a_model_of_nnsight_is_read_with_its_tokenizer():
    nnsight = pytest.importorskip("nnsight", reason="nnsight is not installed")
    model = tiny("llama")
    expected = interp.attention_patterns(model, [1, 5, 6])
    traced = nnsight.LanguageModel(model, tokenizer=words_tokenizer())
    for wrapped in (traced, traced.pipeline):
        assert torch.equal(interp.attention_patterns(wrapped, "w5 w6"), expected)
    assert model.config._attn_implementation == "sdpa"
    with traced.edit(inplace=True):
        traced.model.layers[0].output[0][:] = 0
    with pytest.raises(interp.InputError, match="no edits of nnsight"):
        interp.load_model(traced)


@pytest.mark.fault("C25")
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_model_that_ran_can_be_pickled_and_copied(family):
    model = interp.load_model(tiny(family), words_tokenizer())
    expected = interp.attention_patterns(model, IDS)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(interp.attention_patterns(other, IDS), expected)
        assert (repr(other), other.special) == (repr(model), model.special)
    assert torch.equal(interp.attention_patterns(model, IDS), expected)


@pytest.mark.fault("B108")
def test_a_model_without_its_weights_is_refused_with_what_to_do():
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(tiny("llama").config)
    with pytest.raises(interp.InputError, match=r"weights in memory, got .* on the meta device"):
        interp.load_model(model)


@pytest.mark.fault("B108")
def test_a_layer_that_is_fetched_when_it_runs_attends_as_before(tmp_path):
    model = tiny("llama")
    expected = interp.attention_patterns(model, IDS)
    parts = ("model.embed_tokens", "model.layers.0", "model.norm", "lm_head", "model.rotary_emb")
    places: Any = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    accelerate.dispatch_model(
        model, places, main_device=torch.device("cpu"), offload_dir=tmp_path, force_hooks=True
    )
    assert any(weight.is_meta for weight in model.parameters())
    assert torch.equal(interp.attention_patterns(model, IDS), expected)


class Packed(torch.nn.Module):
    """A projection whose weights are packed two to a byte, as 4-bit quantization has them."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = *layer.weight.shape[::-1], None
        flat = torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8)
        self.weight = torch.nn.Parameter(flat, requires_grad=False)
        self.unpacked = layer.weight.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.unpacked)


@pytest.mark.fault("B87")
def test_packed_weights_attend_as_before_and_have_composition_scores():
    model = tiny("llama")
    expected, scores = interp.attention_patterns(model, IDS), interp.composition_scores(model)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Packed(getattr(layer.self_attn, name)))
    assert torch.equal(interp.attention_patterns(model, IDS), expected)
    assert torch.equal(interp.composition_scores(model).V[0, :, 1], scores.V[0, :, 1])
