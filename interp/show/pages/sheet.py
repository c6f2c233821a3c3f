"""All heads in one still picture, for a page without scripts and a notebook without HTML."""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

SIDE = 56  # Most pixels of a head's side.

_COLUMNS, _ACROSS, _DOWN, _SECTION, _EDGE = 12, 80, 82, 26, 12
_BLUES = ["#f8fbff", "#bdd8f0", "#6cabdb", "#2873b8", "#082f6b"]  # As in template/gallery.js.
_OTHERS = ["#e3e6ea", "#ffffff", "#1c2733"]  # Hidden cells, the ground, the text.


Section = tuple[str, Sequence[str], Sequence[UInt8[Tensor, "down across"]]]
"""A title, and for each head a caption and its small picture, 0 to 255."""


def sheet(sections: Sequence[Section], *, causal: bool = True) -> bytes:
    """A PNG with the sections one below the other; with `causal`, keys after the query are grey."""
    lines = [-(-len(pictures) // _COLUMNS) for *_, pictures in sections]
    height = 2 * _EDGE + sum(_SECTION + count * _DOWN for count in lines)
    page = Image.new("P", (2 * _EDGE + _COLUMNS * _ACROSS, height), 254)
    page.putpalette(_palette())
    draw = ImageDraw.Draw(page)
    draw.fontmode = "1"  # Letters without grey edges: the palette lacks their colours.
    small, large = (ImageFont.load_default(size) for size in (10, 13))
    top = _EDGE
    for (title, captions, pictures), count in zip(sections, lines, strict=True):
        draw.text((_EDGE, top + 4), title, fill=255, font=large)
        for place, (caption, picture) in enumerate(zip(captions, pictures, strict=True)):
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
    colours = np.array([list(bytes.fromhex(colour[1:])) for colour in [*_BLUES, *_OTHERS]])
    at = np.linspace(0, 4, 253)
    ramp = np.stack([np.interp(at, range(5), channel) for channel in colours[:5].T], axis=1)
    return np.concatenate([ramp.round().astype(int), colours[5:]]).flatten().tolist()
