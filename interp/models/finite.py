"""Attention and losses that are no numbers, refused where they are found."""

from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError

_ADVICE = {
    "float32": "weights or activations are no numbers, or too large",
    "bfloat16": "use float32",
}


class NotFinite(InputError):
    """Attention is NaN or infinite: where that is first seen, and what to do.

    Values that are no numbers show in no pattern of their own layer, but in the next one's.
    """

    def __init__(self, layer: int, dtype: str, *, row: int, head: int, query: int) -> None:
        super().__init__(
            f"attention must be finite, got NaN or infinity, first seen in layer {layer}, head"
            f" {head}, query {query}, in {dtype}: {_ADVICE.get(dtype, 'use float32 or bfloat16')}"
        )
        self.layer, self.row, self.head = layer, row, head


def refuse_losses_not_finite(losses: Float[Tensor, "..."], model: str, dtype: str) -> None:
    """Refuse losses that are NaN or infinite.

    Args:
        losses: Of next tokens.
        model: Its name.
        dtype: As for `refuse_not_finite`.

    Raises:
        InputError: If there is any; it says what to do.
    """
    if not losses.isfinite().all():
        raise InputError(
            f"losses of {model} must be finite, and are not in {dtype}:"
            f" {_ADVICE.get(dtype, 'use float32 or bfloat16')}"
        )


def refuse_not_finite(
    attention: Float[Tensor, "batch head query *key"],
    layer: int,
    dtype: str,
) -> None:
    """Refuse NaN and infinity in a layer's patterns, or in the log-sum-exps of their rows.

    Args:
        attention: With 0 in the rows of padding.
        layer: The layer's own number.
        dtype: What the model computes in, such as `float16`.

    Raises:
        NotFinite: If there is any.
    """
    finite = attention.isfinite()
    if not finite.all():
        row, head, query = (~finite).nonzero()[0, :3].tolist()
        raise NotFinite(layer, dtype, row=row, head=head, query=query)
