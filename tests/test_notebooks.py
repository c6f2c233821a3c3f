"""What scans, heads and galleries show in a notebook, and the notebooks themselves, run."""

import html
import io
import json
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from paged import BREAKOUTS, hostile, patterns_of, plain, scan_of
from PIL import Image
from places import ROOT
from test_gallery import Parsed
from tiny_models import tiny, words_tokenizer

import interp
from interp.errors import InputError
from interp.heads import Head
from interp.show.pages.gallery import gallery
from interp.show.pages.packing import unpacked
from interp.text import visible

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def real_table():
    return interp.HeadScan.load(ROOT / "figures" / "heads.parquet")


def inside(view):
    """The frame's attributes, and the document in it."""
    shown = Parsed(view)
    assert [tag for tag, _ in shown.elements] == ["iframe"]
    attributes = shown.elements[0][1]
    return attributes, attributes["srcdoc"]


def cells(document):
    """The rows of each table, as texts."""
    rows = [part.split("</tr>")[0] for part in document.split("<tr>")[1:]]
    return [[html.unescape(c.split("<")[0]) for c in _ends(row)] for row in rows]


def _ends(row):
    return [part.partition(">")[2] for part in row.replace("<th", "<td").split("<td")[1:]]


def test_a_scan_shows_its_counts_and_its_strongest_heads_with_their_evidence(real_table):
    document = real_table._repr_html_()
    rows = cells(document)
    for label, count in real_table.summary().items():
        assert [label, str(count)] in [row[:2] for row in rows]
    best = real_table.having("induction").iloc[0]
    ends = f"{best['induction_low']:.2f} to {best['induction_high']:.2f}"
    shown = next(row for row in rows if row[:2] == ["induction", best["name"]])
    assert shown[2:4] == [f"{best['induction']:.2f}", ends]
    assert shown[5] == f"{best['induction_null_99']:.2f}"
    assert shown[7] == f"{best['induction_logit_effect']:+.2f}"
    assert f"{len(real_table.frame)} heads by their most specific label" in document
    assert "seed 0" in document


def test_a_scan_is_shown_as_tall_as_it_is_without_what_runs_or_reaches_out(real_table):
    document = real_table._repr_html_()
    page = Parsed(document)
    assert not {"script", "iframe", "img", "link", "a"} & {tag for tag, _ in page.elements}
    given = {name for _, attributes in page.elements for name in attributes}
    assert given == {"class", "scope"}
    assert "height:" not in document.replace("line-height:", "")
    assert "url(" not in document
    rules = [line for line in document.splitlines() if line.endswith("}") and "{" in line]
    assert all(line.startswith(".interp-scan ") for line in rules)


@pytest.mark.fault("B06", "B08")
def test_a_name_from_outside_stays_text_in_a_scan():
    scan = hostile()[0].scan
    document = scan._repr_html_()
    assert Parsed(document).count("script") == 0
    assert html.escape(visible(BREAKOUTS[0])) in document
    assert "window.X=1</script>" not in document
    # A notebook would set what stands between two dollars as maths.
    assert document.startswith('<div class="interp-scan tex2jax_ignore mathjax_ignore">')


def test_the_still_picture_of_a_scan_is_whole_and_the_same_each_time(real_table):
    for scan in (real_table, hostile()[0].scan):
        picture = scan._repr_png_()
        assert picture == scan._repr_png_()
        pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("L"))
        assert min(pixels.shape) > 400
        edges = [pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]]
        assert all((edge == 255).all() for edge in edges)


