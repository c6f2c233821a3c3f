"""The one exception that means "the caller can mend this", and the checks that most need."""

import operator
from math import isfinite
from typing import Any


class InputError(ValueError):
    """What was asked for cannot be done, and the message says what to change.

    Scripts print it as one line and leave with exit code 2; anything else that
    is raised is a fault of this package and keeps its traceback.
    """


MOST_SEED = 2**63
"""The greatest seed."""


def whole(name: str, value: Any, *, least: int | None = None, most: int | None = None) -> int:
    """`value` as a Python int, if it is a whole number in range: of numpy too, but no bool.

    Raises:
        InputError: If it is not; `name` is what the caller calls it.

    Example:
        >>> whole("rows", 2.0)
        Traceback (most recent call last):
        interp.errors.InputError: rows must be a whole number, got 2.0
    """
    try:
        # True is 1 to Python, and was hardly meant to be.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if least is not None and most is not None and not least <= number <= most:
        raise InputError(f"{name} must be from {least} to {most}, got {number}")
    if least is not None and number < least:
        raise InputError(f"{name} must be at least {least}, got {number}")
    return number


def truth(name: str, value: Any) -> bool:
    """`value`, if it is True or False.

    Raises:
        InputError: If it is not: a text such as "no" would count as True.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    return value


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number that a float can hold, and no bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def whole_seed(seed: Any) -> int:
    """`seed` as a Python int, if it can be one.

    Raises:
        InputError: If it is no whole number from 0 to `MOST_SEED`.
    """
    return whole("seed", seed, least=0, most=MOST_SEED)
