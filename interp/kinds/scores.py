"""Scores of the heads of a layer: what to ask (`ask`), and the tallies (`score_layer`).

Questions depend on the tokens alone, so they are computed once for all layers of one window.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeVar

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import Count, InputError, checked
from interp.kinds.kind import KINDS, kinds_of
from interp.kinds.mass import Attention, FromPattern, Tally, visible_keys
from interp.kinds.sinks import halves, sink_columns, spaced
from interp.kinds.targets import (
    NONE,
    Blocks,
    first_token,
    ordinary,
    positions,
    within,
)

T = TypeVar("T")


def _of_every_kind(thresholds: type[T]) -> type[T]:
    """Add a threshold for each kind of `KINDS` that the class does not list."""
    for kind in KINDS.values():
        if kind.name not in thresholds.__annotations__:
            thresholds.__annotations__[kind.name] = float
            setattr(thresholds, kind.name, kind.threshold)
    return thresholds


@checked
@dataclass(frozen=True, kw_only=True)
@_of_every_kind
class Thresholds:
    """Every number that decides a label, in one place.

    Attributes:
        induction: Least excess for the label, here and in the next six.
            0.4 is the usual value for stripes (ARENA 1.2).
        duplicate_token: As `induction`.
        previous_token: As `induction`.
        next_token: As `induction`.
        current_token: As `induction`.
        local_window: No published value: more than half of the attention.
        anti_induction: How far below 0 a head with the induction label must push the right
            token's logit to be anti-induction, as a share of the largest such effect of any
            head of the model: effects shrink with depth, so their size alone says little.
        sink: epsilon = 0.3 of Gu et al. 2024 (arXiv 2410.10781).
        window_width: How many positions, the query's own among them, are "local".
        sink_column: Least share of the later queries' attention that makes a column other
            than the first token a sink (see `interp.kinds.sinks.sink_columns`).
        sink_queries: How many later queries it takes to call a column a sink.
        min_queries: How many counted queries it takes to say anything about a kind.

    Raises:
        InputError: If a share is no number in (0, 1], or a number of positions or queries no
            whole one from 1 up.
    """

    induction: float = KINDS["induction"].threshold
    duplicate_token: float = KINDS["duplicate_token"].threshold
    previous_token: float = KINDS["previous_token"].threshold
    next_token: float = KINDS["next_token"].threshold
    current_token: float = KINDS["current_token"].threshold
    local_window: float = KINDS["local_window"].threshold
    anti_induction: float = 0.1
    sink: float = KINDS["sink"].threshold
    window_width: Count = 8
    sink_column: float = 0.1
    sink_queries: Count = 16
    min_queries: Count = 4

    def __post_init__(self) -> None:
        for name in (*KINDS, "sink_column", "anti_induction"):
            value = getattr(self, name)
            number = issubclass(type(value), Real) and not isinstance(value, bool)
            if not number or not 0 < value <= 1:
                raise InputError(f"{name} must be in (0, 1], got {value!r}")
            object.__setattr__(self, name, float(value))  # Of numpy too: records keep it.


def as_thresholds(thresholds: Any) -> Thresholds:
    """`thresholds`, or `Thresholds()` for None.

    Raises:
        InputError: If it is anything else.
    """
    if thresholds is None:
        return Thresholds()
    if not isinstance(thresholds, Thresholds):
        raise InputError(
            f"thresholds must be interp.Thresholds(...), got {type(thresholds).__name__}"
        )
    return thresholds


@dataclass(frozen=True)
class LayerScores:
    """What was measured on one layer, row by row.

    Attributes:
        tallies: By kind, and for `entropy` (nats) and `mean_distance` (tokens back).
        sink_position: The column that takes most of each head's resting attention, counted
            from the row's first token.
    """

    tallies: dict[str, Tally]
    sink_position: Int[Tensor, "row head"]

    @classmethod
    def join(cls, parts: "Sequence[LayerScores]") -> "LayerScores":
        """The rows of all `parts`, one after the other."""
        return cls(
            {name: Tally.join([p.tallies[name] for p in parts]) for name in parts[0].tallies},
            torch.cat([p.sink_position for p in parts]),
        )

    def measured(self, least: int) -> "LayerScores":
        """These scores without the tallies of fewer than `least` queries, which say nothing."""
        enough = {n: t for n, t in self.tallies.items() if int(t.queries.sum()) >= least}
        return LayerScores(enough, self.sink_position)


STATISTICS = ("entropy", "mean_distance")

VALUE_WEIGHTED = "sink_value_weighted"
"""The sink's share when each key counts by the size of what it brings, `|A v W_O|`."""


