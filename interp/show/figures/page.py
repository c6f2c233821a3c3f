"""A page: title, what was run, panels placed in inches, notes; and the keywords of every figure."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import Parameter
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D, ScaledTranslation

from interp.printing import Print, printed
from interp.show.figures.style import (
    ACCENT,
    COLOURS,
    GREY,
    NOTES,
    PAGE,
    QUIET,
    SLIDE,
    SPECIAL,
    STYLE,
    TEMPLATE,
    styled,
)
from interp.show.figures.words import inches, pooled, wrapped
from interp.show.prompt import Prompt

LINE = 0.135
"""Height of a line of text, in inches."""

SIZE: float = STYLE["font.size"]
"""Points of text."""

TITLE, HEADING = STYLE["figure.titlesize"], STYLE["axes.titlesize"]
TALL = 60.0  # Height of a page in the making, in inches.


class Page:
    """A figure in the making: a title, what was run, panels, and `notes`.

    Places are in inches on paper and count from the top left corner of what is below the heading;
    in a talk everything is larger. The figure ends below what was drawn.
    """

    def __init__(self, title: str, about: str, *, notes: str = "", least: float = 0.0) -> None:
        with styled() as how:
            self.how, self.notes = how, notes
            self.width = (how.width or max(least, SLIDE if how.zoom > 1 else PAGE)) / how.zoom
            size = self.width * how.zoom, TALL * how.zoom
            self.figure = Figure(figsize=size, facecolor="white")
            self._canvas = FigureCanvasAgg(self.figure)
        self._paper, self._boxes = Affine2D(), []
        self._low, self._measured = 0.0, set()
        self.foot: tuple[float, float] | None = None
        title = how.title if how.title is not None else title * (how.context != "paper")
        self.quiet = not (how.context is None if how.notes is None else how.notes)
        lines = [wrapped(title, self.width - 0.2, TITLE)] if title else []
        about = "" if self.quiet or isinstance(how.notes, str) else about
        height = 0.03 + 0.17 * sum(part.count("\n") + 1 for part in lines) + 0.02 * bool(lines)
        self.top = height + LINE * bool(about) * (self._wrapped(about).count("\n") + 1) + 0.05
        self._resize(TALL)
        for line in lines:
            self.text(0.1, 0.06 - self.top, line, size=TITLE)
        if about:
            self.text(0.1, height + 0.02 - self.top, self._wrapped(about), color=QUIET)

    def _wrapped(self, text: str) -> str:
        return wrapped(text, self.width - 0.2)

    def _resize(self, height: float) -> None:
        """Make the page as high as that, and put everything at its place."""
        zoom, self.height = self.how.zoom, height
        self.figure.set_size_inches(self.width * zoom, height * zoom)
        self._paper.clear().translate(0, self.top).scale(zoom, -zoom).translate(0, height * zoom)
        for panel, (left, top, wide, high) in self._boxes:
            bottom = 1 - (self.top + top + high) / height
            panel.set_position((left / self.width, bottom, wide / self.width, high / height))

    def text(self, left: float, top: float, text: str, *, size: float = SIZE, **style: Any) -> None:
        """Write `text` with its upper left corner there, in `size` points on paper."""
        place = self._paper + self.figure.dpi_scale_trans
        look = {"va": "top", "linespacing": 1.3, "transform": place, **style}
        look["size"] = size * self.how.zoom
        self.figure.text(left, top, text, **look)

    def panel(self, left: float, top: float, width: float, height: float) -> Axes:
        """An empty panel with its upper left corner there."""
        panel = self.figure.add_axes((0, 0, 1, 1))
        self._boxes.append((panel, (left, top, width, height)))
        self._resize(TALL)
        return panel

    def size_of(self, panel: Axes) -> tuple[float, float]:
        """Width and height of a panel in inches on paper."""
        return next(box[2:] for one, box in self._boxes if one is panel)

    def below(self, gap: float = 0.1) -> float:
        """The place `gap` inches below everything that was drawn."""
        parts = {*self.figure.axes, *self.figure.texts, *self.figure.legends} - self._measured
        renderer = self._canvas.get_renderer()
        boxes = [box for part in parts if (box := part.get_tightbbox(renderer))]
        low = [TALL - box.y0 / self.figure.dpi / self.how.zoom - self.top for box in boxes]
        self._measured |= parts
        self._low = max([self._low, *low])
        return self._low + gap

    def heading(self, text: str, about: str = "", *, top: float | None = None) -> float:
        """Write a heading in bold over what comes, and `about` behind it; return where it ends."""
        top = self.below(0.14 if self._boxes else 0.03) if top is None else top
        self.text(0.1, top, text, weight="bold")
        end = 0.2 + 1.15 * inches(text, SIZE)
        lines = wrapped(about, self.width - end - 0.1)
        self.text(end, top, lines, color=QUIET)
        return top + LINE * (lines.count("\n") + 1)

    def grid(
        self,
        titles: Sequence[str],
        high: float = 1.2,
        *,
        slot: float,
        most: int = 3,
        group: int = 1,
        over: Sequence[str] = (),
        square: bool = False,
        top: float | None = None,
        left: float = 0.45,
        under: float = 0.0,
        across: str = "",
        down: str = "",
    ) -> Iterator[Axes]:
        """Panels with titles, as many in a row as have `slot` inches each.

        They fill the width, unless they are `square` and `high` at most. The outer ones have
        labels and numbers on the axes; without a label `across` there are none below.

        Args:
            titles: Title of each panel.
            high: Height of a panel.
            slot: Least width of a panel.
            most: Most panels in a row.
            group: Number of panels that stay together.
            over: Words over each group.
            square: Whether they are as high as wide.
            top: Upper end; below all others if left out.
            left: Room for numbers on the left.
            under: Room under every row; numbers on all panels if there is some.
            across: Label of the lower axis.
            down: Label of the left axis.
        """
        gap, room = 0.22 if under else 0.14, self.width - left - 0.15
        columns = min(most, len(titles), int((room + gap) / (slot + gap) + 1e-6))
        columns = max(group, columns // group * group)
        wide = (room + gap) / columns - gap
        wide, high = (min(wide, high),) * 2 if square else (wide, high)
        titles = [wrapped(title, wide, HEADING) for title in titles]
        top = self.below(0.08) * bool(self._boxes) if top is None else top
        for first in range(0, len(titles), columns):
            row = titles[first : first + columns]
            wider = group * (wide + gap) - gap
            words = [wrapped(one, wider) for one in over[first // group :][: len(row) // group]]
            for place, one in enumerate(words):
                self.text(left + place * (wider + gap), top + 0.08, one)
            top += LINE * max((one.count("\n") + 1 for one in words), default=0)
            top += 0.09 + LINE * 0.95 * max(t.count("\n") + 1 if t else 0 for t in row)
            for column, title in enumerate(row):
                panel = self.panel(left + column * (wide + gap), top, wide, high)
                panel.set_title(title, loc="left")
                lowest = first + column + columns >= len(titles)
                bottom = under > 0 or (lowest and across != "")
                panel.tick_params(labelbottom=bottom, labelleft=column == 0)
                panel.set(xlabel=across if bottom else "", ylabel=down if column == 0 else "")
                yield panel
            top += high + under

    def legend(self, handles: Iterable[Any], *, title: str = "", new: bool = False) -> None:
        """A legend under everything, or next to the colour bars if there is room."""
        handles = list(handles)
        if not handles:
            return
        # The line or box before a label, and what is between two labels, take half an inch.
        one = 0.5 + max(inches(handle.get_label(), SIZE) for handle in handles)
        left, top = self.foot or (self.width, 0.0)
        if new or one > self.width - left - 0.05:
            left, top = 0.1, self.below(0.1)
        columns = max(1, min(len(handles), int((self.width - left + 0.1) / one)))
        columns = -(-len(handles) // -(-len(handles) // columns))
        place = self._paper + self.figure.dpi_scale_trans
        look: dict[str, Any] = {"bbox_to_anchor": (left, top), "bbox_transform": place}
        look |= {"title": title or None, "alignment": "left", "ncols": columns}
        self.figure.legend(handles=handles, loc="upper left", **look)

    def bar(
        self,
        label: str,
        low: float = 0.0,
        high: float = 1.0,
        colours: Colormap = COLOURS,
        digits: str | None = None,
    ) -> None:
        """A colour bar from `low` to `high` under everything; ticks in `digits`."""
        wide = min(2.4, self.width - 0.5)
        top = self.below(0.12)
        bar = self.panel(0.25, top, wide, 0.09)
        scale, ticks = ScalarMappable(Normalize(low, high), colours), [low, (low + high) / 2, high]
        look: dict[str, Any] = {"orientation": "horizontal", "format": digits}
        look |= {"label": wrapped(label, wide + 0.2)}
        self.figure.colorbar(scale, bar, ticks=ticks, **look)
        self.foot = wide + 0.65, top

    def finish(self) -> Figure:
        """The figure: notes under everything, and no more height than that."""
        notes = self.how.notes if isinstance(self.how.notes, str) else self.notes
        if notes and not self.quiet:
            self.text(0.1, self.below(0.12), self._wrapped(notes), color=QUIET, gid=NOTES)
        self._resize(self.top + self.below(0.06))
        return self.figure


def drawn(draw: Callable[..., Page]) -> Callable[..., Figure]:
    """Make of a function that draws a `Page` a figure, with the keywords of `Print`."""

    @functools.wraps(draw)
    def figure(
        *args: Any,
        title: Any = None,
        notes: Any = None,
        width: Any = None,
        context: Any = None,
        **more: Any,
    ) -> Figure:
        how = {"title": title, "notes": notes, "width": width, "context": context}
        with printed(**how), styled():
            return draw(*args, **more).finish()

    signature = inspect.signature(draw)
    own = [p for p in signature.parameters.values() if p.kind != Parameter.VAR_KEYWORD]
    rest = [p for p in signature.parameters.values() if p.kind == Parameter.VAR_KEYWORD]
    added = [
        p.replace(kind=Parameter.KEYWORD_ONLY) for p in inspect.signature(Print).parameters.values()
    ]
    full = signature.replace(parameters=[*own, *added, *rest], return_annotation=Figure)
    vars(figure)["__signature__"] = full
    figure.__doc__ = f"{inspect.cleandoc(draw.__doc__ or '')}\n\n{_HOW}"
    return figure


_HOW = "`title`, `notes`, `width` and `context` say how the figure is printed: see `Print`."


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
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(whole())


def whole(**options: Any) -> MaxNLocator:
    """Ticks at whole numbers."""
    return MaxNLocator(5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1, **options)


def _sides(panel: Axes) -> tuple[float, float]:
    """Height and width of a panel in inches."""
    box, dpi = panel.get_window_extent(), panel.figure.dpi
    return box.height / dpi, box.width / dpi


_FINE = 7.0
"""Points of a cell: a line around a smaller one would hide it."""


def outline(
    panel: Axes,
    cells: Bool[np.ndarray, "down across"],
    *,
    exact: bool = False,
    colour: str = ACCENT,
) -> None:
    """Lines around the `cells` of a painted panel that hide none of them.

    Around fine cells they keep a cell's distance, unless they must be `exact`.
    """
    sides = [72 * side / number for side, number in zip(_sides(panel), cells.shape)]
    if min(sides) < _FINE and not exact:
        near = np.pad(cells, 1)
        cells = (
            near[1:-1, 1:-1] | near[:-2, 1:-1] | near[2:, 1:-1] | near[1:-1, :-2] | near[1:-1, 2:]
        )
    cells = np.pad(cells, 1)
    above, beside = (np.argwhere(np.diff(cells, axis=axis)) - 0.5 for axis in (0, 1))
    lines = [((k - 1, q), (k, q)) for q, k in above] + [((k, q - 1), (k, q)) for q, k in beside]
    width = max(0.25, min(1.0, 0.09 * min(sides)))
    panel.add_collection(LineCollection(lines, colors=colour, linewidths=width))


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
        outline(panel, targets.numpy())


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
    axis.set_ticks([*places], [*labels])
    for place, label in zip(places, axis.get_ticklabels()):
        if place in special or place in prompt.templated:
            label.set_color(SPECIAL if place in special else TEMPLATE)
