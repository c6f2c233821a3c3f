"""Direct effects in models that are not causal, compared with the logits and with sums by hand."""

import pytest
import torch
from tiny_models import tiny
from torch import nn

import interp
from interp.weights.direct import logit_parts

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


def inputs(family: str, name: str) -> dict[str, torch.Tensor]:
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


def linear(norm: nn.Module, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
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
    for family, options in (("t5", {}), ("bert", {"decoder_tokens": IDS})):
        with pytest.raises(interp.InputError, match="decoder_tokens must"):
            logit_parts(interp.load_model(tiny(family)), IDS, ANSWERS, **options)
