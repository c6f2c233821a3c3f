"""What attention costs: time, operations, memory, and the reach of windows, counted as it runs.

n is the number of tokens, d the width of the model. A multiply-add counts as two operations.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log10
from timeit import repeat
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from interp.attention.multihead import Weights, cached_attention, multi_head_attention
from interp.attention.reference import attention, causal_mask, sliding_window_mask
from interp.attention.tiles import tiled_attention
from interp.course.numbers import SAME, Record

SIZES = (8, 32, 128)
"""Numbers of tokens for the timed loop, with d = 64."""

LLAMA = {"layers": 32, "heads": 32, "kv_heads": 8, "d_head": 128}
"""Llama 3 8B (Dubey et al. 2024, arXiv 2407.21783, table 3)."""

CONTEXT = 8192
"""Number of tokens in the cache of the example."""


def costs(seed: int) -> Iterator[Record]:
    """All records on cost; the global random state does not change."""
    yield from loop_and_product(torch.Generator().manual_seed(seed))
    yield from operations()
    yield from score_memory()
    yield from cache_size()
    yield from reach()


def loop_and_product(generator: Generator) -> Iterator[Record]:
    """Q K^T by three nested loops, as the formula reads, and by one matrix product.

    The ratio of their times depends on the machine and its load. The records only expect the
    product to be faster by some orders of magnitude, and more so for more tokens, as long as the
    product is too small to keep the machine busy.
    """
    record = partial(Record, "loop and matrix product")
    magnitudes = partial(record, unit="orders of magnitude")
    ratios = {}
    for n in SIZES:
        q, k = (torch.randn(n, 64, dtype=torch.float32, generator=generator) for _ in range(2))
        lists = q.tolist(), k.tolist()
        if n == 32:
            apart = (torch.tensor(loop_products(*lists)) - q @ k.T).abs().max().item()
            name = "largest difference, n = 32, d = 64"
            yield record(name, 0, apart, 30 * SAME, note="products of up to 30")
        # The fastest of several runs: disturbances only make a run longer.
        loop = min(repeat(partial(loop_products, *lists), number=1, repeat=3))
        product = min(repeat(partial(torch.matmul, q, k.T), number=1, repeat=200))
        ratios[n] = loop / product
        if n >= 32:
            name = f"time of the loop / time of the product, n = {n}, d = 64"
            note = f"{ratios[n]:,.0f} times: {1e3 * loop:.2f} ms and {1e3 * product:.4f} ms"
            yield magnitudes(name, 3, log10(ratios[n]), 2.5, note=note)
    first, *_, last = SIZES
    name = f"growth of the ratio from n = {first} to {last}"
    note = " to ".join(f"{ratio:,.0f}" for ratio in ratios.values())
    yield magnitudes(name, 2, log10(ratios[last] / ratios[first]), 2.0, note=note)


def loop_products(q: Sequence[Sequence[float]], k: Sequence[Sequence[float]]) -> list[list[float]]:
    """Product of every query with every key, one number after the other."""
    products = []
    for query in q:
        row = []
        for key in k:
            total = 0.0
            for i in range(len(query)):
                total += query[i] * key[i]
            row.append(total)
        products.append(row)
    return products


def operations() -> Iterator[Record]:
    """Operations of the four projections, `8 n d^2`, and of all pairs, `4 n^2 d`.

    A projection is n rows times a `d x d` matrix, n d^2 multiply-adds, and there are four: Q,
    K, V and the output. The scores of all pairs take n^2 d multiply-adds, the weighted mean as
    many. The two costs are equal at n = 2 d.
    """
    record = partial(Record, "operations", tolerance=0.0)
    d = 64
    for n in (d, 2 * d, 4 * d):
        projections, pairs = _operations(n, d)
        at = f"n = {n}, d = {d}"
        yield record(f"projections, 8 n d^2, {at}", 8 * n * d**2, projections, unit="operations")
        yield record(f"pairs, 4 n^2 d, {at}", 4 * n**2 * d, pairs, unit="operations")
        yield record(f"pairs over projections, {at}", n / (2 * d), pairs / projections)


def score_memory() -> Iterator[Record]:
    """Size of the largest tensor: every score, or one tile of them at any length."""
    tile, d = 128, 8
    note = "largest tensor, one head, float32"
    for n in (1024, 2048):
        x = torch.ones(1, 1, n, d)
        for name, expected, run in (
            ("all scores, 4 n^2", 4 * n**2, attention),
            (
                f"tiles of {tile}, 4 tile^2",
                4 * tile**2,
                partial(tiled_attention, scale=1.0, tile=tile),
            ),
        ):
            with torch.no_grad(), Largest() as seen:
                run(x, x, x)
            yield Record(
                "score memory", f"{name}, n = {n}", expected, seen.bytes, 0.0, "bytes", note
            )


def cache_size() -> Iterator[Record]:
    """Size of the cache per token: a key and a value per key-value head and layer.

    For the shape of Llama 3 8B with 2 bytes per number, as in bfloat16.
    """
    record = partial(Record, "cache of Llama 3 8B's shape", tolerance=0.0)
    layers, heads, d_head = LLAMA["layers"], LLAMA["heads"], LLAMA["d_head"]
    for name, kv_heads, expected in (
        ("multi-head", heads, 512 * 2**10),
        ("grouped-query", LLAMA["kv_heads"], 128 * 2**10),
        ("multi-query", 1, 16 * 2**10),
    ):
        # The cache does not depend on the width of the input.
        W_Q, W_O = torch.ones(1, heads * d_head), torch.ones(heads * d_head, 1)
        W_K = W_V = torch.ones(1, kv_heads * d_head)
        weights = Weights(W_Q, W_K, W_V, W_O, heads=heads, kv_heads=kv_heads)
        _, cache = cached_attention(torch.ones(1, 1, 1), weights)
        size = 2 * layers * (cache.k.numel() + cache.v.numel())
        note = f"heads: {heads} query, {kv_heads} key-value"
        yield record(f"{name}, one token", expected, size, unit="bytes", note=note)
        expected, size = (number * CONTEXT / 2**30 for number in (expected, size))
        yield record(f"{name}, {CONTEXT:,} tokens", expected, size, unit="GiB", note=note)


def reach() -> Iterator[Record]:
    """How far back L layers see that each look w back: `L * w`, one window further per layer.

    w is a distance: a window of w + 1 keys, the query's own included. The measured reach is that
    of the earliest input with a gradient at the last output.
    """
    n = 64
    for layers, back in ((1, 4), (2, 4), (4, 4), (3, 16)):
        x = torch.zeros(1, n, 1, requires_grad=True)
        one = torch.ones(1, 1)
        weights = Weights(one, one, one, one, heads=1, kv_heads=1)
        mask = sliding_window_mask(n, window=back + 1)
        y = x
        for _ in range(layers):
            y = y + multi_head_attention(y, weights, mask=mask).out
        (gradient,) = torch.autograd.grad(y[0, -1, 0], x)
        distance = n - 1 - int(gradient[0, :, 0].nonzero().min())
        name = f"L = {layers} layers that look w = {back} back, L w"
        yield Record("reach of windows", name, layers * back, distance, 0.0, "tokens")


class Largest(TorchDispatchMode):
    """Size in bytes of the largest tensor that is made inside."""

    bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = (x.untyped_storage().nbytes() for x in tree_leaves(made) if isinstance(x, Tensor))
        self.bytes = max(self.bytes, *sizes, 0)
        return made


def _operations(n: int, d: int) -> tuple[int, int]:
    """Operations of the projections and of the pairs, counted while they run."""
    weights = Weights(*(torch.ones(d, d) for _ in range(4)), heads=4, kv_heads=4)
    with FlopCounterMode(display=False) as layer:
        multi_head_attention(torch.ones(1, n, d), weights, mask=causal_mask(n))
    q = torch.ones(1, 4, n, d // 4)
    with FlopCounterMode(display=False) as pairs:
        attention(q, q, q, mask=causal_mask(n))
    return layer.get_total_flops() - pairs.get_total_flops(), pairs.get_total_flops()
