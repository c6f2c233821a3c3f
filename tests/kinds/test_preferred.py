import pytest
import torch

from interp.kinds.explained import Asked, explain
from interp.kinds.mass import FromPattern, visible_keys
from interp.kinds.preferred import Fit
from interp.kinds.targets import local_window, ordinary, positions

VOCABULARY, LENGTH = 60, 160


def asked_of(tokens):
    return Asked.of(
        tokens,
        {"local window": local_window(tokens)},
        counted=ordinary(tokens),
        seen=visible_keys(tokens),
        last=positions(tokens),
    )


def attention(tokens, liked):
    """Head 0 likes tokens, head 1 keys 32 to 63 back, head 2 nothing."""
    scores = torch.zeros(len(tokens), 3, LENGTH, LENGTH)
    scores[:, 0] += 4 * liked[tokens][:, None]
    away = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    scores[:, 1] += 4 * ((away >= 31) & (away < 63))
    return FromPattern(scores.masked_fill(away < 0, -torch.inf).softmax(-1))


def rows(ids, number, seed):
    generator = torch.Generator().manual_seed(seed)
    return ids[torch.randint(len(ids), (number, LENGTH), generator=generator)]


def fitted_and_tested():
    """Fit on some ids, test on text of all ids; a token's features say whether it is liked."""
    liked = (torch.arange(VOCABULARY) % 12 == 0).float()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(VOCABULARY, 4, generator=generator)
    features = torch.cat([6 * liked[:, None] - 0.5, noise, torch.ones(VOCABULARY, 1)], 1)
    text, other = rows(torch.arange(36), 6, 1), rows(torch.arange(VOCABULARY), 4, 2)
    fit = Fit(text, 1, 3)
    for part in text.split(3):
        none = torch.zeros(len(part), 3, LENGTH, dtype=torch.bool)
        fit.add(0, attention(part, liked), asked_of(part), none)
    asked, sinks = asked_of(other), torch.zeros(4, 3, LENGTH, dtype=torch.bool)
    sinks[..., 0] = True
    preferred = fit.preferred(features, ridge=0.01)
    targets = preferred.targets(0, asked, sinks)
    return preferred, asked, sinks, targets, attention(other, liked), liked


def test_preferences_fitted_on_one_text_explain_another_with_other_tokens():
    preferred, asked, sinks, targets, other, liked = fitted_and_tested()
    found = explain(other, asked, sinks, {"preferred": targets})
    gain = (found.on["preferred"] - found.even["preferred"]).sum(0) / found.outside.sum(0)
    assert gain[0] > 0.5
    assert gain[1] > 0.15
    assert abs(gain[2]) < 0.02
    assert set(preferred.strongest(0, 0, 5).tolist()) == set(liked.nonzero().flatten().tolist())


def test_a_head_that_likes_nothing_prefers_each_token_and_distance_as_much_as_any_other():
    preferred, *_ = fitted_and_tested()
    assert (preferred.features @ preferred.direction[0, 2]).mean().item() == pytest.approx(
        1, abs=0.1
    )
    # Nearer keys, in the local window, are targets already.
    assert torch.allclose(preferred.by_distance[0, 2, 7:-1], torch.ones(7), atol=0.1)


def test_preferred_keys_are_at_most_a_tenth_and_neither_sinks_nor_other_targets():
    _, asked, sinks, targets, _, _ = fitted_and_tested()
    number, seen = targets.sum(-1), asked.visible.sum(-1)[:, None]
    assert torch.equal(number, (seen // 10).expand_as(number))
    assert not (targets & asked.union[:, None]).any()
    assert not (targets & ~asked.visible[:, None]).any()
    assert not (targets & sinks[:, :, None]).any()


def test_padding_changes_nothing():
    preferred, _, _, _, _, liked = fitted_and_tested()
    text = rows(torch.arange(VOCABULARY), 1, 3)
    padded = torch.nn.functional.pad(text, (0, 20), value=-1)
    fits = [Fit(part, 1, 3) for part in (text, padded)]
    for fit, tokens in zip(fits, (text, padded), strict=True):
        pattern = torch.zeros(1, 3, tokens.shape[1], tokens.shape[1])
        pattern[..., :LENGTH, :LENGTH] = attention(text, liked).pattern
        none = torch.zeros(1, 3, tokens.shape[1], dtype=torch.bool)
        fit.add(0, FromPattern(pattern), asked_of(tokens), none)
        assert torch.allclose(
            fit.preferred(preferred.features).direction,
            fits[0].preferred(preferred.features).direction,
            atol=1e-5,
        )
