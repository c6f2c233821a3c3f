"""How much attention lands on the targets: one quantity, whatever the kind of head."""

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from interp.attention import tiled_attention
from interp.targets import NONE, first_token, positions


def attention_mass(
    pattern: Float[Tensor, "batch head query=pos key=pos"],
    keys: Int[Tensor, "batch query=pos m"],
) -> Float[Tensor, "batch head query=pos"]:
    """Attention probability that each query puts on its targets.

    Args:
        pattern: Attention after the softmax.
        keys: Targets, as from `interp.targets`; -1 is no target.

    Returns:
        `sum over m of pattern[b, h, q, keys[b, q, m]]`, a probability in [0, 1];
        0 for a query without targets, which is not to be counted.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
        >>> attention_mass(pattern, torch.tensor([[[-1], [0]]]))
        tensor([[[0.0000, 0.2500]]])
    """
    index = repeat(keys.clamp(min=0), "b q m -> b h q m", h=pattern.shape[1])
    on_targets = pattern.gather(-1, index)
    there = rearrange(keys != NONE, "b q m -> b 1 q m")
    return reduce(on_targets * there, "b h q m -> b h q", "sum")


def visible_keys(
    tokens: Int[Tensor, "batch pos"], window: int | None = None
) -> Int[Tensor, "batch pos"]:
    """How many keys each query may attend to: itself and what is before it, within `window`.

    At least 1, also at padding, where it means nothing.
    """
    count = positions(tokens) - first_token(tokens)[:, None] + 1
    return count.clamp(min=1, max=window)


def attention_mass_from_qk(
    q: Float[Tensor, "batch head query=pos d_head"],
    k: Float[Tensor, "batch kv_head key=pos d_head"],
    lse: Float[Tensor, "batch head query=pos"],
    scale: float,
    keys: Int[Tensor, "batch query=pos m"],
    *,
    softcap: float | None = None,
) -> Float[Tensor, "batch head query=pos"]:
    """`attention_mass` without the pattern.

    One entry of a pattern is `exp(scale * q_i . k_j - lse_i)`, and `lse`, the log-sum-exp of
    a query's scores, is what a fused attention kernel knows anyway. So the mass on m targets
    costs `pos * m * d_head` and memory grows with `pos`, not with its square. It is exact.

    Args:
        q: Queries; head `h` reads the keys of `h // (head / kv_head)`.
        k: Keys, which are not copied for the heads that share them.
        lse: Log-sum-exp of the scores of each query, in nats; learned sinks, windows and
            masks are already in it.
        scale: Of `q . k`.
        keys: Targets; -1 is no target. They must be keys that the query can see.
        softcap: If given, scores become `softcap * tanh(score / softcap)`.

    Returns:
        As `attention_mass`, in float32.
    """
    return FromQK(q, k, lse, scale, softcap=softcap).mass(keys)


class FromPattern:
    """Attention that is at hand as a pattern `[batch, head, query, key]`."""

    def __init__(self, pattern: Float[Tensor, "batch head query=pos key=pos"]) -> None:
        self.pattern = pattern
        self.n_heads = pattern.shape[1]

    def mass(self, keys: Int[Tensor, "batch query m"]) -> Float[Tensor, "batch head query"]:
        """What each query puts on its `keys`."""
        return attention_mass(self.pattern, keys)

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head query m"]:
        """What each query puts on each of its head's `columns`; 0 for -1."""
        query = self.pattern.shape[2]
        index = repeat(columns.clamp(min=0), "b h m -> b h q m", q=query)
        return self.pattern.gather(-1, index) * rearrange(columns != NONE, "b h m -> b h 1 m")

    def rows(self, queries: Int[Tensor, "batch s"]) -> Float[Tensor, "batch head s key"]:
        """The pattern's rows of some `queries`; 0 for -1."""
        batch = torch.arange(len(queries), device=queries.device)[:, None]
        rows = self.pattern.transpose(1, 2)[batch, queries.clamp(min=0)]
        return rearrange(rows * (queries != NONE)[..., None, None], "b s h k -> b h s k")

    def entropy_and_distance(
        self,
    ) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
        """Entropy of each query's attention in nats, and its mean distance in tokens."""
        places = torch.arange(self.pattern.shape[-1], device=self.pattern.device).float()
        back = places * self.pattern.sum(-1) - self.pattern @ places
        return torch.special.entr(self.pattern).sum(-1), back


