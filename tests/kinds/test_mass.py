import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scored import scored
from torch import Tensor

from interp.kinds.builtin import KINDS
from interp.kinds.mass import Tally, attention_mass, visible_keys
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE, Blocks, first_token

EXACT = {"rtol": 0, "atol": 0}
# A sum of at most 100 float32 numbers in [0, 1] is off by less than 100 * 2**-24.
ROUNDING = {"rtol": 0, "atol": 1e-5}

SEEDS = st.integers(0, 2**31)


def random_pattern(seed: int, batch: int, heads: int, length: int, sharpness=3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, heads, length, length, generator=generator) * sharpness
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1)


def uniform_pattern(tokens: Tensor, window: int | None = None) -> Tensor:
    real = tokens != NONE
    length = tokens.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, :]
    if isinstance(window, Blocks):
        block = (torch.arange(length) - first_token(tokens)[:, None]).div(
            window, rounding_mode="floor"
        )
        seen &= block[:, :, None] == block[:, None]
    elif window is not None:
        seen &= torch.ones(length, length, dtype=torch.bool).triu(1 - window)
    seen = (seen & real[:, :, None]).float()
    return (seen / seen.sum(-1, keepdim=True).clamp(min=1))[:, None]


@settings(deadline=None, derandomize=True)
@given(seed=SEEDS, batch=st.integers(1, 3), heads=st.integers(1, 3), length=st.integers(1, 9))
def test_attention_mass_is_the_sum_over_the_targets(seed, batch, heads, length):
    generator = torch.Generator().manual_seed(seed)
    pattern = random_pattern(seed, batch, heads, length)
    # Keys of one query are distinct, with gaps among them.
    keys = torch.rand(batch, length, length, generator=generator).argsort(-1)
    keys[torch.rand(keys.shape, generator=generator) < 0.5] = NONE

    mass = attention_mass(pattern, keys)

    for b in range(batch):
        for h in range(heads):
            for q in range(length):
                slow = sum(pattern[b, h, q, k].item() for k in keys[b, q].tolist() if k != NONE)
                # Nine float32 numbers in [0, 1].
                assert mass[b, h, q].item() == pytest.approx(slow, abs=1e-6)


ROWS = {
    "no repeats": [[0, *range(10, 40)]],
    "two copies": [[0, *range(10, 25), *range(10, 25)]],
    "four copies": [[0, *([*range(10, 19)] * 4)]],
    "left padding": [[NONE] * 6 + [0, *range(10, 22), *range(10, 22)]],
    "right padding": [[0, *range(10, 22), *range(10, 22)] + [NONE] * 6],
    "separators": [[0, *range(10, 22), 1, *range(10, 22), 1, *range(10, 22)]],
    "rows of several lengths": [
        [0, *range(10, 22), *range(10, 22), *[NONE] * 5],
        [*[NONE] * 12, 0, *range(10, 19), *range(11, 19)],
    ],
}


@pytest.mark.parametrize("window", [None, 30, 9, 2, Blocks(7)])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_even_attention_scores_exactly_its_chance_on_every_kind(rows, window):
    tokens = torch.tensor(rows)
    pattern = uniform_pattern(tokens, window)
    scores = scored(pattern, tokens, special=(1,), window=window, thresholds=Thresholds())
    scores = scores.measured(1)  # Some kinds have no query here.
    assert "current_token" in scores.tallies
    for tally in scores.tallies.values():  # Entropy and distance have their closed form too.
        torch.testing.assert_close(tally.mean, tally.uniform_mean, rtol=1e-5, atol=1e-5)


def test_chance_of_the_previous_token_is_a_harmonic_sum():
    tokens = torch.arange(10)[None]
    tally = scored(uniform_pattern(tokens), tokens, thresholds=Thresholds(window_width=1)).tallies[
        "previous_token"
    ]
    by_hand = sum(1 / (q + 1) for q in range(2, 10)) / 8
    assert tally.uniform_mean.item() == pytest.approx(by_hand, abs=1e-7)  # float32
    assert tally.queries.tolist() == [8]


def test_scoring_never_writes_to_its_inputs():
    tokens = torch.tensor(ROWS["left padding"])
    pattern = uniform_pattern(tokens)
    counted = tokens != 12
    before = [tensor.clone() for tensor in (pattern, tokens, counted)]
    scored(pattern, tokens, counted=counted, window=9, thresholds=Thresholds())
    attention_mass(pattern, KINDS["induction"](tokens))
    for tensor, copy in zip((pattern, tokens, counted), before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("window", [None, 1, 3, 50, Blocks(2)])
def test_visible_keys_count_the_real_tokens_up_to_the_query(window):
    tokens = torch.tensor([[NONE, NONE, 7, 8, 9, 7, NONE], [7, 8, 9, 7, 8, 9, 7]])
    limit = window or 50
    for row, counts in zip(tokens.tolist(), visible_keys(tokens, window).tolist(), strict=True):
        for q, count in enumerate(counts):
            if row[q] != NONE:
                so_far = sum(token != NONE for token in row[: q + 1])
                of_blocks = isinstance(window, Blocks)
                assert count == ((so_far - 1) % limit + 1 if of_blocks else min(limit, so_far))
            assert count >= 1


def random_tally(seed: int, rows: int, heads: int = 3, length: int = 7) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    value, uniform = torch.rand(2, rows, heads, length, generator=generator)
    counted = torch.rand(rows, length, generator=generator) < 0.6
    counted[0, 0] = True
    return value, uniform, counted


def test_a_tally_is_the_mean_over_all_counted_queries_of_all_rows():
    value, uniform, counted = random_tally(0, 4)
    tally = Tally.of(value, uniform, counted)
    for head in range(3):
        # Rows of seven numbers in [0, 1] are summed in float32.
        by_hand = value[:, head][counted].double().mean().item()
        assert tally.mean[head].item() == pytest.approx(by_hand, abs=1e-6)
        by_hand = uniform[:, head][counted].double().mean().item()
        assert tally.uniform_mean[head].item() == pytest.approx(by_hand, abs=1e-6)
    assert tally.queries.tolist() == counted.sum(-1).tolist()


def test_what_is_not_counted_may_be_anything():
    value, uniform, counted = random_tally(1, 4)
    clean = Tally.of(value, uniform, counted)
    hidden = ~counted[:, None].expand_as(value)
    dirty = Tally.of(
        value.masked_fill(hidden, torch.nan), uniform.masked_fill(hidden, torch.inf), counted
    )
    torch.testing.assert_close(dirty.mean, clean.mean, **EXACT)
    torch.testing.assert_close(dirty.uniform_mean, clean.uniform_mean, **EXACT)


@pytest.mark.parametrize("cuts", [[6], [1, 5], [2, 2, 2], [1] * 6, [5, 1]], ids=str)
def test_joined_pieces_equal_the_whole(cuts):
    value, uniform, counted = random_tally(2, 6)
    pieces = zip(value.split(cuts), uniform.split(cuts), counted.split(cuts), strict=True)
    joined = Tally.join([Tally.of(*piece) for piece in pieces])
    whole = Tally.of(value, uniform, counted)
    for name in ("total", "uniform", "queries"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name), **EXACT)
    torch.testing.assert_close(joined.mean, whole.mean, **EXACT)
