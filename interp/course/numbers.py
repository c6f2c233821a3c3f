"""The numbers in the explanation of attention: expected values next to measured ones.

The worked example is three words, each with a query, a key and a value:

    나는      q = k = (1, 0)    v = (10, 0)
    학교에    q = k = (0, 1)    v = (0, 10)
    간다      q = k = (1, 1)    v = (5, 5)

`interp.course.costs` has the numbers on cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import e, exp, sqrt
from typing import Any

import torch
from rich.cells import cell_len
from torch import Generator, Tensor, nn

from interp.attention.multihead import Cache, Weights, cached_attention, multi_head_attention
from interp.attention.reference import attention, attention_scores, causal_mask, softmax
from interp.attention.tiles import tiled_attention
from interp.course.designed import EXAMPLE, NAMES, REST, WORD, designed_layer, embed, mixed_pattern

WORDS = ("나는", "학교에", "간다")
Q = K = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
V = ((10.0, 0.0), (0.0, 10.0), (5.0, 5.0))

ROUNDED = {digits: 0.5001 * 10**-digits for digits in (3, 4)}
"""Tolerance for an expected number written with so many decimals."""

SAME = 1e-6
"""Largest difference between float32 sums of numbers near 1 that differ in their order."""

PAIRS = 16_384
"""Number of random pairs for the spread of their products: its error is 1 % or less."""


@dataclass(frozen=True)
class Record:
    """A number, or a row of numbers, with its expected and its measured value.

    Attributes:
        table: Name of the table that the record belongs to.
        name: What was measured; unique over all records.
        expected: Value in the explanation.
        measured: Value that this package computes now.
        tolerance: Largest difference allowed, in the same unit. It covers rounding, the order of
            sums, five standard errors of random numbers, or orders of magnitude of times.
        unit: Unit of the number, `1` for a pure number.
        note: Further information for the reader.
    """

    table: str
    name: str
    expected: Any
    measured: Any
    tolerance: float
    unit: str = "1"
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether every measured number is within `tolerance` of the expected one."""
        expected = torch.as_tensor(self.expected, dtype=torch.float64)
        measured = torch.as_tensor(self.measured, dtype=torch.float64)
        apart = (measured - expected).abs()
        return measured.shape == expected.shape and bool((apart <= self.tolerance).all())

    def to_json(self) -> dict[str, Any]:
        """The fields as a dictionary, with `ok`."""
        return {**vars(self), "ok": self.ok}


def lines(records: Sequence[Record]) -> Iterator[str]:
    """Printed tables of the records, and the number of records that are as expected."""
    for name, table in groupby(records, key=lambda record: record.table):
        group = [*table]
        shared = group[0].note if all(record.note == group[0].note for record in group) else ""
        rows = [(name, "expected", "measured", "tolerance", "")]
        for record in group:
            tolerance = f"{record.tolerance:.2g} {record.unit}".removesuffix(" 1")
            end = ("ok" if record.ok else "NOT OK") + f"  ({record.note})" * (record.note != shared)
            rows.append(
                (record.name, _text(record.expected), _text(record.measured), tolerance, end)
            )
        # Korean letters are two columns wide in a terminal.
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        for first, *numbers, end in rows:
            cells = [first + " " * (widths[0] - cell_len(first))]
            cells += [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False)]
            yield "  ".join([*cells, end]).rstrip()
        yield f"{shared}\n" if shared else ""
    yield f"{sum(record.ok for record in records)} of {len(records)} numbers are as expected"


def _text(value: Any) -> str:
    if isinstance(value, Sequence):
        return " ".join(map(_text, value))
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 0.001 or abs(value) >= 1000 else f"{value:.4f}"


