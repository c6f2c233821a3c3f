"""Every figure shows the numbers it was given, names what it shows, and fits on its page."""

import os
import subprocess
import sys
import warnings
from functools import cache
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from drawn import MADE_BY, explained_scan, made_up
from matplotlib.colors import same_color
from matplotlib.patches import PathPatch
from matplotlib.text import Text
from paged import BREAKOUTS, ODD, TOKENS, looking_across, looking_ahead, patterns_of, scan_of
from places import ROOT

from interp.course import designed
from interp.errors import InputError
from interp.kinds.builtin import kinds_of
from interp.patterns.classify import classify_heads
from interp.scan.table import HeadScan
from interp.show import figures as plots
from interp.show.figures import (
    attention_arcs,
    explained_map,
    head_page,
    head_zoo,
    legible,
    pattern_page,
    save_figure,
    score_by_layer,
    score_mosaic,
    style,
)
from interp.show.figures.circuits import ROLES
from interp.show.figures.page import Page
from interp.show.figures.patterns import designed_heads
from interp.show.figures.words import wrapped

CAUSAL, BOTH_WAYS = kinds_of(True), kinds_of(False)
PATTERNS = patterns_of()
WHOLE = PATTERNS.as_subclass(torch.Tensor)
LENGTH = len(TOKENS)
SCAN = scan_of(PATTERNS)
SCANNED = HeadScan.of(classify_heads(PATTERNS), made_by=MADE_BY)
AHEAD = looking_ahead()


def even(length):
    """One head that spreads its attention evenly."""
    return (torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None])[None]


UNEVEN = made_up(3, 2)
NOTHING = scan_of(patterns_of([["random", "random"]]))

FIGURES = {
    "mosaic": lambda: score_mosaic(SCANNED),
    "mosaic with gaps": lambda: score_mosaic(UNEVEN),
    "layers": lambda: score_by_layer(SCAN),
    "page": lambda: pattern_page(SCAN, PATTERNS),
    "zoo": lambda: head_zoo(SCAN, PATTERNS),
    "head": lambda: head_page(PATTERNS, "L1H0", scan=SCAN),
    "arcs": lambda: attention_arcs(PATTERNS, "L1H0", LENGTH - 3, scan=SCAN),
    "mosaic both ways": lambda: score_mosaic(scan_of(AHEAD)),
    "layers both ways": lambda: score_by_layer(scan_of(AHEAD)),
    "page both ways": lambda: pattern_page(scan_of(AHEAD), AHEAD),
    "zoo both ways": lambda: head_zoo(scan_of(AHEAD), AHEAD),
    "cut": lambda: pattern_page(SCAN, PATTERNS, whole=3000),
}


@cache
def figure(name):
    return FIGURES[name]()


def panels(drawn):
    return [axes for axes in drawn.axes if axes.images]


def image(panel):
    return panel.images[0].get_array()


def words(drawn):
    """All texts of a figure in one line."""
    return " ".join(text.get_text() for text in drawn.findobj(Text)).replace("\n", " ")


def picture(drawn, name):
    return next(axes for axes in panels(drawn) if axes.get_title(loc="left").startswith(name))


def arcs(drawn):
    """The arcs by the positions of query and key."""
    patches = [patch for patch in drawn.axes[0].patches if isinstance(patch, PathPatch)]
    return {tuple(map(int, patch.get_gid().split(" to "))): patch for patch in patches}


def tokens_of(drawn):
    """The tokens at the arcs, by position."""
    texts = [text for text in drawn.axes[0].texts if (text.get_gid() or "").startswith("token")]
    return {int(text.get_gid().split()[1]): text for text in texts if "." not in text.get_text()}


def inside(drawn):
    """Nothing is clipped."""
    box = drawn.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= drawn.get_figwidth()
    assert 0 < box.y0 < box.y1 < drawn.get_figheight()


