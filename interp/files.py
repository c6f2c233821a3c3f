"""Files that are whole or not there; and what a record says of what made it."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from interp.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A scratch folder whose contents move into `folder` once the block has ended well.

    Each file moves in one step and replaces its namesake; a folder that is already there
    stays. If the block raises or is
    interrupted, `folder` is as it was before.

    Raises:
        InputError: If `folder` cannot be made or written to.
    """
    folder = Path(folder)
    try:
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    except (OSError, ValueError) as error:
        raise InputError(f"folder must be writable, got {str(folder)[:80]!r}: {error}") from None
    try:
        with _scratch(folder) as name:
            yield Path(name)
            _move(sorted(Path(name).iterdir()), folder)
    except BaseException as error:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError) and error.errno in _FULL:
            raise InputError(f"{folder} must have room: {error.strerror}") from None
        raise


def _scratch(folder: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=folder, prefix=".partial-")
    except OSError as error:
        raise InputError(f"folder must be writable, got {folder}: {error.strerror}") from None


def _move(entries: list[Path], folder: Path) -> None:
    for entry in entries:
        if entry.is_file() and (folder / entry.name).is_dir():
            raise InputError(f"{folder / entry.name} must be a file, got a folder of that name")
    for entry in entries:
        if not (folder / entry.name).is_dir():
            entry.replace(folder / entry.name)


def versions() -> dict[str, str]:
    """The releases that a result depends on, for its record."""
    names = ("interp", "torch", "transformers", "transformer-lens")
    return {name: version(name) for name in names}
