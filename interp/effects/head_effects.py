"""`HeadEffects`: what each head does to a metric, with an interval and what other heads do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.metrics import Metric, name_of
from interp.effects.saved import Saved
from interp.errors import Count, InputError, checked, quoted
from interp.heads import Head
from interp.kinds.evidence import resampled
from interp.kinds.targets import NONE
from interp.models import Model
from interp.scan.record import Record

_DRAWS = 2000
"""Resamples of the prompts for an interval."""

_NUMBERS = ("effect", "low", "high", "random_low", "random_high")


@dataclass(frozen=True, eq=False, repr=False)
class HeadEffects(Saved):
    """The effect of each head on a metric, from `interp.patch` or `interp.ablate`.

    Attributes:
        frame: Table as `to_frame` returns it.
        made_by: Model, prompts as token ids, metric, what was replaced by what, seed, versions.
    """

    frame: pd.DataFrame
    made_by: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        largest = (
            f"{row['name']} {row['effect']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
            for row in self.strongest(3).to_dict("records")
        )
        made = {"model": "a model", "what": "heads", "unit": "", **self.made_by}
        what = f"{made['model']}: {made['what']}, {len(self.frame)} heads"
        return f"HeadEffects({what}, {made['unit']}; strongest: {', '.join(largest)})"

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each head, by layer.

        Columns: `layer`, `head`, `name`; `effect`; `low` and `high`, its 95 % interval over
        prompts (bootstrap); `random_low` and `random_high`, the least and the largest effect of the
        other heads of the same layer. `made_by["unit"]` has the unit.
        """
        return self.frame.copy()

    @checked
    def strongest(self, top: Count = 10) -> pd.DataFrame:
        """The rows of the `top` heads with the largest effects, of either sign."""
        return self.frame.sort_values(
            "effect", key=lambda effect: -effect.abs(), kind="stable"
        ).head(top)

    def matrix(self, column: str = "effect") -> pd.DataFrame:
        """One of the numbers as a table of layers (rows `L0`, ...) by heads (columns `H0`, ...)."""
        if column not in _NUMBERS:
            raise InputError(f"column must be one of {quoted(_NUMBERS)}, got {quoted(column)}")
        table = self.frame.pivot(index="layer", columns="head", values=column)
        table.index = pd.Index([f"L{i}" for i in table.index], name="layer")
        table.columns = pd.Index([f"H{i}" for i in table.columns], name="head")
        return table

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        numbers = self.frame.astype(object).where(self.frame.notna(), None)
        return {"made_by": self.made_by, "heads": numbers.to_dict("records")}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "HeadEffects":
        """The result that `to_json` wrote."""
        columns = ["layer", "head", "name", *_NUMBERS]
        frame = pd.DataFrame(content["heads"], columns=pd.Index(columns))
        return cls(frame.astype(dict.fromkeys(_NUMBERS, float)), content["made_by"])

    @classmethod
    def of(
        cls,
        heads: Sequence[Head],
        chosen: Sequence[Head],
        changes: Float[Tensor, "head row"],
        whole: Float[Tensor, " row"],
        seed: int,
        made_by: dict[str, Any],
    ) -> "HeadEffects":
        """The effects of `chosen`, from the changes of a metric by each of `heads`.

        An effect is the mean change over the mean of `whole`, both over the prompts and over each
        resample of them: a mean of each prompt's ratio would blow up where `whole` is small.
        """
        times = resampled(changes.shape[1], _DRAWS, seed)
        effects = changes.mean(1) / whole.mean()
        drawn = (times @ changes.T) / (times @ whole[:, None])
        ends = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.double), dim=0)
        if changes.shape[1] < 2:
            ends = torch.full_like(ends, torch.nan)
        by_head = dict(zip(heads, zip(effects.tolist(), *ends.tolist())))
        rows = []
        for head in chosen:
            others = [of[0] for h, of in by_head.items() if h.layer == head.layer and h != head]
            band = min(others, default=torch.nan), max(others, default=torch.nan)
            numbers = dict(zip(_NUMBERS, (*by_head[head], *band)))
            rows.append({"layer": head.layer, "head": head.head, "name": str(head), **numbers})
        return cls(pd.DataFrame(rows), made_by)


def record_of(model: Model, metric: Metric, what: str, unit: str, **more: Any) -> dict[str, Any]:
    """How a map was made: what was replaced by what, the unit of an effect, the metric."""
    return Record.of_model(
        model,
        what=what,
        unit=unit,
        metric=name_of(metric),
        interval="95 % of 2000 resamples of the prompts",
        random="least and largest effect of the other heads of the same layer",
        **more,
    )


def ids_as_text(tokens: Int[Tensor, "batch pos"]) -> list[str]:
    """The ids of each prompt as one text."""
    return [" ".join(map(str, row[row != NONE].tolist())) for row in tokens]
