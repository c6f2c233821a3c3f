import os
import subprocess
import sys
import warnings

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import same_color

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import KINDS, LABELS
from interp.kinds.labels import HeadLabel
from interp.kinds.targets import NONE
from interp.models.hooks import AttentionPatterns
from interp.patterns.classify import classify_heads
from interp.scan.table import HeadScan
from interp.show import figures as plots
from interp.show.figures import legible, pattern_page, save_figure, score_mosaic, style, texts

BOS = 0
PERIOD = 16
TOKENS = torch.tensor([BOS, *range(10, 10 + PERIOD), *range(10, 10 + PERIOD)])
MADE_BY = {
    "model": "planted",
    "bos": BOS,
    "seed": 3,
    "dtype": "float32",
    "device": "cpu",
    "tokenizer": False,
    "bos_text": None,
    "probes": [{"parts": ["repeated"], "rows": 1, "length": 33, "periods": [PERIOD]}],
    "scored_on": {"induction": "repeated", "sink": "random"},
}
PLAN = [["previous_token", "sink", "uniform"], ["induction", "duplicate_token", "induction"]]
HOSTILE = ["$", "$$", "$x", "a$b$c", r"\frac", "_", "^", "%", "{", "<b>&amp;", "-->", "]]>"]
HOSTILE += [
    "東",
    "한",
    "é",
    "🙂",
    "👩‍👩‍👧",
    "\u0627",
    "e\u0301",
    "\u0301",
    "\u115f",
    "\u2800",
    "\ue000",
]
HOSTILE += ["", " ", "  ", "\n", "\n\n", "\t", "\r", "\x00", "\x01", "\u200b", "\u202e", "\ud800"]
HOSTILE += ["the", " the", "␣the", "⏎", "⇥", "∅", "\u00a0", "\u2028", "\ufeff", "\U0010ffff"]


def plant(kind, tokens=TOKENS):
    """A head that attends to the kind's targets, and to the first token where there are none."""
    length = len(tokens)
    if kind == "uniform":
        return torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]
    keys = KINDS[kind](tokens[None])[0]
    return torch.eye(length)[torch.where(keys == NONE, 0, keys)[:, 0]]


def patterns_of(plan=PLAN, tokens=TOKENS):
    stack = torch.stack([torch.stack([plant(kind, tokens) for kind in layer]) for layer in plan])
    patterns = stack[:, None].as_subclass(AttentionPatterns)
    patterns.tokens = tokens[None]
    patterns.learned_sinks = False
    patterns.layers = tuple(range(len(plan)))
    patterns.texts = [[f"<{token}>" for token in tokens.tolist()]]
    return patterns


def scan_of(patterns, made_by=MADE_BY):
    return HeadScan.of(classify_heads(patterns), made_by=made_by)


def made_up(layers, heads, made_by=MADE_BY, **verdict):
    """Any number of heads, every third one labelled, some not measured."""
    rows = []
    for layer in range(layers):
        for head in range(heads):
            holds = (layer + head) % 3 == 0
            scores = dict.fromkeys(LABELS, 0.9 if holds else 0.1)
            if layer == 1:
                del scores["induction"], scores["duplicate_token"]
            labels = tuple(LABELS[kind] for kind in scores) if holds else ("mixed",)
            missing = {} if "induction" in scores else {"induction": "no token is repeated"}
            found = HeadLabel(Head(layer, head), labels[0], labels, scores, {}, missing)
            rows.append(found)
    return HeadScan.of(rows, made_by=made_by)


PATTERNS = patterns_of()
SCAN = scan_of(PATTERNS)
NOTHING = scan_of(patterns_of([["uniform", "uniform"]]))


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def words(figure):
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join([*(text.get_text() for text in figure.texts), *legends])


def picture(figure, name):
    return next(axes for axes in panels(figure) if axes.get_title().startswith(name))


def test_the_mosaic_has_one_panel_per_kind_and_one_colour_bar():
    figure = score_mosaic(SCAN)
    titles = [axes.get_title(loc="left") for axes in panels(figure)]
    assert [title.split(":")[0] for title in titles] == list(LABELS.values())
    assert titles[0].startswith("induction: 2 of 6 heads\n")
    (bar,) = (axes for axes in figure.axes if not axes.images)
    assert bar.get_xlabel() == "mean attention mass on the kind's targets"


