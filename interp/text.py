"""Token texts as labels in which nothing is lost."""

import unicodedata
from collections.abc import Sequence

_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    r"""`text` as a label: texts that differ look different, whatever the font.

    A space is ␣, a newline ⏎, a tab ⇥, an empty text ∅. What has no shape of its own (control,
    zero-width, bidirectional and combining characters, other blanks) and those four signs
    themselves become their number, as U+200B. All else stays as it is.

    Example:
        >>> visible(" the"), visible("a\u202eb\n"), visible("")
        ('␣the', 'aU+202Eb⏎', '∅')
    """
    return "".join(_MARKS.get(character) or _literal(character) for character in text) or "∅"


def prose(text: str) -> str:
    """`visible`, but for titles and names: a space stays a space."""
    return visible(text).replace("␣", " ")


def distinct(texts: Sequence[str], ids: Sequence[int]) -> list[str]:
    """The label of each token; tokens that differ but read alike get their id, as `�#1234`.

    Pieces of a character all decode to �, for one.

    Example:
        >>> distinct(["a", "b", "a", "b"], [5, 6, 5, 7])
        ['a', 'b#6', 'a', 'b#7']
    """
    return apart([visible(text) for text in texts], ids)


def apart(labels: Sequence[str], ids: Sequence[int]) -> list[str]:
    """The labels, with the id after each that tokens of several ids have.

    Example:
        >>> apart(["long…", "long…", "a"], [5, 6, 7])
        ['long…#5', 'long…#6', 'a']
    """
    owners: dict[str, set[int]] = {}
    for label, token in zip(labels, ids, strict=True):
        owners.setdefault(label, set()).add(token)
    return [
        f"{label}#{token}" if len(owners[label]) > 1 else label for label, token in zip(labels, ids)
    ]


def _literal(character: str) -> str:
    # Unicode's kinds of what cannot be seen by itself: other, separator, mark; U+2800 is blank too.
    hidden = unicodedata.category(character)[0] in "CZM"
    return f"U+{ord(character):04X}" if hidden or character in "␣⏎⇥∅\u2800" else character
