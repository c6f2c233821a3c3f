"""One model's table of heads: a `HeadScan`, and its files."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from interp.errors import InputError, quoted, reading
from interp.files import content_of, staged
from interp.heads import Head
from interp.kinds.kind import KINDS, kind_of, kinds_of
from interp.kinds.labels import HeadLabel
from interp.kinds.scores import STATISTICS
from interp.scan.columns import AT_DISTANCE, EFFECT, SCORED, places, typed
from interp.scan.formats import FORMATS, Format
from interp.scan.record import Record
from interp.text import prose

if TYPE_CHECKING:
    from interp.models import Model

WORDS = [label for kind in kinds_of(causal=True).values() for label in kind.scored_labels]
"""Every label that a score of a causal model gives, the most specific first."""


@dataclass(frozen=True, eq=False)
class HeadScan:
    """A table with one row per head, and the record of how it was made.

    Attributes:
        frame: One row per head. `docs/columns.md` explains every column; the main ones are
            `name` (L5H1), `label`, `labels`, and for each kind `<kind>` (its score, in [0, 1]),
            `<kind>_chance`, `<kind>_low`, `<kind>_high` (95 % interval) and `<kind>_null_99`.
        made_by: Model, token ids of the probes, seed, thresholds and versions; `left_out` has
            the absent columns and why they are absent.
    """

    frame: pd.DataFrame
    made_by: dict[str, Any]

    @classmethod
    def of(
        cls,
        verdicts: Sequence[HeadLabel],
        others: Sequence[dict[str, float]] | None = None,
        made_by: dict[str, Any] | None = None,
    ) -> "HeadScan":
        """Make a table of `verdicts`, such as those of `classify_heads`.

        Args:
            verdicts: One for each head.
            others: Further columns and their values, one dict for each head.
            made_by: Record of how they were made.
        """
        more = [{}] * len(verdicts) if others is None else others
        rows = [{**_row(verdict), **other} for verdict, other in zip(verdicts, more, strict=True)]
        return cls(typed(pd.DataFrame.from_records(rows)), made_by or {})

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {label}" for label, number in self.summary().items())
        name = prose(str(self.made_by.get("model", "patterns")))
        return f"HeadScan({name}: {len(self.frame)} heads: {counts})"

    def _repr_html_(self) -> str:
        return self.strongest().to_html()

    def to_frame(self) -> pd.DataFrame:
        """Copy of the table: one row per head."""
        return self.frame.copy()

    def to_long(self) -> pd.DataFrame:
        """One row per score: `model`, `prompt`, `layer`, `head`, `score`, `value`."""
        scored_on = self.made_by.get("scored_on", {})
        pieces = []
        for column in self.frame.columns:
            score = column.removeprefix("text_")
            far = score.startswith(AT_DISTANCE)
            if score in (*KINDS, *STATISTICS, EFFECT) or far:
                other = "repeated" if far or score == EFFECT else "patterns"
                prompt = scored_on.get(score, other) if score == column else "text"
                piece = self.frame[["layer", "head"]].assign(value=self.frame[column])
                pieces.append(piece.assign(prompt=prompt, score=score))
        long = pd.concat(pieces, ignore_index=True).assign(model=self.made_by.get("model", ""))
        columns = ["model", "prompt", "layer", "head", "score", "value"]
        return long.reindex(columns=columns).dropna().reset_index(drop=True)

    def heads(self, label: str) -> list[Head]:
        """The heads with `label`, alone or among others, the strongest first."""
        return [Head.parse(name) for name in self.having(label)["name"].tolist()]

    def having(self, label: str) -> pd.DataFrame:
        """The rows of the heads with `label`, the strongest first.

        Args:
            label: Label such as `previous token`, or `previous_token`.
        """
        known = {label for labels in self.frame["labels"] for label in labels}
        words = [*WORDS, *(kind.label for kind in KINDS.values() if kind.name in self.frame)]
        words = list(dict.fromkeys([*words, *sorted(known)]))
        label = KINDS[label].label if label in KINDS else label
        if label not in words:
            raise InputError(f"label must be one of {', '.join(words)}, got {quoted(label)}")
        rows = self.frame.loc[[label in labels for labels in self.frame["labels"]]]
        kind = kind_of(label)
        if kind is None or label == kind.forced:
            return rows
        return rows.sort_values(by=[kind.name, "layer", "head"], ascending=[False, True, True])

    def strongest(self, top: int = 3) -> pd.DataFrame:
        """The `top` strongest heads of each label: `label`, `name`, `score`, `chance`."""
        pieces = []
        for label in self.summary():
            rows, kind = self.having(label).head(top), kind_of(label)
            score = kind.name if kind and label in kind.scored_labels else ""
            values = {
                c: rows.get(f"{score}{end}") for c, end in (("score", ""), ("chance", "_chance"))
            }
            pieces.append(rows[["name"]].assign(label=label, **values))
        columns = ["label", "name", "score", "chance"]
        return pd.concat(pieces, ignore_index=True).reindex(columns=columns)

    def by_distance(self) -> dict[int, str]:
        """Names of the columns with the induction score, by distance of the copies in tokens."""
        names = [name for name in self.frame.columns if name.startswith(AT_DISTANCE)]
        return {int(name.removeprefix(AT_DISTANCE)): name for name in names}

    def summary(self) -> dict[str, int]:
        """Number of heads with each label as their first, the most specific label first."""
        counts = Counter(self.frame["label"].tolist())
        words = [label for kind in KINDS.values() for label in kind.scored_labels]
        order = [label for label in words if label in counts]
        return {label: counts[label] for label in [*order, *sorted(set(counts) - set(order))]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a `.csv`, `.parquet` or `.json` file, whole or not at all.

        Parquet and JSON hold `made_by` too; CSV rounds to six decimals. A table that `load`
        would refuse is not written.
        """
        path, form = _format(path)
        frame = typed(self.frame)
        made_by = Record.check(self.made_by, places(frame))
        with staged(path.parent) as scratch:
            form.write(frame, made_by, scratch / path.name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadScan":
        """Read a table that `save` wrote.

        Raises:
            InputError: If a column or entry is absent, outside its range, or contradicts
                another.
        """
        path, form = _format(path)
        content = content_of(path)
        with reading(path, "a table of heads"):
            frame, made_by = form.read(content)
            frame = typed(frame)
            return cls(frame, Record.check(made_by, places(frame)))


def check_scan(scan: HeadScan, model: "Model | str") -> None:
    """Refuse a scan of another model than `model`, or than the one of that name.

    Raises:
        InputError: If the names differ, or the model has other heads.
    """
    name = model if isinstance(model, str) else model.name
    other, heads = scan.made_by.get("model", name), [*scan.frame["name"]]
    if not isinstance(model, str):
        from interp.models import attention_layers

        layers = attention_layers(model, None)
        own = {str(Head(layer, head)) for layer in layers for head in range(model.n_heads)}
        other = other if set(heads) == own else f"{other} with {len(heads)} other heads"
    if other != name:
        raise InputError(f"scan must be of the model, {name}, got one of {prose(other)}")


def _format(path: Any) -> tuple[Path, Format]:
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"path must end in {', '.join(FORMATS)}, got {quoted(path.name)}")
    return path, FORMATS[path.suffix.lower()]


def _row(verdict: HeadLabel) -> dict[str, Any]:
    row: dict[str, Any] = {
        "layer": verdict.head.layer,
        "head": verdict.head.head,
        "name": str(verdict.head),
        "label": verdict.label,
        "labels": list(verdict.labels),
    }
    row |= {kind: verdict.scores.get(kind) for kind in SCORED}
    row |= {f"{kind}_chance": verdict.chance.get(kind) for kind in SCORED}
    for kind in verdict.scores:
        if kind not in SCORED:
            row |= {kind: verdict.scores[kind], f"{kind}_chance": verdict.chance[kind]}
    row |= {name: getattr(verdict, name) for name in STATISTICS}
    row |= {"sink_position": verdict.sink_position, "window": verdict.window}
    row |= {} if verdict.sink_at is None else {"sink_at": verdict.sink_at}
    row["margin"] = verdict.margin
    row["not_measured"] = "; ".join(f"{kind}: {why}" for kind, why in verdict.not_measured.items())
    return row
