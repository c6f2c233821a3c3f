import torch

from interp.weights.norms import Norm


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
