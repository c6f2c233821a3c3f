"""Edges from earlier parts to a head: `Edge`, and `PathEffects`, the result of `path_effects`."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from interp.effects.saved import Saved
from interp.errors import Count, InputError, checked, quoted
from interp.heads import AnyHead, Head

PATHS = ("Q", "K", "V")
"""The inputs of a head: what its queries, its keys and its values are made of."""

MEASURES = ("stripe", "effect")
"""Attention mass on the induction targets, and the head's effect through them on the answer."""

METRIC = "metric"
"""What is measured on prompts of your own, in place of `MEASURES`."""


class Part(NamedTuple):
    """What writes to the stream and is no head: the `embedding`, or what else `L3 MLP` adds.

    It sorts after the heads of its layer; the embedding has layer -1.
    """

    layer: int
    place: float = math.inf

    def __repr__(self) -> str:
        return "embedding" if self.layer < 0 else f"L{self.layer} MLP"

    __str__ = __repr__

    @classmethod
    def named(cls, text: Any) -> "Part | None":
        """The part that `text` names; None for anything else."""
        if isinstance(text, cls) or text == "embedding":
            return text if isinstance(text, cls) else cls(-1)
        found = re.fullmatch(r"L(\d{1,9}) MLP", text) if isinstance(text, str) else None
        return cls(int(found[1])) if found else None


def parsed_source(text: Any) -> Head | Part:
    """The head or part that `text` names."""
    return Part.named(text) or Head.parse(text)


@dataclass(frozen=True)
class Edge:
    """The change of a head when one of its inputs no longer contains an earlier part.

    Attributes:
        source: The earlier head, or the embedding or an MLP, a `Part`.
        to: The head that is measured.
        path: The input of `to`: Q, K or V.
        stripe_before: Mean attention mass on the induction targets, in [0, 1], in the clean run.
        stripe_after: The same without the source.
        stripe_change_low, stripe_change_high: 95 % interval over rows of after minus before.
        effect_before: Effect of the head through those targets on the logit of the right next
            token, minus its mean effect over the vocabulary, in logits.
        effect_after: The same without the source.
        effect_change_low, effect_change_high: As for the stripe.
        metric_before: Mean of a metric of your own over your prompts, in its unit.
        metric_after: The same with the changed input.
        metric_change_low, metric_change_high: 95 % interval over prompts, NaN for a single one.

    What was not measured is NaN: with a metric all else, without one the metric.
    """

    source: Head | Part
    to: Head
    path: str
    stripe_before: float = math.nan
    stripe_after: float = math.nan
    stripe_change_low: float = math.nan
    stripe_change_high: float = math.nan
    effect_before: float = math.nan
    effect_after: float = math.nan
    effect_change_low: float = math.nan
    effect_change_high: float = math.nan
    metric_before: float = math.nan
    metric_after: float = math.nan
    metric_change_low: float = math.nan
    metric_change_high: float = math.nan

    def __repr__(self) -> str:
        numbers = vars(self)
        changes = (
            f"{m} {numbers[f'{m}_before']:.2f} to {numbers[f'{m}_after']:.2f}"
            for m in self.measures
        )
        return f"Edge({self.source} to {self.to} by {self.path}: {', '.join(changes)})"

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured: `MEASURES` or the metric."""
        return MEASURES if math.isnan(self.metric_before) else (METRIC,)

    def change(self, measure: str | None = None) -> float:
        """After minus before; of the first of `measures` if left out."""
        measure = measure or self.measures[0]
        return getattr(self, f"{measure}_after") - getattr(self, f"{measure}_before")

    def record(self) -> dict[str, Any]:
        """The edge as plain values: `from`, `to`, `path`, and the measured numbers by name."""
        names = {"from": str(self.source), "to": str(self.to), "path": self.path}
        numbers = {n: v for n, v in vars(self).items() if n.partition("_")[0] in self.measures}
        return {**names, **{n: None if math.isnan(v) else v for n, v in numbers.items()}}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Edge":
        """The edge that `record` wrote."""
        names = ("from", "to", "path")
        numbers = {n: math.nan if v is None else v for n, v in record.items() if n not in names}
        source, to = parsed_source(record["from"]), Head.parse(record["to"])
        return cls(source, to, record["path"], **numbers)


@dataclass(frozen=True, eq=False, repr=False)
class PathEffects(Saved):
    """The edges from earlier heads to some heads, and how they were measured.

    Attributes:
        edges: One for each head, path and source, in that order.
        made_by: Model, token ids that were run, metric, replacement, seed and versions.
    """

    edges: tuple[Edge, ...] = ()
    made_by: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        sources = {edge.source for edge in self.edges}
        heads = f"from {len(sources)} sources to {', '.join(map(str, self.to))}"
        largest = max(self.edges, key=lambda edge: abs(edge.change()), default=None)
        name = self.made_by.get("model", "a model")
        return f"PathEffects({name}: {len(self.edges)} edges {heads}; largest: {largest})"

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    @property
    def to(self) -> list[Head]:
        """The heads that were measured, in the order asked for."""
        return list(dict.fromkeys(edge.to for edge in self.edges))

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured: `MEASURES` or the metric."""
        return self.edges[0].measures if self.edges else MEASURES

    @checked
    def strongest(
        self, to: AnyHead, path: str = "K", *, measure: str | None = None, top: Count = 1
    ) -> list[Edge]:
        """The `top` edges to one head, the largest fall first.

        If left out, the measure is the metric, the stripe, or on the path V, which leaves the
        stripe as it is, the effect.
        """
        head, measure = Head.parse(to), self._measure(path, measure)
        if head not in self.to:
            raise InputError(f"to must be one of {quoted(self.to)}, got {quoted(head)}")
        edges = [edge for edge in self.edges if (edge.to, edge.path) == (head, path)]
        return sorted(edges, key=lambda edge: edge.change(measure))[:top]

    def matrix(self, path: str = "K", measure: str | None = None) -> pd.DataFrame:
        """The changes on one path, after minus before: sources (rows) by the heads that read them.

        NaN where the source is not in an earlier layer. `measure` as for `strongest`.
        """
        measure = self._measure(path, measure)
        edges = [edge for edge in self.edges if edge.path == path]
        rows = [(str(edge.source), str(edge.to), edge.change(measure)) for edge in edges]
        table = pd.DataFrame(rows, columns=pd.Index(["source", "to", "change"]))
        sources, to = sorted({edge.source for edge in edges}), self.to
        table = table.pivot(index="source", columns="to", values="change")
        return table.loc[[*map(str, sources)], [*map(str, to)]]

    def _measure(self, path: str, measure: str | None) -> str:
        """The measure that is asked for, if it was measured on the path."""
        known = tuple(name for name in self.measures if (path, name) != ("V", "stripe"))
        measure = measure or known[0]
        for name, value, choice in (("path", path, PATHS), ("measure", measure, known)):
            if value not in choice:
                raise InputError(f"{name} must be one of {quoted(choice)}, got {quoted(value)}")
        return measure

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per edge."""
        frame = pd.DataFrame([edge.record() for edge in self.edges])
        return frame.infer_objects().fillna(math.nan)

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        return {"made_by": self.made_by, "edges": [edge.record() for edge in self.edges]}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "PathEffects":
        """The result that `to_json` wrote."""
        return cls(tuple(map(Edge.of_record, content["edges"])), content["made_by"])
