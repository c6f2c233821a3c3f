"""How much of each head's attention the kinds explain, and which kind explains most."""

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from interp.scan.explained import numbers
from interp.scan.table import HeadScan
from interp.show.figures.page import Page, drawn, paint, whole
from interp.show.figures.style import ACCENT, BLUE, GREEN, GREY, PINK, SKY
from interp.show.figures.words import model_name

_COLOURS = (BLUE, ACCENT, GREEN, PINK, SKY, "#f0e442")
_OTHER = "#777777"


@drawn
def explained_map(scan: HeadScan) -> Page:
    """Explained share of every head, from 0 to 1, and the kind that explains most of it.

    Layers across, heads down. The kinds that explain most in most heads have a colour each.
    Missing shares are grey.
    """
    explained = scan.explained()
    frame = explained.frame
    at = scan.frame["head"].to_numpy(int), scan.frame["layer"].to_numpy(int)
    heads, layers = (int(numbers.max()) + 1 for numbers in at)
    shares = np.full((heads, layers), np.nan)
    shares[at] = numbers(frame, "explained")
    kinds = [n.removeprefix("explained_by_") for n in frame if n.startswith("explained_by_")]
    by_kind = np.nan_to_num([numbers(frame, f"explained_by_{kind}") for kind in kinds]).T
    most = np.where(by_kind.max(1) > 0, by_kind.argmax(1), -1)
    counts = {n: int((most == n).sum()) for n in range(len(kinds))}
    ranked = sorted((n for n in counts if counts[n]), key=lambda n: -counts[n])
    colours = dict(zip(ranked, _COLOURS, strict=False))
    cells = np.full((heads, layers, 4), to_rgba(GREY))
    cells[at] = [to_rgba(GREY if n < 0 else colours.get(n, _OTHER)) for n in most.tolist()]
    high = min(max(3.0 * heads / layers, 0.9), 3.0, 0.3 * heads)
    low = numbers(frame, "explained_low")
    above = (low > numbers(frame, "explained_null")).sum()
    known = f"The 95 % interval is above the null in {above} of {len(frame)} heads. "
    own = " or on keys that its head prefers" * ("explained_by_preferred" in frame)
    page = Page(
        f"{model_name(scan)}: attention explained by the kinds",
        f"Natural text, attention outside sinks: {explained.share:.0%} is on the targets of a"
        f" kind{own}; of as many keys drawn evenly, {explained.null:.0%}.",
        notes=known * bool(np.isfinite(low).any()) + "A key that is a target of several kinds"
        " counts for the most specific. Layers and heads count from 0.",
    )
    legend = [
        Patch(color=colour, label=f"{kinds[n].replace('_', ' ')} ({counts[n]})")
        for n, colour in colours.items()
    ]
    if others := sum(counts[n] for n in ranked[len(_COLOURS) :]):
        legend.append(Patch(color=_OTHER, label=f"another kind ({others})"))
    titles = ["explained share", "kind that explains most"]
    left, right = page.grid(titles, high, slot=2.0, across="layer", down="head")
    paint(left, shares)
    right.imshow(cells, interpolation="nearest", aspect="auto")
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_locator(whole())
    page.bar("share of attention outside sinks")
    page.legend(legend)
    return page
