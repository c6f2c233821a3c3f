"""Every head's scores on your own prompts: `score_prompts`."""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import product, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from interp.errors import Count, InputError, checked, quoted, reading
from interp.files import content_of, parsed, staged, write_json
from interp.heads import Head
from interp.kinds.builtin import as_kinds
from interp.kinds.kind import Kind
from interp.kinds.labels import not_measured
from interp.kinds.probes import Probe
from interp.kinds.scores import LayerScores, Thresholds, as_thresholds, ask
from interp.kinds.targets import NONE
from interp.patterns.positions import by_row, counted_in_row
from interp.scan.measure import Method, measure, method_for, texts_for
from interp.scan.parts import Parts
from interp.scan.record import Record

if TYPE_CHECKING:
    from interp.models import Model

TEXT, NUMBER, WHOLE = "string", "float64", "int64"
_TYPES = {"model": TEXT, "prompt": WHOLE, "layer": WHOLE, "head": WHOLE, "name": TEXT}
_TYPES |= {"score": TEXT, "value": NUMBER, "chance": NUMBER, "queries": WHOLE}


@dataclass(frozen=True, eq=False)
class PromptScores:
    """Every head's score of every kind on each prompt, and the record of how it was made.

    Attributes:
        frame: One row per prompt, head and kind. `prompt`, `layer` and `head` count from 0;
            `score` is the kind, absent where a prompt cannot show it (induction where nothing
            repeats); `value` is the mean attention mass on the kind's targets, in [0, 1], and
            `chance` that of attention spread evenly; `queries` is the number of positions counted.
        made_by: Model, prompts (of each its tokens, opening BOS, positions that count, and
            reasons for absent kinds), their file, method, thresholds and versions.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> scores = interp.score_prompts(toy, [[0, *range(5, 15), *range(5, 15)]])
        >>> scores.to_frame()["prompt"].unique().tolist()
        [0]
    """

    frame: pd.DataFrame
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        best = "".join(
            f", {row['score']} {row['name']} {row['value']:.2f}"
            for row in self.strongest().to_dict("records")
        )
        number = len(self.made_by["prompts"]["tokens"])
        prompts = f"{number} prompt{'s' * (number != 1)}"
        missing = "".join(f"; {reason}" for reason in self.not_measured())
        return f"PromptScores({self.made_by['model']}: {prompts}{best}{missing})"

    def to_frame(self) -> pd.DataFrame:
        """Copy of the table."""
        return self.frame.copy()

    def not_measured(self) -> list[str]:
        """Which kinds have no score on how many prompts, and why, in words."""
        prompts = self.made_by["prompts"].get("not_measured", [])
        found = Counter((why, kind) for reasons in prompts for kind, why in reasons.items())
        kinds: dict[tuple[str, int], list[str]] = {}
        for (why, kind), number in found.items():
            kinds.setdefault((why, number), []).append(kind.replace("_", " "))
        return [
            f"not measured on {number} of {len(prompts)}: {', '.join(names)}: {why}"
            for (why, number), names in kinds.items()
        ]

    def strongest(self) -> pd.DataFrame:
        """The head with the highest mean of each kind, over the prompts that show the kind.

        Columns `score`, `prompts` (number of those prompts), `name`, `value` and `chance`.
        """
        heads = self.frame.groupby(["score", "layer", "head", "name"], sort=True)
        means = heads.agg(
            prompts=("prompt", "nunique"), value=("value", "mean"), chance=("chance", "mean")
        ).reset_index()
        best = means.loc[means.groupby("score")["value"].idxmax()]
        return best[["score", "prompts", "name", "value", "chance"]].reset_index(drop=True)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `scores.parquet` and `scores.json`, which holds `made_by`, into `folder`."""
        with staged(folder) as scratch:
            _write(self.frame, scratch / "scores.parquet")
            record = {"schema_version": 1, "made_by": self.made_by}
            write_json(scratch / "scores.json", record)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "PromptScores":
        """Read what `save` wrote."""
        record = Path(folder) / "scores.json"
        with reading(record, "a record of scores"):
            made_by = parsed(content_of(record))["made_by"]
        return cls(_read(Path(folder) / "scores.parquet"), made_by)


@checked
def score_prompts(
    model: Any,
    prompts: Any,
    folder: str | os.PathLike[str] | None = None,
    *,
    bos: bool = True,
    special_as_text: bool = False,
    positions: Any = None,
    min_queries: Count | None = None,
    kinds: Any = None,
    method: str = "stream",
    thresholds: Thresholds | None = None,
    restart: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> PromptScores:
    """Score every head of `model` for every kind, on each prompt separately.

    Args:
        model: `Model`, or anything that `interp.load_model` accepts.
        prompts: Texts, chat messages, rows of token ids, or a file of them (see `prompts_in`).
        folder: Folder for the result (see `PromptScores.save`), and for the prompts that are
            done: after an interruption the same call resumes, and the result is the same.
        bos: Whether a BOS token opens each text; token ids run unchanged.
        special_as_text: Whether the name of a special token in a text is plain text.
        positions: The positions that count, as for `interp.classify_heads`, for all prompts or in
            a list of one for each. By default all but those of a chat template.
        min_queries: Least number of positions for a score; by default that of `thresholds`.
        kinds: Kinds to score, as for `interp.scan_heads`.
        method: `stream` or `hooks`, as for `interp.scan_heads`.
        thresholds: Widths and least numbers of queries; the rest has no effect here.
        restart: Whether to discard the prompts that a stopped run has done.
        progress: Function called with (prompts done, prompts in all).

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> scores = score_prompts(toy, [[0, *range(5, 15), *range(5, 15)]])
        >>> scores.strongest().set_index("score")["name"]["induction"]
        'L1H5'
    """
    from interp.models import load_model

    given, source = prompts_in(prompts)
    thresholds = as_thresholds(thresholds)
    if min_queries is not None:
        thresholds = replace(thresholds, min_queries=min_queries)
    model = load_model(model)
    options = {"bos": bos, "special_as_text": special_as_text}
    rows = [
        _probe(model, prompt, number, chosen, options)
        for number, (prompt, chosen) in enumerate(zip(given, by_row(positions, len(given))))
    ]
    how = method_for(model, method)
    chosen = as_kinds(kinds)
    made_by = _made_by(model, rows, how, thresholds, chosen)
    if kinds is not None:
        made_by["kinds"] = {name: kind.record() for name, kind in chosen.items()}

    def score(number: int) -> pd.DataFrame:
        if progress is not None:
            progress(number, len(rows))
        return _score(model, number, rows[number], how, thresholds, chosen)

    def result(pieces: list[pd.DataFrame]) -> PromptScores:
        return PromptScores(pd.concat(pieces, ignore_index=True), made_by | {"file": source})

    if folder is None:
        return result([score(number) for number in range(len(rows))])
    settings = {name: value for name, value in made_by.items() if name != "off_cpu"}
    parts = Parts.of(folder, settings, len(rows), ".parquet", "prompts")
    if restart:
        parts.remove()
    with parts.kept():
        files = [
            parts.fill(number, lambda path, number=number: _write(score(number), path))
            for number in range(len(rows))
        ]
        scores = result([_read(file) for file in files])
        scores.save(folder)
        parts.saved = True
        parts.remove()
    return scores


def prompts_in(source: Any) -> tuple[list[Any], dict[str, str] | None]:
    """The prompts, and the `name` and `sha256` of their file, or None without a file.

    Args:
        source: Texts, conversations or rows of token ids, as `Model.to_tokens` takes them; or the
            path of a file in UTF-8: `.txt` with a prompt in each line, or `.jsonl` with an object
            in each line that has `text`, `messages` or `tokens`. Empty lines are skipped and have
            no number.
    """
    from interp.models.rows import each_prompt

    if not isinstance(source, str | os.PathLike):
        if not (prompts := each_prompt(source)):
            raise InputError("prompts must be at least one, got none")
        return prompts, None
    path = Path(source)
    read = {".txt": str, ".jsonl": _object}.get(path.suffix)
    if read is None:
        raise InputError(f"prompts must be a .txt or .jsonl file, got {quoted(str(path))}")
    content = content_of(path)
    with reading(path, "a file of prompts"):
        lines = [line.removesuffix("\r") for line in content.decode("utf-8-sig").split("\n")]
        prompts = [read(line) for line in lines if line.strip()]
        if not prompts:
            raise InputError("prompts must be at least one, got none")
    name = os.fsencode(path.name).decode("utf-8", "replace")
    return prompts, {"name": name, "sha256": hashlib.sha256(content).hexdigest()}


def _object(line: str) -> Any:
    match parsed(line.encode()):
        case {"text": str(text), **rest} if not {"tokens", "messages"} & {*rest}:
            return text
        case {"messages": [*_], **rest} as messages if not {"tokens", "text"} & {*rest}:
            return messages
        case {"tokens": [*ids], **rest} if not {"text", "messages"} & {*rest} and {
            *map(type, ids)
        } <= {int}:
            return ids
    got = f"got {quoted(line)}"
    raise InputError(f'prompts must have "text", "messages" or "tokens" in a line, {got}')


def _probe(
    model: "Model", prompt: Any, number: int, positions: Any, options: dict[str, bool]
) -> Probe:
    """A prompt to run, with the positions that count as its part `prompt`."""
    try:
        rows = model.rows_of(prompt, **options)
        counted = counted_in_row(positions, rows.tokens[0] != NONE, rows.template[0])[None]
    except InputError as error:
        raise InputError(f"prompt {number}: {error}") from None
    if len(rows.tokens) != 1:
        raise InputError(f"prompt {number} must be one row, got {len(rows.tokens)}")
    return Probe(rows.tokens, {"prompt": counted}, apart=rows.template & ~counted)


def _score(
    model: "Model",
    number: int,
    probe: Probe,
    how: Method,
    thresholds: Thresholds,
    kinds: Mapping[str, Kind],
) -> pd.DataFrame:
    by_layer = measure(model, [probe], thresholds, how, kinds=kinds)["prompt"]
    records = []
    for layer in sorted(by_layer):
        tallies = LayerScores.join(by_layer[layer]).measured(thresholds.min_queries).tallies
        for head, (kind, tally) in product(range(model.n_heads), tallies.items()):
            value, chance = tally.mean[head].item(), tally.uniform_mean[head].item()
            named = (model.name, number, layer, head, str(Head(layer, head)), kind)
            records.append((*named, value, chance, int(tally.queries.sum())))
    return pd.DataFrame.from_records(records, columns=list(_TYPES)).astype(_TYPES)


def _write(frame: pd.DataFrame, path: Path) -> None:
    content = frame.to_parquet(index=False, write_page_checksum=True)
    path.write_bytes(content)  # Arrow itself accepts only UTF-8 names.


def _read(path: Path) -> pd.DataFrame:
    content = BytesIO(content_of(path))
    with reading(path, "a whole table of scores (remove it to compute it again)"):
        return pd.read_parquet(content, page_checksum_verification=True).astype(_TYPES)


def _not_measured(
    model: "Model", probe: Probe, thresholds: Thresholds, kinds: Mapping[str, Kind]
) -> dict[str, str]:
    """The kinds that no layer can measure on a prompt, and why."""
    context: dict[str, Any] = {"causal": model.direction == "causal", "special": model.special}
    context |= {"counted": probe.parts["prompt"], "apart": probe.apart, "kinds": kinds}
    texts, absent = texts_for(model, probe.tokens, kinds)
    missing = []
    for window in sorted(set(model.windows), key=lambda width: width or math.inf):
        context["window"] = window
        asked = ask(probe.tokens, thresholds=thresholds, texts=texts, **context)
        queries = {
            kind: int(((keys != NONE).any(-1) & asked.fit).sum())
            for kind, keys in asked.keys.items()
        }
        measured = [kind for kind, number in queries.items() if number >= thresholds.min_queries]
        known = {**context, "absent": absent}
        missing.append(not_measured(probe.tokens, measured, thresholds, **known))
    # The reasons of the widest window: those of the others may be the window.
    return {kind: why for kind, why in missing[-1].items() if all(kind in m for m in missing)}


def _made_by(
    model: "Model",
    rows: list[Probe],
    how: Method,
    thresholds: Thresholds,
    kinds: Mapping[str, Kind],
) -> dict[str, Any]:
    ids = [row.tokens[0].tolist() for row in rows]
    counted = [row.parts["prompt"][0].nonzero()[:, 0].tolist() for row in rows]
    hashes = (
        hashlib.sha256("\n".join(" ".join(map(str, row)) for row in lines).encode()).hexdigest()
        for lines in (ids, counted)
    )
    return Record.of_model(
        model,
        layers=True,
        method=how,
        thresholds=asdict(thresholds),
        prompts={
            **dict(zip(("ids_sha256", "positions_sha256"), hashes)),
            "counted": list(map(len, counted)),
            "not_measured": [_not_measured(model, row, thresholds, kinds) for row in rows],
            "tokens": list(map(len, ids)),
            "n_bos": [len([*takewhile(lambda i: i == model.bos, row)]) for row in ids],
        },
    )
