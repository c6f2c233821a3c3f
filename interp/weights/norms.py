"""Layer norms and RMS norms: a gain, a bias, and one scale for each position."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import InputError


def norms_in(module: nn.Module) -> list[nn.Module]:
    """The norms inside a module, by the names of their classes; of nested ones the innermost."""
    named = [part for part in module.modules() if "norm" in type(part).__name__.lower()]
    return [part for part in named if not any(other in named for other in [*part.modules()][1:])]


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
        self, x: Float[Tensor, "*batch pos d_model"], y: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos"]:
        """The scale by which the norm divided each position of `x` to give `y`."""
        kind = type(self.module).__name__
        scale = self._scale(x, y)
        if scale.isnan().any():
            raise InputError(f"the norm, a {kind}, reads or gives nothing but 0 at some position")
        return scale

    def mean_scale(self, calls: Iterable[tuple[Tensor, Tensor]]) -> float:
        """The scale that divides as the scales of all positions do on average; 1 of zeros alone.

        It is their harmonic mean, over calls that turned `x` into `y`.
        """
        scales = torch.cat([self._scale(x.float(), y.float()).flatten() for x, y in calls])
        scales = scales[~scales.isnan()]
        return float(1 / (1 / scales).mean()) if len(scales) else 1.0

    def scale_of(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        """The scale by which the norm divides each position of `x`."""
        with torch.no_grad():
            return self.scale(x.float(), self.module(x).float())

    def _scale(self, x: Tensor, y: Tensor) -> Tensor:
        """The scale of each position; NaN where the norm reads or gives nothing but 0."""
        kind = type(self.module).__name__
        if not (x.isfinite().all() and y.isfinite().all()):
            raise InputError(f"activations are not finite where the norm, a {kind}, is")
        whole = self.fold_written(x)
        scale = whole.pow(2).sum(-1) / (whole * (y - self.bias)).sum(-1)
        some, ours = whole.any(-1), whole / scale[..., None] + self.bias
        if not torch.allclose(ours[some], y[some], rtol=1e-2, atol=1e-2):
            raise InputError(f"the norm, a {kind}, is not known, or its output is clipped")
        return scale


Held = Mapping[nn.Module, tuple[Norm, float | Iterator[Tensor]] | None]
"""Norms with the scale at which `held` keeps them; with None a norm does nothing.

An iterator gives the scales of each call, one for each vector that the norm reads, `[..., 1]`.
"""


@contextmanager
def held(norms: Held, *, biases: bool = True) -> Iterator[None]:
    """Let these norms divide every position by the same scale, with or without their biases."""

    def hold(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if (at := norms[module]) is None:
            return inputs[0]
        norm, scale = at
        scale = next(scale) if isinstance(scale, Iterator) else scale
        linear = norm.fold_written(inputs[0].float()) / scale
        return (linear + norm.bias if biases else linear).to(output.dtype)

    with ExitStack() as hooks:
        for module in norms:
            hooks.enter_context(module.register_forward_hook(hold))
        yield
