"""Attention mass on the targets: one quantity for every kind of head."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

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


@dataclass(frozen=True)
class Joined:
    """Targets of several kinds, so that attention to all of them is computed together.

    Attributes:
        keys: Targets of the queries that count, by kind.
        near: The last keys of each query, the nearest last, where a kind asks for them; the
            others are after all queries.
        times: How many targets of each kind these are.
        query: Query of each other target, counted through all rows.
        key: The target, counted likewise.
        into: Where it is added: its row + rows * number of its kind.
    """

    NEAR: ClassVar[int] = 16
    """Keys at most so many positions back, the query included, are near."""

    keys: dict[str, Keys]
    near: Int[Tensor, "batch 1 width query"]
    times: Float[Tensor, "batch kind width_query"]
    query: Int[Tensor, " p"]
    key: Int[Tensor, " p"]
    into: Int[Tensor, " p"]

    @classmethod
    def of(cls, keys: dict[str, Keys], counted: Bool[Tensor, "batch query"]) -> "Joined":
        """Join the targets of the queries that are `counted`."""
        rows, length = counted.shape
        keys = {kind: torch.where(counted[..., None], each, NONE) for kind, each in keys.items()}
        pairs = [counted.new_zeros(4, 0, dtype=torch.long)]
        for number, each in enumerate(keys.values()):
            row, query, column = (each != NONE).nonzero(as_tuple=True)
            kind = torch.full_like(row, number)
            pairs.append(torch.stack([row, kind, query, each[row, query, column]]))
        row, kind, query, key = torch.cat(pairs, 1)
        back = query - key
        is_near = (back >= 0) & (back < cls.NEAR)
        width = int(back[is_near].max()) + 1 if is_near.any() else 0
        at = row[is_near], kind[is_near], width - 1 - back[is_near], query[is_near]
        times = torch.zeros(rows, len(keys), width, length, device=row.device)
        times.index_put_(at, times.new_ones(()), accumulate=True)
        place = torch.arange(length, device=row.device)
        near = torch.where(times.any(1), place - place[:width].flip(0)[:, None], length)
        into, query, key = (
            x[~is_near] for x in (row + rows * kind, query + row * length, key + row * length)
        )
        return cls(keys, near[:, None], times.flatten(2), query, key, into)


class FromPattern:
    """Attention given as a pattern `[batch, head, query, key]`."""

    def __init__(self, pattern: Float[Tensor, "batch head query=pos key=pos"]) -> None:
        self.pattern = pattern
        self.n_heads = pattern.shape[1]
        self.norms = None

    def mass(self, keys: Keys) -> Float[Tensor, "batch head query"]:
        """Attention of each query to its `keys`."""
        return attention_mass(self.pattern, keys)

    def totals(self, asked: Joined) -> Float[Tensor, "kind batch head"]:
        """Attention to all targets of each kind."""
        return torch.stack(
            [
                torch.where((keys != NONE).any(-1)[:, None], self.mass(keys), 0).sum(-1)
                for keys in asked.keys.values()
            ]
        )

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head m query"]:
        """Attention to each of its head's `columns` from each query; 0 for -1."""
        index = repeat(columns.clamp(min=0), "b h m -> b h q m", q=self.pattern.shape[2])
        return self.pattern.gather(-1, index).mT * (columns != NONE)[..., None]

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

    BLOCK = 16
    """Number of neighbouring queries whose near keys are read together."""

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

    @cached_property
    def _by_head(self) -> tuple[Float[Tensor, "batch kv_head pos group d"], Float[Tensor, "n d"]]:
        """Scaled queries, and keys of all rows after `NEAR` zeros; rows end in whole blocks."""
        rows, length, kv, group, d = self.q.shape
        q = self.q.new_empty(rows, kv, -(-length // self.BLOCK) * self.BLOCK, group, d)
        torch.mul(self.q.transpose(1, 2), self.scale, out=q[:, :, :length])
        k = self.k.new_empty(Joined.NEAR + q[..., 0, 0].numel(), d)
        by_head = k[Joined.NEAR :].view(rows, kv, -1, d)
        by_head[:, :, :length] = self.k.transpose(1, 2)
        k[: Joined.NEAR], q[:, :, length:], by_head[:, :, length:] = 0, 0, 0
        return q, k

    def options(self, heads: Int[Tensor, " n"] | None = None) -> dict[str, Any]:
        """What else decides the attention of all heads, or of `heads`, as in `by_tiles`."""
        of_heads = {"sinks": self.sinks, "slopes": self.slopes}
        if heads is not None:
            of_heads = {name: x if x is None else x[heads] for name, x in of_heads.items()}
        return {"softcap": self.softcap, "window": self.window, **of_heads}

    def mass(self, keys: Keys) -> Float[Tensor, "batch head query"]:
        """Attention of each query to its `keys`, as `attention_mass`."""
        total = self.lse.new_zeros(keys[..., 0].numel(), self.n_heads, dtype=torch.float)
        for query, _, mass in self._pairs(*_flat(keys)):
            total.index_add_(0, query, mass)
        return rearrange(total, "(b q) h -> b h q", b=len(keys))

    def totals(self, asked: Joined) -> Float[Tensor, "kind batch head"]:
        """Attention to all targets of each kind."""
        rows, kinds, _ = asked.times.shape
        total = self.lse.new_zeros(kinds * rows, self.n_heads, dtype=torch.float)
        places = asked.into.split(self.PAIRS)
        for place, (_, _, mass) in zip(places, self._pairs(asked.query, asked.key), strict=True):
            total.index_add_(0, place, mass)
        near = self._near(asked.near).flatten(2) if asked.near.shape[2] else None
        total = rearrange(total, "(kind b) h -> kind b h", b=rows)
        return total if near is None else total + (asked.times @ near.mT).transpose(0, 1)

    def _near(
        self, keys: Int[Tensor, "batch 1 width query"]
    ) -> Float[Tensor, "batch head width query"]:
        """Attention of each query to its last `keys`, by blocks of queries."""
        (q, k), (width, length) = self._by_head, keys.shape[2:]
        rows, kv, _, group, d = q.shape
        q = q.reshape(-1, self.BLOCK * group, d)
        span = self.BLOCK + width - 1
        # The keys of each block of queries, which overlap: a view.
        k = k[Joined.NEAR - width + 1 :].as_strided((len(q), span, d), (self.BLOCK * d, d, 1))
        scores = (q @ k.mT).view(rows, kv, -1, self.BLOCK, group, span)
        strides = scores.stride()
        diagonals = scores.as_strided(
            (*scores.shape[:-1], width), (*strides[:3], strides[3] + 1, *strides[4:])
        )
        scores = rearrange(diagonals, "b kv n i g w -> b (kv g) w (n i)")[..., :length]
        query = torch.arange(length, device=keys.device)
        return self._probability(scores, self.lse[:, :, None], query, keys)

    def brought(self, keys: Keys) -> Float[Tensor, "batch head query d_v"]:
        """Values at each query's `keys`, summed with the attention as weights.

        With every visible key as a target this is the head's whole output before `W_O`.
        """
        assert self.v is not None, "values were not given"
        v = rearrange(self.v.float(), "b kv k d -> (b k) kv 1 d")
        group = self.n_heads // v.shape[1]
        total = v.new_zeros(self.lse.shape[0] * self.lse.shape[2], self.n_heads, v.shape[-1])
        for query, key, mass in self._pairs(*_flat(keys)):
            weights = rearrange(mass, "p (kv g) -> p kv g 1", g=group)
            total.index_add_(0, query, (weights * v.index_select(0, key)).flatten(1, 2))
        return rearrange(total, "(b q) h d -> b h q d", b=len(keys))

    def _pairs(
        self, query: Int[Tensor, " p"], key: Int[Tensor, " p"]
    ) -> Iterator[tuple[Int[Tensor, " p"], Int[Tensor, " p"], Float[Tensor, "p head"]]]:
        """Attention of queries to keys, both counted through all rows, in pieces."""
        q, k = self.q.flatten(0, 1), self.k.flatten(0, 1)[..., None]
        lse = rearrange(self.lse, "b h q -> (b q) h")
        for one, other in zip(query.split(self.PAIRS), key.split(self.PAIRS), strict=True):
            dots = (q.index_select(0, one) @ k.index_select(0, other)).flatten(1)
            places = (x[:, None] % self.q.shape[1] for x in (one, other))
            scores = dots.mul_(self.scale)
            yield one, other, self._probability(scores, lse.index_select(0, one), *places)

    def on_columns(
        self, columns: Int[Tensor, "batch head m"]
    ) -> Float[Tensor, "batch head m query"]:
        """Attention to each of its head's `columns` from each query; 0 for -1."""
        q, k = self._by_head
        rows, kv, _, group, d = q.shape
        length, device = self.q.shape[1], columns.device
        batch = torch.arange(rows, device=device)[:, None, None, None]
        head = torch.arange(kv, device=device)[:, None, None]
        at = rearrange(columns.clamp(min=0), "b (kv g) m -> b kv g m", kv=kv)
        k = k[Joined.NEAR :].view(rows, kv, -1, d)[batch, head, at]
        scores = [k[:, :, g] @ q[:, :, :length, g].mT for g in range(group)]
        key = torch.where(columns == NONE, length, columns)[..., None]
        query = torch.arange(length, device=device)
        scores = torch.stack(scores, 2).flatten(1, 2)
        return self._probability(scores, self.lse[:, :, None], query, key)

    def rows(self, queries: Int[Tensor, "batch s"]) -> Float[Tensor, "batch head s key"]:
        """Rows of the pattern for some `queries`; 0 for -1."""
        (q, k), length = self._by_head, self.q.shape[1]
        start = torch.arange(len(queries), device=queries.device)[:, None] * length
        at = (start + queries.clamp(min=0)).flatten()
        asked = self.q.flatten(0, 1).index_select(0, at).mul_(self.scale)
        asked = rearrange(asked, "(b s) kv g d -> b kv (g s) d", b=len(queries))
        k = k[Joined.NEAR :].view(*q.shape[:3], -1)[:, :, :length]
        scores = (asked @ k.mT).view(len(queries), self.n_heads, -1, length)
        lse = rearrange(self.lse, "b h q -> (b q) h").index_select(0, at)
        lse = rearrange(lse, "(b s) h -> b h s 1", b=len(queries))
        query = rearrange(queries, "b s -> b 1 s 1")
        key = torch.arange(length, device=queries.device)
        return self._probability(scores, lse, query, key)

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

    def _probability(
        self,
        scores: Float[Tensor, "first head *rest"],
        lse: Float[Tensor, "#first head *#rest"],
        query: Int[Tensor, "..."],
        key: Int[Tensor, "..."],
    ) -> Float[Tensor, "first head *rest"]:
        """`exp(score - lse)`; 0 where the query does not see the key. Overwrites `scores`."""
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.slopes is not None:
            slopes = self.slopes.view(-1, *[1] * (scores.dim() - 2))
            scores = scores - slopes * (query - key)
        seen = key <= query
        if self.window is not None:
            seen = seen & within(self.window, query, key)
        # Vectorized exponentials are 50 times slower where the result is near 0 or infinite.
        return scores.sub_(lse).clamp_(-80, 80).exp_().mul_(seen.to(scores.dtype)).float()


def _flat(keys: Keys) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """Each query that has a target, and the target, counted through all rows."""
    row, query, column = (keys != NONE).nonzero(as_tuple=True)
    start = row * keys.shape[1]
    return start + query, start + keys[row, query, column]


Attention = FromPattern | FromQK
"""Attention of one layer in either form."""


def folded(values: Tensor, rows: int) -> Tensor:
    """The sums of each so many neighbouring rows.

    Example:
        >>> folded(torch.tensor([1, 2, 3]), 2).tolist()
        [3, 3]
    """
    return torch.stack([some.sum(0) for some in values.split(rows)])


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

    def folded(self, rows: int) -> "Tally":
        """The sums of each so many neighbouring rows, as one row."""
        return Tally(*(folded(getattr(self, f.name), rows) for f in fields(self)))

    @property
    def mean(self) -> Float[Tensor, " head"]:
        """Mean of the quantity over the counted queries of all rows."""
        return self.total.sum(0) / self.queries.sum()

    @property
    def uniform_mean(self) -> Float[Tensor, " head"]:
        """`mean` for attention spread evenly: the level of chance."""
        return self.uniform.sum(0) / self.queries.sum()
