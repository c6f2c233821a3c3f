"""Attention mass on the targets: one quantity for every kind of head."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from interp.attention.tiles import Tiled, tiled_attention
from interp.kinds.targets import NONE, Blocks, Keys, Tokens, first_token, positions, within

LARGE = 1024
"""Float32 rounds scores beyond it so coarsely that probabilities are 1e-4 off."""


@cache
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64, which is `2 ** 29` times as fine as float32."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):  # Apple's.
        return False
    return True


def attention_mass(
    pattern: Float[Tensor, "batch head query=pos key=pos"], keys: Int[Tensor, "batch query=pos m"]
) -> Float[Tensor, "batch head query=pos"]:
    """Attention probability that each query puts on its targets.

    Returns:
        `sum over m of pattern[b, h, q, keys[b, q, m]]`, a probability in [0, 1];
        0 for a query without targets, which does not count. -1 in `keys` is no target.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
        >>> attention_mass(pattern, torch.tensor([[[-1], [0]]]))
        tensor([[[0.0000, 0.2500]]])
    """
    index = repeat(keys.clamp(min=0), "b q m -> b h q m", h=pattern.shape[1])
    on_targets = pattern.gather(-1, index)
    there = rearrange(keys != NONE, "b q m -> b 1 q m")
    return reduce(on_targets * there, "b h q m -> b h q", "sum")


def visible_keys(tokens: Tokens, window: int | None = None) -> Int[Tensor, "batch pos"]:
    """Number of keys up to the query that it may see in `window`: 1 or more, also at padding."""
    place = positions(tokens) - first_token(tokens)[:, None]
    if isinstance(window, Blocks):
        return place % int(window) + 1
    return (place + 1).clamp(min=1, max=window)


def norms(x: Float[Tensor, "batch head pos d_head"]) -> Float[Tensor, "batch head pos"]:
    """Length of each query or key: not finite only where the vector itself is not."""
    x = x.transpose(1, 2)  # As models lay it out: twice as fast.
    lengths = torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float))
    if not lengths.amax().isfinite() and has_float64(x.device):  # Or its square is too large.
        lengths = torch.linalg.vector_norm(x, dim=-1, dtype=torch.double)
    return lengths.transpose(1, 2)


def score_bound(
    q_norms: Float[Tensor, "batch head query"],
    k_norms: Float[Tensor, "batch kv_head key"],
    scale: float,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, " head"]:
    """Upper bound of a head's scores before any soft-cap: `scale |q| |k|` (Cauchy-Schwarz).

    Rounding grows with it even where a score is small, because a small sum can have large
    terms. Queries and keys that are not finite do not count.
    """
    q_norm, k_norm = (x.where(x.isfinite(), 0).amax((0, 2)) for x in (q_norms, k_norms))
    bound = abs(scale) * q_norm * k_norm.repeat_interleave(len(q_norm) // len(k_norm))
    return bound if sinks is None else bound.maximum(sinks.abs().to(bound))


def by_tiles(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    scale: float,
    *,
    window: int | None = None,
    **options: Any,
) -> Tiled:
    """`tiled_attention` in a layer whose window may be `Blocks`."""
    limit = "chunk" if isinstance(window, Blocks) else "window"
    return tiled_attention(q, k, v, scale=scale, **{limit: window}, **options)


class Means(NamedTuple):
    """Means over a query's whole attention.

    Attributes:
        entropy: Entropy of the attention, in nats.
        distance: Distance from the query to the key, in tokens.
        norm: Mean of the keys' `norms`; None without norms.
    """

    entropy: Float[Tensor, "batch head query"]
    distance: Float[Tensor, "batch head query"]
    norm: Float[Tensor, "batch head query"] | None


class FromPattern:
    """Attention given as a pattern `[batch, head, query, key]`."""

    def __init__(self, pattern: Float[Tensor, "batch head query=pos key=pos"]) -> None:
        self.pattern = pattern
        self.n_heads = pattern.shape[1]
        self.norms = None

    def mass(self, keys: Keys) -> Float[Tensor, "batch head query"]:
        """Attention of each query to its `keys`."""
        return attention_mass(self.pattern, keys)

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head query m"]:
        """Attention of each query to each of its head's `columns`; 0 for -1."""
        query = self.pattern.shape[2]
        index = repeat(columns.clamp(min=0), "b h m -> b h q m", q=query)
        return self.pattern.gather(-1, index) * rearrange(columns != NONE, "b h m -> b h 1 m")

    def rows(self, queries: Int[Tensor, "batch s"]) -> Float[Tensor, "batch head s key"]:
        """Rows of the pattern for some `queries`; 0 for -1."""
        batch = torch.arange(len(queries), device=queries.device)[:, None]
        rows = self.pattern.transpose(1, 2)[batch, queries.clamp(min=0)]
        return rearrange(rows * (queries != NONE)[..., None, None], "b s h k -> b h s k")

    def means(self) -> Means:
        """Entropy and mean distance of each query's attention."""
        places = torch.arange(self.pattern.shape[-1], device=self.pattern.device).float()
        away = (places[:, None] - places).abs()
        distance = torch.einsum("bhqk,qk->bhq", self.pattern, away)
        return Means(torch.special.entr(self.pattern).sum(-1), distance, None)


