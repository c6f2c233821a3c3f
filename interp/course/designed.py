"""Four heads designed by hand on a sentence: W_Q and W_K whose patterns are known.

The row of X for a token has these blocks: a constant 1; whether it is the first token, a noun,
a pronoun; its position; and which word it is, one-hot. Position i of n is a point on a circle of
2 n steps, `p_i = (cos t i, sin t i)` with `t = pi / n`, so that no two positions are further apart
than half a turn. The heads compute these scores:

    previous token   b p_(i-1) . p_j = b cos(t (i - 1 - j))     a rotation by one step back
    local window     the same, by (w - 1) / 2 steps back        and far less sharp
    noun to pronoun  b pronoun_i noun_j                         a matrix of rank one
    sink             b 1 first_j                                a matrix of rank one

The rotation works since `p_(i-1) = p_i R`, with the same R for every i: the head needs no table of
positions. A query with a score of 0 for every key, as any word but a pronoun in the third head,
spreads its attention evenly over all keys.

Heads add up. With one V for all, `sum_h g_h (A_h V) = (sum_h g_h A_h) V`: switches g mix the
patterns, and the mixed pattern determines the output. With a separate V per head it does not:
if two heads swap their values, the mixed pattern is the same but the output is not.
"""

import math
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from interp.attention.multihead import Weights, multi_head_attention
from interp.attention.reference import causal_mask
from interp.errors import InputError

NAMES = ("previous token", "local window", "noun to pronoun", "sink")
"""Names of the heads, in the order of the head axis."""

REST = 0.001
"""Largest share of attention that a sharp head leaves outside its targets."""

ONE, FIRST, NOUN, PRONOUN, PLACE, WORD = 0, 1, 2, 3, slice(4, 6), 6
"""Columns of X; the one-hot words start at WORD."""

D_HEAD = 2


@dataclass(frozen=True)
class Sentence:
    """Words, with the positions of nouns and pronouns.

    Attributes:
        words: Tokens; the first is the beginning of the sequence.
        nouns: Positions of nouns, from 1.
        pronouns: Positions of pronouns, each after a noun.
    """

    words: tuple[str, ...]
    nouns: tuple[int, ...]
    pronouns: tuple[int, ...]

    def __post_init__(self) -> None:
        for place in (*self.nouns, *self.pronouns):
            if not 1 <= place < len(self.words):
                raise InputError(
                    f"nouns and pronouns must be from 1 to {len(self.words) - 1}, got {place}"
                )


EXAMPLE = Sentence(
    ("<s>", "the", "cat", "slept", "because", "it", "was", "tired"), nouns=(2,), pronouns=(5,)
)


def embed(sentence: Sentence) -> Float[Tensor, "pos d_model"]:
    """X, a row per word: constant, first, noun, pronoun, position (2), word (one-hot)."""
    n = len(sentence.words)
    x = torch.zeros(n, WORD + n, dtype=torch.float64)
    x[:, ONE] = 1
    x[0, FIRST] = 1
    x[list(sentence.nouns), NOUN] = 1
    x[list(sentence.pronouns), PRONOUN] = 1
    turn = torch.arange(n, dtype=torch.float64) * math.pi / n
    x[:, PLACE] = torch.stack([turn.cos(), turn.sin()], dim=-1)
    vocabulary = list(dict.fromkeys(sentence.words))
    x[torch.arange(n), [WORD + vocabulary.index(word) for word in sentence.words]] = 1
    return x


def designed_layer(
    sentence: Sentence,
    *,
    window: int,
    gates: Float[Tensor, " head"],
    W_V: Float[Tensor, "heads d_model d_out"] | None = None,
) -> Weights:
    """The four heads as an ordinary layer, for `interp.attention.multihead.multi_head_attention`.

    Run it on `embed(sentence)` under a causal mask. Sharp heads, all but the local one, leave at
    most `REST` of their attention elsewhere: n keys with scores `log(n / REST)` below the
    target's together get no more than that. For the previous token the nearest such key is one
    step of the circle away, `1 - cos t` below. The local head's weights fall by `e^2` from the
    last position inside its window to the first outside.

    Args:
        sentence: Sentence that sets the number of positions.
        window: Number of tokens that the local head looks at, the query itself included.
        gates: Switch of each head, in the order of `NAMES`: a factor of its part of W_O.
        W_V: Values of each head; None: the one-hot word, for all.
    """
    n, heads = len(sentence.words), len(NAMES)
    if not 1 <= window <= n:
        raise InputError(f"window must be from 1 to the number of words, {n}, got {window}")
    if W_V is None:
        W_V = torch.eye(WORD + n, dtype=torch.float64)[:, WORD:].expand(heads, -1, -1)
    step, sharp = math.pi / n, math.log(n / REST)
    edges = [math.cos(step * (window + side) / 2) for side in (-1, 1)]
    W_Q = torch.zeros(heads, WORD + n, D_HEAD, dtype=torch.float64)
    W_K = torch.zeros_like(W_Q)
    W_Q[0, PLACE] = sharp / (1 - math.cos(step)) * _steps_back(step)
    W_Q[1, PLACE] = 2 / (edges[0] - edges[1]) * _steps_back(step * (window - 1) / 2)
    W_K[:2, PLACE] = torch.eye(2, dtype=torch.float64)
    W_Q[2, PRONOUN, 0] = sharp
    W_K[2, NOUN, 0] = 1
    W_Q[3, ONE, 0] = sharp
    W_K[3, FIRST, 0] = 1
    # Attention divides by sqrt(d_head).
    W_Q = W_Q * math.sqrt(D_HEAD)
    side_by_side = "head d_model d -> d_model (head d)"
    out = torch.eye(W_V.shape[-1], dtype=torch.float64)
    return Weights(
        W_Q=rearrange(W_Q, side_by_side),
        W_K=rearrange(W_K, side_by_side),
        W_V=rearrange(W_V, side_by_side),
        W_O=rearrange(gates.double()[:, None, None] * out, "head d d_out -> (head d) d_out"),
        heads=heads,
        kv_heads=heads,
    )


def mixed_pattern(
    pattern: Float[Tensor, "head query key"], gates: Float[Tensor, " head"]
) -> Float[Tensor, "query key"]:
    """`sum_h g_h A_h`, which determines the output if the heads share their values.

    Its rows sum to the sum of the gates, so it is a pattern if they sum to 1.
    """
    return einsum(gates.to(pattern.dtype), pattern, "head, head query key -> query key")


def _steps_back(angle: float) -> Float[Tensor, "2 2"]:
    """R such that `p R` is the point of the circle `angle` before p."""
    cos, sin = math.cos(angle), math.sin(angle)
    return torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)


def patterns(*, window: int = 4) -> dict[str, Float[Tensor, "query key"]]:
    """Causal attention pattern of each designed head on `EXAMPLE`, by name."""
    layer = designed_layer(EXAMPLE, window=window, gates=torch.ones(len(NAMES)))
    mask = causal_mask(len(EXAMPLE.words))
    by_head = multi_head_attention(embed(EXAMPLE)[None], layer, mask=mask).pattern[0]
    return dict(zip(NAMES, by_head, strict=True))
