"""Settings that no model has are refused by name; those that are taken otherwise are told."""

import json
import logging

import pytest
import torch
import transformers
from tiny_models import SIZES, SMALL, scaled, tiny, words_tokenizer

import interp
from interp.models.ahead import context_of
from interp.models.kinds import windows


def set_in(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("num_attention_heads", 0, "must be from 1 to 2147483647, got 0"),
        ("num_attention_heads", "4", "must be a whole number, got '4'"),
        ("num_key_value_heads", -2, "must be from 1"),
        ("num_key_value_heads", True, "must be a whole number, got True"),
        ("num_hidden_layers", 0, "must be from 1"),
        ("hidden_size", 10**30, "must be from 1"),
        ("head_dim", 0, "must be from 1"),
        ("vocab_size", -1, "must be from 1"),
        ("max_position_embeddings", 0, "must be from 1"),
        ("max_position_embeddings", 10**30, "must be from 1"),
        ("sliding_window", -1, "must be from 0"),
        ("sliding_window", 2.5, "must be a whole number, got 2.5"),
        ("sliding_window", "q", "must be a whole number, got 'q'"),
        ("rms_norm_eps", -1, "must be from 0"),
        ("rms_norm_eps", float("nan"), "must be from 0"),
        ("rope_theta", 0, "must be above 0"),
        ("bos_token_id", 10**30, "must be from -2147483647"),
        ("eos_token_id", [2, "q"], "must be a whole number, got 'q'"),
    ],
)
def test_a_number_that_no_model_has_is_refused_by_its_name(folder, setting, value, told):
    set_in(folder, **{setting: value})
    with pytest.raises(interp.InputError, match=rf"config\.json .*{setting} {told}") as caught:
        interp.load_model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("hidden_size", None), ("vocab_size", [200]), ("num_attention_heads", {}), ("head_dim", [8])],
)
def test_settings_of_another_kind_are_refused_by_name(folder, setting, value):
    set_in(folder, **{setting: value})
    with pytest.raises(interp.InputError, match=f"no model can be made.*'{setting}'") as caught:
        interp.load_model(folder)
    assert "damaged" not in str(caught.value)


def test_settings_within_settings_are_checked_too(folder):
    set_in(folder, rope_parameters={"rope_type": "default", "rope_theta": -1.0})
    with pytest.raises(interp.InputError, match=r"rope_theta must be above 0 .*got -1\.0"):
        interp.load_model(folder)


@pytest.mark.parametrize("named", [5, "LlamaForCausalLM", ["no such class"], []])
def test_a_class_that_is_named_as_none_is_leaves_the_family_to_decide(folder, named):
    set_in(folder, architectures=named)
    assert interp.load_model(folder).direction == "causal"


def test_impossible_settings_of_a_loaded_model_are_refused_too():
    with pytest.raises(interp.InputError, match=r"sliding_window must be from 0 .*got -1"):
        interp.load_model(tiny("mistral", sliding_window=-1))


def test_no_context_is_read_from_settings_that_no_model_has(folder):
    assert context_of(folder) == 64
    set_in(folder, max_position_embeddings=0)
    assert context_of(folder) is None


@pytest.mark.fault("B59")
@pytest.mark.parametrize(
    ("setting", "odd"),
    [("bos_token_id", 9999), ("bos_token_id", -1), ("eos_token_id", 9999), ("pad_token_id", -1)],
)
def test_a_special_token_that_the_model_has_no_id_for_is_none_and_told(setting, odd, caplog):
    model = interp.load_model(tiny("gpt2", **{setting: odd}))
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 1
    assert f"{setting} {odd}" in told[0]
    assert model.special == {1, 2} - ({1} if setting == "bos_token_id" else set())
    assert model.bos == (None if setting == "bos_token_id" else 1)
    assert odd not in interp.scan_heads(model, rows=1, quick=True).made_by["special"]


def test_a_tokenizers_bos_beyond_the_model_is_none_and_told(caplog):
    tokenizer = words_tokenizer(bos="w150")
    model = interp.load_model(tiny("gpt2", vocab_size=100), tokenizer)
    assert "bos_token_id 150" in caplog.text
    assert model.bos is None
    assert model.to_tokens("w5 w6").tolist() == [[5, 6]]


@pytest.mark.fault("B54")
@pytest.mark.parametrize("width", [0, None])
def test_a_window_without_a_width_is_told_once_and_is_no_limit(width, caplog):
    model = interp.load_model(tiny("gemma2", sliding_window=width))
    interp.attention_patterns(model, [1, 5, 6, 7])
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 1
    assert f"sliding_window is {width}" in told[0]
    assert model.windows == (None, None)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen2"])
def test_settings_that_are_taken_as_they_stand_are_not_warned_of(family, caplog):
    changes = {"sliding_window": None} if family == "mistral" else {}
    interp.load_model(tiny(family, **changes))
    assert not caplog.records


@pytest.mark.fault("B54")
def test_a_window_of_0_in_the_models_own_tables_is_refused():
    with pytest.raises(interp.InputError, match=r"window_size must be at least 1 .*got 0"):
        interp.load_model(tiny("neo", window_size=0))


def test_latent_attention_needs_no_width_of_heads():
    model = tiny("deepseek2")
    model.config.head_dim = 0
    assert interp.attention_patterns(model, torch.tensor([[1, 5, 6]])).shape[-1] == 3


@pytest.mark.fault("B54")
@pytest.mark.parametrize(("width", "window"), [(0, 1), (1, 1), (2, 2), (8, 5)])
def test_the_window_of_a_model_that_looks_both_ways_is_what_its_patterns_show(width, window):
    ends = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1}
    ends |= {"eos_token_id": 2, "sep_token_id": 2}
    settings = {**SIZES, **SMALL, **ends, "intermediate_size": 64, "local_attention": width}
    own = scaled(transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings)))
    model = interp.load_model(own)
    assert model.windows == (None, window)
    patterns = interp.attention_patterns(model, torch.arange(3, 15))
    away = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    assert torch.equal((patterns[1] > 0).any(0).any(0), away < window)


@pytest.mark.fault("B54")
@pytest.mark.parametrize("use", [True, False])
def test_a_width_that_is_switched_off_is_no_window_though_it_stands_in_the_settings(use):
    """Qwen's own settings take it out themselves; not all do."""
    config = transformers.PretrainedConfig(use_sliding_window=use, sliding_window=4)
    assert windows(config, 2) == ((4, 4) if use else (None, None))