def test_a_panel_shows_each_score_at_its_layer_and_head():
    figure = score_mosaic(SCAN)
    for axes, kind in zip(panels(figure), LABELS):
        shown = axes.images[0].get_array()
        assert shown.shape == (3, 2)
        for row in SCAN.frame.to_dict("records"):
            assert shown[row["head"], row["layer"]] == pytest.approx(row[kind])


@pytest.mark.fault("B46")
@pytest.mark.parametrize("draw", [lambda: score_mosaic(SCAN), lambda: pattern_page(SCAN, PATTERNS)])
def test_colours_run_from_0_to_1_whatever_the_values(draw):
    figure = draw()
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(0, 1)}
    bar = next(axes for axes in figure.axes if not axes.images)
    assert bar.get_xlim() == (0, 1)


def test_the_heads_that_carry_a_label_are_outlined_and_no_others():
    for axes, kind in zip(panels(score_mosaic(SCAN)), LABELS):
        boxes = [path.get_extents() for path in axes.collections[0].get_paths()]
        middles = {(round((b.x0 + b.x1) / 2), round((b.y0 + b.y1) / 2)) for b in boxes}
        assert middles == set(SCAN.heads(LABELS[kind]))
        assert len(boxes) == len(middles)


def test_a_missing_score_is_grey_and_said_so_and_never_zero():
    scan = made_up(3, 2)
    figure = score_mosaic(scan)
    induction, sink = panels(figure)[0], panels(figure)[-1]
    assert np.ma.getmaskarray(induction.images[0].get_array())[:, 1].all()
    assert not np.ma.getmaskarray(induction.images[0].get_array())[:, [0, 2]].any()
    assert not np.ma.getmaskarray(sink.images[0].get_array()).any()
    assert induction.patch.get_hatch()
    red, green, blue, _ = induction.patch.get_facecolor()
    assert red == green == blue < 1
    assert induction.images[0].cmap.get_bad()[3] == 0  # So that the grey shows through.
    assert "2 of 4 measured" in induction.get_title(loc="left")
    assert "not measured" in words(figure)
    assert "Not measured: induction: no token is repeated." in words(figure)
    assert "not measured" not in words(score_mosaic(SCAN))


def test_a_kind_that_was_not_measured_at_all_does_not_read_as_no_heads():
    figure = score_mosaic(scan_of(patterns_of([["uniform"]], torch.arange(20))))
    title = panels(figure)[0].get_title(loc="left")
    assert title.startswith("induction: not measured\n")


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (30, 9), (12, 12), (48, 25)])
def test_ticks_are_whole_numbers_that_start_at_0(shape):
    figure = score_mosaic(made_up(*shape))
    figure.draw_without_rendering()
    for axes in panels(figure):
        for axis, size in zip((axes.xaxis, axes.yaxis), shape):
            ticks = [tick for tick in axis.get_majorticklocs() if -0.5 < tick < size - 0.5]
            assert ticks[0] == 0
            assert all(tick == int(tick) for tick in ticks)
            assert len(ticks) <= 7


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (30, 9), (24, 16), (48, 25), (80, 8), (2, 64)])
def test_in_the_mosaic_nothing_is_clipped_and_nothing_overlaps(shape):
    name = "W" * 30 + " $x$ " + "M" * 30
    check_the_layout(score_mosaic(made_up(*shape, made_by=MADE_BY | {"model": name})))


@pytest.mark.parametrize("top", [1, 2, 7])
def test_on_the_page_nothing_is_clipped_and_nothing_overlaps(top):
    patterns = patterns_of([*PLAN, ["previous_token"] * 3, ["induction", "sink", "sink"]])
    check_the_layout(pattern_page(scan_of(patterns), patterns, top=top))


def check_the_layout(figure):
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    assert 0 < drawn.x0 < drawn.x1 < figure.get_figwidth()
    assert 0 < drawn.y0 < drawn.y1 < figure.get_figheight()

    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    boxes = [axes.get_window_extent() for axes in figure.axes]
    for axes in figure.axes:
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = [t for t in axis.get_major_ticks() if min(ends) <= t.get_loc() <= max(ends)]
            texts += [tick.label1 for tick in ticks]
    boxes += [text.get_window_extent() for text in texts if text.get_text() and text.get_visible()]
    for place, box in enumerate(boxes):
        # The ink of a line of text is lower than its box.
        assert not any(box.shrunk(1, 0.9).overlaps(other) for other in boxes[place + 1 :]), box


