"""The numbers of attention explained step by step: each measured on the spot beside the expected.

The worked example is three words, each a query, a key and a value:

    나는      q = k = (1, 0)    v = (10, 0)
    학교에    q = k = (0, 1)    v = (0, 10)
    간다      q = k = (1, 1)    v = (5, 5)

What attention costs is in `interp.course.costs`.
"""

from collections.abc import Iterator, Sequence
from math import e, exp, sqrt

import torch
from torch import Generator, Tensor, nn

from interp.attention.multihead import Cache, Weights, cached_attention, multi_head_attention
from interp.attention.reference import attention, attention_scores, causal_mask, softmax
from interp.attention.tiles import tiled_attention
from interp.course.designed import EXAMPLE, NAMES, REST, WORD, designed_layer, embed, mixed_pattern
from interp.course.records import Record

WORDS = ("나는", "학교에", "간다")
Q = K = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
V = ((10.0, 0.0), (0.0, 10.0), (5.0, 5.0))

ROUNDED = {digits: 0.5001 * 10**-digits for digits in (3, 4)}
"""How far a number may be from one that is written with so many digits."""

SAME = 1e-6
"""How far apart float32 sums of numbers of about 1 may be that were added in another order."""

PAIRS = 16_384
"""Pairs of random vectors whose products are spread out: 1 % of error or less."""


def numbers(seed: int) -> Iterator[Record]:
    """Every number but those of `interp.course.costs`, in the order of the explanation.

    Args:
        seed: Of what is random; the global random state is left alone.
    """
    generator = torch.Generator().manual_seed(seed)
    yield from worked_example()
    yield from spread(generator)
    yield from saturation()
    yield from rows()
    yield from causal_example()
    yield from many_heads(generator)
    yield from other_ways(generator)
    yield from switches()


def worked_example() -> Iterator[Record]:
    """Scores, scaled scores, pattern and outputs of the three words."""
    table = "worked example"
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    done = attention(q, k, v)
    root = 0.7071
    parts = (
        ("scores", attention_scores(q, k, scale=1.0), ((1, 0, 1), (0, 1, 1), (1, 1, 2)), 0.0),
        (
            "scaled scores",
            done.scores,
            ((root, 0, root), (0, root, root), (root, root, 1.4142)),
            ROUNDED[4],
        ),
        (
            "pattern",
            done.pattern,
            ((0.4011, 0.1978, 0.4011), (0.1978, 0.4011, 0.4011), (0.2483, 0.2483, 0.5035)),
            ROUNDED[4],
        ),
        ("output", done.out, ((6.017, 3.983), (3.983, 6.017), (5, 5)), ROUNDED[3]),
    )
    for name, measured, expected, tolerance in parts:
        for word, ours, theirs in zip(WORDS, measured.tolist(), expected, strict=True):
            yield Record(table, f"{name} of {word}", list(theirs), ours, tolerance)


def spread(generator: Generator) -> Iterator[Record]:
    """How far products of random queries and keys spread: the root of their width.

    A product is a sum of d_k terms of mean 0 and variance 1, each the product of two normal
    numbers, whose fourth moment is 9. Over n pairs the standard deviation is known with a
    standard error of `sqrt((kurtosis - 1) / 4n)` of itself, with a kurtosis of `3 + 6 / d_k`.
    """
    for d_k in (4, 64, 512):
        q, k = (
            torch.randn(PAIRS, 1, d_k, dtype=torch.float32, generator=generator) for _ in range(2)
        )
        error = sqrt((2 + 6 / d_k) / (4 * PAIRS))
        for name, scale, expected in (
            ("q . k", 1.0, sqrt(d_k)),
            ("q . k / sqrt(d_k)", None, 1.0),
        ):
            measured = attention_scores(q, k, scale=scale).double().std().item()
            yield Record(
                "spread of scores",
                f"standard deviation of {name}, d_k = {d_k}",
                expected,
                measured,
                5 * error * expected,
                note=f"{PAIRS:,} pairs of normal vectors; within five standard errors",
            )


