import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
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
LAYER = weights(4, 2)
REFUSED = {
    "heads, not a multiple": lambda: changed(kv_heads=3),
    "b_Q, one number": lambda: changed(b_Q=torch.ones(1)),
    "k, narrower than q": lambda: multi_head_attention(X, changed(W_K=torch.ones(6, 2), b_K=None)),
    "k, of one row": lambda: multi_head_attention(X, LAYER, source=X[:1]),
    "q, half": lambda: multi_head_attention(
        X.half(), Weights(*4 * [torch.ones(6, 6).half()], heads=2, kv_heads=2)
    ),
    "window, no number": lambda: cached_attention(X, LAYER, window=0),
    "module, adds a key": lambda: Weights.of_torch(nn.MultiheadAttention(4, 2, add_zero_attn=True)),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.items(), ids=REFUSED)
def test_weights_with_a_silently_wrong_result_are_refused(name, call):
    with pytest.raises((InputError, TypeCheckError)) as caught:
        call()
    if caught.type is InputError:
        assert str(caught.value).startswith(name.partition(",")[0])
