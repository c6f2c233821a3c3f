"""One model's table of heads: a `HeadScan`, and its files."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.contents import as_path, content_of, shown
from interp.errors import InputError, quoted, said
from interp.files import staged
from interp.heads import Head
from interp.kinds.labels import ANTI_INDUCTION, LABELS, NEXT_TOKEN, HeadLabel
from interp.kinds.scores import STATISTICS
from interp.kinds.targets import KINDS, TARGETS
from interp.scan.columns import AT_DISTANCE, EFFECT, SCORED, places, typed
from interp.scan.formats import FORMATS, Format
from interp.scan.told import check_told
from interp.text import prose

WORDS = [LABELS["induction"], ANTI_INDUCTION, *list(LABELS.values())[1:]]
"""Every label that a score gives, the most specific first."""


@dataclass(frozen=True, eq=False)
class HeadScan:
    """What was found: a table with one row per head, and how it was made.

    Attributes:
        frame: One row per head, its columns as below.
        made_by: Model, probes with the token ids that were run, seed, thresholds and versions;
            `left_out` says which columns are absent, and why.

    Columns, where `<kind>` is each of `induction`, `duplicate_token`, `previous_token`,
    `current_token`, `local_window`, `sink`, and of a model that looks both ways `next_token`;
    what could not be measured is missing:

    - `layer`, `head`, `name`: which head, counted from 0; `L5H1` is head 1 of layer 5.
    - `label`, `labels`: the most specific kind that holds, and all that hold.
    - `<kind>`: its score, the mean attention mass on the kind's targets, in [0, 1].
    - `<kind>_chance`: the score of attention spread evenly.
    - `<kind>_low`, `<kind>_high`: ends of the score's bootstrap 95 % interval over rows.
    - `<kind>_spread`: standard deviation of the score over rows, and so over periods.
    - `<kind>_null`, `<kind>_null_99`: mean and 99 % quantile over rows of the score where there
      is nothing to find; a label needs more than the latter. For a local window and a sink,
      where one key may be drawn for several, they can be above 1.
    - `margin`: what the label has to spare of excess, or of score above the null if that is
      nearer; below 0 what `mixed` lacks.
    - `text_<kind>`, `text_<kind>_chance`: score and chance on natural text.
    - `text_sink_value_weighted`: the sink's share on text when each key counts by the size of
      what it brings.
    - `induction_at_<n>`: the induction score for two copies `n` tokens apart.
    - `induction_logit_effect`: what the head adds, through its induction targets alone, to the
      logit of the right next token, less the mean over the vocabulary.
    - `induction_logit_effect_low`, `induction_logit_effect_high`: ends of its 95 % interval.
    - `ov_copying`: whether the head's weights copy what it attends to, in [-1, 1].
    - `entropy`: of a query's attention, mean, in nats.
    - `mean_distance`: from query to key, mean, in tokens.
    - `sink_position`: where a sink head rests, counted from the first token; `sink_at` says it in
      words, as `[SEP] at 7`, where texts are known.
    - `window`: how many tokens back the architecture lets the layer look.
    - `not_measured`: why a kind has no score.
    - `as_<name>`: the score that `interp.patterns.definitions.DEFINITIONS` has by that name.
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
        """A table of `verdicts`, such as `classify_heads` gives.

        Args:
            verdicts: One for each head.
            others: For each of them, further columns and their values.
            made_by: What made them, in text, numbers, lists and objects.

        Raises:
            InputError: If they are no verdicts, or not one for each head, `others` are not one
                for each, or a value is none that its column can hold.
        """
        listed = list(verdicts) if isinstance(verdicts, Iterable) else []
        if not listed or not all(isinstance(verdict, HeadLabel) for verdict in listed):
            raise InputError(
                "verdicts must be one HeadLabel for each head, such as classify_heads gives, got"
                f" {quoted(verdicts)}"
            )
        more = [{}] * len(listed) if others is None else others
        if not (
            isinstance(more, Sequence)
            and len(more) == len(listed)
            and all(isinstance(other, Mapping) for other in more)
        ):
            raise InputError(
                f"others must be one dict for each of {len(listed)} heads, got {quoted(more)}"
            )
        if not isinstance(made_by, dict | None):
            raise InputError(f"made_by must be a dict, got {type(made_by).__name__}")
        records = [{**_record(one), **other} for one, other in zip(listed, more, strict=True)]
        return cls(typed(pd.DataFrame.from_records(records)), made_by or {})

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {label}" for label, number in self.summary().items())
        name = prose(str(self.made_by.get("model", "patterns")))
        return f"HeadScan({name}: {len(self.frame)} heads: {counts})"

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table: one row per head."""
        return self.frame.copy()

    def to_long(self) -> pd.DataFrame:
        """One row per (model, prompt, layer, head, score), with its value."""
        pieces = []
        for column in self.frame.columns:
            kind = column.removeprefix("text_")
            far = kind.startswith(AT_DISTANCE)
            if kind not in (*KINDS, *STATISTICS, EFFECT) and not far:
                continue
            own = self.made_by.get("scored_on", {}).get(
                kind, "repeated" if far or kind == EFFECT else "patterns"
            )
            prompt = own if kind == column else "text"
            piece = self.frame[["layer", "head"]].assign(
                model=self.made_by.get("model", ""),
                prompt=prompt,
                score=kind,
                value=self.frame[column],
            )
            pieces.append(piece)
        columns = ["model", "prompt", "layer", "head", "score", "value"]
        return (
            pd.concat(pieces, ignore_index=True)
            .reindex(columns=columns)
            .dropna()
            .reset_index(drop=True)
        )

    def heads(self, label: str) -> list[Head]:
        """The heads that have `label`, alone or among others, the strongest first.

        Raises:
            InputError: If there is no such label.
        """
        return [Head.parse(name) for name in self.having(label)["name"].tolist()]

    def having(self, label: str) -> pd.DataFrame:
        """The rows of the heads that have `label`, the strongest first.

        Raises:
            InputError: If there is no such label.
        """
        known = {label for labels in self.frame["labels"] for label in labels}
        words = [*WORDS, *([NEXT_TOKEN] if "next_token" in self.frame else [])]
        words += sorted(known - set(words))
        if label not in words:
            raise InputError(f"label must be one of {', '.join(words)}, got {label!r}")
        rows = self.frame.loc[[label in labels for labels in self.frame["labels"]]]
        score = "induction" if label == ANTI_INDUCTION else label.replace(" ", "_")
        if score not in rows:
            return rows
        return rows.sort_values(by=[score, "layer", "head"], ascending=[False, True, True])

    def by_distance(self) -> dict[int, str]:
        """The columns with the induction score for copies so many tokens apart, by distance."""
        names = [name for name in self.frame.columns if name.startswith(AT_DISTANCE)]
        return {int(name.removeprefix(AT_DISTANCE)): name for name in names}

    def summary(self) -> dict[str, int]:
        """How many heads have each primary label, the most specific label first."""
        counts = Counter(self.frame["label"].tolist())
        words = [*WORDS[:2], *(kind.replace("_", " ") for kind in KINDS[1:])]
        order = [label for label in words if label in counts]
        return {label: counts[label] for label in [*order, *sorted(set(counts) - set(order))]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a `.csv`, `.parquet` or `.json` file, whole or not at all.

        Parquet and JSON carry `made_by` too; the CSV keeps six decimals.

        Raises:
            InputError: If the ending is none of these, the folder cannot be written to, or the
                table or `made_by` is none that `load` would take: then nothing is written.
        """
        path, form = _format(path)
        frame = typed(self.frame)
        made_by = check_told(self.made_by, places(frame))
        with staged(path.parent) as scratch:
            form.write(frame, made_by, scratch / path.name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadScan":
        """Read what `save` wrote.

        Raises:
            InputError: If there is no such file, or it is no table of heads: a column or a part
                of `made_by` is absent, of another kind, beyond its range or at odds with another.
        """
        path, form = _format(path)
        content = content_of(path)
        try:
            frame, made_by = form.read(content)
            frame = typed(frame)
            return cls(frame, check_told(made_by, places(frame)))
        except InputError as error:
            told = str(error)
        # What a damaged file can set off is not for the readers of pandas to say: all of it.
        except Exception as error:
            why = said(error)[:80]
            told = f"it is no whole {path.suffix} file, got {type(error).__name__} {why}"
        raise InputError(f"{shown(path)} must be a table of heads: {told}")


def _format(path: Any) -> tuple[Path, Format]:
    """The path, and by its ending what is to be written there or read from it."""
    path = as_path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"path must end in {', '.join(FORMATS)}, got {shown(Path(path.name))}")
    return path, FORMATS[path.suffix.lower()]


def _record(verdict: HeadLabel) -> dict[str, Any]:
    record: dict[str, Any] = {
        "layer": verdict.head.layer,
        "head": verdict.head.head,
        "name": str(verdict.head),
        "label": verdict.label,
        "labels": list(verdict.labels),
    }
    record |= {kind: verdict.scores.get(kind) for kind in sorted(TARGETS, key=SCORED.index)}
    record |= {
        f"{kind}_chance": verdict.chance.get(kind) for kind in sorted(TARGETS, key=SCORED.index)
    }
    if "next_token" in verdict.scores:
        record |= {"next_token": verdict.scores["next_token"]}
        record |= {"next_token_chance": verdict.chance["next_token"]}
    record |= {name: getattr(verdict, name) for name in STATISTICS}
    record |= {"sink_position": verdict.sink_position, "window": verdict.window}
    record |= {} if verdict.sink_at is None else {"sink_at": verdict.sink_at}
    record["margin"] = verdict.margin
    record["not_measured"] = "; ".join(
        f"{kind}: {why}" for kind, why in verdict.not_measured.items()
    )
    return record
