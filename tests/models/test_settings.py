"""Settings in `interp.models.families`: impossible numbers are refused, ambiguous ones reported."""

import json
import logging

import pytest
import torch
import transformers
from tiny_models import SIZES, SMALL, scaled, tiny, words_tokenizer

import interp
from interp.models.families import check_settings
from interp.models.load import context_of


def set_in(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_attention_heads", "4"),
        ("num_key_value_heads", True),
        ("hidden_size", 10**30),
        ("max_position_embeddings", 0),
        ("sliding_window", 2.5),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", 0),
        ("bos_token_id", 10**30),
        ("eos_token_id", [2, "q"]),
    ],
)
def test_a_number_that_no_model_has_is_refused_by_its_name(setting, value):
    for settings in ({setting: value}, {"text_config": {"inner": {setting: value}}}):
        with pytest.raises(interp.InputError, match=f"^{setting} must "):
            check_settings(settings)


@pytest.mark.fault("C09")
def test_a_rotary_base_for_a_million_tokens_is_used_as_it_is(folder):
    rope = {"rope_type": "default", "rope_theta": 3580165449.0}
    set_in(folder, rope_parameters=rope)
    model = interp.load_model(folder)
    assert model.plain.model.rotary_emb.inv_freq[1].item() == pytest.approx(
        rope["rope_theta"] ** -0.25
    )


def test_impossible_settings_are_refused_in_files_and_in_loaded_models(folder):
    set_in(folder, rope_parameters={"rope_type": "default", "rope_theta": -1.0})
    with pytest.raises(interp.InputError, match=r"rope_theta must .*config\.json"):
        interp.load_model(folder)
    set_in(folder, rope_parameters=None, vocab_size=[200])
    with pytest.raises(interp.InputError, match=r"could not be loaded: .*'vocab_size'"):
        interp.load_model(folder)
    with pytest.raises(interp.InputError, match="sliding_window must"):
        interp.load_model(tiny("mistral", sliding_window=-1))


@pytest.mark.parametrize("named", [5, ["no such class"], []])
def test_an_unknown_class_leaves_the_family_to_decide(folder, named):
    set_in(folder, architectures=named)
    assert interp.load_model(folder).direction == "causal"


def test_the_context_is_known_before_loading_unless_settings_are_impossible(folder):
    assert context_of(folder) == 64
    set_in(folder, max_position_embeddings=0)
    assert context_of(folder) is None


@pytest.mark.fault("B59")
@pytest.mark.parametrize(("setting", "odd"), [("bos_token_id", 9999), ("pad_token_id", -1)])
def test_special_tokens_outside_the_vocabulary_are_ignored_with_a_warning(setting, odd, caplog):
    model = interp.load_model(tiny("gpt2", **{setting: odd}))
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert f"{setting} {odd}" in record.getMessage()
    assert model.special == {1, 2} - ({1} if setting == "bos_token_id" else set())
    assert model.bos == (None if setting == "bos_token_id" else 1)
    assert odd not in interp.scan_heads(model, rows=1, quick=True).made_by["special"]


def test_a_tokenizers_bos_outside_the_vocabulary_is_ignored_with_a_warning(caplog):
    tokenizer = words_tokenizer(bos="w150")
    model = interp.load_model(tiny("gpt2", vocab_size=100), tokenizer)
    assert "bos_token_id 150" in caplog.text
    assert model.bos is None
    assert model.to_tokens("w5 w6").tolist() == [[5, 6]]


@pytest.mark.fault("B54")
@pytest.mark.parametrize("width", [0, None])
def test_a_window_without_a_width_is_no_limit_with_one_warning(width, caplog):
    own = tiny("gemma2", sliding_window=width)
    kinds = list(own.config.layer_types)
    model = interp.load_model(own)
    interp.attention_patterns(model, [1, 5, 6, 7])
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert f"sliding_window is {width}" in record.getMessage()
    assert model.windows == (None, None)
    assert (own.config.sliding_window, own.config.layer_types) == (width, kinds)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_ordinary_settings_give_no_warning(family, caplog):
    interp.load_model(tiny(family, sliding_window=None))
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
@pytest.mark.parametrize(("width", "window"), [(0, 1), (1, 1), (8, 5)])
def test_the_window_of_a_bidirectional_model_is_the_one_in_its_patterns(width, window):
    ends = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1}
    ends |= {"eos_token_id": 2, "sep_token_id": 2}
    settings = {**SIZES, **SMALL, **ends, "intermediate_size": 64, "local_attention": width}
    own = scaled(transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings)))
    model = interp.load_model(own)
    assert model.windows == (None, window)
    patterns = interp.attention_patterns(model, torch.arange(3, 15))
    away = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    assert torch.equal((patterns[1] > 0).any(0).any(0), away < window)
