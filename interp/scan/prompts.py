"""Every head's scores on prompts of one's own: `score_prompts`."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from interp.contents import as_path, content_of, parsed, text_of
from interp.errors import InputError
from interp.files import staged, utf8, versions
from interp.heads import Head
from interp.kinds.probes import Probe
from interp.kinds.scores import LayerScores, Thresholds, as_thresholds
from interp.scan.parts import drop, kept, parts_of
from interp.scan.scan import Method, measure, method_for

if TYPE_CHECKING:
    from interp.models import Model

LOG = logging.getLogger("interp")

SCHEMA_VERSION = 1

FILES = ("scores.json", "scores.parquet")
"""Of a result, in the order in which they are moved to their place."""

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
    """Every head's score of every kind on each prompt, and how that was made.

    Attributes:
        frame: One row per prompt, head and kind, sorted by prompt, layer, head, and kind.
        made_by: Model, prompts (of how many tokens, opened by how many BOS), their file, method,
            thresholds and versions.

    Columns:

    - `model`: its name.
    - `prompt`: number of the prompt, counted from 0.
    - `layer`, `head`, `name`: which head, counted from 0; `L5H1` is head 1 of layer 5.
    - `score`: the kind. Kinds that a prompt cannot judge, such as induction where nothing
      repeats, are absent.
    - `value`: the mean attention mass on the kind's targets, in [0, 1].
    - `chance`: the value of attention spread evenly.
    - `queries`: how many positions of the prompt were counted.
    """

    frame: pd.DataFrame
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        number = len(self.made_by["prompts"]["tokens"])
        return f"PromptScores({self.made_by['model']}: {number} prompts, {len(self.frame)} scores)"

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table."""
        return self.frame.copy()

    def strongest(self) -> pd.DataFrame:
        """For each kind the head with the highest mean over the prompts that judge it.

        Columns `score`, `prompts` (how many judge it), `name`, `value` and `chance`.
        """
        heads = self.frame.groupby(["score", "layer", "head", "name"], sort=True)
        means = heads.agg(
            prompts=("prompt", "nunique"), value=("value", "mean"), chance=("chance", "mean")
        ).reset_index()
        best = means.loc[means.groupby("score")["value"].idxmax()]
        return best[["score", "prompts", "name", "value", "chance"]].reset_index(drop=True)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `scores.parquet` and `scores.json`, which is `made_by`, into `folder`.

        Raises:
            InputError: If the folder cannot be written to.
        """
        record = {"schema_version": SCHEMA_VERSION, "made_by": self.made_by}
        with staged(folder) as scratch:
            _write(self.frame, scratch / "scores.parquet")
            (scratch / "scores.json").write_text(
                json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
                encoding="utf-8",
            )


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
    """Score every head of `model` for every kind, on each prompt by itself.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        prompts: Several texts or lists of token ids, or a file of them (see `prompts_in`).
        folder: Where to keep the result (see `PromptScores.save`), and meanwhile each prompt's
            part of it: where a run was stopped, the same call goes on from there, and the
            result is the same.
        bos: Whether texts are to open with BOS; token ids are run as they are.
        method: `stream` or `hooks`, as for `interp.scan_heads`.
        thresholds: Of which the widths and least numbers of queries matter here.
        restart: Throw away what a stopped run has left in `folder`.
        progress: Called with (prompts done, prompts in all).

    Raises:
        InputError: If the model or the prompts cannot be had or run, or `folder` cannot be
            written to, is in use, or holds the parts of a stopped run with other settings.
        KeyboardInterrupt: If it is interrupted, with what `folder` then has.
    """
    from interp.models import load_model

    with telling(folder):
        given, source = prompts_in(prompts)
        thresholds = as_thresholds(thresholds)
        model = load_model(model)
        rows = [_ids(model, prompt, number, bos) for number, prompt in enumerate(given)]
        how = method_for(model, method)
        made_by = _made_by(model, rows, how, thresholds)
    beside = {**model.on_device, "file": source}

    def score(number: int) -> pd.DataFrame:
        if progress is not None:
            progress(number, len(rows))
        return _score(model, number, rows[number], how, thresholds)

    if folder is None:
        pieces = [score(number) for number in range(len(rows))]
        return PromptScores(pd.concat(pieces, ignore_index=True), made_by | beside)
    with (
        telling(folder, made_by, restart=restart),
        parts_of(Path(folder), made_by, restart=restart) as parts,
    ):
        if done := kept(Path(folder), made_by):
            LOG.info("%d of %d prompts are done already", done, len(rows))
        pieces = []
        for number in range(len(rows)):
            part = parts / f"{number:06d}.parquet"
            if not part.exists():
                with staged(parts) as scratch:
                    _write(score(number), scratch / part.name)
            pieces.append(_part(part, number))
        found = PromptScores(pd.concat(pieces, ignore_index=True), made_by | beside)
        found.save(folder)
    return found


@contextmanager
def telling(
    folder: str | os.PathLike[str] | None,
    made_by: dict[str, Any] | None = None,
    *,
    restart: bool = False,
) -> Iterator[None]:
    """Let an interruption of the block tell what is in `folder` then.

    Parts of results that the block has written are removed. An interruption that tells
    something already is left as it is.

    Args:
        folder: As for `score_prompts`.
        made_by: All that the scores depend on, once it is known: it says which parts are
            this run's.
        restart: As for `score_prompts`.

    Raises:
        KeyboardInterrupt: If the block does, with what is there.
    """
    if folder is None:
        yield
        return
    folder = Path(folder)
    before = _stamp(folder)
    try:
        yield
    except KeyboardInterrupt as stop:
        if stop.args:
            raise
        if _stamp(folder) not in (None, before):
            drop(folder)
            told = f"{' and '.join(FILES)} were written to {folder}, whole"
        elif made_by is not None and (own := kept(folder, made_by)):
            call = "the same call" + restart * " without --restart (restart=True)"
            of = len(made_by["prompts"]["tokens"])
            told = f"{own} of {of} prompts are kept, and {call} goes on from there"
        elif others := kept(folder):
            told = f"nothing was written; prompts kept from a run before: {others}"
        else:
            told = "nothing was written"
        raise KeyboardInterrupt(told) from None


def _stamp(folder: Path) -> tuple[int, int] | None:
    """What changes whenever results are written to `folder`; None where there are none."""
    try:
        status = (folder / FILES[-1]).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


def prompts_in(source: Any) -> tuple[list[Any], dict[str, str] | None]:
    """The prompts, and the `name` and `sha256` of their file; None if they are from no file.

    Args:
        source: Several texts or lists of token ids as they are; or the path of a file in
            UTF-8: `.txt` with a prompt a line, or `.jsonl` with an object a line that has
            `text` or `tokens`. Empty lines are passed over, and have no number.

    Raises:
        InputError: If there are no prompts, or a line of the file is none.
    """
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, bytes | dict) or not isinstance(source, Sequence | Tensor):
            raise InputError(f"prompts must be several texts or rows of ids, got {source!r:.80}")
        if not len(source):
            raise InputError("prompts must be at least one, got none")
        return list(source), None
    path = as_path(source)
    read = {".txt": str, ".jsonl": _object}.get(path.suffix)
    if read is None:
        raise InputError(f"prompts must be a .txt or .jsonl file, got {str(path)!r:.80}")
    try:
        content = content_of(path)
        lines = [line.removesuffix("\r") for line in text_of(content).split("\n")]
    except InputError as error:
        raise InputError(f"prompts: {error}") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                prompts.append(read(line))
            except ValueError:
                raise InputError(
                    f'prompts must have "text" or "tokens" in each line of {path.name},'
                    f" got {line!r:.80} in line {number}"
                ) from None
    if not prompts:
        raise InputError(f"prompts must be at least one, got none in {path}")
    return prompts, {"name": utf8(path.name), "sha256": hashlib.sha256(content).hexdigest()}


def _object(line: str) -> str | list[int]:
    """The prompt in one line of JSON.

    Raises:
        ValueError: If there is none, or two.
    """
    content = parsed(line.encode())
    if not isinstance(content, dict) or ("text" in content) == ("tokens" in content):
        raise ValueError
    if isinstance(text := content.get("text"), str):
        return text
    ids = content.get("tokens")
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise ValueError
    return ids


def _ids(model: "Model", prompt: Any, number: int, bos: bool) -> Int[Tensor, "1 _"]:
    if isinstance(prompt, list | tuple) and not prompt:
        raise InputError(f"prompt {number} must have at least one token, got none")
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
    # Arrow itself takes UTF-8 names alone.
    path.write_bytes(frame.to_parquet(index=False, write_page_checksum=True))


def _part(path: Path, number: int) -> pd.DataFrame:
    """The rows of prompt `number`, from the file that keeps them."""
    try:
        content = BytesIO(content_of(path))
        frame = pd.read_parquet(content, page_checksum_verification=True).astype(_TYPES)
        shares = frame[["value", "chance"]].to_numpy()
        if set(frame["prompt"]) - {number} or not ((shares >= 0) & (shares <= 1 + 1e-4)).all():
            raise InputError("scores must be from 0 to 1, of this prompt")
        return frame
    except Exception as error:
        raise InputError(
            f"folder must hold whole parts, got {path}: remove it, or --restart (restart=True)"
        ) from error


def _made_by(
    model: "Model", rows: list[Int[Tensor, "1 _"]], how: Method, thresholds: Thresholds
) -> dict[str, Any]:
    """All that the scores depend on."""
    ids = "\n".join(" ".join(map(str, row[0].tolist())) for row in rows)
    return {
        "model": model.name,
        "revision": model.revision or _weights_hash(model),
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "dtype": model.dtype_name,
        "device": model.device.type,
        "method": how,
        "bos": model.bos,
        "thresholds": asdict(thresholds),
        "versions": versions(),
        "prompts": {
            "ids_sha256": hashlib.sha256(ids.encode()).hexdigest(),
            "tokens": [row.shape[1] for row in rows],
            "n_bos": [_opening(row[0].tolist(), model.bos) for row in rows],
        },
    }


def _opening(ids: list[int], bos: int | None) -> int:
    """How many BOS open a row."""
    return next((number for number, i in enumerate(ids) if i != bos), len(ids))


def _weights_hash(model: "Model") -> str:
    """What stands for a revision where there is none: the SHA-256 of the weights in memory."""
    found = hashlib.sha256()
    for name, weight in sorted(model.inner.state_dict().items()):
        found.update(name.encode())
        found.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return f"weights sha256:{found.hexdigest()}"
