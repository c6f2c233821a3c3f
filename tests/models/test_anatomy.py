"""Layers, attention and output projections are found in the modules of any family."""

import pytest
import torch
import transformers
from tiny_models import GROUPED, SIZES, tiny

from interp.models.families import attention_modules, layer_modules, output_projections

RECURRENT = {**SIZES, **GROUPED, "num_hidden_layers": 3, "lru_width": 32}
NEMOTRON = {**SIZES, **GROUPED, "hybrid_override_pattern": "M*-*", "mamba_num_heads": 4}
MLLAMA = {**SIZES, **GROUPED, "num_hidden_layers": 3, "cross_attention_layers": [1]}

MODELS = {
    "gpt2": (lambda: tiny("gpt2"), "transformer.h.{}", "attn", "c_proj", [0, 1]),
    "opt": (lambda: tiny("opt"), "model.decoder.layers.{}", "self_attn", "out_proj", [0, 1]),
    "neo": (lambda: tiny("neo"), "transformer.h.{}", "attn.attention", "out_proj", [0, 1]),
    "qwen3next": (lambda: tiny("qwen3next"), "model.layers.{}", "self_attn", "o_proj", [1, 3]),
    "bert": (
        lambda: tiny("bert"),
        *("bert.encoder.layer.{}", "attention", "output.dense", [0, 1]),
    ),
    "bare": (
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**SIZES, **GROUPED)),
        *("layers.{}", "self_attn", "o_proj", [0, 1]),
    ),
    "recurrentgemma": (
        lambda: transformers.RecurrentGemmaModel(transformers.RecurrentGemmaConfig(**RECURRENT)),
        *("layers.{}", "temporal_block", "o_proj", [2]),
    ),
    "nemotronh": (
        lambda: transformers.NemotronHModel(transformers.NemotronHConfig(**NEMOTRON)),
        *("layers.{}", "mixer", "o_proj", [1, 3]),
    ),
    "mllama": (
        lambda: transformers.MllamaModel(
            transformers.MllamaConfig(
                text_config={**MLLAMA, "pad_token_id": 0},
                vision_config={"hidden_size": 32, "num_hidden_layers": 1, "attention_heads": 4},
            )
        ),
        *("language_model.layers.{}", "self_attn", "o_proj", [0, 2]),
    ),
}
"""Path of a layer, of its attention in it, of W_O in that, and the layers that attend."""


@pytest.mark.parametrize("family", MODELS)
def test_attention_and_its_output_projection_are_found_in_each_layer(family):
    build, layer, attention, projection, attending = MODELS[family]
    with torch.device("meta"):
        model = build()
    layers = layer_modules(model)
    assert layers == {i: model.get_submodule(layer.format(i)) for i in range(len(layers))}
    paths = {i: f"{layer.format(i)}.{attention}" for i in attending}
    assert attention_modules(model) == {i: model.get_submodule(at) for i, at in paths.items()}
    expected = {i: model.get_submodule(f"{at}.{projection}") for i, at in paths.items()}
    assert output_projections(model) == expected


@pytest.mark.parametrize(
    ("stack", "path"),
    [
        ("encoder", "encoder.block.{}.layer.0.SelfAttention"),
        ("decoder", "decoder.block.{}.layer.0.SelfAttention"),
        ("cross", "decoder.block.{}.layer.1.EncDecAttention"),
    ],
)
def test_each_attention_of_an_encoder_decoder_is_found_in_its_stack(stack, path):
    model = tiny("t5")
    expected = {i: model.get_submodule(path.format(i)) for i in (0, 1)}
    assert attention_modules(model, stack) == expected
    assert output_projections(model, stack) == {i: each.o for i, each in expected.items()}
