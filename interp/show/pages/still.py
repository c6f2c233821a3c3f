"""Figures as pictures (PNG) in a notebook or a page, for where pages cannot be shown."""

from interp.heads import Head
from interp.scan.table import HeadScan
from interp.show.figures.head import head_figure
from interp.show.figures.mosaic import score_mosaic
from interp.show.figures.prompts import Shown
from interp.show.figures.style import as_png
from interp.show.pages.prompts import Prompt


def scan_picture(scan: HeadScan) -> bytes:
    """`plots.score_mosaic` as a PNG."""
    return as_png(score_mosaic(scan))


def head_picture(scan: HeadScan, prompt: Prompt, head: Head) -> bytes:
    """`plots.head_page` of the weights that a page keeps, as a PNG."""
    known = prompt.keys, prompt.causal, prompt.special
    shown = Shown(prompt.text, {}, prompt.whole, *known)
    return as_png(head_figure(shown, head, prompt.pattern(head), scan))
