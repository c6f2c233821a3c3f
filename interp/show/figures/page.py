"""A page: title, what was run, panels placed in inches, notes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from interp.show.figures.style import COLOURS, QUIET, styled
from interp.show.figures.texts import wrapped


class Page:
    """A title, what was run, a body of panels with a foot, and notes; places are in inches.

    Places inside the body count from its top left corner.
    """

    def __init__(
        self, title: str, subtitle: str, *, width: float, body: float, notes: Sequence[str]
    ) -> None:
        subtitle, *notes = (wrapped(text, width - 0.3) for text in (subtitle, *notes))
        line = 0.135
        self.top = 0.4 + line * len(subtitle.splitlines())
        self.width, self.body = width, body
        self.height = self.top + body + line * len("\n".join(notes).splitlines()) + 0.1
        with styled():
            self.figure = Figure(figsize=(width, self.height), facecolor="white")
            self.text(0.15, 0.12 - self.top, title, size=10)
            self.text(0.15, 0.34 - self.top, subtitle, color=QUIET)
            self.text(0.15, body, "\n".join(notes), color=QUIET)

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

    def foot(self, label: str, legend: list[Patch]) -> None:
        """The one colour bar, and what the other colours mean."""
        self.bar(0.5, label, COLOURS, 0.0, 1.0)
        corner = self.at(3.4, self.body - 0.62)
        self.figure.legend(handles=legend, loc="upper left", bbox_to_anchor=corner, ncols=2)

    def bar(self, left: float, label: str, colours: Colormap, low: float, high: float) -> None:
        """A colour bar at the foot of the body."""
        bar = self.panel(left, self.body - 0.52, 2.6, 0.1)
        scale, ticks = ScalarMappable(Normalize(low, high), colours), [low, (low + high) / 2, high]
        self.figure.colorbar(scale, bar, orientation="horizontal", ticks=ticks, label=label)
        bar.tick_params(length=2, width=0.5, pad=2)


def paint(panel: Axes, values: Float[np.ndarray, "down across"]) -> tuple[int, int]:
    """Values from 0 to 1 as colours; where there is none (NaN) the panel's ground shows.

    Where cells are smaller than a dot of a printed page (300 to the inch), each dot shows the
    largest of several, so that nothing thin is lost; returned is how many, down and across.
    """
    figure, place = panel.figure, panel.get_position()
    assert isinstance(figure, Figure)
    sides = figure.get_figheight() * place.height, figure.get_figwidth() * place.width
    down, across = (
        math.ceil(round(cells / (300 * side), 6))
        for cells, side in zip(values.shape, sides, strict=True)
    )
    ends = (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5)
    for axis, several in enumerate((down, across)):
        starts = np.arange(0, values.shape[axis], several)
        values = np.fmax.reduceat(values, starts, axis=axis)  # Of a number and NaN, the number.
    panel.imshow(
        values, COLOURS, vmin=0, vmax=1, interpolation="nearest", aspect="auto", extent=ends
    )
    return down, across


def whole_ticks(panel: Axes, across: str, down: str, *, bottom: bool, first: bool) -> None:
    """Whole numbers on both axes; words and numbers at the outer panels only."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    panel.tick_params(length=2, width=0.5, labelsize=6, pad=2, labelbottom=bottom, labelleft=first)
    panel.set_xlabel(across if bottom else "", labelpad=1)
    panel.set_ylabel(down if first else "", labelpad=2)