def test_the_page_shows_the_strongest_heads_of_each_kind_in_order():
    figure = pattern_page(SCAN, PATTERNS, top=1)
    drawn = [axes.get_title().split()[0] for axes in panels(figure)]
    strongest = [SCAN.heads(label)[:1] for label in LABELS.values()]
    assert drawn == [str(head) for heads in strongest for head in heads]
    more = [axes.get_title().split()[0] for axes in panels(pattern_page(SCAN, PATTERNS))]
    assert more[:2] == ["L1H0", "L1H2"]


def test_a_picture_is_the_pattern_with_the_score_of_the_scan_above_it():
    figure = pattern_page(SCAN, PATTERNS)
    axes = picture(figure, "L1H0")
    shown = axes.images[0].get_array()
    later = np.triu(np.ones(shown.shape, dtype=bool), 1)
    assert (np.ma.getmaskarray(shown) == later).all()
    assert (shown.filled(0) == PATTERNS[1, 0, 0].numpy()).all()
    assert same_color(axes.patch.get_facecolor(), style.GREY)
    assert axes.get_title() == f"L1H0  {SCAN.frame['induction'].max():.2f}"
    assert axes.get_ylabel() == "query"
    assert picture(figure, "L0H1").get_xlabel() == "key"


def test_the_targets_of_the_kind_are_outlined():
    lines = picture(pattern_page(SCAN, PATTERNS), "L1H0").collections[0].get_segments()
    places = {tuple(np.mean(line, axis=0)) for line in lines}
    for query in range(PERIOD + 1, 2 * PERIOD + 1):
        key = query - PERIOD + 1
        sides = {(key - 0.5, query), (key + 0.5, query), (key, query - 0.5), (key, query + 0.5)}
        assert sides <= places
    assert len(lines) == 4 * PERIOD


def test_a_sinks_other_columns_are_outlined_too():
    patterns = patterns_of([["sink"]])
    patterns[0, 0, 0, 5:, 0] = 0.5
    patterns[0, 0, 0, 5:, 4] = 0.5
    lines = picture(pattern_page(scan_of(patterns), patterns), "L0H0").collections[0]
    upright = {float(a[0]) for a, b in lines.get_segments() if a[0] == b[0]}
    assert upright == {-0.5, 0.5, 3.5, 4.5}


def test_kinds_without_heads_are_one_line_and_no_panels():
    figure = pattern_page(SCAN, PATTERNS)
    found = [kind for kind in LABELS if SCAN.heads(LABELS[kind])]
    assert len(figure.axes) == 1 + sum(len(SCAN.heads(LABELS[kind])) for kind in found)
    without = ", ".join(label for kind, label in LABELS.items() if kind not in found)
    assert f"No head carries the label: {without}." in words(figure)


def test_where_no_head_carries_a_label_the_first_ones_are_drawn_as_they_are():
    patterns = patterns_of([["uniform"] * 3] * 2)
    figure = pattern_page(scan_of(patterns), patterns, top=4)
    assert [axes.get_title() for axes in panels(figure)] == ["L0H0", "L0H1", "L0H2", "L1H0"]
    assert (panels(figure)[0].images[0].get_array().filled(0) == patterns[0, 0, 0].numpy()).all()
    assert "4 of 6 shown" in words(figure)
    assert words(figure).startswith("planted: heads without a label")
    assert "targets of the kind" not in words(figure)
    check_the_layout(figure)
    # Of heads that carry others than those asked for none is drawn.
    others = pattern_page(SCAN, PATTERNS, heads=SCAN.heads("sink")[:1], kinds=["duplicate_token"])
    assert others.axes == []


def test_a_scan_without_labelled_heads_is_a_sentence():
    figure = pattern_page(NOTHING, PATTERNS)
    assert "No head carries any of the labels: induction, " in words(figure)
    assert not any(axes.collections[0].get_paths() for axes in panels(score_mosaic(NOTHING)))


@pytest.mark.parametrize(
    ("opening", "body", "said"),
    [
        ([0], [5, 6, 7, 8] * 2, "9 tokens, opened by BOS, then the same 4 over and over; the"),
        ([0], [5, 6, 7, 8] * 2, "the repeat starts at position 5."),
        ([], [5, 6, 7, 8, 5], "5 tokens, without BOS, then the same 4 over and over; the repeat"),
        ([], [5, 6, 7, 8, 5], "the repeat starts at position 4."),
        ([0, 0], [5, 6, 5, 7], "6 tokens, BOS doubled, some tokens come again."),
        ([0], [5, 6, 7], "4 tokens, opened by BOS, no token comes again."),
        ([0], [5, 6, 0], "4 tokens, opened by BOS, no token comes again."),
        ([0], [], "1 token, opened by BOS, no token comes again."),
    ],
)
def test_the_prompt_is_described_from_its_tokens(opening, body, said):
    patterns = patterns_of([["uniform", "uniform"]], torch.tensor(opening + body))
    told = words(pattern_page(NOTHING, patterns))
    assert said in told.replace("\n", " ")


