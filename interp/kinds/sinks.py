"""Which columns of a pattern are sinks, measured on a few of its rows."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.targets import NONE

SAMPLE = 32
"""Number of whole rows in which sink columns are searched."""


def spaced(counted: Bool[Tensor, "batch pos"], most: int = SAMPLE) -> Int[Tensor, "batch s"]:
    """At most `most` of each row's counted queries, evenly spaced, in order; filled up with -1.

    Example:
        >>> spaced(torch.tensor([[True, False, True, True, True, True]]), most=3).tolist()
        [[0, 3, 5]]
    """
    number = counted.sum(-1, keepdim=True)
    order = torch.argsort((~counted).int(), dim=-1, stable=True)  # The counted ones first.
    every = torch.arange(min(most, max(1, int(number.max()))), device=counted.device)
    even = (every / max(1, len(every) - 1) * (number - 1)).round().long()
    chosen = torch.where(number <= len(every), every, even)
    return torch.where(every < number, order.gather(-1, chosen), NONE)


def halves(
    queries: Int[Tensor, "batch s"], n_keys: int, *, causal: bool = True
) -> Bool[Tensor, "half=2 batch s key"]:
    """For each key, the nearer and the farther half of the `queries` that it can be a sink of.

    These are the queries after it; in a bidirectional model, all but itself. -1 is no query. Of
    an odd number the middle one is in the farther half.
    """
    away = queries[..., None] - torch.arange(n_keys, device=queries.device)
    others = ((away > 0) if causal else (away != 0)) & (queries != NONE)[..., None]
    if causal:  # Queries are in the order of their distance.
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
    """Columns that draw at least `share` of the later queries' attention, near and far.

    A column's share is the mean attention to it over the queries after it (Gu et al. 2024,
    arXiv 2410.10781, section 3.2, without the trivial q = k). Both the nearer and the farther
    half of these queries must give that much, so that a near neighbour is no sink.

    `rows` are rows of the pattern for some queries, `later` the `halves` of these queries, and
    `least` is the least number of later queries for a sink.

    Returns:
        Which columns are sinks; and the column with most attention of later queries, sink or not.
    """
    given = [(rows * half[:, None]).sum(-2) for half in later]
    number = rearrange(later.sum(-2), "half b k -> half b 1 k")
    enough = torch.stack(given) >= share * number
    return enough.all(0) & (number.sum(0) >= least), (given[0] + given[1]).argmax(-1)
