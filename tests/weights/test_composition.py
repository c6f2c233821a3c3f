"""Composition scores against whole matrices, and their null against sampling."""

import pytest
import torch

from interp.heads import Head
from interp.weights.composition import KINDS, compose
from interp.weights.heads import HeadWeights, Rotary


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(seed: int, rotary: Rotary | None = None, centred: bool = False) -> HeadWeights:
    """Four random heads on two key-value heads, reading and writing 24 dimensions."""
    parts = {
        "W_Q": random(4, 24, 6, seed=seed),
        "W_K": random(2, 24, 6, seed=seed + 1),
        "W_V": random(2, 24, 5, seed=seed + 2),
    }
    if centred:
        parts = {name: W - W.mean(1, keepdim=True) for name, W in parts.items()}
    biases = {"b_Q": torch.zeros(4, 6), "b_K": torch.zeros(2, 6), "b_V": torch.zeros(2, 5)}
    W_O = random(4, 5, 24, seed=seed + 3)
    return HeadWeights(**parts, W_O=W_O, **biases, scale=1.0, rotary=rotary, centred=centred)


def whole(heads: HeadWeights, head: int, kind: str, distance: int = 0) -> torch.Tensor:
    """The later head's matrix as Elhage et al. have it, with all its elements."""
    left, right = heads.QK(head, distance=distance)
    W_V, W_O = heads.OV(head)
    return {"Q": left @ right.T, "K": right @ left.T, "V": W_V @ W_O}[kind]


def null(A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of |A R B|^2 over evenly drawn orthogonal R, from whole matrices."""
    n, M, N = A.shape[1], A.T @ A, B @ B.T
    traces = [(W @ W).trace() - W.trace().square() / n for W in (M, N)]
    return M.trace() * N.trace() / n, 2 / ((n - 1) * (n + 2)) * traces[0] * traces[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distance", [0, 3])
def test_the_scores_are_those_of_the_whole_matrices(kind, distance):
    rotary = Rotary(torch.tensor([1.0, 0.4]), first=2)
    weights = {0: layer(10, rotary), 1: layer(20, rotary), 3: layer(30, rotary)}
    found = compose(weights, n_layers=4, distance=distance)
    for l1, l2 in ((0, 1), (0, 3), (1, 3)):
        for h1 in range(4):
            for h2 in range(4):
                W_V, W_O = weights[l1].OV(h1)
                A, B = W_V @ W_O, whole(weights[l2], h2, kind, distance)
                by_hand = (A @ B).norm() / (A.norm() * B.norm())
                assert found.scores(kind)[l1, h1, l2, h2].item() == pytest.approx(
                    by_hand.item(), rel=1e-5
                )
                mean, variance = null(A, B)
                z = ((A @ B).square().sum() - mean) / variance.sqrt()
                assert found.z[kind][l1, h1, l2, h2].item() == pytest.approx(
                    z.item(), rel=1e-3, abs=1e-3
                )
    assert found.floor == pytest.approx(24**-0.5)


def test_the_distance_matters_to_queries_and_keys_where_positions_are_rotary():
    rotary = Rotary(torch.tensor([1.0, 0.4]))
    weights = {0: layer(10, rotary), 1: layer(20, rotary)}
    near, far = (compose(weights, n_layers=2, distance=distance) for distance in (0, 3))
    assert not torch.allclose(near.K, far.K, equal_nan=True, rtol=1e-3)
    assert not torch.allclose(near.Q, far.Q, equal_nan=True, rtol=1e-3)
    assert torch.allclose(near.V, far.V, equal_nan=True)


def test_only_earlier_layers_are_read_and_the_rest_is_nan():
    found = compose({0: layer(10), 1: layer(20), 3: layer(30)}, n_layers=4)
    earlier = torch.zeros(4, 4, dtype=torch.bool)
    earlier[0, 1] = earlier[0, 3] = earlier[1, 3] = True
    for kind in KINDS:
        there = found.scores(kind).isfinite().all(3).all(1)
        assert torch.equal(there, earlier)
        assert torch.equal(found.scores(kind).isfinite(), found.z[kind].isfinite())
        assert torch.equal(found.rank(kind) > 0, found.scores(kind).isfinite())


def orthogonal(n: int, generator: torch.Generator) -> torch.Tensor:
    """Drawn evenly (Mezzadri 2007): the triangle's signs have to be put right."""
    Q, R = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.double))
    return Q * R.diagonal().sign()


