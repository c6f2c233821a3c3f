"""One head in full, arcs from one query, scores by layer, and the zoo."""

import warnings
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.patches import PathPatch
from paged import BREAKOUTS, ODD, TOKENS, looking_across, looking_ahead, patterns_of, scan_of

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import LABELS, kinds_of
from interp.kinds.targets import NONE
from interp.patterns.classify import classify_heads
from interp.scan.table import HeadScan
from interp.show import figures as plots
from interp.show.figures import (
    attention_arcs,
    head_page,
    head_zoo,
    save_figure,
    score_by_layer,
    style,
)
from interp.show.figures.prompts import Shown

AHEAD = looking_ahead()
PATTERNS = patterns_of()
SCAN = scan_of(PATTERNS)
LENGTH = len(TOKENS)
WHOLE = PATTERNS.as_subclass(torch.Tensor)


def causal(length):
    """One head that spreads its attention evenly."""
    return (torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None])[None]


def image(panel):
    return panel.images[0].get_array()


def inside(figure):
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    assert 0 < drawn.x0 < drawn.x1 < figure.get_figwidth()
    assert 0 < drawn.y0 < drawn.y1 < figure.get_figheight()


def arcs(figure):
    return [patch for patch in figure.axes[0].patches if isinstance(patch, PathPatch)]


