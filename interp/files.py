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
from typing import TYPE_CHECKING, Any, NoReturn

from interp.errors import InputError, quoted, reading

if TYPE_CHECKING:
    import pandas as pd

_SCRATCH = ".interp-partial-"


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
        # safetensors writes the number of a system error in its message only.
        written = re.search(r"\(os error (\d+)\)$", str(error))
        number = int(written[1]) if written else getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
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

    Gives True if it is locked, False if another process has it and `wait` is not set, and None
    where the system has no such locks.
    """
    with ExitStack() as stack:
        locked = None
        with suppress(OSError, ImportError):  # A missing folder, a network drive or Windows.
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                locked = True
            except BlockingIOError:
                locked = False
        yield locked


def write_json(path: str | os.PathLike[str], content: Any, *, indent: int | None = 1) -> None:
    """Write `content` as JSON in UTF-8; `ValueError` if a number is not finite."""
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8", newline="\n")


def plain_rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """The rows of a table as plain values, with None for what is missing, as JSON needs it."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def content_of(path: Path) -> bytes:
    """The bytes of a file; `InputError` for a folder, a pipe, a device, or on failure."""
    with reading(path, "a file that can be read"):
        if not S_ISREG(path.stat().st_mode):
            raise InputError("path must be a file, got a folder or a device")
        return path.read_bytes()


def parsed(content: bytes) -> Any:
    """The value of JSON in UTF-8, with or without a byte order mark.

    Raises:
        InputError: If it is not JSON, an object has a name twice, or a number is not finite.
    """
    try:
        return json.loads(
            content.decode("utf-8-sig"), object_pairs_hook=without_twins, parse_constant=_no_number
        )
    except (ValueError, RecursionError) as error:
        raise InputError(f"text must be JSON: {error}") from None


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object for `json.loads`; `InputError` if two have the same name."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise InputError("a JSON object must not have a name twice")
    return members


def _no_number(word: str) -> NoReturn:
    raise InputError(f"numbers must be finite, got {word}")


def refuse_of_another(out: Path, model: str, digest: str | None = None) -> None:
    """Raise `InputError` if `out`, a folder or file that may be missing, is of another model.

    Records have the name of their model in `made_by`, and the digest of its weights. A model's
    digest is known when it is loaded: without it names alone are compared.
    """
    for path in sorted(out.glob("*.json")) if out.is_dir() else [out] if out.is_file() else []:
        try:
            made_by = parsed(content_of(path))["made_by"]
            name, other = made_by["model"], made_by.get("digest")
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # Not a record of a model.
        if name != model or (digest and other and other != digest):
            words = quoted(name) + (f" with weights of digest {other}" if name == model else "")
            raise InputError(
                f"out must not hold results of another model, got {path}, which is of"
                f" {words}: choose another folder, or delete it"
            )


def versions() -> dict[str, str]:
    """Releases of the packages that a result depends on, for its record."""
    names = ("interp", "torch", "transformers", "transformer-lens")
    return {name: version(name) for name in names}
