"""Scores of a layer's heads: the questions (`ask`), and their tallies (`score_layer`).

Questions depend on the tokens alone, so all layers with the same window share them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import Count, InputError, checked
from interp.kinds.builtin import KINDS, kinds_of
from interp.kinds.explained import Asked, Explained, explain
from interp.kinds.kind import Kind, Texts
from interp.kinds.mass import Attention, FromPattern, Joined, Tally, visible_keys
from interp.kinds.sinks import Search, Sinks, find_sinks
from interp.kinds.targets import (
    NONE,
    Blocks,
    Keys,
    Tokens,
    at_keys,
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
    """Every number that decides a label.

    Attributes:
        induction: Least excess for the label, as in the next six.
            0.4 is the usual value for stripes (ARENA 1.2).
        duplicate_token: As `induction`.
        previous_token: As `induction`.
        next_token: As `induction`.
        current_token: As `induction`.
        local_window: No published value: more than half of the attention.
        anti_induction: How far below 0 an anti-induction head must push the right token's logit,
            as a share of the model's largest effect on it, since effects shrink with depth.
        sink: epsilon = 0.3 of Gu et al. 2024 (arXiv 2410.10781).
        window_width: Width of the local window, the query included.
        sink_column: Least share of the later queries' attention that makes a column other
            than the first token a sink (see `interp.kinds.sinks`).
        sink_queries: Least number of later queries for a sink column.
        min_queries: Least number of counted queries for a score.

    Example:
        >>> Thresholds(induction=0.5).induction
        0.5
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

    def of(self, kind: Kind) -> float:
        """The threshold of a kind: its own, if it has no field here."""
        return getattr(self, kind.name, kind.threshold)


def as_thresholds(thresholds: Any) -> Thresholds:
    """`thresholds`, or `Thresholds()` for None."""
    if isinstance(thresholds, Thresholds | None):
        return thresholds or Thresholds()
    raise InputError(f"thresholds must be interp.Thresholds(...), got {type(thresholds).__name__}")


@dataclass(frozen=True)
class LayerScores:
    """Scores of one layer, row by row.

    Attributes:
        tallies: Tallies by kind, and of `entropy` (nats) and `mean_distance` (tokens).
        sink_position: Each head's strongest sink, counted from the row's first token.
        sinks: Share of each column that is a sink by its attention, sparse, counted likewise:
            the mean attention to it over the queries that count and can use it.
        explained: How much of the attention outside sinks the kinds explain, if it was asked.
    """

    tallies: dict[str, Tally]
    sink_position: Int[Tensor, "row head"]
    sinks: Float[Tensor, "row head pos"] | None = None
    explained: Explained | None = None

    @classmethod
    def join(cls, parts: "Sequence[LayerScores]") -> "LayerScores":
        """The rows of all `parts`, one after the other."""
        sinks = [p.sinks for p in parts if p.sinks is not None]
        explained = [p.explained for p in parts if p.explained is not None]
        return cls(
            {name: Tally.join([p.tallies[name] for p in parts]) for name in parts[0].tallies},
            torch.cat([p.sink_position for p in parts]),
            torch.cat(sinks) if sinks else None,
            Explained.join(explained) if explained else None,
        )

    def folded(self, rows: int, lots: float) -> "LayerScores":
        """The sums of each so many neighbouring rows, as one row; sinks are left out.

        Of the examples those stay whose lot is below `lots`.
        """
        explained = self.explained and self.explained.folded(rows, lots)
        tallies = {name: tally.folded(rows) for name, tally in self.tallies.items()}
        return LayerScores(tallies, self.sink_position[::rows], None, explained)

    def measured(self, least: int) -> "LayerScores":
        """The scores without tallies of fewer than `least` queries."""
        enough = {n: t for n, t in self.tallies.items() if int(t.queries.sum()) >= least}
        return replace(self, tallies=enough)


STATISTICS = ("entropy", "mean_distance")

