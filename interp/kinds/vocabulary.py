r"""More rules that say where a query should look, from the tokens and their texts.

Every rule is `rule(tokens, texts) -> keys`, with `tokens [batch, pos]` and `keys [batch, query, m]`
as in `interp.kinds.targets`, and `texts [batch, pos]` the text of each token (" the", ".", "\n"; ""
at padding). Keys are at or before their query. The first token of a row is neither query nor
target. A query does not count if its target is itself or a neighbour, where the rule cannot be
distinguished from the previous or the current token.

Where a query has several targets, the rule keeps the nearest ones, at most a tenth of the keys that
the query sees.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import pad

from interp.errors import InputError
from interp.kinds.kind import Texts
from interp.kinds.targets import (
    NONE,
    Keys,
    Tokens,
    apart,
    at_keys,
    earlier_copies,
    first_token,
    latest,
    ordinary,
    positions,
)

SEVERAL = 8
"""Most targets of a query, where a rule keeps the nearest few."""

BRACKETS = {"(": ")", "[": "]", "{": "}"}
QUOTES = {'"': '"', "“": "”", "«": "»", "„": "“"}

_FUNCTION_WORDS = """
    a about after all also an and any are as at be because been before being but by can could did
    do does each either every few for from had has have he her here him his how i if in into is it
    its may me might more most much must my neither no nor not of off on one only or other our out
    over she should since so some such than that the their them then there these they this those
    though through to too under until up us very was we were what when where which while who whom
    whose why will with within without would yet you your
