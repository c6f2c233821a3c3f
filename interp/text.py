"""Token texts as labels that show every character."""

import re
import unicodedata
from collections.abc import Sequence

_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥"}

_BYTE = "<0x[0-9A-F]{2}>"
_LETTERS = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _LETTERS} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*_LETTERS}))
}
"""The characters that byte-level vocabularies (GPT-2) write for the 256 bytes."""


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


def with_bytes(piece: str | bytes) -> str | None:
    """Text of a vocabulary entry whose bytes are not all whole characters.

    The other bytes are `<0xF0>`, in hexadecimal. None if the entry is not written in bytes.

    Example:
        >>> with_bytes("ĠðŁ"), with_bytes("<0xF0>"), with_bytes("word€")
        (' <0xF0><0x9F>', '<0xF0>', None)
    """
    if isinstance(piece, str) and re.fullmatch(_BYTE, piece):
        return piece
    if isinstance(piece, str) and any(character not in _BYTES for character in piece):
        return None
    raw = piece if isinstance(piece, bytes) else bytes(map(_BYTES.__getitem__, piece))
    text = raw.decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda part: f"<0x{ord(part[0]) - 0xDC00:02X}>", text)


def joined(texts: Sequence[str]) -> str:
    """The text of a row of tokens, in which bytes of one character are that character again.

    Example:
        >>> joined(["a", " <0xF0><0x9F>", "<0x99>", "<0x82>"])
        'a 🙂'
    """
    return re.sub(
        f"(?:{_BYTE})+",
        lambda part: bytes.fromhex(re.sub("<0x|>", "", part[0])).decode("utf-8", "replace"),
        "".join(texts),
    )


def _literal(character: str) -> str:
    # Unicode categories: C other, Z separator, M mark. U+2800 is blank too.
    hidden = unicodedata.category(character)[0] in "CZM"
    return f"U+{ord(character):04X}" if hidden or character in "␣⏎⇥∅\u2800" else character
