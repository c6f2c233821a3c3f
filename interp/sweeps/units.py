"""Units of work: what each one computes, and its file, which is complete or absent."""

import gc
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from interp.effects import tasks
from interp.effects.ablate_map import ablate
from interp.effects.head_effects import HeadEffects
from interp.effects.metrics import logit_difference
from interp.effects.patch import patch
from interp.errors import InputError, quoted, told
from interp.files import staged
from interp.kinds.builtin import KINDS, as_kinds, known_kind
from interp.kinds.kind import Kind
from interp.kinds.scores import Thresholds
from interp.models import Model, load_model
from interp.scan.columns import COLUMNS, LIST, WHOLE, WORDS
from interp.scan.prompts import PromptScores, prompts_in, score_prompts
from interp.scan.scan import scan_heads
from interp.scan.table import HeadScan
from interp.sweeps.targets import Target

_LOADING = ("device", "dtype", "tokenizer")
"""Settings of a sweep that `load_model` takes."""

_LABEL = pa.dictionary(pa.int32(), pa.string())
"""Type of `model` and `revision`, as readers of a folder take them from its path."""

_FIRST = {"model": _LABEL, "revision": _LABEL, "digest": pa.string(), "failed": pa.string()}
_TYPES = {WHOLE: pa.int64(), WORDS: pa.string(), LIST: pa.list_(pa.string())}
_HEAD = {"layer": pa.int64(), "head": pa.int64(), "name": pa.string()}
_NUMBERS = ("effect", "low", "high", "random_low", "random_high")


def effects(
    model: Model, task: str, *, n: int = 50, how: str = "patch", seed: int = 0
) -> HeadEffects:
    """The effect of each head on a task: patched, or ablated by `mean`, `zero` or `resample`."""
    known = ("ioi", "agreement", "pronouns", "successors", "capitals", "repeats")
    pairs = (
        getattr(tasks, task)(model, n, seed=seed) if task in known else tasks.from_file(model, task)
    )
    metric = logit_difference(pairs)
    if how == "patch":
        return patch(model, pairs.clean, pairs.corrupted, metric, seed=seed)
    return ablate(model, pairs.clean, metric, how=how, seed=seed)


FUNCTIONS: dict[str, Callable[..., HeadScan | PromptScores | HeadEffects]] = {
    "scan": scan_heads,
    "explained": scan_heads,
    "prompts": score_prompts,
    "effects": effects,
}
_OWN = {"progress", "explained", "folder", "restart", "positions"}
"""Arguments of these functions that a sweep sets or cannot set."""


@dataclass(frozen=True)
class Unit:
    """A slice of the prompts for one checkpoint, with the name of its result."""

    target: Target
    first: int
    key: str

    def file(self, out: Path, kind: str = "part") -> Path:
        """Path of its result; `kind` is `failed` for the row that says why there is none."""
        folders = (f"{n}={quote(getattr(self.target, n), safe='')}" for n in ("model", "revision"))
        return out.joinpath(*folders, f"{kind}-{self.key}.parquet")