def test_a_head_in_full_is_a_page_with_its_weights_alone():
    made, patterns = plain()
    head = made.head("1.0")
    attributes, document = inside(head._repr_html_())
    page = Parsed(document)
    assert attributes["sandbox"] == "allow-scripts"
    assert page.data["alone"] == "L1H0"
    assert [row["name"] for row in page.data["heads"]] == ["L1H0"]
    assert {name for name in page.scripts if name.startswith("w0-")} == {"w0-L1H0"}
    assert (unpacked(page.scripts["w0-L1H0"]) - patterns[1, 0, 0]).abs().max() < 0.002
    assert "circuitsvis" not in page.scripts
    assert Parsed(made.to_html()).data["alone"] is None
    assert repr(head) == "Gallery(L1H0 in planted: attention heads: on prompts of 25 tokens)"


def test_only_a_head_of_the_gallery_can_be_shown_in_full():
    patterns = patterns_of()
    made = gallery(scan_of(patterns), patterns, heads=["L1H0"])
    with pytest.raises(InputError, match="name must be a head of the gallery, got L0H0"):
        made.head(Head(0, 0))
    with pytest.raises(InputError, match="head must be named like L5H1"):
        made.head("first")


@pytest.mark.fault("B93")
@pytest.mark.parametrize("length", [1, 5, 25, 700])
def test_the_still_picture_of_a_head_shows_its_weights(length):
    patterns = patterns_of([["previous_token"]], torch.arange(length))
    made = gallery(scan_of(patterns), patterns)
    alone = made.head("L0H0")
    image = np.asarray(Image.open(io.BytesIO(alone._repr_png_())).convert("RGB"))
    assert alone._repr_png_() == alone._repr_png_()
    assert min(image.shape[:2]) > 200
    dark = (image[..., 2].astype(int) - image[..., 0] > 60).sum()
    # The stripe is as wide as a token, but for what is out of sight; a colour bar goes with it.
    assert dark > 3000


@pytest.mark.fault("B11")
def test_the_still_picture_of_a_head_names_its_tokens():
    tokens, pictures = torch.arange(3), []
    for texts in (["a", "b", "c"], ["a", "b", "c"], ["a", "b", "d"]):
        patterns = patterns_of([["sink"]], tokens, texts)
        pictures.append(gallery(scan_of(patterns), patterns).head("L0H0")._repr_png_())
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.fault("B102")
def test_showing_opens_no_socket(monkeypatch, real_table):
    def refuse(*arguments, **options):
        raise AssertionError("a socket was opened")

    model = interp.load_model(tiny("llama"), words_tokenizer())
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    patterns = interp.attention_patterns(model, "w5 w6 w5 w6")
    scan = interp.HeadScan.of(interp.classify_heads(patterns))
    made = gallery(scan, patterns)
    for shown in (real_table, scan, made, made.head("L1H0")):
        assert shown._repr_png_().startswith(b"\x89PNG")
    for _ in range(20):
        assert gallery(scan, patterns)._repr_html_()
        assert scan._repr_html_()


@pytest.mark.fault("B11")
def test_what_cannot_show_pages_gets_words_and_a_picture():
    made, _ = plain()
    for shown in (made, made.head("L1H0"), made.scan):
        given, _ = DisplayFormatter().format(shown)
        assert given["text/plain"] == repr(shown)
        assert given["image/png"].startswith(b"\x89PNG")
        assert given["text/html"]


@pytest.mark.browser
def test_scan_head_and_gallery_on_one_page_keep_to_themselves(open_page, tmp_path):
    made, patterns = plain()
    views = [hostile()[0].scan, made.scan, made.head("L1H0"), made.head("L0H0"), made]
    (tmp_path / "page.html").write_text(
        f"<!doctype html><input id='own' value='mine'>{''.join(v._repr_html_() for v in views)}"
    )
    page = open_page(tmp_path / "page.html")
    scan = page.locator(".interp-scan").first
    assert scan.locator("table").count() == 2
    assert BREAKOUTS[0] in scan.locator("caption").first.inner_text()
    folded = scan.bounding_box()["height"]
    scan.locator("summary").click()
    assert scan.bounding_box()["height"] > folded + 50
    page.focus("#own")
    frames = []
    for i in range(len(views) - 2):
        page.locator("iframe").nth(i).scroll_into_view_if_needed()
        frames.append(page.frame_locator("iframe").nth(i))
    for number, name in enumerate(("L1H0", "L0H0")):
        readout = frames[number].locator("#readout[data-query='24']")
        readout.wait_for()
        weight = patterns[1 if name == "L1H0" else 0, 0, 0, 24].max().item()
        assert abs(float(readout.get_attribute("data-value")) - weight) < 0.002
        assert frames[number].locator("#name").inner_text() == name
        assert not frames[number].locator("#heads").is_visible()
    frames[2].locator("#count").wait_for()
    assert frames[2].locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.id") == "own"
    assert page.evaluate("typeof data + typeof X") == "undefinedundefined"


