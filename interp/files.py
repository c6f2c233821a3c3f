"""Files that are whole or not there; and what a record says of what made it."""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex

from interp.contents import content_of
from interp.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: nothing is held there, and nothing of a killed run cleared.
    fcntl = None

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

_NAMES = (errno.ENAMETOOLONG, errno.EILSEQ)

_SCRATCH, _READY = ".interp-partial-", ".interp-ready-"
"""What the folder around is called until all files are written, and while they move."""

_FILES = "files"


@contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A scratch folder whose contents move into `folder` once the block has ended well.

    Where `folder` is new, the scratch folder becomes it, in one step. Where it is there
    already it stays, and each file moves in one step and replaces its namesake: a process
    that is killed between two of these leaves whole files, some new and some old, and the
    next that works in the same place moves the others first. Two processes may write into
    one folder: the files of one move before any of the other's.
    If the block raises or is interrupted, `folder` is as it was before; what a process that
    was killed in the block has left is cleared by the next that works in the same place.

    Raises:
        InputError: If `folder` cannot be made or written to.
    """
    folder = Path(folder)
    try:
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    except (OSError, ValueError) as error:
        raise InputError(f"folder must be writable, got {str(folder)[:80]!r}: {error}") from None
    try:
        with _scratch(folder, new=bool(made)) as scratch:
            yield scratch
            _open_to_all(scratch)
            _move(scratch, folder, new=bool(made))
    except BaseException as error:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        number = _system_number(error)
        if number in _FULL:
            raise InputError(f"{folder} must have room: {os.strerror(number)}") from None
        if isinstance(error, OSError) and number in _NAMES:
            name = Path(str(error.filename)).name[:80]
            raise InputError(f"name must be one that a file can have, got {name!r}") from None
        raise


def _system_number(error: BaseException) -> int | None:
    """What the system calls an error by; some libraries, such as safetensors, only write it."""
    if isinstance(error, OSError):
        return error.errno
    written = re.search(r"\(os error (\d+)\)$", str(error))
    return int(written[1]) if written else None


def _open_to_all(scratch: Path) -> None:
    """Let files be read by whoever may look into their folder: some libraries make them private."""
    mode = scratch.stat().st_mode & 0o666
    for path in scratch.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


@contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Hold `folder` against other processes while the block runs; one that is killed lets go.

    Gives True if it is held; False if somebody else holds it, unless told to `wait`; None
    where the system cannot say.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # It is gone, or this is Windows, where no folder can be opened.
        yield None
        return
    try:
        yield _lock(descriptor, wait)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool | None:
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # Some network drives know no locks.
        return None
    return True


@contextmanager
def _scratch(folder: Path, new: bool) -> Iterator[Path]:
    """An empty folder, beside `folder` if that is new, else in it.

    The folder around it is held as long as this process lives, which tells others so.
    """
    home = folder.parent if new else folder
    around = home / f"{_SCRATCH}{token_hex(8)}"
    with ExitStack() as alive:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if new:
                folder.rmdir()
            else:
                with held(folder.parent) as alone:
                    if alone:  # Who made the folder may have been killed as soon as it was there.
                        _clear(folder.parent)
            with held(home, wait=True):  # Nobody clears what is made but not held yet.
                _clear(home)
                around.mkdir()
                alive.enter_context(held(around))
                for name in (around, _when_ready(around)):
                    alive.callback(_settle, name)
            (around / _FILES).mkdir()
        except OSError as error:
            raise InputError(f"folder must be writable, got {folder}: {error.strerror}") from None
        yield around / _FILES


def _clear(home: Path) -> None:
    """Settle the scratch folders of processes that are gone."""
    for left in (*home.glob(f"{_READY}*"), *home.glob(f"{_SCRATCH}*")):
        with held(left) as alone, suppress(OSError):  # What others left stops nobody.
            if alone:
                _settle(left)


def _when_ready(around: Path) -> Path:
    return around.with_name(around.name.replace(_SCRATCH, _READY))


def _settle(around: Path) -> None:
    """Move files that are ready to where they belong, and remove their scratch folder."""
    files = around / _FILES
    linked = around.is_symlink() or files.is_symlink()  # Such are not made here.
    if around.name.startswith(_READY) and files.is_dir() and not linked:
        for entry in sorted(files.iterdir()):
            if not (around.parent / entry.name).is_dir():
                entry.replace(around.parent / entry.name)
    shutil.rmtree(around, ignore_errors=True)


def _move(scratch: Path, folder: Path, new: bool) -> None:
    if new:
        with suppress(OSError):
            scratch.rename(folder)
            return
        with _scratch(folder, new=False) as inside:  # Another process has made it meanwhile.
            for entry in scratch.iterdir():
                entry.rename(inside / entry.name)
            _move(inside, folder, new=False)
        return
    for entry in sorted(scratch.iterdir()):
        if entry.is_file() and (folder / entry.name).is_dir():
            raise InputError(f"{folder / entry.name} must be a file, got a folder of that name")
    with held(folder, wait=True):
        _clear(folder)  # Whoever was killed on the way came first.
        ready = _when_ready(scratch.parent)
        scratch.parent.rename(ready)
        _settle(ready)


def utf8(name: str) -> str:
    """A file's name as text that can be written, whatever the locale made of its bytes."""
    return os.fsencode(name).decode("utf-8", "replace")


def refuse_of_another(out: Path, model: str) -> None:
    """Refuse a folder whose records are of another model, or such a file: they would be lost.

    Args:
        out: What is to be written to; it need not be there.
        model: As records have it in `made_by`.

    Raises:
        InputError: With the name of the model whose results are there.
    """
    for path in sorted(out.glob("*.json")) if out.is_dir() else [out] if out.is_file() else []:
        try:
            other = json.loads(content_of(path))["made_by"]["model"]
        except (ValueError, LookupError, TypeError, RecursionError):
            continue  # No record of a model's.
        if other != model:
            raise InputError(
                f"out must not hold results of another model, got {path}, which is of"
                f" {str(other)[:80]}: name another place, or delete it"
            )


def versions() -> dict[str, str]:
    """The releases that a result depends on, for its record."""
    names = ("interp", "torch", "transformers", "transformer-lens")
    return {name: version(name) for name in names}