class FromQK:
    """Attention that is at hand as queries, keys and the log-sum-exp of their scores.

    The same quantities as `FromPattern`, exact, in memory that grows with the length.
    See `attention_mass_from_qk` for the arguments; `window` is how far back a query sees,
    and `sinks` the learned score per head that takes part in the softmax (gpt-oss).
    """

    BAND = 16
    """Distances below this are all computed at once, from blocks of the diagonal."""

    def __init__(
        self,
        q: Float[Tensor, "batch head query=pos d_head"],
        k: Float[Tensor, "batch kv_head key=pos d_head"],
        lse: Float[Tensor, "batch head query=pos"],
        scale: float,
        *,
        softcap: float | None = None,
        window: int | None = None,
        sinks: Float[Tensor, " head"] | None = None,
    ) -> None:
        self.q = rearrange(q.float(), "b (kv g) q d -> b kv g q d", kv=k.shape[1])
        self.k = k.float()
        self.lse = lse.float()
        self.n_heads = q.shape[1]
        self.scale, self.softcap, self.window, self.sinks = scale, softcap, window, sinks

    def mass(self, keys: Int[Tensor, "batch query m"]) -> Float[Tensor, "batch head query"]:
        """What each query puts on its `keys`."""
        there = keys != NONE
        back = torch.arange(keys.shape[1], device=keys.device)[:, None] - keys
        if bool(((back < self.BAND) | ~there).all()):
            index = repeat(back.clamp(0, self.BAND - 1), "b q m -> b h q m", h=self.lse.shape[1])
            return reduce(
                self._band.gather(-1, index) * rearrange(there, "b q m -> b 1 q m"),
                "b h q m -> b h q",
                "sum",
            )
        total = torch.zeros_like(self.lse)
        for one, real in zip(keys.clamp(min=0).unbind(-1), there.unbind(-1), strict=True):
            index = repeat(one, "b q -> b kv q d", kv=self.k.shape[1], d=self.k.shape[-1])
            dots = (self.q * self.k.gather(2, index)[:, :, None]).sum(-1)
            total += self._probability(rearrange(dots, "b kv g q -> b (kv g) q")) * real[:, None]
        return total

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head query m"]:
        """What each query puts on each of its head's `columns`; 0 for -1."""
        kv, group, length, d_head = self.q.shape[1:]
        index = rearrange(columns.clamp(min=0), "b (kv g) m -> b kv (g m) 1", kv=kv)
        keys = self.k.gather(2, index.expand(-1, -1, -1, d_head))
        keys = rearrange(keys, "b kv (g m) d -> b kv g m d", g=group)
        dots = torch.einsum("bkgqd,bkgmd->bkgqm", self.q, keys)
        mass = self._probability(rearrange(dots, "b kv g q m -> b (kv g) q m"))
        at = rearrange(columns, "b h m -> b h 1 m")
        query = torch.arange(length, device=columns.device)[:, None]
        return mass.masked_fill((at == NONE) | self._hidden(query, at), 0)

    def rows(self, queries: Int[Tensor, "batch s"]) -> Float[Tensor, "batch head s key"]:
        """The pattern's rows of some `queries`; 0 for -1."""
        index = rearrange(queries.clamp(min=0), "b s -> b 1 1 s 1")
        asked = self.q.gather(3, index.expand(-1, *self.q.shape[1:3], -1, self.q.shape[-1]))
        dots = torch.einsum("bkgsd,bknd->bkgsn", asked, self.k)
        dots = rearrange(dots, "b kv g s n -> b (kv g) s n")
        lse = self.lse.gather(2, repeat(queries.clamp(min=0), "b s -> b h s", h=self.lse.shape[1]))
        mass = self._probability(dots, lse)
        query = rearrange(queries, "b s -> b 1 s 1")
        key = torch.arange(self.k.shape[2], device=queries.device)
        return mass.masked_fill((query == NONE) | self._hidden(query, key), 0)

    def entropy_and_distance(
        self,
    ) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
        """Entropy of each query's attention in nats, and its mean distance in tokens.

        With p = exp(s - lse), the entropy `-sum p log p` is `lse * sum p - sum p s`; the mean
        score `sum p s` and the mean position come from one more pass, by tiles.
        """
        q = rearrange(self.q, "b kv g q d -> b (kv g) q d")
        places = torch.arange(q.shape[2], device=q.device).float()
        # The position rides along as a value, and a 1, whose mean is the visible mass.
        values = torch.stack([places, torch.ones_like(places)], -1)
        values = values.expand(*self.k.shape[:2], -1, -1)
        tiled = tiled_attention(
            q,
            self.k,
            values,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        place, mass = tiled.out.unbind(-1)
        return self.lse * mass - tiled.mean_score, places * mass - place

    @cached_property
    def _band(self) -> Float[Tensor, "batch head query back"]:
        """Attention to the key `back` tokens before the query, for every back < BAND.

        Blocks of 64 queries, the heads of a group side by side, against the 79 keys that
        they need: a matrix product each, of which the diagonals are kept.
        """
        size, reach, length = 64, self.BAND - 1, self.q.shape[3]
        ahead = -length % size
        q = pad(self.q, (0, 0, 0, ahead))
        q = rearrange(q, "b kv g (n i) d -> b kv n (g i) d", i=size)
        k = pad(self.k, (0, 0, reach, ahead)).unfold(2, size + reach, size)
        dots = rearrange(q @ k, "b kv n (g i) j -> b kv g n i j", i=size)
        row = torch.arange(size, device=q.device)[:, None]
        back = torch.arange(self.BAND, device=q.device)
        dots = dots[..., row, row + reach - back]
        dots = rearrange(dots, "b kv g n i back -> b (kv g) (n i) back")[:, :, :length]
        query = torch.arange(length, device=q.device)[:, None]
        hidden = (back > query) | self._hidden(query, query - back)
        return self._probability(dots).masked_fill(hidden, 0)

    def _hidden(
        self, query: Int[Tensor, "*shape q 1"], key: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        later = key > query
        return later if self.window is None else later | (query - key >= self.window)

    def _probability(
        self, dots: Float[Tensor, "..."], lse: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "..."]:
        scores = self.scale * dots
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        lse = self.lse if lse is None else lse
        return torch.exp(scores - lse.reshape(*lse.shape, *[1] * (dots.ndim - lse.ndim)))


Attention = FromPattern | FromQK
"""Attention of one layer, whatever form it has."""

SAMPLE = 32
"""Rows that are looked at whole, in search of sink columns."""


def spaced(counted: Bool[Tensor, "batch pos"], most: int = SAMPLE) -> Int[Tensor, "batch s"]:
    """At most `most` of each row's counted queries, evenly spaced, in order; filled up with -1.

    Example:
        >>> spaced(torch.tensor([[True, False, True, True, True, True]]), most=3).tolist()
        [[0, 3, 5]]
    """
    number = counted.sum(-1)
    order = torch.argsort((~counted).int(), dim=-1, stable=True)  # The counted ones first.
    size = min(most, max(1, int(number.max())))
    step = torch.arange(size, device=counted.device) / max(1, size - 1)
    every = torch.arange(size, device=counted.device).expand(len(counted), -1)
    few = rearrange(number <= size, "b -> b 1")
    chosen = torch.where(few, every, (step * (number[:, None] - 1)).round().long())
    there = every < rearrange(number, "b -> b 1")
    return torch.where(there, order.gather(-1, chosen), NONE)


def sink_columns(
    rows: Float[Tensor, "batch head s key"],
    queries: Int[Tensor, "batch s"],
    *,
    share: float,
    least: int,
) -> Bool[Tensor, "batch head key"]:
    """Columns that draw at least `share` of the attention of the queries after them, everywhere.

    A column's share is the mean of the attention to it over the `queries` after it
    (Gu et al. 2024, arXiv 2410.10781, section 3.2, without the trivial q = k). "Everywhere"
    means that both the nearer and the farther half of those queries give that much, so that
    a near neighbour is no sink; `least` queries are needed for an opinion.

    Args:
        rows: The pattern's rows of `queries`.
        queries: Where they are, in order; -1 fills up.
        share: Least share, in (0, 1].
        least: Least number of later queries.
    """
    sums = pad(rows.cumsum(-2), (0, 0, 1, 0))  # What the first s queries have given to k.
    key = torch.arange(rows.shape[-1], device=rows.device)
    real = queries != NONE
    until = ((queries[..., None] <= key) & real[..., None]).sum(1)  # [b k] queries up to k
    after = real.sum(-1, keepdim=True) - until
    near_number = after // 2

    def given(number: Int[Tensor, "batch key"]) -> Float[Tensor, "batch head key"]:
        index = repeat(number, "b k -> b h 1 k", h=rows.shape[1])
        return rearrange(sums.gather(-2, index), "b h 1 k -> b h k")

    near = given(until + near_number) - given(until)
    far = given(until + after) - given(until + near_number)
    wide = [rearrange(n, "b k -> b 1 k") for n in (near_number, after - near_number, after)]
    return (wide[2] >= least) & (near >= share * wide[0]) & (far >= share * wide[1])


@dataclass(frozen=True)
class Tally:
    """A quantity summed over the counted queries of every row, for every head of one layer.

    On the CPU. The rows stay apart, so that tallies of several batches can be joined and the spread
    over rows stays visible.

    Attributes:
        total: Sum of the quantity over the row's counted queries.
        uniform: The same sum for attention spread evenly over the keys that a query can see.
        queries: How many queries were counted.
    """

    total: Float[Tensor, "row head"]
    uniform: Float[Tensor, "row head"]
    queries: Int[Tensor, " row"]

    @classmethod
    def of(
        cls,
        value: Float[Tensor, "batch head query"],
        uniform: Float[Tensor, "batch head query"],
        counted: Bool[Tensor, "batch query"],
    ) -> "Tally":
        """Sum `value` and `uniform` over the queries that are `counted`."""
        weight = rearrange(counted, "b q -> b 1 q")
        return cls(
            total=torch.where(weight, value, 0).sum(-1).cpu().double(),
            uniform=torch.where(weight, uniform, 0).sum(-1).cpu().double(),
            queries=counted.sum(-1).cpu(),
        )

    @classmethod
    def join(cls, tallies: "list[Tally]") -> "Tally":
        """The rows of all `tallies`, one after the other."""
        return cls(*(torch.cat([getattr(t, f.name) for t in tallies]) for f in fields(cls)))

    @property
    def mean(self) -> Float[Tensor, " head"]:
        """The quantity per counted query, every query of every row alike."""
        return self.total.sum(0) / self.queries.sum()

    @property
    def uniform_mean(self) -> Float[Tensor, " head"]:
        """What `mean` would be for attention spread evenly: the level of chance."""
        return self.uniform.sum(0) / self.queries.sum()
