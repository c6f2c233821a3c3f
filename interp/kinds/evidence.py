"""Uncertainty of a score: an interval over rows, the level of a null, the spread over periods.

A score is a mean over the queries of some rows (`interp.kinds.mass.Tally`). Rows are drawn
independently and queries of one row are not, so the bootstrap draws rows.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from interp.kinds.mass import Tally


def interval(
    tally: Tally, *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Float[Tensor, "end=2 head"]:
    """Bootstrap interval of `tally.mean` over rows, by percentiles (Efron 1979).

    Args:
        tally: Sums of two rows or more; with fewer the interval is NaN.
        level: Share of the drawn means inside the interval, in (0, 1).
        draws: Number of resamples of the rows, with replacement.
        seed: Random seed; the global generator stays as it is.

    Returns:
        The lower and the upper end for every head.

    Example:
        >>> same = torch.full((4, 1), 2.0).double()
        >>> interval(Tally(same, same, torch.tensor([4, 4, 4, 4]))).tolist()
        [[0.5], [0.5]]
    """
    counted = tally.queries > 0
    queries = tally.queries[counted, None].double()
    return ratio_interval(tally.total[counted], queries, level=level, draws=draws, seed=seed)


def ratio_interval(
    total: Float[Tensor, "row head"],
    over: Float[Tensor, "row _"],
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Float[Tensor, "end=2 head"]:
    """`interval` of `total.sum(0) / over.sum(0)`; `over` has one column or one a head."""
    rows = len(total)
    if rows < 2:
        return torch.full((2, total.shape[1]), torch.nan, dtype=torch.double)
    times = resampled(rows, draws, seed)
    means = (times @ total) / (times @ over)
    # As `means.quantile`, which sorts all of them and takes twice as long.
    place = (draws - 1) * (1 - level) / 2
    by_head = means.T.contiguous()
    near = [by_head.topk(int(place) + 2, largest=up).values[:, -2:] for up in (False, True)]
    ends = torch.stack([one.lerp(other, place % 1) for one, other in (x.T for x in near)])
    return ends.where(~means.isnan().any(0), torch.nan)


@lru_cache(maxsize=4)
def resampled(rows: int, draws: int, seed: int) -> Float[Tensor, "draw row"]:
    """How often each row occurs in each of `draws` resamples of the rows, with replacement.

    Callers share the result and leave it as it is.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(rows, (draws, rows), generator=generator)
    times = torch.zeros(draws, rows, dtype=torch.double)
    return times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.double))


def quantile(tally: Tally, level: float = 0.99) -> Float[Tensor, " head"]:
    """Quantile of the rows' means: of a null, the score that one row in a hundred exceeds."""
    return _row_means(tally).quantile(level, dim=0)


def spread(tally: Tally) -> Float[Tensor, " head"]:
    """Standard deviation of the rows' means, over periods if rows have several; NaN of one row."""
    means = _row_means(tally)
    return means.std(0) if len(means) > 1 else torch.full_like(means[0], torch.nan)


def _row_means(tally: Tally) -> Float[Tensor, "row head"]:
    counted = tally.queries > 0
    return tally.total[counted] / tally.queries[counted, None]
