"""Types and shapes are checked while tests run, by `--jaxtyping-packages` in pyproject.toml.

To check every call would nearly double the time of the tests, so each function is checked in
its first calls of each file of tests.
"""

import functools
from contextlib import contextmanager

import jaxtyping

CALLS = 10

jaxtyped, running = jaxtyping.jaxtyped, None


def pytest_runtest_setup(item):
    global running
    running = item.path


def checked_at_first(function, typechecker):
    """Inner functions, which would be decorated again at each call of the outer one, stay."""
    if isinstance(function, type):
        of_dataclass = "__dataclass_fields__" in vars(function)
        if of_dataclass and not hasattr(function.__init__, "__wrapped__"):
            function.__init__ = checked_at_first(function.__init__, typechecker)
        return function
    if "<locals>" in function.__qualname__:
        return function
    checked, file, calls = jaxtyped(function, typechecker=typechecker), None, 0

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal file, calls
        if file != running:
            file, calls = running, 0
        calls += 1
        return (checked if calls <= CALLS else function)(*args, **kwargs)

    return call


def pytest_configure():  # Once, although this file is imported again to look for doctests.
    jaxtyping.jaxtyped = lambda typechecker: functools.partial(
        checked_at_first, typechecker=typechecker
    )


@contextmanager
def unchecked():
    """Functions run as users call them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
