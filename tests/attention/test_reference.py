import math
from inspect import unwrap  # Without the shape checks that only tests make.

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import interp
from interp.attention.reference import (
    attention,
    attention_scores,
    causal_mask,
    grouped_attention,
    hide,
    sliding_window_mask,
    softmax,
)
from interp.errors import InputError

CLOSE = 1e-6
many = settings(max_examples=25, deadline=None, derandomize=True)
small, width = st.integers(1, 12), st.integers(1, 40)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def close(ours: Tensor, theirs: Tensor, times: int = 1) -> bool:
    """Within 1e-6, of the largest number where that is above 1; or several times that."""
    largest = max(1, theirs.abs().max().item())
    return torch.allclose(ours, theirs, rtol=0, atol=times * CLOSE * largest)


def same_with_gradients(ours: Tensor, theirs: Tensor, inputs: tuple[Tensor, ...]) -> bool:
    weight = randn(*theirs.shape, seed=1).detach()
    grads = (torch.autograd.grad((out * weight).sum(), inputs) for out in (ours, theirs))
    return close(ours, theirs) and all(close(a, b, 5) for a, b in zip(*grads))


@many
@given(small, small, small, small, width, width, st.integers(0, 10**6))
def test_attention_equals_pytorch_under_any_mask(batch, heads, queries, keys, d_k, d_value, seed):
    shapes = (batch, heads, queries, d_k), (batch, heads, keys, d_k), (batch, heads, keys, d_value)
    q, k, v = (randn(*shape, seed=seed + i) for i, shape in enumerate(shapes))
    mask = randn(batch, heads, queries, keys, seed=seed + 3) > 0  # Some rows allow nothing.
    ours = attention(q, k, v, mask=mask, allow_empty=True)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert same_with_gradients(ours.out, theirs, (q, k, v))
    assert torch.equal(ours.pattern.sum(-1) > 0.5, mask.any(-1))
    assert close(ours.pattern.sum(-1), mask.any(-1).float())
    assert (ours.pattern[~mask] == 0).all()


@many
@given(small, st.integers(1, 4), st.integers(1, 4), small, width, st.integers(0, 10**6))
def test_grouped_heads_equal_pytorch(batch, kv_heads, group, length, d_k, seed):
    q = randn(batch, kv_heads * group, length, d_k, seed=seed)
    k, v = (randn(batch, kv_heads, length, d_k, seed=seed + i) for i in (1, 2))
    ours = grouped_attention(q, k, v, mask=causal_mask(length))
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert same_with_gradients(ours.out, theirs, (q, k, v))


@pytest.mark.parametrize("scale", [None, 0.3, -1.0])
def test_one_sequence_without_batch_or_heads_and_any_scale(scale):
    q, k, v = randn(3, 4), randn(5, 4, seed=1), randn(5, 2, seed=2)
    theirs = F.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)
    assert close(attention(q, k, v, scale=scale).out, theirs[0])


def test_gradients_are_exact_in_float64_even_of_empty_rows():
    q, k, v = (randn(2, 3, 4, seed=i).double().detach().requires_grad_() for i in range(3))
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    assert torch.autograd.gradcheck(
        lambda *x: attention(*x, mask=mask, allow_empty=True).out, (q, k, v)
    )


def test_scores_far_beyond_the_range_of_exp_stay_finite():
    scores = torch.tensor([[1e4, 1e4 - 1, -1e30]])
    expected = torch.tensor([[math.e, 1.0, 0.0]]) / (1 + math.e)
    assert torch.allclose(softmax(scores), expected)


def test_scores_are_scaled_and_minus_infinity_where_hidden():
    q = k = torch.eye(4)[None]
    scores = attention(q, k, k, mask=causal_mask(4)).scores[0]
    assert torch.equal(scores == -torch.inf, ~causal_mask(4))
    assert torch.equal(scores.diagonal(), torch.full((4,), 0.5))  # 1 / sqrt(4)
    assert torch.equal(attention_scores(q, k, scale=2.0), 2 * torch.eye(4)[None])


