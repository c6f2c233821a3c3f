from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from interp.attention.multihead import Weights, cached_attention, multi_head_attention
from interp.attention.reference import causal_mask, sliding_window_mask
from interp.errors import InputError

CLOSE = 1e-6
many = settings(max_examples=20, deadline=None, derandomize=True)
small = st.integers(1, 9)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Within 1e-6, of the largest number where that is above 1."""
    return torch.allclose(ours, theirs, rtol=0, atol=CLOSE * max(1, theirs.abs().max().item()))


def torch_module(heads: int, d_head: int, source: int, bias: bool, seed: int):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wide = heads * d_head
        other = None if source == wide else source
        module = nn.MultiheadAttention(
            wide, heads, bias=bias, batch_first=True, kdim=other, vdim=other
        )
        if bias:
            nn.init.normal_(module.in_proj_bias)
            nn.init.normal_(module.out_proj.bias)
    return module


def weights(heads: int, kv_heads: int, d_model: int = 6, d_k: int = 4, d_value: int = 3):
    shapes = {"W_Q": heads * d_k, "W_K": kv_heads * d_k, "W_V": kv_heads * d_value}
    made = {n: randn(d_model, w, seed=i) * 0.5 for i, (n, w) in enumerate(shapes.items())}
    W_O = randn(heads * d_value, d_model, seed=4) * 0.3
    biases = {f"b_{n[-1]}": randn(w, seed=5) for n, w in shapes.items()}
    return Weights(**made, W_O=W_O, heads=heads, kv_heads=kv_heads, **biases)


@many
@given(small, small, st.integers(1, 4), small, st.booleans(), st.integers(0, 10**6))
def test_self_attention_equals_pytorchs_module(rows, length, heads, d_head, bias, seed):
    module = torch_module(heads, d_head, heads * d_head, bias, seed)
    x = randn(rows, length, heads * d_head, seed=seed).requires_grad_()
    real = torch.ones(rows, length, dtype=torch.bool)
    real[0, 1 + length // 2 :] = False
    hidden = ~causal_mask(length)
    theirs, pattern = module(
        *(x, x, x), attn_mask=hidden, key_padding_mask=~real, average_attn_weights=False
    )
    ours = multi_head_attention(
        x, Weights.of_torch(module), mask=causal_mask(length) & real[:, None, None]
    )
    assert close(ours.out, theirs)
    assert close(ours.pattern, pattern)
    inputs = (x, *module.parameters())
    weight = randn(*theirs.shape, seed=1)
    grads = [torch.autograd.grad((y * weight).sum(), inputs) for y in (ours.out, theirs)]
    assert all(close(a, b) for a, b in zip(*grads))


@many
@given(small, small, small, small, st.integers(1, 4), small, st.booleans(), st.integers(0, 10**6))
def test_cross_attention_equals_pytorchs_module(rows, queries, keys, d, heads, d_head, bias, seed):
    module = torch_module(heads, d_head, d, bias, seed)
    x = randn(rows, queries, heads * d_head, seed=seed)
    source = randn(rows, keys, d, seed=seed + 1)
    theirs, pattern = module(x, source, source, average_attn_weights=False)
    ours = multi_head_attention(x, Weights.of_torch(module), source=source)
    assert close(ours.out, theirs)
    assert close(ours.pattern, pattern)


def test_the_output_is_the_sum_of_each_heads_own():
    layer, x = weights(6, 2), randn(2, 5, 6)
    done = multi_head_attention(x, layer, mask=causal_mask(5))
    by_head = torch.einsum("bphd,hdm->bpm", done.z, layer.W_O.unflatten(0, (6, -1)))
    assert close(done.out, by_head)


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("chunks", [[1] * 9, [9], [4, 1, 1, 3]])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_step_by_step_from_a_cache_is_the_full_pass(kv_heads, chunks, window):
    layer, x = weights(6, kv_heads), randn(2, 9, 6)
    mask = causal_mask(9) if window is None else sliding_window_mask(9, window=window)
    whole = multi_head_attention(x, layer, mask=mask).out
    cache, outs = None, []
    for new in x.split(chunks, dim=1):
        out, cache = cached_attention(new, layer, cache, window=window)
        outs.append(out)
    assert close(torch.cat(outs, 1), whole)
    assert cache is not None
    assert cache.k.shape == (2, kv_heads, min(9, window or 9), 4)
    assert cache.v.shape == (2, kv_heads, min(9, window or 9), 3)


REFUSED = {
    "heads, not a multiple": lambda: weights(4, 3),
    # Not by the constructor, whose shapes are checked in tests alone.
    "b_Q, one number": lambda: Weights.__post_init__(
        SimpleNamespace(heads=2, kv_heads=2, W_Q=torch.ones(6, 6), b_Q=torch.ones(1))
    ),
    "q, half": lambda: multi_head_attention(
        torch.ones(2, 3, 6).half(), Weights(*4 * [torch.ones(6, 6).half()], 2, 2)
    ),
    "window, no number": lambda: cached_attention(torch.ones(2, 3, 6), weights(4, 2), window=0),
    "module, adds a key": lambda: Weights.of_torch(nn.MultiheadAttention(4, 2, add_zero_attn=True)),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.items(), ids=REFUSED)
def test_weights_with_a_silently_wrong_result_are_refused(name, call):
    with pytest.raises(InputError, match=f"^{name.partition(',')[0]} must"):
        call()
