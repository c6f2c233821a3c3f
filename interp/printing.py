"""How figures are printed: settings that every figure and every command that draws share."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal

from interp.errors import InputError, quoted


@dataclass(frozen=True)
class Print:
    """How figures are printed: keywords that every figure takes.

    Attributes:
        title: Title instead of the figure's own; "" for no title.
        notes: Whether the figure says what was run and how to read it; or a text to say instead.
        width: Width in inches: 3.3 for a column of a paper; by default 6.9, and 10 for a talk.
            Text is 7 to 9 points at this width, and twice as large for a talk.
        context: `paper` for no title and no notes, `talk` for large text and no notes, except
            where `title` and `notes` say otherwise.
    """

    title: str | None = None
    notes: bool | str | None = None
    width: float | None = None
    context: Literal["paper", "talk"] | None = None

    def __post_init__(self) -> None:
        if self.context not in (None, "paper", "talk"):
            raise InputError(f"context must be paper or talk, got {quoted(self.context)}")
        if self.width is not None and not 3 <= self.width / self.zoom <= 50:
            least = f"{3 * self.zoom:g}"
            raise InputError(f"width must be from {least} inches up, got {quoted(self.width)}")

    @property
    def zoom(self) -> int:
        """How much larger than on paper text is."""
        return 2 if self.context == "talk" else 1


_PRINT: ContextVar[Print] = ContextVar("print", default=Print())  # noqa: B039


@contextmanager
def printed(**how: Any) -> Iterator[Print]:
    """Print settings (see `Print`) of all figures drawn in the block, as far as they have none.

    Example:
        >>> from interp.show import figures
        >>> with figures.printed(context="paper", width=3.3):
        ...     figure = figures.head_map([[0.1, 0.4], [0.0, 0.9]])
        >>> float(figure.get_figwidth())
        3.3
    """
    given = {name: value for name, value in how.items() if value is not None}
    token = _PRINT.set(replace(_PRINT.get(), **given))
    try:
        yield _PRINT.get()
    finally:
        _PRINT.reset(token)


def current() -> Print:
    """The settings of the block."""
    return _PRINT.get()