def check_the_layout(drawn):
    """Nothing is clipped, and no text overlaps a panel or another text."""
    drawn.draw_without_rendering()
    found = [*drawn.texts, *(text for legend in drawn.legends for text in legend.get_texts())]
    boxes = [axes.get_window_extent() for axes in drawn.axes]
    for axes in drawn.axes:
        found += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = [t for t in axis.get_major_ticks() if min(ends) <= t.get_loc() <= max(ends)]
            found += [tick.label1 for tick in ticks]
    boxes += [text.get_window_extent() for text in found if text.get_text() and text.get_visible()]
    for place, box in enumerate(boxes):
        assert box.x0 > 0 < box.y0
        assert box.x1 < drawn.bbox.x1
        assert box.y1 < drawn.bbox.y1
        # The ink of a line of text is lower than its box.
        assert not any(box.shrunk(1, 0.9).overlaps(other) for other in boxes[place + 1 :]), box


@pytest.mark.parametrize(
    "name",
    ["mosaic", "mosaic with gaps", "mosaic both ways", "layers", "page", "zoo", "head", "arcs"],
)
def test_a_figure_fits_on_its_page_with_a_title_and_short_notes(name):
    drawn = figure(name)
    check_the_layout(drawn) if name not in ("arcs", "zoo") else inside(drawn)
    assert drawn.texts[0].get_text()
    assert len(drawn.texts[-1].get_text().splitlines()) <= 3


@pytest.mark.parametrize("shape", [(1, 1), (30, 9), (2, 64)])
def test_a_mosaic_of_any_shape_has_room_and_whole_ticks_from_0(shape):
    drawn = score_mosaic(made_up(*shape, model="W" * 30 + " $x$ " + "M" * 30))
    check_the_layout(drawn)
    for axes in panels(drawn):
        for axis, size in zip((axes.xaxis, axes.yaxis), shape):
            ticks = [tick for tick in axis.get_majorticklocs() if -0.5 < tick < size - 0.5]
            assert ticks[0] == 0
            assert all(tick == int(tick) for tick in ticks)
            assert len(ticks) <= 7


@pytest.mark.fault("B46", "B92")
@pytest.mark.parametrize("name", ["mosaic", "page", "zoo", "head"])
def test_colours_run_from_0_to_1_whatever_the_values(name):
    drawn = figure(name)
    assert {axes.images[0].get_clim() for axes in panels(drawn)} == {(0, 1)}
    bar = drawn.axes[-1]
    assert bar.get_xlim() == (0, 1)
    assert bar.get_xlabel() in ("attention weight", "mean attention mass on the kind's targets")


@pytest.mark.parametrize("shape", [(1, 2), (30, 9), (2, 64)])
def test_the_explained_map_shows_each_share_and_the_kind_that_explains_most(shape):
    scan = explained_scan(*shape)
    drawn = explained_map(scan)
    check_the_layout(drawn)
    assert len(drawn.texts[-1].get_text().splitlines()) <= 2
    share, most = panels(drawn)
    seen, shown = {}, image(share)
    frame = scan.frame
    for place, (head, layer) in enumerate(zip(frame["head"], frame["layer"], strict=True)):
        missing = place == len(frame) - 1
        # Of cells smaller than a dot, one shows the largest of several.
        if shown.shape == shape[::-1] and not missing:
            assert shown[head, layer] == pytest.approx(frame["explained"][place])
        seen.setdefault(7 if missing else place % 7, set()).add(tuple(image(most)[head, layer]))
    assert all(len(colours) == 1 for colours in seen.values())
    counts = {label: (np.arange(len(frame) - 1) % 7 == n).sum() for n, label in enumerate(CAUSAL)}
    words = {text.get_text() for text in drawn.legends[0].get_texts()}
    top = {f"{kind.replace('_', ' ')} ({n})" for kind, n in counts.items() if n}
    assert len(top & words) == min(6, len(top))