@dataclass(frozen=True)
class Questions:
    """What is asked of every layer that has the same window.

    Attributes:
        tokens: -1 is padding.
        keys: By kind, where each query should look.
        fit: The queries that count.
        seen: How many keys each query may attend to.
        last: The last of them.
        resting: Where idle heads rest, by the tokens alone.
        queries: Some of those that count, to look for sink columns in their rows.
        later: For each key, those of `queries` that can rest on it (see
        `interp.kinds.sinks.halves`).
        statistics: Whether entropy and mean distance are asked for, which without a pattern
            takes as long as the attention itself.
        elsewhere: Whether this is for a null: see `ask_elsewhere`.
    """

    tokens: Int[Tensor, "batch pos"]
    keys: dict[str, Int[Tensor, "batch pos _"]]
    fit: Bool[Tensor, "batch pos"]
    seen: Int[Tensor, "batch pos"]
    last: Int[Tensor, "batch pos"]
    resting: Bool[Tensor, "batch pos"]
    queries: Int[Tensor, "batch s"]
    later: Bool[Tensor, "half=2 batch s pos"]
    statistics: bool
    elsewhere: bool = False


def ask(
    tokens: Int[Tensor, "batch pos"],
    *,
    counted: Bool[Tensor, "batch pos"] | None = None,
    special: Collection[int] = (),
    window: int | None = None,
    thresholds: Thresholds,
    kinds: Collection[str] = tuple(KINDS),
    causal: bool = True,
    statistics: bool = True,
) -> Questions:
    """Work out what to ask of a layer.

    Args:
        tokens: -1 is padding.
        counted: Which queries to look at; all if left out. Queries that the targets rule
            out (padding, first and special tokens) never count.
        special: Ids of special tokens.
        window: How far back the layer may look, the query included; or
            `interp.kinds.targets.Blocks`.
        thresholds: For the width of the local window.
        kinds: Which kinds to score, of those that the direction has.
        causal: Whether a query sees no key after itself; otherwise `window` goes both ways.
        statistics: Whether to tally entropy and mean distance too.
    """
    fit = ordinary(tokens, special)
    if counted is not None:
        fit = fit & counted
    keys = {
        kind: _in_sight(targets_of(kind, tokens, special, thresholds, causal), tokens, window)
        for kind in kinds_of(causal)
        if kind in kinds
    }
    queries = spaced(fit)
    seen, last = (
        (visible_keys(tokens, window), positions(tokens)) if causal else _around(tokens, window)
    )
    return Questions(
        tokens=tokens,
        keys=keys,
        fit=fit,
        seen=seen,
        last=last,
        resting=(tokens != NONE) & ~ordinary(tokens, special),
        queries=queries,
        later=halves(queries, tokens.shape[1], causal=causal),
        statistics=statistics,
    )


def ask_elsewhere(questions: Questions, *, seed: int) -> Questions:
    """The same questions where a head of each kind should not look: for a null.

    For kinds that match tokens the questions stay, and the rows that are run differ
    (`interp.kinds.probes.shuffled`). Kinds that go by position are asked about as many visible
    keys, drawn evenly.
    """
    generator = torch.Generator().manual_seed(seed)
    last = questions.last[..., None]
    keys = {}
    for kind, own in questions.keys.items():
        if KINDS[kind].null == "shuffled":
            keys[kind] = own
            continue
        share = torch.rand(own.shape, dtype=torch.float32, generator=generator).to(own.device)
        drawn = last - (share * questions.seen[..., None]).long()
        keys[kind] = torch.where(own != NONE, drawn, NONE)
    return replace(questions, keys=keys, statistics=False, elsewhere=True)


