"""One head in full: every query and key with its token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from interp.heads import Head
from interp.kinds.kind import KINDS
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, paint
from interp.show.figures.patterns import legend
from interp.show.figures.prompts import Shown, border, in_words, kind_of, labels_of
from interp.show.figures.style import GREY, styled
from interp.show.figures.texts import inches
from interp.show.figures.words import about_score, head_name

SIZE = 5.5
"""Of the tokens' letters, in points."""

SLOT = 0.1
"""Inches between two tokens that are named."""

WIDE = 5.6, 7.6
"""Inches of the panel: on a page's width, and at most."""


def head_page(
    patterns: Any,
    head: Any,
    tokens: Any = None,
    *,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    row: int | None = None,
    whole: int | None = None,
    scan: HeadScan | None = None,
    causal: bool | None = None,
) -> Figure:
    """The attention of one head on one prompt, each cell at its tokens.

    Queries down, keys across, from 0 to 1; later keys are grey where none looks ahead. The
    targets of the head's kind are outlined where a scan tells the kind. Where there is no room
    for every token, every second, third and so on is named, and the notes say so.

    Args:
        patterns: From `attention_patterns`, or attention after the softmax of any source that
            `interp.read_patterns` takes.
        head: `L5H1` or `Head(5, 1)`.
        tokens: The token ids that were run, where `patterns` do not carry them.
        texts: The text of each token; `<id>` if there is none.
        layers: The layers' own numbers, where `patterns` do not carry them; `0, 1, ...`.
        row: Which prompt of a batch.
        whole: Tokens of the whole prompt, where `patterns` are of its first ones alone: the
            figure then says so.
        scan: Of the same model, for its name, the head's label and its score.
        causal: Whether no query looks ahead, as for `interp.gallery`.

    Raises:
        InputError: If texts, tokens and patterns differ in length, a batch has several prompts
            and no `row` is given, the prompt is empty or longer than 1,024 tokens, a pattern
            is no attention in its direction, or the head is not there.
    """
    head = Head.parse(head)
    prompt = Shown.of(patterns, tokens, texts, layers, row, whole, causal=causal)
    return head_figure(prompt, head, prompt.pattern(head), scan)


def head_figure(
    prompt: Shown, head: Head, attention: Float[Tensor, "query key"], scan: HeadScan | None
) -> Figure:
    """`head_page` of one pattern that was taken in already."""
    kind = kind_of(scan, head, prompt)
    longest = max(attention.shape)
    side = min(max(min(0.3 * longest, WIDE[0]), SLOT * longest), WIDE[1])
    high, wide = (side * number / longest for number in attention.shape)
    step = int(np.ceil(round(SLOT * longest / side, 6)))
    down, across = (
        labels_of(text, width=1.1, size=SIZE)[::step] for text in (prompt.text, prompt.across)
    )
    left, under = (0.45 + max(inches(word, SIZE) for word in words) for words in (down, across))
    notes = ["Queries down, keys across, each at its token; layers and heads count from 0."]
    notes += about_score(scan, head)
    if step > 1:
        notes.append(f"Every {_ordinal(step)} token is named; each has its row and its column.")
    if any("…" in label for label in [*down, *across]):
        notes.append("Long tokens end in … where they are cut.")
    page = Page(
        head_name(scan, head),
        in_words(prompt, {} if scan is None else scan.made_by),
        width=max(7.2, left + wide + 0.2),
        body=0.1 + high + under + 0.6,
        notes=[" ".join(notes)],
    )
    with styled():
        panel = page.panel(left, 0.1, wide, high)
        paint(panel, attention.masked_fill(prompt.hidden, np.nan).numpy())
        panel.patch.set_facecolor(GREY)
        if kind is not None and scan is not None:
            cells = prompt.targets(kind, attention, scan)
            panel.add_collection(border(cells, 72 * side / longest))
        queries, keys = (range(0, number, step) for number in attention.shape)
        panel.set_xticks(keys, across, rotation=90, size=SIZE)
        panel.set_yticks(queries, down, size=SIZE)
        panel.tick_params(length=2, width=0.5, pad=1.5)
        panel.set_xlabel("key", labelpad=2)
        panel.set_ylabel("query", labelpad=2)
        outlined = None if kind is None else f"targets: {KINDS[kind].label}"
        page.foot("attention from query to key", legend(prompt, outlined))
    return page.figure


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