def test_the_mosaic_shows_each_score_and_outlines_the_heads_with_the_label():
    drawn = figure("mosaic")
    assert "planted: " in words(drawn)
    assert "1 prompts of 33 tokens: BOS, then random tokens that repeat" in words(drawn)
    for axes, kind in zip(panels(drawn), CAUSAL.values(), strict=True):
        assert axes.get_title(loc="left").startswith(f"{kind.label}: ")
        for row in SCANNED.frame.to_dict("records"):
            assert image(axes)[row["head"], row["layer"]] == pytest.approx(row[kind.name])
        # Lines are where a head with the label is next to one without.
        held = {*map(tuple, SCANNED.heads(kind.label))}
        sides = [(x, y, dx, dy) for x, y in held for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        edges = {(x + dx / 2, y + dy / 2) for x, y, dx, dy in sides if (x + dx, y + dy) not in held}
        assert {tuple(np.mean(line, 0)) for line in axes.collections[0].get_segments()} == edges


def test_a_missing_score_is_hatched_grey_and_never_zero():
    drawn = figure("mosaic with gaps")
    induction, sink = panels(drawn)[0], panels(drawn)[-1]
    assert np.ma.getmaskarray(image(induction))[:, 1].all()
    assert not np.ma.getmaskarray(image(induction))[:, [0, 2]].any()
    assert not np.ma.getmaskarray(image(sink)).any()
    assert induction.patch.get_hatch()
    red, green, blue, _ = induction.patch.get_facecolor()
    assert red == green == blue < 1
    assert induction.images[0].cmap.get_bad()[3] == 0  # So that the grey shows through.
    assert "2 of 4 measured" in induction.get_title(loc="left")
    assert "Not measured: induction: no token is repeated." in words(drawn)
    assert "not measured" not in words(figure("mosaic"))
    unmeasured = scan_of(patterns_of([["random"]], torch.arange(20)))
    title = panels(score_mosaic(unmeasured))[0].get_title(loc="left")
    assert title.startswith("induction: not measured\n")
    assert [text.get_text() for text in score_by_layer(unmeasured).axes[0].texts] == [
        "not measured"
    ]


def test_scores_by_layer_are_those_of_the_scan():
    for panel, kind in zip(figure("layers").axes, CAUSAL.values(), strict=True):
        dots = np.concatenate([dots.get_offsets() for dots in panel.collections])
        expected = SCAN.frame[["layer", kind.name]].to_numpy(float)
        dots, expected = (np.array(sorted(map(tuple, pairs))) for pairs in (dots, expected))
        assert dots == pytest.approx(expected)
        assert len(panel.collections[1].get_offsets()) == len(SCAN.heads(kind.label))
        mean = SCAN.frame.groupby("layer")[kind.name].mean()
        assert list(panel.lines[0].get_ydata()) == pytest.approx(mean.tolist())


def test_the_page_shows_the_strongest_heads_of_each_kind_in_order():
    every = pattern_page(SCAN, PATTERNS, top=1, repeat=True)
    drawn = [axes.get_title(loc="left").split()[0] for axes in panels(every)]
    strongest = [SCAN.heads(kind.label)[:1] for kind in CAUSAL.values()]
    assert drawn == [str(head) for heads in strongest for head in heads]
    page = figure("page")
    once = [axes.get_title(loc="left").split()[0] for axes in panels(page)]
    assert len(once) == len({*once})
    assert "the strongest heads of each kind" in words(page)
    axes = picture(page, "L1H0")
    later = np.triu(np.ones((LENGTH, LENGTH), dtype=bool), 1)
    assert (np.ma.getmaskarray(image(axes)) == later).all()
    assert (image(axes).filled(0) == WHOLE[1, 0, 0].tril().numpy()).all()
    assert same_color(axes.patch.get_facecolor(), style.GREY)
    assert axes.get_title(loc="left") == f"L1H0  {SCAN.frame['induction'].max():.2f}"
    assert axes.get_ylabel() == "query"
    chosen = pattern_page(SCAN, PATTERNS, heads=["1.0", (0, 0)])
    assert {axes.get_title(loc="left").split()[0] for axes in panels(chosen)} == {"L1H0", "L0H0"}
    assert "strongest" not in words(chosen)


def test_the_targets_of_the_kind_are_outlined():
    lines = figure("head").axes[0].collections[0].get_segments()
    places = {tuple(np.mean(line, axis=0)) for line in lines}
    for query in range(13, 25):
        key = query - 11
        sides = {(key - 0.5, query), (key + 0.5, query), (key, query - 0.5), (key, query + 0.5)}
        assert sides <= places
    assert len(lines) == 4 * 12
    # Of a sink, also the other columns where the head rests.
    patterns = patterns_of([["sink"]])
    patterns[0, 0, 0, 5:] = 0
    patterns[0, 0, 0, 5:, [0, 4]] = 0.5
    lines = head_page(patterns, "L0H0", scan=scan_of(patterns)).axes[0].collections[0]
    upright = {float(a[0]) for a, b in lines.get_segments() if a[0] == b[0]}
    assert upright == {-0.5, 0.5, 3.5, 4.5}


def test_kinds_without_heads_are_one_line_and_no_panels():
    patterns = patterns_of([["previous_token", "sink"]])
    scan = scan_of(patterns)
    without = ", ".join(kind.label for kind in CAUSAL.values() if not scan.heads(kind.label))
    assert "induction" in without
    assert f"No head carries the label: {without}." in words(pattern_page(scan, patterns))
    patterns = patterns_of([["random"] * 3] * 2)
    plain = pattern_page(scan_of(patterns), patterns, top=4)
    assert [axes.get_title(loc="left") for axes in panels(plain)] == [
        "L0H0",
        "L0H1",
        "L0H2",
        "L1H0",
    ]
    assert "4 of 6 shown" in words(plain)
    assert "heads without a label" in words(plain)
    assert "targets of the kind" not in words(plain)
    check_the_layout(plain)
    others = pattern_page(SCAN, PATTERNS, heads=SCAN.heads("sink")[:1], kinds=["duplicate_token"])
    assert others.axes == []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([0, *[5, 6, 7, 8] * 2], "9 tokens, BOS first, then 4 tokens that repeat from position 5"),
        ([5, 6, 7, 8, 5], "5 tokens, no BOS, then 4 tokens that repeat from position 4 on"),
        ([0, 0, 5, 6, 5, 7], "6 tokens, BOS twice, some tokens repeat."),
        ([0, 5, 6, 0], "4 tokens, BOS first, no token repeats."),
        ([0], "1 token, BOS first, no token repeats."),
    ],
)
def test_the_prompt_is_described_from_its_tokens(tokens, expected):
    patterns = patterns_of([["random", "random"]], torch.tensor(tokens))
    assert expected in words(pattern_page(NOTHING, patterns))


