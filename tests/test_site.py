"""The site builds without a network, and every public name has a page with an example."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys

import pytest
from places import ROOT

import interp

PUBLIC = [name for name in dir(interp) if not name.startswith("_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name):
    assert ">>> " in (inspect.getdoc(getattr(interp, name)) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("sphinx is missing: pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "-b", "html", "docs", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_the_site_has_a_page_for_every_name_and_fetches_nothing(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert {f"{name}.html" for name in PUBLIC} <= {path.name for path in pages}
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//")
    assert {path.name for path, text in pages.items() if loaded.search(text)} == set()
    styles = (path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not any(re.search(r"url\(['\"]?(?:https?:)?//|@import", text) for text in styles)
    assert "scan_heads" in (site / "searchindex.js").read_text(encoding="utf-8")
    assert "patch.html" in (site / "llms.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_internal_link_of_the_site_leads_somewhere(site):
    missing = set()
    for path in site.rglob("*.html"):
        text = re.sub(r"<script.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                missing.add((path.name, target))
    assert missing == set()
