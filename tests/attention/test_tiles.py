import math
from inspect import unwrap  # Without the shape checks that only tests make.

import pytest
import torch
from torch import Tensor

from interp.attention.reference import causal_mask, grouped_attention, sliding_window_mask
from interp.attention.tiles import tiled_attention
from interp.course.costs import Largest
from interp.errors import InputError


def inputs(length: int = 70, width: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Six query heads on two key-value heads, with scores far from even."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 6, length, 16), (2, 2, length, 16), (2, 2, length, width)
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return 3 * q, k, v


def plain_attention(
    q, k, v, *, scale, window=None, chunk=None, softcap=None, sinks=None, slopes=None
):
    """The same with the whole pattern built: output, log-sum-exp, mean score, pattern."""
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = scale * q @ k.mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.ones(length, length).tril().triu(1 - (window or length)).bool()
    at = torch.arange(length)
    if chunk is not None:
        seen = seen & (at[:, None] // chunk == at // chunk)
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (at[:, None] - at)
    hidden = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(*hidden.shape[:-1], 1)
        hidden = torch.cat([hidden, column], -1)
    lse = hidden.logsumexp(-1)
    pattern = (hidden - lse[..., None]).exp()[..., :length]
    return pattern @ v, lse, (pattern * scores).sum(-1)


OPTIONS = {
    "window of 1": {"window": 1},
    "soft-cap": {"softcap": 2.0},
    "learned sinks": {"sinks": torch.linspace(-2, 3, 6)},
    "chunks": {"chunk": 20},
    "slopes": {"slopes": torch.linspace(0, 2, 6)},
    "all together": {
        "window": 40,
        "chunk": 30,
        "softcap": 3.0,
        "sinks": torch.linspace(-2, 3, 6),
        "slopes": torch.linspace(0, 0.1, 6),
    },
}


@pytest.mark.parametrize("tile", [16, 256])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_tiles_equal_the_whole_pattern(options, tile):
    q, k, v = inputs()
    whole = plain_attention(q, k, v, scale=0.3, **options)
    for tiled, expected in zip(tiled_attention(q, k, v, scale=0.3, tile=tile, **options), whole):
        # float32 sums of scores up to 20 in another order.
        assert torch.allclose(tiled, expected, atol=3e-5)


def test_half_precision_inputs_are_summed_in_float32():
    q, k, v = (x.bfloat16() for x in inputs())
    tiled = tiled_attention(q, k, v, scale=0.3)
    exact = tiled_attention(q.float(), k.float(), v.float(), scale=0.3)
    assert tiled.out.dtype == tiled.lse.dtype == torch.float32
    assert torch.equal(tiled.lse, exact.lse)


def test_scores_far_beyond_the_range_of_exp_stay_finite():
    q, k, v = inputs()
    tiled = tiled_attention(1000 * q, k, v, scale=1.0)
    assert all(part.isfinite().all() for part in tiled)


MASKS = {
    "causal": (causal_mask(70, 90), {}),
    "window": (sliding_window_mask(70, 90, window=20), {"window": 20}),
    "chunks to both sides": (
        torch.arange(20, 90)[:, None] // 25 == torch.arange(90) // 25,
        {"causal": False, "chunk": 25},
    ),
    "every key": (torch.ones(70, 90).bool(), {"causal": False}),
    "to both sides": (
        sliding_window_mask(70, 90, window=20, causal=False),
        {"causal": False, "window": 20},
    ),
}


@pytest.mark.parametrize("tile", [16, 64, 256])
@pytest.mark.parametrize(("mask", "options"), MASKS.values(), ids=MASKS)
def test_tiles_and_their_gradients_equal_the_reference_under_every_mask(mask, options, tile):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 6, 70, 16), (2, 2, 90, 16), (2, 2, 90, 5)
    q, k, v = (torch.randn(s, generator=generator).requires_grad_() for s in shapes)
    real = torch.ones(2, 90, dtype=torch.bool)
    real[0, :40] = False  # Some queries of the first row have nothing left.
    whole = grouped_attention(q, k, v, mask=mask & real[:, None, None], allow_empty=True)
    tiled = tiled_attention(q, k, v, scale=0.25, real=real, allow_empty=True, tile=tile, **options)
    # The same float32 sums in another order.
    assert torch.allclose(tiled.out, whole.out, atol=1e-6)
    weight = torch.randn(whole.out.shape, generator=generator)
    expected = torch.autograd.grad((whole.out * weight).sum(), (q, k, v))
    found = torch.autograd.grad((tiled.out * weight).sum(), (q, k, v))
    for ours, theirs in zip(found, expected):
        assert torch.allclose(ours, theirs, atol=1e-6 * theirs.abs().max().clamp(min=1))


def test_gradients_reach_log_sum_exps_and_learned_sinks_in_float64():
    q, k, v = (x[:1, :, :6].double().requires_grad_() for x in inputs())
    sinks = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)

    def parts(*given):
        q, k, v, sinks = given
        return tuple(tiled_attention(q, k, v, scale=0.1, sinks=sinks, tile=4))

    assert torch.autograd.gradcheck(parts, (q, k, v, sinks), fast_mode=True)


