"""How results of this room and the rooms below it are kept: one JSON file each."""

import os
from collections import UserDict
from pathlib import Path
from typing import Any

from interp.errors import InputError, quoted, reading
from interp.files import content_of, parsed, staged, write_json


class Saved:
    """A result with `save` and `load`; `to_json` and `of_json` of a subclass define its file."""

    _indent: int | None = 1

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Write a `.json` file, whole or not at all."""
        path = Path(path)
        if path.suffix != ".json":
            raise InputError(f"path must end in .json, got {quoted(path.name)}")
        with staged(path.parent) as scratch:
            write_json(scratch / path.name, self.to_json(), indent=self._indent)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """Read what `save` wrote."""
        with reading(path, f"a {cls.__name__} that save wrote"):
            make: Any = cls
            return make.of_json(parsed(content_of(Path(path))))


class Report(Saved, UserDict[str, Any]):
    """A result of plain values by name: a mapping, as it is written."""

    def to_json(self) -> dict[str, Any]:
        """The values as `save` writes them."""
        return self.data

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Report":
        """The result that `to_json` wrote."""
        return cls(content)
