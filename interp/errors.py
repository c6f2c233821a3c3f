"""`InputError`, the one exception for mistakes of the caller, and checks that raise it."""

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

F = TypeVar("F", bound=Callable[..., Any])


class InputError(ValueError):
    """A mistake of the caller; the message says what to change.

    Scripts print it in one line and exit with code 2. Any other exception is a fault of this
    package and keeps its traceback.

    Example:
        >>> import interp
        >>> try:
        ...     interp.Head.parse("layer 5")
        ... except interp.InputError:
        ...     print("refused")
        refused
    """


def quoted(value: Any) -> str:
    """A value as a message shows it: one line of at most 80 characters.

    Example:
        >>> len(quoted(list(range(1000))))
        80
    """
    try:
        return " ".join(repr(value).split())[:80]
    except ValueError:  # Python writes no number of thousands of digits.
        return "one of too many digits"


def _index(value: Any) -> int:
    try:
        if not isinstance(value, bool):  # Python would read True as 1.
            return operator.index(value)
    except TypeError:
        pass
    raise PydanticCustomError("whole", "Input should be a whole number")


Whole = Annotated[int, BeforeValidator(_index)]
"""A whole number, of numpy and torch too; not a bool."""

Count = Annotated[Whole, Field(ge=1)]
"""A whole number of at least 1."""

Seed = Annotated[Whole, Field(ge=0, le=2**63)]
"""Seed of a random generator, from 0 to 2^63."""


def checked(function: F) -> F:
    """Check the numbers and flags that a public function receives, by its annotations.

    Pydantic validates and converts arguments annotated as `bool`, `Whole`, `Count`, `Seed` or
    another `Annotated` type; a mistake is an `InputError` with the argument's name.

    Example:
        >>> @checked
        ... def probe(rows: Count = 16) -> int:
        ...     return rows
        >>> probe(0)
        Traceback (most recent call last):
        interp.errors.InputError: rows must be greater than or equal to 1, got 0
    """
    if isinstance(function, type):  # Its constructor, such as that of a dataclass.
        function.__init__ = checked(function.__init__)
        return cast(F, function)
    signature = inspect.signature(function)
    kinds: dict[str, TypeAdapter[Any]] = {
        name: TypeAdapter(parameter.annotation)
        for name, parameter in signature.parameters.items()
        if _validated(parameter.annotation)
    }

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name in bound.arguments.keys() & kinds.keys():
            bound.arguments[name] = validated(name, bound.arguments[name], kinds[name])
        return function(*bound.args, **bound.kwargs)

    return cast(F, call)


def validated(name: str, value: Any, kind: Any) -> Any:
    """`value` as the pydantic `TypeAdapter` `kind` converts it, or `InputError` about `name`."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([name, *(str(part) for part in first["loc"] if isinstance(part, str))])
        rule = first["msg"].removeprefix("Input should ").removeprefix("Value error, ")
        rule = "be given" if first["type"] == "missing" else rule.partition(", unable")[0]
        raise InputError(f"{place} must {rule}, got {quoted(first['input'])}") from None


def _validated(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_validated, get_args(annotation)))
    return annotation is bool or get_origin(annotation) is Annotated


@contextmanager
def reading(path: str | PathLike[str], what: str = "a readable file") -> Iterator[None]:
    """Turn any exception about the file `path` into one `InputError`: path must be `what`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error} ({str(path)[-200:]!r})") from None
    except Exception as error:
        raise InputError(f"path must be {what}, got {str(path)[-200:]!r}: {told(error)}") from error


def told(error: Exception) -> str:
    """A library's exception in one line: its type, and up to 200 characters of its message.

    Example:
        >>> told(AssertionError()), told(KeyError("bias"))
        ('AssertionError', "KeyError: 'bias'")
    """
    text = "".join(c if c.isprintable() or c.isspace() else ascii(c)[1:-1] for c in str(error))
    return ": ".join(filter(None, (type(error).__name__, " ".join(text.split())[:200])))
