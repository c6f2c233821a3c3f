"""The four heads designed by hand, on their sentence."""

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from interp.attention import causal_mask
from interp.designed import EXAMPLE, NAMES, designed_layer, embed
from interp.multihead import multi_head_attention
from interp.plots.page import Page, paint
from interp.plots.style import GREY, styled


def designed_heads(*, window: int = 4) -> Figure:
    """The pattern of each head of `interp.designed` on its example, under a causal mask.

    Queries down, keys across, from 0 to 1.

    Args:
        window: How many tokens back the local head looks, the query itself included.

    Raises:
        InputError: If the window is not from 1 to the number of words.
    """
    words = EXAMPLE.words
    mask = causal_mask(len(words))
    layer = designed_layer(EXAMPLE, window=window, gates=torch.ones(len(NAMES)))
    patterns = multi_head_attention(embed(EXAMPLE)[None], layer, mask=mask).pattern[0]
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
        for place, (name, pattern) in enumerate(zip(NAMES, patterns, strict=True)):
            panel = page.panel(0.65 + place * step, 0.25, size, size)
            paint(panel, pattern.masked_fill(~mask, np.nan).numpy())
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
