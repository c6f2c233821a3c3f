"""The style of every figure, independent of the caller's settings; and figures as files."""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.printing import Print, current

_FILE = Path(__file__).with_name("interp.mplstyle")
STYLE: dict[str, Any] = {**matplotlib.rc_params_from_file(_FILE, use_default_template=False)}
"""The settings in `interp.mplstyle`, by name."""

FONT: str = STYLE["font.family"][0]

# Colours of Okabe and Ito (2008), which differ for every kind of colour vision.
ACCENT, BLUE, GREEN, PINK, SKY = "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9"
QUIET, GREY = "#555555", "#e0e0e0"
TEMPLATE, SPECIAL = PINK, GREEN
# From light to dark: readable without colour, and on paper. Missing values are transparent grey:
# transparent black leaves a dark seam in PDF viewers.
COLOURS = matplotlib.colormaps["Blues"].with_extremes(bad=to_rgba(GREY, 0))
# From less (purple) through none (white) to more (orange).
DIFFERENCES = matplotlib.colormaps["PuOr_r"].with_extremes(bad=to_rgba(GREY, 0))
HATCH: dict[str, Any] = {"facecolor": GREY, "edgecolor": "#999999", "hatch": "//////"}
DASHED: dict[str, Any] = {"color": QUIET, "linewidth": 0.5, "linestyle": "--"}
NOTES = "notes"  # Mark (gid) of the notes under a figure.
PAGE, SLIDE = 6.9, 10.0  # Inches of a figure on paper, across two columns, and in a talk.

_SETTINGS = threading.RLock()
_METADATA = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def styled() -> Iterator[Print]:
    """Matplotlib's defaults and `STYLE`, as `printed` says; the caller's settings come back after.

    Settings belong to the whole process, so one thread at a time.
    """
    how = current()
    sizes = {name: x * how.zoom for name, x in STYLE.items() if name.endswith(("size", "width"))}
    with _SETTINGS, matplotlib.style.context(["default", STYLE, sizes]):
        yield how


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write `figure` as `.png` (300 dpi), `.svg` or `.pdf`: the same bytes each time.

    The folder must exist. Text stays text in SVG, and PDF has its font.
    """
    path = Path(path)
    if path.suffix not in _METADATA:
        raise InputError(f"path must end in {', '.join(_METADATA)}, got {path.name}")
    if not path.parent.is_dir():
        raise InputError(f"path must be in a folder that exists, got {path}")
    with styled():
        figure.savefig(path, format=path.suffix[1:], dpi=300, metadata=_METADATA[path.suffix])


def save_figures(figures: Mapping[str, Figure], folder: Path, formats: Iterable[str]) -> None:
    """Write each figure by its name to `folder`, in each of the formats `png`, `svg` and `pdf`."""
    for name, figure in figures.items():
        for ending in formats:
            save_figure(figure, folder / f"{name}.{ending}")
