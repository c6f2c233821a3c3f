"""NaN and infinity in attention and losses, refused where they first appear."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError

_ADVICE = {"float32": "weights or activations are NaN, infinite or too large"}
_ADVICE |= {"bfloat16": "use float32"}


def refuse_not_finite(values: Float[Tensor, "..."], model: Any, layer: int | None = None) -> None:
    """Raise `InputError` if losses of a `Model`, or a layer's attention, are NaN or infinite.

    Attention is `[batch, head, ...]`: patterns or log-sum-exps, with 0 in the rows of padding.
    """
    finite = values.isfinite()
    if finite.all():
        return
    what, where = f"losses of {model.name}", ""
    if layer is not None:
        head = int((~finite).nonzero()[0, 1])
        what, where = "attention", f", first in layer {layer}, head {head},"
    advice = _ADVICE.get(model.dtype_name, "use float32 or bfloat16")
    raise InputError(
        f"{what} must be finite, got NaN or infinity{where} in {model.dtype_name}: {advice}"
    )
