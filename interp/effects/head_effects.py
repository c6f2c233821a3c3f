"""`HeadEffects`: what each head does to a metric, with an interval and what other heads do."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.saved import Saved
from interp.errors import Count, InputError, checked, quoted
from interp.files import plain_rows
from interp.heads import Head
from interp.kinds.evidence import ratio_interval
from interp.kinds.targets import NONE

_ROWS = 1000
"""Rows whose resamples are in memory at once."""

_WIDTH = 1.96 * 1.4826
"""Half of a band that holds 95 % of a normal distribution, in median absolute deviations."""

_LEAST = 8
"""Rows that a band needs."""

_NAMES = ("layer", "head", "name", "heads", "what", "position", "given")
_NUMBERS = ("effect", "low", "high", "random_low", "random_high", "exact")


@dataclass(frozen=True, eq=False, repr=False)
class HeadEffects(Saved):
    """The effect of each head on a metric, from `interp.patch` or `interp.ablate`.

    Attributes:
        frame: Table as `to_frame` returns it.
        made_by: Model, prompts as token ids, metric, what was replaced by what, seed, versions.

    Example:
        >>> import interp, torch
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.ablate(toy, torch.tensor([[0, 5, 6, 7, 5]]), metric, how="zero")
        >>> effects.matrix().shape
        (2, 8)
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
        about = f"{what}, {made['unit']}; strongest: {', '.join(largest)}"
        if (checked := made.get("agreement")) and checked["pearson"] is not None:
            correlated = f"correlation {checked['pearson']:.2f}, of ranks {checked['spearman']:.2f}"
            about += f"; next to exact patching of the top {checked['heads']}: {correlated}"
        return f"HeadEffects({about})"

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each head, by layer.

        Columns: `layer`, `head`, `name`; `what` was replaced and at which `position`, if the map
        has them; `effect`; `low` and `high`, its 95 % interval over prompts (bootstrap);
        `random_low` and `random_high`, the band of other heads; of `interp.attribute` also `exact`,
        the effect by patching. `made_by["unit"]` has the unit. Sets of heads have `name` and
        `heads` instead of a layer and a head. `interp.ablate` with `given` adds `alone`, `backup`
        and the interval and band of `backup`; its bands are the least and the largest effect of
        random other heads of the same layers.

        Of a patch the band is that of an ordinary head. Most heads do nothing in a task, so the
        bulk of a map shows which effects occur where there is nothing to find: an empirical null
        (Efron 2004). The band is the median effect of all heads that were measured (at that
        position), and 1.96 robust standard deviations to either side, which are 1.4826 median
        absolute deviations. One ordinary head in 20 lies outside. With fewer than 8 heads there is
        no band.
        """
        return self.frame.copy()

    @checked
    def strongest(self, top: Count = 10) -> pd.DataFrame:
        """The rows of the `top` heads with the largest effects, of either sign."""
        return self.frame.sort_values(
            "effect", key=lambda effect: -effect.abs(), kind="stable"
        ).head(top)

    def matrix(self, column: str = "effect") -> pd.DataFrame:
        """One of the numbers as a table.

        Of layers (rows `L0`, ...) by heads (columns `H0`, ...); or with several positions, of
        heads (rows `L0H0`, ...) by positions (columns 0, ...).
        """
        numbers = [*self.frame.select_dtypes("float")]
        if "layer" not in self.frame:
            raise InputError("effects must be of single heads for a matrix, got sets: use to_frame")
        if column not in numbers:
            raise InputError(f"column must be one of {quoted(numbers)}, got {quoted(column)}")
        if "position" in self.frame and len(set(self.frame["position"])) > 1:
            table = self.frame.pivot(index="name", columns="position", values=column)
            return table.loc[[*dict.fromkeys(self.frame["name"])]]
        table = self.frame.pivot(index="layer", columns="head", values=column)
        table.index = pd.Index([f"L{i}" for i in table.index], name="layer")
        table.columns = pd.Index([f"H{i}" for i in table.columns], name="head")
        return table

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        return {"made_by": self.made_by, "heads": plain_rows(self.frame)}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "HeadEffects":
        """The result that `to_json` wrote."""
        frame = pd.DataFrame(content["heads"])
        numbers = {name: float for name in frame if name not in _NAMES}
        return cls(frame.astype(numbers), content["made_by"])

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        changes: Float[Tensor, "row prompt"],
        whole: Float[Tensor, " prompt"],
        seed: int,
        made_by: dict[str, Any],
        kept: Sequence[bool] | None = None,
        band: Float[Tensor, "end=2 row"] | None = None,
    ) -> "HeadEffects":
        """Effects from the changes of a metric; each of `rows` says what changed, by column.

        An effect is the mean change over the mean of `whole`, both over the prompts and over each
        resample of them: a mean of each prompt's ratio would blow up where `whole` is small. Rows
        that are not `kept` only take part in the band of the others, unless a `band` is given.
        """
        parts = [ratio_interval(x.T, whole[:, None], seed=seed) for x in changes.split(_ROWS)]
        effects = changes.mean(1) / whole.mean()
        if band is None:
            band = _band(effects, torch.tensor([row.get("position", 0) for row in rows]))
        table = torch.stack([effects, *torch.cat(parts, 1), *band], 1).tolist()
        kept = [True] * len(rows) if kept is None else kept
        shown = itertools.compress(zip(rows, table, strict=True), kept)
        return cls(pd.DataFrame([{**row, **dict(zip(_NUMBERS, x))} for row, x in shown]), made_by)


def _band(
    effects: Float[Tensor, " row"], position: Int[Tensor, " row"]
) -> Float[Tensor, "end row"]:
    """The lower and the upper end of the band of an ordinary head, at the position of each row."""
    ends = torch.full((2, len(effects)), torch.nan, dtype=effects.dtype)
    for at in position.unique():
        there = effects[position == at]
        if len(there) >= _LEAST:
            middle = there.quantile(0.5)
            half = _WIDTH * (there - middle).abs().quantile(0.5)
            ends[:, position == at] = torch.stack([middle - half, middle + half])[:, None]
    return ends


def row_of(head: Head, **more: Any) -> dict[str, Any]:
    """The columns that say which head a row is about, and `more`."""
    return {"layer": head.layer, "head": head.head, "name": str(head), **more}


def ids_as_text(tokens: Int[Tensor, "batch pos"]) -> list[str]:
    """The ids of each prompt as one text."""
    return [" ".join(map(str, row[row != NONE].tolist())) for row in tokens]
