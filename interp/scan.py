"""One model's table of heads: measured by `scan_heads`, kept in a `HeadScan`."""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pandas as pd
import torch

from interp import tokens as probes
from interp.errors import InputError
from interp.files import staged
from interp.heads import Head
from interp.labels import LABELS, HeadLabel, label_heads, why_not_measured
from interp.mass import Attention
from interp.scores import STATISTICS, LayerScores, Questions, Thresholds, ask, score_layer
from interp.targets import TARGETS

if TYPE_CHECKING:
    from interp.models import Model

LOG = logging.getLogger("interp")

SCHEMA_VERSION = 1
AT_DISTANCE = "induction_at_"
"""Beginning of the columns with the induction score at one distance between the copies."""

SHORTEST = 32
"""Shortest of those distances; each next one is twice as far."""

LENGTH = 129
"""Tokens in a probe's row, if the model's context allows: BOS and 128 more."""

Method = Literal["stream", "hooks"]
"""How attention is read: without patterns, or as one layer's patterns at a time."""

_TOKENS = 2048
"""Tokens that are run at once, if a row is not longer."""

_SIZE = 1 << 26
"""Bytes that one layer's patterns may take in one batch of rows."""


def scan_heads(
    model: Any,
    *,
    rows: int = 16,
    seed: int = 0,
    length: int | None = None,
    method: str = "stream",
    thresholds: Thresholds | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "HeadScan":
    """Find out what every head of `model` does.

    Two probes are run (see `interp.tokens`): random tokens that repeat, and natural text.
    Labels come from the first. Its repeats show induction and duplicate-token heads, and the
    positional kinds beside them; the sink, which is what a head does when it has nothing to
    do, is scored before the first repeat, where that is so. The scores on text, where a head
    mixes its jobs, stand beside those as `text_...`. A model without a tokenizer gets the
    first probe only.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        rows: Rows of random tokens; of text, which only informs, there are half as many.
        seed: Of the random tokens. The same seed gives the same numbers.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
            A longer one adds the induction score by distance, for two copies 32, 64, 128 ...
            tokens apart, as far as the length goes: a head may find what is near only.
        method: `stream` scores queries and keys, exactly, and never builds a pattern; `hooks`
            scores patterns, one layer's at a time. A model whose attention cannot be streamed
            is read by hooks; the result says which it was.
        thresholds: What decides; `Thresholds()` if left out.
        progress: Called with (layers done, layers in all).

    Raises:
        InputError: If the model cannot be loaded, or its context or vocabulary is too small.
    """
    from interp.models import load_model

    model = load_model(model)
    thresholds = thresholds or Thresholds()
    how = _method_for(model, method)
    length = min(LENGTH, model.n_ctx) if length is None else length
    made = _probes(model, rows, seed, length)
    on_text = next(iter(made[-1].parts))  # Text if there is any, else the random tokens.
    far = _far_probes(model, rows, seed, length) if length > LENGTH else []
    scores = _measure(model, made + far, thresholds, how, on_text, progress)
    parts = list(scores)
    source = {kind: "repeated" for kind in TARGETS}
    source |= {"sink": "random"} | {name: on_text for name in STATISTICS}

    verdicts, others = [], []
    for layer in sorted(scores["repeated"]):
        by_part = {
            part: LayerScores.join(scores[part][layer]).measured(thresholds.min_queries)
            for part in parts
        }
        judged = LayerScores(
            {
                name: by_part[part].tallies[name]
                for name, part in source.items()
                if name in by_part[part].tallies
            },
            by_part["random"].sink_position,
        )
        window = model.windows[layer]
        tokens = made[0].tokens
        verdicts += label_heads(
            layer,
            judged,
            thresholds,
            window=window,
            window_forced=window is not None and window < tokens.shape[1],
            not_measured=why_not_measured(
                tokens, judged, thresholds, special=model.special, window=window
            ),
        )
        others += _others(by_part)
    return HeadScan.of(verdicts, others, _made_by(model, made + far, seed, thresholds, how, source))


@dataclass(frozen=True, eq=False)
class HeadScan:
    """What was found: a table with one row per head, and how it was made.

    Attributes:
        frame: One row per head. `label` is the most specific of `labels`. Scores are mean
            attention mass in [0, 1], each with its `_chance`, the score of even attention;
            `text_...` are the same on natural text, `induction_at_...` the induction score for
            two copies so many tokens apart. `entropy` is in nats,
            `mean_distance` in tokens, `window` what the architecture lets the layer see, and
            `sink_position` is counted from the first token. What could not be measured is
            missing, and `not_measured` says why.
        made_by: Model, probes with the token ids that were run, seed, thresholds and versions.
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
        """A table of `verdicts`, such as `classify_heads` gives."""
        records = [_record(verdict) for verdict in verdicts]
        for record, other in zip(records, others or [], strict=False):
            record.update(other)
        return cls(_typed(pd.DataFrame.from_records(records)), made_by or {})

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {label}" for label, number in self.summary().items())
        return (
            f"HeadScan({self.made_by.get('model', 'patterns')}: {len(self.frame)} heads: {counts})"
        )

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table: one row per head."""
        return self.frame.copy()

    def to_long(self) -> pd.DataFrame:
        """One row per (model, prompt, layer, head, score), with its value."""
        pieces = []
        for column in self.frame.columns:
            kind = column.removeprefix("text_")
            far = kind.startswith(AT_DISTANCE)
            if kind not in (*TARGETS, *STATISTICS) and not far:
                continue
            own = self.made_by.get("scored_on", {}).get(kind, "repeated" if far else "patterns")
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
        if label not in known | set(LABELS.values()):
            raise InputError(f"label must be one of {', '.join(LABELS.values())}, got {label!r}")
        rows = self.frame.loc[[label in labels for labels in self.frame["labels"]]]
        score = label.replace(" ", "_")
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
        order = [label for label in LABELS.values() if label in counts]
        return {label: counts[label] for label in [*order, *sorted(set(counts) - set(order))]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a `.csv`, `.parquet` or `.json` file, whole or not at all.

        Parquet and JSON carry `made_by` too; the CSV keeps six decimals.

        Raises:
            InputError: If the ending is none of these, or the folder cannot be written to.
        """
        path = Path(path)
        write = _FORMATS.get(path.suffix, (None, None))[0]
        if write is None:
            raise InputError(f"path must end in {', '.join(_FORMATS)}, got {path.name}")
        with staged(path.parent) as scratch:
            write(self, scratch / path.name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadScan":
        """Read what `save` wrote.

        Raises:
            InputError: If there is no such file, or it is not a table of heads.
        """
        path = Path(path)
        read = _FORMATS.get(path.suffix, (None, None))[1]
        if read is None:
            raise InputError(f"path must end in {', '.join(_FORMATS)}, got {path.name}")
        try:
            frame, made_by = read(path)
            if not isinstance(made_by, dict):
                raise InputError("made_by must be an object")
            return cls(_typed(frame), made_by)
        except FileNotFoundError:
            raise InputError(f"path must be a file that is there, got {path}") from None
        except Exception as error:
            raise InputError(
                f"{path} must be a table of heads, got: {str(error).splitlines()[0]}"
            ) from error


def _method_for(model: "Model", method: str) -> Method:
    from interp.stream import streams

    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if method == "stream" and streams(model):
        return "stream"
    if method == "stream":
        LOG.info("%s cannot be streamed: reading patterns, one layer at a time", model.name)
    return "hooks"


def _probes(model: "Model", rows: int, seed: int, length: int) -> list[probes.Probe]:
    if length > model.n_ctx:
        raise InputError(
            f"length must fit the model's context of {model.n_ctx} tokens, got {length}"
        )
    made = [probes.repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=seed)]
    if model.tokenizer is not None:
        texts = probes.passages().values()
        encoded = [
            torch.tensor(model.tokenizer(t, add_special_tokens=False)["input_ids"]) for t in texts
        ]
        if any(ids.max() > model.vocabulary.max() for ids in encoded):
            raise InputError(
                f"tokenizer must belong to the model, got one with ids beyond {model.name}'s"
            )
        # A passage is not cut together with another, so long rows of text do not exist.
        shortest = min(map(len, encoded)) + (model.bos is not None)
        natural = probes.text(
            encoded, rows=max(1, rows // 2), length=min(length, shortest), bos=model.bos
        )
        made += [natural] if natural is not None else []
    return made


def _far_probes(model: "Model", rows: int, seed: int, length: int) -> list[probes.Probe]:
    """Two copies at distances of 32, 64, 128 ... tokens, as far as `length` goes."""
    made = []
    period, opening = SHORTEST, int(model.bos is not None)
    while 2 * period + opening <= length:
        probe = probes.repeated(
            model.vocabulary,
            rows=max(1, min(rows, _TOKENS // (2 * period))),
            length=2 * period + opening,
            bos=model.bos,
            seed=seed,
            period=period,
        )
        far = {f"{AT_DISTANCE}{period}": probe.parts["repeated"]}
        made.append(probes.Probe(probe.tokens, far, probe.periods))
        period *= 2
    return made


def _measure(
    model: "Model",
    made: list[probes.Probe],
    thresholds: Thresholds,
    method: Method,
    on_text: str,
    progress: Callable[[int, int], None] | None,
) -> dict[str, dict[int, list[LayerScores]]]:
    """Run the probes and score each layer as it attends: `[part][layer]`, by batch."""
    from interp.hooks import run
    from interp.stream import stream

    batches = [batch for probe in made for batch in probe.split(_rows(model, probe, method))]
    scores: dict[str, dict[int, list[LayerScores]]] = {}
    done = 0
    for batch in batches:
        questions = _questions(model, batch, thresholds, on_text)

        def score(
            layer: int,
            attention: Attention | torch.Tensor,
            questions: dict[tuple[str, int | None], Questions] = questions,
            parts: Sequence[str] = tuple(batch.parts),
        ) -> None:
            nonlocal done
            for part in parts:
                asked = questions[part, model.windows[layer]]
                measured = score_layer(attention, asked, thresholds)
                scores.setdefault(part, {}).setdefault(layer, []).append(measured)
            done += 1
            if progress is not None:
                progress(done, len(batches) * model.n_layers)

        if method == "stream":
            stream(model, batch.tokens, score)
        else:
            run(model, batch.tokens, score)
    return scores


def _questions(
    model: "Model", batch: probes.Probe, thresholds: Thresholds, on_text: str
) -> dict[tuple[str, int | None], Questions]:
    """What to ask, for each part of the batch and each window that a layer has."""
    tokens = batch.tokens.to(model.device)
    return {
        (part, window): ask(
            tokens,
            counted=queries.to(model.device),
            special=model.special,
            window=window,
            thresholds=thresholds,
            kinds=kinds_of(part),
            statistics=part == on_text,
        )
        for part, queries in batch.parts.items()
        for window in set(model.windows)
    }


def kinds_of(part: str) -> set[str]:
    """What is scored on a part of a probe."""
    if part.startswith(AT_DISTANCE):
        return {"induction"}
    alone = {"random": {"sink"}, "repeated": set(TARGETS) - {"sink"}}
    return alone.get(part, set(TARGETS))


def _rows(model: "Model", probe: probes.Probe, method: Method) -> int:
    """How many rows to run at once."""
    length = probe.tokens.shape[1]
    at_once = _TOKENS // length
    if method == "hooks":
        at_once = min(at_once, _SIZE // (4 * model.n_heads * length**2))
    return max(1, at_once)


def _others(by_part: dict[str, LayerScores]) -> list[dict[str, float]]:
    """For each head what no label comes from: scores on text, and induction by distance."""
    text = by_part["text"].tallies if "text" in by_part else {}
    on_text = {f"text_{kind}": tally for kind, tally in text.items() if kind in TARGETS}
    columns = {name: tally.mean.tolist() for name, tally in on_text.items()}
    columns |= {f"{name}_chance": tally.uniform_mean.tolist() for name, tally in on_text.items()}
    for part, scores in by_part.items():
        if part.startswith(AT_DISTANCE) and "induction" in scores.tallies:
            columns[part] = scores.tallies["induction"].mean.tolist()
    n_heads = by_part["repeated"].sink_position.shape[1]
    return [{name: values[head] for name, values in columns.items()} for head in range(n_heads)]


def _made_by(
    model: "Model",
    made: list[probes.Probe],
    seed: int,
    thresholds: Thresholds,
    method: Method,
    source: dict[str, str],
) -> dict[str, Any]:
    return {
        "model": model.name,
        "revision": model.revision,
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "dtype": model.dtype_name,
        "device": model.device.type,
        "bos": model.bos,
        "bos_text": None if model.bos is None else model.texts_of(torch.tensor([model.bos]))[0],
        "seed": seed,
        "method": method,
        "tokenizer": model.tokenizer is not None,
        "probes": [
            {
                "parts": list(probe.parts),
                "rows": len(probe.tokens),
                "length": probe.tokens.shape[1],
                "periods": list(probe.periods),
                "tokens": [" ".join(map(str, row)) for row in probe.tokens.tolist()],
            }
            for probe in made
        ],
        "scored_on": source,
        "thresholds": asdict(thresholds),
        "versions": {
            name: version(name) for name in ("interp", "torch", "transformers", "transformer-lens")
        },
    }


def _record(verdict: HeadLabel) -> dict[str, Any]:
    record: dict[str, Any] = {
        "layer": verdict.head.layer,
        "head": verdict.head.head,
        "name": str(verdict.head),
        "label": verdict.label,
        "labels": list(verdict.labels),
    }
    record |= {kind: verdict.scores.get(kind) for kind in sorted(TARGETS, key=_COLUMNS.index)}
    record |= {
        f"{kind}_chance": verdict.chance.get(kind) for kind in sorted(TARGETS, key=_COLUMNS.index)
    }
    record |= {name: getattr(verdict, name) for name in STATISTICS}
    record |= {"sink_position": verdict.sink_position, "window": verdict.window}
    record["not_measured"] = "; ".join(
        f"{kind}: {why}" for kind, why in verdict.not_measured.items()
    )
    return record


_COLUMNS = [
    "sink",
    "previous_token",
    "induction",
    "local_window",
    "duplicate_token",
    "current_token",
]
_TEXT = ("name", "label", "not_measured")
_WHOLE = ("layer", "head", "sink_position", "window")


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with one type per column; missing is missing, never NaN."""
    if absent := [
        c for c in ("layer", "head", "name", "label", "labels", *_COLUMNS) if c not in frame
    ]:
        raise InputError(f"table must have the columns {', '.join(absent)}")
    frame = frame.copy()
    if frame.empty:
        raise InputError("table must hold at least one head, got none")
    for column in frame.columns:
        if column == "labels":
            split = [x.split(";") if isinstance(x, str) else list(x) for x in frame[column]]
            frame[column] = pd.Series(split, index=frame.index, dtype=object)
        elif column in _TEXT:
            frame[column] = frame[column].astype("string").fillna("")
        else:
            kind = "Int64" if column in _WHOLE else "Float64"
            try:
                frame[column] = pd.Series(pd.to_numeric(frame[column]), dtype=kind)
            except (TypeError, ValueError):
                raise InputError(f"column {column} must hold numbers") from None
    heads = [f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"])]
    if heads != frame["name"].tolist() or len(set(heads)) < len(heads):
        raise InputError("table must have one row per head, its name made of layer and head")
    scores = frame[list(TARGETS)].to_numpy(float, na_value=0)
    if scores.min() < 0 or scores.max() > 1 + 1e-4:
        raise InputError(f"scores must be from 0 to 1, got {scores.min()} to {scores.max()}")
    return frame


def _write_csv(scan: HeadScan, path: Path) -> None:
    frame = scan.frame.assign(labels=[";".join(labels) for labels in scan.frame["labels"]])
    frame.to_csv(path, index=False, float_format="%.6f", encoding="utf-8", lineterminator="\n")


def _read_csv(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    return pd.read_csv(path, encoding="utf-8"), {}


def _write_parquet(scan: HeadScan, path: Path) -> None:
    frame = scan.frame.copy()
    frame.attrs = {"schema_version": SCHEMA_VERSION, "made_by": scan.made_by}
    frame.to_parquet(path, index=False)


def _read_parquet(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    frame = pd.read_parquet(path)
    made_by = frame.attrs.pop("made_by", {})
    frame.attrs.clear()
    return frame, made_by


def _write_json(scan: HeadScan, path: Path) -> None:
    rows = scan.frame.astype(object).where(scan.frame.notna(), None).to_dict("records")
    content = {"schema_version": SCHEMA_VERSION, "made_by": scan.made_by, "heads": rows}
    path.write_text(
        json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def _read_json(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"schema_version must be {SCHEMA_VERSION}")
    return pd.DataFrame.from_records(content["heads"]), content["made_by"]


_FORMATS = {
    ".csv": (_write_csv, _read_csv),
    ".parquet": (_write_parquet, _read_parquet),
    ".json": (_write_json, _read_json),
}