def score_layer(
    attention: Attention | Float[Tensor, "batch head query=pos key=pos"],
    questions: Questions,
    thresholds: Thresholds,
) -> LayerScores:
    """Tally what was asked in one layer.

    Args:
        attention: As a pattern or as queries and keys, in float32; a pattern's rows of padding
            may hold anything.
        questions: From `ask`.
        thresholds: For the sink columns.
    """
    tokens, fit, seen = questions.tokens, questions.fit, questions.seen
    if isinstance(attention, Tensor):
        real = rearrange(tokens != NONE, "b q -> b 1 q 1")
        attention = FromPattern(torch.where(real, attention, 0))

    tallies = {}
    place = torch.zeros(len(tokens), attention.n_heads, dtype=torch.long)
    means = attention.means() if questions.statistics else None
    for kind, keys in questions.keys.items():
        there = keys != NONE
        if kind == "sink":
            rows = attention.rows(questions.queries)
            columns, strongest = sink_columns(
                rows, questions.later, share=thresholds.sink_column, least=thresholds.sink_queries
            )
            places = _listed(columns | questions.resting[:, None])
            others = _others(places, questions)
            number = others.sum(-1)
            on_sink = attention.on_columns(places) * others
            value, uniform = on_sink.sum(-1), number / seen[:, None]
            if questions.elsewhere:  # One key drawn for each query, as often as it has columns.
                value = attention.mass(keys) * number
            place = (strongest - first_token(tokens)[:, None]).cpu()
            if means is not None and means.norm is not None and attention.norms is not None:
                norms = attention.norms.gather(-1, places.clamp(min=0))
                weighted = (on_sink * norms[:, :, None]).sum(-1) / means.norm.clamp(min=1e-30)
                tallies[VALUE_WEIGHTED] = Tally.of(weighted, uniform, there.any(-1) & fit)
        else:
            value = attention.mass(keys)
            uniform = _per_head(there.sum(-1) / seen, attention.n_heads)
        tallies[kind] = Tally.of(value, uniform, there.any(-1) & fit)

    if means is not None:
        ahead = questions.last - positions(tokens)
        behind = seen - 1 - ahead
        even = seen.log(), (behind * (behind + 1) + ahead * (ahead + 1)) / (2 * seen)
        even = [_per_head(value, attention.n_heads) for value in even]
        tallies["entropy"] = Tally.of(means.entropy, even[0], fit)
        tallies["mean_distance"] = Tally.of(means.distance, even[1], fit)
    return LayerScores(tallies, place)


def targets_of(
    kind: str,
    tokens: Int[Tensor, "batch pos"],
    special: Collection[int],
    thresholds: Thresholds,
    causal: bool = True,
) -> Int[Tensor, "batch pos m"]:
    """The targets of one kind, with the window's width from `thresholds`."""
    return KINDS[kind](tokens, special, width=thresholds.window_width, causal=causal)


def _around(
    tokens: Int[Tensor, "batch pos"], window: int | None
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """How many keys a query that looks both ways sees, and the last of them."""
    here, first = positions(tokens), first_token(tokens)[:, None]
    end = first + (tokens != NONE).sum(-1, keepdim=True) - 1
    before = after = here.new_tensor(tokens.shape[1] if window is None else window - 1)
    if isinstance(window, Blocks):
        before = (here - first) % int(window)
        after = window - 1 - before
    last = (here + after).minimum(end)
    return (last - (here - before).maximum(first) + 1).clamp(min=1), last


def _in_sight(
    keys: Int[Tensor, "batch query m"], tokens: Int[Tensor, "batch query"], window: int | None
) -> Int[Tensor, "batch query m"]:
    if window is None:
        return keys
    first = first_token(tokens)[:, None, None]
    return torch.where(
        within(window, positions(tokens)[..., None] - first, keys - first), keys, NONE
    )


def _listed(columns: Bool[Tensor, "batch head key"]) -> Int[Tensor, "batch head m"]:
    """The places of the columns, filled up with -1."""
    most = int(columns.sum(-1).max())
    chosen = columns.int().topk(most, dim=-1)
    return torch.where(chosen.values > 0, chosen.indices, NONE)


def _others(
    places: Int[Tensor, "batch head m"], questions: Questions
) -> Bool[Tensor, "batch head query m"]:
    """Which places in sight each query can rest on: its attention to itself is not rest."""
    last = rearrange(questions.last, "b q -> b 1 q 1")
    seen = rearrange(questions.seen, "b q -> b 1 q 1")
    query, place = rearrange(positions(questions.tokens), "b q -> b 1 q 1"), places[:, :, None]
    in_sight = (place > last - seen) & (place <= last)
    return in_sight & (place != query) & (place != NONE)


def _per_head(
    value: Float[Tensor, "batch query"], n_heads: int
) -> Float[Tensor, "batch head query"]:
    return repeat(value, "b q -> b h q", h=n_heads)
