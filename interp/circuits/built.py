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
from typing import Annotated, Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from pydantic import Field
from torch import Generator, Tensor

from interp.circuits.codes import alike, sharpness_to_look_back, token_words, twist
from interp.heads import Head

MASS = 0.9999
"""Attention that every query puts on its targets, if the sharpness is left out."""

MOST_SHARP = 150
"""Highest sharpness that is chosen: beyond, bfloat16 no longer distinguishes scores."""

BITS = (5, 6, 7, 8)
"""Code words have 2^bits - 1 numbers, and the stream 8 * 2^bits."""

LONGEST = 4096
"""Most positions."""

LOGIT = 30.0
"""Logit of the right next token; another's is at most a quarter of it, and some leak."""

Share = Annotated[float, Field(strict=True, ge=0, le=1)]


@dataclass(frozen=True)
class Parts:
    """The parts of the circuit, and their faults.

    Attributes:
        previous: Whether there is a previous-token head; without, it is one more idle head.
        match: Whether layer 1 compares tokens; without, its head always attends to BOS.
        blur: Share of the previous-token head's attention that goes two tokens back instead,
            from 0 to 1, where rows are long enough for that.
        wrong_copy: Share of the tokens that are copied as another one, from 0 to 1: the attention
            is right, the output is not. With 1 every token is.
    """

    previous: bool = True
    match: bool = True
    blur: float | int = 0.0
    wrong_copy: float | int = 0.0


@dataclass(frozen=True)
class Built:
    """A circuit as weights, by the names that transformers gives them.

    Attributes:
        family: `gpt2` or `llama`.
        settings: Configuration of that family.
        weights: All of them.
        bos: Id of the sink.
        previous: The previous-token head.
        induction: The induction head.
        sharpness: Score, in nats, of the right key, before the softmax.
        bits: Code words have 2^bits - 1 numbers.
        parts: Parts and faults.
    """

    family: str
    settings: dict[str, Any]
    weights: dict[str, Float[Tensor, "..."]]
    bos: int
    previous: Head
    induction: Head
    sharpness: float
    bits: int
    parts: Parts