def saturation() -> Iterator[Record]:
    """Large scores leave the softmax one key and next to no gradient.

    The gradient is the matrix `d p_i / d s_j = p_i (delta_ij - p_j)`, s being what goes into the
    softmax; its norm is the root of the sum of squares.
    """
    table = "softmax of large scores"
    rounded = {1: (0.9995, 0.0003, 0.0001), 8: (0.591, 0.217, 0.192)}
    norms, measured = {}, {}
    for divisor, digits in ((1, 4), (8, 3)):
        name = "[10, 2, 1]" + (f" / {divisor}" if divisor > 1 else "")
        scores = torch.tensor([10.0, 2.0, 1.0]) / divisor
        pattern = softmax(scores).tolist()
        yield Record(table, f"softmax of {name}", list(rounded[divisor]), pattern, ROUNDED[digits])
        gradient = torch.autograd.functional.jacobian(softmax, scores)
        norms[divisor] = _gradient_norm(scores.tolist())
        measured[divisor] = torch.as_tensor(gradient).norm().item()
        yield Record(
            table,
            f"norm of the gradient at {name}",
            norms[divisor],
            measured[divisor],
            SAME,
            note="expected: p_i (delta_ij - p_j); measured: autograd",
        )
    ratio = norms[8] / norms[1]
    yield Record(
        table,
        "norm of the gradient, divided by 8 over raw",
        ratio,
        measured[8] / measured[1],
        ratio / 1000,
        note="times as large",
    )


def rows() -> Iterator[Record]:
    """What a row of the pattern depends on: differences within itself, and no other row."""
    table = "a row by itself"
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    done = attention(q, k, v)
    moved = softmax(done.scores + 3)
    yield Record(
        table, "largest change when 3 is added to a row", 0, _apart(moved, done.pattern), SAME
    )
    step = softmax(torch.tensor([2.0, 1.0, 0.0])).tolist()
    for first in (0, 1):
        yield Record(
            table,
            f"p_{first} / p_{first + 1} where scores differ by 1",
            e,
            step[first] / step[first + 1],
            10 * SAME,
        )
    other = attention(torch.stack([q[1], q[1], q[2]]), k, v)
    yield Record(
        table,
        f"largest change of the other rows when {WORDS[0]} asks what {WORDS[1]} asks",
        0,
        max(_apart(other.pattern[1:], done.pattern[1:]), _apart(other.out[1:], done.out[1:])),
        0.0,
    )
    yield Record(
        table, f"output of {WORDS[0]} then", [3.983, 6.017], other.out[0].tolist(), ROUNDED[3]
    )


def causal_example() -> Iterator[Record]:
    """The three words under a causal mask: the last row is as before, the first sees itself."""
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    done = attention(q, k, v, mask=causal_mask(3))
    patterns = (1, 0, 0), (0.3302, 0.6698, 0), (0.2483, 0.2483, 0.5035)
    outputs = (10, 0), (3.302, 6.698), (5, 5)
    for name, measured, expected, digits in (
        ("pattern", done.pattern, patterns, 4),
        ("output", done.out, outputs, 3),
    ):
        for word, ours, theirs in zip(WORDS, measured.tolist(), expected, strict=True):
            yield Record(
                "causal example", f"causal {name} of {word}", list(theirs), ours, ROUNDED[digits]
            )
    above = done.pattern.triu(1).sum().item()
    yield Record("causal example", "attention to what comes later", 0, above, 0.0)


def many_heads(generator: Generator) -> Iterator[Record]:
    """Multi-head attention by one reshape beside PyTorch's own module."""
    module = nn.utils.skip_init(nn.MultiheadAttention, 64, 8, batch_first=True)
    assert isinstance(module, nn.MultiheadAttention)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=1 / 8, generator=generator)
        x = torch.randn(2, 10, 64, dtype=torch.float32, generator=generator)
        later = ~causal_mask(10)
        theirs, pattern = module(x, x, x, attn_mask=later, average_attn_weights=False)
        ours = multi_head_attention(x, Weights.of_torch(module), mask=~later)
    note = "8 heads, width 64, 2 rows of 10 tokens, causal"
    table = "many heads"
    for name, measured in (
        ("output", _apart(ours.out, theirs)),
        ("patterns", _apart(ours.pattern, pattern)),
    ):
        yield Record(
            table, f"largest difference of {name} from nn.MultiheadAttention", 0, measured, SAME,
            note=note,
        )  # fmt: skip


