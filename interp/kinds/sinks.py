"""Which columns of a pattern are sinks: proposed by a few of its rows, decided on all of them.

A column's share is the mean attention to it over the counted queries after it (Gu et al. 2024,
arXiv 2410.10781, section 3.2, without the trivial q = k). It is a sink if both the nearer and the
farther half of these queries give it enough, so that a near neighbour is no sink.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.mass import Attention
from interp.kinds.targets import NONE, cells

SAMPLE = 32
"""Number of whole rows in which sink columns are searched."""


def spaced(counted: Bool[Tensor, "batch pos"], most: int = SAMPLE) -> Int[Tensor, "batch s"]:
    """Some of each row's counted queries, in order, the later the denser; filled up with -1.

    Of a row with at most `4 * most` these are `most` evenly spaced ones. Of a longer row they are
    half as many, and as many of its last eighth, and so on down to the last `4 * most`: a column
    late in a long row has enough rows after it too.

    Example:
        >>> spaced(torch.tensor([[True, False, True, True, True, True]]), most=3).tolist()
        [[0, 3, 5]]
    """
    number = counted.sum(-1, keepdim=True)
    order = torch.argsort((~counted).int(), dim=-1, stable=True)  # The counted ones first.
    chosen, tail, all_of = torch.zeros_like(counted), number, number.clamp(max=4 * most)
    last = torch.where(number == all_of, most, max(2, most // 2)) - 1
    even = torch.arange(most, device=counted.device).minimum(last) / last.clamp(min=1)
    while True:
        rank = number - tail + (even * (tail - 1).clamp(min=0)).round().long()
        chosen.scatter_(-1, order.gather(-1, rank.clamp(max=counted.shape[1] - 1)), True)
        if bool((tail == all_of).all()):
            break
        tail = (tail // 8).maximum(all_of)
    chosen &= counted
    size = chosen.sum(-1, keepdim=True)
    every = torch.arange(max(1, int(size.max())), device=counted.device)
    places = torch.argsort((~chosen).int(), dim=-1, stable=True)[:, : len(every)]
    return torch.where(every < size, places, NONE)


def halves(
    away: Int[Tensor, "*batch key s"], weight: Float[Tensor, "*#batch _ s"], *, causal: bool = True
) -> Float[Tensor, "half=2 *batch key s"]:
    """For each key, the weights of the nearer and the farther half of the queries it can serve.

    These are the queries after it; in a bidirectional model, all but itself. `away` is the distance
    from a query back to the key, `weight` the number of queries that a query stands for. Of an
    odd number the middle one is in the farther half.
    """
    others = weight * ((away > 0) if causal else (away != 0))
    if causal:  # Queries are in the order of their distance.
        passed = others.cumsum(-1)
    else:
        away = torch.where(others > 0, away.abs(), away.abs().max() + 1)
        order = away.argsort(dim=-1, stable=True)
        passed = torch.zeros_like(others)
        passed = passed.scatter(-1, order, others.gather(-1, order).cumsum(-1))
    near = others * (passed <= others.sum(-1, keepdim=True) // 2)
    return torch.stack([near, others - near])


@dataclass(frozen=True)
class Search:
    """Where to look for sink columns, from the tokens alone.

    Attributes:
        counted: Queries that count.
        queries: Queries in whose rows sink columns are searched, from `spaced`.
        later: Weights of the two halves of these queries for each key, from `halves`.
        rank: Number of counted queries up to each position.
        most: Number of counted queries that each key can serve.
        causal: Whether no query looks ahead.
    """

    counted: Bool[Tensor, "batch pos"]
    queries: Int[Tensor, "batch s"]
    later: Float[Tensor, "half=2 batch s pos"]
    rank: Int[Tensor, "batch pos"]
    most: Int[Tensor, "batch pos"]
    causal: bool

    @classmethod
    def of(cls, counted: Bool[Tensor, "batch pos"], *, causal: bool = True) -> "Search":
        """Search in the rows of these queries."""
        queries, rank = spaced(counted), counted.cumsum(-1)
        there = queries != NONE
        # Each query stands for itself and for those since the one before it.
        upto = rank.gather(-1, queries.clamp(min=0)) * there
        weight = upto.diff(prepend=torch.zeros_like(upto[:, :1])) * there
        away = queries[:, None] - torch.arange(counted.shape[1], device=counted.device)[:, None]
        total = rank[:, -1:]
        most = total - rank if causal else total - counted.long()
        later = halves(away, weight[:, None].float(), causal=causal).mT.contiguous()
        return cls(counted, queries, later, rank, most, causal)


@dataclass(frozen=True)
class Sinks:
    """The columns that draw a head's attention, and those that a caller names.

    Attributes:
        places: Column of each, filled up with -1.
        attention: Attention to each of them from each other query that counts; 0 from the rest.
        total: Attention to it, summed over the counted queries that it can serve.
        number: Number of these queries.
        drawing: Whether it is a sink by its share, in both halves of these queries.
    """

    places: Int[Tensor, "batch head m"]
    attention: Float[Tensor, "batch head m query"]
    total: Float[Tensor, "batch head m"]
    number: Int[Tensor, "batch head m"]
    drawing: Bool[Tensor, "batch head m"]

    @property
    def share(self) -> Float[Tensor, "batch head m"]:
        """Mean attention to it of the counted queries that it can serve, in [0, 1]."""
        return self.total / self.number.clamp(min=1)

    @property
    def start(self) -> Int[Tensor, "batch head"]:
        """The first column that draws attention; 0 where none does."""
        late = torch.iinfo(torch.long).max
        first = self.places.where(self.drawing, late).amin(-1)
        return first.where(first < late, 0)

    @property
    def strongest(self) -> Int[Tensor, "batch head"]:
        """The column with most attention in all."""
        return self.places.gather(-1, self.total.argmax(-1, keepdim=True))[..., 0]

    def columns(self, named: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch head key"]:
        """Which columns are sinks: those that draw attention, and the `named` ones."""
        return cells(self.places.where(self.drawing, NONE), named.shape[1]) | named[:, None]


def find_sinks(
    attention: Attention,
    search: Search,
    named: Bool[Tensor, "batch key"],
    *,
    share: float,
    least: int,
) -> Sinks:
    """The sink columns of each head, and the `named` ones.

    A sink draws `share` of the attention of both halves of the queries that it can serve, which
    are at least `least`.
    """
    rows = attention.rows(search.queries)
    given = torch.stack([(rows * half[:, None]).sum(-2) for half in search.later])
    # Few rows vary more than all: half of the share is enough for a column to be looked at.
    enough = given >= share / 2 * rearrange(search.later.sum(-2), "n b k -> n b 1 k")
    likely = enough.all(0) & rearrange(search.most >= least, "b k -> b 1 k")
    columns = likely | named[:, None]
    chosen = columns.int().topk(max(1, int(columns.sum(-1).max())), dim=-1)
    places = torch.where(chosen.values > 0, chosen.indices, NONE)
    query, place = torch.arange(columns.shape[-1], device=places.device), places[..., None]
    serves = rearrange(search.counted, "b q -> b 1 1 q") & (query != place)
    on_columns = attention.on_columns(places) * serves
    batch = torch.arange(len(places), device=places.device)[:, None, None]
    rank, number = (x[batch, places.clamp(min=0)] for x in (search.rank, search.most))
    half = number // 2
    if search.causal:
        near = rearrange(search.rank, "b q -> b 1 1 q") <= (rank + half)[..., None]
    else:
        near = halves(query - place, serves.float(), causal=False)[0] > 0
    total, nearer = on_columns.sum(-1), (on_columns * near).sum(-1)
    drawing = (nearer >= share * half) & (total - nearer >= share * (number - half))
    drawing &= (number >= least) & (places != NONE)
    return Sinks(places, on_columns, total, number, drawing)
