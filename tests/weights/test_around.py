"""Weights and direct effects in models that are not causal, compared with sums by hand."""

from typing import Any

import pytest
import torch
import transformers
from tiny_models import SIZES, SMALL, tiny
from torch import nn

import interp
from interp.weights.direct import logit_parts
from interp.weights.folded import composition_scores, head_weights
from interp.weights.probed import recorded

IDS = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))
ANSWERS = IDS.roll(1, 0)


def with_biases(family: str) -> interp.Model:
    """A model whose biases and norms do something."""
    model = tiny(family)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += torch.randn_like(weight) / 4
    return interp.load_model(model)


def inputs(family: str, name: str) -> dict[str, Any]:
    return {name: IDS.flip(1)} if family in ("t5", "bart") else {}


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "t5", "bart"])
def test_direct_effects_sum_to_the_logit(family):
    model = with_biases(family)
    parts = logit_parts(model, IDS, ANSWERS, **inputs(family, "decoder_tokens"))
    by_head = [parts[name].sum((0, 2)) for name in ("heads", "cross") if name in parts]
    by_layer = parts["attention_bias"].sum(0) + parts["mlp"].sum(0)
    total = sum(by_head) + by_layer + parts["embedding"] + parts["constant"]
    with torch.no_grad():
        logits = model.plain(IDS, **inputs(family, "decoder_input_ids")).logits
    logits = (logits - logits.mean(-1, keepdim=True)).gather(-1, ANSWERS[..., None])[..., 0]
    assert torch.allclose(total, logits, atol=1e-4)
    assert ("cross" in parts) == (family in ("t5", "bart"))
    assert (parts["attention_bias"].abs().max() > 0.01) == (family in ("bert", "roberta", "bart"))
    if family == "t5":  # It has no biases, and nothing after the layers but a norm.
        assert parts["constant"].abs().max() < 1e-4


