"""An induction circuit by construction: the parts that absolute and rotary positions share.

There are two layers of heads and no MLPs. Layer 0 writes the previous token to the current
position; layer 1 looks for the position whose *previous* token is the current token, and outputs
the token there.

**The stream.** Everything is written in directions of one random orthonormal frame of the residual
stream, orthogonal to (1, ..., 1) so that LayerNorm's centring removes nothing. Spaces, each
with room for a code word of N = m - 1 numbers (`interp.circuits.codes`): `token`, `before`,
`out`; with absolute positions `place` too, of m; and two directions, `one` and `bos`. The stream
has d_model = 8 m dimensions, so half of it is left empty. Token t enters as

    x0 = ALPHA_TOKEN word(t) in token + ALPHA_ONE one + ALPHA_PLACE place(i) in place

and BOS has `bos` instead of a word. The squares of the ALPHAs sum to d_model, so x0 has mean
square 1 and the first norm, of gain 1, changes nothing.

**Layer 0, previous token** (see `absolute` and `rotary` for its attention) reads `token` and writes

    gamma word(t') at U = cos(phi) (token, twisted) + sin(phi) before,     gamma = ALPHA_TOKEN / 2

with cos(phi)^2 = m / d_model: on average two random spaces of this size overlap that much. If the
value were orthogonal to what W_Q and W_V of layer 1 read, Q- and V-composition would be 0, which no
random pair has; written this way, both are at the random floor. The price is a small leak: queries
and values contain cos(phi) / 2 of a twisted word of the previous token, which is no token's word.
Keys read `before` alone, and no leak.

**Layer 1, induction.** With x1 of size s sqrt(d_model), s^2 = 1 + gamma^2 / d_model on average,

    score(i, j) = sharpness (s / s_i) (s / s_j) (word(t_i) + leak_i) . word(t_(j-1))
    score(i, BOS) = sharpness (s / s_i) rest          from `one` in the query to `bos` in the key

A match scores near 1, in units of the sharpness, another token at most the product of two words;
`rest` is between the two, so that a query without a match attends to BOS. With the
leak at most `l`, s_j between s_low and s_high, words alike up to `r`, and positions that turn a
product by `e` at most (0 for absolute ones):

    match >= s / s_high (1 - l - e),    other <= s / s_low (r + l + e)

and of T keys the right one (BOS if there is no match) gets at least
1 / (1 + exp(-b (match - rest)) + T exp(-b (match - other))), b = sharpness s / s_high, and
1 / (1 + T exp(-b (rest - other))). `rest` makes both alike; `sharpness` makes them MASS.

Values read `token` and are written to `out`, which the unembedding reads, and nothing else does.
BOS has nothing in `token`: a head that attends to it writes nothing, and all logits are 0 before
the first repeat. Idle heads have random W_V and W_O, attend to BOS, and write nothing either.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Generator, Tensor

from interp.circuits.codes import alike, looking_back, token_words, twist
from interp.heads import Head

MASS = 0.9999
"""Attention that every query puts on its targets, if the sharpness is left out."""

MOST_SHARP = 150
"""Highest sharpness that is chosen: beyond, bfloat16 no longer distinguishes scores."""

LOGIT = 30.0
"""Logit of the right next token; another's is at most a quarter of it, and some leak."""