def test_a_head_in_full_is_its_pattern_with_every_token_at_its_place():
    panel = figure("head").axes[0]
    assert (np.ma.getmaskarray(image(panel)) == np.triu(np.ones((LENGTH, LENGTH), bool), 1)).all()
    assert (image(panel).filled(0) == WHOLE[1, 0, 0].tril().numpy()).all()
    labels = [f"␣t{token}" for token in TOKENS.tolist()]
    for ticks in (panel.get_xticklabels(), panel.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == labels
    assert list(panel.get_xticks()) == list(range(LENGTH))
    assert "L1H0, induction 0." in words(figure("head"))
    assert len(panel.collections[0].get_segments()) > 0


@pytest.mark.fault("B10")
def test_tokens_that_repeat_keep_their_places():
    weights = WHOLE[0, 0, 2, :6, :6].clone()
    panel = head_page(weights[None], "L0H0", [5, 6, 7] * 2, texts=list("ABCABC")).axes[0]
    assert [label.get_text() for label in panel.get_xticklabels()] == list("ABCABC")
    assert (image(panel).filled(0) == weights.numpy()).all()


def test_an_arc_is_as_wide_as_its_weight_and_orange_to_a_target():
    query, found = LENGTH - 3, arcs(figure("arcs"))
    weights = {key: w for key, w in enumerate(WHOLE[1, 0, 0, query].tolist()) if w >= 0.01}
    assert {pair: arc.get_linewidth() for pair, arc in found.items()} == {
        (query, key): pytest.approx(6 * weight) for key, weight in weights.items()
    }
    orange = [
        key for (_, key), arc in found.items() if same_color(arc.get_edgecolor()[:3], style.ACCENT)
    ]
    (target,) = orange
    assert TOKENS[target - 1] == TOKENS[query]
    places = {key: text.get_position()[0] for key, text in tokens_of(figure("arcs")).items()}
    for (start, key), arc in found.items():
        ends = [arc.get_path().vertices[n][0] for n in (0, -1)]
        assert ends == pytest.approx([places[start], places[key]])
    thin = attention_arcs(even(200), "L0H0", None, range(200))
    assert arcs(thin) == {}
    assert "not drawn: 1.00 in all" in words(thin)


@pytest.mark.parametrize("query", [2, 13])
def test_arcs_go_to_both_sides_of_a_query_that_looks_ahead(query):
    ((pair, arc),) = arcs(attention_arcs(AHEAD, "L0H3", query, scan=scan_of(AHEAD))).items()
    assert pair == (query, 15 - query)
    assert same_color(arc.get_edgecolor()[:3], style.ACCENT)


def test_the_number_of_an_arc_is_below_its_key_and_no_arc_crosses_it():
    weights = torch.eye(128)
    weights[-1] = 0
    weights[-1, [3, -2]] = 0.5  # On the first line of text, and on the query's.
    drawn = attention_arcs(weights[None], "L0H0", None, range(128), texts=["word"] * 128)
    drawn.draw_without_rendering()
    numbers = [text for text in drawn.axes[0].texts if text.get_text() == "0.50"]
    places = {text.get_position()[0] for text in numbers}
    assert places == {tokens_of(drawn)[key].get_position()[0] for key in (3, 126)}
    for number in numbers:
        box = number.get_window_extent()
        for arc in arcs(drawn).values():
            line = arc.get_transform().transform_path(arc.get_path()).interpolated(20)
            assert not line.intersects_bbox(box, filled=False)


@pytest.mark.fault("B57")
def test_a_head_that_looks_ahead_is_drawn_whole_with_the_targets_of_its_kind():
    scan = scan_of(AHEAD)
    drawn = head_page(AHEAD, "L0H0", scan=scan)
    assert not np.ma.getmaskarray(image(drawn.axes[0])).any()
    assert (image(drawn.axes[0]) == AHEAD[0, 0, 0].numpy()).all()
    assert "L0H0, next token 1.00" in words(drawn)
    assert "not visible" not in words(drawn)
    page, zoo = figure("page both ways"), figure("zoo both ways")
    assert all(not np.ma.getmaskarray(image(axes)).any() for axes in panels(page))
    titles = [axes.get_title(loc="left").split("\n")[-1].split()[0] for axes in panels(zoo)]
    assert titles == [x for head in (3, 1, 0, 2, 4, 5) for x in ("ideal", f"L0H{head}")]
    labels = [axes.get_title(loc="left").split(":")[0] for axes in figure("layers both ways").axes]
    assert labels == [kind.label for kind in BOTH_WAYS.values()]


@pytest.mark.fault("C27", "C32")
def test_special_tokens_and_the_chat_template_have_their_colours_and_a_legend():
    patterns = patterns_of()
    patterns.template = torch.tensor([[place in (0, 1, 2, 24) for place in range(25)]])
    patterns.special = frozenset({0, int(TOKENS[24])})
    special = {0, 12, 24}  # The last token is that of position 12 too.
    drawn, row = head_page(patterns, "L1H0", scan=SCAN), attention_arcs(patterns, "L1H0")
    sides = [dict(named(axis)) for axis in (drawn.axes[0].xaxis, drawn.axes[0].yaxis)]
    for labels in (*sides, tokens_of(row)):
        assert len(labels) == LENGTH
        for place, colour in ((round(at), text.get_color()) for at, text in labels.items()):
            assert (colour == style.SPECIAL) == (place in special)
            assert (colour == style.TEMPLATE) == (place in (1, 2))
    for page in (drawn, pattern_page(SCAN, patterns), head_zoo(SCAN, patterns)):
        bars = [line for line in panels(page)[0].lines if line.get_color() == style.TEMPLATE]
        for axis in (0, 1):  # Along the top and on the right.
            ends = [line.get_xydata()[:, axis] for line in bars]
            middles = {float(both.mean()) for both in ends if both[0] != both[1]}
            assert middles == {0, 1, 2, 24}
        assert "4 tokens of the chat template" in words(page)
        inside(page)
    for page, some in ((drawn, True), (row, True), (figure("page"), False)):
        assert ("chat template" in words(page)) == some
    assert "special token" in words(drawn) + words(row)


def named(axis):
    return zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)


