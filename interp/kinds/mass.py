"""How much attention lands on the targets: one quantity, whatever the kind of head."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from interp.attention.tiles import tiled_attention
from interp.errors import InputError
from interp.kinds.targets import NONE, Blocks, first_token, positions

LARGE = 1024
"""Scores beyond it are told apart so coarsely by float32 that probabilities are 1e-4 off."""

WITHOUT_FLOAT64 = ("mps",)
"""Kinds of device that have no float64, which is `2 ** 29` times as fine as float32."""


def attention_mass(
    pattern: Float[Tensor, "batch head query=pos key=pos"],
    keys: Int[Tensor, "batch query=pos m"],
) -> Float[Tensor, "batch head query=pos"]:
    """Attention probability that each query puts on its targets.

    Args:
        pattern: Attention after the softmax.
        keys: Targets, as from `interp.kinds.targets`; -1 is no target.

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
    place = positions(tokens) - first_token(tokens)[:, None]
    if isinstance(window, Blocks):
        return place % int(window) + 1
    return (place + 1).clamp(min=1, max=window)


def score_bound(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    scale: float,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, " head"]:
    """What no score of a head is beyond, before any soft-cap: `scale |q| |k|` (Cauchy-Schwarz).

    Rounding is in proportion to it even where a score is small, since the products that the
    score sums need not be. Queries and keys that are not finite are left out.
    """
    precise = torch.float32 if q.device.type in WITHOUT_FLOAT64 else torch.float64
    norms = (torch.linalg.vector_norm(x, dim=-1, dtype=precise) for x in (q, k))
    q_norm, k_norm = (norm.where(norm.isfinite(), 0).amax((0, 2)) for norm in norms)
    bound = abs(scale) * q_norm * k_norm.repeat_interleave(len(q_norm) // len(k_norm))
    return bound if sinks is None else bound.maximum(sinks.abs().to(bound))


def attention_mass_from_qk(
    q: Float[Tensor, "batch head query=pos d_head"],
    k: Float[Tensor, "batch kv_head key=pos d_head"],
    lse: Float[Tensor, "batch head query=pos"],
    scale: float,
    keys: Int[Tensor, "batch query=pos m"],
    *,
    softcap: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "batch head query=pos"]:
    """`attention_mass` of causal attention, without the pattern.

    One entry of a pattern is `exp(scale * q_i . k_j - lse_i)`, and `lse`, the log-sum-exp of
    a query's scores, is what a fused attention kernel knows anyway. So the mass on m targets
    costs `pos * m * d_head` and memory grows with `pos`, not with its square. It is exact.

    Args:
        q: Queries; head `h` reads the keys of `h // (head / kv_head)`.
        k: Keys, which are not copied for the heads that share them.
        lse: Log-sum-exp of the scores of each query, in nats; learned sinks, windows and
            masks are already in it.
        scale: Of `q . k`; queries are multiplied by it first.
        keys: Targets; -1 is no target, and padding, which a mask hides, must not be one.
        softcap: If given, scores become `softcap * tanh(score / softcap)`.
        window: If given, a query sees this many keys, itself included, and no more.

    Returns:
        As `attention_mass`, in float32. Scores are float32, or float64 if q, k or lse is.

    Raises:
        InputError: If `lse` is not float64 where it, or `scale |q| |k|`, is beyond `LARGE`: what
            float32 rounds away of scores, or had when `lse` was computed, would be seen.

    Example:
        >>> q = k = torch.tensor([[[[0.0], [1.0]]]])
        >>> lse = (q @ k.mT).masked_fill(torch.ones(2, 2).triu(1) > 0, -torch.inf).logsumexp(-1)
        >>> attention_mass_from_qk(q, k, lse, 1.0, torch.tensor([[[0], [1]]]))
        tensor([[[1.0000, 0.7311]]])
    """
    if lse.dtype != torch.float64:
        top = lse.abs().where(lse.isfinite(), 0).max().item()
        top = max(top, score_bound(q, k, scale).max().item())
        if top > LARGE:
            raise InputError(
                f"lse must be float64, of scores in float64, where scores may go beyond {LARGE},"
                f" got {top:g} in {str(lse.dtype).removeprefix('torch.')}"
            )
    # Scaled before they are multiplied, products stay in range that would leave it.
    scaled = q.to(_exact(q, k, lse)) * scale
    return FromQK(scaled, k, lse, 1.0, softcap=softcap, window=window).mass(keys)


def _exact(*operands: Tensor) -> torch.dtype:
    """float32, or float64 if one of them is."""
    return functools.reduce(torch.promote_types, (x.dtype for x in operands), torch.float32)


class Means(NamedTuple):
    """Means over a query's whole attention.

    Attributes:
        entropy: Of the attention, in nats.
        distance: From the query to the key, in tokens.
        norm: Of the keys' `norms`; None where those were not given.
    """

    entropy: Float[Tensor, "batch head query"]
    distance: Float[Tensor, "batch head query"]
    norm: Float[Tensor, "batch head query"] | None


class FromPattern:
    """Attention that is at hand as a pattern `[batch, head, query, key]`."""

    def __init__(self, pattern: Float[Tensor, "batch head query=pos key=pos"]) -> None:
        self.pattern = pattern
        self.n_heads = pattern.shape[1]
        self.norms = None

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

    def means(self) -> "Means":
        """What is averaged over each query's whole attention."""
        places = torch.arange(self.pattern.shape[-1], device=self.pattern.device).float()
        away = (places[:, None] - places).abs()
        distance = torch.einsum("bhqk,qk->bhq", self.pattern, away)
        return Means(torch.special.entr(self.pattern).sum(-1), distance, None)


class FromQK:
    """Attention that is at hand as queries, keys and the log-sum-exp of their scores.

    The same quantities as `FromPattern`, exact, in memory that grows with the length.
    See `attention_mass_from_qk` for the arguments; `window` is how far back a query sees,
    `sinks` the learned score per head that takes part in the softmax (gpt-oss), and `v` the
    values, for what a head brings. Scores are float64 if q, k or lse is, which they have to be
    where `score_bound` is beyond `LARGE`, and what comes of them is float32 all the same.
    `norms [batch, head, key]`, if set, say how much one unit of attention to a key counts (see
    `interp.weights.direct.value_norms`).
    """

    PAIRS = 2048
    """Pairs of a query and a target that are held at a time."""

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
        v: Float[Tensor, "batch kv_head key=pos d_v"] | None = None,
    ) -> None:
        # Token by token, as models compute them: a view, and what is gathered lies together.
        exact = _exact(q, k, lse)
        self.q = rearrange(q.to(exact), "b (kv g) q d -> b q kv g d", kv=k.shape[1])
        self.k = rearrange(k.to(exact), "b kv k d -> b k kv d")
        self.lse = lse.to(exact)
        self.n_heads = q.shape[1]
        self.scale, self.softcap, self.window, self.sinks = scale, softcap, window, sinks
        self.v = v
        self.norms: Float[Tensor, "batch head key"] | None = None
        self._back: dict[int, Float[Tensor, "batch head query"]] = {}

    def mass(self, keys: Int[Tensor, "batch query m"]) -> Float[Tensor, "batch head query"]:
        """What each query puts on its `keys`."""
        query = torch.arange(keys.shape[1], device=keys.device)[:, None]
        there = (keys != NONE) & ~self._hidden(query, keys)
        if not there.any():
            return torch.zeros_like(self.lse, dtype=torch.float)
        back = query - keys
        nearest, farthest = (int(end) for end in back[there].aminmax())
        if farthest - nearest >= keys.shape[2]:
            return self._gathered(keys, there)
        # No more distances than targets: they go with the query, and slices do.
        total = torch.zeros_like(self.lse, dtype=torch.float)
        for distance in range(nearest, farthest + 1):
            number = ((back == distance) & there).sum(-1)
            total += self._at(distance) * rearrange(number, "b q -> b 1 q")
        return total

    def _at(self, distance: int) -> Float[Tensor, "batch head query"]:
        """What each query puts on the key `distance` before it; 0 where there is none."""
        if distance not in self._back:
            some = max(1, self.PAIRS // len(self.q))
            q = self.q[:, distance:].split(some, dim=1)
            k = self.k[:, : self.k.shape[1] - distance, :, None].split(some, dim=1)
            dots = torch.cat([(one * other).sum(-1) for one, other in zip(q, k, strict=True)], 1)
            dots = rearrange(dots, "b q kv g -> b (kv g) q")
            mass = self._probability(dots, self.lse[:, :, distance:])
            self._back[distance] = pad(mass, (distance, 0))
        return self._back[distance]

    def _gathered(
        self, keys: Int[Tensor, "batch query m"], there: Bool[Tensor, "batch query m"]
    ) -> Float[Tensor, "batch head query"]:
        queries = self.lse.shape[0] * self.lse.shape[2]
        total = self.lse.new_zeros(queries, self.n_heads, dtype=torch.float)
        for query, _, mass in self._pairs(keys, there):
            total.index_add_(0, query, mass)
        return rearrange(total, "(b q) h -> b h q", b=len(keys))

    def brought(self, keys: Int[Tensor, "batch query m"]) -> Float[Tensor, "batch head query d_v"]:
        """The values at each query's `keys`, summed as the attention weighs them.

        With every key in sight as a target this is the head's whole output.

        Raises:
            ValueError: If the attention was given without its values.
        """
        if self.v is None:
            raise ValueError("values were not given")
        v = rearrange(self.v.float(), "b kv k d -> (b k) kv 1 d")
        group = self.n_heads // v.shape[1]
        total = v.new_zeros(self.lse.shape[0] * self.lse.shape[2], self.n_heads, v.shape[-1])
        query = torch.arange(keys.shape[1], device=keys.device)[:, None]
        there = (keys != NONE) & ~self._hidden(query, keys)
        for one, other, mass in self._pairs(keys, there):
            weights = rearrange(mass, "p (kv g) -> p kv g 1", g=group)
            total.index_add_(0, one, (weights * v.index_select(0, other)).flatten(1, 2))
        return rearrange(total, "(b q) h d -> b h q d", b=len(keys))

    def _pairs(
        self, keys: Int[Tensor, "batch query m"], there: Bool[Tensor, "batch query m"]
    ) -> Iterator[tuple[Int[Tensor, " p"], Int[Tensor, " p"], Float[Tensor, "p head"]]]:
        """Pairs of a query and a target and what the one puts on the other, some at a time.

        Queries and targets are counted through all rows.
        """
        q, k = self.q.flatten(0, 1), self.k.flatten(0, 1)[:, :, None]
        lse = rearrange(self.lse, "b h q -> (b q) h")
        batch, query, column = there.nonzero(as_tuple=True)
        target = keys[batch, query, column] + batch * self.k.shape[1]
        query = query + batch * self.q.shape[1]
        for one, other in zip(query.split(self.PAIRS), target.split(self.PAIRS), strict=True):
            dots = (q.index_select(0, one) * k.index_select(0, other)).sum(-1).flatten(1)
            yield one, other, self._probability(dots, lse.index_select(0, one))

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head query m"]:
        """What each query puts on each of its head's `columns`; 0 for -1."""
        batch = torch.arange(len(columns), device=columns.device)[:, None, None, None]
        at = rearrange(columns.clamp(min=0), "b (kv g) m -> b kv g m", kv=self.k.shape[2])
        keys = self.k[
            batch, at, torch.arange(self.k.shape[2], device=columns.device)[:, None, None]
        ]
        dots = torch.einsum("bqkgd,bkgmd->bkgqm", self.q, keys)
        query = torch.arange(self.q.shape[1], device=columns.device)[:, None]
        at = rearrange(columns, "b h m -> b h 1 m")
        hidden = (at == NONE) | self._hidden(query, at)
        return self._probability(dots.flatten(1, 2), self.lse[..., None], hidden)

    def rows(self, queries: Int[Tensor, "batch s"]) -> Float[Tensor, "batch head s key"]:
        """The pattern's rows of some `queries`; 0 for -1."""
        batch = torch.arange(len(queries), device=queries.device)[:, None]
        asked = self.q[batch, queries.clamp(min=0)]
        dots = torch.einsum("bskgd,bnkd->bkgsn", asked, self.k).flatten(1, 2)
        lse = self.lse.transpose(1, 2)[batch, queries.clamp(min=0)]
        query = rearrange(queries, "b s -> b 1 s 1")
        key = torch.arange(self.k.shape[1], device=queries.device)
        hidden = (query == NONE) | self._hidden(query, key)
        return self._probability(dots, rearrange(lse, "b s h -> b h s 1"), hidden)

    def means(self) -> Means:
        """What is averaged over each query's whole attention.

        With p = exp(s - lse), the entropy `-sum p log p` is `lse * sum p - sum p s`; the mean
        score `sum p s` and the mean position come from one more pass, by tiles.
        """
        kv = self.k.shape[2]
        q = rearrange(self.q, "b q kv g d -> b (kv g) q d")
        places = torch.arange(q.shape[2], device=q.device).float()
        # Positions ride along as values, and a 1, whose mean is the visible mass, and the norms
        # of all heads of a group, of which each head then takes its own.
        values = torch.stack([places, torch.ones_like(places)], -1).expand(len(q), kv, -1, -1)
        if self.norms is not None:
            norms = rearrange(self.norms, "b (kv g) k -> b kv k g", kv=kv)
            values = torch.cat([values, norms], -1)
        tiled = tiled_attention(
            q,
            rearrange(self.k, "b k kv d -> b kv k d"),
            values,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        place, mass = tiled.out[..., 0], tiled.out[..., 1]
        norm = None
        if self.norms is not None:
            group = torch.arange(self.n_heads, device=q.device) % (self.n_heads // kv)
            index = repeat(group, "h -> b h q 1", b=len(q), q=q.shape[2])
            norm = tiled.out[..., 2:].gather(-1, index).squeeze(-1)
        entropy = self.lse * mass - tiled.mean_score
        distance = (places * mass - place).float()
        return Means(entropy.float(), distance, None if norm is None else norm.float())

    def _hidden(
        self, query: Int[Tensor, "*shape q 1"], key: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        later = key > query
        return later if self.window is None else later | (query - key >= self.window)

    def _probability(
        self,
        dots: Float[Tensor, "*shape"],
        lse: Float[Tensor, "*#shape"],
        hidden: Bool[Tensor, "*#shape"] | None = None,
    ) -> Float[Tensor, "*shape"]:
        """`exp(score - lse)`, 0 where `hidden`; `dots`, made for this, are overwritten."""
        scores = dots.mul_(self.scale)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores.sub_(lse)
        if hidden is not None:
            scores = scores.masked_fill_(hidden, -torch.inf)
        return scores.exp_().float()


Attention = FromPattern | FromQK
"""Attention of one layer, whatever form it has."""


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
