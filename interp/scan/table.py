"""One model's table of heads: a `HeadScan`, and its files."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from interp.errors import InputError, quoted, reading
from interp.files import content_of, parsed, plain_rows, staged, write_json
from interp.heads import Head
from interp.kinds.builtin import as_kinds, kind_of, kinds_in, kinds_of
from interp.kinds.kind import Kind
from interp.kinds.labels import MIXED, HeadLabel
from interp.kinds.scores import STATISTICS, Thresholds
from interp.scan.columns import AT_DISTANCE, COLUMNS, SCORED, places, typed
from interp.scan.explain import left_out, sentences
from interp.scan.explained import ExplainedShare
from interp.scan.record import Record, check_made_by
from interp.text import prose

if TYPE_CHECKING:
    from interp.models import Model

ENDINGS = (".csv", ".parquet", ".json")
SCHEMA_VERSION = 1
_TEXT = {column.name: pa.string() for column in COLUMNS if "text" in column.type}


@dataclass(frozen=True, eq=False)
class HeadScan:
    """A table with one row per head, and the record of how it was made.

    Attributes:
        frame: One row per head. `docs/columns.md` explains every column; the main ones are
            `name` (L5H1), `label`, `labels`, and for each kind `<kind>` (its score, in [0, 1]),
            `<kind>_chance`, `<kind>_low`, `<kind>_high` (95 % interval) and `<kind>_null_99`.
        made_by: Model, token ids of the probes, seed, thresholds and versions; `left_out` has
            the absent columns and why they are absent.
        own: Kinds of your own, whose rules a file cannot hold.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> scan = interp.scan_heads(toy, rows=2, quick=True)
        >>> scan.heads("induction"), scan.to_frame().shape[0]
        ([L1H5], 16)
    """

    frame: pd.DataFrame
    made_by: dict[str, Any]
    own: tuple[Kind, ...] = ()

    @classmethod
    def of(
        cls,
        verdicts: Sequence[HeadLabel],
        others: Sequence[dict[str, Any]] | None = None,
        made_by: dict[str, Any] | None = None,
        *,
        kinds: Any = None,
    ) -> "HeadScan":
        """Make a table of `verdicts`, such as those of `classify_heads`.

        `others` has the further columns of each head, `made_by` the record of how they were made,
        and `kinds` are those that were asked for.
        """
        rows = [_row(verdict) for verdict in verdicts]
        for row, other in zip(rows, others or (), strict=others is not None):
            row.update(other)
        own = tuple(as_kinds(kinds).values())
        return cls(typed(pd.DataFrame.from_records(rows)), made_by or {}, own)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of the scores by name, the most specific first."""
        return kinds_in(self.frame.columns, self.made_by.get("kinds"), self.own)

    @property
    def causal(self) -> bool:
        """Whether no query of the model looks ahead."""
        known = "both ways" if "next_token" in self.frame else "causal"
        return self.made_by.get("direction", known) == "causal"

    @cached_property
    def thresholds(self) -> dict[str, Any]:
        """The thresholds of the labels; the defaults where there is no record of them."""
        own = {name: kind.threshold for name, kind in self.kinds.items()}
        return own | asdict(Thresholds()) | self.made_by.get("thresholds", {})

    @property
    def words(self) -> list[str]:
        """The labels that the scores can give, the most specific first."""
        return [label for kind in self.kinds.values() for label in kind.scored_labels]

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {label}" for label, number in self.summary().items())
        name = prose(str(self.made_by.get("model", "patterns")))
        near = f"; {number} borderline" if (number := len(self.borderline())) else ""
        absent = "".join(f"; {prose(line)}" for line in left_out(self.made_by))
        return f"HeadScan({name}: {len(self.frame)} heads: {counts}{near}{absent})"

    def _repr_html_(self) -> str:
        return self.strongest().to_html()

    def to_frame(self) -> pd.DataFrame:
        """Copy of the table: one row per head."""
        return self.frame.copy()

    def heads(self, label: str) -> list[Head]:
        """The heads with `label`, alone or among others, the strongest first."""
        return [Head.parse(name) for name in self.having(label)["name"].tolist()]

    def having(self, label: str) -> pd.DataFrame:
        """The rows of the heads with `label`, `previous token` or `previous_token`.

        The strongest head comes first.
        """
        known = sorted({word for labels in self.frame["labels"] for word in labels})
        words = dict.fromkeys([*self.words, *known, MIXED])
        kind = kind_of(label, self.kinds)
        label = kind.label if kind and label == kind.name else label
        if label not in words:
            raise InputError(f"label must be one of {', '.join(words)}, got {quoted(label)}")
        rows = self.frame.loc[[label in labels for labels in self.frame["labels"]]]
        if kind is None or label == kind.forced:
            return rows
        return rows.sort_values(by=[kind.name, "layer", "head"], ascending=[False, True, True])

    def borderline(self, kind: str = "") -> list[Head]:
        """The heads whose score of `kind`, or of any kind, may be on either side of its threshold.

        Such a score is within .01 of the threshold or null (of a bfloat16 model .02), or its
        interval contains them.
        """
        if "borderline" not in self.frame:
            return []
        near = zip(self.frame["name"].tolist(), self.frame["borderline"].tolist(), strict=True)
        return [
            Head.parse(name)
            for name, kinds in near
            if kinds and (not kind or kind in kinds.split(", "))
        ]

    def strongest(self, top: int = 3) -> pd.DataFrame:
        """The `top` strongest heads of each label: `label`, `name`, `score`, `chance`."""
        pieces = []
        for label in self.summary():
            rows, kind = self.having(label).head(top), kind_of(label, self.kinds)
            score = kind.name if kind and label in kind.scored_labels else ""
            values = {"score": rows.get(score), "chance": rows.get(f"{score}_chance")}
            pieces.append(rows[["name"]].assign(label=label, **values))
        columns = ["label", "name", "score", "chance"]
        return pd.concat(pieces, ignore_index=True).reindex(columns=columns)

    def by_distance(self) -> dict[int, str]:
        """Names of the columns with the induction score, by distance of the copies in tokens."""
        names = [name for name in self.frame.columns if name.startswith(AT_DISTANCE)]
        distances = {name: name.removeprefix(AT_DISTANCE) for name in names}
        return {int(n): name for name, n in distances.items() if n.isdecimal()}

    def summary(self) -> dict[str, int]:
        """Number of heads with each label as their first, the most specific label first."""
        counts = Counter(self.frame["label"].tolist())
        order = dict.fromkeys([*self.words, *sorted(counts)])
        return {label: counts[label] for label in order if label in counts}

    def explained(self) -> ExplainedShare:
        """How much of the heads' attention on natural text the kinds explain."""
        return ExplainedShare.of(self.frame, self.made_by)

    def explain(self, head: Any, others: Iterable[Any] = ()) -> str:
        """The evidence on one head in lines of text.

        Its labels, and for each the score with its 95 % interval, the threshold and the null that
        it passed; why it has no other label; its effect, its explained share, and the reason for
        each value that is missing.

        Args:
            head: `L5H1`, `5.1`, `(5, 1)` or `Head(5, 1)`.
            others: Further results: of `interp.ablate` or `interp.patch` the head's effect, of
                `interp.path_effects` the heads that it reads.

        Raises:
            InputError: If the scan has no such head.

        Example:
            >>> import interp
            >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
            >>> print(interp.scan_heads(toy, rows=2, quick=True).explain("L1H5").split(";")[0])
            L1H5: induction, also sink
            induction: score 1.00 [1.00, 1.00], 1.00 beyond chance
        """
        return "\n".join(map(prose, sentences(self, head, others)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a `.csv`, `.parquet` or `.json` file, whole or not at all.

        Parquet and JSON hold `made_by` too; CSV rounds to six decimals. A table that `load`
        would refuse is not written.
        """
        path, frame = _path(path), typed(self.frame)
        about = self._about()
        with staged(path.parent) as scratch:
            file = scratch / path.name
            match path.suffix.lower():
                case ".csv":
                    frame = frame.assign(labels=[";".join(labels) for labels in frame["labels"]])
                    frame.to_csv(file, index=False, float_format="%.6f", lineterminator="\n")
                case ".parquet":
                    frame.attrs = about
                    file.write_bytes(frame.to_parquet(index=False))  # Arrow wants UTF-8 names.
                case _:
                    write_json(file, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The table as `save` writes it to a `.json` file."""
        return {**self._about(), "heads": plain_rows(typed(self.frame))}

    def _about(self) -> dict[Any, Any]:
        made_by = Record.check(self.made_by, places(typed(self.frame)))
        return {"schema_version": SCHEMA_VERSION, "made_by": made_by}

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, kinds: Any = ()) -> "HeadScan":
        """Read a table that `save` wrote; `kinds` are those of your own, to draw their targets."""
        path = _path(path)
        content = content_of(path)
        with reading(path, "a table of heads"):
            frame, made_by = _read(content, path.suffix.lower())
            frame = typed(frame)
            scan = cls(frame, Record.check(made_by, places(frame)))
            own = kinds_of(scan.causal, as_kinds(kinds)) if kinds else {}
            if absent := [name for name in own if name not in scan.kinds]:
                listed = ", ".join(scan.kinds)
                raise InputError(f"kinds must be of the table, {listed}, got {absent[0]}")
            for name, kind in own.items():
                known = scan.made_by.get("kinds", {}).get(name, {}).get("digest")
                if known not in (None, kind.digest):
                    raise InputError(
                        f"kinds must have the rules of the table, got another rule for {name}: give"
                        " the kind that was scanned"
                    )
            return replace(scan, own=tuple(own.values()))


def check_scan(scan: HeadScan, model: "Model") -> None:
    """Refuse a scan of other weights or other heads than those of `model`."""
    from interp.models import attention_layers

    check_made_by(scan.made_by, model, "scan")
    layers = attention_layers(model, None)
    heads = {str(Head(layer, head)) for layer in layers for head in range(model.n_heads)}
    if {*scan.frame["name"]} != heads:
        raise InputError(
            f"scan must have the {len(heads)} heads of {model.name}, got {len(scan.frame)} others"
        )


def _path(path: Any) -> Path:
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"path must end in {', '.join(ENDINGS)}, got {quoted(path.name)}")
    return path


