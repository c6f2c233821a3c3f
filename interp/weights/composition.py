r"""How strongly a later head reads what an earlier head writes, from weights alone.

For heads 1 and 2 of an earlier and a later layer, with row vectors (`interp.weights.heads`), the
score of a kind is |A B| / (|A| |B|) in Frobenius norms (Elhage et al. 2021), where A = W_OV1 and

    Q-composition: B = W_QK2,    K-composition: B = W_QK2^T,    V-composition: B = W_OV2

It is at most 1; flat factors of rank r that fit perfectly reach 1 / sqrt(r), and chance gives
the floor.

**The null.** How large is a score if the two heads keep their singular values but are
unrelated? Put a rotation between them, orthogonal R of n dimensions drawn evenly (Haar), and with
M = A^T A and N = B B^T

    |A R B|^2 = tr(M R N R^T) = tr M tr N / n + tr(M0 R N0 R^T)

where M0 = M - (tr M / n) 1 and N0 likewise. The second term has mean 0, since E[R N0 R^T]
commutes with every rotation and has trace 0. For its square: rotations act irreducibly on the
symmetric matrices of trace 0, a space of D = (n - 1)(n + 2) / 2 dimensions, so that by Schur's
lemma the mean square of a product with R N0 R^T is the same in all directions,
E[tr(M0 R N0 R^T)^2] = |M0|^2 |N0|^2 / D:

    E |A R B|^2 = |A|^2 |B|^2 / n
    Var |A R B|^2 = 2 / ((n - 1)(n + 2)) (tr M^2 - (tr M)^2 / n) (tr N^2 - (tr N)^2 / n)

So the floor is 1 / sqrt(n), and z = (|A B|^2 - mean) / sqrt(variance) needs no sampling. The
null has a long right tail if a few singular values dominate a head. In a trained model most pairs
are several deviations away, above or below, since heads share directions of the stream: the rank
among the earlier heads says more than z alone.

**Layer norms** subtract the mean before anything is read: no head can read what a head writes
along 1 = (1, ..., 1). It is removed from A, and n is d_model - 1.

**The cost.** With A = W_V W_O and B = I J^T, and the triangles of W_V = Q S and J = Q' T, the
norm of A B is that of S (W_O I) T^T, d_head x d_head. No d_model x d_model matrix is formed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from interp.errors import InputError, Whole, checked, quoted
from interp.heads import Head
from interp.weights.heads import Distance, HeadWeights

KINDS = ("Q", "K", "V")


@dataclass(frozen=True, eq=False)
class Composition:
    """Scores of all pairs of heads, `[layer1, head1, layer2, head2]`: head 2 reads head 1.

    NaN where layer1 is not earlier than layer2, where a layer has no attention, and where a head's
    weights are all 0.

    Attributes:
        Q: Scores through queries, in [0, 1].
        K: Scores through keys, in [0, 1].
        V: Scores through values, in [0, 1].
        z: By kind, distance of the squared score from the null's mean, in standard deviations.
        floor: Score by chance: 1 / sqrt(n).
        distance: Tokens from query back to key; no effect without rotary positions.
    """

    Q: Float[Tensor, "layer head layer head"]
    K: Float[Tensor, "layer head layer head"]
    V: Float[Tensor, "layer head layer head"]
    z: dict[str, Float[Tensor, "layer head layer head"]]
    floor: float
    distance: int

    def __repr__(self) -> str:
        best = [(kind, e) for kind in KINDS for e in self.strongest(kind, 1).to_dict("records")]
        words = [f"{kind} {e['earlier']} to {e['later']} {e['score']:.3f}" for kind, e in best]
        return f"Composition({', '.join([*words, f'floor {self.floor:.3f}'])})"

    def scores(self, kind: str) -> Float[Tensor, "layer head layer head"]:
        """The scores of a kind, `Q`, `K` or `V`."""
        if kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, got {quoted(kind)}")
        return {"Q": self.Q, "K": self.K, "V": self.V}[kind]

    def rank(self, kind: str) -> Int[Tensor, "layer head layer head"]:
        """Rank of each earlier head for each later head, from 1; 0 where there is no score."""
        scores = self.scores(kind)
        flat = rearrange(scores, "l1 h1 l2 h2 -> (l1 h1) (l2 h2)")
        order = flat.nan_to_num(nan=-1.0).argsort(dim=0, descending=True, stable=True)
        ranks = torch.where(flat.isnan(), 0, order.argsort(dim=0) + 1)
        return ranks.view(scores.shape)

    @checked
    def strongest(
        self,
        kind: str,
        count: Annotated[Whole, Field(ge=0)] = 10,
        *,
        later: Head | tuple[int, int] | str | None = None,
    ) -> pd.DataFrame:
        """The `count` pairs with the highest scores of a kind; with `later`, those it reads.

        Returns:
            `earlier` and `later` (L5H1), `score`, `z`, and `rank` of `earlier` among all heads
            before `later`, from 1.
        """
        names = {kind: "score", f"{kind}_z": "z", f"{kind}_rank": "rank"}
        n_layers, n_heads = self.scores(kind).shape[2:]
        frame = self.to_frame().rename(columns=names).dropna(subset=["score"])
        frame = frame.loc[:, ["earlier", "later", *names.values()]]
        if later is not None:
            layer, head = later = Head.parse(later)
            if layer >= n_layers or head >= n_heads:
                raise InputError(f"later must be a head of the model, got {later}")
            frame = frame.loc[frame["later"] == str(later)]
        best = frame.sort_values(by="score", ascending=False, kind="stable")
        return best.head(count).reset_index(drop=True)

    def to_frame(self) -> pd.DataFrame:
        """One row per pair: `earlier`, `later` (L5H1), and for each kind `Q`, `Q_z`, `Q_rank`."""
        there = self.Q.isfinite() | self.K.isfinite() | self.V.isfinite()
        places = there.nonzero().tolist()
        pairs = [(str(Head(l1, h1)), str(Head(l2, h2))) for l1, h1, l2, h2 in places]
        frame = pd.DataFrame(pairs, columns=["earlier", "later"])
        for kind in KINDS:
            frame[kind] = self.scores(kind)[there].tolist()
            frame[f"{kind}_z"] = self.z[kind][there].tolist()
            frame[f"{kind}_rank"] = self.rank(kind)[there].tolist()
        return frame


class _Factor(NamedTuple):
    """A layer's A = W_OV, or its B = I J^T, up to a rotation of the side away from the stream.

    `core` has the same A^T A, or is I for each group of heads, with the triangle of J; `size` is
    the squared norm, and `spread` of M = A^T A or B B^T is tr M^2 / (tr M)^2 - 1 / n.
    """

    core: Float[Tensor, "shared e d"]
    triangle: Any
    size: Float[Tensor, " head"]
    spread: Float[Tensor, " head"]

    @classmethod
    def of(cls, core: Tensor, triangle: Tensor | None, product: Tensor, n: int) -> "_Factor":
        """The factor whose product, with the stream as last dimension, is `product`."""
        gram, size = product @ product.mT, product.square().sum((-1, -2))
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return cls(core, triangle, size, gram.square().sum((-1, -2)) / trace.square() - 1 / n)


@checked
def compose(
    weights: Mapping[int, HeadWeights], *, n_layers: int, distance: Distance = 0
) -> Composition:
    """Q-, K- and V-composition of all pairs of heads, from the weights of two layers at least.

    `n_layers` includes layers without attention; `distance` is that from query back to key, in
    tokens: with rotary positions each has its own W_QK.
    """
    if len(weights) < 2:
        raise InputError(f"weights must be of at least two layers, got {len(weights)}")
    centred = any(heads.centred for heads in weights.values())
    n = next(iter(weights.values())).W_O.shape[-1] - centred
    written = {i: _written(heads, n, centred) for i, heads in weights.items()}
    most = max(heads.n_heads for heads in weights.values())
    squares = {kind: torch.full((n_layers, most) * 2, torch.nan) for kind in KINDS}
    z = {kind: scores.clone() for kind, scores in squares.items()}
    for layer, heads in weights.items():
        for kind, read in _reads(heads, n, distance):
            for earlier in (i for i in weights if i < layer):
                middle = einsum(written[earlier].core, read.core, "h i d, s d e -> s h i e")
                product = einsum(middle, read.triangle, "s h i e, s g f e -> s h i g f")
                found = reduce(product.square(), "s h i g f -> h (s g)", "sum")
                found = found / (written[earlier].size[:, None] * read.size)
                spreads = written[earlier].spread[:, None] * read.spread
                variance = 2 / ((n - 1) * (n + 2)) * spreads.clamp(min=0)
                place = (earlier, slice(len(found)), layer, slice(found.shape[1]))
                squares[kind][place] = found.cpu()
                z[kind][place] = ((found - 1 / n) / variance.sqrt()).cpu()
    scores = {kind: square.sqrt() for kind, square in squares.items()}
    return Composition(**scores, z=z, floor=n**-0.5, distance=distance)


def _written(heads: HeadWeights, n: int, centred: bool) -> _Factor:
    W_O = heads.W_O - heads.W_O.mean(-1, keepdim=True) if centred else heads.W_O
    triangle = torch.linalg.qr(heads.W_V, mode="r").R
    grouped = rearrange(W_O, "(kv g) e d -> kv g e d", g=heads.group)
    core = einsum(triangle, grouped, "kv f e, kv g e d -> kv g f d")
    core = rearrange(core, "kv g f d -> (kv g) f d")
    return _Factor.of(core, None, core, n)


def _reads(heads: HeadWeights, n: int, distance: int) -> Iterator[tuple[str, _Factor]]:
    """The three ways in which a layer's heads read."""
    W_Q, W_K = heads.turn(heads.W_Q, distance), heads.W_K
    paths = ("Q", W_Q, W_K), ("K", W_K, W_Q), ("V", heads.W_V, heads.W_O.mT)
    for kind, reader, other in paths:
        triangle = torch.linalg.qr(other, mode="r").R
        triangle = triangle.repeat_interleave(heads.n_heads // len(other), 0)
        by_head = reader.repeat_interleave(heads.n_heads // len(reader), 0)
        whole = triangle @ by_head.mT
        triangle = rearrange(triangle, "(s g) f e -> s g f e", s=len(reader))
        yield kind, _Factor.of(reader, triangle, whole, n)
