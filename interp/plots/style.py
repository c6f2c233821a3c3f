"""How every figure looks, whatever the caller has set; and how it is written."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from interp.errors import InputError

FONT = "DejaVu Sans"
"""The font that matplotlib itself brings, so that figures are alike everywhere."""

STYLE: dict[str, Any] = {
    "font.family": FONT,
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.titlepad": 4,
    "axes.linewidth": 0.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    # A `$` or a `\frac` in a name is text.
    "text.parse_math": False,
    # Letters drawn as shapes: the same picture with or without this font installed.
    "svg.fonttype": "path",
    # Publishers refuse the other kind, Type 3.
    "pdf.fonttype": 42,
    # Makes the names inside an SVG the same each time.
    "svg.hashsalt": "interp",
}

ACCENT = "#d55e00"  # Vermilion, which every kind of colour vision tells from blue.
GREY = "#e0e0e0"
# From light to dark: it reads without colour, and on paper. Where there is no value it is
# transparent, but grey: transparent black leaves a dark seam in PDF viewers.
COLOURS = matplotlib.colormaps["Blues"].with_extremes(bad=to_rgba(GREY, 0))
# From less (purple) over none (white) to more (orange), apart for every kind of colour vision.
DIFFERENCES = matplotlib.colormaps["PuOr_r"].with_extremes(bad=to_rgba(GREY, 0))
QUIET = "#555555"
HATCH: dict[str, Any] = {"facecolor": GREY, "edgecolor": "#999999", "hatch": "//////"}
_SETTINGS = threading.RLock()
_METADATA = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's own defaults and `STYLE`, whatever the caller has set, and that back after.

    Settings belong to the whole process, so one thread at a time.
    """
    with _SETTINGS, matplotlib.style.context(["default", STYLE]):
        yield


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write `figure` as `.png` (300 dpi), `.svg` or `.pdf`: the same bytes each time.

    Raises:
        InputError: If the ending is none of these, or the folder is not there.
    """
    path = Path(path)
    if path.suffix not in _METADATA:
        raise InputError(f"path must end in {', '.join(_METADATA)}, got {path.name}")
    if not path.parent.is_dir():
        raise InputError(f"path must be in a folder that is there, got {path}")
    with styled():
        figure.savefig(path, format=path.suffix[1:], dpi=300, metadata=_METADATA[path.suffix])
