"""The four heads designed by hand, on their sentence."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from interp.show.figures.page import Page, paint
from interp.show.figures.style import GREY, styled


def designed_heads(
    words: Sequence[str], patterns: Mapping[str, Float[Tensor, "query key"]], *, window: int
) -> Figure:
    """Attention pattern of each head designed by hand; queries down, keys across, from 0 to 1.

    Args:
        words: Text of each token.
        patterns: Causal pattern of each head, by name (`interp.course.designed.patterns`).
        window: How many tokens back the local head looks, the query itself included.
    """
    later = np.triu(np.ones((len(words), len(words)), dtype=bool), 1)
    size, step = 1.45, 1.6
    page = Page(
        "Four heads designed by hand",
        f"What their W_Q and W_K make of “{' '.join(words)}”, causal; local window of {window}.",
        width=7.2,
        body=3.05,
        notes=[
            "Only “it” is a pronoun: in the third head all other rows have equal scores, and so"
            " they are spread evenly."
        ],
    )
    with styled():
        for place, (name, pattern) in enumerate(patterns.items()):
            panel = page.panel(0.65 + place * step, 0.25, size, size)
            paint(panel, np.where(later, np.nan, pattern.numpy()))
            panel.patch.set_facecolor(GREY)
            panel.set_title(name)
            panel.set_xticks(range(len(words)), words, rotation=90)
            panel.set_yticks(range(len(words)), words)
            panel.tick_params(length=2, width=0.5, labelsize=6, pad=2, labelleft=place == 0)
            panel.set_xlabel("key")
            panel.set_ylabel("query" if place == 0 else "")
        hidden = Patch(facecolor=GREY, label="later tokens: out of sight")
        page.foot("attention from query to key", [hidden])
    return page.figure
