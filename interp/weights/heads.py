"""The weights of attention heads: their bilinear forms, and scores from them without a prompt.

A head reads the residual stream as query (W_Q) and as key (W_K), and moves values (W_V, W_O).
Row vectors are multiplied from the left, `x @ W`; papers that write column vectors have every
matrix transposed:

    W_QK = W_Q W_K^T    [d_model of the query, d_model of the key], without the scale
    W_OV = W_V W_O      [d_model read, d_model written]

(Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). Both have at most rank
d_head and are kept as their two factors.

**Norms.** A head reads LN(x) = (x - mean x) / sigma * gain + bias, or x / sigma * gain with
RMSNorm. Gain and centring are linear and go into the weights, the bias into the head's own:

    LN(x) W + b = (x / sigma) C diag(gain) W + (bias W + b),    C = 1 - (1 1^T) / d_model or 1

Only one number per position is left, sigma. `HeadWeights` holds weights that are folded so.

**Norms inside the attention.** Some models normalize each query and key (Qwen3, Gemma 3, OLMo 2,
Llama 4) or a compressed vector from which keys and values are made (DeepSeek). Such a norm is
linear too, up to its scale, a positive number for each token and head. It is kept at its harmonic
mean over a sample of tokens, so that the weights divide as the norm does on average. For a norm of
whole queries or keys the choice only multiplies all scores of a query or a key: composition scores
do not depend on it. In latent attention the norm divides the compressed part of a key, but not its
rotary part: W_QK is the mean over the tokens, and the two parts have other ratios at single tokens.
A gate after the heads (Qwen3-Next) multiplies their outputs by positive numbers for each token: it
is part of W_O, at its mean.

**Rotary positions** (Su et al. 2021, arXiv 2104.09864). Queries and keys are turned by their
position, R_i and R_j, and R_i R_j^T = R_(i-j): there is one W_QK for each distance,
`W_Q R_distance W_K^T`, so that a head may seek other tokens at other distances.

**ALiBi** (Bloom, MPT) subtracts `slope * distance` from each score. It is no product of a query
and a key that are read from the stream, and not in W_QK or in `HeadWeights.scores`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from interp.errors import InputError, Whole, checked, quoted

Pairing = Literal["halves", "neighbours"]

Distance = Annotated[Whole, Field(ge=0, le=2**31)]
"""Tokens from query back to key."""


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of queries and keys by position: pair i by `angles[i]` for each step.

    Attributes:
        angles: Angle of each pair of dimensions for one step, in radians.
        pairing: Dimensions of a pair: `halves`, i and i + pairs (Llama, NeoX), or
            `neighbours`, 2 i and 2 i + 1 (GPT-J).
        first: First dimension that is turned. With fewer pairs than half of d_head, the dimensions
            after them (Pythia) or before them (DeepSeek) are not turned.
    """

    angles: Float[Tensor, " pair"]
    pairing: Pairing = "halves"
    first: int = 0

    def turn(
        self, x: Float[Tensor, "*rest d_head"], steps: Int[Tensor, "..."] | int
    ) -> Float[Tensor, "*rest d_head"]:
        """`x` turned by `steps`, one for each vector or one for all.

        Example:
            >>> half_circle = Rotary(torch.tensor([torch.pi]))
            >>> half_circle.turn(torch.tensor([1.0, 2.0, 5.0]), 1)
            tensor([-1.0000, -2.0000,  5.0000])
        """
        ends = (self.first, self.first + 2 * len(self.angles))
        together = "(two pair)" if self.pairing == "halves" else "(pair two)"
        before, turned, after = x.tensor_split(ends, dim=-1)
        a, b = rearrange(turned, f"... {together} -> two ... pair", two=2)
        # On the CPU, since some devices have no float64.
        angle = torch.as_tensor(steps).cpu().double()[..., None] * self.angles.cpu().double()
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        both = torch.stack([a * cos - b * sin, b * cos + a * sin])
        turned = rearrange(both, f"two ... pair -> ... {together}")
        return torch.cat([before, turned, after], -1)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The heads of one layer as they read x / sigma, with everything before them folded in.

    Head h reads keys and values through key-value head `h // (heads / kv_heads)`.

    Attributes:
        W_Q: Query weights; so W_K and W_V for keys and values. Norms inside the attention are
            folded in at their mean scale.
        W_O: Output weights; a norm after the heads (Gemma 2) is folded in except its scale, and a
            gate at its mean.
        b_Q: Query biases; as b_K and b_V, with the biases of norms.
        scale: Factor on the product of query and key, such as d_head ** -0.5.
        rotary: Rotation of queries and keys; None without rotary positions.
        softcap: c where the scores become `c tanh(score / c)` (Gemma 2).
        centred: Whether the norm subtracts the mean first (LayerNorm): no head can read what
            all dimensions have in common.
    """

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_value"]
    W_O: Float[Tensor, "head d_value d_model"]
    b_Q: Float[Tensor, "head d_head"]
    b_K: Float[Tensor, "kv_head d_head"]
    b_V: Float[Tensor, "kv_head d_value"]
    scale: float
    rotary: Rotary | None = None
    softcap: float | None = None
    centred: bool = False

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return len(self.W_Q)

    @property
    def group(self) -> int:
        """How many query heads share one key-value head."""
        return len(self.W_Q) // len(self.W_K)

    def turn(
        self, x: Float[Tensor, "*rest d_head"], steps: Int[Tensor, "..."] | int
    ) -> Float[Tensor, "*rest d_head"]:
        """Queries or keys, or the weights that make them, turned by `steps` positions."""
        return x if self.rotary is None else self.rotary.turn(x, steps)

    @checked
    def QK(
        self, head: Whole, *, distance: Distance = 0
    ) -> tuple[Float[Tensor, "d_model d_head"], Float[Tensor, "d_model d_head"]]:
        """The factors of a head's `W_QK = left @ right.T` for a key `distance` tokens back."""
        kv = self._kv(head)
        return self.turn(self.W_Q[head], distance), self.W_K[kv]

    @checked
    def OV(
        self, head: Whole
    ) -> tuple[Float[Tensor, "d_model d_value"], Float[Tensor, "d_value d_model"]]:
        """The factors of a head's `W_OV = left @ right`."""
        return self.W_V[self._kv(head)], self.W_O[head]

    def scores(
        self, x: Float[Tensor, "batch pos d_model"], sigma: Float[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch head query key"]:
        """Every head's scores before mask and softmax, from the stream that enters the layer.

        The first position of a row is 0; `sigma` is the scale by which the norm divides each.
        Where norms are inside the attention, the model's own scores are these with their own
        scale at each token instead of the mean.
        """
        x = x / sigma[..., None]
        pos = torch.arange(x.shape[1], device=x.device)
        q = einsum(x, self.W_Q, "b q d, h d e -> b h q e") + self.b_Q[:, None]
        k = einsum(x, self.W_K, "b k d, kv d e -> b kv k e") + self.b_K[:, None]
        q = rearrange(self.turn(q, pos), "b (kv g) q e -> b kv g q e", g=self.group)
        scores = einsum(q, self.turn(k, pos), "b kv g q e, b kv k e -> b kv g q k") * self.scale
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        return rearrange(scores, "b kv g q k -> b (kv g) q k")

    def _kv(self, head: int) -> int:
        if not 0 <= head < self.n_heads:
            raise InputError(f"head must be from 0 to {self.n_heads - 1}, got {quoted(head)}")
        return head // self.group


def qk_match(
    embedding: Float[Tensor, "token d_model"],
    writer: HeadWeights,
    writing: int,
    reader: HeadWeights,
    reading: int,
    *,
    distance: int = 0,
) -> float:
    """Share of tokens that a later head finds by what an earlier head wrote for them.

    For each token t as query, the best key is chosen among all tokens t' of `embedding`, where
    the key of t' is what the earlier head writes for t', read through the later head's W_K:

        match(t, t') = (e(t) W_Q2 + b_Q2) R_distance . (e(t') W_OV1 W_K2)

    The share, in [0, 1], counts the t for which t' = t is best: the sign of K-composition in an
    induction head (top-1 of the `K_comp_circuit` in Callum McDougall's ARENA course). Chance is
    1 / tokens: compare shares only for the same number of tokens. Terms that are the same for all
    t' are left out, and so is the later norm's scale, which depends on the rest of the stream.

    `embedding` has a row per token, such as that of `interp.weights.folded.embedding`; the heads
    are number `writing` of the layer `writer`, and `reading` of `reader`; the key is `distance`
    tokens back.
    """
    W_Q, W_K = reader.QK(reading, distance=distance)
    W_V, W_O = writer.OV(writing)
    queries = embedding @ W_Q + reader.turn(reader.b_Q[reading], distance)
    keys = embedding @ W_V @ (W_O @ W_K)
    return _share_of_own(queries, keys.mT, torch.arange(len(embedding)))


def ov_copy(
    embedding: Float[Tensor, "token d_model"],
    heads: HeadWeights,
    head: int,
    W_U: Float[Tensor, "vocab d_model"],
    ids: Int[Tensor, " token"],
) -> float:
    """Share of tokens whose logit a head raises above all others when it attends to them.

    The share, in [0, 1], counts the tokens t for which t has the largest of the logits
    `(e(t) W_V + b_V) W_O W_U` (top-1, as in the ARENA course of Callum McDougall). Biases outside
    the head are left out. Chance is one over the vocabulary's size.

    `embedding` has a row per token of `ids`; `W_U` has the final norm folded in, as
    `readout.W_U @ readout.tail` of an `interp.weights.direct.Readout`.
    """
    W_V, W_O = heads.OV(head)
    values = embedding @ W_V + heads.b_V[head // heads.group]
    return _share_of_own(values, W_O @ W_U.mT, ids)


def _share_of_own(
    left: Float[Tensor, "row e"], right: Float[Tensor, "e column"], own: Tensor
) -> float:
    """Share of rows whose largest product is with their own column."""
    best = torch.cat([(rows @ right).argmax(-1) for rows in left.split(256)])
    return (best == own.to(best.device)).sum().item() / len(left)


def copying_scores(
    W_V: Float[Tensor, "head d_model d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    W_UE: Float[Tensor, "d_model d_model"],
) -> Float[Tensor, " head"]:
    """OV copying score: sum of the eigenvalues of `W_E W_V W_O W_U` over the sum of their sizes.

    In [-1, 1]: 1 if attending to a token raises that token's own logit along every eigenvector,
    -1 if it lowers it, about 0 for a random matrix (Elhage et al. 2021, "Summarizing OV/QK
    matrices"). It is weak evidence: heads that push the answer down may score high too, since at
    work they attend to more than a bare embedding.

    The `[vocab, vocab]` matrix is never made: its nonzero eigenvalues are those of the
    `[d_head, d_head]` matrix `W_O (W_U W_E) W_V`, the same factors in cyclic order.

    W_V has the gain of the norm before it, for each query head; `W_UE` is `W_U W_E` with the gain
    of the final norm. Subtract the mean of W_U over the vocabulary to ignore what is added to all
    logits alike.

    Example:
        >>> W = torch.eye(2)[None]
        >>> copying_scores(W, W, torch.eye(2)), copying_scores(W, -W, torch.eye(2))
        (tensor([1.]), tensor([-1.]))
    """
    core = einsum(W_O, W_UE, W_V, "h i d, d e, h e j -> h i j")
    values = torch.linalg.eigvals(core.cpu().double())
    return (values.real.sum(-1) / values.abs().sum(-1)).float()
