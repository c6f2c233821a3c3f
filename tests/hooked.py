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
    "qwen3": "model.layers.{}.self_attn.o_proj",
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


FUSED = {
    "gpt2": ("transformer.h.{}.attn.c_attn", (3, 4, 8)),
    "neox": ("gpt_neox.layers.{}.attention.query_key_value", (4, 3, 8)),
    "bloom": ("transformer.h.{}.self_attention.query_key_value", (4, 3, 8)),
}
"""Where some families compute queries, keys and values at once, and how they lie."""


def projection(model, family, layer, name):
    """The module that computes q, k or v, and a function from its output to [..., head, d]."""
    if family in FUSED:
        path, shape = FUSED[family]
        axis, index = -3 + shape.index(3), "qkv".index(name)
        module = model.get_submodule(path.format(layer))
        return module, lambda x: x.unflatten(-1, shape).select(axis, index)
    module = model.get_submodule(f"model.layers.{layer}.self_attn.{name}_proj")
    return module, lambda x: x.unflatten(-1, (-1, 8))


def inside(family, what, position=slice(None)) -> torch.Tensor:
    """[layer, head] differences of corrupted prompts of one length, after one change inside a head.

    Clean queries, keys or values (before norms and rotary positions, which treat each alike)
    replace those of one head; or its pattern is the clean one. Two prompts run together.
    """
    model, (clean, corrupted) = tiny(family), prompts()
    model.set_attn_implementation("eager")
    clean, corrupted = (torch.tensor(ids[:2]) for ids in (clean, corrupted))
    right, wrong = (torch.tensor(ids[:2])[:, None] for ids in answers(family))

    def run(tokens, *hooks):
        handles = [
            module.register_forward_pre_hook(lambda module, inputs, hook=hook: hook(inputs[0]))
            if is_input
            else module.register_forward_hook(lambda module, inputs, out, hook=hook: hook(out))
            for module, is_input, hook in hooks
        ]
        with torch.no_grad():
            output = model(tokens, use_cache=False, output_attentions=True)
        for handle in handles:
            handle.remove()
        last = output.logits[:, -1]
        return (last.gather(-1, right) - last.gather(-1, wrong))[:, 0].double(), output.attentions

    def seen(tokens, module):
        outputs = []
        run(tokens, (module, False, lambda out: outputs.append(out)))
        return outputs[0]

    patterns, table = run(clean)[1], []
    for layer in range(len(patterns)):
        module, view = projection(model, family, layer, "v" if what == "pattern" else what)
        theirs, own = view(seen(clean, module)), view(seen(corrupted, module))
        of_layer = []
        for head in range(4 if what == "pattern" else own.shape[2]):

            def edit(x, head=head, layer=layer, view=view, theirs=theirs, own=own):
                x = x.clone()
                if what != "pattern":
                    view(x)[:, position, head] = theirs[:, position, head]
                    return x
                values = own[:, :, head * own.shape[2] // 4]
                new = patterns[layer][:, head] @ values
                x.unflatten(-1, (4, -1))[:, position, head] = new[:, position]
                return (x,)

            W_O = model.get_submodule(PROJECTIONS[family].format(layer))
            is_input = what == "pattern"
            of_layer.append(run(corrupted, (W_O if is_input else module, is_input, edit))[0])
        table.append(torch.stack(of_layer))
    return torch.stack(table).mean(-1)
