"""Keys that a head prefers for any query, fitted on one text and tested on another.

A head's preference for a token is linear in the token's features, which are its embedding: the
direction takes the place of the mean query in `W_QK` (Elhage et al. 2021, Framework) and also
covers what layers below make of the token. A second factor depends on the distance. A query's
preferred keys are the tenth of the keys it sees with the largest product of both, among those
that are neither a sink of the head nor a target of another kind.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.kinds.explained import Asked, outside_sinks
from interp.kinds.mass import Attention

PER_OCTAVE = 2
"""Number of factors from a distance to its double."""


@dataclass(frozen=True)
class Preferred:
    """Preferences of all heads.

    Attributes:
        features: Features of each token id.
        direction: Each head's direction in them: `features @ direction` is how much attention a
            token draws, where 1 is an even share.
        by_distance: How much attention a key draws at a distance, where 1 is an even share; the
            distances 2^(n / 2) - 1 to 2^((n + 1) / 2) - 1 share entry n.
    """

    features: Float[Tensor, "id f"]
    direction: Float[Tensor, "layer head f"]
    by_distance: Float[Tensor, "layer head n"]

    def strongest(self, layer: int, head: int, most: int = 10) -> Int[Tensor, " n"]:
        """Ids of the tokens that a head prefers most."""
        return (self.features @ self.direction[layer, head]).topk(most).indices

    def of_layer(
        self,
        layer: int,
        attention: Attention,
        asked: Asked,
        sinks: Bool[Tensor, "batch head key"],
    ) -> dict[str, Bool[Tensor, "batch head s key"]]:
        """`targets` as `score_layer` takes them; the attention has no effect."""
        return {"preferred": self.targets(layer, asked, sinks)}

    def targets(
        self, layer: int, asked: Asked, sinks: Bool[Tensor, "batch head key"]
    ) -> Bool[Tensor, "batch head s key"]:
        """The preferred keys of the asked queries, at most a tenth of those that each sees."""
        by_token = (self.features[asked.tokens.clamp(min=0)] @ self.direction[layer].T).mT
        octave = _octave(asked).clamp(max=self.by_distance.shape[-1] - 1)
        away = self.by_distance[layer][:, octave].transpose(0, 1)
        score = by_token[:, :, None].clamp(min=1e-3) * away
        score = score.masked_fill(~_left(asked, sinks), -torch.inf)
        most = asked.visible.sum(-1)[:, None, :, None] // 10
        top = score.topk(max(1, int(most.max())), dim=-1)
        rank = torch.arange(top.values.shape[-1], device=score.device)
        kept = (rank < most) & (top.values > -torch.inf)
        return torch.zeros_like(score, dtype=torch.bool).scatter(-1, top.indices, kept)


class Fit:
    """Sums over text from which `Preferred` is fitted, a layer of a batch at a time.

    Args:
        tokens: Token ids of the text; -1 is padding.
        n_layers: Number of layers.
        n_heads: Number of heads of a layer.
    """

    def __init__(self, tokens: Int[Tensor, "row pos"], n_layers: int, n_heads: int) -> None:
        self.ids = tokens.unique()
        octaves = int(PER_OCTAVE * torch.tensor(tokens.shape[1]).log2()) + 1
        self.by_token = torch.zeros(2, n_layers, n_heads, len(self.ids))
        self.by_distance = torch.zeros(2, n_layers, n_heads, octaves)

    def add(
        self, layer: int, attention: Attention, asked: Asked, sinks: Bool[Tensor, "batch head key"]
    ) -> dict[str, Bool[Tensor, "batch head s key"]]:
        """Add what no kind explains: what each token draws, and what it would draw evenly.

        Nothing is a target yet.
        """
        outside, _ = outside_sinks(attention, asked, sinks)
        left = _left(asked, sinks)
        drawn = outside * left
        even = drawn.sum(-1, keepdim=True) * left / left.sum(-1, keepdim=True).clamp(min=1)
        both = torch.stack([drawn, even]).transpose(1, 2)  # [2, head, batch, s, key]
        token = torch.searchsorted(self.ids, asked.tokens).flatten()
        self.by_token[:, layer].index_add_(-1, token, both.sum(3).flatten(2))
        self.by_distance[:, layer].index_add_(-1, _octave(asked).flatten(), both.flatten(2))
        return {}

    def preferred(self, features: Float[Tensor, "id f"], *, ridge: float = 1.0) -> Preferred:
        """Fit the direction and the factors of each head.

        Args:
            features: Features of each token id of the vocabulary, such as its embedding.
            ridge: Weight of the penalty on the direction, as a share of the features' variance.
        """
        features = features.float()
        features = features / features.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-9)
        (drawn, even), seen = self.by_token, features[self.ids.clamp(min=0)]
        weight = even.sum((0, 1)) / even.sum()
        gram = seen.T * weight @ seen
        gram += ridge * gram.diagonal().mean() * torch.eye(len(gram))
        drawn = drawn / even.sum(-1, keepdim=True).clamp(min=1e-9)
        direction = torch.linalg.solve(gram, (drawn @ seen).flatten(0, 1).T).T
        drawn, even = self.by_distance + 1e-6 * self.by_distance.sum(-1, keepdim=True)
        return Preferred(features, direction.unflatten(0, drawn.shape[:2]), drawn / even)


def _left(asked: Asked, sinks: Bool[Tensor, "batch head key"]) -> Bool[Tensor, "batch head s key"]:
    """Keys that are neither a sink nor a target of a kind."""
    return (asked.visible & ~asked.union)[:, None] & ~sinks[:, :, None]


def _octave(asked: Asked) -> Int[Tensor, "batch s key"]:
    """Number of the factor of each distance."""
    key = torch.arange(asked.visible.shape[-1], device=asked.queries.device)
    away = (asked.queries[..., None] - key).abs() + 1
    return (PER_OCTAVE * away.log2()).long()
