"""A number for each head, from whatever has one: results, tables, arrays, mappings."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from interp.effects.head_effects import HeadEffects
from interp.errors import InputError, quoted
from interp.heads import Head
from interp.scan.table import HeadScan


def values_of(values: Any, column: str | None = None) -> dict[Head, float]:
    """The number of each head, without those that are missing.

    Args:
        values: A `HeadEffects`, a `HeadScan`, a table with the columns `layer` and `head`, a table
            of layers by heads, an array `[layer, head]`, or a mapping from heads to numbers.
        column: Column of a result or a table with a row a head; `effect` if left out.

    Example:
        >>> values_of([[0.5, float("nan")], [0.0, -1.0]])
        {L0H0: 0.5, L1H0: 0.0, L1H1: -1.0}
    """
    if isinstance(values, HeadEffects | HeadScan):
        values = values.to_frame()
    if isinstance(values, Mapping):
        pairs = [(Head.parse(head), value) for head, value in values.items()]
    elif isinstance(values, pd.DataFrame) and {"layer", "head"} <= {*values.columns}:
        column = column or "effect"
        if column not in values or not pd.api.types.is_numeric_dtype(values[column]):
            raise InputError(f"column must be one of numbers in values, got {quoted(column)}")
        heads = zip(values["layer"].tolist(), values["head"].tolist(), strict=True)
        pairs = [(Head(*at), value) for at, value in zip(heads, values[column], strict=True)]
    else:
        rows = columns = None
        if isinstance(values, pd.DataFrame):
            named = [[str(n).lstrip("LH") for n in axis] for axis in (values.index, values.columns)]
            if not all(n.isdecimal() for axis in named for n in axis):
                raise InputError("values must be of single heads, got a table of something else")
            rows, columns = ([int(n) for n in axis] for axis in named)
        table = np.asarray(values, dtype=float)
        if table.ndim != 2:
            raise InputError(f"values must be [layer, head], got {table.shape}")
        down, across = rows or range(table.shape[0]), columns or range(table.shape[1])
        pairs = [(Head(i, j), x) for i, row in zip(down, table) for j, x in zip(across, row)]
    if len(dict(pairs)) < len(pairs):
        raise InputError("values must be one for each head, got several: choose a position first")
    found = {head: float(value) for head, value in pairs if not pd.isna(value)}
    if not found or not np.isfinite([*found.values()]).all():
        raise InputError(f"values must be finite numbers, got {quoted([*found.values()][:3])}")
    return found
