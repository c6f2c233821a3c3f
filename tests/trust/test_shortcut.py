import pytest
import torch

from interp.trust.shortcut import (
    PERIOD,
    VOCABULARY,
    AttentionOnly,
    naive_stripe,
    positional_shortcut,
)


@pytest.fixture(scope="module")
def found():
    return positional_shortcut(seed=0)


@pytest.mark.slow
def test_the_naive_stripe_is_fooled(found):
    assert found.naive_stripe > 0.85
    assert found.steps < 1000


@pytest.mark.slow
def test_the_label_is_not(found):
    assert "induction" not in found.labels
    assert found.score < 0.2


@pytest.mark.slow
def test_what_fools_it_is_position_alone(found):
    assert found.without_repeats > 0.8


def test_the_naive_stripe_is_the_mean_of_one_diagonal():
    pattern = torch.zeros(1, 1, 2, 6, 6)
    pattern[0, 0, 1, [2, 3, 4, 5], [0, 1, 2, 3]] = torch.tensor([0.2, 0.4, 0.6, 0.8])
    assert naive_stripe(pattern, 3).tolist() == [[0.0, pytest.approx(0.5)]]


def test_the_model_looks_back_only_and_its_luck_is_its_own():
    before = torch.random.get_rng_state()
    one, two = (
        AttentionOnly(VOCABULARY, 2 * PERIOD, torch.Generator().manual_seed(0)) for _ in range(2)
    )
    tokens = torch.arange(20)[None]
    logits, patterns = one(tokens)
    changed = tokens.clone()
    changed[0, -1] = 99
    assert torch.equal(two(changed)[0][:, :-1], logits[:, :-1])
    assert patterns.triu(1).abs().max() == 0
    assert patterns.shape == (2, 1, 4, 20, 20)
    assert torch.equal(before, torch.random.get_rng_state())