def told(figure):
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def test_a_head_in_full_is_its_pattern_with_every_token_at_its_place():
    figure = head_page(PATTERNS, "L1H0", scan=SCAN)
    panel = figure.axes[0]
    shown = image(panel)
    assert (np.ma.getmaskarray(shown) == np.triu(np.ones(shown.shape, bool), 1)).all()
    assert (shown.filled(0) == WHOLE[1, 0, 0].tril().numpy()).all()
    assert panel.images[0].get_clim() == (0, 1)
    labels = [f"␣t{token}" for token in TOKENS.tolist()]
    for ticks in (panel.get_xticklabels(), panel.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == labels
    assert list(panel.get_xticks()) == list(range(LENGTH))
    assert "L1H0, induction (score " in told(figure)
    assert len(panel.collections[0].get_segments()) > 0
    inside(figure)


SCANNED = HeadScan.of(
    classify_heads(PATTERNS),
    made_by={"probes": [{"periods": [12]}], "scored_on": {"sink": "random"}},
)


@pytest.mark.parametrize(
    ("scan", "over"),
    [
        (SCAN, "over the queries of the attention patterns that were labelled."),
        (SCANNED, "over all prompts of the scan (sink before the first repeat, the others after"),
    ],
)
def test_what_the_scores_are_a_mean_over_follows_from_what_made_them(scan, over):
    for figure in (
        plots.pattern_page(scan, PATTERNS),
        head_zoo(scan, PATTERNS),
        head_page(PATTERNS, "L1H0", scan=scan),
    ):
        assert over in told(figure)
        assert ("scan" in told(figure)) == (scan is SCANNED)


def test_no_score_is_explained_where_none_stands():
    mixed = str(SCAN.heads("mixed")[0])
    assert f"{mixed}, mixed" in told(head_page(PATTERNS, mixed, scan=SCAN))
    assert "score" not in told(head_page(PATTERNS, mixed, scan=SCAN))
    assert "The score is" in told(head_page(PATTERNS, "L1H0", scan=SCAN))


def test_an_arc_is_as_wide_as_its_weight_and_orange_to_a_target():
    query = LENGTH - 3
    drawn = arcs(attention_arcs(PATTERNS, "L1H0", query, scan=SCAN))
    weights = {key: w for key, w in enumerate(WHOLE[1, 0, 0, query].tolist()) if w >= 0.01}
    assert {round(arc.get_path().vertices[-1][0]): arc.get_linewidth() for arc in drawn} == {
        key: pytest.approx(6 * weight) for key, weight in weights.items()
    }
    assert all(round(arc.get_path().vertices[0][0]) == query for arc in drawn if weights)
    orange = [arc for arc in drawn if same_color(arc.get_edgecolor()[:3], style.ACCENT)]
    (target,) = (round(arc.get_path().vertices[-1][0]) for arc in orange)
    assert TOKENS[target - 1] == TOKENS[query]


@pytest.mark.parametrize("query", [2, 13])
def test_arcs_go_to_both_sides_of_a_query_that_looks_ahead(query):
    drawn = arcs(attention_arcs(AHEAD, "L0H3", query, scan=scan_of(AHEAD)))
    (arc,) = drawn  # The other copy, before it or after it.
    assert {round(arc.get_path().vertices[0][0]), round(arc.get_path().vertices[-1][0])} == {2, 13}
    assert same_color(arc.get_edgecolor()[:3], style.ACCENT)


def test_the_number_at_an_arc_stands_above_it_and_hides_none():
    length = 128
    weights = torch.eye(length)
    weights[-1] = 0
    weights[-1, -2:] = 0.5
    figure = attention_arcs(weights[None], "L0H0", None, range(length))
    figure.draw_without_rendering()
    numbers = [text for text in figure.axes[0].texts if text.get_text() == "0.50"]
    assert numbers
    tops = {}
    for arc in arcs(figure):
        half = arc.get_linewidth() / 2 * figure.dpi / 72  # Extents are those of the line's middle.
        tops[round(arc.get_path().vertices[-1][0])] = arc.get_window_extent().y1 + half
    for number in numbers:
        assert number.get_bbox_patch() is None
        assert number.get_window_extent().y0 > tops[round(2 * number.xy[0]) - 127]


@pytest.mark.fault("B57")
def test_a_head_that_looks_ahead_is_drawn_whole_with_the_targets_of_its_kind():
    scan = scan_of(AHEAD)
    for head in (0, 5):
        figure = head_page(AHEAD, f"L0H{head}", scan=scan)
        shown = image(figure.axes[0])
        assert not np.ma.getmaskarray(shown).any()
        assert (shown == AHEAD[0, 0, head].numpy()).all()
        assert not any("out of sight" in text.get_text() for text in figure.legends[0].texts)
        inside(figure)
    assert "L0H0, next token (score 1.00)" in told(head_page(AHEAD, "L0H0", scan=scan))
    page = plots.pattern_page(scan, AHEAD)
    assert all(not np.ma.getmaskarray(image(axes)).any() for axes in page.axes if axes.images)
    assert "next token" in told(page)
    assert "every other copy is a target" in told(page)
    zoo = plots.head_zoo(scan, AHEAD)
    titles = [axes.get_title().split()[0] for axes in zoo.axes if axes.images]
    assert titles == [x for head in (3, 1, 0, 2, 4, 5) for x in ("ideal", f"L0H{head}")]
    for figure in (page, zoo, score_by_layer(scan), plots.score_mosaic(scan)):
        inside(figure)
    named = [axes.get_title(loc="left").split(":")[0] for axes in score_by_layer(scan).axes]
    assert named == [kind.label for kind in kinds_of(causal=False).values()]


@pytest.mark.fault("B58")
@pytest.mark.parametrize("one", [0, 1])
def test_cross_attention_is_drawn_with_the_tokens_of_both_texts(one):
    patterns = looking_across()[one]
    figure = head_page(patterns, "L1H2")
    panel = figure.axes[0]
    assert image(panel).shape == patterns.shape[-2:]
    assert (image(panel) == patterns[1, 0, 2].numpy()).all()
    ticks = [
        [t.get_text() for t in side()] for side in (panel.get_yticklabels, panel.get_xticklabels)
    ]
    assert ticks == [patterns.texts[0], patterns.key_texts[0]]
    keys = len(patterns.key_texts[0])
    assert f"{len(patterns.texts[0])} tokens, looking at {keys} tokens of another" in told(figure)
    inside(figure)
    for draw in (lambda: attention_arcs(patterns, "L1H2"), lambda: head_zoo(SCAN, patterns)):
        with pytest.raises(
            InputError, match="must be a text's attention to itself here, got cross"
        ):
            draw()
    with pytest.raises(InputError, match="must be a text's attention to itself here, got cross"):
        plots.pattern_page(SCAN, patterns)


def test_the_chosen_heads_are_not_called_the_strongest():
    heads = [Head(1, 0), Head(0, 0)]
    assert "the chosen heads of each kind" in told(plots.pattern_page(SCAN, PATTERNS, heads=heads))
    assert "the strongest heads of each kind" in told(plots.pattern_page(SCAN, PATTERNS))


def test_what_is_too_thin_for_an_arc_is_summed_up():
    figure = attention_arcs(causal(200), "L0H0", None, range(200))
    assert arcs(figure) == []
    assert "not drawn: 1.00 in all" in told(figure)
    assert "Tokens without room have no name" in told(figure)


def test_scores_by_layer_are_those_of_the_scan():
    figure = score_by_layer(SCAN)
    for panel, kind in zip(figure.axes, LABELS):
        dots = np.concatenate([dots.get_offsets() for dots in panel.collections])
        expected = SCAN.frame[["layer", kind]].to_numpy(float)
        dots, expected = (np.array(sorted(map(tuple, pairs))) for pairs in (dots, expected))
        assert dots == pytest.approx(expected)
        assert len(panel.collections[1].get_offsets()) == len(SCAN.heads(LABELS[kind]))
        assert panel.get_ylim()[0] == 0
        assert panel.get_yticks()[-1] == 1
        mean = SCAN.frame.groupby("layer")[kind].mean()
        assert list(panel.lines[0].get_ydata()) == pytest.approx(mean.tolist())
    inside(figure)


def test_a_kind_that_was_not_measured_is_told():
    flat = causal(12).repeat(2, 1, 1)
    figure = score_by_layer(scan_of(one_prompt(flat, range(12))))
    assert [text.get_text() for text in figure.axes[0].texts] == ["not measured"]


def one_prompt(pattern, tokens):
    patterns = patterns_of([["sink"] * len(pattern)], torch.tensor(list(tokens)))
    patterns[0, 0] = pattern
    return patterns


def test_in_the_zoo_each_kind_has_its_ideal_beside_a_real_head():
    figure = head_zoo(SCAN, PATTERNS)
    panels = [axes for axes in figure.axes if axes.images]
    heads = plots.zoo_heads(SCAN)
    titles = [panel.get_title().split()[0] for panel in panels]
    expected = [["ideal", str(heads[kind])] if kind in heads else ["ideal"] for kind in LABELS]
    assert titles == [title for pair in expected for title in pair]
    absent = told(figure).replace("  ", " ").count("No head")
    assert absent == len(LABELS) - len(heads)
    ideal = image(panels[0]).filled(0)
    assert ideal.sum(-1) == pytest.approx(np.ones(LENGTH))
    second = LENGTH // 2 + 1
    assert all(ideal[query, query - LENGTH // 2 + 1] == 1 for query in range(second, LENGTH))
    assert (ideal[1:second, 0] == 1).all()
    inside(figure)


def test_the_ideal_sink_rests_on_special_tokens_as_the_real_one_is_outlined():
    figure = head_zoo(scan_of(AHEAD), AHEAD)
    panels = {
        text.get_text(): [axes for axes in figure.axes if axes.images][-2:]
        for text in figure.texts
        if text.get_text() == "sink"
    }
    ideal, real = panels["sink"]
    assert ideal.get_title() == "ideal"
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


def test_the_zoo_names_the_kinds_that_have_no_target_on_the_prompt():
    short = one_prompt(causal(8), range(8))
    text = told(head_zoo(scan_of(short), short))
    assert "has a target of these kinds: induction, duplicate token, local window." in text
    assert "has a target" not in told(head_zoo(SCAN, PATTERNS))


@pytest.mark.fault("B46", "B92", "B93")
@pytest.mark.parametrize("length", [1, 2, 49, 1024])
def test_prompts_of_any_length_are_drawn_whole(length):
    for figure in (
        head_page(causal(length), "L0H0", range(length)),
        attention_arcs(causal(length), "L0H0", None, range(length)),
    ):
        inside(figure)
    figure = head_page(causal(length), "L0H0", range(length))
    assert image(figure.axes[0]).shape == (length, length)
    assert figure.axes[0].images[0].get_clim() == (0, 1)  # However little each key gets.
    assert ("Every" in told(figure)) == (length > 76)


@pytest.mark.fault("B17")
def test_every_picture_of_a_prompts_beginning_says_of_how_many_tokens_it_is():
    for figure in (
        head_page(PATTERNS, "L1H0", scan=SCAN, whole=3000),
        attention_arcs(PATTERNS, "L1H0", scan=SCAN, whole=3000),
        plots.pattern_page(SCAN, PATTERNS, whole=3000),
        head_zoo(SCAN, PATTERNS, whole=3000),
    ):
        assert "Prompt: the first 25 of 3,000 tokens" in told(figure)
        inside(figure)
    assert "Prompt: 25 tokens" in told(head_page(PATTERNS, "L1H0", whole=25))
    with pytest.raises(InputError, match="whole must be at least 25, got 24"):
        head_page(PATTERNS, "L1H0", whole=24)


@pytest.mark.fault("B09")
def test_long_tokens_that_begin_alike_stay_apart_and_in_sight():
    texts = ["W" * 300 + end for end in "abc"]
    for draw in (head_page, attention_arcs):
        figure = draw(causal(3), "L0H0", tokens=[7, 8, 9], texts=texts)
        named = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
        assert sorted(name.partition("…")[2] for name in named) == ["#7", "#8", "#9"]
        inside(figure)


def test_where_a_cell_is_less_than_a_dot_the_largest_is_shown_and_it_is_said():
    length = 800
    tokens = torch.arange(length)
    sharp = torch.eye(length).roll(-1, 1)
    sharp[0] = torch.eye(length)[0]
    patterns = one_prompt(sharp[None], tokens)
    figure = plots.pattern_page(scan_of(patterns), patterns)
    panel = next(axes for axes in figure.axes if axes.images)
    assert image(panel).shape == (267, 267)
    assert all(image(panel)[i, i] == 1 for i in range(267))
    assert panel.get_xlim() == (-0.5, length - 0.5)
    assert "the largest weight among 3 queries and 3 keys" in told(figure)


@pytest.mark.fault("B06", "B07", "B63")
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_any_text_is_drawn_as_it_is_without_a_warning_and_the_same_each_time(suffix, tmp_path):
    texts = [*BREAKOUTS, *ODD, "$x$", r"\frac", "W" * 300]
    length = len(texts)
    draw = (
        lambda: head_page(causal(length), "L0H0", range(length), texts=texts),
        lambda: attention_arcs(causal(length), "L0H0", None, range(length), texts=texts),
    )
    before = matplotlib.rcParams.copy()
    for number, one in enumerate(draw):
        files = []
        for again in range(2):
            path = tmp_path / f"{number}{again}{suffix}"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                save_figure(one(), path)
            files.append(path.read_bytes())
            if suffix == ".svg":
                ElementTree.fromstring(files[-1])
        assert files[0] == files[1]
        named = {tick.get_text() for tick in one().axes[0].get_xticklabels()}
        assert len(named) == length
        assert {"$x$", "U+202E", "∅", "⏎"} <= named
    assert matplotlib.rcParams.copy() == before


MISTAKES = {
    "texts too few": (
        {"tokens": [1, 2, 3], "texts": ["a", "b"]},
        "texts must have one entry per token, got 2 for the 3",
    ),
    "tokens too many": (
        {"tokens": [1, 2, 3, 4]},
        "tokens must match the patterns, got 1 rows of 4",
    ),
    "no tokens": ({"tokens": []}, "at least one token"),
    "padding alone": ({"tokens": [NONE] * 3}, "must be more than padding in each row, got none"),
    "absent head": ({"tokens": [1, 2, 3], "head": "L0H4"}, "patterns must hold L0H4, got layers"),
    "no such row": ({"tokens": [1, 2, 3], "row": 1}, "row must be from 0 to 0, got 1"),
}


@pytest.mark.fault("B03")
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("draw", [head_page, attention_arcs])
def test_what_does_not_fit_is_refused(mistake, draw):
    given, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=message):
        draw(causal(3), **({"head": "L0H0"} | given))


@pytest.mark.fault("B20")
def test_of_a_batch_one_prompt_has_to_be_chosen():
    batch = torch.stack([causal(4), causal(4), causal(4)])
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3]])
    with pytest.raises(InputError, match="row must be given for a batch of 3 prompts, got none"):
        head_page(batch, "L0H0", ids)
    labels = head_page(batch, "L0H0", ids, row=1).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["<5>", "<6>", "<7>", "<8>"]
    with pytest.raises(InputError, match="row must be given for a batch of 3 prompts, got none"):
        head_page(batch[..., :1, :1], "L0H0", ids[:, :1])
    one = head_page(batch[..., :1, :1], "L0H0", ids[:, :1], row=2)
    assert [label.get_text() for label in one.axes[0].get_xticklabels()] == ["<9>"]


