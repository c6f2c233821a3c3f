"""The one exception that means "the caller can mend this", and the checks that most need."""

import operator
from math import isfinite
from typing import Any


class InputError(ValueError):
    """What was asked for cannot be done, and the message says what to change.

    Scripts print it as one line and leave with exit code 2; anything else that
    is raised is a fault of this package and keeps its traceback.
    """


_SHOWN = 80
"""Characters of a value that a message shows."""

_TOLD = 200
"""Characters of what a library says that a message passes on."""

MOST_SEED = 2**63
"""The greatest seed."""


def quoted(value: Any) -> str:
    """A value as a message shows it: in one line, and no more of it than can be read.

    Example:
        >>> len(quoted(list(range(1000))))
        80
    """
    try:
        return " ".join(repr(value).split())[:_SHOWN]
    except ValueError:  # Python writes no number of thousands of digits.
        return "one of too many digits"


def told(error: Exception) -> str:
    """What a library raised, in one line: its kind, and the beginning of what it says, if it does.

    Example:
        >>> told(AssertionError()), told(KeyError("bias"))
        ('AssertionError', "KeyError: 'bias'")
    """
    return ": ".join(filter(None, (type(error).__name__, said(error))))


def said(error: Exception) -> str:
    r"""As `told`, without the kind.

    Example:
        >>> said(ValueError("two\nlines")), said(AssertionError())
        ('two lines', '')
    """
    text = "".join(c if c.isprintable() or c.isspace() else ascii(c)[1:-1] for c in str(error))
    return " ".join(text.split())[:_TOLD]


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
        raise InputError(f"{name} must be a whole number, got {quoted(value)}")
    if least is not None and most is not None and not least <= number <= most:
        raise InputError(f"{name} must be from {least} to {most}, got {quoted(number)}")
    if least is not None and number < least:
        raise InputError(f"{name} must be at least {least}, got {quoted(number)}")
    return number


def truth(name: str, value: Any) -> bool:
    """`value` as a Python bool, if it is True or False: of numpy too.

    Raises:
        InputError: If it is not: a text such as "no" would count as True.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if not isinstance(value, bool) and (kind != "b" or value.ndim):
        raise InputError(f"{name} must be True or False, got {quoted(value)}")
    return bool(value)


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
