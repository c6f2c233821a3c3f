"""Probes: token ids made so that a head shows what it does.

- `repeated`: random tokens, then the same again. Each row has a period of its own, since a
  head that only looks a fixed distance back passes any probe with one period. Within a
  period no token occurs twice, so each query has exactly one match per earlier copy. Before
  the first repeat there is nothing to find, and heads are idle.
- `shuffled`: the same rows, with what follows the first copy in another order: the null.
- `text`: natural text of several kinds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import Count, InputError, Seed, Whole, checked

SHORTEST = 11
"""Tokens that it takes to repeat anything, those before the first copy not counted."""


@dataclass(frozen=True)
class Probe:
    """Rows of token ids of one length, to be run as they are.

    Attributes:
        tokens: The ids.
        parts: Names of sets of queries that are scored apart, with those queries.
        periods: The distance between the copies in each row, where there are copies.
        asked: The ids that targets are worked out from, where those are not the ones run.
    """

    tokens: Int[Tensor, "row pos"]
    parts: dict[str, Bool[Tensor, "row pos"]]
    periods: tuple[int, ...] = ()
    asked: Int[Tensor, "row pos"] | None = None

    def record(self) -> dict[str, Any]:
        """What was run, as a result keeps it: each row's ids as one text."""
        return {
            "parts": list(self.parts),
            "rows": len(self.tokens),
            "length": self.tokens.shape[1],
            "periods": list(self.periods),
            "tokens": [" ".join(map(str, row)) for row in self.tokens.tolist()],
        }

    def split(self, rows: int) -> "list[Probe]":
        """The same rows in probes of at most `rows` each."""
        cuts = range(0, len(self.tokens), rows)
        return [
            Probe(
                self.tokens[i : i + rows],
                {name: queries[i : i + rows] for name, queries in self.parts.items()},
                self.periods[i : i + rows],
                None if self.asked is None else self.asked[i : i + rows],
            )
            for i in cuts
        ]


@checked
def repeated(
    vocabulary: Int[Tensor, " id"],
    *,
    rows: Count,
    length: Whole,
    bos: int | None,
    seed: Seed,
    period: int | None = None,
) -> Probe:
    """Rows of random tokens, each repeated with a period of its own until the row is full.

    The period is drawn from 3/8 to 5/8 of the row, so that the first copy is complete, and
    followed by three fifths of another one at least. The queries of the first copy are the
    part `random`, all later ones the part `repeated`.

    Args:
        vocabulary: Ids to draw from, without replacement within a row.
        rows: How many.
        length: Tokens in a row, BOS included.
        bos: Id that opens every row, or None.
        seed: Of a generator of its own; the global one is left alone.
        period: Of every row alike, to see how a score depends on the distance.

    Raises:
        InputError: If there are no rows, or rows too short or ids too few to repeat anything, or
            a number is not a whole one.
    """
    body = length - (bos is not None)
    least, most = (body * 3 // 8, body * 5 // 8) if period is None else (period, period)
    if least < 4:
        shortest = SHORTEST + (bos is not None)
        raise InputError(f"length must be at least {shortest} tokens, got {length}")
    if len(vocabulary) < most:
        raise InputError(
            f"vocabulary must have at least {most} ordinary tokens, got {len(vocabulary)}"
        )
    generator = torch.Generator().manual_seed(seed)
    # Each period comes once before any comes again, so that rows differ all they can.
    number = most + 1 - least
    rounds = [torch.randperm(number, generator=generator) for _ in range(0, rows, number)]
    periods = (torch.cat(rounds)[:rows] + least).tolist()
    ids = []
    for distance in periods:
        block = vocabulary[torch.randperm(len(vocabulary), generator=generator)[:distance]]
        ids.append(block[torch.arange(body) % distance])
    tokens = torch.stack(ids)
    if bos is not None:
        tokens = _opened_by(bos, tokens)
    before = torch.arange(length) < torch.tensor(periods)[:, None] + (length - body)
    return Probe(tokens, {"random": before, "repeated": ~before}, tuple(periods))


def shuffled(probe: Probe, *, seed: int) -> Probe:
    """The null of repeated rows: after the first copy the same tokens come in another order.

    Targets are still those of the rows as they were (`asked`). A head that matches tokens has
    no more reason to look there; one that looks a fixed distance back looks there as before.

    Args:
        probe: From `repeated`.
        seed: Of a generator of its own.

    Returns:
        The rows, of which the queries after the first copy are the part `shuffled`, and the
        others, which are as they were, the part `elsewhere`.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = probe.tokens.clone()
    for row, later in zip(rows, probe.parts["repeated"], strict=True):
        order = torch.randperm(int(later.sum()), generator=generator)
        row[later] = row[later][order]
    parts = {"shuffled": probe.parts["repeated"], "elsewhere": probe.parts["random"]}
    return Probe(rows, parts, probe.periods, asked=probe.tokens)


def opened_again(probe: Probe, bos: int) -> Probe:
    """The same rows behind one more BOS, as when a text that has one is given another."""
    parts = {
        name: torch.cat([torch.zeros(len(queries), 1, dtype=torch.bool), queries], dim=1)
        for name, queries in probe.parts.items()
    }
    return Probe(_opened_by(bos, probe.tokens), parts, probe.periods)


def closed_by(probe: Probe, end: int) -> Probe:
    """The same rows with one more token at their end, which is no query of any part."""
    parts = {
        name: torch.cat([queries, torch.zeros(len(queries), 1, dtype=torch.bool)], dim=1)
        for name, queries in probe.parts.items()
    }
    last = torch.full((len(probe.tokens), 1), end)
    return Probe(torch.cat([probe.tokens, last], dim=1), parts, probe.periods)


def passages() -> dict[str, str]:
    """Natural text of several kinds, by name: prose, code, lists, another language."""
    folder = resources.files("interp.kinds") / "texts"
    return {
        entry.name.removesuffix(".txt"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
    }


def text(
    encoded: Iterable[Int[Tensor, " _"]], *, rows: int, length: int, bos: int | None
) -> Probe | None:
    """Rows cut from encoded passages in turn, each opened by BOS.

    Args:
        encoded: Token ids of each passage.
        rows: How many at most; fewer if the passages are used up.
        length: Tokens in a row, BOS included.
        bos: Id that opens every row, or None.

    Returns:
        The probe, all of it the part `text`; None if no passage fills a row.
    """
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    body = length - (bos is not None)
    if body < 1:
        raise InputError(f"length must leave room for a token, got {length}")
    pieces = [list(ids.split(body)) for ids in encoded]
    turns = [
        piece[i]
        for i in range(max(map(len, pieces), default=0))
        for piece in pieces
        if i < len(piece)
    ]
    full = [piece for piece in turns if len(piece) == body][:rows]
    if not full:
        return None
    tokens = torch.stack(full)
    if bos is not None:
        tokens = _opened_by(bos, tokens)
    return Probe(tokens, {"text": torch.ones_like(tokens, dtype=torch.bool)})


def _opened_by(bos: int, rows: Int[Tensor, "row pos"]) -> Int[Tensor, "row pos1"]:
    return torch.cat([torch.full((len(rows), 1), bos), rows], dim=1)