def test_padding_on_either_side_is_cut_off():
    padded = torch.full((40,), NONE)
    padded[3 : 3 + len(TOKENS)] = TOKENS
    patterns = torch.zeros(2, 1, 3, 40, 40).as_subclass(AttentionPatterns)
    patterns[..., 3:36, 3:36] = PATTERNS
    patterns.tokens, patterns.layers = padded[None], (0, 1)
    patterns.texts = PATTERNS.texts
    figure = pattern_page(SCAN, patterns)
    shown = picture(figure, "L1H0").images[0].get_array()
    assert (shown.filled(0) == PATTERNS[1, 0, 0].numpy()).all()
    assert "33 tokens" in words(figure)


def test_both_figures_say_which_model_and_what_was_run():
    told = words(score_mosaic(SCAN)).replace("\n", " ")
    assert told.startswith("planted: ")
    assert "1 prompts of 33 tokens: BOS, then random tokens that repeat every 16 to 16" in told
    assert "(seed 3, float32)" in told
    assert "but sink before it" in told
    assert words(pattern_page(SCAN, PATTERNS)).startswith("planted: ")
    assert "no record of what was run" in words(score_mosaic(scan_of(PATTERNS, {})))


def test_visible_leaves_what_can_be_seen_as_it_is():
    for text in ("the", "$x$", r"\frac", "a_b^c%", "é", "\u0627", "<b>"):
        assert legible(text) == text


@pytest.mark.fault("B07")
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("", "∅"),
        (" the", "␣the"),
        ("\n\n", "⏎⏎"),
        ("\t", "⇥"),
        ("\r", "U+000D"),
        ("a\x00b", "aU+0000b"),
        ("\u200b", "U+200B"),
        ("\u202e", "U+202E"),
        ("\u00a0", "U+00A0"),
        ("東", "U+6771"),
        ("🙂", "U+1F642"),
        ("\ud800", "U+D800"),
        ("\u2800", "U+2800"),
        ("e\u0301", "eU+0301"),
        ("␣", "U+2423"),
    ],
)
def test_visible_shows_what_cannot_be_seen(text, label):
    assert legible(text) == label


@pytest.mark.fault("B09")
def test_visible_gives_different_texts_different_labels():
    assert len({legible(text) for text in HOSTILE}) == len(HOSTILE)


@pytest.mark.fault("B06")
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_any_text_is_drawn_as_it_is_without_a_warning(suffix, tmp_path):
    patterns = patterns_of()
    for start in range(0, len(HOSTILE), 10):
        some = HOSTILE[start : start + 10]
        patterns.texts = [some + ["x"] * (len(TOKENS) - len(some))]
        made_by = MADE_BY | {"model": "".join(some)}
        figure = pattern_page(HeadScan(NOTHING.frame, made_by), patterns)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            save_figure(figure, tmp_path / f"page{suffix}")
        assert all(legible(text)[:23] in words(figure) for text in some)
        assert not any(text.get_parse_math() for text in figure.texts)
        check_the_layout(figure)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_the_same_bytes_each_time_whatever_the_callers_settings(suffix, tmp_path):
    ours = {"font.size": 30, "savefig.bbox": "tight", "axes.grid": True, "svg.fonttype": "none"}
    for name, settings in (("first", {}), ("second", {}), ("third", ours)):
        with matplotlib.rc_context(settings):
            save_figure(score_mosaic(made_up(3, 2)), tmp_path / f"{name}{suffix}")
    first, *others = (
        (tmp_path / f"{n}{suffix}").read_bytes() for n in ("first", "second", "third")
    )
    assert len(first) > 5000
    assert all(other == first for other in others)


