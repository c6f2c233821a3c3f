import torch

from interp.weights import copying_scores


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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


def test_random_heads_score_about_nothing():
    scores = copying_scores(random(200, 64, 16), random(200, 16, 64, seed=1), torch.eye(64))
    assert abs(scores.mean().item()) < 0.05
