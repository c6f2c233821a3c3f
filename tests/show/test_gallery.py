"""The gallery page: every weight, label and target, nothing from outside, nothing let in."""

import base64
import html
import io
import json
import re
import socket
import sys
import zlib
from dataclasses import asdict
from functools import cache

import numpy as np
import paged
import pytest
import torch
from encoders import CLS, SEP, bert_tokenizer, encoder
from paged import (
    BREAKOUTS,
    TOKENS,
    looking_across,
    looking_ahead,
    pattern,
    patterns_of,
    scan_of,
)
from parsed import Parsed
from PIL import Image
from places import ROOT
from tiny_models import chat_model, tiny, words_tokenizer

import interp
from interp.errors import InputError
from interp.heads import Head
from interp.kinds.builtin import KINDS
from interp.kinds.looks import marked
from interp.kinds.probes import passages
from interp.kinds.scores import Thresholds
from interp.patterns.classify import classify_heads
from interp.scan.table import HeadScan
from interp.show.about import special_of
from interp.show.pages import gallery as pages
from interp.show.pages import packing
from interp.show.pages.gallery import gallery, gallery_of_model
from interp.show.pages.packing import as_steps, packed, thumbnail, unpacked
from interp.show.prompt import LONGEST
from interp.text import distinct, visible

CLOSE = 0.002
"""Largest difference between a weight and the page's."""

plain, hostile = cache(paged.plain), cache(paged.hostile)


def weights(document, prompt, head):
    return unpacked(Parsed(document).scripts[f"w{prompt}-{head}"])


def test_the_page_holds_every_weight_of_every_head_within_its_promise():
    made, patterns = plain()
    page = Parsed(made.to_html())
    for layer in range(3):
        for head in range(3):
            kept = unpacked(page.scripts[f"w0-L{layer}H{head}"])
            assert (kept - patterns[layer, 0, head]).abs().max() < CLOSE
    assert len(page.data["heads"]) == 9


