"""Available memory, so that a run stops before it exceeds it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from interp.errors import InputError

_GROUP = Path("/sys/fs/cgroup")


def refuse_beyond(what: str, needed: int, instead: str) -> None:
    """Raise `InputError` if `needed` bytes exceed the available memory.

    Args:
        what: Name of what needs the memory, in the plural.
        needed: Estimated bytes.
        instead: Advice to the caller.
    """
    free = available()
    if free is not None and needed > free:
        raise InputError(
            f"{what} must fit in memory, got {needed / 2**30:,.2f} GiB with"
            f" {free / 2**30:,.2f} GiB available: {instead}"
        )


def available() -> int | None:
    """Bytes that this process can still take; None where the system does not say.

    The minimum of what is left on the machine, in the process's control group, and under its
    limit on address space.
    """
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    most, taken = _text(_GROUP / "memory.max").strip(), _text(_GROUP / "memory.current").strip()
    if most.isdecimal() and taken.isdecimal():
        stat = dict(line.split() for line in _text(_GROUP / "memory.stat").splitlines())
        # The system drops copies of files when it needs their memory.
        yield max(0, int(most) - int(taken) + int(stat.get("inactive_file", 0)))
    with suppress(ImportError, OSError):  # Windows.
        import resource

        pages = Path("/proc/self/statm").read_text().split()[0]
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield max(0, limit - int(pages) * resource.getpagesize())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
