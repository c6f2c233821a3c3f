"""HTML: from data to one self-contained page.

Text from outside (tokens, names, titles, labels) reaches the page in two ways only: as JSON in
which no character can end a script element, or through `html.escape`. A content security policy
admits only the page's own scripts, by their hashes, and blocks every request.
"""

import base64
import hashlib
import html
import json
import logging
import os
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from interp.errors import Count, InputError, checked
from interp.files import staged

LOG = logging.getLogger("interp")

_DRIVER = """
addEventListener("message", (event) => {
  CircuitsVis.render("view", CircuitsVis.AttentionPattern, event.data);
});
"""
"""Starts circuitsvis' script, in a frame without an origin."""


class Html:
    """A page: one HTML document with a title. A notebook displays it in a frame."""

    title: str
    _height = 900

    def to_html(self) -> str:
        """The page: one HTML document without any reference to the outside."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to an `.html` file, whole or not at all, and return its path.

        Missing folders are created.
        """
        path = Path(path)
        if path.suffix != ".html":
            raise InputError(f"path must end in .html, got {path.name}")
        with staged(path.parent) as scratch:
            (scratch / path.name).write_text(self.to_html(), encoding="utf-8", newline="\n")
        return path

    @checked
    def fragment(self, *, height: Count | None = None) -> str:
        """The page as a piece of HTML that fits into any document, alone or with others.

        Each is a separate frame, `height` pixels high, so that pages share no ids, styles or
        scripts. Two documents of `to_html` cannot be joined in one.
        """
        return frame(self.to_html(), self.title, height=height or self._height)

    def _repr_html_(self) -> str:
        return self.fragment()


def page(
    title: str,
    data: Mapping[str, Any],
    blocks: Mapping[str, str],
    *,
    picture: bytes,
    table: Iterable[tuple[str, ...]],
    interactive: bool = True,
    live: bool = False,
) -> str:
    """The HTML of a gallery, which refers to nothing outside.

    `blocks` are packed weights by the id of their element. A reader without scripts sees `picture`
    (PNG) and `table`, a row per head. An `interactive` page has circuitsvis' script, if installed.
    A `live` page may connect to the server that it is from.
    """
    allowed, blocks = [], dict(blocks)
    if interactive and find_spec("circuitsvis") is None:
        LOG.info("circuitsvis is not installed: the page lacks its view (pip install circuitsvis)")
    elif interactive:
        allowed = [_circuitsvis()]
        deflated = zlib.compress(_circuitsvis().encode("utf-8"), 9)
        blocks["circuitsvis"] = base64.b64encode(deflated).decode("ascii")
        data = {**data, "circuitsvis": version("circuitsvis")}
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table)
    element = '<script type="text/plain" id="{}">{}</script>'
    elements = (element.format(html.escape(name), text) for name, text in blocks.items())
    parts = {"blocks": "\n".join(elements), "rows": "".join(f"<tr>{row}</tr>\n" for row in cells)}
    parts |= {"picture": base64.b64encode(picture).decode("ascii"), "style": _asset("gallery.css")}
    script = _asset("gallery.js") + _asset("view.js")
    parts |= {"live": _asset("live.html") if live else ""}
    if live:
        script += _asset("live.js")
        parts["style"] += _asset("live.css")
    fetches = "'self'" if live else "'none'"
    return document(
        "gallery.html", title, data, script=script, allowed=allowed, fetches=fetches, **parts
    )


def lab_page(title: str, data: Mapping[str, Any]) -> str:
    """The HTML of the attention lab, in the gallery's style."""
    parts = ("lab_maths", "lab_widgets", "lab_scores", "lab_heads", "lab")
    script = "".join(_asset(f"{part}.js") for part in parts)
    style = _asset("gallery.css") + _asset("lab.css")
    return document("lab.html", title, data, style=style, script=script)


def sweep_page(title: str, data: Mapping[str, Any], *, rows: str) -> str:
    """The HTML of a sweep, in the gallery's style; `rows` are those of the table of onsets."""
    script = _asset("lab_widgets.js") + _asset("sweep.js")
    style = _asset("gallery.css") + _asset("sweep.css")
    return document("sweep.html", title, data, style=style, script=script, rows=rows)


def document(
    template: str,
    title: str,
    data: Mapping[str, Any],
    *,
    style: str,
    script: str,
    allowed: Iterable[str] = (),
    fetches: str = "'none'",
    **parts: str,
) -> str:
    """A filled template, with a policy that runs only its own scripts; `fetches` is from where."""
    digests = (hashlib.sha256(text.encode("utf-8")).digest() for text in (script, *allowed))
    hashes = " ".join(f"'sha256-{base64.b64encode(one).decode('ascii')}'" for one in digests)
    policy = (
        f"default-src {fetches}; script-src {hashes}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    parts |= {"policy": policy, "style": style, "script": script}
    parts |= {"title": html.escape(title), "data": as_json(data)}
    return Template(_asset(template)).substitute(parts)


def frame(document: str, title: str, *, height: int) -> str:
    """A page inside a frame, for a notebook or another document.

    The frame has no origin and no access to the document around it. It is ASCII, so that the hash
    of its script is right in any encoding.
    """
    inside, title = (
        html.escape(text).encode("ascii", "xmlcharrefreplace").decode("ascii")
        for text in (document, title)
    )
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{inside}" loading="lazy"'
        f' style="width: 100%; height: {height}px; border: 0; resize: vertical"'
        f' title="{title}"></iframe>'
    )


def as_json(data: Any) -> str:
    r"""JSON that is safe inside a script element, whatever text it contains.

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
    """Circuitsvis' script, which comes with the package, and the driver that starts it."""
    script = files("circuitsvis") / "dist" / "cdn" / "iife.js"
    text = script.read_text(encoding="utf-8").replace("</script", "<\\/script")
    # The address of a source map, which a browser would fetch.
    text = "\n".join(line for line in text.splitlines() if not line.startswith("//# source"))
    return text + _DRIVER


@lru_cache
def _asset(name: str) -> str:
    return (files("interp.show.pages") / "template" / name).read_text(encoding="utf-8")
