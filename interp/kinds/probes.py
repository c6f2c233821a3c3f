"""Probes: token ids on which a head shows its kind.

- `repeated`: random tokens, then the same again. Each row has its own period, since a head that
  only looks a fixed distance back passes any probe with one period. Within a period no token
  occurs twice, so each query has exactly one match per earlier copy. Before the first repeat no
  token has a match, and heads are idle.
- `shuffled`: the same rows, with the tokens after the first copy in another order: the null.
- `text`: natural text of several kinds.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from importlib import resources
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import Count, InputError, Seed, Whole, checked

SHORTEST = 11
"""Least number of tokens that can repeat, without those before the first copy."""


@dataclass(frozen=True)
class Probe:
    """Rows of token ids of one length.

    Attributes:
        tokens: Token ids to run.
        parts: Sets of queries that are scored apart, by name.
        periods: Distance between the copies in each row, where there are copies.
        asked: Token ids from which targets are computed, if not `tokens`.
        apart: Positions of a chat template (see `interp.kinds.scores.ask`).
    """

    tokens: Int[Tensor, "row pos"]
    parts: dict[str, Bool[Tensor, "row pos"]]
    periods: tuple[int, ...] = ()
    asked: Int[Tensor, "row pos"] | None = None
    apart: Bool[Tensor, "row pos"] | None = None

    def record(self) -> dict[str, Any]:
        """The probe for a result's `made_by`, with each row's ids as one text."""
        return {
            "parts": list(self.parts),
            "rows": len(self.tokens),
            "length": self.tokens.shape[1],
            "periods": list(self.periods),
            "tokens": [" ".join(map(str, row)) for row in self.tokens.tolist()],
        }

    def split(self, rows: int) -> "list[Probe]":
        """The same rows in probes of at most `rows` each."""
        return [
            Probe(
                self.tokens[cut],
                {name: queries[cut] for name, queries in self.parts.items()},
                self.periods[cut],
                None if self.asked is None else self.asked[cut],
                None if self.apart is None else self.apart[cut],
            )
            for cut in (slice(i, i + rows) for i in range(0, len(self.tokens), rows))
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
    """Rows of random tokens, each repeated with its own period until the row is full.

    The period is drawn from 3/8 to 5/8 of the row, so that the first copy is complete and at least
    three fifths of another follow. The queries of the first copy are the part `random`, all later
    ones the part `repeated`.

    Args:
        vocabulary: Ids to draw from, without replacement within a row.
        rows: Number of rows.
        length: Number of tokens in a row, BOS included.
        bos: Id that opens every row, or None.
        seed: Random seed; the global generator stays as it is.
        period: Period of every row, to see how a score depends on the distance.
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
    # No period comes twice before each has come once, so that rows differ as much as possible.
    number = most + 1 - least
    rounds = [torch.randperm(number, generator=generator) for _ in range(0, rows, number)]
    periods = (torch.cat(rounds)[:rows] + least).tolist()
    ids = []
    for distance in periods:
        block = vocabulary[torch.randperm(len(vocabulary), generator=generator)[:distance]]
        ids.append(block[torch.arange(body) % distance])
    tokens = _opened_by(bos, torch.stack(ids))
    before = torch.arange(length) < torch.tensor(periods)[:, None] + (length - body)
    return Probe(tokens, {"random": before, "repeated": ~before}, tuple(periods))


def reordered(
    tokens: Int[Tensor, "row pos"], places: Bool[Tensor, "row pos"], seed: int
) -> Int[Tensor, "row pos"]:
    """The rows with the tokens at `places` in another order."""
    generator = torch.Generator().manual_seed(seed)
    rows = tokens.clone()
    for row, later in zip(rows, places, strict=True):
        order = torch.randperm(int(later.sum()), generator=generator)
        row[later] = row[later][order]
    return rows


def with_nulls(probe: Probe, part: str, nulls: Collection[str], *, seed: int) -> list[Probe]:
    """The probe with nulls of one of its parts: `PART, elsewhere` and `PART, shuffled`.

    The first is scored on the same rows, at other keys; the second on rows whose tokens, but for
    the first, are in another order.
    """
    queries, made = probe.parts[part], probe
    if f"{part}, elsewhere" in nulls:
        made = replace(probe, parts=probe.parts | {f"{part}, elsewhere": queries})
    if f"{part}, shuffled" not in nulls:
        return [made]
    places = torch.arange(probe.tokens.shape[1]).repeat(len(probe.tokens), 1) > 0
    rows = reordered(probe.tokens, places, seed)
    return [made, Probe(rows, {f"{part}, shuffled": queries}, asked=probe.tokens)]


def shuffled(probe: Probe, *, seed: int) -> Probe:
    """The null of `repeated` rows: the tokens after the first copy in another order.

    Targets are still those of the original rows (`asked`). A head that matches tokens has no
    more reason to attend to them; one that looks a fixed distance back does so as before.

    Returns:
        The rows; queries after the first copy are the part `shuffled`, all others, whose tokens
        stay, the part `elsewhere`.
    """
    rows = reordered(probe.tokens, probe.parts["repeated"], seed)
    parts = {"shuffled": probe.parts["repeated"], "elsewhere": probe.parts["random"]}
    return Probe(rows, parts, probe.periods, asked=probe.tokens)


def extended(probe: Probe, token: int, *, front: bool) -> Probe:
    """The rows with one more `token` at the front or at the end, which is no query of any part."""

    def longer(rows: Tensor, value: int) -> Tensor:
        column = torch.full_like(rows[:, :1], value)
        return torch.cat([column, rows] if front else [rows, column], dim=1)

    parts = {name: longer(queries, False) for name, queries in probe.parts.items()}
    return Probe(longer(probe.tokens, token), parts, probe.periods)


def passages() -> dict[str, str]:
    """Natural text of several kinds, by name: prose, code, lists, another language."""
    folder = resources.files("interp.kinds") / "texts"
    return {
        entry.name.removesuffix(".txt"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
    }


@checked
def text(
    encoded: Iterable[Int[Tensor, " _"]], *, rows: Count, length: Whole, bos: int | None
) -> Probe | None:
    """Rows cut from encoded passages in turn, each opened by BOS.

    Args:
        encoded: Token ids of each passage.
        rows: Largest number of rows; fewer if the passages are used up.
        length: Number of tokens in a row, BOS included.
        bos: Id that opens every row, or None.

    Returns:
        The probe, with all queries in the part `text`; None if no passage fills a row.
    """
    body = length - (bos is not None)
    if body < 1:
        raise InputError(f"length must leave room for a token, got {length}")
    turns = zip_longest(*(ids.split(body) for ids in encoded), fillvalue=torch.empty(0))
    full = [piece for turn in turns for piece in turn if len(piece) == body][:rows]
    if not full:
        return None
    tokens = _opened_by(bos, torch.stack(full))
    return Probe(tokens, {"text": torch.ones_like(tokens, dtype=torch.bool)})


def _opened_by(bos: int | None, rows: Int[Tensor, "row pos"]) -> Int[Tensor, "row _"]:
    if bos is None:
        return rows
    return torch.cat([torch.full((len(rows), 1), bos), rows], dim=1)