def allowed(mask: Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def test_masks_by_eye():
    assert allowed(causal_mask(3)) == ["x..", "xx.", "xxx"]
    assert allowed(causal_mask(2, 4)) == ["xxx.", "xxxx"]
    assert allowed(sliding_window_mask(4, window=2)) == ["x...", "xx..", ".xx.", "..xx"]
    assert allowed(sliding_window_mask(1, 4, window=2)) == ["..xx"]
    assert allowed(sliding_window_mask(3, window=1)) == ["x..", ".x.", "..x"]
    assert allowed(sliding_window_mask(2, window=9)) == allowed(causal_mask(2))
    assert allowed(sliding_window_mask(3, window=2, causal=False)) == ["xx.", "xxx", ".xx"]


@pytest.mark.parametrize("hole", [math.nan, math.inf])
def test_hidden_numbers_contribute_nothing_even_nan(hole):
    """Not to the output and not to the gradients, where a weight of 0 times NaN would."""
    inputs = [randn(1, 2, 5, 4, seed=i).detach() for i in range(3)]
    mask = causal_mask(5) & torch.tensor([False, True, True, True, False])
    mask = mask & torch.tensor([True] * 4 + [False])[:, None]
    results = []
    for filling in (0.0, hole):
        given = [x.clone() for x in inputs]
        for x in given:
            x[:, :, [0, 4]] = filling
            x.requires_grad_()
        done = attention(*given, mask=mask, allow_empty=True)
        results.append((*done, *torch.autograd.grad(done.out.square().sum(), given)))
    assert all(torch.equal(a, b) for a, b in zip(*results))
    assert (results[1][0][:, :, [0, 4]] == 0).all()


@pytest.mark.fault("B38")
def test_the_mask_holds_for_scores_below_any_constant():
    """A mask that adds a large negative number would let the future win here."""
    q, k = torch.ones(1, 4, 1), -torch.tensor([[[3e38], [2e38], [1e38], [0.0]]])
    pattern = attention(q, k, k, mask=causal_mask(4), scale=1.0).pattern
    assert torch.equal(pattern[0], torch.eye(4))


@pytest.mark.fault("B91")
def test_heads_get_the_same_scores_from_a_pattern_in_a_larger_buffer():
    q, k, v = (randn(1, 4, 16, 4, seed=i).detach() for i in range(3))
    pattern = attention(4 * q, k, v, mask=causal_mask(16)).pattern
    ids = torch.arange(16)[None] % 7
    small = interp.classify_heads(pattern, ids)
    large = F.pad(pattern, (0, 112, 0, 112)), F.pad(ids, (0, 112), value=-1)
    for found, expected in zip(interp.classify_heads(*large), small, strict=True):
        assert found.labels == expected.labels
        assert found.scores == pytest.approx(expected.scores)


X = torch.ones(2, 3, 4)


def holed(value: float) -> Tensor:
    x = X.clone()
    x[1, 2, 3] = value
    return x


REFUSED = {
    "k, narrower": lambda: unwrap(attention)(X, X[..., :1], X),
    "k, fewer rows": lambda: unwrap(attention)(X, X[:1], X),
    "k, narrower, scores": lambda: unwrap(attention_scores)(X, X[..., :1]),
    "v, fewer keys": lambda: unwrap(attention)(X, X, X[:, :1]),
    "v, fewer rows": lambda: unwrap(attention)(X, X, X[:1]),
    "k, fewer rows, grouped": lambda: unwrap(grouped_attention)(X[:, None], *2 * [X[:1, None]]),
    "heads, not a multiple": lambda: grouped_attention(X[:, None], *2 * [X[:, [0, 0], None]]),
    "q, half": lambda: attention(*3 * [X.half()]),
    "scores, half": lambda: softmax(X.half()),
    "mask, numbers": lambda: unwrap(attention)(X, X, X, mask=torch.ones(3, 3)),
    "mask, too few keys": lambda: attention(X, X, X, mask=torch.ones(3, 2).bool()),
    "mask, too many axes": lambda: attention(X, X, X, mask=torch.ones(1, 2, 3, 3).bool()),
    "mask, widens": lambda: hide(torch.ones(3, 1), causal_mask(3)),
    "mask, an empty row": lambda: attention(X, X, X, mask=torch.arange(3)[:, None] != 1),
    "q, not finite": lambda: attention(X * math.nan, X, X),
    "k, not finite": lambda: attention(X, holed(math.inf), X),
    "v, not finite": lambda: attention(X, X, holed(math.nan), mask=causal_mask(3)),
    "scores, overflow": lambda: attention(1e30 * X, 1e30 * X, X),
    "scores, overflow downwards": lambda: attention(
        torch.cat([X[:, :1], 1e30 * X[:, 1:]], 1), -1e30 * X, X, mask=causal_mask(3)
    ),
    "queries, too many": lambda: causal_mask(3, 2),
    "queries, no number": lambda: causal_mask(0),
    "window, no number": lambda: sliding_window_mask(3, window=0),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.items(), ids=REFUSED)
def test_operands_with_a_silently_wrong_result_are_refused(name, call):
    with pytest.raises(InputError, match=f"^{name.partition(',')[0]} must"):
        call()