class Layer(NamedTuple):
    """Weights of one layer's heads."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]

    def joined(self) -> list[Float[Tensor, "d_in d_out"]]:
        """One matrix each for the queries, keys, values and outputs of all heads."""
        *inputs, W_O = self
        joined = [rearrange(W, "head d_in d_head -> d_in (head d_head)") for W in inputs]
        return [*joined, rearrange(W_O, "head d_head d_out -> (head d_head) d_out")]


@dataclass
class Plan:
    """One circuit: what absolute and rotary positions share.

    Arguments are those of `build_circuit`, and `bits`: code words have N = 2^bits - 1 numbers.

    Attributes:
        place_share: Share of the stream's square size that absolute positions have.
        content: Dimensions of a head in which words are compared.
        kernel: Product of two positions by their distance (`interp.circuits.codes`).
        turn: Largest change of the product of two words by positions.
    """

    bits: int
    vocabulary: int
    length: int
    bos: int = 0
    kv_heads: int = 2
    previous: bool = True
    match: bool = True
    blur: float = 0.0
    wrong_copy: float = 0.0
    seed: int = 0

    family: ClassVar[str]
    n_heads: ClassVar[int]
    place_share: ClassVar[float]
    previous_head: ClassVar[Head]
    induction_head: ClassVar[Head]

    def __post_init__(self) -> None:
        self.m = 2**self.bits
        self.N, self.d_model = self.m - 1, 8 * self.m
        self.d_head = self.d_model // self.n_heads
        self.alpha_one = math.sqrt(self.m)
        self.alpha_place = math.sqrt(self.d_model * self.place_share)
        self.alpha_token = math.sqrt(self.d_model * (7 / 8 - self.place_share))
        self.gamma = self.alpha_token / 2
        self.cos = math.sqrt(self.m / self.d_model)
        self.sin = math.sqrt(1 - self.cos**2)
        self.s = math.sqrt(1 + self.gamma**2 / self.d_model)
        self.generator = Generator().manual_seed(self.seed)
        self.turn = 0.0
        self.content: Int[Tensor, " N"]
        self.kernel: Float[Tensor, " distance"]

    def settings(self) -> dict[str, Any]:
        """The configuration that both families share."""
        return {
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.length,
            "hidden_size": self.d_model,
            "num_attention_heads": self.n_heads,
            "tie_word_embeddings": False,
        }

    def needed(self) -> float | None:
        """The sharpness that keeps the promise of MASS in both layers; None if it is too high.

        In layer 0 it is that of the longest row, which has the most keys.
        """
        candidates = torch.arange(1, MOST_SHARP + 1)
        back = torch.softmax(candidates[:, None] * looking_back(self.kernel, (1.0, 0.0)), -1)
        enough = candidates[back[:, 1] >= MASS].tolist()
        match, other, least = self._margins()
        lost = math.log(2 / (1 - MASS))
        to_match = (2 * lost + math.log(self.length)) / (least * (match - other))
        if not enough or to_match > MOST_SHARP:
            return None
        return float(math.ceil(max(enough[0], to_match)))

    def layers(self, sharpness: float) -> list[Layer]:
        """The weights of both layers."""
        # The factor of queries and of keys of unit vectors that gives scores of `sharpness` nats.
        self.sharpness, self.root = sharpness, math.sqrt(sharpness * math.sqrt(self.d_head))
        self._make_stream()
        first, second = self.idle(), self.idle()
        if self.previous:
            read, write = self.token.T / self.alpha_token, self.gamma * self.written
            self._carry(first, self.previous_head, read, write)
            self._look_back(first)
        self._match(second)
        read, write = self.s / self.alpha_token * self.token.T, self.alpha_token * self.out
        self._carry(second, self.induction_head, read, write)
        return [first, second]

    def key_value_head(self, head: Head) -> int:
        """The key-value head that a query head reads."""
        return head.head // (self.n_heads // self.kv_heads)

    def embedding(self) -> Float[Tensor, "vocabulary d_model"]:
        """W_E: each token's word and `one`; for BOS its own direction."""
        W_E = self.alpha_token * self.words @ self.token + self.alpha_one * self.one
        W_E[self.bos] += self.alpha_token * self.mark
        return W_E

    def unembedding(self) -> Float[Tensor, "vocabulary d_model"]:
        """W_U transposed: each token's word in `out`; another's where the copy is wrong."""
        s = math.sqrt(self.s**2 + self.alpha_token**2 / self.d_model)
        outputs = torch.arange(self.vocabulary)
        tokens = outputs[outputs != self.bos]
        order = torch.randperm(len(tokens), generator=self.generator)
        wrong = tokens[order[: round(self.wrong_copy * len(tokens))]]
        outputs[wrong] = wrong.roll(1)
        return LOGIT * s / self.alpha_token * self.words[outputs] @ self.out

    def _make_stream(self) -> None:
        """Draw the frame and the tokens' words."""
        N, m, d = self.N, self.m, self.d_model
        first = torch.ones(d, 1, dtype=torch.double)
        drawn = torch.randn(d, d - 1, generator=self.generator, dtype=torch.double)
        frame = torch.linalg.qr(torch.cat([first, drawn], 1)).Q.T[1:]
        sizes = [1, 1, N, N, N, m, d - 1 - 2 - 3 * N - m]
        one, mark, self.token, self.before, self.out, self.place, self.spare = frame.split(sizes)
        self.one, self.mark, self.frame = one[0], mark[0], frame
        spare = [self.spare] if self.alpha_place else [self.spare, self.place]
        self.empty_at_bos = torch.cat([self.token, self.before, self.out, *spare])
        words = token_words(self.bits, self.vocabulary - 1, self.generator)
        none = torch.zeros(1, N, dtype=torch.double)
        self.words = torch.cat([words[: self.bos], none, words[self.bos :]])
        self.written = self.cos * twist(self.bits)[:, None] * self.token + self.sin * self.before

    def _margins(self) -> tuple[float, float, float]:
        """Least match and highest other score, in units of the sharpness, and least s / s_i."""
        likest, twisted = alike(self.bits, self.vocabulary - 1)
        leak = self.cos / 2 * twisted
        cross = 2 * self.gamma * self.alpha_token * self.cos * twisted / self.d_model
        low, high = (math.sqrt(self.s**2 + sign * cross) for sign in (-1, 1))
        match = self.s / high * (1 - leak - self.turn)
        other = self.s / low * (max(likest, 0) + leak + self.turn)
        return match, other, self.s / high

    def idle(self) -> Layer:
        """A layer of heads that attend to BOS, by the last dimension, and write nothing."""
        d, size = self.d_model, self.d_head
        W_Q = torch.zeros(self.n_heads, d, size, dtype=torch.double)
        W_K = torch.zeros(self.kv_heads, d, size, dtype=torch.double)
        W_Q[..., -1] = self.root / self.alpha_one * self.one
        W_K[..., -1] = self.root / self.alpha_token * self.mark
        W_V = torch.stack([self._some(self.empty_at_bos).T for _ in range(self.kv_heads)])
        W_O = torch.stack([self._some(self.frame) for _ in range(self.n_heads)])
        return Layer(W_Q, W_K, W_V / self.alpha_token, self.gamma * W_O)

    def _some(self, space: Float[Tensor, "dim d_model"]) -> Float[Tensor, "d_head d_model"]:
        """Random orthonormal directions within a space."""
        drawn = torch.randn(len(space), self.d_head, generator=self.generator, dtype=torch.double)
        return einsum(torch.linalg.qr(drawn).Q, space, "dim n, dim d -> n d")

    def _look_back(self, layer: Layer) -> None:
        """Set queries and keys of the previous-token head."""
        raise NotImplementedError

    def _match(self, layer: Layer) -> None:
        """Set queries and keys of the induction head."""
        match, other, least = self._margins()
        # The score of BOS, in units of the sharpness: as sure with a match as without.
        rest = (match + other + math.log(self.length) / (least * self.sharpness)) / 2
        rest = self.root * math.sqrt(rest)
        W_Q = layer.W_Q[self.induction_head.head]
        W_K = layer.W_K[self.key_value_head(self.induction_head)]
        W_Q[:, -1] = rest * self.s / self.alpha_one * self.one
        W_K[:, -1] = rest / self.alpha_token * self.mark
        W_K[:, self.content] = self.root * self.s / (self.gamma * self.sin) * self.before.T
        if self.match:
            W_Q[:, self.content] = self.root * self.s / self.alpha_token * self.token.T

    def _carry(self, layer: Layer, head: Head, read: Tensor, write: Tensor) -> None:
        """Let `head` do nothing but `read` from the position it attends to and `write` here."""
        kv = self.key_value_head(head)
        layer.W_V[kv], layer.W_O[head.head] = 0, 0
        layer.W_V[kv, :, : self.N] = read
        layer.W_O[head.head, : self.N] = write
