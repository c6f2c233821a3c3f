"""Memory that is free, and the refusal of what exceeds it."""

import resource
from pathlib import Path

import pytest

import interp
from interp import memory


def test_free_memory_is_within_the_limit_of_the_process():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if memory.available() is None:
        pytest.skip("this system does not report its memory")
    try:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, hard))
        assert 0 < (memory.available() or 0) <= 2**28
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    memory.refuse_beyond("things", 0, "have fewer")
    with pytest.raises(interp.InputError, match="things must fit in memory"):
        memory.refuse_beyond("things", 2**50, "have fewer")