def linear(norm: Any, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A part through a LayerNorm that keeps the scale that it has for `x`, without its bias."""
    part = part - part.mean(-1, keepdim=True)
    return part / (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt() * norm.weight


def test_effects_of_the_last_layer_are_those_by_hand():
    """BERT: two norms, then dense, the slope of GELU, a norm, and the unembedding."""
    model = with_biases("bert")
    effects = logit_parts(model, IDS, ANSWERS)["heads"][1]
    layer, transform = model.plain.bert.encoder.layer[1], model.plain.cls.predictions.transform
    norms = (layer.attention.output.LayerNorm, layer.output.LayerNorm, transform.LayerNorm)
    read = {}
    for module in (*norms, layer.attention.output.dense, transform.transform_act_fn):
        module.register_forward_hook(lambda module, x, y: read.update({module: x[0].detach()}))
    model.plain(IDS)
    before = read[transform.transform_act_fn].requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.gelu(before).sum(), before)
    with torch.no_grad():
        z, W_O = read[layer.attention.output.dense], layer.attention.output.dense.weight
        W_U = model.plain.get_output_embeddings().weight
        W_U = (W_U - W_U.mean(0))[ANSWERS]
        for head in range(4):
            columns = slice(8 * head, 8 * head + 8)
            part = z[..., columns] @ W_O[:, columns].T
            for norm in norms[:2]:
                part = linear(norm, read[norm], part)
            part = slope * (part @ transform.dense.weight.T)
            by_hand = (linear(norms[2], read[norms[2]], part) * W_U).sum(-1)
            assert torch.allclose(effects[:, head], by_hand, atol=1e-4)
            assert by_hand.abs().max() > 0.01


def test_effects_of_attention_to_the_encoder_are_those_by_hand():
    model = with_biases("t5")
    effects = logit_parts(model, IDS, ANSWERS, decoder_tokens=IDS.flip(1))["cross"][1]
    decoder, read = model.plain.decoder, {}
    W_O = decoder.block[1].layer[1].EncDecAttention.o
    for module in (W_O, decoder.final_layer_norm):
        module.register_forward_hook(lambda module, x, y: read.update({module: x[0].detach()}))
    with torch.no_grad():
        model.plain(IDS, decoder_input_ids=IDS.flip(1))
        norm = decoder.final_layer_norm
        sigma = (read[norm].square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
        W_U = model.plain.lm_head.weight
        towards = (W_U - W_U.mean(0))[ANSWERS] * norm.weight / sigma * 32**-0.5
        part = read[W_O][..., 8:16] @ W_O.weight[:, 8:16].T
    assert torch.allclose(effects[:, 1], (part * towards).sum(-1), atol=1e-4)


def test_the_decoder_needs_tokens_and_other_models_have_none():
    tried: tuple[tuple[str, dict[str, Any]], ...]
    tried = (("t5", {}), ("bert", {"decoder_tokens": IDS}))
    for family, options in tried:
        with pytest.raises(interp.InputError, match="decoder_tokens must"):
            logit_parts(interp.load_model(tiny(family)), IDS, ANSWERS, **options)


def test_weights_of_bert_are_those_of_its_file():
    model = with_biases("bert")
    for layer, found in head_weights(model).items():
        part = f"bert.encoder.layer.{layer}.attention"
        file = {name: model.plain.state_dict()[f"{part}.{name}"] for name in FILE}
        Q, b_Q, V, b_V, dense = file.values()
        for head in range(4):
            rows = slice(8 * head, 8 * head + 8)
            assert torch.allclose(found.W_Q[head], Q[rows].T, atol=1e-4)
            assert torch.allclose(found.b_Q[head], b_Q[rows], atol=1e-4)
            assert torch.allclose(found.W_V[head], V[rows].T, atol=1e-4)
            assert torch.allclose(found.b_V[head], b_V[rows], atol=1e-4)
            assert torch.allclose(found.W_O[head], dense[:, rows].T, atol=1e-4)


FILE = [f"self.{name}.{kind}" for name in ("query", "value") for kind in ("weight", "bias")]
FILE += ["output.dense.weight"]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_weights_give_the_models_own_patterns(family):
    model, ids = with_biases(family), IDS[:1]
    patterns, weights = interp.attention_patterns(model, ids), head_weights(model)
    for layer, seen in zip(weights, recorded(model, ids, list(weights)), strict=True):
        scores = weights[layer].scores(seen.stream, seen.sigma())
        hidden = patterns[layer] == 0
        assert hidden.any() == (model.windows[layer] is not None)
        ours = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        assert torch.allclose(ours, patterns[layer], atol=1e-4)
        assert patterns[layer].amax() > 0.5


def test_weights_that_do_not_give_the_outputs_are_refused():
    model = with_biases("bert")
    dense = model.plain.bert.encoder.layer[1].attention.output
    dense.forward = lambda z, x: dense.LayerNorm(2 * dense.dense(z) + x)
    with pytest.raises(interp.InputError, match="those of layer 1 are"):
        head_weights(model)


def test_composition_needs_a_stream_that_no_norm_changes():
    with pytest.raises(interp.InputError, match="changes before layer 1 of Roberta"):
        composition_scores(with_biases("roberta"))
    model = with_biases("modernbert")
    first, second = head_weights(model).values()
    A, B = torch.linalg.multi_dot(first.OV(1)), torch.linalg.multi_dot(second.OV(2))
    A = A - A.mean(-1, keepdim=True)
    by_hand = (A @ B).norm() / (A.norm() * B.norm())
    assert torch.isclose(composition_scores(model).V[0, 1, 1, 2], by_hand, rtol=1e-4)


def test_a_norm_of_the_stream_inside_the_attention_is_refused():
    ids: dict[str, Any] = {"pad_token_id": 1, "mask_token_id": 3}
    config = transformers.EsmConfig(**SIZES, **SMALL, intermediate_size=64, **ids)
    with pytest.raises(interp.InputError, match="norms of the stream must be before"):
        head_weights(transformers.EsmForMaskedLM(config))
