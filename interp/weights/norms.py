"""A layer norm or RMS norm as what it does: a gain, a bias, and one scale for each position."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError


class Norm:
    """A layer norm or RMS norm as gain, bias and scale, whatever it is called.

    Attributes:
        gain: Per dimension.
        bias: Per dimension; 0 where there is none.
        centred: Whether the mean is taken away first (LayerNorm; RMSNorm does not).
    """

    def __init__(self, module: Any, like: Tensor) -> None:
        # What has mean 0 and mean square 1 a norm changes by gain and bias alone.
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
        """Vectors that read the norm's output, as they read its input times its scale."""
        W = W * self.gain
        return W - W.mean(-1, keepdim=True) if self.centred else W

    def fold_written(self, W: Float[Tensor, "*rest d_model"]) -> Float[Tensor, "*rest d_model"]:
        """Vectors that are written through the norm, but for its scale and bias."""
        return (W - W.mean(-1, keepdim=True) if self.centred else W) * self.gain

    def scale(
        self, x: Float[Tensor, "batch pos d_model"], y: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos"]:
        """What each position of the input `x` was divided by to give `y`.

        Raises:
            InputError: If the module turns out to be no such norm, a number is not finite, or
                nothing is left of a position to be divided.
        """
        if not (x.isfinite().all() and y.isfinite().all()):
            kind = type(self.module).__name__
            raise InputError(f"activations are not finite where the norm, a {kind}, is")
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        whole = x * self.gain
        if not whole.any(-1).all():
            kind = type(self.module).__name__
            raise InputError(f"the norm, a {kind}, reads or gives nothing but 0 at some position")
        parallel = (whole * (y - self.bias)).sum(-1)
        scale = whole.pow(2).sum(-1) / parallel
        if not torch.allclose(whole / scale[..., None] + self.bias, y, rtol=1e-2, atol=1e-2):
            raise InputError(f"the norm, a {type(self.module).__name__}, is not known")
        return scale

    def scale_of(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        """What the norm divides each position of `x` by.

        Raises:
            InputError: If the module turns out to be no such norm, or a number is not finite.
        """
        with torch.no_grad():
            return self.scale(x.float(), self.module(x).float())
