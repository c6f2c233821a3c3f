"""One pass with a mask gives the losses of a cache that is cut step by step."""

import inspect

import pytest
import torch
from tiny_models import tiny
from transformers import DynamicCache

import interp
from interp.effects.windowed import Cut, check, losses

LENGTH = 24
CUTS = {
    "last tokens": Cut(6),
    "first tokens too": Cut(6, kept=2),
    "first tokens, positions of the text": Cut(6, kept=2, renumbered=False),
    "later tokens too": Cut(6, kept=2, first=3),
    "the query alone": Cut(1),
    "longer than the text": Cut(LENGTH + 1, kept=4),
}


@pytest.fixture(scope="module")
def rows():
    return torch.randint(3, 200, (2, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def llama():
    return interp.load_model(tiny("llama"))


def step_by_step(model, row, cut):
    """Losses by transformers' own cache: one token at a time, thrown out, turned anew."""
    cache, held, made = DynamicCache(), [], []
    # Its name in newer transformers, and in older ones.
    known = inspect.signature(type(model.plain).forward).parameters
    given = {"cache" if "cache" in known else "past_key_values": cache}
    for t, token in enumerate(row):
        if len(held) == cut.size:
            stay = range(cut.first, cut.first + cut.kept)
            out = next((i for i, h in enumerate(held) if h not in stay))
            del held[out]
            for layer in cache.layers:
                layer.keys, layer.values = (
                    torch.cat([x[:, :, :out], x[:, :, out + 1 :]], 2)
                    for x in (layer.keys, layer.values)
                )
                if cut.renumbered:
                    layer.keys[:, :, out:] = turned_back(model, layer.keys[:, :, out:])
        at = len(held) if cut.renumbered else t
        with torch.no_grad():
            made.append(
                model.plain(
                    token[None, None],
                    **given,
                    position_ids=torch.tensor([[at]]),
                    attention_mask=torch.ones(1, len(held) + 1),
                ).logits[0, 0]
            )
        held.append(t)
    return torch.nn.functional.cross_entropy(torch.stack(made[:-1]), row[1:], reduction="none")


def turned_back(model, keys):
    """Keys as if each had stood one position earlier (Llama: halves of a head are pairs)."""
    half = keys.shape[-1] // 2
    angle = model.plain.model.rotary_emb.inv_freq
    cos, sin = angle.cos(), -angle.sin()
    a, b = keys[..., :half], keys[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("name", CUTS)
def test_one_pass_is_the_cache_step_by_step(llama, rows, name):
    found = losses(llama, rows, CUTS[name])
    slow = torch.stack([step_by_step(llama, row, CUTS[name]) for row in rows])
    # Losses reach 100 nats here; the keys are turned up to LENGTH times in float32.
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-3)


def test_a_whole_cache_is_the_models_own_loss(llama, rows):
    with torch.no_grad():
        made = llama.plain(rows).logits[:, :-1]
    own = torch.nn.functional.cross_entropy(made.transpose(1, 2), rows[:, 1:], reduction="none")
    torch.testing.assert_close(losses(llama, rows, None), own, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(losses(llama, rows, CUTS["longer than the text"]), own)


def test_numbering_matters_only_where_tokens_are_kept(llama, rows):
    bare = [losses(llama, rows, Cut(6, renumbered=r)) for r in (True, False)]
    assert torch.equal(*bare)
    kept = [losses(llama, rows, Cut(6, kept=2, renumbered=r)) for r in (True, False)]
    torch.testing.assert_close(kept[0][:, :6], kept[1][:, :6], rtol=1e-4, atol=1e-3)
    assert (kept[0][:, 6:] - kept[1][:, 6:]).abs().max() > 0.1


@pytest.mark.parametrize("cut", [Cut(6), Cut(6, kept=2)])
def test_heads_that_are_not_cut_see_everything(llama, rows, cut):
    none = torch.zeros(2, 4, dtype=torch.bool)
    whole = losses(llama, rows, None)
    torch.testing.assert_close(losses(llama, rows, cut, heads=none), whole, rtol=1e-4, atol=1e-3)
    one, seen = none.clone(), {}
    one[1, 2] = True
    losses(llama, rows[:1], cut, heads=one, visit=lambda layer, p: seen.__setitem__(layer, p))
    hidden = ~cut.visible(LENGTH).tril()
    for layer, pattern in seen.items():
        for head in range(4):
            mass = pattern[0, head][hidden.tril()].sum()
            assert (mass == 0) == ((layer, head) == (1, 2))


@pytest.mark.parametrize("family", ["neox", "phi", "qwen3", "gemma2"])
def test_other_rotary_models_will_do(family):
    changes = {"layer_types": ["full_attention"] * 2} if family == "gemma2" else {}
    model = interp.load_model(tiny(family, **changes))
    check(model, 4)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        made = model.plain(ids).logits[:, :-1]
    own = torch.nn.functional.cross_entropy(made.transpose(1, 2), ids[:, 1:], reduction="none")
    torch.testing.assert_close(losses(model, ids, None), own, rtol=1e-4, atol=1e-3)
    assert (losses(model, ids, Cut(6, kept=2)) - own)[:, 6:].abs().max() > 1e-3


@pytest.mark.parametrize("family", ["gpt2", "bloom", "mistral", "gptoss", "opt"])
def test_a_model_whose_cache_cannot_be_cut_is_refused(family):
    """Learned positions, ALiBi, a window of its own, learned sinks and a window."""
    with pytest.raises(interp.InputError, match=r"^model must"):
        check(interp.load_model(tiny(family)), LENGTH)


def test_learned_sinks_and_rows_beyond_the_context_are_refused(llama):
    with pytest.raises(interp.InputError, match=r"^length must fit"):
        check(llama, 65)
    with pytest.raises(interp.InputError, match="must have no learned sinks"):
        check(interp.load_model(tiny("gptoss")), 4)


def test_a_cut_without_room_is_refused():
    for name, numbers in {
        "size": {"size": 0},
        "kept": {"size": 4, "kept": 4},
        "first": {"size": 4, "kept": 1, "first": -1},
    }.items():
        with pytest.raises(interp.InputError, match=f"^{name} must"):
            Cut(**numbers)


def test_the_models_own_attention_is_back_also_after_a_failure(llama, rows):
    own = llama.plain.config._attn_implementation

    def fail(layer, pattern):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        losses(llama, rows, Cut(6), visit=fail)
    assert llama.plain.config._attn_implementation == own


def test_weights_that_are_not_finite_are_refused():
    loaded = tiny("llama")
    with torch.no_grad():
        loaded.model.layers[1].self_attn.v_proj.weight[0, 0] = float("nan")
    with pytest.raises(interp.InputError, match=r"losses of .* must be finite"):
        check(interp.load_model(loaded), LENGTH)
