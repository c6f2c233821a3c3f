"""Heads of a known kind: planted heads, and near misses.

A planted head puts a share of its attention on the targets of its kind, and the rest on a sink,
evenly on all keys, and at random, in random proportions. Its strength varies from row to row
and from query to query. A near miss attends almost to a kind's targets, or only half of the time.

The kind of each head follows from its construction and never from its pattern. In a row that
repeats with period p the earlier copies of the token at q are at q - p, q - 2p, ...; the built-in
kinds get their targets from that alone, not from token ids and not from `interp.kinds.targets`, so
that the truth is a second opinion on the whole way from tokens to labels. Only a kind without a
construction here is planted by its own rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from interp.errors import InputError
from interp.kinds import probes
from interp.kinds.builtin import LABELS, kinds_of
from interp.kinds.labels import MIXED
from interp.kinds.scores import Thresholds

Mask = Bool[Tensor, "row query key"]
Pattern = Float[Tensor, "row query key"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of repeated tokens, and their structure by construction."""

    tokens: Int[Tensor, "row pos"]
    periods: Int[Tensor, " row"]  # Distance between the copies in each row.
    opening: int  # 1 if BOS opens every row, else 0.

    @property
    def place(self) -> Int[Tensor, " pos"]:
        """`0, 1, 2, ...`."""
        return torch.arange(self.tokens.shape[1])

    @property
    def back(self) -> Int[Tensor, "query=pos key=pos"]:
        """Distance from each query back to each key; negative if the key is ahead."""
        return self.place[:, None] - self.place

    def shape_of(self, places: Bool[Tensor, "query=pos key=pos"]) -> Mask:
        """The same places in every row."""
        return repeat(places, "q k -> row q k", row=len(self.tokens))

    def near_copies(self, shift: int) -> Mask:
        """The places `shift` after every earlier copy of the query's token: 0 is the copy."""
        copy = self.back + shift
        period = rearrange(self.periods, "row -> row 1 1")
        real = (copy > 0) & (self.place - shift >= self.opening) & (self.back >= 0)
        return (copy % period == 0) & real


def draw_rows(generator: Generator) -> Rows:
    """6 to 18 rows of 48 to 144 tokens, each with its own period, with BOS (id 0) or without.

    Fewer rows cannot distinguish a head that looks a fixed distance back from one that matches:
    with one or two, that distance may be right by chance for half of the queries.
    """
    n_rows, length, opened = (
        int(torch.randint(low, high + 1, (), generator=generator))
        for low, high in ((6, 18), (48, 144), (0, 1))
    )
    seed = int(torch.randint(2**31, (), generator=generator))
    vocabulary, bos = torch.arange(1, 1001), 0 if opened else None
    probe = probes.repeated(vocabulary, rows=n_rows, length=length, bos=bos, seed=seed)
    return Rows(probe.tokens, torch.tensor(probe.periods), opened)


Places = Callable[[Rows, int, Generator], Mask]
"""The keys that a head attends to, given its sink column and a generator; never ahead."""


def _copies(shift: int) -> Places:
    return lambda rows, *_: rows.near_copies(shift)


def _distance(least: int, most: int) -> Places:
    """Keys that are `least` to `most` tokens back."""
    return lambda rows, *_: rows.shape_of((rows.back >= least) & (rows.back <= most))


def _column(rows: Rows, column: int, generator: Generator | None = None) -> Mask:
    return rows.shape_of((rows.back > 0) & (rows.place == column))


def _by_rule(kind: str) -> Places:
    """The targets of a kind by its own rule."""
    return lambda rows, *_: (
        kinds_of(causal=True)[kind](rows.tokens, width=Thresholds().window_width)[..., None]
        == rows.place
    ).any(-2)


STRIPES: dict[str, Places] = {
    "induction": _copies(1),
    "duplicate_token": _copies(0),
    "previous_token": _distance(1, 1),
    "current_token": _distance(0, 0),
}
"""The kinds with single targets, which share one threshold."""


def _mean_period(shift: int) -> Places:
    """Keys as far back as copies are on average, whatever the row's own period, and `shift` on."""
    return lambda rows, *_: rows.shape_of(
        rows.back == (len(rows.place) - rows.opening) // 2 - shift
    )


def _scattered(rows: Rows, column: int, generator: Generator) -> Mask:
    """One key of each query, drawn from all that it sees."""
    share = torch.rand(rows.tokens.shape, dtype=torch.float32, generator=generator)
    chosen = (share * (rows.place + 1)).long()
    return rows.place == rearrange(chosen, "row q -> row q 1")


