"""Heads that match meanings: lists of related words, and a fact in a passage.

Concept induction (Feucht et al. 2025, arXiv 2504.03022): after "English: house, cat, dog" and
"French: maison," a head looks at "cat", whose translation is due. Retrieval (Wu et al. 2024,
arXiv 2404.15574): where a question is answered, a head looks at the answer in the passage, among
other facts of the same form. A plain induction head spreads its attention over all words of
the list, or over all facts.
"""

from collections.abc import Callable, Sequence

import torch

from interp.kinds.kind import Kind, Texts
from interp.kinds.targets import NONE, Keys, Tokens

RELATED = {
    ("English", "French"): "house maison cat chat dog chien sun soleil bread pain water eau book"
    " livre tree arbre night nuit milk lait",
    ("English", "Spanish"): "house casa cat gato dog perro sun sol bread pan water agua book libro"
    " tree árbol night noche milk leche",
    ("Things", "Classes"): "dog animal hammer tool rose flower carrot vegetable chair furniture"
    " shirt clothing iron metal piano instrument red colour oak tree",
    ("Words", "Opposites"): "hot cold big small old young up down left right rich poor fast slow"
    " early late strong weak open closed",
    ("Countries", "Capitals"): "France Paris Italy Rome Spain Madrid Japan Tokyo Egypt Cairo Greece"
    " Athens Russia Moscow Cuba Havana Peru Lima Kenya Nairobi",
}
"""Pairs of related words, each word before its partner, by the names of both lists."""

COLOURS = ("red", "blue", "green", "white", "black", "yellow", "golden", "silver")
PLACES = ("museum", "library", "garden", "kitchen", "school", "church", "hotel", "station")
THINGS = ("stone", "box", "key", "cup", "book", "coat")
FILLERS = (
    "The morning was cold and the streets were still empty.",
    "Nobody had slept well after the long storm.",
    "Later it began to rain, and the guests went home.",
    "A small dog barked at every bus that passed.",
)


def lists(number: int = 20) -> tuple[str, ...]:
    """Texts with a list of words and the list of their partners, in the same order.

    Example:
        >>> print(lists(1)[0])
        English: house, cat, dog, sun
        French: maison, chat, chien, soleil
    """
    made = []
    for i in range(number):
        (first, second), words = [*RELATED.items()][i % len(RELATED)]
        words = words.split()
        pairs = [*zip(words[::2], words[1::2], strict=True)]
        start, size = 3 * (i // len(RELATED)), 4 + i // len(RELATED) % 4
        chosen = [pairs[(start + n) % len(pairs)] for n in range(size)]
        ours, theirs = (", ".join(words) for words in zip(*chosen, strict=True))
        made.append(f"{first}: {ours}\n{second}: {theirs}")
    return tuple(made)


def passages(number: int = 16) -> tuple[str, ...]:
    """Texts with four facts among other sentences, and a question about one of them.

    Example:
        >>> passages(1)[0].splitlines()[1:]
        ['Question: Where is the red stone?', 'Answer: It is in the']
    """
    made = []
    for i in range(number):
        thing = THINGS[i % len(THINGS)]
        facts = [
            f"The {COLOURS[(i + 3 * n) % 8]} {thing} is in the {PLACES[(i // 2 + 5 * n) % 8]}."
            for n in range(4)
        ]
        asked = i // 2 % 4
        sentences = [one for n in range(4) for one in (FILLERS[(i + n) % 4], facts[n])]
        question = f"Question: Where is the {COLOURS[(i + 3 * asked) % 8]} {thing}?"
        made.append(f"{' '.join(sentences)}\n{question}\nAnswer: It is in the")
    return tuple(made)


def _related(row: Sequence[str]) -> list[tuple[int, list[int]]]:
    """For the end of each word of the second list, the last tokens of the words of the first.

    The first of these is the word that is due, the others are other words. Empty for other rows.
    """
    ends = [at for at, text in enumerate(row) if text.strip() in (":", ",") or "\n" in text]
    lines = [at for at in ends if "\n" in row[at]]
    marks = [[at for at in ends if row[at].strip() == mark] for mark in (":", ",")]
    if len(lines) != 1 or len(marks[0]) != 2 or not marks[0][0] < lines[0] < marks[0][1]:
        return []
    (line,), (start, again), commas = lines, *marks
    words = [at - 1 for at in commas if start < at < line] + [line - 1]
    due = [again, *(at for at in commas if at > again)][: len(words)]
    return [(query, [words[n], *words[:n], *words[n + 1 :]]) for n, query in enumerate(due)]


def _fact(row: Sequence[str]) -> list[tuple[int, list[int]]]:
    """For the last token, the place that the question asks for, and the other places."""
    words = [text.strip() for text in row]
    places = [at for at, word in enumerate(words) if word in PLACES]
    colours = [at for at, word in enumerate(words) if word in COLOURS]
    if len(places) != 4 or len(colours) != 5 or words[colours[4]] not in _at(words, colours[:4]):
        return []
    asked = _at(words, colours[:4]).index(words[colours[4]])
    last = max(at for at, word in enumerate(words) if word)
    return [(last, [places[asked], *places[:asked], *places[asked + 1 :]])]


def _at(words: Sequence[str], places: Sequence[int]) -> list[str]:
    return [words[at] for at in places]


Find = Callable[[Sequence[str]], list[tuple[int, list[int]]]]


def _rule(find: Find, number: int) -> Callable[[Tokens, Texts], Keys]:
    """The rule of what `find` gives: the due key (0), or another one (1)."""

    def rule(tokens: Tokens, texts: Texts) -> Keys:
        keys = torch.full((*tokens.shape, 1), NONE, device=tokens.device)
        for row, found in enumerate(map(find, texts)):
            for query, places in found:
                keys[row, query] = places[number]
        return keys

    return rule


OF_MEANING = (
    Kind(
        "concept_induction",
        _rule(_related, 0),
        look="looks from a list at the word whose partner is due",
        on=lists(),
        null=_rule(_related, 1),
        source="Feucht et al. 2025, arXiv 2504.03022",
    ),
    Kind(
        "retrieval",
        _rule(_fact, 0),
        look="looks from an answer at it in the passage",
        on=passages(),
        null=_rule(_fact, 1),
        source="Wu et al. 2024, arXiv 2404.15574",
    ),
)
