"""The zoo: the ideal pattern of each kind of head, next to that of the strongest real head."""

import math
from typing import Any

from matplotlib.figure import Figure

from interp.errors import Whole, checked
from interp.kinds.kind import kinds_of
from interp.kinds.looks import ideal, marked
from interp.scan.table import HeadScan
from interp.show.about import scored_over, special_of, thresholds_of, zoo_heads
from interp.show.figures.page import Page, paint_pattern, pattern_legend, whole_ticks
from interp.show.figures.style import QUIET, styled
from interp.show.figures.texts import wrapped
from interp.show.figures.words import in_words, model_name, pooled_note
from interp.show.prompt import one_prompt

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
        scan: Labels of the heads; `zoo_heads` returns those that are drawn.
        patterns: Patterns of the same model on a prompt with repeated tokens, with the layers of
            those heads.
        row: Row of a batch; a batch of several prompts requires it.
        whole: Number of tokens of the whole prompt, if `patterns` are of its first ones only.
    """
    prompt = one_prompt(patterns, row=row, whole=whole)
    kinds, heads, causal = kinds_of(prompt.causal), zoo_heads(scan), prompt.causal
    known = prompt.text.ids, thresholds_of(scan), [*special_of(scan), *prompt.special]
    aims = {kind: marked(kind, *known, causal=causal) for kind in kinds}
    none = ", ".join(kind.label for name, kind in kinds.items() if not aims[name].any())
    page = Page(
        f"{model_name(scan)}: each kind of head, ideal and real",
        in_words(prompt, scan.made_by),
        body=math.ceil(len(kinds) / 3) * STEP + 0.75,
        notes="Left: attention spread evenly over the targets, else on the first token. Right: the"
        " strongest head with the label first, and its score, the mean attention mass on the"
        f" targets over {scored_over(scan)}."
        + (f" No query of this prompt has a target of these kinds: {none}." if none else "")
        + pooled_note(prompt, SIZE),
    )
    with styled():
        for place, (name, kind) in enumerate(kinds.items()):
            down, across = divmod(place, 3)
            left, top = 0.45 + across * SLOT, down * STEP
            page.text(left, top + 0.02, kind.label, size=8, weight="bold")
            page.text(left, top + 0.17, kind.looks(known[1], causal=causal), color=QUIET)
            pictures = [("ideal", ideal(name, *known, causal=causal), aims[name])]
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
        page.foot("attention weight", pattern_legend(causal, "targets of the kind"))
    return page.figure