@dataclass(frozen=True)
class Work:
    """What a sweep computes for each checkpoint: everything but the models, and picklable.

    Attributes:
        out: Folder of the results.
        what: `scan`, `prompts`, `effects` or `explained`.
        prompts: Prompts, for `prompts`; name or file of a task, for `effects`.
        batch: Prompts in a unit.
        threads: Threads of torch in each worker.
        settings: Arguments of the function that computes a result, and of `load_model`.
    """

    out: Path
    what: str
    prompts: Any
    batch: int
    threads: int
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.what not in FUNCTIONS:
            raise InputError(f"what must be one of {', '.join(FUNCTIONS)}, got {quoted(self.what)}")
        parameters = inspect.signature(FUNCTIONS[self.what]).parameters.values()
        known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - _OWN | {*_LOADING}
        if unknown := sorted(self.settings.keys() - known):
            raise InputError(f"settings must be some of {sorted(known)}, got {unknown[0]}")
        needed = self.what in ("prompts", "effects")
        if needed != (self.prompts is not None):
            rule = "be given" if needed else "be left out"
            raise InputError(f"prompts must {rule} for {self.what}, got {quoted(self.prompts)}")

    def record(self) -> dict[str, Any]:
        """The settings as JSON holds them: results of two sweeps mix only if these are equal."""
        settings = {name: _plain(name, value) for name, value in self.settings.items()}
        more = {"task": self.prompts} if self.what == "effects" else {}
        return {"what": self.what, **more, "threads": self.threads, "settings": settings}

    def units(self, target: Target, cache: Path | None = None) -> list[Unit]:
        """The units of a checkpoint, a slice of the prompts each; `cache` as for its digest."""
        starts = range(0, len(self.prompts), self.batch) if self.what == "prompts" else [0]
        about = {"model": target.model, "revision": target.revision, **self.record()}
        about["digest"] = target.digest(cache)
        keys = (json.dumps([about, first, self._slice(first)], default=_listed) for first in starts)
        hashes = (hashlib.sha256(key.encode()).hexdigest()[:16] for key in keys)
        return [Unit(target, first, key) for first, key in zip(starts, hashes)]

    def state(self, unit: Unit) -> str:
        """`done`, `failed` or `to do`."""
        for kind, state in (("part", "done"), ("failed", "failed")):
            if unit.file(self.out, kind).exists():
                return state
        return "to do"

    def _slice(self, first: int) -> Any:
        if self.what == "prompts":
            return self.prompts[first : first + self.batch]
        return self.prompts

    def run(self, units: Sequence[Unit], done: Callable[[], None] = lambda: None) -> None:
        """Write the results of units of one checkpoint, which is loaded once.

        Units that another process has done meanwhile are skipped. If the model cannot be loaded, or
        a unit fails, its file is a row with the reason.
        """
        target, model, reason = units[0].target, None, None
        with _worker(self.threads):
            for unit in units:
                if self.state(unit) != "done":
                    try:
                        model = self._loaded(target) if model is None and not reason else model
                    except Exception as error:
                        reason = _words(error)
                    self.write(unit, *self._computed(model, unit, reason))
                done()
            del model

    def _loaded(self, target: Target) -> Model:
        options = {n: v for n, v in self.settings.items() if n in _LOADING}
        if target.on_hub:
            options["revision"] = target.revision
        options = options if isinstance(target.source, str) else {}
        return load_model(target.source, name=target.model, **options)

    def _computed(
        self, model: Model | None, unit: Unit, reason: str | None
    ) -> tuple[HeadScan | PromptScores | HeadEffects | None, str | None]:
        if model is None:
            return None, reason
        options = {n: v for n, v in self.settings.items() if n not in _LOADING}
        options |= {"explained": True} if self.what == "explained" else {}
        given = [] if self.prompts is None else [self._slice(unit.first)]
        try:
            return FUNCTIONS[self.what](model, *given, **options), None
        except Exception as error:
            return None, _words(error)

    def write(self, unit: Unit, result: Any, reason: str | None = None) -> None:
        """Write the file of a unit: the rows of `result`, or one with the reason."""
        made_by = {} if result is None else result.made_by
        frame = pd.DataFrame({"failed": [reason]}) if result is None else result.to_frame()
        if self.what == "prompts" and result is not None:
            frame["prompt"] += unit.first
        labels = {"model": unit.target.model, "revision": unit.target.revision}
        frame = frame.assign(**labels, digest=made_by.get("digest"))
        known = self._columns()
        types = known | {name: pa.float64() for name in frame.columns if name not in known}
        columns = {
            name: pa.array(frame[name].tolist(), kind, from_pandas=True)
            if name in frame
            else pa.nulls(len(frame), kind)
            for name, kind in types.items()
        }
        content, about = BytesIO(), {"made_by": json.dumps(made_by, ensure_ascii=False)}
        pq.write_table(pa.table(columns).replace_schema_metadata(about), content)
        path = unit.file(self.out, "part" if reason is None else "failed")
        with staged(path.parent) as scratch:
            (scratch / path.name).write_bytes(content.getvalue())
        if reason is None:  # Files that changed had failures under other names.
            one = "*" if self.what != "prompts" else unit.key
            for failed in path.parent.glob(f"failed-{one}.parquet"):
                failed.unlink(missing_ok=True)

    def _columns(self) -> dict[str, pa.DataType]:
        """Columns and types of all files, whether or not a model has values there.

        Readers of a folder take the columns from one of its files.
        """
        if self.what == "effects":
            return _FIRST | _HEAD | dict.fromkeys(_NUMBERS, pa.float64())
        if self.what == "prompts":
            scores = {"score": pa.string(), "value": pa.float64(), "chance": pa.float64()}
            return _FIRST | {"prompt": pa.int64()} | _HEAD | scores | {"queries": pa.int64()}
        explained = self.what == "explained"
        definitions = {f"as_{name}" for name in self.settings.get("definitions", ())}
        names: dict[str, pa.DataType] = {}
        for column in COLUMNS:
            of_explained = column.name.startswith(("explained", "outside"))
            if column.name.startswith("as_") and column.name not in definitions:
                continue
            if "<n>" in column.name or (of_explained and not explained):
                continue
            kinds = KINDS | as_kinds(self.settings.get("kinds"))
            for kind in kinds if ">" in column.name else [""]:
                name = column.name.replace("<kind>", kind).replace("<drawn>", kind)
                names.setdefault(name, _TYPES.get(column.type, pa.float64()))
        return _FIRST | names


def _plain(name: str, value: Any) -> Any:
    if name == "kinds":
        return {kind.name: kind.record() | _code(kind) for kind in as_kinds(value).values()}
    return asdict(value) if isinstance(value, Thresholds) else _listed(value)


def _code(kind: Kind) -> dict[str, str]:
    """The source of a kind of your own, so that its results do not mix with those of another."""
    if known_kind(kind.name) is not None or kind.rule is None:
        return {}
    try:
        return {"code": inspect.getsource(kind.rule)}
    except (OSError, TypeError):
        return {"code": repr(kind.rule.__code__.co_code)}


def _listed(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    return [*value] if isinstance(value, list | tuple | set | frozenset) else str(value)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else told(error)


@contextmanager
def _worker(threads: int) -> Iterator[None]:
    """Torch with so many threads, which decide the last bits of sums; no model stays afterwards."""
    before, others = torch.get_num_threads(), gc.get_freeze_count()
    torch.set_num_threads(threads)
    gc.freeze()  # Only what is new is searched for cycles, which models have: that takes no time.
    try:
        yield
    finally:
        gc.collect()
        if not others:
            gc.unfreeze()
        torch.set_num_threads(before)


def prompts_of(what: str, prompts: Any) -> Any:
    """The prompts as units slice them: a list, or the name or file of a task."""
    if what != "prompts" or prompts is None:
        return prompts
    return prompts_in(prompts)[0]
