"""How every figure looks, whatever the caller has set; and how it is written."""

import io
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

_FILE = Path(__file__).with_name("interp.mplstyle")
STYLE: dict[str, Any] = {
    str(name): value
    for name, value in matplotlib.rc_params_from_file(_FILE, use_default_template=False).items()
}
"""The settings in `interp.mplstyle`, by name."""

FONT: str = STYLE["font.family"][0]

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


def as_png(figure: Figure) -> bytes:
    """`figure` as a picture for a screen (144 dpi): the same bytes each time."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format="png", dpi=144)
    return file.getvalue()
