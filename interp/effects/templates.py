"""The words and templates of the built-in tasks.

Each function takes `single`, which keeps those of some words that are single tokens of a model. It
returns a function that draws `(clean, corrupted, right, wrong)`, or None if too few words are left.
"""

from collections.abc import Callable
from random import Random

Single = Callable[[str], list[str]]
Draw = Callable[[Random], tuple[str, str, str, str]]

_WOMEN = (
    "Mary Anna Sarah Emma Laura Alice Julia Kate Lisa Susan Helen Jane Emily Rachel Maria Grace"
)
_MEN = (
    "John Tom James Paul David Mark Peter Robert Daniel Michael George Henry Jack Adam Simon Frank"
)
_PLACES = "store park school office garden station library restaurant market hospital"
_THINGS = "book drink letter ring key ball gift phone card flower"
_NOUNS = """boy girl dog cat teacher doctor friend student car book key door window house bird tree
table child/children man/men woman/women"""
_SERIES = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
    "one two three four five six seven eight nine ten eleven twelve",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
)
_CAPITALS = """France Paris Germany Berlin Italy Rome Spain Madrid Japan Tokyo China Beijing
Russia Moscow England London Egypt Cairo Greece Athens Poland Warsaw Austria Vienna
Portugal Lisbon Ireland Dublin Cuba Havana Peru Lima Iran Tehran Iraq Baghdad Norway Oslo
Sweden Stockholm Turkey Ankara Hungary Budapest Canada Ottawa Kenya Nairobi"""
_WORDS = """apple river stone paper cloud music table green horse water light bread glass winter
silver mountain garden window yellow market pencil island forest bridge orange summer doctor basket
letter bottle castle dinner engine finger hammer jacket kitchen ladder mirror needle"""

_GIVING = (  # As many words in each, so that most models get as many tokens.
    "When {} and {} went to the {}, {} gave a {} to",
    "When {} and {} arrived at the {}, {} handed a {} to",
    "After {} and {} came to the {}, {} passed a {} to",
    "While {} and {} stayed at the {}, {} offered a {} to",
)
_AGREEING = (
    "The {} near the {}",
    "The {} behind the {}",
    "I think that the {} beside the {}",
    "We know that the {} with the {}",
)
_FEELING = (
    "Last night {} went home early because",
    "This morning {} was late because",
    "In the end {} called a friend because",
    "Yesterday, {} was very happy because",
)
_LISTING = ("Here is the list:{}", "Please go on:{}", "In the right order:{}")
_CITIES = (
    "The capital of {} is the city of",
    "As you know, the capital of {} is called",
    "Q: What is the capital of {}? A: The capital is",
)


def ioi(single: Single) -> Draw | None:
    """Two names, and who acts is named again."""
    names, places, things = map(single, (f"{_WOMEN} {_MEN}", _PLACES, _THINGS))
    if len(names) < 2 or not places or not things:
        return None

    def draw(generator: Random) -> tuple[str, str, str, str]:
        first, second = generator.sample(names, 2)
        right, wrong = generator.sample((first, second), 2)
        text, place, thing = map(generator.choice, (_GIVING, places, things))
        clean, other = (text.format(first, second, place, who, thing) for who in (wrong, right))
        return clean, other, f" {right}", f" {wrong}"

    return draw


def agreement(single: Single) -> Draw | None:
    """A noun and another one, of either number; corrupted, the first has the other number."""
    forms = [(w.split("/") if "/" in w else (w, f"{w}s")) for w in _NOUNS.split()]
    nouns = [(one, many) for one, many in forms if len(single(f"{one} {many}")) == 2]
    if len(nouns) < 2:
        return None

    def draw(generator: Random) -> tuple[str, str, str, str]:
        subject, other = generator.sample(nouns, 2)
        number, text = generator.randrange(2), generator.choice(_AGREEING)
        between = generator.choice(other)
        clean, corrupted = (text.format(subject[i], between) for i in (number, 1 - number))
        return clean, corrupted, (" is", " are")[number], (" is", " are")[1 - number]

    return draw


def pronouns(single: Single) -> Draw | None:
    """A woman's name or a man's; corrupted, one of the other."""
    names = single(_WOMEN), single(_MEN)
    if not all(names):
        return None

    def draw(generator: Random) -> tuple[str, str, str, str]:
        which, text = generator.randrange(2), generator.choice(_FEELING)
        both = [generator.choice(each) for each in names]
        clean, corrupted = (text.format(both[i]) for i in (which, 1 - which))
        return clean, corrupted, (" she", " he")[which], (" she", " he")[1 - which]

    return draw


def successors(single: Single) -> Draw | None:
    """Three members of a series in order; corrupted, three others of the same series."""
    series = [words.split() for words in _SERIES if single(words) == words.split()]
    if not series:
        return None

    def draw(generator: Random) -> tuple[str, str, str, str]:
        words, text = generator.choice(series), generator.choice(_LISTING)
        begins = generator.sample(range(len(words) - 3), 2)
        clean, corrupted = (
            text.format("".join(f" {word}," for word in words[i : i + 3])) for i in begins
        )
        right, wrong = (f" {words[i + 3]}" for i in begins)
        return clean, corrupted, right, wrong

    return draw


def capitals(single: Single) -> Draw | None:
    """A country; corrupted, another."""
    words = _CAPITALS.split()
    known = [pair for pair in zip(words[::2], words[1::2]) if len(single(" ".join(pair))) == 2]
    if len(known) < 2:
        return None

    def draw(generator: Random) -> tuple[str, str, str, str]:
        pairs, text = generator.sample(known, 2), generator.choice(_CITIES)
        clean, corrupted = (text.format(country) for country, _ in pairs)
        return clean, corrupted, f" {pairs[0][1]}", f" {pairs[1][1]}"

    return draw


def repeats(single: Single) -> Draw | None:
    """Eight words, then the same again up to one of them; corrupted, another one ends it."""
    words = single(_WORDS)
    if len(words) < 8:
        return None

    def draw(generator: Random) -> tuple[str, str, str, str]:
        row = generator.sample(words, 8)
        ends = generator.sample(range(3, 7), 2)
        start = " ".join(["Words:", *row, *row[: ends[0]]])
        clean, corrupted = (f"{start} {row[end]}" for end in ends)
        right, wrong = (f" {row[end + 1]}" for end in ends)
        return clean, corrupted, right, wrong

    return draw
