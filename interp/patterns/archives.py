"""Arrays and token ids out of anyone's files; nothing in a file is ever run."""

import os
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from interp.errors import InputError, quoted, said
from interp.files import parsed, text_of
from interp.memory import refuse_beyond


def read_arrays(path: str | os.PathLike[str]) -> Any:
    """The array of a `.npy` file, or the arrays by name of a `.npz` or `.safetensors` file.

    A `.npy` file is mapped into memory, so that only what is looked at is read. Arrays of
    Python objects, which numpy would have to unpickle, are never opened.

    Raises:
        InputError: If there is no such file, it holds no such thing or two of one name, or what
            is packed in it does not fit in memory.
    """
    return _read(path, _ARRAYS, "patterns")


def read_tokens(path: str | os.PathLike[str]) -> Any:
    """The token ids in a file: arrays as `read_arrays` has them, `.json` or `.txt`.

    Text holds whole numbers, one row a line; one number on each line is one row.

    Raises:
        InputError: If there is no such file, or it holds no such thing.
    """
    return _read(path, {**_ARRAYS, ".json": _json, ".txt": _text}, "tokens")


def _read(
    path: str | os.PathLike[str], readers: Mapping[str, Callable[[Path], Any]], name: str
) -> Any:
    path = Path(path)
    read = readers.get(path.suffix.lower())
    if read is None:
        raise InputError(
            f"{name} must be an array of numbers or a file of them ({', '.join(readers)}),"
            f" got {str(path)[:80]!r}"
        )
    try:
        there = path.is_file()
    except OSError as error:  # Of a name that is too long.
        raise InputError(
            f"{name} must be a file that is there, got {quoted(str(path))}: {error.strerror}"
        ) from None
    if not there:
        raise InputError(f"{name} must be a file that is there, got {quoted(str(path))}")
    try:
        return read(path)
    except InputError as error:
        raise InputError(f"{path} must be a whole {path.suffix} file: {error}") from None
    # What a damaged file can set off is not for numpy's or Python's readers to say: all of it.
    except Exception as error:
        told = said(error)[:150] or type(error).__name__
        if "pickle" in told or "Python objects" in told:
            told = "Python objects, which are never opened"
        raise InputError(f"{path} must be a whole {path.suffix} file, got: {told}") from error


def _npy(path: Path) -> Any:
    array = np.lib.format.open_memmap(path, mode="r")
    if beyond := path.stat().st_size - array.offset - array.nbytes:
        raise InputError(f"file must end with its array, got {beyond} bytes after it")
    return array


def _npz(path: Path) -> Any:
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file) or file.seek(0) or file.read(2) != b"PK":
            raise InputError("it must be an archive of arrays, got something else or damage")
        file.seek(0)
        opened = np.load(file, allow_pickle=False)
        if len(set(opened.files)) < len(opened.files):
            raise InputError("arrays must have names of their own, got one twice")
        # A small file can hold very much of the same.
        needed = sum(entry.file_size for entry in opened.zip.infolist())
        refuse_beyond("arrays", needed, "save fewer layers or tokens")
        return {name: opened[name] for name in opened.files}


def _safetensors(path: Path) -> Any:
    with safetensors.safe_open(path, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def _json(path: Path) -> Any:
    return parsed(path.read_bytes())


def _text(path: Path) -> Any:
    lines = text_of(path.read_bytes()).replace(",", " ").splitlines()
    rows = [[_whole(word) for word in line.split()] for line in lines if line.strip()]
    return [row[0] for row in rows] if all(len(row) == 1 for row in rows) else rows


def _whole(word: str) -> int:
    if not re.fullmatch("-?[0-9]{1,19}", word):  # Python would take 1_000 for a number, too.
        raise InputError(f"text must be whole numbers, got {word!r:.40}")
    return int(word)


_ARRAYS = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
