"""Moved to `interp.files`."""

from pathlib import Path

from interp.files import as_path, content_of, parsed, text_of, without_twins

__all__ = ["as_path", "content_of", "parsed", "shown", "text_of", "without_twins"]


def shown(path: Path) -> str:
    """A path in a message of one line."""
    name = str(path)[-200:]
    return name if name.isprintable() else ascii(name)
