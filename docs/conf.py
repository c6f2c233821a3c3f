"""Settings of the site: `python -m sphinx -W -b html docs docs/_build/html`, without a network.

What exists elsewhere in the repository is copied or written when the build starts: the notebooks
with their outputs, a page for each public name, the lab and a gallery of a hand-built circuit.
"""

import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from latex2mathml.converter import convert  # noqa: E402

import interp  # noqa: E402

project = "interp"
copyright = "the authors of interp, MIT licence"
version = release = interp.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
bibtex_bibfiles = ["papers.bib"]
bibtex_default_style = "alpha"
html_theme = "furo"
html_title = f"interp {version}"
html_static_path = ["_static"]
html_extra_path = ["_pages"]
html_copy_source = False
html_math_renderer = "mathml"
nb_execution_mode = "off"  # The notebooks are committed with their outputs; a test compares them.
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = ["mystnb.unknown_mime_type"]

HERE = Path(__file__).parent
GROUPS = re.findall(r"^(\w[^\n]+):\n\n((?:    .+\n)+)", interp.__doc__ or "", re.MULTILINE)


def _reference(folder: Path) -> None:
    """Write a page for each public name, and an index with a table for each group of names."""
    lines = ["# Reference", "", "Every public name, as `help(interp)` lists them.", ""]
    names = []
    for heading, rows in GROUPS:
        lines += [f"## {heading}", "", "| name | purpose |", "|---|---|"]
        for name, purpose in re.findall(r"^ {4}([A-Za-z_]+) {2,}(.+)$", rows, re.MULTILINE):
            lines.append(f"| [{name}]({name}.md) | {purpose} |")
            names.append(name)
            thing = getattr(interp, name)
            kind = "class" if inspect.isclass(thing) else "function"
            target, options = f"interp.{name}", ""
            if inspect.ismodule(thing):
                kind, target, options = "module", thing.__name__, ":members:\n"
            elif kind == "class":
                inherits = issubclass(thing, Exception) or hasattr(thing, "numpy")
                options = ":members:\n" + ("" if inherits else ":inherited-members:\n")
            page = f"# {name}\n\n```{{eval-rst}}\n.. auto{kind}:: {target}\n"
            page += "".join(f"   {option}\n" for option in options.split("\n") if option)
            (folder / f"{name}.md").write_text(page + "```\n", encoding="utf-8")
        lines.append("")
    lines += ["```{toctree}", ":hidden:", "", *names, "```", ""]
    (folder / "index.md").write_text("\n".join(lines), encoding="utf-8")


def _copied(app: Any) -> None:
    for name in ("reference", "notebooks", "_pages", "_static"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    _reference(HERE / "reference")
    included = {"figures": "figures/README", "faults": "tests/FAULTS", "changes": "CHANGELOG"}
    for name, path in included.items():
        text = (ROOT / f"{path}.md").read_text(encoding="utf-8")
        text = text.replace("](README.md)", "](/index.md)")
        (HERE / f"{name}.md").write_text(text, encoding="utf-8")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(path, HERE / "notebooks")
    from interp.course import lab, stepped

    toy = interp.build_circuit("rotary", 64, 65)
    scan = interp.scan_heads(toy, rows=4)
    patterns = interp.attention_patterns(toy, [[0, *range(5, 17), *range(5, 17)]])
    interp.gallery(scan, patterns).save(HERE / "_pages" / "gallery.html")
    page = lab.lab({"circuit": stepped.circuit()})
    (HERE / "_pages" / "lab.html").write_text(page, encoding="utf-8")


def _linked(app: Any, name: str, source: list[str]) -> None:
    """Let links between pages of the repository lead to the pages of the site."""
    for path, page in {
        "../README.md": "/index.md",
        "../figures/README.md": "/figures.md",
        "../tests/FAULTS.md": "/faults.md",
        "../CHANGELOG.md": "/changes.md",
        "../notebooks/": "/notebooks/",
        "../docs/": "/",
    }.items():
        source[0] = source[0].replace(f"]({path}", f"]({page}")


def _mathml(writer: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    from docutils.nodes import SkipNode

    display = "block" if node.tagname == "math_block" else "inline"
    writer.body.append(convert(node.astext(), display=display))
    raise SkipNode


def _index(app: Any, error: Exception | None) -> None:
    """Write llms.txt: every page with its address and its first sentence."""
    if error:
        return
    lines = ["# interp", "", (inspect.getdoc(interp) or "").split("\n")[0], ""]
    for name in sorted(app.env.found_docs):
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}]({name}.html)")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app: Any) -> None:
    """Connect what this file defines to the build."""
    _copied(app)
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    app.connect("source-read", _linked)
    app.connect("build-finished", _index)
