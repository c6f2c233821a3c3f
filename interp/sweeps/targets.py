"""Which models a sweep runs: names, folders, globs, lists and loaded models, each with a label."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from interp.errors import InputError, quoted
from interp.files import content_of, staged
from interp.models import load_model
from interp.models.load import DEFAULT, as_path, name_of

CHECKPOINT = re.compile(r"(?:checkpoint|step)[-_]?\d+")
"""Names of folders that are one checkpoint of the run in the folder above."""

MAIN = "main"
"""Revision of what has only one."""

_OF_A_MODEL = {".json", ".safetensors", ".model", ".txt", ".jinja", ".gguf"}


@dataclass(frozen=True)
class Target:
    """One checkpoint: what `load_model` opens, and its labels in the results.

    Attributes:
        model: Name of the model or of the training run.
        revision: Name of the checkpoint: the folder's, or the revision on the hub.
        source: Name, path or loaded model.
        on_hub: Whether `revision` is one of a hub id.
    """

    model: str
    revision: str
    source: Any
    on_hub: bool = False

    @property
    def path(self) -> Path | None:
        """Its folder or file, if it has one."""
        known = isinstance(self.source, str) and self.source != DEFAULT and not self.on_hub
        return as_path(self.source) if known else None

    def files(self) -> list[tuple[str, int, int]]:
        """Name, size and time of change of the files that make the model."""
        path = self.path
        found = [] if path is None else [path] if path.is_file() else sorted(path.glob("*"))
        stats = ((each.name, each.stat()) for each in found if each.suffix in _OF_A_MODEL)
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]

    def digest(self, cache: Path | None) -> str:
        """What identifies the weights before they are loaded.

        Of files the SHA-256 of their contents, kept in the folder `cache`, if there is one, while
        sizes and times stay; of a loaded model the digest of its weights; of a name on the hub that
        name.
        """
        if not isinstance(self.source, str):
            if (digest := load_model(self.source).digest) is None:
                raise InputError(f"models must have their weights in memory, got {self.model}")
            return digest
        if (path := self.path) is None:
            return self.source
        files = self.files()
        key = hashlib.sha256(f"{path.resolve()}{files}".encode()).hexdigest()
        if cache is not None and (cache / key).exists():
            return content_of(cache / key).decode()
        found = hashlib.sha256()
        for name, _, _ in files:
            with (path if path.is_file() else path / name).open("rb") as file:
                found.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        if cache is not None:
            with staged(cache) as scratch:
                (scratch / key).write_text(found.hexdigest())
        return found.hexdigest()


def targets_of(models: Any, revisions: str | Iterable[str] | None = None) -> list[Target]:
    """The checkpoints of `models`, in order, for `interp.sweep`.

    Raises:
        InputError: If two different ones would have the same labels, or a glob matches nothing.
    """
    wanted = [revisions] if isinstance(revisions, str) else [*(revisions or ())]
    wanted = [one for pattern in wanted for one in expanded(pattern)]
    runs: dict[str, Any] = {}
    found: dict[tuple[str, str], Target] = {}
    for target in _targets(models, wanted):
        path, label = target.path, (target.model, target.revision)
        is_checkpoint = path is not None and CHECKPOINT.fullmatch(path.name)
        run = path.resolve().parent if path and is_checkpoint else target.model
        same = found.setdefault(label, target) == target
        if runs.setdefault(target.model, run) != run or not same:
            raise InputError(
                f"models must have different names, got two that are {quoted(target.model)}:"
                " give names as {name: models}"
            )
    return [*found.values()]


def _targets(models: Any, revisions: list[str], name: str | None = None) -> Iterable[Target]:
    if isinstance(models, Mapping):
        for given, one in models.items():
            yield from _targets(one, revisions, str(given))
    elif isinstance(models, list | tuple | set):
        for number, one in enumerate(models):
            loaded = name is not None and not isinstance(one, str | os.PathLike)
            for target in _targets(one, revisions, name):
                yield Target(target.model, f"step-{number}", one) if loaded else target
    elif not isinstance(models, str | os.PathLike):
        yield Target(_label(name or load_model(models).name, "run"), MAIN, models)
    else:
        for one in expanded(os.fspath(models)):
            yield from _named(one, revisions, name)


def _named(text: str, revisions: list[str], name: str | None) -> Iterable[Target]:
    path = as_path(text)
    if re.search(r"[*?\[]", text):
        inside = str(path.relative_to(path.anchor))
        if not (matches := sorted(map(str, Path(path.anchor).glob(inside)), key=in_order)):
            raise InputError(f"models must match something, got {text!r}, which matches nothing")
        for match in matches:
            yield from _named(match, revisions, name)
    elif path.suffix == ".txt" and path.is_file():
        lines = content_of(path).decode("utf-8-sig").splitlines()
        yield from _targets([line.strip() for line in lines if line.strip()], revisions, name)
    elif path.is_dir() and not (path / "config.json").exists():
        inner = [each for each in path.iterdir() if (each / "config.json").exists()]
        for each in sorted(map(str, inner), key=in_order) or [text]:
            yield from _local(each, revisions, name)
    elif path.exists() or text == DEFAULT:
        yield from _local(text, revisions, name)
    else:
        for revision in revisions or [MAIN]:
            label = _label(name or text, "run"), _label(revision, "step")
            yield Target(*label, text, on_hub=bool(revisions))


def _local(text: str, revisions: list[str], name: str | None) -> Iterable[Target]:
    if revisions:
        raise InputError(f"revisions must come with hub ids, got {text!r}")
    *_, run, last = ("", *as_path(text).resolve().parts)
    if as_path(text).is_dir() and CHECKPOINT.fullmatch(last):
        yield Target(_label(name or run, "run"), last, text)
    else:
        yield Target(_label(name or name_of(text), "run"), MAIN, text)


def _label(text: str, what: str) -> str:
    """The text; with `what` in front if it is a number, which readers of folders take for one."""
    return f"{what}-{text}" if text.isdecimal() else text


def step_of(revision: str) -> int:
    """The number of a checkpoint: the last one in its name, 0 without one."""
    return int((re.findall(r"\d+", revision) or [0])[-1])


def in_order(text: str) -> tuple[str, int, str]:
    """Key to sort by name, and checkpoints of a run by number."""
    above, _, last = text.rpartition("/")
    return above, step_of(last) if CHECKPOINT.fullmatch(last) else 0, last


def expanded(pattern: str) -> list[str]:
    """The texts that braces stand for, as in a shell.

    Example:
        >>> expanded("step{0..3000..1000}"), expanded("pythia-{70m,160m}")
        (['step0', 'step1000', 'step2000', 'step3000'], ['pythia-70m', 'pythia-160m'])
    """
    parts = re.split(r"(\{-?\d+\.\.-?\d+(?:\.\.\d+)?\}|\{[^{}]*,[^{}]*\})", pattern)
    choices = []
    for part in parts:
        if ends := re.fullmatch(r"\{(\d+)\.\.(\d+)(?:\.\.(\d+))?\}", part):
            first, last, step = int(ends[1]), int(ends[2]), int(ends[3] or 1)
            if not first <= last or not step:
                raise InputError(f"{pattern!r} must count up: write {{first..last..step}}")
            choices.append([str(number) for number in range(first, last + 1, step)])
        else:
            choices.append(part[1:-1].split(",") if part.startswith("{") else [part])
    return ["".join(each) for each in product(*choices)]
