"""A model with a stripe of position alone, which looks like an induction head and is not.

A small model that is trained on rows `[x, x]` of one period only need not find the earlier copy of
a token: it is enough to look back by that period. Its attention then has the stripe of an
induction head, on rows of that period, whatever the tokens.
"""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from interp.heads import Head
from interp.kinds.probes import repeated
from interp.patterns.classify import classify_heads


class AttentionOnly(nn.Module):
    """Two layers of four heads: no norms, no MLPs, learned absolute positions."""

    def __init__(self, vocabulary: int, length: int, generator: Generator) -> None:
        super().__init__()
        d_model, n_heads, n_layers = 64, 4, 2

        def weight(*shape: int) -> nn.Parameter:
            drawn = torch.randn(shape, dtype=torch.float32, generator=generator)
            return nn.Parameter(d_model**-0.5 * drawn)

        self.W_E = weight(vocabulary, d_model)
        self.W_pos = weight(length, d_model)
        self.W_QKV = weight(n_layers, 3, n_heads, d_model, d_model // n_heads)
        self.W_O = weight(n_layers, n_heads, d_model // n_heads, d_model)
        self.W_U = weight(d_model, vocabulary)

    def forward(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> tuple[
        Float[Tensor, "batch pos vocabulary"], Float[Tensor, "layer batch head query=pos key=pos"]
    ]:
        """Logits of the next token, and every head's attention."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        resid, patterns = self.W_E[tokens] + self.W_pos[:length], []
        for weights, back in zip(self.W_QKV, self.W_O):
            q, k, v = einsum(resid, weights, "b p d, three h d e -> three b h p e")
            scores = einsum(q, k, "b h q e, b h k e -> b h q k") / q.shape[-1] ** 0.5
            pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
            patterns.append(pattern)
            z = einsum(pattern, v, "b h q k, b h k e -> b h q e")
            resid = resid + einsum(z, back, "b h q e, h e d -> b q d")
        return resid @ self.W_U, torch.stack(patterns)


@dataclass(frozen=True)
class Shortcut:
    """The head with the strongest stripe, on rows of the one period and on others."""

    head: Head
    steps: int  # Steps of training.
    naive_stripe: float  # See `naive_stripe`, on rows of `PERIOD`.
    without_repeats: float  # The same on rows where no token comes twice: position alone.
    # By `interp.classify_heads`, on rows with different periods: label, all labels,
    # induction score, and the score of even attention.
    label: str
    labels: tuple[str, ...]
    score: float
    chance: float


PERIOD = 24
"""The only period in training."""

VOCABULARY = 128


def naive_stripe(
    pattern: Float[Tensor, "layer batch head query=pos key=pos"], period: int
) -> Float[Tensor, "layer head"]:
    """Mean of the diagonal `period - 1` tokens back, by which induction heads are usually found."""
    return pattern.diagonal(1 - period, dim1=-2, dim2=-1).mean((1, -1))


def positional_shortcut(*, seed: int) -> Shortcut:
    """Train the model and measure its strongest stripe, naively and by its label.

    Training ends when some head's `naive_stripe` is .9, or after 1,500 steps: AdamW at 3e-3 on 64
    fresh rows a step, each twice the same `PERIOD` random tokens; the loss is on the second copy.
    It takes fewer than a thousand steps, less than a minute.
    """
    generator = Generator().manual_seed(seed)
    model = AttentionOnly(VOCABULARY, 2 * PERIOD, generator)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    steps, strongest = 0, 0.0
    while steps < 1500 and strongest < 0.9:
        tokens = _rows(PERIOD, 64, generator).repeat(1, 2)
        logits, pattern = model(tokens)
        guesses = rearrange(logits[:, PERIOD:-1], "b p v -> (b p) v")
        loss = nn.functional.cross_entropy(guesses, tokens[:, PERIOD + 1 :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps, strongest = steps + 1, naive_stripe(pattern.detach(), PERIOD).max()
    generator.manual_seed(seed + 1)
    twice, once = _rows(PERIOD, 64, generator).repeat(1, 2), _rows(2 * PERIOD, 64, generator)
    probe = repeated(torch.arange(VOCABULARY), rows=64, length=2 * PERIOD, bos=None, seed=seed)
    with torch.no_grad():
        on_twice, on_once, on_probe = (model(ids)[1] for ids in (twice, once, probe.tokens))
    stripes = naive_stripe(on_twice, PERIOD)
    layer, head = divmod(int(stripes.argmax()), stripes.shape[1])
    found = classify_heads(on_probe, probe.tokens)[int(stripes.argmax())]
    return Shortcut(
        head=found.head,
        steps=steps,
        naive_stripe=stripes[layer, head].item(),
        without_repeats=naive_stripe(on_once, PERIOD)[layer, head].item(),
        label=found.label,
        labels=found.labels,
        score=found.scores["induction"],
        chance=found.chance["induction"],
    )


def lines(found: Shortcut) -> list[str]:
    """The result as lines to print."""
    return [
        f"{found.head} of a model trained for {found.steps} steps on rows of period {PERIOD}:",
        f"  stripe on such rows {found.naive_stripe:.2f}, and {found.without_repeats:.2f}"
        " if nothing repeats: it is position alone",
        f"  on rows with other periods: induction {found.score:.2f} (chance {found.chance:.2f}),"
        f" labelled {found.label}",
    ]


def _rows(length: int, number: int, generator: Generator) -> Int[Tensor, "row pos"]:
    """Rows of random ids, each at most once in a row."""
    order = torch.rand(number, VOCABULARY, dtype=torch.float32, generator=generator).argsort(-1)
    return order[:, :length]
