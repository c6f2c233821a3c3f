"""Half precision through every step, and numbers that are none found where they arise."""

import pytest
import torch
from labelled import a_scan, common_words
from tiny_models import tiny

import interp
from interp.effects.ablate import ablated, losses, mean_outputs
from interp.heads import Head
from interp.kinds.probes import repeated
from interp.models.stream import stream

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}
"""How far patterns may be off: weights and scores are rounded to 24, 8 and 11 bits."""


def opened(family: str, dtype: str) -> interp.Model:
    return interp.load_model(tiny(family).to(DTYPES[dtype]), common_words())


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("gpt2", "float16")]
)
def test_every_step_works_in_every_precision(family, dtype, tmp_path):
    model = opened(family, dtype)
    ids = [1, *range(5, 20), *range(5, 20)]
    patterns = interp.attention_patterns(model, ids)
    assert patterns.dtype == torch.float32
    exact = interp.attention_patterns(opened(family, "float32"), ids)
    assert (patterns - exact).abs().mean() < ROUNDING[dtype]
    assert len(interp.classify_heads(patterns)) == 8
    handed_over = patterns.as_subclass(torch.Tensor).to(DTYPES[dtype])
    assert len(interp.classify_heads(handed_over, ids)) == 8

    scan = interp.scan_heads(model, rows=2, length=40)
    assert scan.made_by["dtype"] == dtype
    assert scan.frame[["induction", "sink"]].notna().to_numpy().all()
    scan.save(tmp_path / "heads.json")
    assert interp.HeadScan.load(tmp_path / "heads.json").frame.equals(scan.frame)
    page = interp.gallery(scan, handed_over, ids)
    page.save(tmp_path / "gallery.html")

    probe = repeated(model.vocabulary, rows=1, length=40, bos=1, seed=0)
    with ablated(model, [Head(0, 1)], "mean", mean_outputs(model, probe)):
        assert all(loss.isfinite().all() for loss in losses(model, probe).values())
    effects = interp.verify(
        model, a_scan(model), kinds="induction", draws=1, rows=2, length=40
    ).labels
    assert effects["induction"].heads


@pytest.mark.fault("B40")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_in_float16_has_no_row_that_is_no_number(side):
    model = opened("opt", "float16")
    ids = [[2, 2, 5, 6], [5, 6, 7, 8]] if side == "left" else [[5, 6, 2, 2], [5, 6, 7, 8]]
    mask = [[0, 0, 1, 1], [1] * 4] if side == "left" else [[1, 1, 0, 0], [1] * 4]
    patterns = interp.attention_patterns(model, {"input_ids": ids, "attention_mask": mask})
    alone = interp.attention_patterns(model, [5, 6])
    assert torch.allclose(patterns[:, 0, :, :2, :2], alone[:, 0], atol=2e-3)  # 11 bits.
    assert not patterns[:, 0, :, 2:].any()


def spoiled(value: float, dtype: str) -> interp.Model:
    """One head's queries, head 2 of layer 1, are multiplied out of range."""
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[16:24] *= value
    return interp.load_model(model.to(DTYPES[dtype]))


@pytest.mark.fault("B40")
@pytest.mark.parametrize(
    ("value", "dtype", "advice"),
    [
        (float("nan"), "float32", "weights or activations are"),
        (float("inf"), "bfloat16", "use float32$"),
        (float("nan"), "float16", "use float32 or bfloat16$"),
    ],
)
def test_attention_that_is_not_finite_is_refused_with_layer_head_and_advice(value, dtype, advice):
    model = spoiled(value, dtype)
    message = rf"^attention must be finite.* layer 1, head 2,.* in {dtype}: {advice}"
    with pytest.raises(interp.InputError, match=message):
        interp.attention_patterns(model, [5, 6, 7])
    with pytest.raises(interp.InputError, match=message):
        stream(model, torch.tensor([[5, 6, 7]]), lambda layer, attention: None)


@pytest.mark.fault("B40")
def test_scores_beyond_the_range_of_float16_are_refused():
    model = spoiled(3e4, "float16")
    with pytest.raises(interp.InputError, match=r"in layer 1, head 2, .*use float32 or"):
        interp.attention_patterns(model, [5, 6, 7])
    assert interp.attention_patterns(spoiled(3e4, "float32"), [5, 6, 7]).isfinite().all()


@pytest.mark.fault("B36")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_token_that_is_not_finite_is_found_in_the_first_layer_that_sees_it(family):
    inner = tiny(family)
    with torch.no_grad():
        inner.get_input_embeddings().weight[9] = float("nan")
    model = interp.load_model(inner)
    ids = torch.tensor([[1, 5, 6, 7, 5, 6, 7], [1, 5, 6, 7, 9, 8, 10]])
    message = "in layer 0, head 0,.* in float32"
    with pytest.raises(interp.InputError, match=message):
        interp.attention_patterns(model, ids)
    with pytest.raises(interp.InputError, match=message):
        stream(model, ids, lambda layer, attention: None)


def test_values_that_are_not_finite_are_found_in_the_next_layers_attention():
    inner = tiny("llama")
    with torch.no_grad():
        inner.model.layers[0].self_attn.v_proj.weight[:8] = float("nan")
    with pytest.raises(interp.InputError, match="in layer 1, head 0"):
        interp.attention_patterns(inner, [1, 5, 6])
