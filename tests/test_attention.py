import pytest
import torch
from torch import Tensor

from interp.attention import tiled_attention


def inputs(length: int = 70, width: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Six query heads on two key-value heads, with scores far from even."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 6, length, 16), (2, 2, length, 16), (2, 2, length, width)
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return 3 * q, k, v


def plain_attention(q, k, v, *, scale, window=None, softcap=None, sinks=None):
    """The same with the whole pattern built: output, log-sum-exp, mean score, pattern."""
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = scale * q @ k.mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.ones(length, length).tril().triu(1 - (window or length)).bool()
    hidden = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(*hidden.shape[:-1], 1)
        hidden = torch.cat([hidden, column], -1)
    lse = hidden.logsumexp(-1)
    pattern = (hidden - lse[..., None]).exp()[..., :length]
    return pattern @ v, lse, (pattern * scores).sum(-1)


OPTIONS = {
    "plain": {},
    "window of 1": {"window": 1},
    "window of 7": {"window": 7},
    "soft-cap": {"softcap": 2.0},
    "learned sinks": {"sinks": torch.linspace(-2, 3, 6)},
    "all together": {"window": 40, "softcap": 3.0, "sinks": torch.linspace(-2, 3, 6)},
}


@pytest.mark.parametrize("tile", [16, 64, 256])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_tiles_give_what_the_whole_pattern_gives(options, tile):
    q, k, v = inputs()
    whole = plain_attention(q, k, v, scale=0.3, **options)
    for tiled, expected in zip(tiled_attention(q, k, v, scale=0.3, tile=tile, **options), whole):
        # float32 sums of scores up to 20 in another order.
        assert torch.allclose(tiled, expected, atol=3e-5)


def test_the_log_sum_exp_is_the_fused_kernels():
    q, k, v = inputs(width=16)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = fused(q, k, v, 0.0, True, attn_mask=None, scale=0.3)
    tiled = tiled_attention(q, k, v, scale=0.3)
    # The same float32 sums in another order.
    assert torch.allclose(tiled.out, out, atol=2e-5)
    assert torch.allclose(tiled.lse, lse, atol=2e-5)


def test_log_sum_exp_minus_mean_score_is_the_entropy():
    q, k, v = inputs()
    tiled = tiled_attention(q, k, v, scale=0.3)
    scores = (0.3 * q @ k.repeat_interleave(3, 1).mT).masked_fill(
        torch.ones(70, 70).triu(1).bool(), -torch.inf
    )
    entropy = torch.special.entr(scores.softmax(-1)).sum(-1)
    assert torch.allclose(tiled.lse - tiled.mean_score, entropy, atol=2e-5)  # Scores up to 20.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_summed_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in inputs())
    tiled = tiled_attention(q, k, v, scale=0.3)
    exact = tiled_attention(q.float(), k.float(), v.float(), scale=0.3)
    assert tiled.out.dtype == tiled.lse.dtype == torch.float32
    assert torch.equal(tiled.lse, exact.lse)


def test_scores_far_beyond_the_range_of_exp_stay_finite():
    q, k, v = inputs()
    tiled = tiled_attention(1000 * q, k, v, scale=1.0)
    assert all(part.isfinite().all() for part in tiled)
