"""How much memory is at hand, so that what cannot fit is refused before it is made."""

import os
from collections.abc import Iterator
from pathlib import Path

from interp.errors import InputError

try:
    import resource
except ImportError:  # Windows has none.
    resource = None

_GROUP = Path("/sys/fs/cgroup")


def refuse_beyond(what: str, needed: int, instead: str) -> None:
    """Raise InputError in one line if `needed` bytes are more than are at hand.

    Args:
        what: What would take them, in the plural.
        needed: An estimate.
        instead: What the caller can do.
    """
    at_hand = available()
    if at_hand is not None and needed > at_hand:
        raise InputError(
            f"{what} must fit in memory, got {needed / 2**30:,.2f} GiB where"
            f" {at_hand / 2**30:,.2f} GiB are at hand: {instead}"
        )


def available() -> int | None:
    """Bytes that this process can still take; None where the system does not say.

    The least of what the machine has left, what its control group may still take, and what
    the process's own limit on addresses leaves.
    """
    return min(_known(), default=None)


def _known() -> Iterator[int]:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    most, taken = _text(_GROUP / "memory.max").strip(), _text(_GROUP / "memory.current").strip()
    if most.isdecimal() and taken.isdecimal():
        kept = dict(line.split() for line in _text(_GROUP / "memory.stat").splitlines())
        # Copies of files that the system drops when memory is wanted.
        yield max(0, int(most) - int(taken) + int(kept.get("inactive_file", 0)))
    pages = _text(Path("/proc/self/statm")).split()
    if resource is not None and pages:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield max(0, limit - int(pages[0]) * os.sysconf("SC_PAGE_SIZE"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