class FromQK:
    """Causal attention given as queries, keys and the log-sum-exp of their scores.

    One entry of a pattern is `exp(scale * q_i . k_j - lse_i)`, and a fused attention kernel knows
    `lse` anyway. So the mass on m targets costs `pos * m * d_head`, and memory grows with `pos`,
    not with its square. Results are those of `FromPattern`, in float32; scores are float32, or
    float64 if q, k or lse is, as they must be where `score_bound` is beyond `LARGE`.

    Args:
        q: Queries; head `h` reads the keys of `h // (head / kv_head)`.
        k: Keys, which are not copied for the heads that share them.
        lse: Log-sum-exp of each query's scores, in nats, with sinks, windows and masks.
        scale: Factor of `q . k`.
        softcap: Cap that turns scores into `softcap * tanh(score / softcap)`.
        window: Number of keys that a query sees, itself included; or `Blocks`.
        sinks: Learned score per head that takes part in the softmax (gpt-oss).
        slopes: What each head's scores lose per position from the query back to the key (ALiBi).
        v: Values, needed for `brought`.

    `norms [batch, head, key]`, if set, is the weight of one unit of attention to a key (see
    `interp.weights.direct.value_norms`).

    Example:
        >>> q = k = torch.tensor([[[[0.0], [1.0]]]])
        >>> lse = (q @ k.mT).masked_fill(torch.ones(2, 2).triu(1) > 0, -torch.inf).logsumexp(-1)
        >>> FromQK(q, k, lse, 1.0).mass(torch.tensor([[[0], [1]]]))
        tensor([[[1.0000, 0.7311]]])
    """

    PAIRS = 2048
    """Number of pairs of a query and a target in memory at a time."""

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
        slopes: Float[Tensor, " head"] | None = None,
        v: Float[Tensor, "batch kv_head key=pos d_v"] | None = None,
    ) -> None:
        # By token, as models compute them: a view, and gathered numbers are adjacent in memory.
        exact = torch.promote_types(torch.promote_types(q.dtype, k.dtype), lse.dtype)
        exact = torch.promote_types(exact, torch.float32)
        self.q = rearrange(q.to(exact), "b (kv g) q d -> b q kv g d", kv=k.shape[1])
        self.k = rearrange(k.to(exact), "b kv k d -> b k kv d")
        self.lse = lse.to(exact)
        self.n_heads, self.v = q.shape[1], v
        self.scale, self.softcap, self.window = scale, softcap, window
        self.sinks, self.slopes = sinks, slopes
        self.norms: Float[Tensor, "batch head key"] | None = None
        self._back: dict[int, Float[Tensor, "batch head query"]] = {}

    def options(self, heads: Int[Tensor, " n"] | None = None) -> dict[str, Any]:
        """What else decides the attention of all heads, or of `heads`, as in `by_tiles`."""
        of_heads = {"sinks": self.sinks, "slopes": self.slopes}
        if heads is not None:
            of_heads = {name: x if x is None else x[heads] for name, x in of_heads.items()}
        return {"softcap": self.softcap, "window": self.window, **of_heads}

    def mass(self, keys: Keys) -> Float[Tensor, "batch head query"]:
        """Attention of each query to its `keys`, as `attention_mass`."""
        query = torch.arange(keys.shape[1], device=keys.device)[:, None]
        there = (keys != NONE) & ~self._hidden(query, keys)
        if not there.any():
            return torch.zeros_like(self.lse, dtype=torch.float)
        back = query - keys
        nearest, farthest = (int(end) for end in back[there].aminmax())
        if farthest - nearest >= keys.shape[2]:
            total = self.lse.new_zeros(keys[..., 0].numel(), self.n_heads, dtype=torch.float)
            for one, _, mass in self._pairs(keys, there):
                total.index_add_(0, one, mass)
            return rearrange(total, "(b q) h -> b h q", b=len(keys))
        # No more distances than targets: slices of q and k at each distance are enough.
        total = torch.zeros_like(self.lse, dtype=torch.float)
        for distance in range(nearest, farthest + 1):
            number = ((back == distance) & there).sum(-1)
            total += self._at(distance) * rearrange(number, "b q -> b 1 q")
        return total

    def _at(self, distance: int) -> Float[Tensor, "batch head query"]:
        """Attention of each query to the key `distance` before it; 0 where there is no key."""
        if distance not in self._back:
            some = max(1, self.PAIRS // len(self.q))
            q = self.q[:, distance:].split(some, dim=1)
            k = self.k[:, : self.k.shape[1] - distance, :, None].split(some, dim=1)
            dots = torch.cat([(one * other).sum(-1) for one, other in zip(q, k, strict=True)], 1)
            dots = rearrange(dots, "b q kv g -> b (kv g) q")
            mass = self._probability(dots, self.lse[:, :, distance:], distance)
            self._back[distance] = pad(mass, (distance, 0))
        return self._back[distance]

    def brought(self, keys: Keys) -> Float[Tensor, "batch head query d_v"]:
        """Values at each query's `keys`, summed with the attention as weights.

        With every visible key as a target this is the head's whole output before `W_O`.
        """
        assert self.v is not None, "values were not given"
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
        self, keys: Keys, there: Bool[Tensor, "batch query m"]
    ) -> Iterator[tuple[Int[Tensor, " p"], Int[Tensor, " p"], Float[Tensor, "p head"]]]:
        """Pairs of a query and a target, counted through all rows, and the attention, in pieces."""
        q, k = self.q.flatten(0, 1), self.k.flatten(0, 1)[:, :, None]
        lse = rearrange(self.lse, "b h q -> (b q) h")
        batch, query, column = there.nonzero(as_tuple=True)
        target = keys[batch, query, column] + batch * self.k.shape[1]
        query = query + batch * self.q.shape[1]
        for one, other in zip(query.split(self.PAIRS), target.split(self.PAIRS), strict=True):
            dots = (q.index_select(0, one) * k.index_select(0, other)).sum(-1).flatten(1)
            back = (one - other)[:, None]
            yield one, other, self._probability(dots, lse.index_select(0, one), back)

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head query m"]:
        """Attention of each query to each of its head's `columns`; 0 for -1."""
        batch = torch.arange(len(columns), device=columns.device)[:, None, None, None]
        at = rearrange(columns.clamp(min=0), "b (kv g) m -> b kv g m", kv=self.k.shape[2])
        group = torch.arange(self.k.shape[2], device=columns.device)[:, None, None]
        keys = self.k[batch, at, group]
        dots = torch.einsum("bqkgd,bkgmd->bkgqm", self.q, keys)
        query = torch.arange(self.q.shape[1], device=columns.device)[:, None]
        at = rearrange(columns, "b h m -> b h 1 m")
        hidden = (at == NONE) | self._hidden(query, at)
        return self._probability(dots.flatten(1, 2), self.lse[..., None], query - at, hidden)

    def rows(self, queries: Int[Tensor, "batch s"]) -> Float[Tensor, "batch head s key"]:
        """Rows of the pattern for some `queries`; 0 for -1."""
        batch = torch.arange(len(queries), device=queries.device)[:, None]
        asked = self.q[batch, queries.clamp(min=0)]
        dots = torch.einsum("bskgd,bnkd->bkgsn", asked, self.k).flatten(1, 2)
        lse = self.lse.transpose(1, 2)[batch, queries.clamp(min=0)]
        query = rearrange(queries, "b s -> b 1 s 1")
        key = torch.arange(self.k.shape[1], device=queries.device)
        hidden = (query == NONE) | self._hidden(query, key)
        return self._probability(dots, rearrange(lse, "b s h -> b h s 1"), query - key, hidden)

    def means(self) -> Means:
        """Entropy, mean distance and mean norm of each query's attention.

        With p = exp(s - lse), the entropy `-sum p log p` is `lse * sum p - sum p s`; the mean
        score `sum p s` and the mean position come from one more pass, by tiles.
        """
        kv = self.k.shape[2]
        q = rearrange(self.q, "b q kv g d -> b (kv g) q d")
        places = torch.arange(q.shape[2], device=q.device).float()
        # The values are positions; a 1, whose mean is the visible mass; and the norms of all heads
        # of a group, of which each head then takes its own.
        values = torch.stack([places, torch.ones_like(places)], -1).expand(len(q), kv, -1, -1)
        if self.norms is not None:
            norms = rearrange(self.norms, "b (kv g) k -> b kv k g", kv=kv)
            values = torch.cat([values, norms], -1)
        k = rearrange(self.k, "b k kv d -> b kv k d")
        tiled = by_tiles(q, k, values, self.scale, **self.options())
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
        return later if self.window is None else later | ~within(self.window, query, key)

    def _probability(
        self,
        dots: Float[Tensor, "first head *rest"],
        lse: Float[Tensor, "#first head *#rest"],
        back: Int[Tensor, "#first #head *#rest"] | int,
        hidden: Bool[Tensor, "#first #head *#rest"] | None = None,
    ) -> Float[Tensor, "first head *rest"]:
        """`exp(score - lse)` of keys that are `back` before the query, 0 where `hidden`.

        Overwrites `dots`.
        """
        scores = dots.mul_(self.scale)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.slopes is not None:
            scores = scores - self.slopes.view(-1, *[1] * (dots.dim() - 2)) * back
        scores = scores.sub_(lse)
        if hidden is not None:
            scores = scores.masked_fill_(hidden, -torch.inf)
        return scores.exp_().float()


