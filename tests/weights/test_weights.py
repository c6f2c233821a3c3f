import pytest
import torch

from interp.errors import InputError
from interp.weights.heads import HeadWeights, Rotary, copying_scores, ov_copy, qk_match


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(rotary: Rotary | None = None, **changes: object) -> HeadWeights:
    """Four heads on two key-value heads, all random."""
    parts = {
        "W_Q": random(4, 16, 6, seed=1),
        "W_K": random(2, 16, 6, seed=2),
        "W_V": random(2, 16, 5, seed=3),
        "W_O": random(4, 5, 16, seed=4),
        "b_Q": random(4, 6, seed=5),
        "b_K": random(2, 6, seed=6),
        "b_V": random(2, 5, seed=7),
        "scale": 6**-0.5,
        "rotary": rotary,
    }
    return HeadWeights(**{**parts, **changes})


PARTIAL = torch.tensor([1.0, 0.3])  # Two pairs: two of six dimensions stay.


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("pairing", ["halves", "neighbours"])
def test_turning_is_the_rotation_matrix_of_each_pair(pairing, first):
    rotary, steps = Rotary(PARTIAL, pairing, first), 3
    whole = torch.eye(6)
    for i, angle in enumerate(PARTIAL.tolist()):
        a, b = (i, i + 2) if pairing == "halves" else (2 * i, 2 * i + 1)
        a, b = a + first, b + first
        turn = torch.tensor(angle) * steps
        whole[a, a] = whole[b, b] = turn.cos()
        whole[a, b], whole[b, a] = turn.sin(), -turn.sin()
    x = random(7, 6)
    assert torch.allclose(rotary.turn(x, steps), x @ whole, atol=1e-5)
    assert torch.allclose(rotary.turn(x, torch.full((7,), steps)), x @ whole, atol=1e-5)


@pytest.mark.parametrize("rotary", [None, Rotary(PARTIAL), Rotary(PARTIAL, "neighbours", 2)])
def test_the_scores_are_one_bilinear_form_for_each_distance(rotary):
    layer = heads(rotary, b_Q=torch.zeros(4, 6), b_K=torch.zeros(2, 6))
    x, sigma = random(2, 9, 16), random(2, 9).abs() + 0.5
    scores = layer.scores(x, sigma)
    assert scores.shape == (2, 4, 9, 9)
    for head in range(4):
        for query, key in ((0, 0), (5, 5), (8, 2), (3, 1)):
            left, right = layer.QK(head, distance=query - key)
            one = x[:, query] / sigma[:, query, None], x[:, key] / sigma[:, key, None]
            by_hand = ((one[0] @ left) * (one[1] @ right)).sum(-1) * layer.scale
            assert torch.allclose(scores[:, head, query, key], by_hand, atol=1e-3)


def test_biases_and_softcap_take_part_in_the_scores():
    layer = heads(softcap=2.0)
    x, sigma = random(1, 4, 16), torch.ones(1, 4)
    q = x[0] @ layer.W_Q[3] + layer.b_Q[3]
    k = x[0] @ layer.W_K[1] + layer.b_K[1]
    by_hand = 2 * (q @ k.T * layer.scale / 2).tanh()
    assert torch.allclose(layer.scores(x, sigma)[0, 3], by_hand, atol=1e-4)


@pytest.mark.fault("B30")
@pytest.mark.parametrize("head", [-1, 4])
def test_a_head_that_is_not_there_is_refused_with_the_valid_range(head):
    with pytest.raises(InputError, match=f"head must be from 0 to 3, got {head}"):
        heads().QK(head)
    with pytest.raises(InputError, match=f"head must be from 0 to 3, got {head}"):
        heads().OV(head)


def matched(shift: int, rotary: Rotary | None = None) -> tuple[HeadWeights, HeadWeights]:
    """An earlier head that writes token t on other axes, and a later one that seeks t + shift."""
    tokens = torch.eye(16)[:, :8]
    written = torch.eye(16)[:, 8:]
    nothing = {"b_Q": torch.zeros(1, 8), "b_K": torch.zeros(1, 8), "b_V": torch.zeros(1, 8)}
    whole = {"scale": 1.0, "rotary": rotary, **nothing}
    W = tokens[None]
    writer = HeadWeights(W_Q=W, W_K=W, W_V=W, W_O=written.T[None], **whole)
    reader = HeadWeights(W_Q=W.roll(shift, -1), W_K=written[None], W_V=W, W_O=W.mT, **whole)
    return writer, reader


def test_a_later_head_that_seeks_what_the_earlier_wrote_finds_every_token():
    embedding = torch.eye(16)[:8]
    assert qk_match(embedding, *with_heads(0)) == 1
    assert qk_match(embedding, *with_heads(1)) == 0


def with_heads(
    shift: int, rotary: Rotary | None = None
) -> tuple[HeadWeights, int, HeadWeights, int]:
    writer, reader = matched(shift, rotary)
    return writer, 0, reader, 0


def test_what_is_found_depends_on_the_distance_where_positions_are_rotary():
    half_circle = Rotary(torch.full((4,), torch.pi))
    embedding = torch.eye(16)[:8]
    assert qk_match(embedding, *with_heads(0, half_circle), distance=2) == 1
    assert qk_match(embedding, *with_heads(0, half_circle), distance=1) == 0


def test_a_head_that_copies_raises_each_token_above_all_others():
    layer, reversed_ = matched(0)[0], torch.eye(16)[:8, list(range(8, 16)) + list(range(8))]
    W_U, ids = reversed_, torch.arange(8)
    assert ov_copy(torch.eye(16)[:8], layer, 0, W_U, ids) == 1
    assert ov_copy(torch.eye(16)[:8], layer, 0, W_U, ids.flip(0)) == 0
    assert ov_copy(torch.eye(16)[:8], layer, 0, -W_U, ids) == 0
    biased = HeadWeights(**{**vars(layer), "b_V": 9 * torch.eye(8)[:1]})
    assert ov_copy(torch.eye(16)[:8], biased, 0, W_U, ids) == 1 / 8


def test_the_copying_score_is_that_of_the_whole_matrix_over_the_vocabulary():
    W_E, W_U = random(30, 8), random(8, 30, seed=1)
    W_V, W_O = random(3, 8, 4, seed=2), random(3, 4, 8, seed=3)
    whole = torch.linalg.eigvals((W_E @ W_V @ W_O @ W_U).double())
    by_hand = whole.real.sum(-1) / whole.abs().sum(-1)
    ours = copying_scores(W_V, W_O, W_U @ W_E)
    assert torch.allclose(ours.double(), by_hand, atol=1e-4)  # 26 eigenvalues of 30 are 0.


def test_a_head_that_copies_scores_one_and_one_that_negates_minus_one():
    W_V = random(1, 8, 4)
    W_O = W_V.mT.contiguous()
    assert torch.allclose(copying_scores(W_V, W_O, torch.eye(8)), torch.ones(1))
    assert torch.allclose(copying_scores(W_V, -W_O, torch.eye(8)), -torch.ones(1))
