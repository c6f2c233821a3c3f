"""How sure a score is: an interval over rows, the level of a null, the spread over periods.

A score is a mean over the queries of some rows (`interp.kinds.mass.Tally`). Rows are drawn
independently and queries of one row are not, so the row is what is drawn again.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.kinds.mass import Tally


def interval(
    tally: Tally, *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Float[Tensor, "end=2 head"]:
    """Bootstrap interval of `tally.mean` over rows, by percentiles (Efron 1979).

    Args:
        tally: Of at least two rows; of one row nothing can be said, and the interval is NaN.
        level: Share of the drawn means that lie inside, in (0, 1).
        draws: How often as many rows are drawn, with replacement.
        seed: Of a generator of its own.

    Returns:
        The lower and the upper end for every head.

    Example:
        >>> queries = torch.tensor([4, 4, 4, 4])
        >>> same = torch.full((4, 1), 2.0).double()
        >>> interval(Tally(same, same, queries)).tolist()
        [[0.5], [0.5]]
    """
    heard = tally.queries > 0
    total, queries = tally.total[heard], tally.queries[heard].double()
    rows = len(queries)
    if rows < 2:
        return torch.full((2, tally.total.shape[1]), torch.nan, dtype=torch.double)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(rows, (draws, rows), generator=generator)
    times = torch.zeros(draws, rows, dtype=torch.double)
    times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.double))
    means = (times @ total) / rearrange(times @ queries, "draw -> draw 1")
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.double)
    return means.quantile(ends, dim=0)


def quantile(tally: Tally, level: float = 0.99) -> Float[Tensor, " head"]:
    """The quantile of the rows' means: what a null reaches in one of a hundred rows."""
    return row_means(tally).quantile(level, dim=0)


def spread(tally: Tally) -> Float[Tensor, " head"]:
    """Standard deviation of the rows' means; where each row has its own period, over periods.

    NaN of one row.
    """
    means = row_means(tally)
    return means.std(0) if len(means) > 1 else torch.full_like(means[0], torch.nan)


def row_means(tally: Tally) -> Float[Tensor, "row head"]:
    """The score of each row that has a counted query."""
    heard = tally.queries > 0
    return tally.total[heard] / tally.queries[heard, None]
