"""Checks of operands for which torch would return a wrong number without an error.

torch broadcasts axes of size 1 in silence, and a softmax or a weighted mean turns some overflows
into ordinary numbers. Other mistakes fail in torch's own words.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import InputError


def check_shapes(q: Tensor, k: Tensor, v: Tensor | None = None) -> None:
    """Refuse operands that torch would broadcast: keys must match queries, values the keys.

    Args:
        q: Queries `[*lead, query, d_k]`.
        k: Keys `[*lead, key, d_k]`.
        v: Values `[*lead, key, d_value]`.
    """
    for name, x, shape in (
        ("k", k, (*q.shape[:-2], k.shape[-2], q.shape[-1])),
        ("v", v, (*k.shape[:-1], -1 if v is None else v.shape[-1])),
    ):
        if x is not None and x.shape != shape:
            raise InputError(f"{name} must have shape {shape}, got {tuple(x.shape)}")


def group_size(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Number of query heads that share a key-value head, if the shapes fit.

    Args:
        q: Queries `[batch, head, query, d_k]`.
        k: Keys `[batch, kv_head, key, d_k]`.
        v: Values `[batch, kv_head, key, d_value]`.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % kv_heads:
        raise InputError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    check_shapes(q[:, :kv_heads], k, v)
    return heads // kv_heads


def check_precise(**tensors: Tensor) -> None:
    """Refuse half precision: a reference must not round that much."""
    for name, x in tensors.items():
        if x.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{name} must be float32 or float64, got {x.dtype}")


def check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean or would broadcast the scores to another shape."""
    sizes = zip(reversed(mask.shape), reversed(shape))
    fits = mask.ndim <= len(shape) and all(size in (1, full) for size, full in sizes)
    if mask.dtype != torch.bool or not fits:
        raise InputError(
            f"mask must be boolean and broadcast to [..., query, key] of {shape},"
            f" got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def refuse_empty(empty: Bool[Tensor, "..."]) -> None:
    """Refuse queries that may attend to no key."""
    if empty.any():
        raise InputError(
            "mask must allow every query a key, unless allow_empty is set,"
            f" got no key for the query at {_first(empty)}"
        )


def refuse_overflow(
    scores: Float[Tensor, "*lead query key"], mask: Bool[Tensor, "..."] | None
) -> None:
    """Refuse allowed scores of finite queries and keys that overflow their type."""
    lost = ~scores.isfinite()
    if mask is not None:
        lost = lost & mask.to(lost.device)
    if lost.any():
        at = _first(lost)
        raise InputError(
            f"scores must be in the range of {str(scores.dtype).removeprefix('torch.')},"
            f" got {scores[at].item()} at {at}: q, k or scale is too large"
        )


def without_hidden(
    name: str, x: Float[Tensor, "*lead row width"], seen: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*lead row width"]:
    """`x` with zeros in the hidden rows that are not finite, since NaN times a weight of 0 is NaN.

    Args:
        name: The argument's name.
        x: Queries, keys or values.
        seen: Rows that any score needs, broadcasting to `[..., row]`; None: all.

    Raises:
        InputError: If a row that is seen is not finite.
    """
    finite = x.isfinite().all(-1)
    if finite.all():
        return x
    lost = ~finite if seen is None else ~finite & seen.to(x.device)
    if lost.any():
        raise InputError(
            f"{name} must be finite where it is seen, got NaN or inf at {_first(lost)}"
        )
    return x.where(finite[..., None], 0)


def _first(where: Bool[Tensor, "..."]) -> tuple[int, ...]:
    return tuple(where.nonzero()[0].tolist())