def test_there_are_three_notebooks_and_they_are_kept_without_outputs():
    assert [path.name[:2] for path in NOTEBOOKS] == ["1_", "2_", "3_"]
    for path in NOTEBOOKS:
        content = json.loads(path.read_text(encoding="utf-8"))
        code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        assert all(c["outputs"] == [] and c["execution_count"] is None for c in code)
        assert path.stat().st_size < 20_000


def jupyter(*arguments, folder):
    """Runs nbconvert there, with nothing of the user's own."""
    homes = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", *arguments],
        cwd=folder,
        env={**os.environ, **{name: str(folder.parent / "jupyter") for name in homes}},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def shown_by(path, tmp_path):
    """What a run of the notebook shows, cell by cell, and the page that nbconvert makes of it."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (tmp_path / "figures").mkdir()
    shutil.copy(path, folder)
    shutil.copy(ROOT / "figures" / "heads.parquet", tmp_path / "figures")
    jupyter("--to", "notebook", "--inplace", "--execute", path.name, folder=folder)
    jupyter("--to", "html", path.name, folder=folder)
    content = json.loads((folder / path.name).read_text(encoding="utf-8"))
    outputs = [
        {kind: "".join(text) for kind, text in output["data"].items()}
        for cell in content["cells"]
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    return outputs, (folder / path.with_suffix(".html").name).read_text(encoding="utf-8")


def check_views(outputs, page, count):
    """The views are in the notebook and in the page, each with its picture."""
    views = [output for output in outputs if "text/html" in output and "image/png" in output]
    framed = [view["text/html"] for view in views if view["text/html"].startswith("<iframe")]
    assert len(views) == count
    elements = Parsed(page).elements
    scans = [tag for tag, a in elements if "interp-scan" in a.get("class", "")]
    assert len(framed) + len(scans) == count
    assert [a["srcdoc"] for tag, a in elements if tag == "iframe"] == [
        inside(view)[1] for view in framed
    ]
    assert [view["image/png"] for view in outputs if "<Figure" in view["text/plain"]]


@pytest.mark.fault("B11")
def test_the_notebook_on_circuits_runs_and_its_page_keeps_the_views(tmp_path):
    outputs, page = shown_by(NOTEBOOKS[2], tmp_path)
    check_views(outputs, page, 2)
    assert "'absolute': {'induction': 'L1H5', 'previous_token': 'L0H3'}" in str(outputs)
    assert outputs[-1]["text/plain"] == "([], 0.0)"


@pytest.mark.real_model
@pytest.mark.parametrize(("number", "views"), [(1, 1), (2, 3)])
def test_the_notebooks_on_the_real_model_run(number, views, tmp_path):
    outputs, page = shown_by(NOTEBOOKS[number - 1], tmp_path)
    check_views(outputs, page, views)
    if number == 1:
        assert any(output["text/plain"].startswith("[L18H6, L17H3, L17H4") for output in outputs)
        assert (tmp_path / "notebooks" / "heads.parquet").exists()
    else:
        assert any(output["text/plain"].startswith("[(' glad'") for output in outputs)
        assert (tmp_path / "notebooks" / "gallery.html").stat().st_size < 2_000_000