VALUE_WEIGHTED = "sink_value_weighted"
"""Score of the sink with each key weighted by its output, `|A v W_O|`."""


@dataclass(frozen=True)
class Questions:
    """Questions to every layer with the same window.

    Attributes:
        tokens: Token ids; -1 is padding.
        kinds: The kinds by name, the most specific first.
        known: What else a kind is called with: texts, special ids, width, direction.
        keys: Targets of each query, by kind.
        fit: Queries that count.
        seen: Number of keys that each query sees.
        last: Last of these keys.
        resting: Sinks that the tokens alone determine.
        search: Where sink columns are searched.
        statistics: Whether to tally entropy and mean distance, which without a pattern takes as
            long as the attention itself.
        elsewhere: Whether this is for a null, from `ask_elsewhere`.
        explaining: Whether to tally how much of the attention outside sinks the kinds explain.
    """

    tokens: Tokens
    kinds: Mapping[str, Kind]
    known: Mapping[str, Any]
    keys: dict[str, Int[Tensor, "batch pos _"]]
    fit: Bool[Tensor, "batch pos"]
    seen: Int[Tensor, "batch pos"]
    last: Int[Tensor, "batch pos"]
    resting: Bool[Tensor, "batch pos"]
    search: Search
    statistics: bool
    elsewhere: bool = False
    explaining: bool = False

    @cached_property
    def asked(self) -> Asked:
        """The queries whose attention the kinds are to explain; sinks are never targets."""
        keys = {kind: keys for kind, keys in self.keys.items() if kind != "sink"}
        return Asked.of(self.tokens, keys, counted=self.fit, seen=self.seen, last=self.last)

    @cached_property
    def joined(self) -> Joined:
        """The targets of the kinds that have the same ones in every head."""
        return Joined.of({k: keys for k, keys in self.keys.items() if k != "sink"}, self.fit)

    @cached_property
    def even(self) -> dict[str, tuple[Float[Tensor, "row 1"], Int[Tensor, " row"]]]:
        """Sum of `Tally.uniform` for each row, and the number of counted queries, by kind."""
        found = {}
        for kind, keys in self.joined.keys.items():
            number = (keys != NONE).sum(-1)
            share = (number.cpu() / self.seen.cpu().double()).sum(-1, keepdim=True)
            found[kind] = share, (number > 0).sum(-1).cpu()
        return found


def ask(
    tokens: Tokens,
    *,
    counted: Bool[Tensor, "batch pos"] | None = None,
    apart: Bool[Tensor, "batch pos"] | None = None,
    special: Collection[int] = (),
    window: int | None = None,
    thresholds: Thresholds,
    kinds: Mapping[str, Kind] = KINDS,
    texts: Texts | None = None,
    causal: bool = True,
    statistics: bool = True,
) -> Questions:
    """Questions to a layer about its tokens.

    Args:
        tokens: Token ids; -1 is padding.
        counted: Queries to count; all if None. Padding, first and special tokens never count.
        apart: Positions of a chat template: a query that has one of them among the targets of a
            kind that matches tokens does not count for this kind.
        special: Ids of special tokens.
        window: Number of keys back that the layer sees, the query included, or
            `interp.kinds.targets.Blocks`.
        thresholds: Thresholds, for the width of the local window.
        kinds: Kinds to score, by name, if the direction has them.
        texts: Text of each token, for kinds that read it; these are left out without it.
        causal: Whether no query looks ahead; otherwise `window` goes both ways.
        statistics: Whether to tally entropy and mean distance too.
    """
    fit = ordinary(tokens, special)
    if counted is not None:
        fit = fit & counted
    known: dict[str, Any] = {"texts": texts, "special": special, "causal": causal}
    known |= {"width": thresholds.window_width}
    kinds = kinds_of(causal, kinds)
    keys = {
        name: _visible(kind(tokens, **known), tokens, window)
        for name, kind in kinds.items()
        if texts is not None or not kind.takes("texts")
    }
    if apart is not None:
        for kind in keys:
            if kinds[kind].null == "shuffled":
                beyond = at_keys(apart, keys[kind]).any(-1, keepdim=True)
                keys[kind] = torch.where(beyond, NONE, keys[kind])
    seen, last = visible_keys(tokens, window), positions(tokens)
    if not causal:
        seen, last = _around(tokens, window)
    return Questions(
        tokens=tokens,
        kinds=kinds,
        known=known,
        keys=keys,
        fit=fit,
        seen=seen,
        last=last,
        resting=(tokens != NONE) & ~ordinary(tokens, special),
        search=Search.of(fit, causal=causal),
        statistics=statistics,
    )


