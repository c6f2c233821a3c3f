import pytest
import torch
from tiny_models import CONFIGS, FURTHER, LATER, tiny
from torch.nn import functional

import interp
from interp.effects.wiring import Wiring

CLEAN = torch.tensor([[5, 6, 7, 8, 5, 9, 30, 41], [50, 6, 7, 81, 5, 9, 30, 41]])
CORRUPTED = CLEAN.clone()
CORRUPTED[:, 3] = 99
QUICK = ["gpt2", "neox", "llama", "gemma2", "bloom", "granite3"]
REFUSED = ("qwen3next", "gemma3n", "diffllama", "minicpm3", "gpt")
OTHERS = sorted({*CONFIGS, *FURTHER, *LATER} - {*QUICK, *REFUSED})


def logits_of(model: interp.Model, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.plain(tokens).logits[:, -1:]


@pytest.mark.parametrize(
    "family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_all_edges_give_the_model_and_none_the_other_run(family):
    model = interp.load_model(tiny(family))
    wiring = Wiring(model)
    whole, other = (wiring.run(tokens) for tokens in (CLEAN, CORRUPTED))
    changed = {"others": other.outputs}
    by_edge = [
        wiring.run(CLEAN, kept=kept, **changed).logits
        for kept in (wiring.edges, torch.zeros_like(wiring.edges))
    ]
    clean, corrupted = (logits_of(model, tokens) for tokens in (CLEAN, CORRUPTED))
    close = {"rtol": 0, "atol": 1e-4}
    assert torch.allclose(whole.logits, clean, **close)
    assert torch.allclose(by_edge[0], clean, **close)
    assert torch.allclose(by_edge[1], corrupted, **close)
    assert (clean - corrupted).abs().max() > 1e-2
    assert not any("forward" in vars(layer.block) for layer in wiring.layers)


@pytest.mark.parametrize(("path", "to"), [("q", "L1H2"), ("k", "L1KV1"), ("v", "L1KV0")])
def test_an_edge_is_one_input_of_one_head(path, to):
    """By hand: one projection of the second layer reads the corrupted output of one head."""
    model = interp.load_model(tiny("llama"))
    wiring, first, second = Wiring(model), *model.plain.model.layers
    source, target = wiring.sources.index("L0H1"), wiring.targets.index((to, path))
    kept = wiring.edges.clone()
    kept[source, target] = False
    others = wiring.run(CORRUPTED).outputs
    found = wiring.run(CLEAN, kept=kept, others=others).logits

    z = {}
    for name, tokens in (("clean", CLEAN), ("corrupted", CORRUPTED)):
        with first.self_attn.o_proj.register_forward_pre_hook(
            lambda module, inputs, name=name: z.__setitem__(name, inputs[0])
        ):
            logits_of(model, tokens)
    rows = slice(8, 16)
    W_O = first.self_attn.o_proj.weight[:, rows]
    change = (z["corrupted"] - z["clean"])[..., rows] @ W_O.T
    stream = {}

    def replaced(module, inputs, output):
        head = int(to[-1]) * 8
        x = second.input_layernorm(stream["x"] + change)
        output[..., head : head + 8] = functional.linear(x, module.weight)[..., head : head + 8]
        return output

    projection = getattr(second.self_attn, f"{path}_proj")
    with (
        second.register_forward_pre_hook(lambda module, inputs: stream.update(x=inputs[0])),
        projection.register_forward_hook(replaced),
    ):
        by_hand = logits_of(model, CLEAN)
    assert torch.allclose(found, by_hand, rtol=0, atol=1e-4)
    assert (by_hand - logits_of(model, CLEAN)).abs().max() > 1e-3


def test_edges_off_the_way_from_embedding_to_logits_are_not_connected():
    wiring = Wiring(interp.load_model(tiny("llama")))
    kept = torch.zeros_like(wiring.edges)

    def at(source: str, target: str, path: str = "") -> tuple[int, int]:
        return wiring.sources.index(source), wiring.targets.index((target, path))

    way = [at("embedding", "L0KV1", "v"), at("L0H3", "L1H0", "q"), at("L1H0", "logits")]
    for edge in [*way, at("L0H0", "logits"), at("embedding", "L1 MLP"), at("L0H2", "L1H3", "q")]:
        kept[edge] = True
    assert wiring.connected(kept).nonzero().tolist() == [list(edge) for edge in sorted(way)]


@pytest.mark.parametrize(
    ("family", "message"),
    [("qwen3next", "layers must add the outputs of their heads"), ("bert", "model must be causal")],
)
def test_models_without_edges_are_refused(family, message):
    with pytest.raises(interp.InputError, match=message):
        Wiring(interp.load_model(tiny(family)))