@pytest.mark.fault("B28")
def test_figures_need_no_display_and_no_pyplot_and_nothing_depends_on_the_process(tmp_path):
    program = """
import sys, threading, matplotlib
before = matplotlib.rcParams.copy()  # Looking one up could start a backend.
from interp import HeadScan; from interp.show import figures as plots
scan = HeadScan.load(sys.argv[1])
def draw():
    for suffix in ("png", "svg", "pdf"):
        plots.save_figure(plots.score_mosaic(scan), f"{sys.argv[2]}.{suffix}")
draw()
worker = threading.Thread(target=draw)
worker.start()
worker.join()
assert matplotlib.rcParams.copy() == before
assert "matplotlib.pyplot" not in sys.modules
assert "transformers" not in sys.modules
"""
    SCAN.save(tmp_path / "scan.json")
    here = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")}
    for name, there in (("one", {}), ("two", {"DISPLAY": "nowhere:99"})):
        there |= {"PYTHONHASHSEED": str(len(there)), "SOURCE_DATE_EPOCH": str(len(there))}
        arguments = [sys.executable, "-c", program, tmp_path / "scan.json", tmp_path / name]
        subprocess.run(arguments, env=here | there, check=True)
    for suffix in (".png", ".svg", ".pdf"):
        one, two = ((tmp_path / name).with_suffix(suffix).read_bytes() for name in ("one", "two"))
        assert one == two


@pytest.mark.fault("B63")
def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(InputError, match="top must be at least 1, got 0"):
        pattern_page(SCAN, PATTERNS, top=0)
    with pytest.raises(InputError, match=r"patterns must hold L1H0, got layers \[0\] of 3 heads"):
        pattern_page(SCAN, patterns_of(PLAN[:1]))
    empty = patterns_of()
    empty.tokens = torch.full_like(empty.tokens, NONE)
    with pytest.raises(
        InputError, match="tokens must be more than padding in each row, got none in row 0"
    ):
        pattern_page(SCAN, empty)
    with pytest.raises(InputError, match="scan must hold at least one head, got none"):
        score_mosaic(HeadScan(SCAN.frame.head(0), {}))
    figure = score_mosaic(SCAN)
    with pytest.raises(InputError, match=r"path must end in .png, .svg, .pdf, got a.jpg"):
        save_figure(figure, tmp_path / "a.jpg")
    with pytest.raises(InputError, match="path must be in a folder that is there, got"):
        save_figure(figure, tmp_path / "none" / "a.png")
    assert list(tmp_path.iterdir()) == []


def texts_of(figure) -> set[str]:
    from matplotlib.text import Text

    return {text.get_text() for text in figure.findobj(Text)}


def test_the_chart_of_sensitivity_names_heads_and_conditions_and_marks_flips():
    table = pd.DataFrame(
        {
            "name": ["L0H0", "L1H2", "L0H1"],
            "kind": ["induction", "previous_token", "sink"],
            "usual": [0.5, 0.6, 0.9],
            "other": [0.3, pd.NA, 0.9],
            "lowest": [0.3, 0.6, 0.9],
            "highest": [0.5, 0.6, 0.9],
            "spread": [0.14, 0.0, 0.0],
            "flips": ["other", "", ""],
        }
    )
    figure = plots.sensitivity_chart(table, "a $model")
    texts = texts_of(figure)
    assert {"L0H0  induction", "L1H2  previous token", "usual", "other"} <= texts
    assert not any("L0H1" in text for text in texts)  # Most heads are sinks.
    colours = [line.get_color() for line in figure.axes[0].lines if line.get_linewidth() == 2.5]
    assert [same_color(colour, style.ACCENT) for colour in colours] == [True, False]
    with pytest.raises(InputError, match="a label other than sink, got none"):
        plots.sensitivity_chart(table[table["kind"] == "sink"], "model")


def test_the_curve_of_accuracy_has_a_line_for_each_kind():
    strengths = [0.2, 0.4, 0.6]
    records = [
        {"strength": s, "heads": 12, "labelled_by_kind": dict.fromkeys(LABELS, float(s > 0.3))}
        for s in strengths
    ]
    result = {
        "by_strength": records,
        "thresholds": dict.fromkeys(LABELS, 0.4),
        "sizes": {"report": 300},
        "interval": [0.99, 1.0],
        "accuracy": 0.995,
        "strengths": {kind: [0.5, 0.7] for kind in LABELS},
    }
    figure = plots.accuracy_curve(result)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    for label in LABELS.values():
        assert list(lines[label].get_xdata()) == strengths
        assert list(lines[label].get_ydata()) == [0, 1, 1]
    assert any("99.5% of 300 labels" in text for text in texts_of(figure))
    with pytest.raises(InputError, match="records by strength, got none"):
        plots.accuracy_curve({})


@pytest.mark.parametrize("width", [0.4, 0.5, 0.6, 0.8])
def test_a_percent_sign_never_begins_a_line(width):
    lines = texts.wrapped("with 95 % intervals over rows " * 9, width).splitlines()
    assert len(lines) > 9
    assert not [line for line in lines if line.startswith("%")]