def ask_elsewhere(questions: Questions, *, seed: int) -> Questions:
    """The same questions about keys where a head of each kind should not look: for a null.

    Kinds that match tokens keep their targets, on shuffled rows (`interp.kinds.probes.shuffled`);
    other kinds get as many visible keys at random, or the keys of their null's rule.
    """
    generator = torch.Generator().manual_seed(seed)
    last = questions.last[..., None]
    keys = {}
    # Built-in kinds come first, so that other kinds do not change what is drawn for them.
    for kind, targets in sorted(questions.keys.items(), key=lambda item: item[0] not in KINDS):
        keys[kind] = targets
        null = questions.kinds[kind].null
        if callable(null):
            given = questions.kinds[kind].elsewhere(questions.tokens, **questions.known)
            seen = (given <= last) & (given > last - questions.seen[..., None])
            keys[kind] = torch.where(seen, given, NONE)
        elif null == "drawn":
            share = torch.rand(targets.shape, dtype=torch.float32, generator=generator)
            drawn = last - (share.to(targets.device) * questions.seen[..., None]).long()
            keys[kind] = torch.where(targets != NONE, drawn, NONE)
    return replace(questions, keys=keys, statistics=False, elsewhere=True)


OfHeads = Callable[[Attention, Asked, Tensor], Mapping[str, Tensor]]
"""Targets that differ between heads, by kind, from a layer's attention, queries and sinks."""


def score_layer(
    attention: Attention | Float[Tensor, "batch head query=pos key=pos"],
    questions: Questions,
    thresholds: Thresholds,
    of_heads: OfHeads | None = None,
) -> LayerScores:
    """Tally the answers of one layer; rows of padding in a pattern are ignored.

    With `of_heads` its targets explain too, after those of the kinds.
    """
    tokens, fit, seen = questions.tokens, questions.fit, questions.seen
    if isinstance(attention, Tensor):
        real = rearrange(tokens != NONE, "b q -> b 1 q 1")
        attention = FromPattern(torch.where(real, attention, 0))

    tallies, found, sinks, explained = {}, None, None, None
    place = torch.zeros(len(tokens), attention.n_heads, dtype=torch.long)
    means = attention.means() if questions.statistics else None
    if questions.even:
        totals = attention.totals(questions.joined).cpu().double()
        for total, (kind, (uniform, number)) in zip(totals, questions.even.items(), strict=True):
            tallies[kind] = Tally(total, uniform.expand_as(total), number)
    if "sink" in questions.keys or questions.explaining:
        limits = {"share": thresholds.sink_column, "least": thresholds.sink_queries}
        found = find_sinks(attention, questions.search, questions.resting, **limits)
        if questions.explaining:
            known = attention, questions.asked, found.columns(questions.resting)
            explained = explain(*known, None if of_heads is None else of_heads(*known))
    if found is not None and "sink" in questions.keys:
        keys = questions.keys["sink"]
        counted = (keys != NONE).any(-1) & fit
        kept = found.drawing | _at(questions.resting, found.places)
        on_sink = found.attention * kept[..., None]
        number = (_others(found.places, questions) & kept[..., None]).sum(-2)
        value, uniform = on_sink.sum(-2), number / seen[:, None]
        if questions.elsewhere:  # One random key per query, counted once per column.
            value = attention.mass(keys) * number
        weight = _since(found.start, questions, counted)
        value, uniform = value * weight, uniform * weight
        first = first_token(tokens)[:, None]
        place = (found.strongest - first).clamp(min=0).cpu()
        sinks = _shares(found, first[..., None], tokens.shape[1])
        if means is not None and means.norm is not None and attention.norms is not None:
            norms = attention.norms.gather(-1, found.places.clamp(min=0))
            weighted = (on_sink * norms[..., None]).sum(-2) / means.norm.clamp(min=1e-30)
            tallies[VALUE_WEIGHTED] = Tally.of(weighted * weight, uniform, counted)
        tallies["sink"] = Tally.of(value, uniform, counted)

    if means is not None:
        ahead = questions.last - positions(tokens)
        behind = seen - 1 - ahead
        away = (behind * (behind + 1) + ahead * (ahead + 1)) / (2 * seen)
        tallies["entropy"] = Tally.of(means.entropy, seen.log()[:, None], fit)
        tallies["mean_distance"] = Tally.of(means.distance, away[:, None], fit)
    return LayerScores(tallies, place, sinks, explained)


