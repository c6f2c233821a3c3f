"""A page: title, what was run, panels placed in inches, notes."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from interp.show.figures.style import (
    ACCENT,
    COLOURS,
    GREY,
    NOTES,
    QUIET,
    SPECIAL,
    TEMPLATE,
    styled,
)
from interp.show.figures.words import pooled, wrapped
from interp.show.prompt import Prompt

LINE = 0.135  # Height of a line of text, in inches.
SIZE = 5.5  # Points of the letters of tokens.


class Page:
    """A title, what was run, a body of panels with a foot, and notes.

    Places are in inches; those in the body count from its top left corner.
    """

    def __init__(
        self, title: str, subtitle: str, *, body: float, notes: str, width: float = 7.2
    ) -> None:
        subtitle, notes = (wrapped(text, width - 0.3) for text in (subtitle, notes))
        self.top = 0.4 + LINE * len(subtitle.splitlines())
        self.width, self.body = width, body
        self.height = self.top + body + LINE * len(notes.splitlines()) + 0.1
        with styled():
            self.figure = Figure(figsize=(width, self.height), facecolor="white")
            self.text(0.15, 0.12 - self.top, title, size=10)
            self.text(0.15, 0.34 - self.top, subtitle, color=QUIET)
            self.text(0.15, body, notes, color=QUIET, gid=NOTES)

    def at(self, left: float, top: float) -> tuple[float, float]:
        """A place in the body as a share of the figure's width and height."""
        return left / self.width, 1 - (self.top + top) / self.height

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        """Write `text` with its upper left corner there."""
        self.figure.text(*self.at(left, top), text, va="top", linespacing=1.35, **style)

    def panel(self, left: float, top: float, width: float, height: float) -> Axes:
        """An empty panel with its upper left corner there."""
        bounds = *self.at(left, top + height), width / self.width, height / self.height
        return self.figure.add_axes(bounds)

    def legend(self, handles: Iterable[Any], left: float, top: float, **style: Any) -> None:
        """A legend with its upper left corner there."""
        corner = self.at(left, top)
        self.figure.legend(handles=list(handles), loc="upper left", bbox_to_anchor=corner, **style)

    def foot(self, label: str, legend: Sequence[Patch]) -> None:
        """The colour bar from 0 to 1, and what the other colours mean."""
        self.bar(0.5, label)
        self.legend(legend, 3.4, self.body - 0.62, ncols=2)

    def bar(
        self,
        left: float,
        label: str,
        low: float = 0.0,
        high: float = 1.0,
        colours: Colormap = COLOURS,
        digits: str | None = None,
    ) -> None:
        """A colour bar from `low` to `high` at the foot of the body; ticks in `digits`."""
        bar = self.panel(left, self.body - 0.52, 2.6, 0.1)
        scale, ticks = ScalarMappable(Normalize(low, high), colours), [low, (low + high) / 2, high]
        look: dict[str, Any] = {"orientation": "horizontal", "label": label, "format": digits}
        self.figure.colorbar(scale, bar, ticks=ticks, **look)


def paint(
    panel: Axes,
    values: Float[np.ndarray, "down across"],
    low: float = 0.0,
    high: float = 1.0,
    colours: Colormap = COLOURS,
) -> None:
    """Values from `low` to `high` as colours; the panel is grey where a value is missing (NaN).

    Of cells smaller than a dot in print (300 per inch), each dot shows the largest of several.
    """
    ends = (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5)
    for axis, side in enumerate(_sides(panel)):
        starts = np.arange(0, values.shape[axis], pooled(values.shape[axis], side))
        values = np.fmax.reduceat(values, starts, axis=axis)  # Ignores NaN next to a number.
    look: dict[str, Any] = {"vmin": low, "vmax": high, "interpolation": "nearest"}
    panel.imshow(values, colours, extent=ends, aspect="auto", **look)
    panel.patch.set_facecolor(GREY)


def _sides(panel: Axes) -> tuple[float, float]:
    """Height and width of a panel in inches."""
    box, dpi = panel.get_window_extent(), panel.figure.dpi
    return box.height / dpi, box.width / dpi


def paint_pattern(
    panel: Axes,
    prompt: Prompt,
    pattern: Float[torch.Tensor, "query key"],
    targets: Bool[torch.Tensor, "query key"] | None = None,
) -> None:
    """A pattern with lines around its targets; keys that a query cannot see are grey.

    Bars outside mark the chat template: keys along the top, queries on the right.
    """
    paint(panel, pattern.masked_fill(prompt.hidden, np.nan).numpy())
    bars: dict[str, Any] = {"color": TEMPLATE, "linewidth": 2, "clip_on": False}
    bars["solid_capstyle"] = "butt"
    over = panel.get_xaxis_transform() + ScaledTranslation(0, 0.025, panel.figure.dpi_scale_trans)
    right = panel.get_yaxis_transform() + ScaledTranslation(0.025, 0, panel.figure.dpi_scale_trans)
    for place in prompt.templated:
        ends = [place - 0.5, place + 0.5]
        panel.plot(ends, [1, 1], transform=over, **bars)
        panel.plot([1, 1], ends, transform=right, **bars)
    if targets is not None:
        cells = np.pad(targets.numpy(), 1)
        above, beside = (np.argwhere(np.diff(cells, axis=axis)) - 0.5 for axis in (0, 1))
        lines = [((k - 1, q), (k, q)) for q, k in above] + [((k, q - 1), (k, q)) for q, k in beside]
        width = min(0.5, 8 * _sides(panel)[0] / len(pattern))  # A ninth of a cell's side.
        panel.add_collection(LineCollection(lines, colors=ACCENT, linewidths=width))


def pattern_legend(
    causal: bool, targets: str | None = None, *, template: bool = False, special: bool = False
) -> list[Patch]:
    """The colours of a pattern other than the weights.

    Outlined `targets`, keys that are hidden if `causal`, positions of a chat `template`, and names
    of `special` tokens.
    """
    outlined = [] if targets is None else [Patch(facecolor="none", edgecolor=ACCENT, label=targets)]
    hidden = Patch(facecolor=GREY, label="later tokens: not visible to the query")
    added = Patch(color=TEMPLATE, label="chat template")
    named = Patch(color=SPECIAL, label="special token")
    return outlined + [hidden] * causal + [added] * template + [named] * special


def name_ticks(
    axis: Axis, places: Iterable[int], labels: Sequence[str], prompt: Prompt, special: Sequence[int]
) -> None:
    """Ticks at the places, with the tokens' labels; special tokens and the template in colour."""
    axis.set_ticks([*places], [*labels], size=SIZE)
    for place, label in zip(places, axis.get_ticklabels()):
        if place in special or place in prompt.templated:
            label.set_color(SPECIAL if place in special else TEMPLATE)


def whole_ticks(panel: Axes, across: str, down: str, *, bottom: bool, first: bool) -> None:
    """Whole numbers on both axes; labels and numbers on the outer panels only."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    panel.tick_params(labelbottom=bottom, labelleft=first)
    panel.set(xlabel=across if bottom else "", ylabel=down if first else "")
