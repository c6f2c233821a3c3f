"""The four heads designed by hand, on their sentence."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from interp.show.figures.page import Page, paint, pattern_legend
from interp.show.figures.style import styled


def designed_heads(
    words: Sequence[str], patterns: Mapping[str, Float[Tensor, "query key"]], *, window: int
) -> Figure:
    """Attention pattern of each head designed by hand; queries down, keys across, from 0 to 1.

    Args:
        words: Text of each token.
        patterns: Causal pattern of each head, by name (`interp.course.designed.patterns`).
        window: Number of tokens that the local head sees, the query included.
    """
    page = Page(
        "Four heads designed by hand",
        f"Causal attention on “{' '.join(words)}” from W_Q and W_K; the local window has"
        f" {window} tokens.",
        body=3.05,
        notes="noun to pronoun: “it” is the only pronoun, so all other rows are even.",
    )
    with styled():
        for place, (name, pattern) in enumerate(patterns.items()):
            panel = page.panel(0.65 + place * 1.6, 0.25, 1.45, 1.45)
            later = np.triu(np.ones(pattern.shape, dtype=bool), 1)
            paint(panel, np.where(later, np.nan, pattern.numpy()))
            panel.set_title(name)
            panel.set_xticks(range(len(words)), words, rotation=90)
            panel.set_yticks(range(len(words)), words)
            panel.tick_params(labelleft=place == 0)
            panel.set(xlabel="key", ylabel="query" if place == 0 else "")
        page.foot("attention weight", pattern_legend(causal=True))
    return page.figure
