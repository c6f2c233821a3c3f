"""Heads that solve pairs of names (Wang et al. 2022, arXiv 2211.00593).

"Then, Mary and John went to the store. John gave a drink to" goes on with Mary. From the last token
name movers look at the name that occurs once, S-inhibition heads at the second mention of the other
name, whose second mention looks at its first.
"""

from collections.abc import Callable, Sequence

import torch

from interp.kinds.kind import Kind, Texts
from interp.kinds.targets import NONE, Keys, Tokens

NAMES = (
    *("Mary", "John", "Tom", "Anna", "James", "Peter"),
    *("Paul", "Mark", "Sarah", "David", "Emma", "Kate"),
)

TEMPLATES = (
    "Then, {} and {} went to the store. {} gave a drink to",
    "When {} and {} got a letter at the office, {} decided to give it to",
    "After {} and {} had lunch in the park, {} handed the keys to",
    "The friends {} and {} found a book at the school, and {} wanted to give it to",
)


def prompts(number: int = 24) -> tuple[str, ...]:
    """Texts with a pair of names, one of them twice: in half of them the first, else the second.

    Example:
        >>> prompts(1)
        ('Then, Mary and John went to the store. John gave a drink to',)
    """
    made = []
    for i in range(number):
        pair = NAMES[i % len(NAMES)], NAMES[(i + 1 + i // len(NAMES)) % len(NAMES)]
        made.append(TEMPLATES[i % len(TEMPLATES)].format(*pair, pair[(i + 1) % 2]))
    return tuple(made)


def _found(row: Sequence[str]) -> dict[str, int]:
    """Positions of a row with two names, one of them twice; empty for other rows."""
    places = [at for at, text in enumerate(row) if text.strip() in NAMES]
    names = [row[at].strip() for at in places]
    again = [name for name in {*names} if names.count(name) == 2]
    if len(names) != 3 or len(again) != 1:
        return {}
    first, second = (at for at, name in zip(places, names) if name == again[0])
    (once,) = (at for at, name in zip(places, names) if name != again[0])
    return {
        "once": once,
        "first": first,
        "second": second,
        "last": max(at for at, text in enumerate(row) if text),
    }


def _rule(query: str, key: str) -> Callable[[Tokens, Texts], Keys]:
    def rule(tokens: Tokens, texts: Texts) -> Keys:
        keys = torch.full((*tokens.shape, 1), NONE, device=tokens.device)
        for row, found in enumerate(map(_found, texts)):
            if found and found[key] < found[query]:
                keys[row, found[query]] = found[key]
        return keys

    return rule


def _kind(name: str, query: str, key: str, other: str, look: str) -> Kind:
    """A kind on pairs of names; its null is the attention to the `other` mention of a name."""
    rule, null = _rule(query, key), _rule(query, other)
    source = "Wang et al. 2022, arXiv 2211.00593"
    return Kind(name, rule, look=look, on=prompts(), null=null, source=source)


OF_NAMES = (
    _kind("name_mover", "last", "once", "first", "looks from the end at the name that occurs once"),
    _kind("s_inhibition", "last", "second", "once", "looks from the end at the name that repeats"),
    _kind("duplicate_name", "second", "first", "once", "looks from a repeated name at its first"),
)