@pytest.mark.fault("B58")
@pytest.mark.parametrize("one", [0, 1])
def test_cross_attention_is_drawn_with_the_tokens_of_both_texts(one):
    patterns = looking_across()[one]
    drawn = head_page(patterns, "L1H2")
    panel = drawn.axes[0]
    assert (image(panel) == patterns[1, 0, 2].numpy()).all()
    ticks = [
        [t.get_text() for t in side] for side in (panel.get_yticklabels(), panel.get_xticklabels())
    ]
    assert ticks == [patterns.texts[0], patterns.key_texts[0]]
    queries, keys = len(patterns.texts[0]), len(patterns.key_texts[0])
    assert f"{queries} tokens, attending to {keys} tokens of another" in words(drawn)
    inside(drawn)
    for draw in (
        lambda: attention_arcs(patterns, "L1H2"),
        lambda: head_zoo(SCAN, patterns),
        lambda: pattern_page(SCAN, patterns),
    ):
        with pytest.raises(InputError, match="patterns"):
            draw()


def test_in_the_zoo_each_kind_has_its_ideal_beside_a_real_head():
    drawn, heads = figure("zoo"), plots.zoo_heads(SCAN)
    titles = [panel.get_title(loc="left").split("\n")[-1].split()[0] for panel in panels(drawn)]
    expected = [["ideal", str(heads[kind])] if kind in heads else ["ideal"] for kind in CAUSAL]
    assert titles == [title for pair in expected for title in pair]
    ideal = image(panels(drawn)[0]).filled(0)
    assert ideal.sum(-1) == pytest.approx(np.ones(LENGTH))
    assert all(ideal[query, query - 11] == 1 for query in range(13, LENGTH))
    assert (ideal[1:13, 0] == 1).all()
    patterns = patterns_of([["sink"]], torch.arange(8))
    short = words(head_zoo(scan_of(patterns), patterns))
    assert "has a target of these kinds: induction, duplicate token, local window." in short
    assert "has a target" not in words(drawn)
    assert "no head" in short


