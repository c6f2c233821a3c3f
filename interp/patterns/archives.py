"""Arrays and token ids from files; nothing in a file is ever run."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from interp.errors import InputError, quoted, reading
from interp.files import parsed
from interp.memory import refuse_beyond

ARRAYS = (".npy", ".npz", ".safetensors")
"""Endings of files with arrays."""

TEXTS = (".json", ".txt")
"""Endings of files with token ids as text: whole numbers, in text one row a line."""


def read_file(path: str | os.PathLike[str], argument: str, endings: tuple[str, ...]) -> Any:
    """The array of a `.npy` file, arrays by name of `.npz` or `.safetensors`, ids of a text file.

    A `.npy` file is mapped into memory, so that only what is used is read. Pickled Python
    objects are never opened. `argument` is the parameter that takes the file, in messages.
    """
    path = Path(path)
    if path.suffix.lower() not in endings:
        rule = f"be an array of numbers or a file of them ({', '.join(endings)})"
        raise InputError(f"{argument} must {rule}, got {quoted(str(path))}")
    with reading(path, f"a file of {argument}"):
        match path.suffix.lower():
            case ".npy":
                array = np.lib.format.open_memmap(path, mode="r")
                if beyond := path.stat().st_size - array.offset - array.nbytes:
                    raise InputError(f"file must end with its array, got {beyond} bytes after it")
                return array
            case ".npz":
                return _archive(path)
            case ".safetensors":
                with safetensors.safe_open(path, framework="pt") as opened:
                    return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            case ".json":
                return parsed(path.read_bytes())
            case _:
                lines = path.read_text(encoding="utf-8").replace(",", " ").splitlines()
                rows = [[int(word) for word in line.split()] for line in lines if line.strip()]
                return [row[0] for row in rows] if all(len(row) == 1 for row in rows) else rows


def _archive(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as entries:  # np.load would open a file that is none as a pickle.
        if len(set(entries.namelist())) < len(entries.namelist()):
            raise InputError("arrays must have unique names, got one twice")
        # A small file can hold very much of the same.
        needed = sum(entry.file_size for entry in entries.infolist())
    refuse_beyond("arrays", needed, "save fewer layers or tokens")
    with np.load(path, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}
