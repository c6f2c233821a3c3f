"""Which positions of a prompt count in its scores."""

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Int
from pydantic import Field, TypeAdapter
from torch import Tensor

from interp.errors import InputError, Whole, validated
from interp.kinds.targets import NONE

_PLACES = TypeAdapter(list[Annotated[Whole, Field(ge=0)]])

ALL = "all"
"""For `positions`: every position, those of a chat template too."""


def counted_positions(
    positions: Any,
    tokens: Int[Tensor, "batch pos"],
    template: Bool[Tensor, "batch pos"] | None = None,
) -> Bool[Tensor, "batch pos"]:
    """Which positions of `tokens` count, where there is no padding.

    Args:
        positions: None for all but those of the chat template; `all`; or the positions that count,
            from the first token of a row: a slice, numbers, or a bool for each token. One of these
            for all rows, or a list of one for each row.
        tokens: Token ids; -1 is padding.
        template: Positions of a chat template.

    Example:
        >>> counted_positions([slice(1, None), [0, 2]], torch.tensor([[5, 6, -1], [7, 8, 9]]))
        tensor([[False,  True, False],
                [ True, False,  True]])
    """
    added = torch.zeros_like(tokens, dtype=torch.bool) if template is None else template
    rows = zip(by_row(positions, len(tokens)), tokens != NONE, added.to(tokens.device), strict=True)
    return torch.stack([counted_in_row(*row) for row in rows])


def counted_in_row(
    positions: Any, real: Bool[Tensor, " pos"], template: Bool[Tensor, " pos"]
) -> Bool[Tensor, " pos"]:
    """`counted_positions` of one row, whose tokens are `real` where they are no padding."""
    places = real.nonzero()[:, 0]
    if positions is None:
        return real & ~template
    if isinstance(positions, str) and positions == ALL:
        return real
    chosen: Any = range(len(places))[positions] if isinstance(positions, slice) else positions
    chosen = chosen.tolist() if hasattr(chosen, "tolist") else chosen
    chosen = [*chosen] if isinstance(chosen, list | tuple | range) else chosen
    if chosen and isinstance(chosen, list) and all(isinstance(one, bool) for one in chosen):
        if len(chosen) == len(real):  # Padding has a bool too.
            return real & torch.tensor(chosen, device=real.device)
        if len(chosen) != len(places):
            got = f"{len(places)} tokens, got {len(chosen)}"
            raise InputError(f"positions must have a bool for each of {got}")
        chosen = [place for place, counts in enumerate(chosen) if counts]
    numbers = validated("positions", chosen, _PLACES)
    if numbers and max(numbers) >= len(places):
        raise InputError(f"positions must be below {len(places)}, got {max(numbers)}")
    return torch.zeros_like(real).index_fill(0, places[numbers], True)


def by_row(positions: Any, rows: int) -> list[Any]:
    """`positions` of each row; those of one row count for all."""
    positions = positions.tolist() if hasattr(positions, "tolist") else positions
    several = isinstance(positions, list | tuple) and len(positions) > 0
    if not several or not all(map(_of_row, positions)):
        return [positions] * rows
    if len(positions) != rows:
        raise InputError(f"positions must be for each of {rows} rows, got {len(positions)}")
    return [*positions]


def _of_row(value: Any) -> bool:
    of_many = isinstance(value, str | slice | range | list | tuple) or getattr(value, "ndim", 0) > 0
    return value is None or of_many
