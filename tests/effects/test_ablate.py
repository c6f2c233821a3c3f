"""A model with ablated heads, compared with TransformerLens' hooks and with sums by hand."""

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from einops import einsum
from tiny_models import CONFIGS, GROUPED, made, named, tiny

import interp
from interp.effects import ablate as ablation
from interp.effects.ablate import ablated, logits, losses, mean_outputs, output_projections
from interp.heads import Head
from interp.kinds import probes
from interp.models.hooks import run_with

HEADS = [Head(0, 1), Head(1, 2), Head(1, 3)]


def some_ids(rows: int = 2, length: int = 24) -> torch.Tensor:
    return torch.randint(3, 200, (rows, length), generator=torch.Generator().manual_seed(0))


def by_lens(model: interp.Model, ids: torch.Tensor, fill) -> torch.Tensor:
    """Logits by TransformerLens with the heads' z overwritten at its own hook point."""

    def hook(layer: int):
        def overwrite(z, hook):
            split = z.reshape(*z.shape[:2], model.n_heads, -1).clone()
            for head in HEADS:
                if head.layer == layer:
                    split[:, :, head.head] = fill(head)
            return split.view_as(z)

        return overwrite

    hooks: Any = [(f"blocks.{layer}.attn.hook_z", hook(layer)) for layer in (0, 1)]
    with torch.no_grad():
        return model.bridge.run_with_hooks(ids, fwd_hooks=hooks, return_type="logits")


def repeated(model: interp.Model, rows: int = 3, length: int = 40) -> probes.Probe:
    return probes.repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=0)


def hooks_in_place(model: interp.Model) -> int:
    plain = sum(len(module._forward_pre_hooks) for module in model.plain.modules())
    points = {id(point): point for point in model.bridge.hook_dict.values()}.values()
    return plain + sum(len(point.fwd_hooks) for point in points)


@pytest.mark.parametrize("family", CONFIGS)
def test_an_ablated_head_has_a_z_of_zero_in_transformer_lens(family):
    own = tiny(family)
    model, ids = interp.load_model(own), some_ids()
    assert set(output_projections(model.plain)) == {0, 1}
    whole, _ = logits(model, ids), model.bridge  # Built from here on, it is ablated too.
    with ablated(model, HEADS), ablated(own, ["L0H1", "1.2", (1, 3)]), torch.no_grad():
        without = logits(model, ids)
        assert torch.equal(without, model.plain(ids).logits)
        assert torch.allclose(without, own(ids).logits, atol=1e-5)
        through_bridge = model.bridge(ids, return_type="logits")
    expected = by_lens(model, ids, lambda head: 0)
    assert torch.allclose(without, expected, atol=1e-4)
    assert torch.allclose(through_bridge, expected, atol=1e-4)
    # The heads matter in these models, or nothing would be shown.
    assert (without - whole).abs().max() > 0.1


def attention_out(model: interp.Model, ids: torch.Tensor, layer: int) -> torch.Tensor:
    """What a layer's attention adds to the stream in a run of the plain model."""
    seen = []
    projection = output_projections(model.plain)[layer]
    handle = projection.register_forward_hook(lambda module, inputs, out: seen.append(out))
    logits(model, ids)
    handle.remove()
    return seen[0].detach()


@pytest.mark.fault("B79")
@pytest.mark.parametrize("family", ["gpt2", "neox", "bloom"])
def test_without_all_heads_of_a_layer_exactly_the_bias_is_left(family):
    model, ids = interp.load_model(tiny(family)), some_ids()
    bias: Any = output_projections(model.plain)[1].bias
    with torch.no_grad():
        bias.copy_(100 * torch.rand(bias.shape, generator=torch.Generator().manual_seed(0)))
    _ = model.bridge  # Built from here on, it is ablated too.
    with ablated(model, [Head(1, i) for i in range(4)]):
        left = attention_out(model, ids, 1)
        (shown,) = run_with(model, ids, ["blocks.1.hook_attn_out"]).values()
    assert torch.equal(left, bias.expand_as(left))
    assert torch.equal(shown.view_as(left), left)


@pytest.mark.fault("B77", "B96", "B97")
@pytest.mark.parametrize("family", ["gpt2", "llama", "deepseek2", "wide"])
def test_a_layer_without_a_head_lacks_exactly_what_that_head_writes(family):
    """Whatever the heads' width: 4 times 6 in a stream of 32 (DeepSeek-V2), or 4 times 16."""
    source = tiny("llama", head_dim=16) if family == "wide" else tiny(family)
    model, ids = interp.load_model(source), some_ids()
    whole = attention_out(model, ids, 1)
    (z,) = run_with(model, ids, ["blocks.1.attn.hook_z"]).values()
    W_O = model.bridge.blocks[1].attn.W_O.detach()
    written = einsum(z.reshape(*ids.shape, 4, -1), W_O, "b q h e, h e d -> h b q d")
    bias: Any = output_projections(model.plain)[1].bias
    total = written.sum(0) + (0 if bias is None else bias)
    assert torch.allclose(total, whole, atol=1e-5)
    with ablated(model, [Head(1, 1)]):
        without = attention_out(model, ids, 1)
    assert torch.allclose(without, whole - written[1], atol=1e-5)
    assert (without - whole).abs().max() > 0.1


