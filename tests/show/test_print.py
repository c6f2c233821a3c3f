"""Every figure at the width of a column and of a page: text of 7 to 9 points that nothing hides."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import effects_of, explained_scan, made_up, sweep_of_two
from matplotlib.text import Text
from paged import patterns_of, scan_of
from places import ROOT

import interp
from interp.course import designed
from interp.effects.edges import Edge, PathEffects
from interp.errors import InputError
from interp.heads import Head
from interp.scan.table import HeadScan
from interp.show import figures as plots
from interp.show.figures.patterns import designed_heads

PATTERNS = patterns_of()
SCAN = scan_of(PATTERNS)
WIDTHS = [3.3, pytest.param(6.9, marks=pytest.mark.slow)]


def record(name):
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def circuit():
    ends = [("embedding", "L0H1"), ("L0H1", "L9H3"), ("L4H2", "L9H3"), ("L9H3", "logits")]
    rows = [(*pair, "k", 0.5 - n / 4, True) for n, pair in enumerate(ends)]
    table = pd.DataFrame(rows, columns=["source", "target", "path", "score", "kept"])
    made_by = {"group": 1, "n_layers": 30, "metric": "logit difference", "model": "a model"}
    return SimpleNamespace(to_frame=lambda: table, made_by=made_by | {"prompts": [1, 2]})


def by_position():
    rows = [
        dict(layer=n, head=0, position=at, effect=float(n - at)) for n in (0, 1) for at in (0, 1)
    ]
    return plots.position_map(effects_of(rows), [" John", " Mary"])


def paths():
    ends = [(path, source, to) for path in "QKV" for source in range(4) for to in (3, 7, 8)]
    edges = [
        Edge(Head(0, n), Head(29, to), path, metric_before=1.0, metric_after=n / 2)
        for path, n, to in ends
    ]
    return plots.path_map(PathEffects(tuple(edges), {"metric": "loss"}))


def sensitivity():
    table = pd.read_csv(ROOT / "figures" / "sensitivity.csv")
    return plots.sensitivity_chart(table.assign(flips=table["flips"].fillna("")), "a model")


def diagram():
    comparison = record("figures/circuits/comparison.json")
    return plots.circuit_diagram(comparison["circuits"]["real"], comparison["edges"])


def distances():
    table = HeadScan.load(ROOT / "figures" / "long" / "heads.csv").frame
    return plots.distance_curves(HeadScan(table.iloc[140:200].reset_index(drop=True), {}))


def why():
    toy = interp.build_circuit("absolute", vocabulary=16, length=16)
    return plots.why_bars(interp.why(toy, torch.tensor([[0, 5, 6, 7, 5]]), "L1H5", query=4))


FIGURES = {
    "accuracy_curve": lambda: plots.accuracy_curve(record("figures/accuracy.json")),
    "attention_arcs": lambda: plots.attention_arcs(PATTERNS, "L1H0", 22, scan=SCAN),
    "circuit_diagram": diagram,
    "circuit_graph": lambda: plots.circuit_graph(circuit()),
    "circuit_patterns": lambda: plots.circuit_patterns(
        {**record("figures/circuits/comparison.json")["circuits"]}
    ),
    "cost_curves": lambda: plots.cost_curves(record("benchmarks/streaming.json")),
    "designed_heads": lambda: designed_heads(designed.EXAMPLE.words, designed.patterns(), window=4),
    "distance_curves": distances,
    "emergence_curves": lambda: plots.emergence_curves(sweep_of_two()),
    "exam_scores": lambda: plots.exam_scores(pd.read_csv(ROOT / "figures" / "exam.csv")),
    "explained_map": lambda: plots.explained_map(explained_scan(30, 9)),
    "faithfulness_curve": lambda: plots.faithfulness_curve(
        interp.Circuit.load(ROOT / "figures" / "ioi" / "circuit.json")
    ),
    "why_bars": why,
    "head_card": lambda: plots.head_card(SCAN, "L1H0", PATTERNS),
    "head_map": lambda: plots.head_map(np.random.default_rng(0).normal(size=(30, 9)), top=9),
    "head_page": lambda: plots.head_page(PATTERNS, "L1H0", scan=SCAN),
    "head_zoo": lambda: plots.head_zoo(SCAN, PATTERNS),
    "heads_row": lambda: plots.heads_row(PATTERNS, ["L1H0", "L0H0", "L0H1"], scan=SCAN),
    "layer_map": lambda: plots.layer_map(sweep_of_two()),
    "model_comparison": lambda: plots.model_comparison(sweep_of_two()),
    "path_map": paths,
    "pattern_page": lambda: plots.pattern_page(SCAN, PATTERNS),
    "phase_change": lambda: plots.phase_change(record("figures/phase_change.json")["runs"]),
    "position_map": by_position,
    "score_by_layer": lambda: plots.score_by_layer(SCAN),
    "score_mosaic": lambda: plots.score_mosaic(made_up(30, 9)),
    "sensitivity_chart": sensitivity,
    "sink_losses": lambda: plots.sink_losses(record("figures/sink_experiment.json")),
}


def texts_of(figure):
    """All texts that are seen."""
    hidden = set()
    for axes in figure.axes:
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = min(ends) - 1e-9, max(ends) + 1e-9
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            out = [tick for tick in ticks if not low <= tick.get_loc() <= high]
            hidden |= {label for tick in out for label in (tick.label1, tick.label2)}
            hidden |= set() if axes.axison else {*axis.findobj(Text)}
    found = [text for text in figure.findobj(Text) if text not in hidden and text.get_visible()]
    return [text for text in found if text.get_text().strip()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_text_is_readable_at_the_printed_width(name, width):
    with plots.printed(width=width):
        figure = FIGURES[name]()
    assert figure.get_figwidth() == pytest.approx(width)
    figure.draw_without_rendering()
    texts = texts_of(figure)
    assert len(texts) > 3
    assert {text.get_fontsize() for text in texts} <= {7, 7.5, 9}
    boxes = [(text.get_window_extent().shrunk(1, 0.85), text.get_text()) for text in texts]
    for place, (box, words) in enumerate(boxes):
        assert box.x0 >= 0 <= box.y0, words
        assert box.x1 <= figure.bbox.x1, words
        assert box.y1 <= figure.bbox.y1, words
        assert [other for one, other in boxes[place + 1 :] if box.overlaps(one)] == [], words


def test_every_figure_is_measured():
    public = {name: getattr(plots, name) for name in dir(plots) if name[0].islower()}
    how = {name: getattr(one, "__signature__", None) for name, one in public.items()}
    drawing = {
        name for name, keywords in how.items() if keywords and "context" in keywords.parameters
    }
    assert len(drawing) > 20
    assert drawing <= {*FIGURES}


def test_a_figure_is_printed_as_it_is_told():
    values = [[0.1, -0.4], [0.0, 0.9]]
    own = [text.get_text() for text in plots.head_map(values).texts]
    paper = plots.head_map(values, context="paper", width=3.3)
    assert [text.get_text() for text in paper.texts] == own[1:-1]
    assert paper.get_figheight() < plots.head_map(values, width=3.3).get_figheight()
    other = plots.head_map(values, context="paper", title="Mine", notes="Seen.")
    assert [text.get_text() for text in other.texts] == ["Mine", *own[1:-1], "Seen."]
    talk = plots.head_map(values, context="talk")
    assert talk.get_figwidth() == 10
    assert {text.get_fontsize() for text in texts_of(talk)} == {14, 18}
    with plots.printed(title="", notes=False):
        assert [text.get_text() for text in plots.head_map(values).texts] == own[1:-1]
    assert [text.get_text() for text in plots.head_map(values).texts] == own
    for wrong in ({"context": "slides"}, {"width": 1}, {"context": "talk", "width": 5}):
        with pytest.raises(InputError, match=f"^{[*wrong][-1]} must"):
            plots.head_map(values, **wrong)


def test_text_stays_text_in_svg_and_has_its_font_in_pdf(tmp_path):
    figure = plots.head_map([[0.1, 0.4]], title="A title of <mine>")
    for ending in ("svg", "pdf"):
        plots.save_figure(figure, tmp_path / f"map.{ending}")
    assert "A title of &lt;mine&gt;" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    content = (tmp_path / "map.pdf").read_bytes()
    assert b"/TrueType" in content or b"/Type0" in content or b"/CIDFontType2" in content
    assert b"/Type3" not in content


def test_lines_around_fine_cells_leave_them_and_their_neighbours_visible():
    from interp.show.figures.page import Page, outline, paint

    cells = np.eye(50, dtype=bool)
    page = Page("", "")
    for side in (1.0, 6.0):
        panel = page.panel(0.4, 0.0, side, side)
        paint(panel, cells.astype(float))
        outline(panel, cells)
        lines = panel.collections[0].get_segments()
        near = {tuple(np.mean(line, axis=0)) for line in lines if abs(np.mean(line)) < 30}
        assert ((24.5, 25.0) in near) == (side > 3)
        assert panel.collections[0].get_linewidth() <= 72 * side / 50 / 5