@dataclass(frozen=True)
class Layer:
    """Weights of one layer's heads."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "kv_head d_model d_head"]
    W_V: Float[Tensor, "kv_head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]


@dataclass(frozen=True)
class Heads:
    """The layout of a layer's heads.

    Attributes:
        number: Number of query heads.
        kv: Number of key-value heads, each for as many query heads in turn.
        size: d_head.
        content: Dimensions of a head in which words are compared.
        rest: The dimension in which `one` meets `bos`.
        turn: Largest change of the product of two words by positions.
    """

    number: int
    kv: int
    size: int
    content: Int[Tensor, " N"]
    rest: int
    turn: float = 0.0

    def owner(self, head: Head) -> int:
        """The key-value head that a query head reads."""
        return head.head // (self.number // self.kv)


class Plan:
    """The stream of one circuit, and the heads that do not depend on the kind of positions.

    Args:
        bits: Code words have N = 2^bits - 1 numbers.
        vocabulary: Number of ids, BOS among them.
        length: Number of positions.
        bos: Id of the sink.
        place: Share of the stream's square size that absolute positions have.
        heads: Layout of the heads.
        parts: Parts and faults.
        seed: Seed of frame, words, and idle heads.

    Attributes:
        kernel: Product of two positions by their distance (`interp.circuits.codes`).
    """

    kernel: Float[Tensor, " distance"]

    def __init__(
        self,
        bits: int,
        vocabulary: int,
        length: int,
        bos: int,
        place: float,
        heads: Heads,
        parts: Parts,
        seed: int,
    ) -> None:
        self.vocabulary, self.length, self.bos = vocabulary, length, bos
        self.bits, self.heads, self.parts = bits, heads, parts
        self.m = 2**bits
        self.d_model = 8 * self.m
        self.alpha_one = math.sqrt(self.d_model / 8)
        self.alpha_place = math.sqrt(self.d_model * place)
        self.alpha_token = math.sqrt(self.d_model * (7 / 8 - place))
        self.gamma = self.alpha_token / 2
        self.cos = math.sqrt(self.m / self.d_model)
        self.sin = math.sqrt(1 - self.cos**2)
        self.s = math.sqrt(1 + self.gamma**2 / self.d_model)
        self.generator = Generator().manual_seed(seed)

    def make_stream(self) -> None:
        """Draw the frame and the tokens' words."""
        N, m, d = self.m - 1, self.m, self.d_model
        first = torch.ones(d, 1, dtype=torch.double)
        drawn = torch.randn(d, d - 1, generator=self.generator, dtype=torch.double)
        frame = torch.linalg.qr(torch.cat([first, drawn], 1)).Q.T[1:]
        sizes = [1, 1, N, N, N, m, d - 1 - 2 - 3 * N - m]
        one, mark, self.token, self.before, self.out, self.place, spare = frame.split(sizes)
        self.one, self.mark, self.frame = one[0], mark[0], frame
        spare = [spare] if self.alpha_place else [spare, self.place]
        self.empty_at_bos = torch.cat([self.token, self.before, self.out, *spare])
        words = token_words(self.bits, self.vocabulary - 1, self.generator)
        none = torch.zeros(1, N, dtype=torch.double)
        self.words = torch.cat([words[: self.bos], none, words[self.bos :]])
        self.written = self.cos * twist(self.bits)[:, None] * self.token
        self.written = self.written + self.sin * self.before

    def margins(self) -> tuple[float, float, float]:
        """The least score of a match and the most of another key, and the least s / s_i.

        In units of the sharpness, as derived above.
        """
        likest, twisted = alike(self.bits, self.vocabulary - 1)
        leak = self.cos / 2 * twisted
        cross = 2 * self.gamma * self.alpha_token * self.cos * twisted / self.d_model
        low, high = (math.sqrt(self.s**2 + sign * cross) for sign in (-1, 1))
        match = self.s / high * (1 - leak - self.heads.turn)
        other = self.s / low * (max(likest, 0) + leak + self.heads.turn)
        return match, other, self.s / high

    def sharpness_to_match(self) -> float:
        """The sharpness at which layer 1 keeps the promise of MASS."""
        match, other, least = self.margins()
        lost = math.log(2 / (1 - MASS))
        return (2 * lost + math.log(self.length)) / (least * (match - other))

    def needed(self) -> float | None:
        """The sharpness that keeps the promise in both layers; None if it is too high."""
        first = sharpness_to_look_back(self.kernel, MASS, MOST_SHARP)
        if first is None or self.sharpness_to_match() > MOST_SHARP:
            return None
        return float(math.ceil(max(first, self.sharpness_to_match())))

    def rest(self, sharpness: float) -> float:
        """The score of BOS, in units of the sharpness: as sure with a match as without."""
        match, other, least = self.margins()
        return (match + other + math.log(self.length) / (least * sharpness)) / 2

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
        wrong = torch.randperm(len(tokens), generator=self.generator)
        wrong = tokens[wrong[: round(self.parts.wrong_copy * len(tokens))]]
        outputs[wrong] = wrong.roll(1)
        return LOGIT * s / self.alpha_token * self.words[outputs] @ self.out

    def root(self, sharpness: float) -> float:
        """The factor of queries and of keys of unit vectors that gives scores of `sharpness`."""
        return math.sqrt(sharpness * math.sqrt(self.heads.size))

    def idle(self, sharpness: float) -> Layer:
        """A layer of heads that attend to BOS and write nothing."""
        heads, d = self.heads, self.d_model
        W_Q = torch.zeros(heads.number, d, heads.size, dtype=torch.double)
        W_K = torch.zeros(heads.kv, d, heads.size, dtype=torch.double)
        W_Q[:, :, heads.rest] = self.root(sharpness) / self.alpha_one * self.one
        W_K[:, :, heads.rest] = self.root(sharpness) / self.alpha_token * self.mark
        nothing = self.empty_at_bos
        W_V = torch.stack([self._some(nothing, heads.size).T for _ in range(heads.kv)])
        W_O = torch.stack([self._some(self.frame, heads.size) for _ in range(heads.number)])
        return Layer(W_Q, W_K, W_V / self.alpha_token, self.gamma * W_O)

    def write_previous(self, layer: Layer, head: Head) -> None:
        """Let `head` write the word of the token it attends to, in the space `written`."""
        N, kv = self.m - 1, self.heads.owner(head)
        layer.W_V[kv], layer.W_O[head.head] = 0, 0
        layer.W_V[kv, :, :N] = self.token.T / self.alpha_token
        layer.W_O[head.head, :N] = self.gamma * self.written

    def induction(self, sharpness: float, head: Head) -> Layer:
        """Layer 1: `head` matches and copies, the others are idle."""
        layer, heads, root = self.idle(sharpness), self.heads, self.root(sharpness)
        kv, N = heads.owner(head), self.m - 1
        rest = root * math.sqrt(self.rest(sharpness))
        layer.W_Q[head.head, :, heads.rest] = rest * self.s / self.alpha_one * self.one
        layer.W_K[kv, :, heads.rest] = rest / self.alpha_token * self.mark
        layer.W_K[kv][:, heads.content] = root * self.s / (self.gamma * self.sin) * self.before.T
        if self.parts.match:
            query = root * self.s / self.alpha_token * self.token.T
            layer.W_Q[head.head][:, heads.content] = query
        layer.W_V[kv], layer.W_O[head.head] = 0, 0
        layer.W_V[kv, :, :N] = self.s / self.alpha_token * self.token.T
        layer.W_O[head.head, :N] = self.alpha_token * self.out
        return layer

    def built(
        self,
        family: str,
        settings: dict[str, Any],
        weights: dict[str, Tensor],
        previous: Head,
        induction: Head,
        sharpness: float,
    ) -> Built:
        """The circuit of this plan, its weights in float32."""
        return Built(
            family=family,
            settings=settings,
            weights={name: W.float().contiguous() for name, W in weights.items()},
            bos=self.bos,
            previous=previous,
            induction=induction,
            sharpness=sharpness,
            bits=self.bits,
            parts=self.parts,
        )

    def _some(
        self, space: Float[Tensor, "dim d_model"], number: int
    ) -> Float[Tensor, "number d_model"]:
        """Random orthonormal directions within a space."""
        drawn = torch.randn(len(space), number, generator=self.generator, dtype=torch.double)
        return einsum(torch.linalg.qr(drawn).Q, space, "dim n, dim d -> n d")


def side_by_side(W: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "d_model d_out"]:
    """One matrix for all heads, as transformers keeps them."""
    return rearrange(W, "h d e -> d (h e)")


def stacked(W: Float[Tensor, "head d_head d_model"]) -> Float[Tensor, "d_in d_model"]:
    """One matrix for the outputs of all heads, as transformers keeps them."""
    return rearrange(W, "h e d -> (h e) d")
