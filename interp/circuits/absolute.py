"""The circuit with learned absolute positions, as a GPT-2.

Places are cosines and sines, `place(i) = (cos w_k i, sin w_k i) / sqrt(K)` for K frequencies
spread over (0, pi) with a random jitter, so that no distance within the length looks like
another. The previous-token head compares the query's place with the key's place *one step on*,
which turns each of the K planes by its w_k:

    score(i, j) = sharpness place(i) . place(j + 1) = sharpness kernel(i - j - 1)

It is `sharpness` at j = i - 1, and lower everywhere else.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.built import Built, Heads, Parts, Plan, side_by_side, stacked
from interp.circuits.codes import steps_apart, steps_for
from interp.heads import Head

PREVIOUS, INDUCTION = Head(0, 3), Head(1, 5)


class Absolute(Plan):
    """See `Plan`. Eight heads of 2^bits dimensions."""

    def __init__(
        self, bits: int, vocabulary: int, length: int, bos: int, parts: Parts, seed: int
    ) -> None:
        m = 2**bits
        heads = Heads(8, 8, m, content=torch.arange(m - 1), rest=m - 1)
        super().__init__(bits, vocabulary, length, bos, 3 / 8, heads, parts, seed)
        jitter = torch.rand(m // 2, generator=self.generator, dtype=torch.double)
        self.frequencies = math.pi * (torch.arange(m // 2) + jitter) / (m // 2)
        equal = torch.full_like(self.frequencies, 2 / m)
        self.kernel = steps_apart(self.frequencies, equal, length)

    def build(self, sharpness: float) -> Built:
        """All weights."""
        self.make_stream()
        first, second = self.idle(sharpness), self.induction(sharpness, INDUCTION)
        if self.parts.previous:
            here = self.root(sharpness) / self.alpha_place * self.place.T
            steps = steps_for(self.kernel, self.parts.blur, sharpness)
            on = steps[0] * self._turned(1) + steps[1] * self._turned(2)
            first.W_Q[PREVIOUS.head], first.W_K[PREVIOUS.head] = here, here @ on
            self.write_previous(first, PREVIOUS)
        d = self.d_model
        weights = {
            "transformer.wte.weight": self.embedding(),
            "transformer.wpe.weight": self._places(),
            "transformer.ln_f.weight": torch.ones(d),
            "transformer.ln_f.bias": torch.zeros(d),
            "lm_head.weight": self.unembedding(),
        }
        for index, layer in enumerate((first, second)):
            within = {
                "ln_1.weight": torch.ones(d),
                "ln_1.bias": torch.zeros(d),
                "attn.c_attn.weight": torch.cat(
                    [side_by_side(W) for W in (layer.W_Q, layer.W_K, layer.W_V)], dim=1
                ),
                "attn.c_attn.bias": torch.zeros(3 * d),
                "attn.c_proj.weight": stacked(layer.W_O),
                "attn.c_proj.bias": torch.zeros(d),
                "ln_2.weight": torch.ones(d),
                "ln_2.bias": torch.zeros(d),
                "mlp.c_fc.weight": torch.zeros(d, 1),
                "mlp.c_fc.bias": torch.zeros(1),
                "mlp.c_proj.weight": torch.zeros(1, d),
                "mlp.c_proj.bias": torch.zeros(d),
            }
            weights |= {f"transformer.h.{index}.{name}": W for name, W in within.items()}
        settings = {
            "vocab_size": self.vocabulary,
            "n_positions": self.length,
            "n_embd": d,
            "n_layer": 2,
            "n_head": self.heads.number,
            "n_inner": 1,
            "tie_word_embeddings": False,
        }
        return self.built("gpt2", settings, weights, PREVIOUS, INDUCTION, sharpness)

    def _places(self) -> Float[Tensor, "length d_model"]:
        """W_pos."""
        angles = torch.arange(self.length)[:, None] * self.frequencies
        places = torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(len(self.frequencies))
        return self.alpha_place * places @ self.place

    def _turned(self, steps: int) -> Float[Tensor, "m m"]:
        """The matrix from the cosines and sines of a place to those of the place `steps` on."""
        cos, sin = ((steps * self.frequencies).cos(), (steps * self.frequencies).sin())
        above = torch.cat([torch.diag(cos), torch.diag(sin)], 1)
        return torch.cat([above, torch.cat([-torch.diag(sin), torch.diag(cos)], 1)])
