"""Loaded models as users have them: compiled, spread, adapted, or with weights elsewhere."""

import copy

import accelerate
import peft
import pytest
import torch
import transformers
from tiny_models import tiny

import interp

# Warnings of torch.compile and PEFT about each other.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

IDS = torch.tensor([[1, 5, 6, 7, 5, 6, 7]])


def adapted() -> peft.PeftModel:
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peft.get_peft_model(tiny("llama"), config).eval()


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


def test_an_adapter_that_does_more_than_change_weights_is_refused():
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(interp.InputError, match="must be a transformers model, got"):
        interp.load_model(peft.get_peft_model(tiny("llama"), config))


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
    places = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    accelerate.dispatch_model(
        model, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True
    )
    assert any(weight.is_meta for weight in model.parameters())
    assert torch.equal(interp.attention_patterns(model, IDS), expected)
    with pytest.raises(interp.InputError, match="weights must be in memory"):
        interp.composition_scores(model)


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
def test_packed_weights_attend_as_before_and_have_no_composition_scores():
    model = tiny("llama")
    expected = interp.attention_patterns(model, IDS)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Packed(getattr(layer.self_attn, name)))
    assert torch.equal(interp.attention_patterns(model, IDS), expected)
    with pytest.raises(interp.InputError, match="packed as uint8"):
        interp.composition_scores(model)
