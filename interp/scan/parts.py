"""Finished parts of a long run, one file each, so that the same call resumes after a stop."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.files import staged

LOG = logging.getLogger("interp")


@dataclass
class Parts:
    """The parts of one run in `FOLDER/.parts`, in a folder named after its settings.

    Runs with other settings have another folder, so that they never share parts.

    Attributes:
        folder: Folder of the result.
        files: File of each part.
        what: What a part is, in the plural.
        saved: Whether the result is whole, so that parts are not needed any more.
    """

    folder: Path
    files: list[Path]
    what: str
    saved: bool = False

    @classmethod
    def of(
        cls, folder: Any, settings: Mapping[str, Any], number: int, ending: str, what: str
    ) -> "Parts":
        """The parts of a run with these settings, which JSON can hold."""
        digest = hashlib.sha256(json.dumps(settings, ensure_ascii=False).encode()).hexdigest()
        place = Path(folder) / ".parts" / digest[:16]
        return cls(Path(folder), [place / f"{n:06d}{ending}" for n in range(number)], what)

    @property
    def done(self) -> int:
        """Number of finished parts."""
        return sum(file.exists() for file in self.files)

    def remove(self) -> None:
        """Delete the files, and their folders."""
        place = self.files[0].parent
        with suppress(FileNotFoundError):
            shutil.rmtree(place)
        with suppress(OSError):  # Another run has parts there.
            place.parent.rmdir()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Name the parts that are kept if the block is interrupted."""
        if done := self.done:
            LOG.info("%d of %d %s are done already", done, len(self.files), self.what)
        try:
            yield
        except KeyboardInterrupt:
            kept = f"{self.done} of {len(self.files)} {self.what} are kept in {self.folder}: repeat"
            whole = f"all scores are in {self.folder}"
            raise KeyboardInterrupt(whole if self.saved else f"{kept} the call to resume") from None

    def fill(self, number: int, make: Callable[[Path], object]) -> Path:
        """The file of a part, which `make` writes if it is not there."""
        file = self.files[number]
        if not file.exists():
            with staged(file.parent) as scratch:
                make(scratch / file.name)
        return file