def test_the_ideal_sink_rests_on_special_tokens_as_the_real_one_is_outlined():
    ideal, real = panels(figure("zoo both ways"))[-2:]
    ids = AHEAD.tokens[0]
    rests = torch.isin(ids, torch.tensor([*AHEAD.special]))
    rests[0] = True
    for query in (~rests).nonzero().flatten().tolist():
        assert image(ideal)[query].filled(0) == pytest.approx(rests.numpy() / int(rests.sum()))
    lines = [
        {tuple(map(tuple, line)) for line in panel.collections[0].get_segments()}
        for panel in (ideal, real)
    ]
    assert lines[0] == lines[1]


@pytest.mark.fault("B93")
@pytest.mark.parametrize("length", [1, 2, 100])
def test_prompts_of_any_length_are_drawn_whole(length):
    drawn = head_page(even(length), "L0H0", range(length))
    for one in (drawn, attention_arcs(even(length), "L0H0", None, range(length))):
        inside(one)
    assert image(drawn.axes[0]).shape == (length, length)
    assert ("Every" in words(drawn)) == (length > 76)


@pytest.mark.fault("B17")
def test_a_picture_of_a_cut_prompt_says_how_long_the_prompt_is():
    for drawn in (
        head_page(PATTERNS, "L1H0", scan=SCAN, whole=3000),
        attention_arcs(PATTERNS, "L1H0", scan=SCAN, whole=3000),
        figure("cut"),
        head_zoo(SCAN, PATTERNS, whole=3000),
    ):
        assert "Prompt: the first 25 of 3,000 tokens" in words(drawn)
    assert "Prompt: 25 tokens" in words(head_page(PATTERNS, "L1H0", whole=25))


def test_cells_smaller_than_a_dot_show_the_largest_weight():
    length = 800
    patterns = patterns_of([["sink"]], torch.arange(length))
    patterns[0, 0, 0] = torch.eye(length)[(torch.arange(length) - 1).clamp(min=0)]
    drawn = pattern_page(scan_of(patterns), patterns)
    panel = panels(drawn)[0]
    assert image(panel).shape == (267, 267)
    assert all(image(panel)[i, i] == 1 for i in range(267))
    assert panel.get_xlim() == (-0.5, length - 0.5)
    assert "the largest weight of 3 x 3 cells" in words(drawn)


@pytest.mark.fault("B07")
@pytest.mark.parametrize(
    ("text", "label"),
    [
        *((text, text) for text in ("the", "$x$", r"\frac", "a_b^c%", "é", "\u0627", "<b>")),
        ("", "∅"),
        (" the", "␣the"),
        ("\n\n", "⏎⏎"),
        ("a\x00b", "aU+0000b"),
        ("\u202e", "U+202E"),
        ("東", "U+6771"),
        ("\ud800", "U+D800"),
        ("␣", "U+2423"),
    ],
)
def test_a_label_is_legible(text, label):
    assert legible(text) == label


