"""Edges from earlier heads to later heads, one for each input: the result of `path_effects`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.saved import Saved
from interp.errors import Count, InputError, checked
from interp.heads import Head
from interp.kinds import evidence
from interp.kinds.mass import Tally

PATHS = ("Q", "K", "V")
"""The inputs of a head: what its queries, its keys and its values are made of."""

MEASURES = ("stripe", "effect")
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
    path: str
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
        numbers = {name: value for name, value in vars(self).items() if name != "source"}
        return {"from": str(self.source), **numbers, "to": str(self.to)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Edge":
        """The edge that `record` wrote."""
        numbers = {name: value for name, value in record.items() if name not in ("from", "to")}
        return cls(Head.parse(record["from"]), Head.parse(record["to"]), **numbers)


def edges_of(
    to: Sequence[Head],
    sources: Sequence[Head],
    queries: Int[Tensor, "measure row"],
    before: Float[Tensor, "measure row to"],
    after: Float[Tensor, "measure row source path to"],
) -> list[Edge]:
    """Means and intervals of the edges from `sources` to heads of one layer.

    The interval is of the change, row by row: rows differ from each other by far more than one
    row with a head differs from the same row without it.

    Args:
        to: Heads of one layer.
        sources: Earlier heads.
        queries: Number of counted queries.
        before: Sum of each measure over those queries.
        after: The same without a source.
    """
    numbers = []
    for number, clean, without in zip(queries, before, after, strict=True):
        change = (without - clean[:, None, None]).flatten(1)
        ends = evidence.interval(Tally(change, torch.zeros_like(change), number))
        means = without.sum(0) / number.sum()
        numbers += [(clean.sum(0) / number.sum()).expand_as(means), means]
        numbers += [end.view_as(means) for end in ends]
    table = torch.stack(numbers, -1)
    return [
        Edge(source, head, path, *table[k, j, i].tolist())
        for i, head in enumerate(to)
        for j, path in enumerate(PATHS)
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
        heads = f"from {len(self.sources)} heads to {', '.join(map(str, self.to))}"
        largest = max(self.edges, key=lambda edge: abs(edge.change()), default=None)
        name = self.made_by.get("model", "a model")
        return f"PathEffects({name}: {len(self.edges)} edges {heads}; largest: {largest})"

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
        _check("path", path, PATHS)
        _check("measure", measure, MEASURES)
        changes = {(e.source, e.to): e.change(measure) for e in self.edges if e.path == path}
        columns = [[changes.get((s, t), torch.nan) for t in self.to] for s in self.sources]
        return torch.tensor(columns)

    @checked
    def strongest(
        self, to: Head | str, path: str = "K", *, measure: str = "stripe", top: Count = 1
    ) -> list[Edge]:
        """The `top` edges to one head, the largest fall first; on the path V only of the effect."""
        head = Head.parse(to)
        _check("path", path, PATHS)
        _check("measure", measure, ("effect",) if path == "V" else MEASURES)
        _check("to", head, self.to)
        edges = [edge for edge in self.edges if (edge.to, edge.path) == (head, path)]
        return sorted(edges, key=lambda edge: edge.change(measure))[:top]

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per edge."""
        return pd.DataFrame([edge.record() for edge in self.edges])

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