def _forgotten(rows: Rows, column: int, generator: Generator) -> Mask:
    """A column for the queries in the first half of the row; nothing after it."""
    return _column(rows, column) & (rows.place < len(rows.place) // 2)[:, None]


def _only(places: Places, on: Callable[[Rows, Generator], Bool[Tensor, "..."]]) -> Places:
    return lambda rows, column, generator: places(rows, column, generator) & on(rows, generator)


def _half_of_the_rows(rows: Rows, generator: Generator) -> Bool[Tensor, "row 1 1"]:
    order = torch.randperm(len(rows.tokens), generator=generator)
    return rearrange(order < len(order) // 2, "row -> row 1 1")


@dataclass(frozen=True)
class Role:
    """The behaviour of a planted head."""

    places: Places  # Keys that it attends to; evenly, if there is more than one.
    kind: str | None = None  # The kind that it is if strong enough; None for a near miss.
    nearly: str | None = None  # The kind that a near miss resembles.
    elsewhere: bool = False  # Whether its sink is never the first token.
    most: float = 1.0  # Highest strength of a near miss.
    factor: float = 1.0  # Factor of its strength, for a head that works by halves.


# Half of it stays below every threshold, also if the half of the rows that works has most of
# the queries that count: up to five eighths.
_HALF = 0.6

KINDS: dict[str, Role] = {
    **{kind.replace("_", " "): Role(places, kind) for kind, places in STRIPES.items()},
    "local window": Role(_distance(0, Thresholds().window_width - 1), "local_window"),
    "sink": Role(_column, "sink"),
    "sink elsewhere": Role(_column, "sink", elsewhere=True),
}
KINDS |= {label: Role(_by_rule(kind), kind) for kind, label in LABELS.items() if label not in KINDS}
"""Heads of each kind, by name."""

NEAR_MISSES: dict[str, Role] = {
    "nothing": Role(_column, factor=0.0),
    "even": Role(lambda rows, *_: rows.shape_of(rows.back >= 0)),
    "scattered": Role(_scattered),
    "two back": Role(_distance(2, 2), nearly="previous_token"),
    "mean period, next": Role(_mean_period(1), nearly="induction"),
    "mean period": Role(_mean_period(0), nearly="duplicate_token"),
    "two after the copy": Role(_copies(2), nearly="induction"),
    "before the copy": Role(_copies(-1), nearly="duplicate_token"),
    "wide window": Role(_distance(0, 31), nearly="local_window"),
    "forgotten sink": Role(_forgotten, nearly="sink", elsewhere=True),
    **{
        f"{kind.replace('_', ' ')}, {words}": Role(
            _only(places, on), nearly=kind, most=_HALF, factor=factor
        )
        for kind, places in STRIPES.items()
        for words, on, factor in (
            ("half of the rows", _half_of_the_rows, 1.0),
            ("every other query", lambda rows, _: (rows.place % 2 == 0)[:, None], 1.0),
            ("half as strong", lambda rows, _: torch.tensor(True), 0.5),
        )
    },
}
"""Heads that resemble a kind, or do nothing at all, by name."""

ROLES = KINDS | NEAR_MISSES


@dataclass(frozen=True)
class Planted:
    """One planted head."""

    pattern: Pattern  # Attention in each row.
    expected: Pattern  # The same without randomness, but for each row's own strength.
    excess: Mapping[str, float]  # `planned_excess` of `expected`: what it is in these rows.
    usual_excess: Mapping[str, float]  # The same with the usual strength in every row.
    column: int  # Its sink column, if it has one.


def truth(excess: Mapping[str, float], thresholds: Thresholds) -> str:
    """The label of a head: the most specific kind whose excess is enough, or `mixed`."""
    kinds = (kind for kind in LABELS if excess[kind] >= getattr(thresholds, kind))
    return next((LABELS[kind] for kind in kinds), MIXED)


def plant(
    rows: Rows, role: str, strength: float, *, generator: Generator, thresholds: Thresholds
) -> Planted:
    """Make a head.

    The rest of its attention, and all of it for a query without targets, goes to a sink column,
    evenly to all keys and at random, in proportions drawn uniformly (Dirichlet (1, 1, 1)). In half
    of the heads the sink column is the first token, in the others one of the first quarter. The
    random part is the softmax of normal scores of a spread from 0.5 to 3. The strength is drawn for
    each row, and again for each query, around the given one.

    Args:
        rows: Rows that it attends to.
        role: Name in `ROLES`.
        strength: For a head of a kind, the excess over even attention that it has on average,
            (mass on targets - chance) / (1 - chance), or as much of that as possible. For a
            near miss, the share of attention on its keys.
        generator: Random generator.
        thresholds: Thresholds, for the width of a window and for sink columns.
    """
    if not 0 <= strength <= 1:
        raise InputError(f"strength must be in [0, 1], got {strength}")
    part = ROLES[role]
    at_first = torch.rand((), dtype=torch.float32, generator=generator) < 0.5
    column = int(torch.randint(1, rows.tokens.shape[1] // 4, (), generator=generator))
    if (at_first or part.kind == "sink") and not part.elsewhere:
        column = 0
    places = part.places(rows, column, generator).float()
    work = places / places.sum(-1, keepdim=True).clamp(min=1)
    active = places.any(-1)
    low, high = torch.rand(2, dtype=torch.float32, generator=generator).sort().values.tolist()
    to_sink, to_all, at_random = low, high - low, 1 - high
    if "sink" in (part.kind, part.nearly):
        to_sink, to_all = 0.0, to_sink + to_all
    even = softmax(torch.zeros_like(work))
    in_column = _column(rows, column)
    sink = torch.where(in_column.any(-1, keepdim=True), in_column.float(), even)
    rest = to_sink * sink + (1 - to_sink) * even

    share = part.factor * min(strength, part.most)
    if part.kind is not None:
        sinks = torch.full_like(rows.periods, column)
        targets, counted = _targets(rows, part.kind, thresholds, sinks)
        # The score goes from that of rest to that of work in proportion to the share.
        resting, chance = _scores(rest, targets, counted)
        working, _ = _scores(mixed(active.float(), work, rest), targets, counted)
        wanted = chance + strength * (1 - chance)
        share = min(1.0, max(0.0, (wanted - resting) / (working - resting)))
    in_rows, in_queries = unsteady(share, active.shape, generator)
    expected = mixed(in_rows * active, work, rest)
    usual = mixed(share * active, work, rest)

    spread = 0.5 + 2.5 * torch.rand((), dtype=torch.float32, generator=generator)
    noise = softmax(spread * torch.randn(work.shape, dtype=torch.float32, generator=generator))
    drawn = to_sink * sink + to_all * even + at_random * noise
    return Planted(
        pattern=mixed(in_queries * active, work, drawn),
        expected=expected,
        excess=planned_excess(rows, expected, column, thresholds),
        usual_excess=planned_excess(rows, usual, column, thresholds),
        column=column,
    )


def planned_excess(
    rows: Rows, expected: Pattern, column: int, thresholds: Thresholds
) -> dict[str, float]:
    """By kind: the mass of `expected` on its targets, beyond even attention.

    It is 0 for even attention and 1 if all is on target, and follows from the places of copies.
    """
    # A row's column is a sink if the nearer and the farther half of its queries give it enough.
    near, far = expected[:, column + 1 :, column].tensor_split(
        [(expected.shape[1] - column - 1) // 2], dim=1
    )
    enough = torch.minimum(near.mean(-1), far.mean(-1)) >= thresholds.sink_column
    excess = {}
    for kind in LABELS:
        targets, counted = _targets(rows, kind, thresholds, torch.where(enough, column, 0))
        score, chance = _scores(expected, targets, counted)
        excess[kind] = (score - chance) / (1 - chance)
    return excess


def _targets(
    rows: Rows, kind: str, thresholds: Thresholds, sinks: Int[Tensor, " row"]
) -> tuple[Mask, Bool[Tensor, "row query"]]:
    """The targets of a kind, and the queries that count; `sinks` count as sinks too, from there on.

    The first token is the usual sink: it does not count as a query, nor as another kind's target.
    """
    if kind == "sink":
        chosen = (rows.place == 0) | (rows.place == sinks[:, None])
        targets = (rows.back > 0) & rearrange(chosen, "row k -> row 1 k")
        return targets, rows.place > sinks[:, None]
    return _fixed_targets(rows, kind, thresholds.window_width)


@lru_cache(maxsize=len(LABELS))
def _fixed_targets(rows: Rows, kind: str, width: int) -> tuple[Mask, Bool[Tensor, "row query"]]:
    if kind == "local_window":
        targets = _distance(0, width - 1)(rows, 0, Generator())
        # The first token is before the window.
        return targets, (rows.place >= width).expand(len(targets), -1)
    targets = (STRIPES.get(kind) or _by_rule(kind))(rows, 0, Generator())
    counted = targets.any(-1)
    if kind in STRIPES:
        counted &= ~targets[:, :, 0] & (rows.place > 0)
    return targets, counted


def _scores(
    expected: Pattern, targets: Mask, counted: Bool[Tensor, "row query"]
) -> tuple[float, float]:
    """Mean mass on the targets over the counted queries, and the same for even attention."""
    visible = torch.arange(1, targets.shape[1] + 1)
    mass = (expected * targets).sum(-1)[counted].mean()
    return mass.item(), (targets.sum(-1) / visible)[counted].mean().item()


def mixed(share: Float[Tensor, "row query"], work: Pattern, rest: Pattern) -> Pattern:
    """`share` of each query's attention as in `work`, the rest as in `rest`."""
    share = rearrange(share, "row q -> row q 1")
    return share * work + (1 - share) * rest


def unsteady(
    share: float, shape: torch.Size, generator: Generator
) -> tuple[Float[Tensor, "row 1"], Float[Tensor, "row query"]]:
    """The share in each row, and in each query of it: in [0, 1], and `share` on average.

    In units of its largest variation, min(share, 1 - share), the standard deviation is about .13
    over rows and .4 over queries. The labelled heads of SmolLM2-135M have medians of .12 and .5.
    """
    sizes = (shape[0], 1), shape, ()
    of_row, of_query, of_head = (
        torch.rand(size, dtype=torch.float32, generator=generator) for size in sizes
    )
    reach = (0.5 + 0.5 * of_head) * min(share, 1 - share)
    in_rows = share + reach * 0.25 * (torch.pi * of_row).cos()
    return in_rows, in_rows + reach * 0.75 * (torch.pi * of_query).cos()


def softmax(scores: Pattern) -> Pattern:
    """Causal attention with these scores."""
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1)