@pytest.mark.fault("B06", "B09", "B63", "B69")
def test_awkward_text_is_drawn_as_it_is_without_a_warning(tmp_path):
    odd = [*BREAKOUTS, *ODD, "$x$", r"\frac", *("W" * 300 + end for end in "abc")]
    length = len(odd)
    assert len({legible(text) for text in odd}) == length
    scan = HeadScan.of(
        classify_heads(even(length), range(length)), made_by={"model": r"../$x$\n" + "name/" * 999}
    )
    before = matplotlib.rcParams.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = head_page(even(length), "L0H0", range(length), texts=odd, scan=scan)
        bows = attention_arcs(even(length), "L0H0", None, range(length), texts=odd)
        save_figure(drawn, tmp_path / "head.svg")
        for one, labels in ((drawn, drawn.axes[0].get_xticklabels()), (bows, bows.axes[0].texts)):
            inside(one)
            named = [label.get_text() for label in labels]
            assert len(set(named)) == length
            assert {"$x$", "U+202E", "∅", "⏎"} <= {*named}
            assert sorted(n.partition("…")[2] for n in named if "WWW" in n) == [
                f"#{i}" for i in range(length - 3, length)
            ]
            assert not any(text.get_parse_math() for text in one.texts)
    ElementTree.fromstring((tmp_path / "head.svg").read_bytes())
    assert drawn.texts[0].get_text().startswith("…")
    assert matplotlib.rcParams.copy() == before


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_the_same_bytes_each_time_whatever_the_callers_settings(suffix, tmp_path):
    settings = {"font.size": 30, "savefig.bbox": "tight", "axes.grid": True, "svg.fonttype": "none"}
    for name, ours in (("first", {}), ("second", settings)):
        with matplotlib.rc_context(ours):
            save_figure(
                Page("title", "$x$", notes="note").finish(),
                tmp_path / f"{name}{suffix}",
            )
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("first", "second"))
    assert first == second
    with pytest.raises(InputError, match="path must end in"):
        save_figure(figure("head"), tmp_path / "a.jpg")
    with pytest.raises(InputError, match="path must be in a folder"):
        save_figure(figure("head"), tmp_path / "none" / f"a{suffix}")
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.fault("B28")
def test_figures_need_no_display_and_no_pyplot(tmp_path):
    program = """
import sys, threading, matplotlib
before = matplotlib.rcParams.copy()  # Looking one up could start a backend.
from interp import HeadScan; from interp.show import figures as plots
scan = HeadScan.load(sys.argv[1])
draw = lambda: plots.save_figure(plots.score_mosaic(scan), sys.argv[2])
worker = threading.Thread(target=draw)
worker.start()
worker.join()
assert matplotlib.rcParams.copy() == before
assert "matplotlib.pyplot" not in sys.modules
assert "transformers" not in sys.modules
"""
    SCANNED.save(tmp_path / "scan.json")
    arguments = [sys.executable, "-c", program, tmp_path / "scan.json", tmp_path / "one.svg"]
    subprocess.run(arguments, env=os.environ | {"DISPLAY": "nowhere:99"}, check=True)
    save_figure(score_mosaic(SCANNED), tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


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
    drawn = plots.sensitivity_chart(table, "a $model")
    ticks = [tick.get_text() for tick in drawn.axes[0].get_yticklabels()]
    # Most heads are sinks.
    assert ticks == ["L0H0  induction  0.50", "L1H2  previous token  0.60"]
    change = image(drawn.axes[0])
    assert change[0].tolist() == pytest.approx([-0.2])
    assert np.ma.getmaskarray(change)[1].all()
    marked = {tuple(np.mean(line, 0)) for line in drawn.axes[0].collections[0].get_segments()}
    assert marked == {(0, -0.5), (0, 0.5), (-0.5, 0), (0.5, 0)}
    with pytest.raises(InputError, match="table must hold"):
        plots.sensitivity_chart(table[table["kind"] == "sink"], "model")


def test_the_curve_of_accuracy_has_a_panel_for_each_kind():
    strengths = [0.2, 0.4, 0.6]
    records = [
        {"strength": s, "heads": 12, "labelled_by_kind": dict.fromkeys(CAUSAL, float(s > 0.3))}
        for s in strengths
    ]
    result = {
        "by_strength": records,
        "thresholds": dict.fromkeys(CAUSAL, 0.4),
        "sizes": {"report": 300},
        "interval": [0.99, 1.0],
        "accuracy": 0.995,
        "strengths": {kind: [0.5, 0.7] for kind in CAUSAL},
    }
    drawn = plots.accuracy_curve(result)
    for panel, kind in zip(drawn.axes, CAUSAL.values(), strict=True):
        assert panel.get_title(loc="left") == kind.label
        threshold, planted, real = panel.lines
        assert list(threshold.get_xdata()) == [0.4, 0.4]
        assert list(planted.get_xdata()) == strengths
        assert list(planted.get_ydata()) == [0, 1, 1]
        assert list(real.get_xdata()) == [0.5, 0.7]
    assert "99.5% of 300 labels" in words(drawn)


def test_patterns_of_circuits_say_how_much_attention_is_elsewhere():
    def circuit(stripe):
        """Both heads spread evenly but for what goes to the first token."""
        pattern = (1 - stripe) * even(5)[0].numpy() + stripe * np.eye(5)[[0] * 5]
        heads = dict.fromkeys(ROLES, "L0H0")
        return {"heads": heads, "patterns": dict.fromkeys(ROLES, pattern.tolist())}

    circuits = {"one": circuit(0.5), "alike": circuit(0.5), "other": circuit(1)}
    drawn = plots.circuit_patterns(circuits)
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in panels(drawn)]
    # Half of what was even: its mean over 1 to 5 keys that is not on the first.
    apart = 0.5 * np.mean([1 - 1 / n for n in range(1, 6)])
    expected = ["one L0H0", "alike L0H0, 0% elsewhere", f"other L0H0, {apart:.0%} elsewhere"]
    assert titles == expected * 2


