"""Token texts as labels that show every character."""

import unicodedata
from collections.abc import Sequence

_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    r"""`text` as a label: different texts look different in any font.

    A space is ␣, a newline ⏎, a tab ⇥, an empty text ∅. Invisible characters (control,
    zero-width, bidirectional, combining, other blanks) and those four signs themselves become
    their code point, such as U+200B. All other characters stay.

    Example:
        >>> visible(" the"), visible("a\u202eb\n"), visible("")
        ('␣the', 'aU+202Eb⏎', '∅')
    """
    return "".join(_MARKS.get(character) or _literal(character) for character in text) or "∅"


def prose(text: str) -> str:
    """`visible` for titles and names: a space stays a space."""
    return visible(text).replace("␣", " ")


def distinct(labels: Sequence[str], ids: Sequence[int]) -> list[str]:
    """`labels` as `visible` returns them, with the token id where tokens of several ids look alike.

    For example, every piece of a split character decodes to �.

    Example:
        >>> distinct(["a", "b", "a", "b"], [5, 6, 5, 7])
        ['a', 'b#6', 'a', 'b#7']
    """
    owners: dict[str, set[int]] = {}
    for label, token in zip(labels, ids, strict=True):
        owners.setdefault(label, set()).add(token)
    return [
        f"{label}#{token}" if len(owners[label]) > 1 else label for label, token in zip(labels, ids)
    ]


def _literal(character: str) -> str:
    # Unicode categories: C other, Z separator, M mark. U+2800 is blank too.
    hidden = unicodedata.category(character)[0] in "CZM"
    return f"U+{ord(character):04X}" if hidden or character in "␣⏎⇥∅\u2800" else character
