"""The circuit with learned absolute positions, as a GPT-2.

Places are cosines and sines, `place(i) = (cos w_k i, sin w_k i) / sqrt(K)` for K frequencies
spread over (0, pi) with a random jitter, so that no distance within the length looks like
another. The previous-token head compares the query's place with the key's place *one step on*,
which turns each of the K planes by its w_k:

    score(i, j) = sharpness place(i) . place(j + 1) = sharpness kernel(i - j - 1)

It is `sharpness` at j = i - 1, and lower everywhere else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.built import Layer, Plan
from interp.circuits.codes import steps_apart, steps_for
from interp.heads import Head


@dataclass
class Absolute(Plan):
    """See `Plan`. Eight heads of 2^bits dimensions."""

    kv_heads: int = 8
    family, n_heads, place_share = "gpt2", 8, 3 / 8
    previous_head, induction_head = Head(0, 3), Head(1, 5)

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.m
        self.content = torch.arange(m - 1)
        jitter = torch.rand(m // 2, generator=self.generator, dtype=torch.double)
        self.frequencies = math.pi * (torch.arange(m // 2) + jitter) / (m // 2)
        equal = torch.full_like(self.frequencies, 2 / m)
        self.kernel = steps_apart(self.frequencies, equal, self.length)

    def settings(self) -> dict[str, Any]:
        """The configuration of a GPT-2."""
        return super().settings() | {"n_inner": 1}

    def build(self, layers: Sequence[Layer]) -> dict[str, Tensor]:
        """The weights that a new GPT-2 without MLPs does not have."""
        angles = torch.arange(self.length)[:, None] * self.frequencies
        places = torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(len(self.frequencies))
        weights = {
            "transformer.wte.weight": self.embedding(),
            "transformer.wpe.weight": self.alpha_place * places @ self.place,
            "lm_head.weight": self.unembedding(),
        }
        for index, layer in enumerate(layers):
            *inputs, output = layer.joined()
            weights[f"transformer.h.{index}.attn.c_attn.weight"] = torch.cat(inputs, dim=1)
            weights[f"transformer.h.{index}.attn.c_proj.weight"] = output
        return weights

    def _look_back(self, layer: Layer) -> None:
        here = self.root / self.alpha_place * self.place.T
        steps = steps_for(self.kernel, self.blur, self.sharpness)
        on = steps[0] * self._turned(1) + steps[1] * self._turned(2)
        head = self.previous_head.head
        layer.W_Q[head], layer.W_K[head] = here, here @ on

    def _turned(self, steps: int) -> Float[Tensor, "m m"]:
        """The matrix from the cosines and sines of a place to those of the place `steps` on."""
        turn = steps * self.frequencies
        cos, sin = torch.diag(turn.cos()), torch.diag(turn.sin())
        return torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)])
