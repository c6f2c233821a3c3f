"""Work that is done in parts, each kept as a file, so that a run that was killed can go on.

The parts of a run are in a folder named after its settings: those of another run are never
taken for them. Each part is there whole or not at all.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from interp.contents import content_of, parsed, shown
from interp.errors import InputError
from interp.files import held, staged

FOLDER = ".parts"

_NAME = re.compile("[0-9a-f]{16}")
"""Of a folder of parts: the beginning of its settings' SHA-256."""


@contextmanager
def parts_of(folder: Path, settings: dict[str, Any], *, restart: bool = False) -> Iterator[Path]:
    """Where the parts of the run with these `settings` are kept, below the results' `folder`.

    They are gone when the block has ended well, and stay where it has not, for the next run.

    The names of parts begin with a digit.

    Args:
        folder: Of the results.
        settings: All that a part depends on, as JSON has it.
        restart: Whether to throw away what other runs, or this one, have left there.

    Raises:
        InputError: If the folder cannot be written to, another process is at work there, or a
            run with other settings has left its parts, or something else is there.
    """
    around = folder / FOLDER
    text = _as_text(settings)
    own = _own(folder, text)
    new = [each for each in (around, folder, *folder.parents) if not each.exists()]
    try:
        around.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"folder must be writable, got {folder}: {error}") from None
    try:
        with held(around) as alone:
            if alone is False:
                raise InputError(f"folder must not be in use, got {folder}, where a run is at work")
            others = sorted(around.iterdir())
            if strange := [around] * around.is_symlink() + [p for p in others if not _is_ours(p)]:
                raise InputError(
                    f"folder must hold nothing but parts in its {FOLDER}, got"
                    f" {shown(strange[0])}: name another folder"
                )
            for other in others:
                if restart or not any(other.glob("[0-9]*")):
                    shutil.rmtree(other)
                elif other != own:
                    raise InputError(_told(folder, other, settings))
            own.mkdir(exist_ok=True)
            with staged(own) as scratch:
                (scratch / "settings.json").write_text(text, encoding="utf-8")
            yield own
            shutil.rmtree(around)
    except BaseException:
        if not any(own.glob("[0-9]*")):
            shutil.rmtree(own, ignore_errors=True)
            for each in new:
                with suppress(OSError):
                    each.rmdir()
        raise


def kept(folder: Path, settings: dict[str, Any] | None = None) -> int:
    """How many parts are below the results' `folder` now: of the run with these settings, or all.

    Args:
        folder: Of the results; it need not be there.
        settings: As for `parts_of`; parts of any run count if left out.
    """
    around = folder / FOLDER
    if not around.is_dir():
        return 0
    if settings is None:
        return len(list(around.glob("*/[0-9]*")))
    return len(list(_own(folder, _as_text(settings)).glob("[0-9]*")))


def drop(folder: Path) -> None:
    """Remove the parts below `folder`, whose results are written, unless a run is at work there."""
    around = folder / FOLDER
    with held(around) as alone:
        if alone is not False:
            shutil.rmtree(around, ignore_errors=True)


def _as_text(settings: dict[str, Any]) -> str:
    return json.dumps({"settings": settings}, indent=1, ensure_ascii=False) + "\n"


def _own(folder: Path, text: str) -> Path:
    """Where the parts of a run are whose settings say `text`."""
    return folder / FOLDER / hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    """Whether it is a folder such as runs make: what is somebody else's is never removed."""
    return bool(_NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def _told(folder: Path, other: Path, settings: dict[str, Any]) -> str:
    try:
        theirs = parsed(content_of(other / "settings.json"))["settings"]
        differing = [name for name, value in settings.items() if theirs.get(name) != value]
    except (ValueError, LookupError, TypeError, AttributeError):
        differing = []
    return (
        f"folder must hold no parts of another run, got {folder}, where one that differs in"
        f" {', '.join(differing) or 'its record'} was stopped: --restart (restart=True) throws"
        " them away, or name another folder"
    )
