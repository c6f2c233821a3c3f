"""One head in full: every query and key with its token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from interp.errors import Whole, checked
from interp.heads import Head
from interp.kinds.kind import KINDS
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, paint_pattern, pattern_legend
from interp.show.figures.style import styled
from interp.show.figures.texts import inches, labels_of
from interp.show.figures.words import about_score, head_name, in_words, kind_of_head
from interp.show.prompt import one_prompt

SIZE = 5.5
"""Size of the tokens' letters, in points."""

SLOT = 0.1
"""Inches between two tokens that are named."""


@checked
def head_page(
    patterns: Any,
    head: Any,
    tokens: Any = None,
    *,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    row: Whole | None = None,
    whole: Whole | None = None,
    scan: HeadScan | None = None,
    causal: bool | None = None,
) -> Figure:
    """The attention of one head on one prompt, each cell at its tokens.

    Queries down, keys across, from 0 to 1; keys that a causal head cannot see are grey. With a
    scan the targets of the head's kind are outlined. If there is no room for every token's name,
    every second, third and so on has one.

    Args:
        patterns: Result of `attention_patterns`, or attention after the softmax of any source
            that `interp.read_patterns` takes.
        head: `L5H1`, `5.1`, `(5, 1)` or `Head(5, 1)`.
        tokens: Token ids that were run, if `patterns` do not carry them.
        texts: Text of each token; `<id>` by default.
        layers: Numbers of the layers, if `patterns` do not carry them; `0, 1, ...` by default.
        row: Row of a batch; a batch of several prompts requires it.
        whole: Number of tokens of the whole prompt, if `patterns` are of its first ones only.
        scan: Table of the same model, for its name, the head's label and its score.
        causal: Whether each query sees only itself and earlier tokens, as for `interp.gallery`.
    """
    prompt = one_prompt(patterns, tokens, texts, layers, row, whole, causal=causal, cross=True)
    head = Head.parse(head)
    kind, pattern = kind_of_head(scan, head, prompt), prompt.pattern(head)
    side = min(max(min(0.3 * prompt.longest, 5.6), SLOT * prompt.longest), 7.6)
    high, wide = (side * number / prompt.longest for number in pattern.shape)
    step = int(np.ceil(round(SLOT * prompt.longest / side, 6)))
    down, across = (
        labels_of(text, width=1.1, size=SIZE)[::step] for text in (prompt.text, prompt.across)
    )
    left, under = (0.45 + max(inches(word, SIZE) for word in words) for words in (down, across))
    ordinal = {2: "second", 3: "third"}.get(step, f"{step}th")
    named = "" if step == 1 else f" Every {ordinal} token is named."
    cut = " … marks a cut token." if any("…" in label for label in [*down, *across]) else ""
    page = Page(
        head_name(scan, head),
        in_words(prompt, {} if scan is None else scan.made_by),
        width=max(7.2, left + wide + 0.2),
        body=0.1 + high + under + 0.6,
        notes=f"Layers and heads count from 0.{about_score(scan, head)}{named}{cut}",
    )
    with styled():
        panel = page.panel(left, 0.1, wide, high)
        paint_pattern(panel, prompt, pattern, prompt.targets_of(kind, head, scan))
        queries, keys = (range(0, number, step) for number in pattern.shape)
        panel.set_xticks(keys, across, rotation=90, size=SIZE)
        panel.set_yticks(queries, down, size=SIZE)
        panel.set(xlabel="key", ylabel="query")
        targets = f"targets: {KINDS[kind].label}" if kind is not None else None
        page.foot("attention weight", pattern_legend(prompt.causal, targets))
    return page.figure
