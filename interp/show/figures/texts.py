"""Text from outside as labels: nothing lost, nothing executed; and how wide it is."""

import re
from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path

from interp import text as visible
from interp.show.figures.style import FONT, STYLE


def legible(text: str) -> str:
    r"""`text` as a label that the font can draw: `interp.text.visible`, then `drawable`.

    Example:
        >>> legible(" the"), legible("$x$"), legible("\U0010ffff")
        ('␣the', '$x$', 'U+10FFFF')
    """
    return drawable(visible.visible(text))


def drawable(label: str) -> str:
    """What the font lacks becomes its number."""
    glyphs = _glyphs()
    return "".join(c if ord(c) in glyphs else f"U+{ord(c):04X}" for c in label)


@lru_cache
def _glyphs() -> frozenset[int]:
    """The characters that the font can draw."""
    return frozenset(FT2Font(findfont(FONT)).get_charmap())


def prose(text: str) -> str:
    """`legible`, but a space stays a space: for names in running text."""
    return drawable(visible.prose(text))


def inches(text: str, size: float) -> float:
    """How wide `text` is in the font of the figures, at `size` points."""
    font = FontProperties(family=FONT, size=size)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def wrapped(text: str, width: float) -> str:
    """Text of the usual size in lines of at most `width` inches, if no word is longer.

    A percent sign stays beside its number.
    """
    lines = [""]
    for word in re.split(" (?!%)", text):
        line = f"{lines[-1]} {word}".lstrip(" ")
        lines[-1:] = [line] if inches(line, STYLE["font.size"]) <= width else [lines[-1], word]
    return "\n".join(lines)
