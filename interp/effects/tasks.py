"""Tasks: pairs of prompts, clean and corrupted, that differ in the one thing a question is about.

The two prompts of a pair have the same number of tokens, so that an activation of one run has its
place in the other. The corrupted prompt makes the wrong answer the right one.
`interp.effects.templates` has the words and templates of the tasks that are built in.

Example:
    >>> import interp
    >>> toy = interp.build_circuit("absolute", vocabulary=1024, length=33)
    >>> task = interp.tasks.repeats(toy, 4)
    >>> task.solved(toy)  # Share of prompts with the right answer above the wrong one.
    1.0
"""

import csv
import io
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from interp.effects import templates
from interp.effects.metrics import answer_id
from interp.effects.replaced import last_logits
from interp.errors import Count, InputError, Seed, checked, quoted, reading
from interp.files import content_of
from interp.models import Model, load_model

LOG = logging.getLogger("interp")

SOLVED = 0.75
"""Below this share a model does not solve a task: there is no mechanism to look for."""

_TRIES = 50
"""Draws for each pair that is asked for, before a template counts as used up."""


class Pair(NamedTuple):
    """A clean and a corrupted prompt, and the answers: right after the clean one, and wrong."""

    clean: str
    corrupted: str
    right: str
    wrong: str


@dataclass(frozen=True, repr=False)
class Task:
    """Prompts with known answers, in pairs that have the same number of tokens.

    `Task.of` makes one of your own pairs and checks it.

    Attributes:
        name: Name of the task.
        clean: Prompt of each pair.
        corrupted: The same prompt with the one change that makes the wrong answer right.
        right: Right answer to each clean prompt, a single token, with the space before it.
        wrong: Right answer to each corrupted prompt.
        right_ids: Token id of each right answer.
        wrong_ids: Token id of each wrong answer.
    """

    name: str
    clean: tuple[str, ...]
    corrupted: tuple[str, ...]
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    right_ids: tuple[int, ...]
    wrong_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.clean)

    def __repr__(self) -> str:
        first = f"{self.clean[0]!r} goes on {self.right[0]!r}, not {self.wrong[0]!r}"
        return f"Task({self.name}: {len(self)} pairs; {first}; corrupted: {self.corrupted[0]!r})"

    @classmethod
    def of(cls, model: Any, name: str, pairs: Sequence[Sequence[str]]) -> "Task":
        """A task from `(clean, corrupted, right, wrong)` of each pair.

        Raises:
            InputError: If the prompts of a pair differ in their number of tokens, or an answer is
                not a single token after its prompts.
        """
        model = load_model(model)
        if not pairs:
            raise InputError("pairs must be at least one, got none")
        given = [Pair(*pair) for pair in pairs]
        clean, corrupted, right, wrong = zip(*given)
        for pair, one, other in zip(given, *paired_tokens(model, clean, corrupted), strict=True):
            if torch.equal(one, other):
                raise InputError(f"clean and corrupted must differ, got {quoted(pair.clean)} twice")
            if pair.right == pair.wrong:
                raise InputError(f"right and wrong must differ, got {quoted(pair.right)} twice")
            for answer in (pair.right, pair.wrong):
                answer_id(model, answer, pair.corrupted)
        right_ids, wrong_ids = (
            tuple(answer_id(model, answer, prompt) for prompt, answer in zip(clean, answers))
            for answers in (right, wrong)
        )
        return cls(name, clean, corrupted, right, wrong, right_ids, wrong_ids)

    def solved(self, model: Any) -> float:
        """The share of clean prompts after which the right answer has the higher logit, in [0, 1].

        A warning says so if it is below `SOLVED`.
        """
        model = load_model(model)
        logits = last_logits(model, model.to_tokens(list(self.clean)))
        rows = torch.arange(len(self))
        right, wrong = (logits[rows, list(ids)] for ids in (self.right_ids, self.wrong_ids))
        share = float((right > wrong).double().mean())
        if share < SOLVED:
            LOG.warning(
                "%s solves only %.0f %% of %s (%d pairs): an effect on it says little",
                *(model.name, 100 * share, self.name, len(self)),
            )
        return share


