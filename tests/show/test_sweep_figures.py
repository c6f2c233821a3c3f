"""Figures and the page of sweeps show the scores, onsets, layers and labels of their table."""

import json
import re

import numpy as np
import pytest
from drawn import sweep_of_two

from interp.errors import InputError
from interp.show.figures import emergence_curves, layer_map, model_comparison, save_figure
from interp.show.pages.sweep import sweep_page
from interp.sweeps.trajectories import Trajectories


@pytest.fixture(scope="module")
def over():
    return sweep_of_two()


def test_emergence_curves_draw_the_strongest_heads_their_nulls_and_onsets(over, tmp_path):
    figure = emergence_curves(over)
    induction, sink = figure.axes
    assert induction.get_title(loc="left") == "induction: 150 [100, 200]"
    assert sink.get_title(loc="left") == "sink: 0 [0, 0]"
    lines = [line for line in induction.lines if len(line.get_xdata()) == 3]
    assert [line.get_ydata().tolist() for line in lines] == [[0.05, 0.9, 0.9], [0.05, 0.05, 0.9]]
    marks = [line.get_xdata()[0] for line in induction.lines if len(line.get_xdata()) == 1]
    assert marks == [100, 200]
    save_figure(figure, tmp_path / "curves.svg")


def test_the_layer_map_shows_each_layers_strongest_head_of_one_model_or_the_mean(over):
    def cells(figure):
        return np.asarray(figure.axes[0].images[0].get_array())

    np.testing.assert_allclose(cells(layer_map(over, "b")), [[0.05] * 3, [0.05, 0.05, 0.9]])
    mean = layer_map(over)
    np.testing.assert_allclose(cells(mean)[1], [0.05, 0.475, 0.9])
    assert any("mean of 2 models" in text.get_text() for text in mean.texts)
    deeper = over.scores.assign(layer=over.scores["layer"] + (over.scores["model"] == "b"))
    with pytest.raises(InputError, match="model must be given"):
        layer_map(Trajectories(deeper, over.table))


def test_models_side_by_side_have_their_labels_scores_and_nulls(over):
    figure = model_comparison(over)
    shares, induction, _ = figure.axes
    assert [bar.get_width() for bar in shares.patches] == [0.5] * 4
    assert [label.get_text() for label in shares.get_yticklabels()] == ["a", "b"]
    assert [bar.get_width() for bar in induction.patches] == [0.3, 0.3]
    assert induction.lines[0].get_xdata().tolist() == [0.9, 0.9]


def test_the_page_holds_every_score_onset_and_label_and_reads_no_name_as_html(over, monkeypatch):
    page = sweep_page(over, "<b>a</b>").to_html()
    assert "&lt;b&gt;a&lt;/b&gt;" in page
    assert "<td>induction</td><td>150 [100, 200]</td><td>2 of 2</td>" in page
    data = json.loads(re.search('id="data">(.*?)</script>', page)[1])
    assert [model["name"] for model in data["models"]] == ["a", "b"]
    b = data["models"][1]
    assert (b["steps"], b["heads"], b["layer"]) == ([0, 100, 200], ["L0H0", "L1H0"], [0, 1])
    score, low, high, null = b["kinds"]["induction"]
    assert score == [[50, 50, 50], [50, 50, 900]]
    assert (low[1][2], high[1][2], null[1]) == (880, 920, [300] * 3)
    assert ["L1H0", "induction", 100, 200, 200] in b["onsets"]
    assert b["labels"] == ["sink", "mixed > induction"]
    monkeypatch.setattr("interp.show.pages.sweep._MOST", 12)
    thin = sweep_page(over)._data()
    assert [model["steps"] for model in thin["models"]] == [[0, 200]] * 2
    assert thin["notes"] == ["The curves show one of 2 checkpoints."]


@pytest.mark.browser
def test_a_head_that_is_chosen_in_the_table_or_the_map_shows_its_curve(over, open_page, tmp_path):
    page = open_page(sweep_page(over).save(tmp_path / "sweep.html"))
    assert page.query_selector_all(".head-line") == []
    page.select_option("#model", label="b")
    page.select_option("#kind", label="induction")
    assert page.inner_text("#onsets").split() == ["L1H0", "induction", "200", "100", "200"]
    page.click("#onsets button")
    assert page.inner_text("#readout") == "L1H0 of b: mixed > induction"
    line = page.get_attribute(".head-line", "d")
    places = [[float(x) for x in point.split()] for point in re.split("[ML]", line)[1:]]
    assert [x for x, _ in places] == [30, 162, 294]  # From the left edge to the right one.
    tall, edge = 120, 6
    want = [edge + (1 - score) * (tall - 2 * edge) for score in (0.05, 0.05, 0.9)]
    assert [y for _, y in places] == pytest.approx(want, abs=0.06)
    box = page.locator("canvas").first.bounding_box()
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.2 * box["height"])
    assert page.inner_text("#readout") == "L0H0 of b: sink"
