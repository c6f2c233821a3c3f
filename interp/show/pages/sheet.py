"""All heads in one still picture, for a page without scripts and a notebook without HTML."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

SIDE = 56
"""Most pixels of a head's side."""

_COLUMNS, _ACROSS, _DOWN = 12, 80, 82
_SECTION, _EDGE = 26, 12
_BLUES = ["#f8fbff", "#bdd8f0", "#6cabdb", "#2873b8", "#082f6b"]  # As in template/gallery.js.
_HIDDEN = "#e3e6ea"


@dataclass(frozen=True)
class Section:
    """Heads under one title, each with a caption and its small picture, 0 to 255."""

    title: str
    captions: Sequence[str]
    pictures: Sequence[UInt8[Tensor, "down across"]]


def sheet(sections: Sequence[Section], *, causal: bool = True) -> bytes:
    """A PNG with the sections one below the other; the same bytes each time.

    With `causal`, keys after the query are grey.
    """
    rows = [-(-len(section.pictures) // _COLUMNS) for section in sections]
    height = 2 * _EDGE + sum(_SECTION + r * _DOWN for r in rows)
    page = Image.new("P", (2 * _EDGE + _COLUMNS * _ACROSS, height), 254)
    page.putpalette(_palette())
    draw = ImageDraw.Draw(page)
    draw.fontmode = "1"  # Letters without grey edges: the palette lacks their colours.
    small, large = (ImageFont.load_default(size) for size in (10, 13))
    top = _EDGE
    for section, count in zip(sections, rows, strict=True):
        draw.text((_EDGE, top + 4), section.title, fill=255, font=large)
        for place, (caption, picture) in enumerate(
            zip(section.captions, section.pictures, strict=True)
        ):
            down, across = divmod(place, _COLUMNS)
            corner = _EDGE + across * _ACROSS, top + _SECTION + down * _DOWN
            draw.text(corner, caption, fill=255, font=small)
            page.paste(_image(picture, causal), (corner[0], corner[1] + 14))
        top += _SECTION + count * _DOWN
    file = io.BytesIO()
    page.save(file, "png")
    return file.getvalue()


def _image(picture: UInt8[Tensor, "down across"], causal: bool) -> Image.Image:
    """One head, enlarged if it is small; the last three colours are not weights."""
    steps = picture.numpy().astype(np.int32) * 252 // 255
    if causal:
        steps[np.triu_indices(len(steps), 1)] = 253
    scale = max(1, SIDE // max(steps.shape))
    return Image.fromarray(np.kron(steps, np.ones((scale, scale))).astype(np.uint8))


def _palette() -> list[int]:
    """253 colours from light to dark, then those of hidden cells, of the ground and of the text."""
    anchors = np.array([_rgb(colour) for colour in _BLUES])
    at = np.linspace(0, len(anchors) - 1, 253)
    ramp = [np.interp(at, range(len(anchors)), channel) for channel in anchors.T]
    colours = np.stack(ramp, axis=1).round().astype(int).tolist()
    colours += [_rgb(colour) for colour in (_HIDDEN, "#ffffff", "#1c2733")]
    return [channel for colour in colours for channel in colour]


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))