def test_neither_pass_makes_a_tensor_of_the_size_of_the_pattern():
    q, k, v = (torch.randn(1, 1, 512, 4, requires_grad=True) for _ in range(3))
    with Largest() as seen:
        tiled_attention(q, k, v, scale=0.5, tile=64).out.sum().backward()
    assert seen.bytes == 4 * 64 * 64
    with Largest() as seen:
        grouped_attention(q, k, v).out.sum().backward()
    assert seen.bytes == 4 * 512 * 512


def test_autograd_keeps_no_tiles_between_the_passes():
    sizes = []
    q, k, v = (torch.randn(1, 1, 512, 4, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: sizes.append(x.numel()) or x, lambda x: x
    ):
        tiled_attention(q, k, v, scale=0.5, tile=64)
    assert max(sizes, default=0) <= 512 * 4


@pytest.mark.parametrize("tile", [4, 16, 64])
@pytest.mark.parametrize("hole", [math.nan, math.inf])
def test_hidden_numbers_contribute_nothing_even_nan(hole, tile):
    q, k, v = (x.clone() for x in inputs(20))
    real = torch.ones(2, 20, dtype=torch.bool)
    real[0, :3] = False
    options = {"scale": 0.3, "real": real, "allow_empty": True, "tile": tile}
    clean = tiled_attention(q, k, v, **options)
    k[0, :, :2], v[0, :, 1:3] = hole, hole  # Padding.
    v[1, 1, 12] = k[1, 1, 13] = hole  # Seen by later queries of the last three heads.
    done = tiled_attention(q, k, v, **options)
    seen = torch.zeros(2, 6, 20, dtype=torch.bool)
    seen[1, 3:, 12:] = True
    for ours, theirs in zip(done, clean):
        assert torch.equal(ours[~seen], theirs[~seen])
        assert ours[seen].isnan().all()


def test_products_beyond_float32_are_scaled_before_they_overflow():
    q, k, v = inputs(20)
    expected = tiled_attention(q, k, v, scale=2.0, tile=8)
    done = tiled_attention(1e19 * q, 1e19 * k, v, scale=2e-38, tile=8)
    for ours, theirs in zip(done, expected):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tile", [4, 64])
def test_means_of_values_near_the_end_of_their_range_stay_in_it(tile):
    q, k, v = inputs(20)
    v = 3e38 * (v / v.abs().max())
    expected = tiled_attention(q.double(), k.double(), v.double(), scale=0.3).out
    out = tiled_attention(q, k, v, scale=0.3, tile=tile).out
    assert out.isfinite().all()
    assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e33)


@pytest.mark.parametrize("wide", ["q", "k", "v"])
def test_one_operand_of_float64_makes_all_arithmetic_float64(wide):
    given = dict(zip("qkv", inputs(20)))
    exact = tiled_attention(**{name: x.double() for name, x in given.items()}, scale=0.3)
    mixed = tiled_attention(**(given | {wide: given[wide].double()}), scale=0.3)
    assert mixed.out.dtype == torch.float64
    for ours, theirs in zip(mixed, exact):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


REFUSED = {
    "k, narrower": {"k": torch.ones(2, 2, 4, 1)},
    "k, fewer rows": {"k": torch.ones(1, 2, 4, 3)},
    "v, fewer keys": {"v": torch.ones(2, 2, 1, 3)},
    "heads, not a multiple": {"q": torch.ones(2, 3, 4, 3)},
    "q, more than keys": {"q": torch.ones(2, 2, 5, 3)},
    "softcap, 0": {"softcap": 0.0},
    "scale, not finite": {"scale": math.nan},
    "tile, no number": {"tile": 0},
    "real, one key": {"real": torch.ones(2, 1).bool()},
    "mask, an empty row": {"real": torch.tensor([[False] * 4, [True] * 4])},
    "sinks, one": {"sinks": torch.zeros(1)},
    "slopes, one": {"slopes": torch.zeros(1)},
}


@pytest.mark.parametrize(("name", "changed"), REFUSED.items(), ids=REFUSED)
def test_operands_with_a_silently_wrong_result_are_refused(name, changed):
    operands = {name: torch.ones(2, 2, 4, 3) for name in "qkv"} | {"scale": 1.0} | changed
    # Number checks come before the shape checks that only tests make.
    call = tiled_attention if {*changed} & {"softcap", "scale", "tile"} else unwrap(tiled_attention)
    with pytest.raises(InputError, match=f"^{name.partition(',')[0]} must"):
        call(**operands)
