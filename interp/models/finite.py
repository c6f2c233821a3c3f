"""NaN and infinity in attention and losses, refused where they first appear."""

from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError

_ADVICE = {
    "float32": "weights or activations are NaN, infinite or too large",
    "bfloat16": "use float32",
}


def _advice(dtype: str) -> str:
    return f"in {dtype}: {_ADVICE.get(dtype, 'use float32 or bfloat16')}"


def refuse_losses_not_finite(losses: Float[Tensor, "..."], model: str, dtype: str) -> None:
    """Raise `InputError` if next-token losses of the model with that name are NaN or infinite."""
    if not losses.isfinite().all():
        raise InputError(f"losses of {model} must be finite, got NaN or infinity {_advice(dtype)}")


def refuse_not_finite(
    attention: Float[Tensor, "batch head query *key"], layer: int, dtype: str
) -> None:
    """Raise `InputError` if a layer's patterns, or log-sum-exps of their rows, are not finite.

    Args:
        attention: Values with 0 in the rows of padding.
        layer: Number of the layer.
        dtype: Data type that the model computes in, such as `float16`.
    """
    finite = attention.isfinite()
    if not finite.all():
        head = int((~finite).nonzero()[0, 1])
        raise InputError(
            f"attention must be finite, got NaN or infinity, first in layer {layer}, head {head},"
            f" {_advice(dtype)}"
        )
