"""Maps of heads, positions and paths: the numbers that they show, and the heads that they name."""

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import effects_of
from matplotlib.colors import same_color

import interp
from interp.effects.edges import Edge, PathEffects
from interp.heads import Head
from interp.show.figures import head_map, path_map, position_map, why_bars
from interp.show.figures.style import ACCENT, COLOURS, DIFFERENCES, GREY
from interp.show.values import values_of

SHAPES = [(30, 9), (12, 12), (2, 4), (1, 1), (96, 96)]


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_a_head_map_shows_each_number_at_its_place_and_names_the_strongest(layers, heads):
    values = np.random.default_rng(0).normal(0, 0.1, (layers, heads))
    values[layers // 2, heads - 1] = -1.0
    figure = head_map(values, unit="logits", top=3)
    panel, bar = figure.axes
    image = panel.images[0]
    assert np.allclose(image.get_array(), values.T)
    assert image.get_clim() == (-1.0, 1.0)
    assert image.get_cmap().name == DIFFERENCES.name
    assert same_color(image.cmap(image.norm(0.0)), DIFFERENCES(0.5))
    assert bar.get_xlabel() == "logits"
    assert f"1  L{layers // 2}H{heads - 1}  -1.00" in texts(figure)
    if layers < 96:  # No room for numbers: the cells are outlined.
        (first,) = [text for text in panel.texts if text.get_text() == "1"]
        assert first.get_position() == (layers // 2, heads - 1)
    else:
        lines = panel.collections[0].get_segments()
        assert (layers // 2, heads - 0.5) in {tuple(np.mean(line, 0)) for line in lines}
    width, height = figure.get_size_inches()
    figure.canvas.draw()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height
    marks = [text.get_window_extent() for text in panel.texts]
    cell = panel.get_window_extent().width / layers
    assert all(mark.height < panel.get_window_extent().height / heads for mark in marks)
    assert all(mark.width < cell for mark in marks)


def test_numbers_for_heads_come_from_anything_that_has_one_for_each():
    table = {"L0H1": 0.25, (1, 0): -0.5}
    frame = pd.DataFrame([[np.nan, 0.25], [-0.5, np.nan]], ["L0", "L1"], ["H0", "H1"])
    effects = effects_of(
        [{"layer": 0, "head": 1, "effect": 0.25}, {"layer": 1, "head": 0, "effect": -0.5}]
    )
    for values in (table, frame, frame.to_numpy(), torch.tensor(frame.to_numpy()), effects):
        assert values_of(values) == {Head(0, 1): 0.25, Head(1, 0): -0.5}
    assert values_of(effects, "low") == {Head(0, 1): -0.5, Head(1, 0): -0.5}
    figure = head_map(effects)
    assert figure.axes[1].get_xlabel() == "logits"
    assert "1  L1H0  -0.50  [-0.50, 0.50]" in texts(figure)
    assert same_color(figure.axes[0].patch.get_facecolor(), GREY)
    scan = interp.classify_heads(torch.eye(4).expand(2, 3, 4, 4), torch.arange(8).view(2, 4) + 3)
    scan = interp.HeadScan.of(scan)
    figure = head_map(scan, "current_token")
    assert figure.axes[0].images[0].get_cmap().name == COLOURS.name
    assert figure.axes[0].images[0].get_clim() == (0.0, 1.0)
    for wrong, column, words in (
        (effects, "name", "column must be one of numbers"),
        (scan, None, "column must be one of numbers"),
        ([1.0, 2.0], None, r"values must be \[layer, head\]"),
        ([[np.inf]], None, "values must be finite"),
        (pd.DataFrame({"effect": [1.0]}, ["a set"]), None, "values must be of single heads"),
        (
            effects_of([{"layer": 0, "head": 1, "position": i, "effect": i} for i in (0, 1)]),
            None,
            "choose a position",
        ),
    ):
        with pytest.raises(interp.InputError, match=words):
            head_map(wrong, column)


def test_a_position_map_has_the_strongest_heads_and_the_tokens():
    rows = [
        {"layer": layer, "head": head, "position": at, "effect": layer * 0.5 - head * at}
        for layer in range(2)
        for head in range(3)
        for at in range(2)
    ]
    figure = position_map(effects_of(rows), [" John", "$x$"], top=2)
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["L0H2", "L1H2"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["␣John", "$x$"]
    assert panel.images[0].get_array().tolist() == [[0.0, -2.0], [0.5, -1.5]]
    assert [text.get_text() for text in panel.texts] == ["-2.00", "+0.50", "-1.50"]
    with pytest.raises(interp.InputError, match="tokens must be one for each position, 2, got 1"):
        position_map(effects_of(rows), [" John"])
    with pytest.raises(interp.InputError, match="effects must be of several positions"):
        position_map(effects_of([{"layer": 0, "head": 0, "effect": 1.0}]))


def test_a_path_map_has_a_panel_for_each_input_and_the_strongest_sources():
    edges = [
        Edge(
            Head(0, head),
            Head(2, to),
            path,
            metric_before=1.0,
            metric_after=1.0 - head * (path == "K") + to,
        )
        for to in (3, 1)
        for path in "QKV"
        for head in range(4)
    ]
    figure = path_map(PathEffects(tuple(edges), {"metric": "loss"}), top=2)
    *panels, bar = figure.axes
    assert [panel.get_title("left") for panel in panels] == [
        "through queries",
        "through keys",
        "through values",
    ]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["L0H0", "L0H1"]
    assert [label.get_text() for label in panels[1].get_xticklabels()] == ["L2H3", "L2H1"]
    assert panels[1].images[0].get_array().tolist() == [[3.0, 1.0], [2.0, 0.0]]
    assert bar.get_xlabel() == "change of loss"
    stripes = [
        Edge(Head(0, 0), Head(1, 0), path, stripe_before=0.9, stripe_after=0.1) for path in "QKV"
    ]
    assert len(path_map(PathEffects(tuple(stripes))).axes) == 3  # Values leave the stripe as it is.


def test_the_bars_are_the_largest_terms_and_the_checks():
    toy = interp.build_circuit("absolute", vocabulary=16, length=16)
    why = interp.why(toy, torch.tensor([[0, 5, 6, 7, 5]]), "L1H5", query=4)
    left, right = why_bars(why, top=5).axes
    table = why.to_frame()
    largest = table.loc[table["share"].abs().nlargest(5).index].sort_index()
    assert [bar.get_width() for bar in left.patches] == [*largest["term"]]
    coloured = [same_color(bar.get_facecolor(), ACCENT) for bar in left.patches]
    assert coloured == [*largest["in_smallest"]]
    assert 0 < sum(coloured) < 5
    widths = [bar.get_width() for bar in right.patches]
    assert widths == [*why.checks["predicted"], *why.checks["recomputed"]]