def _row(verdict: HeadLabel) -> dict[str, Any]:
    scores, chances = verdict.scores, verdict.chance
    row: dict[str, Any] = {
        "layer": verdict.head.layer,
        "head": verdict.head.head,
        "name": str(verdict.head),
        "label": verdict.label,
        "labels": list(verdict.labels),
        **{kind: scores.get(kind) for kind in SCORED},
        **{f"{kind}_chance": chances.get(kind) for kind in SCORED},
    }
    for kind in (kind for kind in scores if kind not in row):
        row |= {kind: scores[kind], f"{kind}_chance": chances[kind]}
    for name in (*STATISTICS, "sink_position", "window", "sink_at", "margin"):
        if name != "sink_at" or verdict.sink_at is not None:
            row[name] = getattr(verdict, name)
    if verdict.sinks:
        row["sinks"] = ", ".join(f"{at} ({share:.2f})" for at, share in verdict.sinks.items())
    row["borderline"] = ", ".join(verdict.borderline)
    row["not_measured"] = "; ".join(f"{kind}: {why}" for kind, why in verdict.not_measured.items())
    return row


def _read(content: bytes, ending: str) -> tuple[pd.DataFrame, Any]:
    match ending:
        case ".csv":
            if not content.endswith(b"\n"):
                raise InputError("the last line must end in a line break: the file may be cut")
            # Arrow refuses a short line, where pandas would fill it up.
            table = csv.read_csv(
                BytesIO(content),
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=csv.ConvertOptions(column_types=_TEXT),
            )
            return table.to_pandas(), {}
        case ".parquet":
            frame = pd.read_parquet(BytesIO(content))
            about, frame.attrs = dict(frame.attrs), {}
            if not about:
                return frame, {}
        case _:
            about = parsed(content)
            if any(head.keys() != about["heads"][0].keys() for head in about["heads"]):
                raise InputError("heads must have the same columns each")
            frame = pd.DataFrame.from_records(about["heads"])
    version = about.get("schema_version")
    if version != SCHEMA_VERSION or type(version) is not int:
        raise InputError(f"schema_version must be {SCHEMA_VERSION}, got {quoted(version)}")
    return frame, about["made_by"]