Attention = FromPattern | FromQK
"""Attention of one layer in either form."""


@dataclass(frozen=True)
class Tally:
    """A quantity summed over the counted queries of each row, for each head of a layer, on the CPU.

    Attributes:
        total: Sum of the quantity over the row's counted queries.
        uniform: The same sum for attention spread evenly over the visible keys.
        queries: Number of counted queries.
    """

    total: Float[Tensor, "row head"]
    uniform: Float[Tensor, "row head"]
    queries: Int[Tensor, " row"]

    @classmethod
    def of(
        cls,
        value: Float[Tensor, "batch head query"],
        uniform: Float[Tensor, "batch _ query"],
        counted: Bool[Tensor, "batch query"],
    ) -> "Tally":
        """Sum `value` and `uniform` over the queries that are `counted`."""
        weight = rearrange(counted, "b q -> b 1 q")
        return cls(
            total=torch.where(weight, value, 0).sum(-1).cpu().double(),
            uniform=torch.where(weight, uniform.expand_as(value), 0).sum(-1).cpu().double(),
            queries=counted.sum(-1).cpu(),
        )

    @classmethod
    def join(cls, tallies: "list[Tally]") -> "Tally":
        """The rows of all `tallies`, one after the other."""
        return cls(*(torch.cat([getattr(t, f.name) for t in tallies]) for f in fields(cls)))

    @property
    def mean(self) -> Float[Tensor, " head"]:
        """Mean of the quantity over the counted queries of all rows."""
        return self.total.sum(0) / self.queries.sum()

    @property
    def uniform_mean(self) -> Float[Tensor, " head"]:
        """`mean` for attention spread evenly: the level of chance."""
        return self.uniform.sum(0) / self.queries.sum()