def test_the_null_is_that_of_sampled_rotations():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(4, 12, generator=generator, dtype=torch.double)
    B = torch.randn(12, 3, generator=generator, dtype=torch.double)
    B[:, 0] *= 3  # So that the spectrum is not flat.
    drawn = torch.stack([(A @ orthogonal(12, generator) @ B).square().sum() for _ in range(5_000)])
    mean, variance = null(A, B)
    # Standard errors of 5,000 draws: of the mean sd / 71, of the variance about 4 %.
    assert abs(drawn.mean() - mean) < 4 * drawn.std() / 5_000**0.5
    assert drawn.var().item() == pytest.approx(variance.item(), rel=0.1)


def test_of_random_heads_scores_are_at_the_floor_and_z_is_about_one():
    weights = {i: layer(100 * i) for i in range(6)}
    found = compose(weights, n_layers=6)
    for kind in KINDS:
        there = found.scores(kind).isfinite()
        mean = found.scores(kind)[there].square().mean().item()
        assert mean**0.5 == pytest.approx(found.floor, rel=0.03)
        # Pairs of heads in a group share a factor, so that they are not all independent.
        assert 0.8 < found.z[kind][there].std() < 1.25


def test_centred_models_live_in_one_dimension_less():
    weights = {i: layer(100 * i, centred=True) for i in range(20)}
    found = compose(weights, n_layers=20)
    assert found.floor == pytest.approx(23**-0.5)
    there = found.K.isfinite()
    mean = found.K[there].square().mean().item()
    assert mean**0.5 == pytest.approx(found.floor, rel=0.01)  # 1 / sqrt(24) is 2 % less.
    assert abs(found.z["K"][there].mean()) < 0.1
    # What a head writes into all dimensions alike, nobody reads.
    louder = {
        i: HeadWeights(**{**vars(heads), "W_O": heads.W_O + 50}) for i, heads in weights.items()
    }
    assert torch.allclose(compose(louder, n_layers=20).K, found.K, rtol=1e-3, equal_nan=True)


def planted(kind: str) -> dict[int, HeadWeights]:
    """Three layers of random heads; L2H1 reads the very subspace that L0H2 writes."""
    weights = {i: layer(100 * i) for i in range(3)}
    reads = {"Q": "W_Q", "K": "W_K", "V": "W_V"}[kind]
    W = getattr(weights[2], reads).clone()
    aim = torch.linalg.qr(weights[0].W_O[2].T).Q
    W[1 * len(W) // 4] = 3 * (aim @ random(5, W.shape[-1]))
    weights[2] = HeadWeights(**{**vars(weights[2]), reads: W})
    return weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_reads_what_one_writes_names_it_and_only_through_that_kind(kind):
    found = compose(planted(kind), n_layers=3)
    first = found.strongest(kind, 3, later=Head(2, 1)).iloc[0]
    assert (first["earlier"], first["later"], first["rank"]) == ("L0H2", "L2H1", 1)
    assert first["z"] > 5
    assert first["score"] == found.scores(kind)[0, 2, 2, 1].item()
    for other in set(KINDS) - {kind}:
        assert abs(found.z[other][0, 2, 2, 1]) < 4


def test_ranks_and_lists_are_in_the_order_of_the_scores():
    found = compose({i: layer(100 * i) for i in range(3)}, n_layers=3)
    edges = found.strongest("Q", 1000)
    assert len(edges) == 3 * 16
    assert edges["score"].is_monotonic_decreasing
    of_one = found.strongest("Q", 1000, later=(2, 0))
    assert of_one["rank"].tolist() == list(range(1, 9))
    assert sorted(found.rank("Q")[:, :, 1, 3][0].tolist()) == [1, 2, 3, 4]


def test_the_table_has_a_row_for_every_pair():
    found = compose({0: layer(10), 1: layer(20)}, n_layers=2)
    frame = found.to_frame()
    assert len(frame) == 16
    row = frame.set_index(["earlier", "later"]).loc[("L0H3", "L1H2")]
    assert row["V"] == found.V[0, 3, 1, 2].item()
    assert row["V_z"] == found.z["V"][0, 3, 1, 2].item()
    assert row["V_rank"] == found.rank("V")[0, 3, 1, 2].item()


def test_a_head_without_weights_has_no_score():
    weights = {0: layer(10), 1: layer(20)}
    W_O = weights[0].W_O.clone()
    W_O[1] = 0
    weights[0] = HeadWeights(**{**vars(weights[0]), "W_O": W_O})
    found = compose(weights, n_layers=2)
    assert found.K[0, 1].isnan().all()
    assert found.K[0, 0, 1].isfinite().all()
    assert (found.rank("K")[0, 1] == 0).all()
