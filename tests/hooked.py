"""Effects by plain hooks on models of transformers, one head and one prompt at a time."""

import functools

import torch
from tiny_models import tiny

import interp
from interp.effects.metrics import AnswerMetric

PROJECTIONS = {
    "gpt2": "transformer.h.{}.attn.c_proj",
    "neox": "gpt_neox.layers.{}.attention.dense",
    "llama": "model.layers.{}.self_attn.o_proj",
    "gemma2": "model.layers.{}.self_attn.o_proj",
    "bloom": "transformer.h.{}.self_attention.dense",
    "opt": "model.decoder.layers.{}.self_attn.out_proj",
    "neo": "transformer.h.{}.attn.attention.out_proj",
    "gemma3n": "model.layers.{}.self_attn.o_proj",
}
"""Where each family multiplies the heads' outputs by W_O."""

LENGTHS = (9, 9, 6, 9)


def prompts() -> tuple[list[list[int]], list[list[int]]]:
    """Clean and corrupted prompts of two lengths, which differ from the third token on."""
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(3, 200, (2, 4, 9), generator=generator)
    corrupted[:, :2] = clean[:, :2]
    cut = [[row[:n].tolist() for row, n in zip(each, LENGTHS)] for each in (clean, corrupted)]
    return cut[0], cut[1]


@functools.cache
def answers(family: str) -> list[list[int]]:
    """For each prompt the tokens whose logits rise and fall most from corrupted to clean."""
    model = tiny(family)
    right, wrong = [], []
    for pair in zip(*prompts()):
        with torch.no_grad():
            ends = [model(torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in pair]
        right.append(int((ends[0] - ends[1]).argmax()))
        wrong.append(int((ends[0] - ends[1]).argmin()))
    return [right, wrong]


def metric(family: str, rows: slice = slice(None)) -> AnswerMetric:
    right, wrong = answers(family)
    return interp.logit_difference(right=right[rows], wrong=wrong[rows])


def difference(model, family, row, ids, layer=0, edit=lambda z: None) -> float:
    """One prompt's logit difference with the z [pos, head, d] of a layer edited by a pre-hook."""

    def before(module, inputs):
        z = inputs[0].clone()
        edit(z[0].view(len(ids), 4, -1))
        return (z, *inputs[1:])

    projection = model.get_submodule(PROJECTIONS[family].format(layer))
    handle = projection.register_forward_pre_hook(before)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    handle.remove()
    right, wrong = answers(family)
    return float(logits[right[row]] - logits[wrong[row]])


def z_of(model, family, ids, layer) -> torch.Tensor:
    seen = []
    difference(model, family, 0, ids, layer, lambda z: seen.append(z.clone()))
    return seen[0]


def by_hand(family, new_z, position=slice(None)) -> torch.Tensor:
    """[row, layer, head] differences of the corrupted prompts, each head's z replaced alone."""
    model, corrupted = tiny(family), prompts()[1]
    values = torch.zeros(len(corrupted), model.config.num_hidden_layers, 4).double()
    for row, ids in enumerate(corrupted):
        for layer in range(values.shape[1]):
            new = new_z(model, row, layer)
            for head in range(4):

                def edit(z, head=head, new=new):
                    z[position, head] = new[position, head]

                values[row, layer, head] = difference(model, family, row, ids, layer, edit)
    return values


def whole(family, both) -> torch.Tensor:
    model = tiny(family)
    return torch.tensor([difference(model, family, i, ids) for i, ids in enumerate(both)]).double()
