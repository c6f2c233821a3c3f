import pytest
import torch

from interp.kinds.evidence import interval, quantile, ratio_interval, resampled, spread
from interp.kinds.mass import Tally


def tally_of(means: torch.Tensor, queries: torch.Tensor) -> Tally:
    total = means.double() * queries[:, None]
    return Tally(total, torch.zeros_like(total), queries)


def drawn(rows: int, heads: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, heads, generator=torch.Generator().manual_seed(seed))


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says():
    # 1,000 experiments at once: each head is one, of 30 rows around 0.
    low, high = interval(tally_of(drawn(30, 1000), torch.full((30,), 5)))
    share = ((low <= 0) & (high >= 0)).double().mean().item()
    # Percentile intervals of 30 rows are a little narrow: 94 %, give or take 0.8 % of 1,000.
    assert 0.91 < share < 0.97


def test_the_interval_narrows_with_the_square_root_of_the_rows():
    width = [
        (ends[1] - ends[0]).mean().item()
        for ends in (interval(tally_of(drawn(n, 200), torch.full((n,), 5))) for n in (20, 80))
    ]
    assert width[0] / width[1] == pytest.approx(2, rel=0.1)


def test_rows_count_by_their_queries():
    means = torch.tensor([[0.0], [1.0]])
    ends = interval(tally_of(means, torch.tensor([1, 99])))
    assert ends.flatten().tolist() == [0, 1]
    heavy = interval(tally_of(means.repeat(20, 1), torch.tensor([1, 99] * 20)))
    assert heavy[0].item() > 0.9


def test_the_same_seed_gives_the_same_interval_and_the_global_state_is_left_alone():
    tally = tally_of(drawn(10, 2), torch.full((10,), 3))
    before = torch.random.get_rng_state()
    assert torch.equal(interval(tally), interval(tally))
    assert not torch.equal(interval(tally), interval(tally, seed=1))
    assert torch.equal(before, torch.random.get_rng_state())


def test_of_one_row_nothing_is_said_about_the_spread():
    tally = tally_of(torch.tensor([[0.5], [0.25]]), torch.tensor([4, 0]))
    assert interval(tally).isnan().all()
    assert spread(tally).isnan().all()
    assert quantile(tally).tolist() == [0.5]


def test_quantile_and_spread_are_those_of_the_rows_means():
    means = drawn(40, 3)
    tally = tally_of(means, torch.arange(1, 41))
    assert torch.allclose(spread(tally), means.double().std(0))
    assert torch.allclose(quantile(tally, 0.5), means.double().sort(0).values[19:21].mean(0))


def test_the_ends_are_quantiles_of_the_resampled_means():
    generator = torch.Generator().manual_seed(0)
    total = torch.rand(9, 5, generator=generator).double()
    over = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 2])[:, None].double()
    for some in (torch.ones_like(over), over):  # Of `over` some resamples are 0 / 0 or x / 0.
        times = resampled(9, 2000, 0)
        means = (times @ (total * some)) / (times @ some)
        ends = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.double), dim=0)
        found = ratio_interval(total * some, some)
        torch.testing.assert_close(found, ends, equal_nan=True, rtol=0, atol=1e-12)
