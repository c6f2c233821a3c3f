"""How much of a head's attention the kinds explain, on natural text.

A head's *explained share* is the share of its attention outside sinks that lands on the union of
the kinds' targets. Each pair of a query and a key counts once, for the first kind that has it as a
target. The null is the share that as many keys get, drawn evenly from the visible ones outside the
head's sinks.

Whole rows of the pattern are read for some queries of each text, so that time and memory grow with
the length and no pattern is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.mass import Attention, folded
from interp.kinds.targets import NONE, Keys, Tokens, cells, first_token, positions

START = 16
"""First query that counts: earlier ones see few keys outside the local window."""

QUERIES = 64
"""Most queries of a row that are asked."""


@dataclass(frozen=True)
class Asked:
    """The queries of a batch whose attention is to be explained, and their targets.

    Attributes:
        tokens: Token ids; -1 is padding.
        queries: Queries of each row, evenly spaced; filled up with -1.
        visible: Keys that each of these queries sees.
        targets: Targets of these queries, by kind, the most specific first.
    """

    tokens: Tokens
    queries: Int[Tensor, "batch s"]
    visible: Bool[Tensor, "batch s key"]
    targets: dict[str, Bool[Tensor, "batch s key"]]

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        keys: Mapping[str, Keys],
        *,
        counted: Bool[Tensor, "batch pos"],
        seen: Int[Tensor, "batch pos"],
        last: Int[Tensor, "batch pos"],
        most: int = QUERIES,
    ) -> "Asked":
        """Ask `most` of the queries that are `counted`, from number `START` of each row on.

        Args:
            tokens: Token ids; -1 is padding.
            keys: Targets of every query, by kind.
            counted: Queries that count, such as `Questions.fit`.
            seen: Number of keys that each query sees.
            last: Last of these keys.
            most: Largest number of queries of a row.
        """
        place = positions(tokens)
        queries = evenly(counted & (place - first_token(tokens)[:, None] >= START), most)
        at = queries.clamp(min=0)
        key = place[:1, None]
        end = last.gather(1, at)[..., None]
        visible = (key <= end) & (key > end - seen.gather(1, at)[..., None])
        visible &= (queries != NONE)[..., None]
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        length = tokens.shape[1]
        targets = {name: cells(some[rows, at], length) & visible for name, some in keys.items()}
        return cls(tokens, queries, visible, targets)

    @cached_property
    def first(self) -> Float[Tensor, "batch s key kind"]:
        """1 where a key is a target of a kind and of none before it, else 0."""
        none = torch.zeros_like(self.visible)
        kinds = torch.stack([none, *self.targets.values()], -1)
        return (kinds & (kinds.cumsum(-1) == 1))[..., 1:].float()

    @cached_property
    def union(self) -> Bool[Tensor, "batch s key"]:
        """Keys that are a target of any kind."""
        return self.first.any(-1)


PAIRS, SAMPLE = 4, 640
"""Most unexplained pairs of a head, and most queries whose engagement is kept."""


@dataclass(frozen=True)
class Examples:
    """Single queries of one layer's heads: what no kind explains, and how engaged a head is.

    Attributes:
        rows: Number of rows that they are from.
        pairs: Row, query and key of the pairs with the most attention that no kind explains, one
            a key, the largest first.
        weight: Attention of these pairs.
        queries: Row and query of a random sample.
        lot: Number of each, a hash of the row's tokens and the query; the lowest are kept, so that
            the sample does not depend on how rows are joined.
        engaged: Share of each query's attention that is not on sinks.
        key: The key outside sinks that gets most of it.
        on_key: Attention to that key.
    """

    rows: int
    pairs: Int[Tensor, "head n 3"]
    weight: Float[Tensor, "head n"]
    queries: Int[Tensor, "s 2"]
    lot: Int[Tensor, " s"]
    engaged: Float[Tensor, "head s"]
    key: Int[Tensor, "head s"]
    on_key: Float[Tensor, "head s"]

    @classmethod
    def of(
        cls,
        outside: Float[Tensor, "batch head s key"],
        left: Float[Tensor, "batch head s key"],
        asked: Asked,
    ) -> "Examples":
        """Those of the `asked` queries: their attention outside sinks, and what of it is left."""
        rows, heads, _, length = outside.shape
        queries, place = asked.queries, positions(asked.tokens)
        by_key = left.max(2)
        top = rearrange(by_key.values, "b h k -> h (b k)").topk(min(PAIRS, rows * length))
        row, key = top.indices // length, top.indices % length
        at = by_key.indices[row, torch.arange(heads, device=row.device)[:, None], key]
        pairs = torch.stack([row, queries[row, at], key], -1)
        row, at = (queries != NONE).nonzero(as_tuple=True)
        most = outside.max(-1)
        by_query = (x[row, :, at].T for x in (outside.sum(-1), most.indices, most.values))
        lot = ((asked.tokens * (place + 1)).sum(-1)[row] * 4099 + at) * 0x9E3779B1 % 2**32
        some = torch.stack([row, queries[row, at]], -1)
        parts = (x.cpu() for x in (pairs, top.values, some, lot, *by_query))
        return cls.join([cls(rows, *parts)])

    @classmethod
    def join(cls, parts: "Sequence[Examples]") -> "Examples":
        """Those of the rows of all `parts`, one after the other, as many as are kept."""
        starts = [0, *accumulate(part.rows for part in parts)]
        pairs = torch.cat([p.pairs + torch.tensor([n, 0, 0]) for p, n in zip(parts, starts)], 1)
        queries = torch.cat([p.queries + torch.tensor([n, 0]) for p, n in zip(parts, starts)])
        weight = torch.cat([part.weight for part in parts], 1)
        top = weight.topk(min(PAIRS, weight.shape[1]))
        pairs = pairs.gather(1, top.indices[..., None].expand(-1, -1, 3))
        lot = torch.cat([part.lot for part in parts])
        kept = lot.argsort(stable=True)[:SAMPLE].sort().values
        engaged, key, on_key = (
            torch.cat([getattr(part, name) for part in parts], 1)[:, kept]
            for name in ("engaged", "key", "on_key")
        )
        return cls(starts[-1], pairs, top.values, queries[kept], lot[kept], engaged, key, on_key)

    def below(self, lots: float) -> "Examples":
        """Without the queries whose lot is not below `lots`."""
        kept = self.lot < lots
        by_query = {name: getattr(self, name)[:, kept] for name in ("engaged", "key", "on_key")}
        return replace(self, queries=self.queries[kept], lot=self.lot[kept], **by_query)

    def used(self) -> set[int]:
        """The rows of the pairs and queries."""
        return {*self.pairs[..., 0].flatten().tolist(), *self.queries[:, 0].tolist()}


@dataclass(frozen=True)
class Explained:
    """Attention of one layer's heads outside their sinks, summed over the queries of each row.

    Attributes:
        queries: Number of these queries.
        outside: All of it.
        on: What lands on each kind's targets that no kind before it has, in the order of kinds.
        even: What `on` would be if `outside` were spread evenly: the null.
        examples: Single queries; None where they are kept elsewhere.
    """

    queries: Int[Tensor, " row"]
    outside: Float[Tensor, "row head"]
    on: dict[str, Float[Tensor, "row head"]]
    even: dict[str, Float[Tensor, "row head"]]
    examples: Examples | None

    @classmethod
    def join(cls, parts: "Sequence[Explained]") -> "Explained":
        """The rows of all `parts`, one after the other."""

        def joined(name: str) -> dict[str, Tensor]:
            return {
                kind: torch.cat([getattr(p, name)[kind] for p in parts]) for kind in parts[0].on
            }

        queries, outside = (
            torch.cat([getattr(p, name) for p in parts]) for name in ("queries", "outside")
        )
        known = [part.examples for part in parts if part.examples is not None]
        examples = Examples.join(known) if known else None
        return cls(queries, outside, joined("on"), joined("even"), examples)

    def folded(self, rows: int, lots: float) -> "Explained":
        """The sums of each so many neighbouring rows, as one row."""
        on, even = (
            {kind: folded(one, rows) for kind, one in each.items()} for each in (self.on, self.even)
        )
        examples = self.examples and self.examples.below(lots)
        return Explained(folded(self.queries, rows), folded(self.outside, rows), on, even, examples)

    @property
    def share(self) -> Float[Tensor, " head"]:
        """Explained share of each head, in [0, 1]; NaN if all its attention is on sinks."""
        return sum_of(self.on) / self.outside.sum(0)

    @property
    def null(self) -> Float[Tensor, " head"]:
        """`share` of as many keys drawn evenly."""
        return sum_of(self.even) / self.outside.sum(0)


def sum_of(by_kind: Mapping[str, Float[Tensor, "row head"]]) -> Float[Tensor, " head"]:
    """The sum over rows and kinds."""
    return torch.stack([*by_kind.values()]).sum((0, 1))


def explain(
    attention: Attention,
    asked: Asked,
    sinks: Bool[Tensor, "batch head key"],
    of_heads: Mapping[str, Bool[Tensor, "batch head s key"]] | None = None,
) -> Explained:
    """Tally the attention of one layer on the targets of `asked`.

    Args:
        attention: Attention of the layer.
        asked: Queries and targets.
        sinks: Columns that are sinks, from `interp.kinds.sinks.Sinks.columns`.
        of_heads: Targets that differ between heads, by kind, after all others.

    Example:
        >>> from interp.kinds.mass import FromPattern, visible_keys
        >>> tokens = torch.arange(32)[None]
        >>> even = torch.ones(32, 32).tril() / torch.arange(1, 33)[:, None]
        >>> counted, last = torch.ones_like(tokens).bool(), positions(tokens)
        >>> keys = {"previous token": last[..., None] - 1}
        >>> asked = Asked.of(
        ...     tokens, keys, counted=counted, seen=visible_keys(tokens), last=last
        ... )
        >>> first = (tokens == 0)[None]
        >>> explained = explain(FromPattern(even[None, None]), asked, first)
        >>> torch.allclose(explained.share, explained.null)
        True
    """
    outside, free = outside_sinks(attention, asked, sinks)
    weight = outside.sum(-1)
    even = weight / free.sum(-1).clamp(min=1)
    both = rearrange(torch.stack([outside, free.float()]), "x b h s k -> b s (x h) k")
    mass, number = rearrange(both @ asked.first, "b s (x h) n -> x n b h s", x=2)
    totals = {
        name: (mass[n].sum(-1), (number[n] * even).sum(-1)) for n, name in enumerate(asked.targets)
    }
    rest = free & ~asked.union[:, None]
    for name, some in (of_heads or {}).items():
        hit = rest & some
        rest = rest & ~some
        totals[name] = (outside * hit).sum((-1, -2)), (even * hit.sum(-1)).sum(-1)
    return Explained(
        (asked.queries != NONE).sum(-1).cpu(),
        weight.sum(-1).cpu().double(),
        {name: total.cpu().double() for name, (total, _) in totals.items()},
        {name: null.cpu().double() for name, (_, null) in totals.items()},
        Examples.of(outside, outside * rest, asked),
    )


def outside_sinks(
    attention: Attention, asked: Asked, sinks: Bool[Tensor, "batch head key"]
) -> tuple[Float[Tensor, "batch head s key"], Bool[Tensor, "batch head s key"]]:
    """Attention of the asked queries outside sinks, and the keys that they see there."""
    free = asked.visible[:, None] & ~sinks[:, :, None]
    return attention.rows(asked.queries) * free, free


def evenly(counted: Bool[Tensor, "batch pos"], most: int) -> Int[Tensor, "batch s"]:
    """At most `most` of each row's counted positions, evenly spaced; filled up with -1.

    Example:
        >>> evenly(torch.tensor([[1, 0, 1, 1, 1], [0, 0, 0, 0, 1]]) > 0, 2).tolist()
        [[2, 4], [4, -1]]
    """
    number = counted.sum(-1, keepdim=True)
    some = torch.arange(min(most, max(1, int(number.max()))), device=counted.device)
    rank = torch.where(number > most, ((some + 0.5) * number / most).long(), some)
    order = torch.argsort((~counted).int(), dim=-1, stable=True)
    places = order.gather(-1, rank.clamp(max=counted.shape[1] - 1))
    return torch.where(rank < number, places, NONE)
