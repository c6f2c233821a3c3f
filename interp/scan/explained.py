"""How much of a model's attention the kinds explain, from a scan's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.errors import InputError
from interp.kinds.evidence import ratio_interval
from interp.kinds.explained import QUERIES, START, Explained
from interp.kinds.scores import LayerScores
from interp.text import prose

_NEEDED = ("outside_sinks", "explained", "explained_null", "explained_low")


@dataclass(frozen=True, eq=False)
class ExplainedShare:
    """Share of the attention outside sinks, on natural text, that lands on the kinds' targets.

    Attributes:
        frame: One row per head: `name`, `outside_sinks`, `explained`, `explained_null`, the
            interval, and `explained_by_<kind>` (see `docs/columns.md`).
        share: The model's share, in [0, 1]: that of all heads' attention taken together.
        null: `share` of as many keys drawn evenly.
        low: Lower end of the 95 % interval of `share` over rows; None if it is not known.
        high: Its upper end.
    """

    frame: pd.DataFrame
    share: float
    null: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, frame: pd.DataFrame, made_by: Mapping[str, Any]) -> "ExplainedShare":
        """The share from a scan's table and its record.

        Raises:
            InputError: If the scan did not measure it.
        """
        absent = not {*_NEEDED} <= {*frame.columns}
        if absent or not np.nansum(outside := numbers(frame, "outside_sinks")) > 0:
            why = made_by.get("left_out", {}).get("explained", "got one without these columns")
            raise InputError(
                f"scan must be made with explained=True, on natural text: {prose(why)}"
            )
        share, null = (
            float(np.nansum(outside * numbers(frame, name)) / np.nansum(outside))
            for name in ("explained", "explained_null")
        )
        names = [n for n in frame.columns if n in _NEEDED or n.startswith("explained_")]
        ends = {end: made_by.get("explained", {}).get(end) for end in ("low", "high")}
        return cls(frame.loc[:, ["name", *names]].copy(), share, null, **ends)

    def to_frame(self) -> pd.DataFrame:
        """Copy of the table: one row per head."""
        return self.frame.copy()

    def __repr__(self) -> str:
        ends = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return (
            f"ExplainedShare({self.share:.3f}{ends} of the attention outside sinks, null"
            f" {self.null:.3f}, {len(self.frame)} heads)"
        )


def numbers(frame: pd.DataFrame, name: str) -> Float[np.ndarray, " head"]:
    """A column of numbers; NaN where one is missing."""
    return frame[name].to_numpy(float, na_value=np.nan)


def columns_of(explained: Explained) -> dict[str, list[float]]:
    """The columns of a layer's heads."""
    total = explained.outside.sum(0)
    low, high = ratio_interval(torch.stack([*explained.on.values()]).sum(0), explained.outside)
    return {
        "outside_sinks": (total / explained.queries.sum()).tolist(),
        "explained": explained.share.tolist(),
        "explained_null": explained.null.tolist(),
        "explained_low": low.tolist(),
        "explained_high": high.tolist(),
        **{
            f"explained_by_{kind}": (on.sum(0) / total).tolist()
            for kind, on in explained.on.items()
        },
    }


def record_of(by_layer: Mapping[int, Sequence[LayerScores]]) -> dict[str, int | float]:
    """How it was measured, and the interval of the model's share."""
    layers = [LayerScores.join(batches).explained for batches in by_layer.values()]
    on = [torch.stack([*one.on.values()]).sum((0, -1)) for one in layers if one]
    outside = [one.outside.sum(-1) for one in layers if one]
    low, high = ratio_interval(*(torch.stack(x, -1).sum(-1, True) for x in (on, outside)))[:, 0]
    ends = {} if low.isnan() else {"low": low.item(), "high": high.item()}
    return {"first_query": START, "most_queries": QUERIES, **ends}
