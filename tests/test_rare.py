"""Models and arguments out of the ordinary: read as they are, or refused in words."""

import pytest
import torch
import transformers
from families import remade
from tiny_models import GROUPED, MIXED, SIZES, SMALL, scaled, tiny

import interp
from interp.models import load_model

IDS = torch.arange(3, 17)[None]

ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
BART = {**SIZES, **ENDS, **LAYERS, **HEADS, "d_model": 32}
BART |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
FURTHER = {**SIZES, **ENDS, **SMALL, "intermediate_size": 64}


def bart() -> transformers.BartModel:
    return transformers.BartModel(transformers.BartConfig(**BART)).eval()


REFUSED = {
    "no heads": (
        lambda: transformers.FNetForMaskedLM(
            transformers.FNetConfig(**SIZES, hidden_size=32, num_hidden_layers=1)
        ),
        "must have num_attention_heads",
    ),
    "no token ids": (
        lambda: transformers.ViTModel(
            transformers.ViTConfig(**SMALL, intermediate_size=64, image_size=32, patch_size=8)
        ),
        "must have vocab_size",
    ),
    "a decoder alone": (lambda: bart().get_decoder(), "got BartDecoder, a decoder alone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_whose_heads_are_not_known_is_refused_when_it_is_loaded(case):
    make, words = REFUSED[case]
    with pytest.raises(interp.InputError, match=words):
        load_model(make())


@pytest.mark.fault("B58")
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_the_encoder_taken_out_of_an_encoder_decoder_is_read_and_scanned_as_an_encoder(family):
    whole = bart() if family == "bart" else tiny("t5")
    alone = load_model(whole.get_encoder())
    assert alone.direction == "both ways"
    of_whole = interp.attention_patterns(whole, IDS, stack="encoder")
    assert interp.attention_patterns(alone, IDS).equal(of_whole)
    table = interp.scan_heads(alone, rows=1, length=24, quick=True).to_frame()
    assert len(table) == alone.n_layers * alone.n_heads


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Yoso", "other"), ("BigBird", "other"), ("Bert", "full"), ("MPNet", "full")],
)
def test_attention_is_called_full_only_where_that_is_known(name, kind):
    config = getattr(transformers, f"{name}Config")(**FURTHER)
    opened = load_model(getattr(transformers, f"{name}ForMaskedLM")(config))
    assert opened.kinds == (kind, kind)


def test_a_model_with_what_an_earlier_run_left_in_it_is_copied_without_it_being_changed():
    model = tiny("gpt2")
    vars(model.transformer)["left"] = model(IDS).logits
    opened = load_model(model)
    assert model.transformer.left.requires_grad
    assert interp.attention_patterns(opened, IDS).shape == (2, 1, 4, 14, 14)


def test_a_model_that_cannot_be_copied_is_refused_in_one_line():
    model = tiny("gpt2")
    vars(model)["left"] = (step for step in ())
    with pytest.raises(interp.InputError, match="one that can be copied, got a GPT2LMHeadModel"):
        load_model(model)


def test_arguments_are_checked_for_a_loaded_model_too():
    for model in (tiny("gpt2"), load_model(tiny("gpt2"))):
        for name, value in (("device", "tpu:9"), ("dtype", "int3"), ("tokenizer", 5)):
            with pytest.raises(interp.InputError, match=f"^{name} must"):
                load_model(model, **{name: value})


def test_a_device_where_a_loaded_model_is_not_is_refused(monkeypatch):
    model = tiny("gpt2")
    with monkeypatch.context() as patch:
        patch.setattr("interp.models.load._as_device", torch.device)
        with pytest.raises(interp.InputError, match="loaded model, cpu, got cuda"):
            load_model(model, device="cuda")
    assert load_model(load_model(model, device="cpu"), device="cpu").device.type == "cpu"


@pytest.mark.parametrize("method", ["stream", "hooks"])
def test_a_model_with_fewer_heads_in_a_layer_is_refused_before_there_is_a_table(method):
    sizes = {**SIZES, **ENDS, **GROUPED, "num_attention_heads_per_layer": [4, 2]}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = transformers.LagunaConfig(**sizes, **experts, shared_expert_intermediate_size=32)
    model = load_model(transformers.AutoModelForCausalLM.from_config(config).eval())
    words = "must have its 4 heads in every layer, got LagunaForCausalLM, which has 2 in layer 1"
    with pytest.raises(interp.InputError, match=words):
        interp.attention_patterns(model, IDS)
    with pytest.raises(interp.InputError, match=words):
        interp.scan_heads(model, rows=1, length=16, quick=True, method=method)


def test_an_encoder_with_fewer_heads_than_its_settings_tell_has_those_it_returns():
    config = transformers.ConvBertConfig(**FURTHER, embedding_size=32)
    model = load_model(transformers.ConvBertForMaskedLM(config))
    assert interp.attention_patterns(model, IDS).shape == (2, 1, 2, 14, 14)
    assert len(interp.scan_heads(model, rows=1, length=16, quick=True).frame) == 4


@pytest.mark.parametrize(
    ("name", "more"),
    [("Xmod", {}), ("Nystromformer", {"num_landmarks": 8, "segment_means_seq_len": 64})],
)
def test_whatever_a_model_raises_when_it_is_run_is_one_line(name, more):
    config = getattr(transformers, f"{name}Config")(**FURTHER, **more)
    model = load_model(getattr(transformers, f"{name}ForMaskedLM")(config))
    with pytest.raises(interp.InputError, match=r"must run on these token ids, got .*Error: "):
        interp.attention_patterns(model, IDS)


def test_what_is_no_tensor_among_the_attention_of_a_model_is_refused():
    config = transformers.PegasusXConfig(
        **{name: value for name, value in BART.items() if name not in ENDS}, num_global_tokens=4
    )
    model = transformers.PegasusXForConditionalGeneration(config)
    with pytest.raises(interp.InputError, match=r"must return attention .* from PegasusX"):
        interp.attention_patterns(model, IDS, stack="encoder")


def test_layers_that_share_keys_and_values_are_read_for_the_whole_prompt():
    config = transformers.Gemma4TextConfig(
        **SIZES,
        **ENDS,
        **{**GROUPED, "num_hidden_layers": 4},
        num_kv_shared_layers=1,
        global_head_dim=8,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=200,
        sliding_window=4,
        layer_types=MIXED * 2,
    )
    model = scaled(transformers.AutoModelForCausalLM.from_config(config))
    with torch.no_grad():
        own = torch.stack(remade(model)(IDS, output_attentions=True).attentions)
    opened = load_model(model)
    assert torch.allclose(interp.attention_patterns(opened, IDS), own, atol=1e-5)
    scan = interp.scan_heads(opened, rows=1, length=16, quick=True)
    assert (len(scan.to_frame()), scan.made_by["method"]) == (16, "stream")


def test_an_encoding_without_ids_is_refused():
    with pytest.raises(interp.InputError, match="inputs must"):
        interp.attention_patterns(tiny("gpt2"), {})
