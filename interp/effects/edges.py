"""What `interp.effects.paths` finds: edges from earlier heads to later ones, one for each input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError, whole
from interp.heads import Head
from interp.kinds import evidence
from interp.kinds.mass import Tally

if TYPE_CHECKING:
    import pandas as pd

Path = Literal["Q", "K", "V"]
"""Which of a head's inputs: what its queries, its keys or its values are made of."""

Measure = Literal["stripe", "effect"]
"""Attention mass on the induction targets, and what the head adds through them to the answer."""


@dataclass(frozen=True)
class Edge:
    """What a head loses when one of its inputs no longer sees an earlier head's output.

    Attributes:
        source: The earlier head.
        to: The head that is measured.
        path: Which of its inputs: Q, K or V.
        stripe_before: Mean attention mass on the induction targets, in [0, 1], as it is.
        stripe_after: The same without the source.
        stripe_change: Ends of the 95 % interval over rows of after minus before.
        effect_before: What the head adds through those targets to the logit of the right
            next token, less the mean over the vocabulary, in logits.
        effect_after: The same without the source.
        effect_change: As `stripe_change`.
    """

    source: Head
    to: Head
    path: Path
    stripe_before: float
    stripe_after: float
    stripe_change: tuple[float, float]
    effect_before: float
    effect_after: float
    effect_change: tuple[float, float]

    def change(self, measure: str = "stripe") -> float:
        """After minus before."""
        return getattr(self, f"{measure}_after") - getattr(self, f"{measure}_before")

    def record(self) -> dict[str, Any]:
        """For a table or a file: `from`, `to` and `path`, and the numbers by name."""
        numbers = {}
        for measure in get_args(Measure):
            low, high = getattr(self, f"{measure}_change")
            numbers |= {
                f"{measure}_before": getattr(self, f"{measure}_before"),
                f"{measure}_after": getattr(self, f"{measure}_after"),
                f"{measure}_change_low": low,
                f"{measure}_change_high": high,
            }
        return {"from": str(self.source), "to": str(self.to), "path": self.path, **numbers}


def edges_of(
    to: Sequence[Head],
    sources: Sequence[Head],
    before: Mapping[str, Tally],
    after: Mapping[str, Tally],
) -> list[Edge]:
    """Means and intervals of the edges from `sources` to heads of one layer.

    The interval is of the change, row by row: rows differ from each other by far more than one
    row with a head from the same row without it.

    Args:
        to: Heads of one layer.
        sources: Earlier heads.
        before: For each measure its tally over the heads `to`.
        after: The same without a source, over (source, path, head).
    """
    numbers = {}
    for measure, own in before.items():
        without = after[measure]
        change = without.total - repeat(own.total, "row to -> row (n to)", n=3 * len(sources))
        ends = evidence.interval(Tally(change, torch.zeros_like(change), own.queries))
        found = torch.stack([own.mean.repeat(3 * len(sources)), without.mean, *ends])
        found = rearrange(found, "n (s path to) -> to path s n", s=len(sources), path=3)
        numbers[measure] = found.tolist()
    made = []
    for i, head in enumerate(to):
        for j, path in enumerate(get_args(Path)):
            for k, source in enumerate(sources):
                values = {}
                for name in get_args(Measure):
                    was, becomes, low, high = numbers[name][i][j][k]
                    values |= {f"{name}_before": was, f"{name}_after": becomes}
                    values[f"{name}_change"] = low, high
                made.append(Edge(source, head, path, **values))
    return made


@dataclass(frozen=True, eq=False)
class PathEffects:
    """The edges from earlier heads to some heads, and how they were measured.

    Attributes:
        edges: One for each head, path and source, in that order.
        made_by: Model, probe with the token ids that were run, seed and versions.
    """

    edges: tuple[Edge, ...]
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        to = self.to
        names = ", ".join(map(str, to)) if len(to) <= 8 else f"{len(to)} heads"
        name = self.made_by.get("model", "a model")
        edges = f"{len(self.edges)} edges from {len(self.sources)} heads to {names}"
        return f"PathEffects({name}: {edges})"

    @property
    def sources(self) -> list[Head]:
        """Every earlier head, sorted: the rows of `matrix`."""
        return sorted({edge.source for edge in self.edges})

    @property
    def to(self) -> list[Head]:
        """The heads that were measured, in the order asked for: the columns of `matrix`."""
        return list(dict.fromkeys(edge.to for edge in self.edges))

    def matrix(self, path: str, measure: str = "stripe") -> Float[Tensor, "source to"]:
        """After minus before for each of `sources` and of `to`; NaN where none comes earlier.

        Raises:
            InputError: If there is no such path or measure.
        """
        _check("path", path, get_args(Path))
        _check("measure", measure, get_args(Measure))
        rows, columns = ({head: i for i, head in enumerate(h)} for h in (self.sources, self.to))
        changes = torch.full((len(rows), len(columns)), torch.nan)
        for edge in self.edges:
            if edge.path == path:
                changes[rows[edge.source], columns[edge.to]] = edge.change(measure)
        return changes

    def strongest(
        self, to: Head | str, path: str = "K", *, measure: str = "stripe", top: SupportsIndex = 1
    ) -> list[Edge]:
        """The edges to one head whose sources it misses most: the largest fall first.

        Raises:
            InputError: If the head was not measured, there is no such path or measure, `top` is
                no whole number of at least 0, or the stripe is asked for on the path V, which
                leaves it as it is.
        """
        _check("path", path, get_args(Path))
        _check("measure", measure, ("effect",) if path == "V" else get_args(Measure))
        _check("to", Head.parse(to), self.to)
        top = whole("top", top, least=0)
        edges = [edge for edge in self.edges if edge.to == Head.parse(to) and edge.path == path]
        return sorted(edges, key=lambda edge: edge.change(measure))[:top]

    def records(self) -> list[dict[str, Any]]:
        """`Edge.record` of every edge, as JSON takes it."""
        return [edge.record() for edge in self.edges]

    def to_frame(self) -> "pd.DataFrame":
        """A table with one row per edge."""
        import pandas as pd

        return pd.DataFrame.from_records(self.records())


def _check(argument: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise InputError(f"{argument} must be one of {', '.join(map(str, allowed))}, got {value!r}")
