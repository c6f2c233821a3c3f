"""Every head's scores on your own prompts: `score_prompts`."""

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError, checked, quoted, reading
from interp.files import content_of, parsed, staged, write_json
from interp.heads import Head
from interp.kinds.probes import Probe
from interp.kinds.scores import LayerScores, Thresholds, as_thresholds
from interp.scan.measure import Method, measure, method_for
from interp.scan.parts import parts_of
from interp.scan.record import Record

if TYPE_CHECKING:
    from interp.models import Model

LOG = logging.getLogger("interp")

SCHEMA_VERSION = 1

_TYPES = {
    "model": "string",
    "prompt": "int64",
    "layer": "int64",
    "head": "int64",
    "name": "string",
    "score": "string",
    "value": "float64",
    "chance": "float64",
    "queries": "int64",
}


@dataclass(frozen=True, eq=False)
class PromptScores:
    """Every head's score of every kind on each prompt, and the record of how it was made.

    Attributes:
        frame: One row per prompt, head and kind, sorted by prompt, layer, head, and kind.
        made_by: Model, prompts (tokens and opening BOS of each), their file, method, thresholds
            and versions.

    Columns:

    - `model`: name of the model.
    - `prompt`: number of the prompt, counted from 0.
    - `layer`, `head`, `name`: the head, counted from 0; `L5H1` is head 1 of layer 5.
    - `score`: the kind. A kind that a prompt cannot show is absent, such as induction where
      nothing repeats.
    - `value`: mean attention mass on the kind's targets, in [0, 1].
    - `chance`: value of attention spread evenly.
    - `queries`: number of positions that were counted.
    """

    frame: pd.DataFrame
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        best = "".join(
            f", {row['score']} {row['name']} {row['value']:.2f}"
            for row in self.strongest().to_dict("records")
        )
        number = len(self.made_by["prompts"]["tokens"])
        return f"PromptScores({self.made_by['model']}: {number} prompts{best})"

    def to_frame(self) -> pd.DataFrame:
        """Copy of the table."""
        return self.frame.copy()

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
            record = {"schema_version": SCHEMA_VERSION, "made_by": self.made_by}
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
    method: str = "stream",
    thresholds: Thresholds | None = None,
    restart: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> PromptScores:
    """Score every head of `model` for every kind, on each prompt separately.

    Args:
        model: `Model`, or anything that `interp.load_model` accepts.
        prompts: Texts or lists of token ids, or a file of them (see `prompts_in`).
        folder: Folder for the result (see `PromptScores.save`), and for the prompts that are
            done: after an interruption the same call resumes, and the result is the same.
        bos: Whether a BOS token opens each text; token ids run unchanged.
        method: `stream` or `hooks`, as for `interp.scan_heads`.
        thresholds: Widths and least numbers of queries; the rest has no effect here.
        restart: Whether to discard the prompts that a stopped run has done.
        progress: Function called with (prompts done, prompts in all).

    Raises:
        KeyboardInterrupt: If it is interrupted, with the number of prompts that are kept.
    """
    from interp.models import load_model

    given, source = prompts_in(prompts)
    thresholds = as_thresholds(thresholds)
    model = load_model(model)
    rows = [_ids(model, prompt, number, bos) for number, prompt in enumerate(given)]
    how = method_for(model, method)
    made_by = _made_by(model, rows, how, thresholds)

    def score(number: int) -> pd.DataFrame:
        if progress is not None:
            progress(number, len(rows))
        return _score(model, number, rows[number], how, thresholds)

    def result(pieces: list[pd.DataFrame]) -> PromptScores:
        return PromptScores(pd.concat(pieces, ignore_index=True), made_by | {"file": source})

    if folder is None:
        return result([score(number) for number in range(len(rows))])
    settings = {name: value for name, value in made_by.items() if name != "off_cpu"}
    with parts_of(Path(folder), settings, restart=restart) as parts:
        files = [parts / f"{number:06d}.parquet" for number in range(len(rows))]
        if done := sum(file.exists() for file in files):
            LOG.info("%d of %d prompts are done already", done, len(rows))
        try:
            for number, file in enumerate(files):
                if not file.exists():
                    with staged(parts) as scratch:
                        _write(score(number), scratch / file.name)
            scores = result([_read(file) for file in files])
        except KeyboardInterrupt:
            done = sum(file.exists() for file in files)
            raise KeyboardInterrupt(
                f"{done} of {len(rows)} prompts are kept in {folder}: repeat the call to resume"
            ) from None
        scores.save(folder)
    return scores


