"""The zoo: what each kind of head should look like, beside the strongest real one."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from interp.heads import Head
from interp.kinds.kind import KINDS, kinds_in, kinds_of
from interp.kinds.looks import ideal, marked
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, paint, whole_ticks
from interp.show.figures.patterns import legend, pooled_notes
from interp.show.figures.prompts import Shown, border, in_words
from interp.show.figures.style import GREY, QUIET, styled
from interp.show.figures.texts import wrapped
from interp.show.figures.words import model_name
from interp.show.pages.prompts import special_of, thresholds_of
from interp.show.pages.scored import scored_over

if TYPE_CHECKING:
    from interp.models.hooks import AttentionPatterns


def zoo_heads(scan: HeadScan) -> dict[str, Head]:
    """One head of each kind: the strongest whose first label it is, else the strongest with it.

    Kinds that no head carries are absent.
    """
    chosen = {}
    for kind, about in kinds_in(scan.frame.columns).items():
        heads = scan.having(about.label)
        first = heads.loc[heads["label"] == about.label]
        best = (heads if first.empty else first)["name"].tolist()
        if best:
            chosen[kind] = Head.parse(best[0])
    return chosen


def head_zoo(
    scan: HeadScan,
    patterns: "AttentionPatterns | list[Any]",
    *,
    row: int | None = None,
    whole: int | None = None,
) -> Figure:
    """For each kind its ideal pattern, from the targets, and that of the strongest real head.

    An ideal head spreads its attention evenly over its targets, and rests on the first token
    where it has none. Queries down, keys across, from 0 to 1; the targets are outlined.

    Args:
        scan: Which heads are what; `zoo_heads` says which are drawn.
        patterns: Of the same model on a prompt in which tokens come again, with those heads'
            layers.
        row: Which prompt of a batch.
        whole: Tokens of the whole prompt, where `patterns` are of its first ones alone.

    Raises:
        InputError: As `pattern_page`.
    """
    prompt, thresholds = Shown.of(patterns, row=row, whole=whole), thresholds_of(scan)
    prompt.refuse_another_text()
    special = [*special_of(scan), *prompt.special]
    tokens, causal = prompt.text.ids, prompt.causal
    length, heads = len(tokens), zoo_heads(scan)
    places = {
        kind: marked(kind, tokens, thresholds, special, causal=causal) for kind in kinds_of(causal)
    }
    size, slot, step = 1.02, 2.3, 1.7
    rows = math.ceil(len(places) / 3)
    page = Page(
        f"{model_name(scan)}: each kind of head, ideal and real",
        in_words(prompt, scan.made_by),
        width=7.2,
        body=rows * step + 0.75,
        notes=[
            "Left of each pair: attention spread evenly over the kind's targets, else on the first"
            " token. Right: the strongest head that has the kind as its first label (else with it),"
            " and its score, the mean attention mass on the targets over"
            f" {scored_over(scan)}. Layers, heads and positions count from 0.",
            *_without_targets([KINDS[k].label for k, cells in places.items() if not cells.any()]),
            *pooled_notes(length, size),
        ],
    )
    with styled():
        for place, (kind, aimed) in enumerate(places.items()):
            down, across = divmod(place, 3)
            left, top = 0.45 + across * slot, down * step
            page.text(left, top + 0.02, KINDS[kind].label, size=8, weight="bold")
            page.text(left, top + 0.17, KINDS[kind].looks(thresholds, causal=causal), color=QUIET)
            pairs = [("ideal", ideal(kind, tokens, thresholds, special, causal=causal))]
            cells = [aimed.numpy()]
            if kind in heads:
                name = heads[kind]
                score = scan.frame.set_index("name")[kind].to_dict()[str(name)]
                pairs.append((f"{name}  {score:.2f}", prompt.pattern(name)))
                cells.append(prompt.targets(kind, pairs[1][1], scan))
            else:
                told = wrapped("No head carries the label.", size - 0.1)
                page.text(left + size + 0.12, top + 0.5, told, color=QUIET)
            for column, ((title, pattern), targets) in enumerate(zip(pairs, cells)):
                panel = page.panel(left + column * (size + 0.06), top + 0.46, size, size)
                paint(panel, pattern.masked_fill(prompt.hidden, np.nan).numpy())
                panel.patch.set_facecolor(GREY)
                panel.add_collection(border(targets, 72 * size / length))
                panel.set_title(title)
                outer = across == 0 and column == 0
                whole_ticks(panel, "key", "query", bottom=place + 3 >= len(places), first=outer)
        page.foot("attention from query to key", legend(prompt, "targets of the kind"))
    return page.figure


def _without_targets(kinds: list[str]) -> list[str]:
    """A sentence that explains ideals in which nothing is outlined, if there are any."""
    told = f"No query of this prompt has a target of these kinds: {', '.join(kinds)}."
    return [told] if kinds else []