def paired_tokens(
    model: Model, clean: Any, corrupted: Any
) -> tuple[Int[Tensor, "pair pos"], Int[Tensor, "pair pos"]]:
    """The token ids of clean and corrupted prompts, which have the same length in each pair."""
    both = [model.to_tokens(inputs) for inputs in (clean, corrupted)]
    if len(both[0]) != len(both[1]):
        raise InputError(f"clean and corrupted must be as many, got {[*map(len, both)]}")
    for index, pair in enumerate(zip(*both)):
        rows = [row[row >= 0] for row in pair]
        if len(rows[0]) != len(rows[1]):
            texts = [model.texts_of(row) for row in rows]
            shorter = min(map(len, texts))
            at = next((i for i in range(shorter) if rows[0][i] != rows[1][i]), shorter)
            ends = [quoted(each[at : at + 3]) for each in texts]
            raise InputError(
                f"clean and corrupted must have the same number of tokens, got {len(rows[0])} and"
                f" {len(rows[1])} in pair {index}: from token {at} on {ends[0]} and {ends[1]}"
            )
    return both[0], both[1]


def from_file(model: Any, path: str | Path) -> Task:
    """A task of your own pairs: a `.jsonl` or `.csv` file with clean, corrupted, right, wrong.

    Each line of a `.jsonl` is an object with these four texts; a `.csv` has them as columns.
    Answers are single tokens and keep the space before them.

    Raises:
        InputError: If the file has no such texts, or as for `Task.of`.
    """
    path = Path(path)
    if path.suffix not in (".jsonl", ".csv"):
        raise InputError(f"path must end in .jsonl or .csv, got {quoted(path.name)}")
    with reading(path, "pairs with clean, corrupted, right and wrong in each line"):
        text = content_of(path).decode("utf-8-sig")
        if path.suffix == ".csv":
            lines: Any = [*csv.DictReader(io.StringIO(text, newline=""))]
        else:
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        pairs = [[line[name] for name in Pair._fields] for line in lines]
        if odd := [text for pair in pairs for text in pair if not isinstance(text, str)]:
            raise InputError(f"entries must be texts, got {quoted(odd[0])}")
    return Task.of(model, path.stem, pairs)


def ioi(model: Any, n: int = 50, *, seed: int = 0) -> Task:
    """Pairs of names: whoever acts is named twice, and the other one receives (IOI).

    `When Mary and John went to the store, John gave a book to` goes on ` Mary`; corrupted, it is
    Mary who gives (Wang et al. 2022, arXiv 2211.00593).

    Example:
        >>> import interp
        >>> interp.tasks.ioi("default", 8)  # doctest: +SKIP
    """
    return _drawn(model, "ioi", n, seed)


def agreement(model: Any, n: int = 50, *, seed: int = 0) -> Task:
    """Subject-verb agreement across another noun: `The keys near the door` goes on ` are`."""
    return _drawn(model, "agreement", n, seed)


def pronouns(model: Any, n: int = 50, *, seed: int = 0) -> Task:
    """Gendered pronouns: `Mary went home early because` goes on ` she`; corrupted, John went."""
    return _drawn(model, "pronouns", n, seed)


def successors(model: Any, n: int = 50, *, seed: int = 0) -> Task:
    """Days, months, numbers: `Monday, Tuesday,` goes on ` Wednesday`; corrupted, others precede."""
    return _drawn(model, "successors", n, seed)


def capitals(model: Any, n: int = 50, *, seed: int = 0) -> Task:
    """Capitals: `The capital of France is the city of` goes on ` Paris`; corrupted, of Spain."""
    return _drawn(model, "capitals", n, seed)


def repeats(model: Any, n: int = 50, *, seed: int = 0) -> Task:
    """A list of words that starts again: what came next last time; corrupted, another word ends it.

    This is what induction heads do (Olsson et al. 2022, arXiv 2209.11895).
    """
    return _drawn(model, "repeats", n, seed)


@checked
def _drawn(model: Any, name: str, n: Count, seed: Seed) -> Task:
    """`n` different pairs of a template, with words that are single tokens of the model."""
    model = load_model(model)

    def single(words: str) -> Iterator[str]:
        for word in words.split():
            try:
                answer_id(model, f" {word}")
            except InputError:
                continue
            yield word

    pairs: dict[tuple[str, ...], None] = {}
    generator = random.Random(f"{name} {seed}")
    draw = getattr(templates, name)(lambda words: [*single(words)])
    for _ in range(_TRIES * n):
        if draw is not None and len(pairs) < n:
            pairs[draw(generator)] = None
    if len(pairs) < n:
        raise InputError(
            f"n must be at most {len(pairs)} for {name} with the words that are single tokens of"
            f" {model.name}, got {n}"
        )
    return Task.of(model, name, [*pairs])