@pytest.mark.parametrize("shape", [(7, 7), (4, 9), (9, 4), (1, 5), (5, 1)])
def test_what_looks_both_ways_or_at_another_text_is_packed_whole(shape):
    pattern = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    steps = as_steps(pattern, where="here", causal=False)
    for one, own in zip(pattern, steps, strict=True):
        kept = unpacked(packed(own, causal=False), keys=shape[1])
        assert (kept - one).abs().max() <= 0.5 / 255 + 1e-6
    assert thumbnail(steps, most=3).shape[1:] == tuple(-(-n // -(-max(shape) // 3)) for n in shape)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, torch.nan, torch.inf])
def test_what_is_no_weight_is_not_packed(wrong):
    with pytest.raises(InputError, match=r"^patterns must be .* got .* in layer 3"):
        as_steps(torch.tensor([[[1.0, 0.0], [wrong, 0.5]]]), where="layer 3")


def test_weights_that_rounding_left_outside_0_and_1_are_packed_as_0_and_1():
    almost = torch.tensor([[[1.0005, 0.0], [-5e-7, 1.0]]])
    assert as_steps(almost, where="here").tolist() == [[[255, 0], [0, 255]]]


def test_a_thumbnail_pixel_is_the_largest_weight_of_its_block():
    steps = torch.arange(25, dtype=torch.uint8).view(1, 5, 5)
    assert thumbnail(steps, most=3).tolist() == [[[6, 8, 9], [16, 18, 19], [21, 23, 24]]]
    assert torch.equal(thumbnail(steps, most=5), steps)


def test_the_page_knows_labels_scores_and_targets():
    made, patterns = plain()
    data = Parsed(made.to_html()).data
    scan = scan_of(patterns)
    assert data["groups"] == list(scan.summary())
    induction = next(label for label in data["labels"] if label["word"] == "induction")
    assert induction["count"] == len(scan.heads("induction"))
    head = next(head for head in data["heads"] if head["name"] == "L1H0")
    assert head["label"] == "induction"
    assert head["score"] == pytest.approx(
        scan.frame.set_index("name").loc["L1H0", "induction"], abs=1e-4
    )
    targets = data["prompts"][0]["targets"]
    assert targets["induction"][-1] == [13]  # Right after the first copy, at 12.
    assert targets["previous_token"][5] == [4]
    assert targets["induction"][3] == []


def test_a_sinks_other_columns_are_on_the_page_as_the_figures_outline_them():
    twice = (torch.eye(25)[[0] * 3 + [3] * 22] + torch.eye(25)[[0] * 25]) / 2
    made = gallery(classify_heads(twice[None], TOKENS), twice[None], TOKENS)
    (prompt,) = Parsed(made.to_html()).data["prompts"]
    assert prompt["sinks"] == {"L0H0": [0, 3]}
    outlined = marked(KINDS["sink"], TOKENS, asdict(Thresholds()), [], attention=twice)
    for query, keys in enumerate(prompt["targets"]["sink"]):
        wanted = {*keys, *(key for key in [0, 3] if key < query and keys)}
        assert wanted == set(outlined[query].nonzero().flatten().tolist())
    assert outlined[3:].sum() == 43  # Two for each query after 3, and one at 3.


@pytest.mark.fault("B10")
def test_repeated_tokens_stay_apart_and_in_order():
    tokens = torch.tensor([5, 6, 7, 5, 6, 7])
    patterns = patterns_of(tokens=tokens, texts=list("ABCABC"))
    page = Parsed(gallery(scan_of(patterns_of()), patterns).to_html())
    assert page.data["prompts"][0]["labels"] == list("ABCABC")
    assert unpacked(page.scripts["w0-L0H0"]).shape == (6, 6)


@pytest.mark.fault("B09")
def test_blanks_and_control_characters_become_visible_and_different_tokens_differ():
    made, texts = hostile()
    labels = Parsed(made.to_html()).data["prompts"][0]["labels"]
    assert len(set(labels)) == len(texts)
    assert {"␣", "⏎", "⏎⏎", "⇥", "∅", "U+0000", "U+202E", "U+200B", "U+D800", "␣the"} <= set(labels)
    assert visible("é") != visible("e\u0301")
    assert distinct(["�", "�", "a"], [7, 9, 3]) == ["�#7", "�#9", "a"]


@pytest.mark.fault("B08")
def test_no_text_breaks_out_of_the_page():
    (made, _), (harmless, _) = hostile(), plain()
    page, other = Parsed(made.to_html()), Parsed(harmless.to_html())
    assert page.count("script") == other.count("script")
    assert page.count("img") == other.count("img")
    assert page.count("b") == other.count("b")
    assert {visible(text) for text in BREAKOUTS} <= set(page.data["prompts"][0]["labels"])
    assert page.data["prompts"][0]["title"] == BREAKOUTS[2]
    assert "window.X=1</script>" not in made.to_html()
    assert html.escape(BREAKOUTS[0]) in made.to_html()


@pytest.mark.fault("B12")
def test_the_page_refers_to_nothing_outside_and_its_policy_lets_nothing_in():
    document = hostile()[0].to_html()
    assert "http://" not in document
    assert "https://" not in document
    page = Parsed(document)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "srcset", "data"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline' 'unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy


@pytest.mark.fault("B63")
def test_the_file_is_utf8_without_nul_and_the_same_each_time(tmp_path):
    made, _ = hostile()
    path = made.save(tmp_path / "gallery.html")
    content = path.read_bytes()
    assert b"\x00" not in content
    assert '<meta charset="utf-8">' in content.decode("utf-8")
    assert paged.hostile()[0].save(tmp_path / "again.html").read_bytes() == content
    assert {p.name for p in tmp_path.iterdir()} == {"gallery.html", "again.html"}


def test_without_scripts_a_still_picture_shows_the_weights_above_a_table():
    made, _ = plain()
    document = made.to_html()
    rows = Parsed(document[document.index("<noscript>") : document.index("</noscript>")])
    assert rows.count("tr") == 10
    picture = next(a["src"] for tag, a in rows.elements if tag == "img")
    assert base64.b64decode(picture.partition(",")[2]) == made._repr_png_()
    image = Image.open(io.BytesIO(made._repr_png_()))
    colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    # Dark where a head puts all its attention, and grey where it cannot look.
    assert (colours == [0xE3, 0xE6, 0xEA]).all(1).sum() > 9 * 100
    assert (colours.sum(1) < 200).sum() > 100


def test_in_a_notebook_the_page_lives_in_a_frame_of_its_own():
    made, _ = hostile()
    shown = Parsed(made._repr_html_())
    assert [tag for tag, _ in shown.elements] == ["iframe"]
    attributes = shown.elements[0][1]
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == made.to_html()
    assert made._repr_png_().startswith(b"\x89PNG")


@pytest.mark.fault("B102")
def test_nothing_touches_the_network(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    made, _ = paged.plain()
    made.save(tmp_path / "gallery.html")
    made._repr_html_()


@pytest.mark.fault("B20")
def test_each_row_of_a_batch_is_a_prompt_and_padding_is_cut():
    one = pattern("previous_token", torch.arange(5))
    three = torch.stack([pattern("random", torch.arange(5), seed=i) for i in range(3)])
    padded = torch.zeros(5, 5)
    padded[:3, :3] = pattern("random", torch.arange(3))
    stack = torch.cat([three, padded[None]])[:, None]
    tokens = torch.tensor([[1, 2, 3, 4, 5]] * 3 + [[1, 2, 3, -1, -1]])
    made = gallery(classify_heads(one[None], torch.arange(5)), stack, tokens)
    assert [len(prompt.text) for prompt in made.prompts] == [5, 5, 5, 3]
    for row in range(3):
        assert (weights(made.to_html(), row, "L0H0") - three[row]).abs().max() < CLOSE
    assert (weights(made.to_html(), 3, "L0H0") - padded[:3, :3]).abs().max() < CLOSE


@pytest.mark.fault("B93")
def test_a_prompt_of_one_token_is_shown():
    patterns = patterns_of(tokens=torch.tensor([3]))
    made = gallery(scan_of(patterns), patterns)
    assert torch.equal(weights(made.to_html(), 0, "L2H2"), torch.ones(1, 1))
    assert made.prompts[0].title.startswith("1 token:")
    assert made._repr_png_()


def test_only_the_heads_asked_for_are_shown_and_the_page_says_how_many_are_not():
    patterns = patterns_of()
    made = gallery(scan_of(patterns), patterns, heads=["L1H0", Head(0, 1)])
    assert made.heads == [Head(0, 1), Head(1, 0)]
    page = Parsed(made.to_html())
    assert {head["name"] for head in page.data["heads"]} == {"L0H1", "L1H0"}
    assert "7 of the scan's 9 heads are not on this page." in page.data["notes"]


@pytest.mark.fault("B17")
def test_beyond_the_limit_the_strongest_heads_of_each_label_stay_and_the_page_says_so():
    length = 300
    tokens = torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(5, 304) % 150 + 5])[:length]
    patterns = patterns_of([["random"] * 3 + ["previous_token"] * 2] * 3, tokens)
    scan = scan_of(patterns)
    whole = len(gallery(scan, patterns).to_html())
    made = gallery(scan, patterns, limit=(whole - 1000) / 1e6)
    assert len(made.to_html()) < whole - 1000
    data = Parsed(made.to_html()).data
    assert {head["label"] for head in data["heads"]} == set(scan.summary())
    assert 2 <= len(data["heads"]) < 15
    assert f"All 15 heads would take {whole / 1e6:.1f} million bytes" in data["notes"][0]
    assert f"{len(data['heads'])} in all" in data["notes"][0]
    assert "All 15 heads would take" in repr(made)
    kept = [h["name"] for h in data["heads"] if h["label"] == "previous token"]
    strongest = [str(head) for head in scan.heads("previous token")][: len(kept)]
    assert sorted(kept) == sorted(strongest)
    with pytest.raises(InputError, match="limit must leave room for one head of each label"):
        gallery(scan, patterns, limit=0.5)


def test_circuitsvis_script_cannot_end_the_element_that_it_stands_in():
    script = zlib.decompress(base64.b64decode(Parsed(plain()[0].to_html()).scripts["circuitsvis"]))
    frame = Parsed(f"<script>{script.decode()}</script>")
    assert [tag for tag, _ in frame.elements] == ["script"]
    assert frame.scripts == {"": script.decode()}


def test_without_circuitsvis_a_page_has_every_head_still_and_says_what_to_install(
    monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "circuitsvis", None)
    with caplog.at_level("INFO", logger="interp"):
        page = Parsed(paged.plain()[0].to_html())
    assert sum(name.startswith("w0-") for name in page.scripts) == 9
    assert "circuitsvis" not in page.scripts
    assert "not installed" in caplog.text


@pytest.mark.fault("B17")
def test_a_prompt_of_more_than_a_thousand_tokens_is_cut_and_the_page_says_so():
    tokens = torch.arange(LONGEST + 10)
    patterns = patterns_of([["random"]], tokens)
    made = gallery(classify_heads(pattern("sink")[None], TOKENS), patterns)
    assert len(made.prompts[0].text) == LONGEST
    (note,) = made.notes
    assert "1,034 tokens is cut to its first 1,024" in note
    kept = weights(made.to_html(), 0, "L0H0")
    assert (kept - patterns[0, 0, 0, :LONGEST, :LONGEST]).abs().max() < CLOSE


SQUARE = pattern("random", torch.arange(7))[None]
VERDICTS = classify_heads(SQUARE, torch.arange(7))
REFUSED = {
    "scores before the softmax": ("patterns", {"patterns": 5 * SQUARE.log().clamp(min=-9)}),
    "a look ahead": ("patterns", {"patterns": SQUARE.flip(-1)}),
    "a head that is absent": ("heads", {"heads": ["L3H0"]}),
    "no heads": ("heads", {"heads": []}),
    "more heads than the scan": ("patterns", {"patterns": SQUARE.repeat(2, 1, 1)}),
    "more layers than the scan": ("patterns", {"patterns": SQUARE.repeat(2, 1, 1, 1, 1)}),
    "a layer that the scan lacks": ("patterns", {"layers": [3]}),
    "no scan": ("scan", {"scan": None}),
    "too many titles": ("titles", {"titles": ["a", "b"]}),
    "room without end": ("limit", {"limit": torch.inf}),
}


@pytest.mark.fault("B03", "B46", "B92")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shown_is_refused(case):
    argument, given = REFUSED[case]
    with pytest.raises(InputError, match=f"^{argument} must"):
        gallery(**{"scan": VERDICTS, "patterns": SQUARE, "tokens": torch.arange(7), **given})


def test_what_was_given_is_left_as_it_was():
    patterns = patterns_of()
    scan, before = scan_of(patterns), patterns.clone()
    frame = scan.to_frame()
    gallery(scan, patterns).to_html()
    assert torch.equal(patterns, before)
    assert scan.frame.equals(frame)


def test_a_models_page_is_the_same_as_that_of_its_patterns():
    model = interp.load_model(tiny("llama"), words_tokenizer())
    scan = interp.scan_heads(model, rows=1, quick=True)
    text = "w5 w6 w7 w5 w6"
    by_layer = gallery_of_model(scan, model, [text], titles=["one"])
    at_once = gallery(scan, interp.attention_patterns(model, text), titles=["one"])
    assert by_layer.to_html() == at_once.to_html()
    assert len(by_layer.heads) == 8


@pytest.mark.fault("B57")
def test_a_page_of_heads_that_look_ahead_holds_every_weight_its_kinds_and_their_targets():
    patterns = looking_ahead()
    made = gallery(classify_heads(patterns), patterns)
    page = Parsed(made.to_html())
    for head in range(7):
        kept = unpacked(page.scripts[f"w0-L0H{head}"], keys=28)
        assert (kept - patterns[0, 0, head]).abs().max() < CLOSE
    kinds = [kind["kind"] for kind in page.data["kinds"]]
    assert kinds == [*page.data["prompts"][0]["targets"]]
    assert "next_token" in kinds
    assert "induction" not in kinds
    assert page.data["looks"]["local window"] == "looks at 4 tokens on each side"
    assert page.data["groups"] == [
        *("duplicate token", "previous token", "next token"),
        *("current token", "local window", "sink", "mixed"),
    ]
    (prompt,) = page.data["prompts"]
    assert prompt["causal"] is False
    assert prompt["targets"]["next_token"][10] == [11]
    assert prompt["targets"]["duplicate_token"][2] == [13]  # A later copy.
    # Special tokens are places to rest, before the query and after it.
    assert prompt["targets"]["sink"][10] == [0, 7, 27]
    assert prompt["targets"]["sink"][7] == []
    known = asdict(Thresholds()), [CLS, SEP]
    head = patterns[0, 0, 5].as_subclass(torch.Tensor)
    outlined = marked(KINDS["sink"], patterns.tokens[0], *known, causal=False, attention=head)
    assert outlined[10].nonzero().flatten().tolist() == [0, 7, 27]
    assert not outlined[[0, 7, 27]].any()


@pytest.mark.fault("B58")
def test_a_page_of_cross_attention_has_the_tokens_of_both_texts_and_no_labels():
    wide, tall = looking_across()
    made = gallery(None, [wide, tall])
    page = Parsed(made.to_html())
    for prompt, patterns in enumerate((wide, tall)):
        queries, keys = patterns.shape[-2:]
        assert queries != keys
        for head in made.heads:
            kept = unpacked(page.scripts[f"w{prompt}-{head}"], keys=keys)
            assert (kept - patterns[head.layer, 0, head.head]).abs().max() < CLOSE
        told = page.data["prompts"][prompt]
        assert told["ids"] == patterns.tokens[0].tolist()
        assert told["keys"] == {
            "ids": patterns.key_tokens[0].tolist(),
            "labels": distinct(
                [visible(text) for text in patterns.key_texts[0]], patterns.key_tokens[0].tolist()
            ),
            "special": [0, len(patterns.key_tokens[0]) - 1],
            "template": [],
        }
        assert told["targets"] == {}
    assert {head["label"] for head in page.data["heads"]} == {"cross-attention"}
    assert page.data["kinds"] == []
    assert made._repr_png_().startswith(b"\x89PNG")
    assert made.head("L1H2")._repr_png_().startswith(b"\x89PNG")
    scan = classify_heads(torch.eye(5).expand(3, 1, 4, 5, 5), range(5))
    with pytest.raises(InputError, match=r"^scan must be None"):
        gallery(scan, wide)
    with pytest.raises(InputError, match=r"^scan must be from"):
        gallery(None, plain()[1])


def test_padding_is_cut_off_on_every_side_of_every_kind_of_pattern():
    model = interp.load_model(encoder())
    rows = [[CLS, *range(10, 20), SEP], [CLS, 7, 8, SEP]]
    together = interp.attention_patterns(model, rows)
    made = gallery(interp.scan_heads(model, rows=1, quick=True), together)
    for row, ids in enumerate(rows):
        assert made.prompts[row].text.ids.tolist() == ids
        kept = unpacked(Parsed(made.to_html()).scripts[f"w{row}-L1H2"], keys=len(ids))
        assert (kept - together[1, row, 2, : len(ids), : len(ids)]).abs().max() < CLOSE
    stack = torch.zeros(1, 2, 1, 4, 5)
    stack[0, 0, 0], stack[0, 1, 0, 2:, 2:] = 1 / 5, 1 / 3
    across = interp.patterns.tensor.Ran(
        arrays=[stack[0]],
        layers=[0],
        tokens=torch.tensor([[1, 2, 3, 4], [-1, -1, 5, 6]]),
        causal=False,
        stack="cross",
        key_tokens=torch.tensor([[1, 2, 3, 4, 5], [-1, -1, 6, 7, 8]]),
    )
    assert torch.equal(interp.read_patterns(across).as_subclass(torch.Tensor), stack)
    for prompt, shape in zip(gallery(None, across).prompts, [(4, 5), (2, 3)], strict=True):
        even = torch.full(shape, 1 / shape[1])
        assert (prompt.pattern(Head(0, 0)) - even).abs().max() < CLOSE
    stack[0, 1, 0, 2] = torch.tensor([0, 1, 0, 0, 0])
    with pytest.raises(InputError, match="must leave padding alone"):
        gallery(None, across)


def test_a_page_of_a_bert_is_the_same_by_model_as_by_patterns_and_of_long_prompts_too(monkeypatch):
    monkeypatch.setattr(pages, "LONGEST", 8)
    monkeypatch.setattr(packing, "LONGEST", 8)
    model = interp.load_model(encoder(), bert_tokenizer())
    scan = interp.scan_heads(model, rows=1, quick=True)
    text = " ".join(f"w{i}" for i in range(4, 20))
    by_layer = gallery_of_model(scan, model, [text], titles=["one"])
    patterns = interp.attention_patterns(model, text)
    assert by_layer.to_html() == gallery(scan, patterns, titles=["one"]).to_html()
    titled = gallery_of_model(scan, model, ["w4 w5 w6"]).prompts[0].title
    assert titled == "5 tokens: [CLS] w4 w5 w6 [SEP]"
    # The rows that are shown are those of the whole prompt.
    assert (by_layer.prompts[0].pattern(Head(0, 1)) - patterns[0, 0, 1, :8, :8]).abs().max() < CLOSE
    (note,) = by_layer.notes
    assert "18 tokens is cut to its first 8" in note
    assert "later tokens is not shown" in note


@pytest.mark.fault("B03")
def test_a_models_page_takes_prompts_of_several_lengths_and_some_heads():
    model = interp.load_model(tiny("llama"), words_tokenizer())
    scan = interp.scan_heads(model, rows=1, quick=True)
    done = []
    made = gallery_of_model(
        scan, model, ["w5 w6", [3, 4, 5]], heads=["L1H2"], progress=lambda *at: done.append(at)
    )
    assert [len(prompt.text) for prompt in made.prompts] == [3, 3]
    # The labels are those of the ids that were run, BOS among them.
    assert made.prompts[0].text.labels[1:] == ["w5", "w6"]
    assert made.prompts[0].text.ids.tolist() == model.to_tokens("w5 w6")[0].tolist()
    assert made.heads == [Head(1, 2)]
    assert done == [(1, 2), (2, 2)]


def chat_of(model):
    """A scan of a chat model, a chat, and its patterns."""
    chat = [{"role": "w9", "content": "w5 w6 w7"}]
    return (
        interp.scan_heads(model, rows=1, quick=True),
        chat,
        interp.attention_patterns(model, chat),
    )


@pytest.mark.fault("C27", "C32")
def test_a_page_of_a_chat_knows_the_template_and_special_tokens():
    model = chat_model()
    scan, chat, patterns = chat_of(model)
    made = gallery_of_model(scan, model, [chat])
    (prompt,) = Parsed(made.to_html()).data["prompts"]
    assert prompt["labels"] == ["<s>", "w100", "w101", "w9", "w5", "w6", "w7", "</s>"]
    assert (prompt["template"], prompt["special"]) == ([0, 1, 2, 3, 7], [0, 7])
    assert made.to_html() == gallery_of_model(scan, model, chat).to_html()
    assert gallery(scan, patterns).prompts[0].templated == [0, 1, 2, 3, 7]
    assert made.prompts[0].title == "8 tokens: w5 w6 w7"  # What the chat says.
    assert gallery(scan, patterns).prompts[0].text.labels == prompt["labels"]
    (plain_text,) = gallery_of_model(scan, model, ["w5 w6 </s> w7"]).prompts
    assert (plain_text.templated, plain_text.text.special(plain_text.special)) == ([], [0, 3])


@pytest.mark.fault("C33", "C39")
def test_titles_show_whole_characters_and_a_line_end_once():
    texts = ["def", " f():", "\n", "    '", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "'"]
    patterns = patterns_of(tokens=torch.arange(9), texts=texts)
    page = Parsed(gallery(scan_of(patterns), patterns).to_html()).data
    (prompt,) = page["prompts"]
    assert prompt["title"] == "9 tokens: def f():⏎    '🙂'"
    assert prompt["labels"][4:6] == ["<0xF0>", "<0x9F>"]
    assert page["notes"][-1] == "Token names: <0xF0> is a byte of a character."
    unknown = patterns_of(tokens=torch.arange(2), texts=["\ufffd", "\ufffd"])
    page = Parsed(gallery(scan_of(patterns), unknown).to_html()).data
    assert page["prompts"][0]["labels"] == ["\ufffd#0", "\ufffd#1"]
    assert "#1234 is the id" in page["notes"][-1]
    assert "byte of" not in page["notes"][-1]


@pytest.mark.real_model
def test_the_real_model_fits_its_size_and_its_promise(real_model, real_scan):
    ids = passages()["prose"]
    tokens = real_model.to_tokens(ids)[:, :128]
    patterns = interp.attention_patterns(real_model, tokens)
    made = gallery(real_scan, patterns)
    document = made.to_html()
    assert len(document) <= 4e6
    page = Parsed(document)
    for head in made.heads:
        kept = unpacked(page.scripts[f"w0-{head}"])
        assert (kept - patterns[head.layer, 0, head.head]).abs().max() < CLOSE
    assert len(made.heads) == 270


def test_special_tokens_of_the_scan_are_no_targets_and_one_head_tells_of_a_cut_prompt():
    made_by = {"model": "x", "bos": 1, "special": [1, 7]}
    assert special_of(HeadScan(scan_of(plain()[1]).frame, made_by)) == [1, 7]
    tokens = torch.arange(LONGEST + 10)
    stack = torch.eye(len(tokens))[None, None]
    made = gallery(classify_heads(stack, tokens), stack, tokens)
    assert made.head("L0H0").notes == made.notes != []


def test_heads_as_data_have_their_evidence_their_examples_and_their_attention(tmp_path):
    patterns = patterns_of()
    scan = scan_of(patterns)
    pair = {"weight": 0.4, "row": 0, "query": {"token": "a"}, "key": {"token": "b"}}
    scan.made_by["explained"] = {"unexplained": {"L1H0": [pair]}}
    page = gallery(scan, patterns, values={"L1H0": 0.25}, heads=["L1H0", "L0H1"])
    read = json.loads(page.save(tmp_path / "gallery.json").read_text(encoding="utf-8"))
    assert read["schema_version"] == 1
    (prompt,) = read["prompts"]
    assert prompt["ids"] == patterns.tokens[0].tolist()
    other, head = read["heads"]
    assert (other["name"], other["value"], other["unexplained"]) == ("L0H1", None, [])
    assert (head["value"], head["unexplained"]) == (0.25, [pair])
    row = scan.frame.set_index("name").loc["L1H0"]
    assert head["induction"] == pytest.approx(row["induction"])
    assert head["explain"] == scan.explain("L1H0").splitlines()
    expected = patterns.as_subclass(torch.Tensor)[1, 0, 0]
    seen = torch.zeros_like(expected)
    for query, key, weight in head["attention"][0]:
        seen[query, key] = weight
    assert (seen > 0).equal(expected >= read["least"])
    assert torch.allclose(seen[seen > 0], expected[seen > 0], atol=0.003)
    every = page.to_json(least=0.0)["heads"][1]["attention"][0]
    assert len(every) == int((expected * 255).round().gt(0).sum())
    described = set(re.findall(r"^\| ([`\w, ]+) \|", (ROOT / "docs/see.md").read_text(), re.M))
    words = {word.strip("` ") for entry in described for word in entry.split(",")}
    columns = {*scan.frame.columns}
    assert {*read, *prompt} - {"title"} <= words
    assert {*head} - columns <= words