def other_ways(generator: Generator) -> Iterator[Record]:
    """The same output by tiles, and token by token from a cache."""
    table = "the same by other ways"
    q, k, v = (
        torch.randn(1, 2, 100, 16, dtype=torch.float32, generator=generator) for _ in range(3)
    )
    whole = attention(q, k, v, mask=causal_mask(100)).out
    tiled = tiled_attention(q, k, v, scale=16**-0.5, tile=32).out
    yield Record(
        table, "largest difference by tiles of 32, 100 tokens", 0, _apart(tiled, whole), SAME
    )
    W_Q, W_K, W_V, W_O = (
        torch.randn(64, 64, dtype=torch.float32, generator=generator) / 8 for _ in range(4)
    )
    weights = Weights(W_Q, W_K[:, :16], W_V[:, :16], W_O, heads=8, kv_heads=2)
    x = torch.randn(1, 20, 64, dtype=torch.float32, generator=generator)
    cache: Cache | None = None
    steps = []
    for new in x.split(1, dim=1):
        out, cache = cached_attention(new, weights, cache)
        steps.append(out)
    full = multi_head_attention(x, weights, mask=causal_mask(20)).out
    yield Record(
        table,
        "largest difference token by token from a cache, 20 tokens",
        0,
        _apart(torch.cat(steps, dim=1), full),
        SAME,
        note="8 query heads on 2 key-value heads",
    )


def switches() -> Iterator[Record]:
    """Designed heads mixed by switches: mixing patterns is mixing outputs, if V is one for all.

    The previous-token head brings the word before, or nothing, and the sink head the other way
    round: the mixed pattern cannot tell, the output can. Only for these two are the switches on.
    """
    table = "heads mixed by switches"
    gates = torch.tensor([0.5, 0.2, 1.0, -0.3], dtype=torch.float64)
    x, mask = embed(EXAMPLE)[None], causal_mask(len(EXAMPLE.words))
    layer = designed_layer(EXAMPLE, window=4, gates=gates)
    done = multi_head_attention(x, layer, mask=mask)
    mixed = mixed_pattern(done.pattern[0], gates) @ x[0, :, WORD:]
    yield Record(
        table,
        "one V: largest difference of mixed outputs and the mixed pattern's output",
        0,
        _apart(mixed, done.out[0]),
        SAME,
        note=f"switches {', '.join(f'{gate:g}' for gate in gates.tolist())}",
    )
    pair = torch.tensor([float(name in ("previous token", "sink")) for name in NAMES])
    words = torch.eye(x.shape[-1], dtype=torch.float64)[:, WORD:]
    outs, patterns = [], []
    for bringing in ("previous token", "sink"):
        W_V = torch.stack([words * (name == bringing) for name in NAMES])
        layer = designed_layer(EXAMPLE, window=4, gates=pair, W_V=W_V)
        done = multi_head_attention(x, layer, mask=mask)
        outs.append(done.out)
        patterns.append(mixed_pattern(done.pattern[0], pair))
    swapped = "two V, swapped between previous token and sink: largest change of the"
    yield Record(table, f"{swapped} mixed pattern", 0, _apart(*patterns), 0.0)
    yield Record(
        table,
        f"{swapped} output",
        1,
        _apart(*outs),
        2 * REST,
        note="so no mixed pattern says what comes out",
    )


def _gradient_norm(scores: Sequence[float]) -> float:
    weights = [exp(score) for score in scores]
    p = [weight / sum(weights) for weight in weights]
    entries = (p[i] * ((i == j) - p[j]) for i in range(len(p)) for j in range(len(p)))
    return sqrt(sum(entry**2 for entry in entries))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()
