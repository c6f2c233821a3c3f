"""What is in a file of anyone's: its bytes, and what JSON text says, in words where it is none."""

import json
import os
from pathlib import Path
from stat import S_ISREG
from typing import Any, NoReturn

from interp.errors import InputError


def as_path(path: Any) -> Path:
    """`path` as a `Path`, if it is one that a system can have: a text, or what stands for one.

    Raises:
        InputError: If it is not.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or "\0" in name:
        raise InputError(f"path must be the path of a file, got {repr(path)[:80]}")
    return Path(name)


def shown(path: Path) -> str:
    """A path in a message of one line: of a long one the end, and by number what has no shape."""
    name = str(path)[-200:]
    return name if name.isprintable() else ascii(name)


def content_of(path: Path) -> bytes:
    """All that is in a file.

    Raises:
        InputError: If there is no such file, it cannot be read, or it is a folder or a device,
            of which nothing is read.
    """
    try:
        if not S_ISREG(path.stat().st_mode):
            raise InputError(f"path must be a file, got a folder or a device: {shown(path)}")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"path must be a file that is there, got {shown(path)}") from None
    except OSError as error:
        raise InputError(
            f"path must be a file that can be read, got {shown(path)}: {error.strerror}"
        ) from None


def text_of(content: bytes) -> str:
    """UTF-8 as text; a byte order mark before it is no part of it.

    Raises:
        InputError: If it is no UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"text must be UTF-8, got something else at byte {error.start}") from None


def parsed(content: bytes) -> Any:
    """What JSON text says.

    Raises:
        InputError: If it is no JSON in UTF-8, a name in an object is there twice, it is nested
            too deeply, it has numbers that are not finite or have thousands of digits, or halves
            of characters, which no file can hold.
    """
    text = text_of(content)
    try:
        found = json.loads(text, object_pairs_hook=without_twins, parse_constant=_no_number)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(
            f"text must be JSON, got something else at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError("JSON must be nested less deeply") from None
    except UnicodeEncodeError:
        raise InputError("text must be of whole characters, got half of one") from None
    except InputError:
        raise
    except ValueError:
        raise InputError("numbers must have fewer digits") from None
    return found


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object, for `json.loads`.

    Raises:
        InputError: If two have one name.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError("a name is there twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise InputError(f"numbers must be finite, got {word}")
