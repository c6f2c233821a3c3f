"""Layer norms and RMS norms: a gain, a bias, and one scale for each position."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError


class Norm:
    """A layer norm or RMS norm of any name as gain, bias and scale.

    Attributes:
        gain: Gain of each dimension.
        bias: Bias of each dimension; 0 without one.
        centred: Whether it subtracts the mean first (LayerNorm does, RMSNorm does not).
    """

    def __init__(self, module: Any, like: Tensor) -> None:
        # A norm changes an input with mean 0 and mean square 1 by gain and bias alone.
        signs = torch.ones_like(like)
        signs[1::2] = -1
        if len(like) % 2:
            signs[-3:] = 0.5**0.5 * torch.tensor([1.0, 1.0, -2.0])
        with torch.no_grad():
            up, down, even = (module(x).float() for x in (signs, -signs, torch.ones_like(like)))
        self.module = module
        self.gain: Float[Tensor, " d_model"] = (up - down) / 2 / signs.float()
        self.bias: Float[Tensor, " d_model"] = (up + down) / 2
        self.centred = bool((even - self.bias).abs().max() < 1e-2 * self.gain.abs().max())

    def fold(self, W: Float[Tensor, "*rest d_model"]) -> Float[Tensor, "*rest d_model"]:
        """Turn vectors that read the norm's output into ones that read its input over its scale."""
        W = W * self.gain
        return W - W.mean(-1, keepdim=True) if self.centred else W

    def fold_written(self, W: Float[Tensor, "*rest d_model"]) -> Float[Tensor, "*rest d_model"]:
        """Vectors written through the norm, without its scale and bias."""
        return (W - W.mean(-1, keepdim=True) if self.centred else W) * self.gain

    def scale(
        self, x: Float[Tensor, "batch pos d_model"], y: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos"]:
        """The scale by which the norm divided each position of `x` to give `y`."""
        kind = type(self.module).__name__
        if not (x.isfinite().all() and y.isfinite().all()):
            raise InputError(f"activations are not finite where the norm, a {kind}, is")
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        whole = x * self.gain
        if not whole.any(-1).all():
            raise InputError(f"the norm, a {kind}, reads or gives nothing but 0 at some position")
        parallel = (whole * (y - self.bias)).sum(-1)
        scale = whole.pow(2).sum(-1) / parallel
        if not torch.allclose(whole / scale[..., None] + self.bias, y, rtol=1e-2, atol=1e-2):
            raise InputError(f"the norm, a {kind}, is not known")
        return scale

    def scale_of(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        """The scale by which the norm divides each position of `x`."""
        with torch.no_grad():
            return self.scale(x.float(), self.module(x).float())