"""


def offset(distance: int) -> Callable[..., Keys]:
    """The rule for a fixed distance: the token so many positions before the query.

    Raises:
        InputError: If the distance is below 2 (the previous and the current token are kinds).

    Example:
        >>> offset(2)(torch.tensor([[0, 7, 8, 9]]))[0, :, 0].tolist()
        [-1, -1, -1, 1]
    """
    if distance < 2:
        raise InputError(f"distance must be at least 2, got {distance}")

    def at_offset(tokens: Tokens) -> Keys:
        keys = positions(tokens)[..., None] - distance
        return apart(tokens, (), keys.clamp(min=NONE))

    return at_offset


def recent(tokens: Tokens, *, width: int = 8) -> Keys:
    """The tokens before the local window of `width`: three windows, and at most a tenth of all.

    Example:
        >>> recent(torch.arange(40)[None])[0, 39, :5].tolist()
        [31, 30, 29, 28, -1]
    """
    keys = positions(tokens)[..., None] - torch.arange(width, 4 * width, device=tokens.device)
    keys = _tenth(tokens, keys.clamp(min=NONE))
    real = ordinary(tokens)
    return torch.where(real[..., None] & at_keys(real, keys), keys, NONE)


def ngram_induction(tokens: Tokens) -> Keys:
    """The tokens after earlier copies of the query together with the token before it.

    `[A][B][C] ... [A][B] -> [C]` (Akyürek et al. 2024, arXiv 2401.12973). A query counts only if at
    least as many earlier copies of its token follow another token, so that a plain induction head
    gives these keys at most half of its attention.

    Example:
        >>> ngram_induction(torch.tensor([[0, 7, 8, 1, 9, 8, 2, 7, 8]]))[0, 8].tolist()
        [3]
    """
    real = ordinary(tokens)
    paired = real & pad(real, (1, 0))[:, :-1]
    ids = torch.unique(tokens, return_inverse=True)[1]
    pairs = torch.where(paired, ids * (ids.max() + 1) + ids.roll(1, -1), NONE)
    copies = earlier_copies(pairs)
    number = (copies != NONE).sum(-1)
    alone = (earlier_copies(torch.where(real, tokens, NONE)) != NONE).sum(-1) - number
    counted = (alone >= number)[..., None] & (copies != NONE)
    return apart(tokens, (), torch.where(counted, copies + 1, NONE))


def word_form(tokens: Tokens, texts: Texts) -> Keys:
    """The nearest earlier forms of the query's word that are other tokens: " Rose" and "rose".

    Two tokens are forms of one word if they differ only in case and blanks, or if one begins with
    the other, which has four letters or more.

    Example:
        >>> texts = [["A", " rose", " is", " a", "Rose"]]
        >>> word_form(torch.arange(5)[None], texts)[0, 4].tolist()
        [1]
    """
    rows = []
    for ids, row in zip(tokens.tolist(), texts, strict=True):
        by_stem: dict[str, list[tuple[int, str, int]]] = {}
        found: list[list[int]] = []
        for at, (token, text) in enumerate(zip(ids, row)):
            word = text.strip().lower()
            stem = by_stem.setdefault(word[:4] if len(word) > 4 else word, [])
            same = [key for other, bare, key in stem if other != token and _form(word, bare)]
            found.append(same[: -SEVERAL - 1 : -1] if word.isalpha() and at else [])
            stem.append((token, word, at))
        rows.append(found)
    most = max([len(keys) for found in rows for keys in found] + [1])
    filled = [[keys + [NONE] * (most - len(keys)) for keys in found] for found in rows]
    return apart(tokens, (), torch.tensor(filled, device=tokens.device))


def _form(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def last_punctuation(tokens: Tokens, texts: Texts) -> Keys:
    """The last punctuation mark before the query (separators: Clark et al. 2019, 1906.04341).

    Example:
        >>> last_punctuation(torch.arange(5)[None], [["A", " b", ".", " C", " d"]])[0, 4].tolist()
        [2]
    """
    return apart(tokens, (), latest(_where(tokens, texts, is_punctuation)))


def last_delimiter(tokens: Tokens, texts: Texts) -> Keys:
    r"""The last newline, tab, `|` or `;` before the query (Chen et al. 2024, arXiv 2412.12094).

    Example:
        >>> last_delimiter(torch.arange(5)[None], [["A", " b", "\n", "C", " d"]])[0, 4].tolist()
        [2]
    """
    return apart(tokens, (), latest(_where(tokens, texts, _is_delimiter)))


def start_of_sentence(tokens: Tokens, texts: Texts) -> Keys:
    """The first token of the query's sentence; a sentence ends with a full stop or its line.

    Sentences that begin before the row have no known start.

    Example:
        >>> texts = [["A", " b", ".", " The", " cat", " sat"]]
        >>> start_of_sentence(torch.arange(6)[None], texts)[0, 5].tolist()
        [3]
    """
    starts = _by_token([*map(_sentence_starts, texts)], tokens)
    return apart(tokens, (), latest(starts.bool() & ordinary(tokens), back=0))


def start_of_word(tokens: Tokens, texts: Texts) -> Keys:
    """The first piece of the query's word; the query is its third piece or a later one.

    Example:
        >>> texts = [["A", " vo", "cab", "ular", "y"]]
        >>> start_of_word(torch.arange(5)[None], texts)[0, :, 0].tolist()
        [-1, -1, -1, 1, 1]
    """
    starts = _by_token([*map(_word_starts, texts)], tokens)
    return apart(tokens, (), latest(starts.bool(), back=0))


def same_class(tokens: Tokens, texts: Texts) -> Keys:
    """The nearest tokens of the query's class, at least two back.

    Classes are line ends, punctuation, numbers, function words (of English) and other words.

    Example:
        >>> tokens = torch.arange(40)[None]
        >>> same_class(tokens, [["A", ",", " b", "."] * 10])[0, 39].tolist()[:4]
        [37, 35, 33, 31]
    """
    classes = _by_token([[*map(class_of, row)] for row in texts], tokens)
    classes = torch.where(ordinary(tokens), classes, NONE)
    keys = torch.full((*tokens.shape, SEVERAL), NONE, device=tokens.device)
    for number in range(len(CLASSES)):
        of_class = classes == number
        found = latest(of_class, SEVERAL, back=2)
        keys = torch.where(of_class[..., None], found, keys)
    return _tenth(tokens, keys)


def digits(tokens: Tokens, texts: Texts) -> Keys:
    """The nearest tokens with digits, at least two back, if the query has digits.

    Example:
        >>> tokens = torch.arange(40)[None]
        >>> digits(tokens, [["x", " 1", "7", ","] * 10])[0, 38].tolist()[:3]
        [34, 33, 30]
    """
    flags = _where(tokens, texts, _is_number)
    keys = latest(flags, SEVERAL, back=2)
    return _tenth(tokens, torch.where(flags[..., None], keys, NONE))


def bracket_partner(tokens: Tokens, texts: Texts) -> Keys:
    """The opening bracket that the query closes; the outermost if it closes several.

    Example:
        >>> bracket_partner(torch.arange(5)[None], [["f", "(", "x", "[]", ")"]])[0, 4].tolist()
        [1]
    """
    return _to_partner(tokens, texts, BRACKETS)


def quotation_partner(tokens: Tokens, texts: Texts) -> Keys:
    """The opening quotation mark that the query closes.

    A straight mark closes the last one that is open, unless it follows a blank.

    Example:
        >>> texts = [["He", ' "', "go", "!", '"']]
        >>> quotation_partner(torch.arange(5)[None], texts)[0, 4].tolist()
        [1]
    """
    return _to_partner(tokens, texts, QUOTES)


def is_punctuation(text: str) -> bool:
    r"""Whether a token is only punctuation marks and symbols, without a line end.

    Example:
        >>> is_punctuation(' ("'), is_punctuation(".\n"), is_punctuation("it's")
        (True, False, False)
    """
    return class_of(text) == CLASSES.index("punctuation")


CLASSES = ("line end", "punctuation", "number", "function word", "word")
_IS_FUNCTION_WORD = frozenset(_FUNCTION_WORDS.split()).__contains__


@cache
def class_of(text: str) -> int:
    """Number of a token's class in `CLASSES`; -1 for blanks."""
    bare = text.strip()
    if "\n" in text and not any(map(str.isalnum, bare)):
        return 0
    if not bare:
        return NONE
    if all(unicodedata.category(character)[0] in "PS" for character in bare):
        return 1
    if any(map(str.isdigit, bare)) and not any(map(str.isalpha, bare)):
        return 2
    return 3 if _IS_FUNCTION_WORD(bare.lower()) else 4


