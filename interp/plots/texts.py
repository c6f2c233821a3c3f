"""Text from outside as labels: nothing lost, nothing executed; and how wide it is."""

from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path

from interp.pages.visible import visible as seen
from interp.plots.style import FONT, STYLE


def visible(text: str) -> str:
    r"""`text` as a label in which nothing is lost: texts that differ look different.

    A space is ␣, a newline ⏎, a tab ⇥, an empty text ∅. What has no shape of its own
    (control, zero-width, bidirectional and combining characters, other blanks), what the
    font lacks, and those four signs themselves become their number, as U+200B. All else
    stays as it is.

    Example:
        >>> visible(" the"), visible("$x$"), visible("a\u200bb\n"), visible("")
        ('␣the', '$x$', 'aU+200Bb⏎', '∅')
    """
    return drawable(seen(text))


def drawable(label: str) -> str:
    """What the font lacks becomes its number."""
    glyphs = _glyphs()
    return "".join(c if ord(c) in glyphs else f"U+{ord(c):04X}" for c in label)


@lru_cache
def _glyphs() -> frozenset[int]:
    """The characters that the font can draw."""
    return frozenset(FT2Font(findfont(FONT)).get_charmap())


def prose(text: str) -> str:
    """`visible`, but a space stays a space: for names in running text."""
    return visible(text).replace("␣", " ")


def inches(text: str, size: float) -> float:
    """How wide `text` is in the font of the figures, at `size` points."""
    font = FontProperties(family=FONT, size=size)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def wrapped(text: str, width: float) -> str:
    """Text of the usual size in lines of at most `width` inches, if no word is longer."""
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]} {word}".lstrip(" ")
        lines[-1:] = [line] if inches(line, STYLE["font.size"]) <= width else [lines[-1], word]
    return "\n".join(lines)