@pytest.mark.fault("B79")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom"])
def test_a_head_can_put_out_its_mean_instead(family):
    model = interp.load_model(tiny(family))
    probe = repeated(model)
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(probe.tokens)
    means = mean_outputs(model, probe)
    for head in HEADS:
        z = cache[f"blocks.{head.layer}.attn.hook_z"].view(3, 40, 4, -1)[:, 1:, head.head]
        assert torch.allclose(means[head], z.mean((0, 1)), atol=1e-5)
    with ablated(model, HEADS, "mean", means):
        without = logits(model, probe.tokens)
    expected = by_lens(model, probe.tokens, lambda head: means[head])
    assert torch.allclose(without, expected, atol=1e-4)
    assert not torch.allclose(without, by_lens(model, probe.tokens, lambda head: 0), atol=1e-2)


AROUND = [
    ("bert", None, "bert.encoder.layer.{}.attention.output.dense"),
    ("roberta", None, "roberta.encoder.layer.{}.attention.output.dense"),
    ("modernbert", None, "model.layers.{}.attn.Wo"),
    ("t5", "encoder", "encoder.block.{}.layer.0.SelfAttention.o"),
    ("t5", "decoder", "decoder.block.{}.layer.0.SelfAttention.o"),
    ("t5", "cross", "decoder.block.{}.layer.1.EncDecAttention.o"),
    ("bart", None, "model.decoder.layers.{}.self_attn.out_proj"),
    ("bart", "cross", "model.decoder.layers.{}.encoder_attn.out_proj"),
]


def plus(gift: torch.Tensor, module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output + gift


@pytest.mark.parametrize(("family", "stack", "name"), AROUND)
def test_without_heads_a_model_that_is_not_causal_runs_as_if_w_o_had_no_columns_for_them(
    family, stack, name
):
    """With their means, as if the bias had what W_O makes of these."""
    ids = some_ids()
    both = {"decoder_input_ids": ids.flip(1)} if family in ("t5", "bart") else {}
    model, edited = interp.load_model(tiny(family)), tiny(family)
    probe = repeated(model)
    means = mean_outputs(model, probe, stack=stack)
    if not both:  # The first head's mean, by hand.
        seen = []
        edited.get_submodule(name.format(0)).register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0][:, 1:, :8])
        )
        edited(probe.tokens)
        assert torch.allclose(means[Head(0, 0)], seen[0].mean((0, 1)), atol=1e-5)

    def gives(source: transformers.PreTrainedModel) -> torch.Tensor:
        with torch.no_grad():
            return source(ids, **both).logits

    whole = gives(model.plain)
    with ablated(model, HEADS, stack=stack):
        zero = gives(model.plain)
    with ablated(model.plain, HEADS, "mean", means, stack=stack):
        mean = gives(model.plain)
    assert torch.equal(gives(model.plain), whole)
    columns_of: dict[Head, torch.Tensor] = {}
    for ours, method in ((zero, "zero"), (mean, "mean")):
        for head in HEADS:
            W_O = edited.get_submodule(name.format(head.layer))
            columns = W_O.weight.data[:, 8 * head.head : 8 * head.head + 8]
            if method == "mean":
                W_O.register_forward_hook(partial(plus, columns_of[head] @ means[head]))
            else:
                columns_of[head] = columns.clone()
                columns.zero_()
        effect = (ours - whole).abs().max()
        assert effect > 0.05
        assert (ours - gives(edited)).abs().max() < 1e-2 * effect


def test_means_are_the_same_however_many_rows_run_at_once(monkeypatch):
    model = interp.load_model(tiny("llama"))
    probe = repeated(model, rows=5)
    at_once = mean_outputs(model, probe)
    lost = losses(model, probe)
    monkeypatch.setattr(ablation, "_TOKENS", 80)
    for head, mean in mean_outputs(model, probe).items():
        assert torch.allclose(mean, at_once[head], atol=1e-5)
    assert torch.allclose(losses(model, probe)["second_copy"], lost["second_copy"], atol=1e-5)


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_the_heads_are_back_however_the_block_ends(stop):
    model, ids = interp.load_model(tiny("llama")), some_ids()
    whole, bridged = logits(model, ids), model.bridge(ids, return_type="logits")

    def interrupted() -> None:
        with ablated(model, HEADS):
            assert hooks_in_place(model) == 4
            raise stop

    with pytest.raises(stop):
        interrupted()
    assert hooks_in_place(model) == 0
    assert torch.equal(logits(model, ids), whole)
    assert torch.equal(model.bridge(ids, return_type="logits"), bridged)


