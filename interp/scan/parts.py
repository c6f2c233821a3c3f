"""Results that are made in parts, each kept as a file, so that a stopped run can be resumed."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FOLDER = ".parts"


@contextmanager
def parts_of(folder: Path, settings: dict[str, Any], *, restart: bool = False) -> Iterator[Path]:
    """Folder, below `folder`, for the parts of the run with these `settings`.

    It is named by the digest of the settings, so that runs with other settings never share
    parts. Write each part through `interp.files.staged`: a part that exists is whole. The parts
    are removed when the block ends without an error, and stay for the next run otherwise.

    Args:
        folder: Folder of the results.
        settings: Everything that a part depends on, as JSON has it.
        restart: Whether to remove the parts of an earlier run first.
    """
    text = json.dumps(settings, ensure_ascii=False)
    own = folder / FOLDER / hashlib.sha256(text.encode()).hexdigest()[:16]
    if restart:
        _remove(own)
    yield own
    _remove(own)


def _remove(own: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(own)
    with suppress(OSError):  # Another run has parts there.
        own.parent.rmdir()
