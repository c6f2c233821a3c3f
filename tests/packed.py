"""A projection with packed weights."""

import torch


class Packed(torch.nn.Module):
    """A projection whose weight is a flat row of bytes until it is asked for."""

    def __init__(self, inner: torch.nn.Linear) -> None:
        super().__init__()
        self.scale, self.shape = inner.weight.detach().abs().max() / 127, inner.weight.shape
        levels = (inner.weight.detach() / self.scale).round() + 128
        flat = levels.to(torch.uint8).flatten()[:, None]
        self.weight = torch.nn.Parameter(flat, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ ((self.weight.float() - 128) * self.scale).view(self.shape).mT