def prompts_in(source: Any) -> tuple[list[Any], dict[str, str] | None]:
    """The prompts, and the `name` and `sha256` of their file, or None without a file.

    Args:
        source: Texts or lists of token ids; or the path of a file in UTF-8: `.txt` with a prompt
            in each line, or `.jsonl` with an object in each line that has `text` or `tokens`.
            Empty lines are skipped and have no number.
    """
    if not isinstance(source, str | os.PathLike):
        if not isinstance(source, Sequence | Tensor) or isinstance(source, bytes):
            raise InputError(f"prompts must be texts or rows of token ids, got {quoted(source)}")
        if not len(source):
            raise InputError("prompts must be at least one, got none")
        return list(source), None
    path = Path(source)
    read = {".txt": str, ".jsonl": _object}.get(path.suffix)
    if read is None:
        raise InputError(f"prompts must be a .txt or .jsonl file, got {quoted(str(path))}")
    content = content_of(path)
    prompts = []
    with reading(path, "a file of prompts"):
        for number, line in enumerate(content.decode("utf-8-sig").split("\n"), 1):
            if line.strip():
                try:
                    prompts.append(read(line.removesuffix("\r")))
                except ValueError:
                    raise InputError(
                        f'prompts must have either "text" or "tokens" in line {number},'
                        f" got {quoted(line)}"
                    ) from None
        if not prompts:
            raise InputError("prompts must be at least one, got none")
    name = os.fsencode(path.name).decode("utf-8", "replace")
    return prompts, {"name": name, "sha256": hashlib.sha256(content).hexdigest()}


def _object(line: str) -> str | list[int]:
    content = parsed(line.encode())
    match content:
        case {"text": str(text)} if "tokens" not in content:
            return text
        case {"tokens": [*ids]} if "text" not in content and all(type(i) is int for i in ids):
            return ids
    raise ValueError


def _ids(model: "Model", prompt: Any, number: int, bos: bool) -> Int[Tensor, "1 _"]:
    try:
        tokens = model.to_tokens(prompt, bos=bos)
    except InputError as error:
        raise InputError(f"prompt {number}: {error}") from None
    if len(tokens) != 1:
        raise InputError(f"prompt {number} must be one row, got {len(tokens)}")
    return tokens


def _score(
    model: "Model", number: int, ids: Int[Tensor, "1 _"], how: Method, thresholds: Thresholds
) -> pd.DataFrame:
    """The table's rows of one prompt."""
    probe = Probe(ids, {"prompt": torch.ones_like(ids, dtype=torch.bool)})
    by_layer = measure(model, [probe], thresholds, how, "", None, None)["prompt"]
    records = []
    for layer in sorted(by_layer):
        tallies = LayerScores.join(by_layer[layer]).measured(thresholds.min_queries).tallies
        scores = [
            (kind, tally.mean.tolist(), tally.uniform_mean.tolist(), int(tally.queries.sum()))
            for kind, tally in tallies.items()
        ]
        for head in range(model.n_heads):
            named = (model.name, number, layer, head, str(Head(layer, head)))
            for kind, values, chances, queries in scores:
                records.append((*named, kind, values[head], chances[head], queries))
    return pd.DataFrame.from_records(records, columns=list(_TYPES)).astype(_TYPES)


def _write(frame: pd.DataFrame, path: Path) -> None:
    # Arrow itself accepts only UTF-8 names.
    path.write_bytes(frame.to_parquet(index=False, write_page_checksum=True))


def _read(path: Path) -> pd.DataFrame:
    content = BytesIO(content_of(path))
    with reading(path, "a whole table of scores (remove it to compute it again)"):
        return pd.read_parquet(content, page_checksum_verification=True).astype(_TYPES)


def _made_by(
    model: "Model", rows: list[Int[Tensor, "1 _"]], how: Method, thresholds: Thresholds
) -> dict[str, Any]:
    """Everything that the scores depend on."""
    lines = [" ".join(map(str, row[0].tolist())) for row in rows]
    return Record.of_model(
        model,
        layers=True,
        revision=model.revision or _weights_hash(model),
        method=how,
        thresholds=asdict(thresholds),
        prompts={
            "ids_sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            "tokens": [row.shape[1] for row in rows],
            "n_bos": [_opening(row[0].tolist(), model.bos) for row in rows],
        },
    )


def _opening(ids: list[int], bos: int | None) -> int:
    """Number of BOS tokens that open a row."""
    return next((number for number, i in enumerate(ids) if i != bos), len(ids))


def _weights_hash(model: "Model") -> str:
    """The SHA-256 of the weights in memory, for a model without a revision."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.inner.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return f"weights sha256:{digest.hexdigest()}"
