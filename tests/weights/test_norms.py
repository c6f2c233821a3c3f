import pytest
import torch

from interp.weights.norms import Norm, held, norms_in


def test_a_norm_of_odd_width_is_read_right():
    norm = torch.nn.LayerNorm(33)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 33))
        norm.bias.copy_(torch.linspace(-1, 1, 33))
    read = Norm(norm, torch.zeros(33))
    assert torch.allclose(read.gain, norm.weight, atol=1e-4)
    assert torch.allclose(read.bias, norm.bias, atol=1e-4)
    assert read.centred


def test_a_norm_read_forwards_and_backwards_is_the_same_map():
    module = torch.nn.LayerNorm(16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        module.weight.copy_(torch.rand(16, generator=generator) + 0.5)
    norm = Norm(module, torch.zeros(16))
    x, W = torch.randn(1, 5, 16, generator=generator), torch.randn(7, 16, generator=generator)
    scale = norm.scale_of(x)[..., None]
    with torch.no_grad():
        assert torch.allclose(module(x) @ W.T, x / scale @ norm.fold(W).T, atol=1e-5)
        assert torch.allclose(module(x), norm.fold_written(x) / scale, atol=1e-5)


def test_a_norm_that_is_held_divides_every_position_alike():
    module = torch.nn.LayerNorm(16)
    with torch.no_grad():
        module.bias.fill_(3.0)
    norm = Norm(module, torch.zeros(16))
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0  # A head without queries.
    y = module(x).detach()
    scale = norm.mean_scale([(x, y), (2 * x[1:], module(2 * x[1:]).detach())])
    own = [x.std(-1, correction=0).flatten()[1:], 2 * x[1].std(-1, correction=0)]
    assert scale == pytest.approx(1 / (1 / torch.cat(own)).mean().item(), rel=1e-3)
    assert norm.mean_scale([(x[:1, :1], y[:1, :1])]) == 1
    with held({module: (norm, scale)}):
        assert torch.allclose(module(x), (x - x.mean(-1, keepdim=True)) / scale + 3, atol=1e-4)
    with held({module: (norm, scale)}, biases=False):
        assert torch.allclose(module(x), (x - x.mean(-1, keepdim=True)) / scale, atol=1e-4)
    with held({module: None}):
        assert torch.equal(module(x), x)
    assert torch.equal(module(x), y)


def test_of_nested_norms_the_innermost_is_found():
    class NormOfHeads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(4) for _ in range(2))

    whole = torch.nn.Sequential(torch.nn.Linear(4, 4), NormOfHeads(), torch.nn.RMSNorm(4))
    assert norms_in(whole) == [*whole[1].norms, whole[2]]
