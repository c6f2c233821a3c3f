"""Edges from earlier heads to later heads, one for each input: the result of `path_effects`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from interp.effects.saved import Saved
from interp.errors import Count, InputError, checked
from interp.heads import Head
from interp.kinds import evidence
from interp.kinds.mass import Tally

if TYPE_CHECKING:
    import pandas as pd

Path = Literal["Q", "K", "V"]
"""An input of a head: what its queries, its keys or its values are made of."""

Measure = Literal["stripe", "effect"]
"""Attention mass on the induction targets, and the head's effect through them on the answer."""


@dataclass(frozen=True)
class Edge:
    """The change of a head when one of its inputs no longer contains an earlier head's output.

    Attributes:
        source: The earlier head.
        to: The head that is measured.
        path: The input of `to`: Q, K or V.
        stripe_before: Mean attention mass on the induction targets, in [0, 1], in the clean run.
        stripe_after: The same without the source.
        stripe_change_low: Lower end of the 95 % interval over rows of after minus before.
        stripe_change_high: Upper end.
        effect_before: Effect of the head through those targets on the logit of the right next
            token, minus its mean effect over the vocabulary, in logits.
        effect_after: The same without the source.
        effect_change_low: As for the stripe.
        effect_change_high: As for the stripe.
    """

    source: Head
    to: Head
    path: Path
    stripe_before: float
    stripe_after: float
    stripe_change_low: float
    stripe_change_high: float
    effect_before: float
    effect_after: float
    effect_change_low: float
    effect_change_high: float

    def __repr__(self) -> str:
        stripe = f"stripe {self.stripe_before:.2f} to {self.stripe_after:.2f}"
        effect = f"effect {self.effect_before:.2f} to {self.effect_after:.2f}"
        return f"Edge({self.source} to {self.to} by {self.path}: {stripe}, {effect})"

    def change(self, measure: str = "stripe") -> float:
        """After minus before."""
        return getattr(self, f"{measure}_after") - getattr(self, f"{measure}_before")

    def record(self) -> dict[str, Any]:
        """The edge as plain values: `from`, `to`, `path`, and the numbers by name."""
        heads = {"from": str(self.source), "to": str(self.to)}
        return heads | {name: value for name, value in vars(self).items() if name not in _HEADS}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Edge":
        """The edge that `record` wrote."""
        numbers = {name: value for name, value in record.items() if name not in ("from", "to")}
        return cls(Head.parse(record["from"]), Head.parse(record["to"]), **numbers)


_HEADS = ("source", "to")


def edges_of(
    to: Sequence[Head],
    sources: Sequence[Head],
    before: Mapping[str, Tally],
    after: Mapping[str, Tally],
) -> list[Edge]:
    """Means and intervals of the edges from `sources` to heads of one layer.

    The interval is of the change, row by row: rows differ from each other by far more than one
    row with a head differs from the same row without it.

    Args:
        to: Heads of one layer.
        sources: Earlier heads.
        before: Tally of each measure over the heads `to`.
        after: The same without a source, over (source, path, head).
    """
    numbers = {}
    for measure in get_args(Measure):
        clean, without = before[measure], after[measure]
        change = without.total - repeat(clean.total, "row to -> row (n to)", n=3 * len(sources))
        ends = evidence.interval(Tally(change, torch.zeros_like(change), clean.queries))
        columns = torch.stack([clean.mean.repeat(3 * len(sources)), without.mean, *ends])
        columns = rearrange(columns, "n (s path to) -> to path s n", s=len(sources), path=3)
        numbers[measure] = columns.tolist()
    return [
        Edge(source, head, path, *numbers["stripe"][i][j][k], *numbers["effect"][i][j][k])
        for i, head in enumerate(to)
        for j, path in enumerate(get_args(Path))
        for k, source in enumerate(sources)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class PathEffects(Saved):
    """The edges from earlier heads to some heads, and how they were measured.

    Attributes:
        edges: One for each head, path and source, in that order.
        made_by: Model, probe with the token ids that were run, seed and versions.
    """

    edges: tuple[Edge, ...] = ()
    made_by: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        to = self.to
        names = ", ".join(map(str, to)) if len(to) <= 8 else f"{len(to)} heads"
        name = self.made_by.get("model", "a model")
        text = f"{name}: {len(self.edges)} edges from {len(self.sources)} heads to {names}"
        if self.edges:
            text += f"; largest: {max(self.edges, key=lambda edge: abs(edge.change()))}"
        return f"PathEffects({text})"

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def sources(self) -> list[Head]:
        """Every earlier head, sorted: the rows of `matrix`."""
        return sorted({edge.source for edge in self.edges})

    @property
    def to(self) -> list[Head]:
        """The heads that were measured, in the order asked for: the columns of `matrix`."""
        return list(dict.fromkeys(edge.to for edge in self.edges))

    def matrix(self, path: str, measure: str = "stripe") -> Float[Tensor, "source to"]:
        """After minus before for each of `sources` and of `to`; NaN where no edge is possible."""
        _check("path", path, get_args(Path))
        _check("measure", measure, get_args(Measure))
        rows, columns = ({head: i for i, head in enumerate(h)} for h in (self.sources, self.to))
        changes = torch.full((len(rows), len(columns)), torch.nan)
        for edge in self.edges:
            if edge.path == path:
                changes[rows[edge.source], columns[edge.to]] = edge.change(measure)
        return changes

    @checked
    def strongest(
        self, to: Head | str, path: str = "K", *, measure: str = "stripe", top: Count = 1
    ) -> list[Edge]:
        """The `top` edges to one head, the largest fall first.

        Raises:
            InputError: If the head was not measured, or the stripe is asked for on the path V,
                which does not change it.
        """
        _check("path", path, get_args(Path))
        _check("measure", measure, ("effect",) if path == "V" else get_args(Measure))
        _check("to", Head.parse(to), self.to)
        edges = [edge for edge in self.edges if edge.to == Head.parse(to) and edge.path == path]
        return sorted(edges, key=lambda edge: edge.change(measure))[:top]

    def to_frame(self) -> "pd.DataFrame":
        """A table with one row per edge."""
        import pandas as pd

        return pd.DataFrame.from_records([edge.record() for edge in self.edges])

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        return {"made_by": self.made_by, "edges": [edge.record() for edge in self.edges]}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "PathEffects":
        """The result that `to_json` wrote."""
        return cls(tuple(map(Edge.of_record, content["edges"])), content["made_by"])


def _check(argument: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise InputError(f"{argument} must be one of {', '.join(map(str, allowed))}, got {value!r}")