def numbers(seed: int) -> Iterator[Record]:
    """All records but those of `interp.course.costs`, in the order of the explanation.

    Args:
        seed: Seed of the random inputs; the global random state does not change.
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
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    done = attention(q, k, v)
    root = 0.7071
    scaled = (root, 0, root), (0, root, root), (root, root, 1.4142)
    pattern = (0.4011, 0.1978, 0.4011), (0.1978, 0.4011, 0.4011), (0.2483, 0.2483, 0.5035)
    scores = (1, 0, 1), (0, 1, 1), (1, 1, 2)
    parts = (
        ("scores", attention_scores(q, k, scale=1.0), scores, 0.0),
        ("scaled scores", done.scores, scaled, ROUNDED[4]),
        ("pattern", done.pattern, pattern, ROUNDED[4]),
        ("output", done.out, ((6.017, 3.983), (3.983, 6.017), (5, 5)), ROUNDED[3]),
    )
    yield from _by_word("worked example", parts)


def spread(generator: Generator) -> Iterator[Record]:
    """Standard deviation of products of random queries and keys: the root of their width.

    A product is a sum of d_k terms of mean 0 and variance 1, each the product of two normal
    numbers, whose fourth moment is 9. Over n pairs the standard deviation has a relative
    standard error of `sqrt((kurtosis - 1) / 4n)`, with a kurtosis of `3 + 6 / d_k`.
    """
    note = f"{PAIRS:,} pairs of normal vectors; tolerance of five standard errors"
    for d_k in (4, 64, 512):
        q, k = (_normal(generator, PAIRS, 1, d_k) for _ in range(2))
        error = sqrt((2 + 6 / d_k) / (4 * PAIRS))
        for name, scale, expected in (
            ("q . k", 1.0, sqrt(d_k)),
            ("q . k / sqrt(d_k)", None, 1.0),
        ):
            name = f"standard deviation of {name}, d_k = {d_k}"
            measured = attention_scores(q, k, scale=scale).double().std().item()
            tolerance = 5 * error * expected
            yield Record("spread of scores", name, expected, measured, tolerance, note=note)


def saturation() -> Iterator[Record]:
    """Softmax of large scores: one weight is almost 1, and the gradient almost 0.

    The gradient is the matrix `d p_i / d s_j = p_i (delta_ij - p_j)`, with s the input of the
    softmax; its norm is the root of the sum of squares.
    """
    record = partial(Record, "softmax of large scores")
    expected, measured = {}, {}
    for divisor, digits, weights in (
        (1, 4, (0.9995, 0.0003, 0.0001)),
        (8, 3, (0.591, 0.217, 0.192)),
    ):
        name = "[10, 2, 1]" + (f" / {divisor}" if divisor > 1 else "")
        scores = torch.tensor([10.0, 2.0, 1.0]) / divisor
        pattern = softmax(scores).tolist()
        yield record(f"softmax of {name}", list(weights), pattern, ROUNDED[digits])
        gradient = torch.autograd.functional.jacobian(softmax, scores)
        expected[divisor] = _gradient_norm(scores.tolist())
        measured[divisor] = torch.as_tensor(gradient).norm().item()
        yield record(
            f"norm of the gradient at {name}", expected[divisor], measured[divisor], SAME,
            note="expected: p_i (delta_ij - p_j); measured: autograd",
        )  # fmt: skip
    ratio = expected[8] / expected[1]
    name = "ratio of the gradient norms, scores / 8 to scores"
    yield record(name, ratio, measured[8] / measured[1], ratio / 1000)


def rows() -> Iterator[Record]:
    """A row of the pattern depends on score differences within the row, and on no other row."""
    record = partial(Record, "independence of rows")
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    done = attention(q, k, v)
    moved = _apart(softmax(done.scores + 3), done.pattern)
    yield record("largest change when 3 is added to a row", 0, moved, SAME)
    step = softmax(torch.tensor([2.0, 1.0, 0.0])).tolist()
    for i in (0, 1):
        name = f"p_{i} / p_{i + 1} where scores differ by 1"
        yield record(name, e, step[i] / step[i + 1], 10 * SAME)
    other = attention(torch.stack([q[1], q[1], q[2]]), k, v)
    change = max(_apart(other.pattern[1:], done.pattern[1:]), _apart(other.out[1:], done.out[1:]))
    swap = f"{WORDS[0]} with the query of {WORDS[1]}"
    yield record(f"{swap}: largest change of the other rows", 0, change, 0.0)
    yield record(f"{swap}: output", [3.983, 6.017], other.out[0].tolist(), ROUNDED[3])


def causal_example() -> Iterator[Record]:
    """The three words under a causal mask: the last row does not change, the first sees itself."""
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    done = attention(q, k, v, mask=causal_mask(3))
    pattern = (1, 0, 0), (0.3302, 0.6698, 0), (0.2483, 0.2483, 0.5035)
    parts = (
        ("causal pattern", done.pattern, pattern, ROUNDED[4]),
        ("causal output", done.out, ((10, 0), (3.302, 6.698), (5, 5)), ROUNDED[3]),
    )
    yield from _by_word("causal example", parts)
    later = done.pattern.triu(1).sum().item()
    yield Record("causal example", "attention to later keys", 0, later, 0.0)


def many_heads(generator: Generator) -> Iterator[Record]:
    """Multi-head attention in one reshape, compared with PyTorch's own module."""
    module = nn.utils.skip_init(nn.MultiheadAttention, 64, 8, batch_first=True)
    assert isinstance(module, nn.MultiheadAttention)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=1 / 8, generator=generator)
        x = _normal(generator, 2, 10, 64)
        later = ~causal_mask(10)
        theirs, pattern = module(x, x, x, attn_mask=later, average_attn_weights=False)
        ours = multi_head_attention(x, Weights.of_torch(module), mask=~later)
    note = "8 heads, width 64, 2 rows of 10 tokens, causal"
    apart = {"output": _apart(ours.out, theirs), "patterns": _apart(ours.pattern, pattern)}
    for part, measured in apart.items():
        name = f"largest difference of {part} from nn.MultiheadAttention"
        yield Record("many heads", name, 0, measured, SAME, note=note)


