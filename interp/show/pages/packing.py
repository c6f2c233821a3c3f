"""Attention weights in few bytes: what a page carries and the browser takes apart again.

A weight `w` in [0, 1] becomes the whole number `round(255 w)`, so what comes back is off by at
most half a step, 1/510 = 0.00196. Weights are kept column by column: neighbours in a column are
alike (a sink is a column), which deflate makes use of. Of a causal pattern that is the lower
triangle alone, of one that looks both ways or at another text all of it.
"""

import base64
import zlib

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from interp.errors import InputError

STEPS = 255
"""A weight is stored as a whole number of steps of 1/255."""


def as_steps(
    pattern: Float[Tensor, "head query key"], *, where: str, causal: bool = True
) -> UInt8[Tensor, "head query key"]:
    """The weights of heads as whole numbers of steps, from 0 to 255.

    Raises:
        InputError: If a weight is not a probability, or a query looks ahead although `causal`.
    """
    if not pattern.isfinite().all():
        raise InputError(f"patterns must be finite, got NaN or infinity in {where}")
    low, high = pattern.aminmax()
    if low < -1e-6 or high > 1 + 1e-3:
        worst = (low if low < -1e-6 else high).item()
        raise InputError(
            f"patterns must be attention after the softmax, from 0 to 1, got {worst:.3g} in {where}"
        )
    if causal and pattern.triu(1).any():
        raise InputError(f"patterns must be causal: a query in {where} looks ahead")
    return (pattern * STEPS).round().clamp(0, STEPS).to(torch.uint8)


def packed(steps: UInt8[Tensor, "query key"], *, causal: bool = True) -> str:
    """The weights, key by key and there query by query, deflated (zlib), in base64.

    Where `causal`, the lower triangle alone.
    """
    steps = steps.cpu().T
    if causal:
        steps = steps[tuple(torch.triu_indices(*steps.shape))]
    # Level 5 takes half the time of the usual 6 and a thirtieth more room.
    cells = zlib.compress(steps.contiguous().numpy().tobytes(), 5)
    return base64.b64encode(cells).decode("ascii")


def unpacked(text: str, *, keys: int | None = None) -> Float[Tensor, "query key"]:
    """The weights that `packed` kept, as the page reads them; 0 where a query would look ahead.

    Args:
        text: From `packed`.
        keys: How many keys there are, where all weights were kept; None where the lower
            triangle was.

    Example:
        >>> unpacked(packed(torch.tensor([[255, 0], [51, 204]], dtype=torch.uint8)))
        tensor([[1.0000, 0.0000],
                [0.2000, 0.8000]])
    """
    cells = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    if keys is not None:
        return cells.view(keys, -1).T / STEPS
    length = int((2 * len(cells) + 0.25) ** 0.5)
    places = torch.triu_indices(length, length)
    pattern = torch.zeros(length, length)
    pattern[places[1], places[0]] = cells / STEPS
    return pattern


def thumbnail(
    steps: UInt8[Tensor, "head query key"], *, most: int
) -> UInt8[Tensor, "head down across"]:
    """Small pictures of at most `most` pixels a side: each pixel the largest weight of its block.

    The largest, so that a stripe one token wide stays as dark as it is.
    """
    queries, keys = steps.shape[1:]
    block = -(-max(queries, keys) // most)
    padded = torch.nn.functional.pad(steps, (0, -keys % block, 0, -queries % block))
    return padded.unflatten(2, (-1, block)).unflatten(1, (-1, block)).amax((2, 4))