def test_a_head_has_several_spellings_and_blocks_nest():
    model, ids = interp.load_model(tiny("gpt2")), some_ids()
    with ablated(model, HEADS):
        together = logits(model, ids)
    for one in ("L0H1", "0.1", (0, 1), Head(0, 1), ["(0, 1)"]):
        with ablated(model, one), ablated(model, ((1, 2), "1.3")):
            assert torch.equal(logits(model, ids), together)


def test_a_bridge_made_elsewhere_is_run_by_its_own_hooks_and_keeps_its_mode():
    opened, ids = interp.load_model(tiny("llama", attention_dropout=0.5)), some_ids()
    model = interp.load_model(opened.bridge)
    assert model.plain is None
    model.bridge.train()
    with ablated(model, HEADS):
        without = logits(model, ids)
    assert model.bridge.training
    with ablated(opened, HEADS):
        assert torch.allclose(without, logits(opened, ids), atol=1e-4)


def test_a_model_without_known_projections_is_refused(monkeypatch):
    model = interp.load_model(tiny("gpt2"))
    monkeypatch.setattr("interp.models.families._PROJECTIONS", ())
    with pytest.raises(interp.InputError, match="output projection of a known name"):
        ablated(model, HEADS).__enter__()
    assert hooks_in_place(model) == 0


def test_heads_that_cannot_be_ablated_are_refused():
    own = tiny("gpt2")
    for source in (own, interp.load_model(own)):
        for wrong in ("L2H0", "0.4"):
            with pytest.raises(interp.InputError, match="heads must be heads of GPT2"):
                ablated(source, wrong).__enter__()
    with pytest.raises(interp.InputError, match="method must be"):
        ablated(own, HEADS, "half").__enter__()
    with pytest.raises(interp.InputError, match="means must hold"):
        ablated(own, HEADS, "mean").__enter__()
    with pytest.raises(interp.InputError, match="model must"):
        ablated("gpt2", HEADS).__enter__()
    with pytest.raises(interp.InputError, match="stack must be None for GPT2"):
        ablated(own, HEADS, stack="decoder").__enter__()
    with pytest.raises(interp.InputError, match="stack must be decoder or encoder or cross"):
        ablated(tiny("t5"), HEADS, stack="both").__enter__()
    assert not any(module._forward_pre_hooks for module in own.modules())


def test_losses_are_means_over_the_predictable_and_the_new_tokens():
    model = interp.load_model(tiny("llama"))
    probe = repeated(model)
    chances = logits(model, probe.tokens).double().log_softmax(-1)
    found = losses(model, probe)
    for row, ids in enumerate(probe.tokens.tolist()):
        lost = {"second_copy": [], "first_copy": []}
        for query in range(39):
            known, next_known = ids[query] in ids[:query], ids[query + 1] in ids[: query + 1]
            loss = -float(chances[row, query, ids[query + 1]])
            if known:
                lost["second_copy"].append(loss)
            elif not next_known:
                lost["first_copy"].append(loss)
        assert len(lost["second_copy"]) + len(lost["first_copy"]) == 38
        for name, values in lost.items():
            assert float(found[name][row]) == pytest.approx(sum(values) / len(values), abs=1e-4)


def test_text_is_scored_whole_and_late_against_early():
    model = interp.load_model(tiny("gpt2"))
    probe = probes.text([some_ids(1, 70)[0]], rows=2, length=33, bos=1)
    assert probe
    chances = logits(model, probe.tokens).double().log_softmax(-1)
    lost = -chances[:, :-1].gather(-1, probe.tokens[:, 1:, None])[..., 0]
    found = losses(model, probe)
    late, early = lost[:, 24:32].mean(1), lost[:, 4:8].mean(1)
    assert torch.allclose(found["text"].double(), lost.mean(1), atol=1e-4)
    assert torch.allclose(found["in_context_score"].double(), late - early, atol=1e-4)


def test_losses_that_are_not_finite_are_refused():
    plain = tiny("gpt2")
    with torch.no_grad():
        plain.lm_head.weight[5] = float("nan")
    model = interp.load_model(plain)
    with pytest.raises(interp.InputError, match=r"losses of GPT2.* must be finite"):
        losses(model, repeated(model))


def test_a_layer_with_another_number_of_heads_is_refused():
    sizes = {"swa_num_attention_heads": 4, "layer_types": ["hybrid_sliding", "hybrid"]}
    sizes |= {"mlp_layer_types": ["dense"] * 2, "eos_token_id": 2}
    model = made(named("InklingText", **{**GROUPED, "num_attention_heads": 8}, **sizes)())
    with (
        pytest.raises(interp.InputError, match=r"its 8 heads in every layer, got .* 4 in layer 0"),
        ablated(model, "L0H1"),
    ):
        pass
