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

import torch

from interp.circuits.built import Built, Heads, Parts, Plan, side_by_side, stacked
from interp.circuits.codes import steps_apart, steps_for
from interp.heads import Head

PREVIOUS, INDUCTION = Head(0, 1), Head(1, 2)

NUMBER = 4
"""Query heads, each of 2 * 2^bits dimensions."""


class Rotary(Plan):
    """See `Plan`. Four heads of 2 * 2^bits dimensions, on `kv` key-value heads."""

    def __init__(
        self, bits: int, vocabulary: int, length: int, bos: int, kv: int, parts: Parts, seed: int
    ) -> None:
        m = 2**bits
        self.theta = (16.0 * length) ** 2
        turning = self.theta ** (-torch.arange(m, dtype=torch.double) / m)
        fast, slow = turning[: m // 2], turning[m // 2 :] * length
        turn = (2 / (m - 1) * (1 - slow.cos() + slow.sin())).sum().item()
        low = torch.arange(m // 2, m)
        content = torch.cat([low, low + m])[:-1]
        heads = Heads(NUMBER, kv, 2 * m, content=content, rest=2 * m - 1, turn=turn)
        super().__init__(bits, vocabulary, length, bos, 0.0, heads, parts, seed)
        self.frequencies, self.weights = fast, fast**0.75 / (fast**0.75).sum()
        self.kernel = steps_apart(fast, self.weights, length)

    def build(self, sharpness: float) -> Built:
        """All weights."""
        self.make_stream()
        first, second = self.idle(sharpness), self.induction(sharpness, INDUCTION)
        if self.parts.previous:
            self._look_back(
                first.W_Q[PREVIOUS.head], first.W_K[self.heads.owner(PREVIOUS)], sharpness
            )
            self.write_previous(first, PREVIOUS)
        d = self.d_model
        weights = {
            "model.embed_tokens.weight": self.embedding(),
            "model.norm.weight": torch.ones(d),
            "lm_head.weight": self.unembedding(),
        }
        for index, layer in enumerate((first, second)):
            within = {
                "input_layernorm.weight": torch.ones(d),
                "self_attn.q_proj.weight": side_by_side(layer.W_Q).T,
                "self_attn.k_proj.weight": side_by_side(layer.W_K).T,
                "self_attn.v_proj.weight": side_by_side(layer.W_V).T,
                "self_attn.o_proj.weight": stacked(layer.W_O).T,
                "post_attention_layernorm.weight": torch.ones(d),
                "mlp.gate_proj.weight": torch.zeros(1, d),
                "mlp.up_proj.weight": torch.zeros(1, d),
                "mlp.down_proj.weight": torch.zeros(d, 1),
            }
            weights |= {f"model.layers.{index}.{name}": W for name, W in within.items()}
        settings = {
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.length,
            "hidden_size": d,
            "intermediate_size": 1,
            "num_hidden_layers": 2,
            "num_attention_heads": self.heads.number,
            "num_key_value_heads": self.heads.kv,
            "head_dim": self.heads.size,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "tie_word_embeddings": False,
        }
        return self.built("llama", settings, weights, PREVIOUS, INDUCTION, sharpness)

    def _look_back(self, W_Q: torch.Tensor, W_K: torch.Tensor, sharpness: float) -> None:
        """Set the previous-token head's queries and keys, both constant before they are turned."""
        planes = torch.arange(self.m // 2)
        steps = steps_for(self.kernel, self.parts.blur, sharpness)
        unit = self.root(sharpness) / self.alpha_one * self.weights.sqrt()
        turns = [(step, (i + 1) * self.frequencies) for i, step in enumerate(steps)]
        cos = sum(step * angle.cos() for step, angle in turns)
        sin = sum(step * angle.sin() for step, angle in turns)
        W_Q[:, self.heads.rest] = 0
        W_Q[:, planes] = self.one[:, None] * unit
        W_K[:, planes] = self.one[:, None] * (unit * cos)
        W_K[:, planes + self.m] = self.one[:, None] * (unit * sin)