def _is_number(text: str) -> bool:
    return class_of(text) == CLASSES.index("number")


def _is_delimiter(text: str) -> bool:
    return class_of(text) == 0 or text.strip(" ") in ("\t", "|", ";")


def _by_token(rows: Sequence[Sequence[int]], like: Tokens) -> Tokens:
    return torch.tensor(rows, dtype=like.dtype, device=like.device)


def _where(tokens: Tokens, texts: Texts, has: Callable[[str], bool]) -> Bool[Tensor, "batch pos"]:
    """Which ordinary tokens have such a text."""
    return _by_token([[*map(has, row)] for row in texts], tokens).bool() & ordinary(tokens)


def _tenth(tokens: Tokens, keys: Keys) -> Keys:
    """The nearest keys, at most a tenth of those that each query sees."""
    seen = positions(tokens) - first_token(tokens)[:, None] + 1
    rank = torch.arange(1, keys.shape[2] + 1, device=keys.device)
    return torch.where(rank * 10 <= seen[..., None], keys, NONE)


def _to_partner(tokens: Tokens, texts: Texts, closing: Mapping[str, str]) -> Keys:
    keys = _by_token([_partners(row, closing) for row in texts], tokens)
    return apart(tokens, (), keys[..., None])


def _partners(row: Sequence[str], closing: Mapping[str, str]) -> list[int]:
    """For each token the one with the mark that it closes, or -1; `closing[mark]` closes `mark`."""
    waiting: list[tuple[str, int]] = []
    partners, before = [], ""
    for at, text in enumerate(row):
        partner = NONE
        for mark in text:
            depth = [number for number, (end, _) in enumerate(waiting) if end == mark]
            if depth and not (mark in closing and before.isspace()):
                partner = waiting[depth[-1]][1]
                del waiting[depth[-1] :]
            elif mark in closing:
                waiting.append((closing[mark], at))
            before = mark
        partners.append(partner)
    return partners


def _sentence_starts(row: Sequence[str]) -> list[bool]:
    starts, ended, new_line = [], False, False
    for text in row:
        blank = not text.strip()
        starts.append(not blank and (new_line or (ended and text[0].isspace())))
        if not blank:
            stop = any(mark in text for mark in ".!?…。")
            ended = class_of(text) <= 1 and (stop or (ended and not starts[-1]))
        new_line = "\n" in text or (new_line and blank)
    return starts


def _word_starts(row: Sequence[str]) -> list[bool]:
    joined = [
        bool(re.search(r"(\w|<0x..>)$", one) and re.match(r"\w|<0x..>", two))
        for one, two in pairwise(row)
    ]
    return [True, *(not one for one in joined)][: len(row)]