def other_ways(generator: Generator) -> Iterator[Record]:
    """The same output computed by tiles, and token by token from a cache."""
    record = partial(Record, "tiles and cache")
    q, k, v = (_normal(generator, 1, 2, 100, 16) for _ in range(3))
    whole = attention(q, k, v, mask=causal_mask(100)).out
    tiled = tiled_attention(q, k, v, scale=16**-0.5, tile=32).out
    name = "largest difference by tiles of 32, 100 tokens"
    yield record(name, 0, _apart(tiled, whole), SAME)
    W_Q, W_K, W_V, W_O = (_normal(generator, 64, 64) / 8 for _ in range(4))
    weights = Weights(W_Q, W_K[:, :16], W_V[:, :16], W_O, heads=8, kv_heads=2)
    x = _normal(generator, 1, 20, 64)
    cache: Cache | None = None
    steps = []
    for new in x.split(1, dim=1):
        out, cache = cached_attention(new, weights, cache)
        steps.append(out)
    full = multi_head_attention(x, weights, mask=causal_mask(20)).out
    name = "largest difference token by token from a cache, 20 tokens"
    note = "8 query heads, 2 key-value heads"
    yield record(name, 0, _apart(torch.cat(steps, dim=1), full), SAME, note=note)


def switches() -> Iterator[Record]:
    """Designed heads mixed by switches: one V for all makes mixed patterns equal mixed outputs.

    In the second part the previous-token head brings the word before and the sink head nothing,
    or the other way round. The mixed pattern is the same, the output is not. Only these two
    switches are on.
    """
    record = partial(Record, "heads mixed by switches")
    gates = torch.tensor([0.5, 0.2, 1.0, -0.3], dtype=torch.float64)
    x, mask = embed(EXAMPLE)[None], causal_mask(len(EXAMPLE.words))
    layer = designed_layer(EXAMPLE, window=4, gates=gates)
    done = multi_head_attention(x, layer, mask=mask)
    mixed = mixed_pattern(done.pattern[0], gates) @ x[0, :, WORD:]
    name = "one V: largest difference between mixed outputs and the output of the mixed pattern"
    note = f"switches {', '.join(f'{gate:g}' for gate in gates.tolist())}"
    yield record(name, 0, _apart(mixed, done.out[0]), SAME, note=note)
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
    yield record(f"{swapped} mixed pattern", 0, _apart(*patterns), 0.0)
    note = "no mixed pattern determines the output"
    yield record(f"{swapped} output", 1, _apart(*outs), 2 * REST, note=note)


def _by_word(table: str, parts: Sequence[tuple[str, Tensor, Any, float]]) -> Iterator[Record]:
    for part, measured, expected, tolerance in parts:
        for word, ours, theirs in zip(WORDS, measured.tolist(), expected, strict=True):
            yield Record(table, f"{part} of {word}", list(theirs), ours, tolerance)


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float32, generator=generator)


def _gradient_norm(scores: Sequence[float]) -> float:
    weights = [exp(score) for score in scores]
    p = [weight / sum(weights) for weight in weights]
    entries = (p[i] * ((i == j) - p[j]) for i in range(len(p)) for j in range(len(p)))
    return sqrt(sum(entry**2 for entry in entries))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()