def _around(
    tokens: Tokens, window: int | None
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Number of keys that a query sees in both directions, and the last of them."""
    here, first = positions(tokens), first_token(tokens)[:, None]
    end = first + (tokens != NONE).sum(-1, keepdim=True) - 1
    before = after = here.new_tensor(tokens.shape[1] if window is None else window - 1)
    if isinstance(window, Blocks):
        before = (here - first) % int(window)
        after = window - 1 - before
    last = (here + after).minimum(end)
    return (last - (here - before).maximum(first) + 1).clamp(min=1), last


def _visible(keys: Keys, tokens: Tokens, window: int | None) -> Keys:
    """The keys inside the window."""
    if window is None:
        return keys
    first = first_token(tokens)[:, None, None]
    seen = within(window, positions(tokens)[..., None] - first, keys - first)
    return torch.where(seen, keys, NONE)


def _others(
    places: Int[Tensor, "batch head m"], questions: Questions
) -> Bool[Tensor, "batch head m query"]:
    """Which visible columns each query can use as a sink: all but its own."""
    last = rearrange(questions.last, "b q -> b 1 1 q")
    seen = rearrange(questions.seen, "b q -> b 1 1 q")
    query, place = torch.arange(last.shape[-1], device=last.device), places[..., None]
    visible = (place > last - seen) & (place <= last)
    return visible & (place != query) & (place != NONE)


def _at(
    columns: Bool[Tensor, "batch pos"], places: Int[Tensor, "batch head m"]
) -> Bool[Tensor, "batch head m"]:
    """Whether each of `places` is among the columns."""
    batch = torch.arange(len(columns), device=columns.device)[:, None, None]
    return columns[batch, places.clamp(min=0)] & (places != NONE)


def _since(
    start: Int[Tensor, "batch head"], questions: Questions, counted: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head query"]:
    """Weight of each query for a head's sinks: 0 before the first of them, in a causal model.

    The weights of a row sum to its number of counted queries.
    """
    query = rearrange(positions(questions.tokens), "b q -> b 1 q")
    after = counted[:, None] & ((query > start[..., None]) | (not questions.search.causal))
    return after * (counted.sum(-1)[:, None, None] / after.sum(-1, keepdim=True).clamp(min=1))


def _shares(
    found: Sinks, first: Int[Tensor, "batch 1 1"], length: int
) -> Float[Tensor, "batch head pos"]:
    """The shares of the columns that are sinks, counted from the first token, sparse."""
    row, head, column = found.drawing.nonzero(as_tuple=True)
    place = (found.places - first)[row, head, column]
    shares = found.share[row, head, column]
    shape = (*found.places.shape[:2], length)
    index = torch.stack([row, head, place])
    # Made on the CPU, since some devices have no sparse tensors.
    index, shares = index.cpu(), shares.cpu()
    return torch.sparse_coo_tensor(index, shares, shape, check_invariants=True)
