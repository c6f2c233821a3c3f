"""The zoo: the ideal pattern of each kind of head, beside that of the strongest real head."""

import math
from typing import Any

from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from interp.errors import Whole, checked
from interp.kinds.kind import Kind, kinds_of
from interp.kinds.looks import ideal, marked
from interp.scan.table import HeadScan
from interp.show.about import scored_over, special_of, thresholds_of, zoo_heads
from interp.show.figures.page import Page, paint_pattern, pattern_legend, whole_ticks
from interp.show.figures.patterns import pooled_note
from interp.show.figures.style import QUIET, styled
from interp.show.figures.texts import wrapped
from interp.show.figures.words import in_words, model_name
from interp.show.prompt import Prompt, one_prompt

SIZE, SLOT, STEP = 1.02, 2.3, 1.7
"""Inches of a panel's side, and from one pair to the next, across and down."""


@checked
def head_zoo(
    scan: HeadScan, patterns: Any, *, row: Whole | None = None, whole: Whole | None = None
) -> Figure:
    """For each kind its ideal pattern, from the targets, and that of the strongest real head.

    An ideal head spreads its attention evenly over its targets; a query without targets attends
    to the first token. Queries down, keys across, from 0 to 1; the targets are outlined.

    Args:
        scan: Labels of the heads; `zoo_heads` says which are drawn.
        patterns: Patterns of the same model on a prompt with repeated tokens, with the layers of
            those heads.
        row: Row of a batch; a batch of several prompts requires it.
        whole: Number of tokens of the whole prompt, if `patterns` are of its first ones only.
    """
    prompt = one_prompt(patterns, row=row, whole=whole)
    kinds, heads = kinds_of(prompt.causal), zoo_heads(scan)
    aims = {name: _aim(kind, prompt, scan) for name, kind in kinds.items()}
    none = ", ".join(kinds[name].label for name, (_, cells) in aims.items() if not cells.any())
    notes = [
        "Left: attention spread evenly over the targets, else on the first token. Right: the"
        " strongest head with the label first, and its score, the mean attention mass on the"
        f" targets over {scored_over(scan)}."
    ]
    notes += [f"No query of this prompt has a target of these kinds: {none}."] if none else []
    rows = math.ceil(len(kinds) / 3)
    page = Page(
        f"{model_name(scan)}: each kind of head, ideal and real",
        in_words(prompt, scan.made_by),
        body=rows * STEP + 0.75,
        notes=[" ".join(notes + pooled_note(prompt, SIZE))],
    )
    with styled():
        for place, (name, kind) in enumerate(kinds.items()):
            down, across = divmod(place, 3)
            left, top = 0.45 + across * SLOT, down * STEP
            page.text(left, top + 0.02, kind.label, size=8, weight="bold")
            looks = kind.looks(thresholds_of(scan), causal=prompt.causal)
            page.text(left, top + 0.17, looks, color=QUIET)
            pictures = [("ideal", *aims[name])]
            if head := heads.get(name):
                score = scan.frame.set_index("name")[name].to_dict()[str(head)]
                real = prompt.pattern(head), prompt.targets_of(name, head, scan)
                pictures.append((f"{head}  {score:.2f}", *real))
            else:
                words = wrapped("No head carries the label.", SIZE - 0.1)
                page.text(left + SIZE + 0.12, top + 0.5, words, color=QUIET)
            for column, (title, pattern, targets) in enumerate(pictures):
                panel = page.panel(left + column * (SIZE + 0.06), top + 0.46, SIZE, SIZE)
                paint_pattern(panel, prompt, pattern, targets)
                panel.set_title(title)
                lowest, first = place + 3 >= len(kinds), across == column == 0
                whole_ticks(panel, "key", "query", bottom=lowest, first=first)
        page.foot("attention weight", pattern_legend(prompt, "targets of the kind"))
    return page.figure


def _aim(
    kind: Kind, prompt: Prompt, scan: HeadScan
) -> tuple[Float[Tensor, "query key"], Bool[Tensor, "query key"]]:
    """The ideal pattern of a kind, and its targets."""
    special = [*special_of(scan), *prompt.special]
    known = kind.name, prompt.text.ids, thresholds_of(scan), special
    return ideal(*known, causal=prompt.causal), marked(*known, causal=prompt.causal)
