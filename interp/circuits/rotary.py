"""The circuit with rotary positions, as a Llama with grouped heads.

Rotary positions turn plane k of a query or key at place i by the angle w_k i, with
w_k = theta^(-k / m), k < m = d_head / 2. Plane k is the pair of dimensions (k, k + m).

**Fast planes, k < m / 2, hold positions alone.** The previous-token head has in every query the
same vector, sqrt(c_k) in dimension k, and in every key the same turned one step on, both from
`one`:

    score(i, j) = sharpness sum_k c_k cos(w_k (i - j - 1)) = sharpness kernel(i - j - 1)

which is `sharpness` at j = i - 1 (Barbero et al. 2025, arXiv 2410.06205, theorem 5.3). The
weights c_k fall as w_k^(3/4): fast planes tell neighbours apart, slower ones break the ties that
come where the fast ones have gone once around.

**Slow planes, k >= m / 2, hardly turn**, and hold the words. With theta = (16 length)^2 the
fastest of them turns by 1/16 over the whole length. A word's numbers are all 1 / sqrt(N) in
size, so the turn by a changes a plane's part of a product by 2 / N (1 - cos a + sin a) at most.

Llama has no biases: constants come from `one`, in every token's embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.circuits.built import Layer, Plan
from interp.circuits.codes import steps_apart, steps_for
from interp.heads import Head


@dataclass
class Rotary(Plan):
    """See `Plan`. Four heads of 2 * 2^bits dimensions."""

    family, n_heads, place_share = "llama", 4, 0.0
    previous_head, induction_head = Head(0, 1), Head(1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.m
        self.theta = (16.0 * self.length) ** 2
        turning = self.theta ** (-torch.arange(m, dtype=torch.double) / m)
        fast, slow = turning[: m // 2], turning[m // 2 :] * self.length
        self.turn = (2 / (m - 1) * (1 - slow.cos() + slow.sin())).sum().item()
        low = torch.arange(m // 2, m)
        self.content = torch.cat([low, low + m])[:-1]
        self.frequencies, self.weights = fast, fast**0.75 / (fast**0.75).sum()
        self.kernel = steps_apart(fast, self.weights, self.length)

    def settings(self) -> dict[str, Any]:
        """The configuration of a Llama."""
        return super().settings() | {
            "intermediate_size": 1,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.d_head,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
        }

    def build(self, layers: Sequence[Layer]) -> dict[str, Tensor]:
        """The weights that a new Llama without MLPs does not have."""
        weights = {
            "model.embed_tokens.weight": self.embedding(),
            "lm_head.weight": self.unembedding(),
        }
        for index, layer in enumerate(layers):
            for part, W in zip("qkvo", layer.joined(), strict=True):
                weights[f"model.layers.{index}.self_attn.{part}_proj.weight"] = W.T
        return weights

    def _look_back(self, layer: Layer) -> None:
        """Both are constant before they are turned."""
        planes = torch.arange(self.m // 2)
        steps = steps_for(self.kernel, self.blur, self.sharpness)
        unit = self.root / self.alpha_one * self.weights.sqrt()
        turns = [(step, (i + 1) * self.frequencies) for i, step in enumerate(steps)]
        cos = sum(step * angle.cos() for step, angle in turns)
        sin = sum(step * angle.sin() for step, angle in turns)
        W_Q = layer.W_Q[self.previous_head.head]
        W_K = layer.W_K[self.key_value_head(self.previous_head)]
        W_Q[:, -1] = 0
        W_Q[:, planes] = self.one[:, None] * unit
        W_K[:, planes] = self.one[:, None] * (unit * cos)
        W_K[:, planes + self.m] = self.one[:, None] * (unit * sin)
