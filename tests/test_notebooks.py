"""What heads and galleries show in a notebook, and the committed notebooks."""

import ast
import io
import json
import re
import shutil
import socket

import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure
from paged import hostile, patterns_of, plain, scan_of
from parsed import Parsed
from PIL import Image
from places import ROOT
from tiny_models import tiny, words_tokenizer

import interp
from interp.errors import InputError
from interp.show.pages.gallery import gallery
from interp.show.pages.packing import unpacked

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def framed(view):
    """The attributes of a view's only element, a frame, and the page in the frame."""
    [(tag, attributes)] = Parsed(view).elements
    assert tag == "iframe"
    return attributes, Parsed(attributes["srcdoc"])


def test_a_head_in_full_is_a_page_with_the_weights_of_that_head_alone():
    made, patterns = plain()
    head = made.head("1.0")
    attributes, page = framed(head._repr_html_())
    assert attributes["sandbox"] == "allow-scripts"
    assert page.data["alone"] == "L1H0"
    assert [row["name"] for row in page.data["heads"]] == ["L1H0"]
    assert {name for name in page.scripts if name.startswith("w0-")} == {"w0-L1H0"}
    assert (unpacked(page.scripts["w0-L1H0"]) - patterns[1, 0, 0]).abs().max() < 0.002
    assert Parsed(made.to_html()).data["alone"] is None
    for wrong in ("L9H9", "first"):
        with pytest.raises(InputError, match="must"):
            made.head(wrong)


@pytest.mark.fault("B11", "B93")
@pytest.mark.parametrize("length", [1, 200])
def test_the_still_picture_of_a_head_shows_its_weights(length):
    patterns = patterns_of([["previous_token"]], torch.arange(length))
    alone = gallery(scan_of(patterns), patterns).head("L0H0")
    picture = alone._repr_png_()
    assert picture == alone._repr_png_()
    image = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    dark = (image[..., 2].astype(int) - image[..., 0] > 60).sum()
    assert dark > 3000  # The diagonal of weights, and the colour bar.


@pytest.mark.fault("B11")
def test_the_still_picture_of_a_head_names_its_tokens():
    tokens, pictures = torch.arange(3), []
    for texts in (["a", "b", "c"], ["a", "b", "c"], ["a", "b", "d"]):
        patterns = patterns_of([["sink"]], tokens, texts)
        pictures.append(gallery(scan_of(patterns), patterns).head("L0H0")._repr_png_())
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.fault("B06", "B08", "B102")
def test_showing_opens_no_socket_and_keeps_texts_text(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a socket was opened")

    model = interp.load_model(tiny("llama"), words_tokenizer())
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    patterns = interp.attention_patterns(model, "w5 w6 w5 w6")
    scan = interp.HeadScan.of(interp.classify_heads(patterns))
    for made in (gallery(scan, patterns), hostile()[0]):
        for shown in (made, made.head("L1H0")):
            assert shown._repr_png_().startswith(b"\x89PNG")
            assert framed(shown._repr_html_())[1].count("img") <= 1
        assert "<script" not in made.scan._repr_html_()


@pytest.mark.fault("B11")
def test_a_notebook_gets_words_and_html_and_of_pages_a_picture():
    made, _ = plain()
    for shown in (made, made.head("L1H0"), made.scan):
        data, _ = DisplayFormatter().format(shown)
        assert data["text/plain"] == repr(shown)
        assert data["text/html"]
        if shown is not made.scan:
            assert data["image/png"].startswith(b"\x89PNG")


@pytest.mark.browser
def test_scan_head_and_gallery_on_one_page_do_not_disturb_each_other(open_page, tmp_path):
    made, patterns = plain()
    views = [hostile()[0].scan, made.scan, made.head("L1H0"), made.head("L0H0"), made]
    (tmp_path / "page.html").write_text(
        f"<!doctype html><input id='own' value='mine'>{''.join(v._repr_html_() for v in views)}"
    )
    page = open_page(tmp_path / "page.html")
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


def code_cells(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def test_the_notebooks_are_kept_with_outputs_without_warnings_and_paths():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number}_" for number in range(1, 7)]
    for path in NOTEBOOKS:
        cells = code_cells(path)
        assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
        outputs = [output for cell in cells for output in cell["outputs"]]
        # Neither printed lines nor warnings: only what the last line of a cell shows.
        assert {output["output_type"] for output in outputs} == {"execute_result"}
        assert path.stat().st_size < 1_500_000
        assert not re.search(r'["\' ](/\w+){2}|[A-Z]:\\\\', "".join(map(words_of, outputs)))


def words_of(output):
    return " ".join("".join(output["data"]["text/plain"]).split())


def results(path):
    """Run the code of a notebook here; yields the result of each cell that has one."""
    names = {}
    for cell in code_cells(path):
        code = [line for line in cell["source"] if not line.startswith("%")]
        *statements, last = ast.parse("".join(code)).body
        exec(compile(ast.Module(statements, []), path.name, "exec"), names)
        if isinstance(last, ast.Expr):
            yield eval(compile(ast.Expression(last.value), path.name, "eval"), names)
        else:
            exec(compile(ast.Module([last], []), path.name, "exec"), names)


NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.mark.fault("B11")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            marks=[]
            if path.name.startswith("3")
            else [pytest.mark.real_model, pytest.mark.slow]
            if path.name[0] in "1456"  # The README's lines do the same as the first.
            else [pytest.mark.real_model],
        )
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_shows_what_is_committed(path, tmp_path, monkeypatch, request):
    (tmp_path / "notebooks").mkdir()
    for file in ("heads.parquet", "ioi/circuit.json"):
        (tmp_path / "figures" / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "figures" / file, tmp_path / "figures" / file)
    monkeypatch.chdir(tmp_path / "notebooks")
    if path.name[0] in "124":
        model = request.getfixturevalue("real_model")
        monkeypatch.setitem(vars(interp), "load_model", lambda: model)
    committed = [output for cell in code_cells(path) for output in cell["outputs"]]
    shown = list(results(path))
    assert len(shown) == len(committed)
    for result, output in zip(shown, committed, strict=True):
        # In a notebook pandas wraps lines; here it would not.
        wide = isinstance(result, pd.DataFrame)
        text = result.to_string(line_width=80) if wide else repr(result)
        words, expected = " ".join(text.split()), words_of(output)
        assert NUMBER.sub("#", words) == NUMBER.sub("#", expected)
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (words, expected)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.02)
        drawn = isinstance(result, Figure)
        assert ("image/png" in output["data"]) == (drawn or isinstance(result, interp.Gallery))
        assert ("text/html" in output["data"]) == (hasattr(result, "_repr_html_") and not drawn)
