"""Models that are saved load again bit for bit, however their weights are shared."""

import pytest
import torch
from tiny_models import tiny

import interp
from interp import models


def hand_tied(own):
    own.lm_head.weight = own.transformer.wte.weight


def untied(own):
    own.lm_head.weight = torch.nn.Parameter(own.lm_head.weight * 2)


def shared(own):
    own.model.layers[1].self_attn.o_proj = own.model.layers[0].self_attn.o_proj


@pytest.mark.fault("C10")
@pytest.mark.parametrize(
    ("family", "tie", "change"),
    [
        ("gpt2", False, hand_tied),
        ("gpt2", True, untied),
        ("llama", True, lambda own: None),
        ("llama", False, shared),
    ],
)
def test_a_saved_model_comes_back_bit_for_bit(tmp_path, family, tie, change):
    own = tiny(family, tie_word_embeddings=tie)
    change(own)
    model = interp.load_model(own)
    models.save(model, tmp_path / "saved")
    again = interp.load_model(tmp_path / "saved")
    ids = torch.arange(3, 20)[None]
    assert torch.equal(again.plain(ids).logits, model.plain(ids).logits)
    assert again.digest == model.digest


@pytest.mark.fault("C10")
def test_a_model_that_does_not_come_back_is_not_saved(tmp_path, monkeypatch):
    model = interp.load_model(tiny("llama"))
    other = tiny("llama", vocab_size=100)
    monkeypatch.setattr(type(model.plain), "from_pretrained", lambda *_, **__: other)
    with pytest.raises(interp.InputError, match="model must have the same weights when"):
        models.save(model, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