@pytest.mark.fault("B10")
def test_tokens_that_come_again_keep_their_places():
    weights = PATTERNS[0, 0, 2, :6, :6].as_subclass(torch.Tensor).clone()
    figure = head_page(weights[None], "L0H0", [5, 6, 7] * 2, texts=list("ABCABC"))
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_xticklabels()] == list("ABCABC")
    assert (image(panel).filled(0) == weights.numpy()).all()


@pytest.mark.fault("B69")
def test_a_long_name_of_a_model_is_cut_in_the_figure_at_once():
    scan = scan_of(PATTERNS, model="org/" + "name/../" * 1000)
    figure = head_page(PATTERNS, "L1H0", scan=scan)
    assert "…" in figure.texts[0].get_text()
    inside(figure)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="at most 1,024 tokens to be drawn, got 1,025"):
        Shown.of(causal(1025), range(1025))
    for query in (-1, 4):
        with pytest.raises(InputError, match=f"query must be from 0 to 3, got {query}"):
            attention_arcs(causal(4), "L0H0", query, range(4))
    with pytest.raises(InputError, match="scan must hold L0H0, got 0 heads without it"):
        head_page(causal(4), "L0H0", range(4), scan=HeadScan(SCAN.frame.head(0), {}))
    with pytest.raises(InputError, match="scan must hold at least one head, got none"):
        score_by_layer(HeadScan(SCAN.frame.head(0), {}))


def test_the_style_file_holds_what_figures_use():
    import matplotlib.style

    with matplotlib.style.context(["default", "interp.show.figures.interp"]):
        assert {name: matplotlib.rcParams[name] for name in style.STYLE} == style.STYLE
    assert style.STYLE["text.parse_math"] is False