def test_each_designed_head_is_drawn_where_it_looks():
    drawn = designed_heads(designed.EXAMPLE.words, designed.patterns(), window=4)
    named = {
        panel.get_title(loc="left"): panel for panel in drawn.axes if panel.get_title(loc="left")
    }
    assert tuple(named) == designed.NAMES
    later = np.triu(np.ones((8, 8), dtype=bool), 1)
    looks = {}
    for name, panel in named.items():
        shown = np.ma.filled(np.ma.asarray(image(panel), dtype=float), np.nan)
        assert (np.isnan(shown) == later).all()
        looks[name] = np.nan_to_num(shown)
        labels = [label.get_text() for label in panel.get_xticklabels()]
        assert labels == list(designed.EXAMPLE.words)
    assert looks["previous token"].argmax(1).tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    assert looks["noun to pronoun"][5].argmax() == 2
    assert (looks["sink"][:, 0] > 0.99).all()


@pytest.mark.parametrize("width", [0.4, 0.8])
def test_a_percent_sign_never_begins_a_line(width):
    lines = wrapped("with 95 % intervals over rows " * 9, width).splitlines()
    assert len(lines) > 9
    assert not [line for line in lines if line.startswith("%")]


def test_an_empty_table_or_a_missing_head_is_refused():
    empty = HeadScan(SCAN.frame.head(0), {})
    for argument, draw in (
        ("scan", lambda: head_page(even(4), "L0H0", range(4), scan=empty)),
        ("top", lambda: pattern_page(SCAN, PATTERNS, top=0)),
        ("patterns", lambda: pattern_page(SCAN, patterns_of([["sink"] * 3]))),
        ("query", lambda: attention_arcs(even(4), "L0H0", 4, range(4))),
        ("query", lambda: attention_arcs(even(4), "L0H0", -1, range(4))),
    ):
        with pytest.raises(InputError, match=f"^{argument} must"):
            draw()


def test_the_style_file_holds_what_figures_use():
    import matplotlib.style

    with matplotlib.style.context(["default", "interp.show.figures.interp"]):
        assert {name: matplotlib.rcParams[name] for name in style.STYLE} == style.STYLE
    assert style.STYLE["text.parse_math"] is False


def test_figures_and_what_they_share_with_pages_import_no_pages():
    room = ROOT / "interp" / "show"
    for path in (*room.glob("figures/*.py"), room / "prompt.py", room / "about.py"):
        assert "show.pages" not in path.read_text(encoding="utf-8"), path
