"""The one door to HTML and circuitsvis: from data to one self-contained page.

Whatever comes from outside (token texts, names, titles, labels) reaches the page in two ways
only: as JSON in which no character can end a script element, or through `html.escape`. A
content security policy lets nothing in but the page's own script, by its hash, and lets
nothing out.
"""

import base64
import hashlib
import html
import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from string import Template
from typing import Any

LOG = logging.getLogger("interp")

_DRIVER = """
addEventListener("message", (event) => {
  CircuitsVis.render("view", CircuitsVis.AttentionPattern, event.data);
});
"""
"""Runs beside circuitsvis' own script, in a frame without an origin."""


def page(
    title: str,
    data: Mapping[str, Any],
    blocks: Mapping[str, str],
    *,
    picture: bytes,
    table: Iterable[tuple[str, ...]],
    interactive: bool = True,
) -> str:
    """The HTML of a gallery, in which nothing refers to anything outside.

    Args:
        title: Plain text.
        data: What the page's script works on; goes in as JSON.
        blocks: Packed weights by the id of their element.
        picture: All heads as a PNG, for a reader without scripts.
        table: The same as text, a row per head.
        interactive: Whether to carry circuitsvis' script, if it is installed.
    """
    style, script = _asset("gallery.css"), _asset("gallery.js") + _asset("view.js")
    allowed = [script]
    blocks = dict(blocks)
    if interactive and find_spec("circuitsvis") is None:
        LOG.info("the page has no view by circuitsvis, which is not installed: pip install it")
    elif interactive:
        allowed.append(_circuitsvis())
        blocks["circuitsvis"] = _deflated(_circuitsvis())
        data = {**data, "circuitsvis": version("circuitsvis")}
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in table
    )
    return document(
        "gallery.html",
        title,
        data,
        style=style,
        script=script,
        allowed=allowed[1:],
        blocks="\n".join(
            f'<script type="text/plain" id="{html.escape(name)}">{text}</script>'
            for name, text in blocks.items()
        ),
        picture=base64.b64encode(picture).decode("ascii"),
        rows=rows,
    )


def lab_page(title: str, data: Mapping[str, Any]) -> str:
    """The HTML of the page to play with attention, in the gallery's frame and colours.

    Args:
        title: Plain text.
        data: What the page's script works on; goes in as JSON.
    """
    parts = ("lab_maths", "lab_widgets", "lab_scores", "lab_heads", "lab")
    return document(
        "lab.html",
        title,
        data,
        style=_asset("gallery.css") + _asset("lab.css"),
        script="".join(_asset(f"{part}.js") for part in parts),
    )


def document(
    template: str,
    title: str,
    data: Mapping[str, Any],
    *,
    style: str,
    script: str,
    allowed: Iterable[str] = (),
    **parts: str,
) -> str:
    """A template filled in, with a policy that lets only its own scripts run and fetches nothing.

    Args:
        template: Its file.
        title: Plain text.
        data: For the script, as JSON.
        style: The page's CSS.
        script: The page's own script.
        allowed: Other scripts that it starts.
        parts: What else the template asks for, as HTML.
    """
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in (script, *allowed))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    return Template(_asset(template)).substitute(
        policy=policy,
        title=html.escape(title),
        style=style,
        script=script,
        data=as_json(data),
        **parts,
    )


def frame(document: str, *, height: int) -> str:
    """A page inside a frame of its own, for a notebook.

    The frame has no origin and no way to the notebook around it: two on one page do not
    disturb each other. It is ASCII, so that its script is the same, and its hash right, whatever
    encoding the notebook's own page is read in.

    Args:
        document: The page.
        height: Of the frame, in pixels; a reader can drag it taller.
    """
    inside = html.escape(document).encode("ascii", "xmlcharrefreplace").decode("ascii")
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{inside}" loading="lazy"'
        f' style="width: 100%; height: {height}px; border: 0; resize: vertical"'
        ' title="Gallery of attention heads"></iframe>'
    )


def as_json(data: Any) -> str:
    r"""JSON that can stand in a script element, whatever text is in it.

    Example:
        >>> as_json("</script>")
        '"\\u003c/script\\u003e"'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@lru_cache
def _circuitsvis() -> str:
    """Circuitsvis' own script, which the package brings, and what starts it."""
    script = files("circuitsvis") / "dist" / "cdn" / "iife.js"
    text = script.read_text(encoding="utf-8").replace("</script", "<\\/script")
    # The address of a map for debuggers, which would be looked up beside the page.
    text = "\n".join(line for line in text.splitlines() if not line.startswith("//# source"))
    return text + _DRIVER


@lru_cache
def _asset(name: str) -> str:
    return (files("interp.show.pages") / "template" / name).read_text(encoding="utf-8")


def _deflated(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
