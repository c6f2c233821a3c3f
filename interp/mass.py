"""How much attention lands on the targets: one quantity, whatever the kind of head."""

from dataclasses import dataclass, fields

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

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


def sink_columns(
    pattern: Float[Tensor, "batch head query=pos key=pos"],
    counted: Bool[Tensor, "batch pos"],
    *,
    share: float,
    least: int,
) -> Bool[Tensor, "batch head key=pos"]:
    """Columns that draw at least `share` of the attention of the queries after them, everywhere.

    A column's share is the mean of `pattern[b, h, q, k]` over the counted queries q > k
    (Gu et al. 2024, arXiv 2410.10781, section 3.2, without the trivial q = k). "Everywhere"
    means that both the nearer and the farther half of those queries give that much, so that
    a near neighbour is no sink; `least` queries are needed for an opinion.
    """
    length = pattern.shape[-1]
    weights = pattern * rearrange(counted, "b q -> b 1 q 1")
    sums = weights.cumsum(dim=-2)  # [b h q k]: what queries 0..q have given to k
    number = counted.int().cumsum(-1)  # [b q]

    column = torch.arange(length, device=pattern.device)
    after = number[:, -1:] - number  # [b k]: counted queries after k
    # The query that closes the nearer half of those after k.
    middle = (number[:, None, :] < (number + after // 2)[:, :, None]).sum(-1).clamp(max=length - 1)
    gather = repeat(middle, "b k -> b h 1 k", h=pattern.shape[1])
    at_middle = rearrange(sums.gather(-2, gather), "b h 1 k -> b h k")
    at_self = sums[..., column, column]
    near = at_middle - at_self
    far = sums[..., -1, :] - at_middle
    near_number = rearrange(after // 2, "b k -> b 1 k")
    far_number = rearrange(after, "b k -> b 1 k") - near_number
    enough = rearrange(after >= least, "b k -> b 1 k")
    return enough & (near >= share * near_number) & (far >= share * far_number)


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
