"""Text from outside as labels: nothing lost, nothing executed; and how wide it is."""

import re
from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path

from interp import text as plain
from interp.show.figures.style import FONT, STYLE
from interp.show.prompt import Text


def legible(text: str) -> str:
    r"""`text` as a label that the font can draw: `interp.text.visible`, then `drawable`.

    Example:
        >>> legible(" the"), legible("$x$"), legible("\U0010ffff")
        ('␣the', '$x$', 'U+10FFFF')
    """
    return drawable(plain.visible(text))


def drawable(label: str) -> str:
    """`label` with the number of each character that the font lacks."""
    glyphs = _glyphs()
    return "".join(c if ord(c) in glyphs else f"U+{ord(c):04X}" for c in label)


@lru_cache
def _glyphs() -> frozenset[int]:
    """The characters that the font can draw."""
    return frozenset(FT2Font(findfont(FONT)).get_charmap())


def prose(text: str) -> str:
    """`legible`, but a space stays a space: for names in running text."""
    return drawable(plain.prose(text))


@lru_cache(4096)
def inches(text: str, size: float) -> float:
    """Width of `text` in the font of the figures, at `size` points."""
    font = FontProperties(family=FONT, size=size)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def wrapped(text: str, width: float) -> str:
    """Text of the usual size in lines of at most `width` inches, if no word is longer.

    A percent sign stays with its number.
    """
    lines = [""]
    for word in re.split(" (?!%)", text):
        line = f"{lines[-1]} {word}".lstrip(" ")
        lines[-1:] = [line] if inches(line, STYLE["font.size"]) <= width else [lines[-1], word]
    return "\n".join(lines)


def labels_of(text: Text, *, width: float, size: float) -> list[str]:
    """Each token as a label; a label wider than `width` inches is cut and ends in ….

    Different tokens whose labels are the same get their ids.
    """
    words = [_cut(legible(token), width=width, size=size) for token in text.texts]
    return plain.distinct(words, text.ids.tolist())


def _cut(label: str, *, width: float, size: float) -> str:
    if inches(label, size) <= width:
        return label
    label = label[:200]
    while inches(f"{label}…", size) > width:
        label = label[:-1]
    return f"{label}…"


def ending(name: str, width: float) -> str:
    """A name as text of a title; of one wider than `width` inches the end."""
    name = prose(name)
    name = name if len(name) < 200 else "…" + name[-199:]
    while inches(name, 10.0) > width:
        name = "…" + name[2:]
    return name
