from inspect import unwrap as plain  # Without the types that are checked in tests alone.

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from interp.attention.multihead import Cache, Weights, cached_attention, multi_head_attention
from interp.attention.reference import causal_mask, padding_mask, sliding_window_mask
from interp.errors import InputError

CLOSE = 1e-6
many = settings(max_examples=30, deadline=None, derandomize=True)
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
def test_self_attention_is_pytorchs_module(rows, length, heads, d_head, bias, seed):
    module = torch_module(heads, d_head, heads * d_head, bias, seed)
    x = randn(rows, length, heads * d_head, seed=seed).requires_grad_()
    real = torch.ones(rows, length, dtype=torch.bool)
    real[0, 1 + length // 2 :] = False
    hidden = ~causal_mask(length)
    theirs, pattern = module(
        *(x, x, x), attn_mask=hidden, key_padding_mask=~real, average_attn_weights=False
    )
    ours = multi_head_attention(
        x, Weights.of_torch(module), mask=causal_mask(length) & padding_mask(real)
    )
    assert close(ours.out, theirs)
    assert close(ours.pattern, pattern)
    inputs = (x, *module.parameters())
    weight = randn(*theirs.shape, seed=1)
    grads = [torch.autograd.grad((y * weight).sum(), inputs) for y in (ours.out, theirs)]
    assert all(close(a, b) for a, b in zip(*grads))


@many
@given(small, small, small, small, st.integers(1, 4), small, st.booleans(), st.integers(0, 10**6))
def test_cross_attention_is_pytorchs_module(rows, queries, keys, d, heads, d_head, bias, seed):
    module = torch_module(heads, d_head, d, bias, seed)
    x = randn(rows, queries, heads * d_head, seed=seed)
    source = randn(rows, keys, d, seed=seed + 1)
    theirs, pattern = module(x, source, source, average_attn_weights=False)
    ours = multi_head_attention(x, Weights.of_torch(module), source=source)
    assert close(ours.out, theirs)
    assert close(ours.pattern, pattern)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_shared_heads_are_as_many_heads_with_the_same_weights(kv_heads):
    shared, x = weights(6, kv_heads), randn(2, 5, 6)
    repeated = {
        f"{kind}_{n}": getattr(shared, f"{kind}_{n}")
        .unflatten(-1, (kv_heads, -1))
        .repeat_interleave(6 // kv_heads, -2)
        .flatten(-2)
        for kind in "Wb"
        for n in "KV"
    }
    whole = Weights(
        **{"W_Q": shared.W_Q, "W_O": shared.W_O, "b_Q": shared.b_Q, **repeated},
        heads=6,
        kv_heads=6,
    )
    ours, theirs = (multi_head_attention(x, w, mask=causal_mask(5)) for w in (shared, whole))
    assert close(ours.out, theirs.out)
    assert close(ours.pattern, theirs.pattern)
    assert ours.z.shape == (2, 5, 6, 3)


def test_the_output_is_the_sum_of_each_heads_own():
    layer, x = weights(6, 2), randn(2, 5, 6)
    done = multi_head_attention(x, layer, mask=causal_mask(5))
    by_head = torch.einsum("bphd,hdm->bpm", done.z, layer.W_O.unflatten(0, (6, -1)))
    assert close(done.out, by_head)


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("chunks", [[1] * 9, [9], [4, 1, 1, 3], [1, 8]])
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


def test_a_step_leaves_the_cache_that_it_was_given():
    layer, x = weights(2, 1), randn(1, 4, 6)
    _, cache = cached_attention(x, layer)
    before = cache.k.clone(), cache.v.clone()
    cached_attention(x[:, :1], layer, cache)
    assert torch.equal(cache.k, before[0])
    assert torch.equal(cache.v, before[1])


def changed(**other):
    layer = weights(4, 2)
    return Weights(**{name: getattr(layer, name) for name in layer.__dataclass_fields__} | other)


X = torch.ones(2, 3, 6)
REFUSED = {
    "heads must be a multiple of kv_heads, got 4 and 3": lambda: changed(kv_heads=3),
    "W_Q must divide into 4 heads, got 15 columns": lambda: changed(
        W_Q=torch.ones(6, 15), b_Q=None
    ),
    "W_Q must have column of at least 1, got shape (6, 0)": lambda: changed(W_Q=torch.ones(6, 0)),
    "W_O must be torch.float32 like the others, got torch.float64": lambda: changed(
        W_O=torch.ones(12, 6).double()
    ),
    "W_K must give keys as wide as queries, 4, got 5": lambda: changed(
        W_K=torch.ones(6, 10), b_K=None
    ),
    "W_V must have W_K's 6 rows, got 7": lambda: changed(W_V=torch.ones(7, 6)),
    "W_O must have a row for each of the heads' 12 values, got 11": lambda: changed(
        W_O=torch.ones(11, 6)
    ),
    "b_Q must be of 16 numbers, got (15,)": lambda: changed(b_Q=torch.ones(15)),
    "x must be as wide as W_Q has rows, 6, got 5": lambda: multi_head_attention(
        X[..., :5], weights(4, 2)
    ),
    "source must be as wide as W_K has rows, 6, got 5": lambda: multi_head_attention(
        X, weights(4, 2), source=X[..., :5]
    ),
    "source must have as many rows as x, 2, got 1": lambda: multi_head_attention(
        X, weights(4, 2), source=X[:1]
    ),
    "x must be float32 or float64, got torch.float16": lambda: multi_head_attention(
        X.half(), weights(4, 2)
    ),
    "x must be torch.float32 like the others, got torch.float64": lambda: cached_attention(
        X.double(), weights(4, 2)
    ),
    "cache.k must be [batch, kv_head, pos, width] like (2, 2, 3, 4) but for pos,"
    " got (2, 4, 1, 4)": lambda: cached_attention(
        X, weights(4, 2), Cache(torch.ones(2, 4, 1, 4), torch.ones(2, 4, 1, 3))
    ),
    "x must be [batch, pos, d_model], got shape (3, 6)": lambda: multi_head_attention(
        X[0], weights(4, 2)
    ),
    "source must be [batch, source_pos, d_source], got shape (3, 6)": lambda: multi_head_attention(
        X, weights(4, 2), source=X[0]
    ),
    "x must be [batch, pos, d_model], got shape (6,)": lambda: cached_attention(
        X[0, 0], weights(4, 2)
    ),
    "window must be at least 1, got 0": lambda: cached_attention(X, weights(4, 2), window=0),
    "module must add no keys of its own, got add_bias_kv or add_zero_attn": lambda: (
        Weights.of_torch(nn.MultiheadAttention(4, 2, add_zero_attn=True))
    ),
    "module must be a torch.nn.MultiheadAttention, got a NoneType": lambda: plain(
        Weights.of_torch.__func__
    )(Weights, None),
    "weights must be Weights, got a NoneType": lambda: plain(multi_head_attention)(X, None),
    "cache must be a Cache, got a int": lambda: plain(cached_attention)(X, weights(4, 2), 5),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items(), ids=REFUSED)
def test_bad_input_gets_the_rule_and_the_value_in_one_line(message, call):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message
