"""What the functions of attention are handed, and the one place that refuses what will not do."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import InputError, is_number, whole

PRECISE = (torch.float32, torch.float64)


def check_tensor(name: str, x: Any, axes: str) -> None:
    """Refuse what is no tensor of real numbers with these axes, each of at least 1.

    Args:
        name: What the caller calls it.
        x: What was given.
        axes: Their names, separated by spaces; `...` first stands for any number of them.

    Raises:
        InputError: If it is not.

    Example:
        >>> check_tensor("q", torch.ones(3), "... query d_k")
        Traceback (most recent call last):
        interp.errors.InputError: q must be [..., query, d_k], got shape (3,)
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a torch tensor, got a {type(x).__name__}")
    if x.layout != torch.strided or x.is_quantized or x.is_meta or x.is_complex():
        raise InputError(
            f"{name} must be real numbers, got a tensor that is complex, sparse, rounded or without"
            " its numbers"
        )
    wanted, shape = axes.split(), tuple(x.shape)
    several = wanted[0] == "..."
    if len(shape) < len(wanted) - 1 if several else len(shape) != len(wanted):
        raise InputError(f"{name} must be [{', '.join(wanted)}], got shape {shape}")
    if shape[-1] == 0:
        raise InputError(f"{name} must have {wanted[-1]} of at least 1, got shape {shape}")
    if 0 in shape:
        raise InputError(f"{name} must have no empty axis, got shape {shape}")


def check_queries_and_keys(q: Any, k: Any, *, lead: str = "...") -> None:
    """Refuse queries and keys that cannot be compared.

    Args:
        q: Queries.
        k: Keys.
        lead: The axes before the last two.

    Raises:
        InputError: If one is no tensor with these axes, or keys are not as wide as queries.
    """
    check_tensor("q", q, f"{lead} query d_k")
    check_tensor("k", k, f"{lead.replace('head', 'kv_head')} key d_k")
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"k must be as wide as q, {q.shape[-1]}, got {k.shape[-1]}")


def check_values(k: Tensor, v: Any) -> None:
    """Refuse values of which there is not one for each key.

    Raises:
        InputError: If there is not.
    """
    check_tensor("v", v, "... key d_value")
    if k.shape[:-1] != v.shape[:-1]:
        raise InputError(
            f"v must have a row for each of k's, {tuple(k.shape[:-1])}, got {tuple(v.shape[:-1])}"
        )


def check_heads(q: Any, k: Any, v: Any) -> int:
    """How many query heads share a key-value head, if q, k and v fit together by head.

    Raises:
        InputError: If they do not.
    """
    check_queries_and_keys(q, k, lead="batch head")
    check_values(k, v)
    if len(q) != len(k):
        raise InputError(f"k must have as many rows as q, {len(q)}, got {len(k)}")
    return group_size(q.shape[1], k.shape[1])


def check_precise(**tensors: Tensor) -> None:
    """Refuse numbers that are not all float32 or all float64.

    Raises:
        InputError: If they are not.
    """
    first, *_ = tensors.values()
    for name, x in tensors.items():
        if x.dtype not in PRECISE:
            raise InputError(f"{name} must be float32 or float64, got {x.dtype}")
        if x.dtype != first.dtype:
            raise InputError(f"{name} must be {first.dtype} like the others, got {x.dtype}")


def check_mask(mask: Any, shape: tuple[int, ...]) -> None:
    """Refuse what is no mask for scores of this shape.

    Raises:
        InputError: If it is not boolean, or does not broadcast to `[..., query, key]`.
    """
    if not isinstance(mask, Tensor):
        raise InputError(f"mask must be a torch tensor, got a {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, True where allowed, got {mask.dtype}")
    fits = mask.ndim <= len(shape) and all(
        size in (1, full) for size, full in zip(reversed(mask.shape), reversed(shape))
    )
    if not fits:
        raise InputError(
            f"mask must broadcast to [..., query, key] of {shape}, got shape {tuple(mask.shape)}"
        )


def check_number(name: str, value: Any, *, positive: bool = False) -> None:
    """Refuse what is no finite number, and what is not above 0 where it has to be.

    Raises:
        InputError: If it is not.
    """
    if not is_number(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    if positive and value <= 0:
        raise InputError(f"{name} must be above 0, got {value}")


def check_window(window: Any) -> int:
    """A window as a number, if a query at least sees itself in it.

    Raises:
        InputError: If it is no whole number of at least 1.
    """
    return whole("window", window, least=1)


def group_size(heads: int, kv_heads: int) -> int:
    """How many query heads share a key-value head.

    Raises:
        InputError: If they do not divide evenly.
    """
    kv_heads = whole("kv_heads", kv_heads, least=1)
    if whole("heads", heads, least=1) % kv_heads:
        raise InputError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    return heads // kv_heads


def refuse_empty(empty: Bool[Tensor, "..."]) -> None:
    """Refuse queries with nothing allowed, and name the first.

    Raises:
        InputError: If there is one.
    """
    if empty.any():
        raise InputError(
            "mask must allow every query a key, unless allow_empty is set,"
            f" got none for the query at {_first(empty)}"
        )


def refuse_overflow(
    scores: Float[Tensor, "*lead query key"], mask: Bool[Tensor, "..."] | None
) -> None:
    """Refuse scores of finite queries and keys that are beyond what their type can hold.

    Raises:
        InputError: If a score that `mask` allows is not finite.
    """
    lost = ~scores.isfinite()
    if lost.any() and mask is not None:
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
    """`x` with 0 in the place of rows that are not finite, if no one may see them.

    NaN times a weight of 0 is NaN: what a mask hides has to be taken out to contribute nothing.

    Args:
        name: What the caller calls it.
        x: Queries, keys or values.
        seen: Which rows any score needs, broadcasting to `[..., row]`; None: all.

    Raises:
        InputError: If a row that is seen is not finite.
    """
    finite = x.isfinite().all(-1)
    if finite.all():
        return x
    shown = ~finite if seen is None else ~finite & seen.to(x.device)
    if shown.any():
        at = _first(shown)
        value = next(number for number in x[at].tolist() if not math.isfinite(number))
        raise InputError(f"{name} must be finite where it is seen, got {value} at {at}")
    return x.where(finite[..., None], 0)


def _first(where: Bool[Tensor, "..."]) -> tuple[int, ...]:
    return tuple(where.nonzero()[0].tolist())
