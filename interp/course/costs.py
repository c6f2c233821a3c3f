"""What attention costs: time, operations, memory, and how far windows reach, counted as it runs.

n is the number of tokens, d the width of the model. A multiply-add counts as two operations.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log10
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from interp.attention.multihead import Weights, cached_attention, multi_head_attention
from interp.attention.reference import attention, causal_mask, sliding_window_mask
from interp.attention.tiles import tiled_attention
from interp.course.numbers import SAME
from interp.course.records import Record

SIZES = (8, 32, 128)
"""Tokens at which the loop is timed, d = 64."""

LLAMA = {"layers": 32, "heads": 32, "kv_heads": 8, "d_head": 128}
"""Llama 3 8B (Dubey et al. 2024, arXiv 2407.21783, table 3)."""

CONTEXT = 8192
"""Tokens in the cache whose size is told."""


def costs(seed: int) -> Iterator[Record]:
    """Every number about cost.

    Args:
        seed: Of the inputs; the global random state is left alone.
    """
    generator = torch.Generator().manual_seed(seed)
    yield from loop_and_product(generator)
    yield from operations()
    yield from score_memory()
    yield from cache_size()
    yield from reach()


def loop_and_product(generator: Generator) -> Iterator[Record]:
    """Q K^T by three nested loops, as the formula is read, and by one matrix product.

    How much faster the product is depends on the machine and on what else it does: expected is no
    more than that it is faster, by some orders of magnitude, and more so the more tokens there
    are, while the product is too small to keep the machine busy.
    """
    table = "loop and matrix product"
    ratios = {}
    for n in SIZES:
        q, k = (torch.randn(n, 64, dtype=torch.float32, generator=generator) for _ in range(2))
        lists = q.tolist(), k.tolist()
        if n == 32:
            apart = (torch.tensor(loop_products(*lists)) - q @ k.T).abs().max().item()
            yield Record(
                table, "largest difference, n = 32, d = 64", 0, apart, 30 * SAME,
                note="products of up to 30",
            )  # fmt: skip
        loop = _fastest(partial(loop_products, *lists), times=3)
        product = _fastest(partial(torch.matmul, q, k.T), times=200)
        ratios[n] = loop / product
        if n >= 32:
            yield Record(
                table,
                f"time of the loop over that of the product, n = {n}, d = 64",
                3,
                log10(ratios[n]),
                2.5,
                unit="orders of magnitude",
                note=f"{ratios[n]:,.0f} times: {1e3 * loop:.2f} ms and {1e3 * product:.4f} ms",
            )
    first, *_, last = SIZES
    yield Record(
        table,
        f"how the ratio grows from n = {first} to {last}",
        2,
        log10(ratios[last] / ratios[first]),
        2,
        unit="orders of magnitude",
        note=" to ".join(f"{ratio:,.0f}" for ratio in ratios.values()),
    )


def loop_products(q: Sequence[Sequence[float]], k: Sequence[Sequence[float]]) -> list[list[float]]:
    """Every query's product with every key, one number after the other."""
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
    K, V and the output. Pairs are compared in n^2 d multiply-adds and averaged in as many. The
    two meet at n = 2 d.
    """
    table = "operations"
    d = 64
    for n in (d, 2 * d, 4 * d):
        projections, pairs = _operations(n, d)
        for name, expected, measured in (
            ("projections, 8 n d^2", 8 * n * d**2, projections),
            ("pairs, 4 n^2 d", 4 * n**2 * d, pairs),
        ):
            yield Record(
                table, f"{name}, n = {n}, d = {d}", expected, measured, 0.0, unit="operations"
            )
        yield Record(
            table,
            f"pairs over projections, n = {n}, d = {d}",
            n / (2 * d),
            pairs / projections,
            0.0,
        )


def score_memory() -> Iterator[Record]:
    """The largest tensor on the way: every score, or a tile of them at any length."""
    tile, d = 128, 8
    for n in (1024, 2048):
        q, k, v = (torch.ones(1, 1, n, d) for _ in range(3))
        for name, expected, run in (
            ("all scores, 4 n^2", 4 * n**2, lambda q, k, v: attention(q, k, v)),
            (
                f"tiles of {tile}, 4 tile^2",
                4 * tile**2,
                lambda q, k, v: tiled_attention(q, k, v, scale=1.0, tile=tile),
            ),
        ):
            with torch.no_grad(), _Largest() as seen:
                run(q, k, v)
            yield Record(
                "score memory", f"{name}, n = {n}", expected, seen.bytes, 0.0, unit="bytes",
                note="largest tensor made, one head, float32",
            )  # fmt: skip


def cache_size() -> Iterator[Record]:
    """What a cache holds of each token: a key and a value per key-value head and layer.

    For the shape of Llama 3 8B with 2 bytes to a number, as in bfloat16.
    """
    layers, heads, d_head = LLAMA["layers"], LLAMA["heads"], LLAMA["d_head"]
    for name, kv_heads, expected in (
        ("multi-head", heads, 512 * 2**10),
        ("grouped-query", LLAMA["kv_heads"], 128 * 2**10),
        ("multi-query", 1, 16 * 2**10),
    ):
        # The width of what goes in does not matter for what is kept.
        W_Q, W_O = torch.ones(1, heads * d_head), torch.ones(heads * d_head, 1)
        W_K = W_V = torch.ones(1, kv_heads * d_head)
        weights = Weights(W_Q, W_K, W_V, W_O, heads=heads, kv_heads=kv_heads)
        _, cache = cached_attention(torch.ones(1, 1, 1), weights)
        held = 2 * layers * (cache.k.numel() + cache.v.numel())
        shared = f"{heads} query heads on {kv_heads}"
        yield Record(
            "cache of Llama 3 8B's shape", f"{name}, one token", expected, held, 0.0,
            unit="bytes", note=shared,
        )  # fmt: skip
        yield Record(
            "cache of Llama 3 8B's shape",
            f"{name}, {CONTEXT:,} tokens",
            expected * CONTEXT / 2**30,
            held * CONTEXT / 2**30,
            0.0,
            unit="GiB",
            note=shared,
        )


def reach() -> Iterator[Record]:
    """How far back L layers see that each look w back: `L * w`, one window further a layer.

    w is a distance: a window of w + 1 keys, the query itself included. Found by asking which
    inputs the last output has a gradient of.
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
        seen = gradient[0, :, 0].nonzero()
        yield Record(
            "reach of windows",
            f"L = {layers} layers that look w = {back} back, L w",
            layers * back,
            n - 1 - int(seen.min()),
            0.0,
            unit="tokens",
        )


class _Largest(TorchDispatchMode):
    """How many bytes the largest tensor has that is made inside."""

    bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = (x.untyped_storage().nbytes() for x in tree_leaves(made) if isinstance(x, Tensor))
        self.bytes = max(self.bytes, *sizes, 0)
        return made


def _operations(n: int, d: int) -> tuple[int, int]:
    """Counted while they run: those of the projections, and those of the pairs."""
    weights = Weights(*(torch.ones(d, d) for _ in range(4)), heads=4, kv_heads=4)
    with FlopCounterMode(display=False) as all_of_them:
        multi_head_attention(torch.ones(1, n, d), weights, mask=causal_mask(n))
    q = torch.ones(1, 4, n, d // 4)
    with FlopCounterMode(display=False) as pairs:
        attention(q, q, q, mask=causal_mask(n))
    of_pairs = pairs.get_total_flops()
    return all_of_them.get_total_flops() - of_pairs, of_pairs


def _fastest(run: Callable[[], object], *, times: int) -> float:
    """Seconds of the fastest of several runs: what disturbs a run only makes it longer."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
