"""Files that are whole or absent, what they hold, and what a record says about its making."""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from interp.errors import InputError, quoted, reading

try:
    import fcntl
except ImportError:  # Windows: scratch folders of killed runs stay there.
    fcntl = None

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

_SCRATCH = ".interp-partial-"
"""Prefix of the folders in which files are written before they move to their place."""


@contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A scratch folder whose contents move into `folder` when the block ends without an error.

    A new `folder` appears in one step. A `folder` that exists keeps its other files, and each
    new file replaces its namesake in one step. If the block raises or is interrupted, `folder`
    stays as it was. A killed process leaves a hidden scratch folder, which the next run in the
    same place removes.

    Raises:
        InputError: If `folder` cannot be made or written to, or the disk is full.
    """
    folder, made = Path(folder), []
    try:
        with ExitStack() as stack:
            try:
                made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
                folder.mkdir(parents=True, exist_ok=True)
                if made:
                    folder.rmdir()
                _clear(folder, folder.parent)
                files = stack.enter_context(_scratch(folder.parent if made else folder))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                raise InputError(f"folder must be writable, got {folder}: {reason}") from None
            yield files
            _move(files, folder, new=bool(made))
    except BaseException as error:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        if (number := _system_number(error)) in _FULL:
            raise InputError(f"{folder} must have room: {os.strerror(number)}") from None
        raise


def _clear(*homes: Path) -> None:
    """Remove the scratch folders of killed processes."""
    for left in (left for home in homes for left in home.glob(f"{_SCRATCH}*")):
        with held(left) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """An empty folder below `home`, locked so that no other process removes it."""
    while True:
        with (
            TemporaryDirectory(prefix=_SCRATCH, dir=home, ignore_cleanup_errors=True) as name,
            held(Path(name)) as free,
        ):
            # Another process may have removed the folder before it was locked.
            if free is not False and (files := Path(name)).exists():
                (files / "files").mkdir()  # With the usual mode: `name` is private.
                yield files / "files"
                return


def _move(files: Path, folder: Path, *, new: bool) -> None:
    mode = files.stat().st_mode & 0o666
    for path in files.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)  # safetensors makes private files.
    if new:
        with suppress(OSError):  # Another process has made the folder meanwhile.
            files.rename(folder)
            return
    folder.mkdir(exist_ok=True)
    with held(folder, wait=True):
        for entry in files.iterdir():
            if entry.is_file() and (folder / entry.name).is_dir():
                raise InputError(f"{folder / entry.name} must be a file, got a folder of that name")
        for entry in sorted(files.iterdir()):
            entry.replace(folder / entry.name)


@contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Lock `folder` against other processes while the block runs; a killed process unlocks it.

    Gives True if it is locked, False if another process has it (unless told to `wait`), and
    None where the system has no such locks.
    """
    descriptor = None
    try:
        locked = None
        with suppress(OSError):  # The folder is gone, or a network drive has no locks.
            if fcntl is not None:
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                    locked = True
                except BlockingIOError:
                    locked = False
        yield locked
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _system_number(error: BaseException) -> int:
    """The number of a system error; safetensors only writes it in its message."""
    written = re.search(r"\(os error (\d+)\)$", str(error))
    return (getattr(error, "errno", None) or 0) if not written else int(written[1])


def write_json(path: str | os.PathLike[str], content: Any, *, indent: int | None = 1) -> None:
    """Write `content` as JSON in UTF-8; numbers that are not finite are an error.

    Raises:
        ValueError: If a number is not finite.
    """
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8", newline="\n")


def as_path(path: Any) -> Path:
    """`path` as a `Path`.

    Raises:
        InputError: If it is neither text nor path-like, or has a null character.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or "\0" in name:
        raise InputError(f"path must be the path of a file, got {quoted(path)}")
    return Path(name)


def content_of(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        InputError: If it cannot be read, or is a folder, a pipe or a device.
    """
    with reading(path, "a file that can be read"):
        if not S_ISREG(path.stat().st_mode):
            raise InputError("path must be a file, got a folder or a device")
        return path.read_bytes()


def text_of(content: bytes) -> str:
    """UTF-8 as text, without a byte order mark.

    Raises:
        InputError: If it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"text must be UTF-8, got something else at byte {error.start}") from None


def parsed(content: bytes) -> Any:
    """The value of JSON text.

    Raises:
        InputError: If it is not JSON in UTF-8, an object has a name twice, or a number is not
            finite.
    """
    try:
        return json.loads(
            text_of(content), object_pairs_hook=without_twins, parse_constant=_no_number
        )
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"text must be JSON: {error}") from None


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object, for `json.loads`.

    Raises:
        InputError: If two have the same name.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError("a JSON object must not have a name twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise InputError(f"numbers must be finite, got {word}")


def utf8(name: str) -> str:
    """A file's name as text that UTF-8 can encode, in any locale."""
    return os.fsencode(name).decode("utf-8", "replace")


def refuse_of_another(out: Path, model: str) -> None:
    """Refuse to overwrite records of another model.

    Args:
        out: Folder or file to be written; it may be missing.
        model: Name of the model, as records have it in `made_by`.

    Raises:
        InputError: If a record there is of another model.
    """
    for path in sorted(out.glob("*.json")) if out.is_dir() else [out] if out.is_file() else []:
        try:
            other = parsed(content_of(path))["made_by"]["model"]
        except (ValueError, LookupError, TypeError):
            continue  # Not a record of a model.
        if other != model:
            raise InputError(
                f"out must not hold results of another model, got {path}, which is of"
                f" {quoted(other)}: choose another folder, or delete it"
            )


def versions() -> dict[str, str]:
    """Releases of the packages that a result depends on, for its record."""
    names = ("interp", "torch", "transformers", "transformer-lens")
    return {name: version(name) for name in names}
