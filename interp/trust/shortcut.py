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
    """The head with the strongest stripe, on rows of the one period and on others.

    Attributes:
        head: Its name.
        steps: Steps of training.
        naive_stripe: Mean attention `period - 1` tokens back on rows of that period, the usual
            measure: the mean of one diagonal of the pattern.
        without_repeats: The same on rows in which no token comes twice: a stripe there is
            position alone.
        label: Label by `interp.classify_heads`, on rows that each have a period of their own.
        labels: All labels there.
        score: The induction score there.
        chance: The score of even attention there.
    """

    head: Head
    steps: int
    naive_stripe: float
    without_repeats: float
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


def train_on_one_period(*, seed: int) -> tuple[AttentionOnly, int]:
    """Train until some head's `naive_stripe` is .9, or for 1,500 steps.

    AdamW at 3e-3 on 64 fresh rows a step, each twice the same `PERIOD` random tokens; the loss
    is on the second copy. It takes fewer than a thousand steps, less than a minute.

    Returns:
        The model, and the number of steps.
    """
    generator = Generator().manual_seed(seed)
    model = AttentionOnly(VOCABULARY, 2 * PERIOD, generator)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(1, 1501):
        tokens = _rows(PERIOD, 64, generator).repeat(1, 2)
        logits, pattern = model(tokens)
        guesses = rearrange(logits[:, PERIOD:-1], "b p v -> (b p) v")
        loss = nn.functional.cross_entropy(guesses, tokens[:, PERIOD + 1 :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if naive_stripe(pattern.detach(), PERIOD).max() >= 0.9:
            return model, step
    return model, 1500


def positional_shortcut(*, seed: int) -> Shortcut:
    """Train the model and measure its strongest stripe, naively and by its label."""
    model, steps = train_on_one_period(seed=seed)
    generator = Generator().manual_seed(seed + 1)
    twice, once = _rows(PERIOD, 64, generator).repeat(1, 2), _rows(2 * PERIOD, 64, generator)
    probe = repeated(torch.arange(VOCABULARY), rows=64, length=2 * PERIOD, bos=None, seed=seed)
    with torch.no_grad():
        on_twice, on_once, on_probe = (model(ids)[1] for ids in (twice, once, probe.tokens))
    stripes = naive_stripe(on_twice, PERIOD)
    layer, head = divmod(int(stripes.argmax()), stripes.shape[1])
    verdicts = classify_heads(on_probe, probe.tokens)
    found = next(verdict for verdict in verdicts if verdict.head == Head(layer, head))
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
        f"{found.head} of a model trained for {found.steps} steps on rows of period"
        f" {PERIOD} alone:",
        f"  stripe on such rows {found.naive_stripe:.2f}, and"
        f" {found.without_repeats:.2f} if nothing repeats: it is position alone",
        f"  on rows with periods of their own: induction {found.score:.2f}"
        f" (chance {found.chance:.2f}), labelled {found.label}",
    ]


def _rows(length: int, number: int, generator: Generator) -> Int[Tensor, "row pos"]:
    """Rows of random ids, each at most once in a row."""
    order = torch.rand(number, VOCABULARY, dtype=torch.float32, generator=generator).argsort(-1)
    return order[:, :length]
