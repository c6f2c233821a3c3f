"""Attention heads by name: `Head(5, 1)` is `L5H1`, zero-based."""

import re
from numbers import Integral
from typing import Any, NamedTuple

from interp.errors import InputError, quoted

_NAME = re.compile(
    r"L(\d{1,9})H(\d{1,9})|(\d{1,9})\.(\d{1,9})|\((\d{1,9}),\s*(\d{1,9})\)",
    re.IGNORECASE | re.ASCII,
)


class Head(NamedTuple):
    """One attention head, counted from layer 0 and head 0; heads are *query* heads.

    It is a tuple `(layer, head)`, so it sorts, unpacks and compares as one.

    Example:
        >>> Head(5, 1)
        L5H1
        >>> Head.parse("L5H1") == Head.parse("5.1") == Head.parse((5, 1)) == (5, 1)
        True
    """

    layer: int
    head: int

    def __repr__(self) -> str:
        return f"L{self.layer}H{self.head}"

    __str__ = __repr__

    @classmethod
    def parse(cls, text: Any) -> "Head":
        """The head that `text` names: `L5H1`, `5.1`, `(5, 1)` or a `Head`."""
        if isinstance(text, str) and (match := _NAME.fullmatch(text.strip())):
            return cls(*map(int, filter(None, match.groups())))
        pair: Any = text if isinstance(text, tuple) and len(text) == 2 else [None]
        if all(isinstance(i, Integral) and not isinstance(i, bool) and int(i) >= 0 for i in pair):
            return cls(*map(int, pair))
        raise InputError(f"head must be named like L5H1, 5.1 or (5, 1), got {quoted(text)}")


AnyHead = Head | str | tuple[int, int]
"""A head in any spelling."""
