"""Which columns of a pattern are sinks: found wherever they are, in a few of its rows."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.targets import NONE

SAMPLE = 32
"""Rows that are looked at whole, in search of sink columns."""


def spaced(counted: Bool[Tensor, "batch pos"], most: int = SAMPLE) -> Int[Tensor, "batch s"]:
    """At most `most` of each row's counted queries, evenly spaced, in order; filled up with -1.

    Example:
        >>> spaced(torch.tensor([[True, False, True, True, True, True]]), most=3).tolist()
        [[0, 3, 5]]
    """
    number = counted.sum(-1)
    order = torch.argsort((~counted).int(), dim=-1, stable=True)  # The counted ones first.
    size = min(most, max(1, int(number.max())))
    step = torch.arange(size, device=counted.device) / max(1, size - 1)
    every = torch.arange(size, device=counted.device).expand(len(counted), -1)
    few = rearrange(number <= size, "b -> b 1")
    chosen = torch.where(few, every, (step * (number[:, None] - 1)).round().long())
    there = every < rearrange(number, "b -> b 1")
    return torch.where(there, order.gather(-1, chosen), NONE)


def halves(
    queries: Int[Tensor, "batch s"], n_keys: int, *, causal: bool = True
) -> Bool[Tensor, "half=2 batch s key"]:
    """For each key, the nearer and the farther half of the `queries` that can rest on it.

    Those are the queries after it; where attention is not `causal`, all but itself. -1 is none.
    Of an odd number the one in the middle is farther.
    """
    key = torch.arange(n_keys, device=queries.device)
    away = queries[..., None] - key
    others = ((away > 0) if causal else (away != 0)) & (queries != NONE)[..., None]
    if causal:  # They come in the order of their distance.
        rank = others.cumsum(1)
    else:
        away = torch.where(others, away.abs(), n_keys)
        rank = away.argsort(dim=1, stable=True).argsort(dim=1) + 1
    near = others & (rank <= others.sum(1, keepdim=True) // 2)
    return torch.stack([near, others & ~near])


def sink_columns(
    rows: Float[Tensor, "batch head s key"],
    later: Bool[Tensor, "half=2 batch s key"],
    *,
    share: float,
    least: int,
) -> tuple[Bool[Tensor, "batch head key"], Int[Tensor, "batch head"]]:
    """Columns that draw at least `share` of the attention of the queries after them, everywhere.

    A column's share is the mean of the attention to it over the queries after it
    (Gu et al. 2024, arXiv 2410.10781, section 3.2, without the trivial q = k). "Everywhere"
    means that both the nearer and the farther half of those queries give that much, so that
    a near neighbour is no sink; `least` queries are needed for an opinion.

    Args:
        rows: The pattern's rows of some queries.
        later: From `halves` of those queries.
        share: Least share, in (0, 1].
        least: Least number of later queries.

    Returns:
        Which columns are sinks; and the column that the queries after it give most to, all
        together, be it a sink or not.
    """
    given = [(rows * half[:, None]).sum(-2) for half in later]
    number = rearrange(later.sum(-2), "half b k -> half b 1 k")
    found = torch.stack(given) >= share * number
    return found.all(0) & (number.sum(0) >= least), (given[0] + given[1]).argmax(-1)
