import json
import re

import numpy as np
import pytest
from invoked import invoke, refused
from paged import looking_ahead
from parsed import Parsed
from tiny_models import CHAT, tiny, words_tokenizer

import interp
from interp.show import render as rendering
from interp.show.pages.packing import unpacked

NAME = "render_gallery"
HEADS = ("L0H1", "L1H2")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tiny model with a tokenizer, and the table of its heads."""
    path = tmp_path_factory.mktemp("made")
    tiny("llama").save_pretrained(path / "model")
    words = words_tokenizer()
    words.chat_template = CHAT
    words.save_pretrained(path / "model")
    scan = interp.scan_heads(interp.load_model(path / "model"), rows=2, quick=True)
    scan.save(path / "heads.json")
    return path


@pytest.fixture
def render(made, tmp_path):
    """Run the script on the tiny model and its table; gives what was printed and the folder."""

    def run(*arguments):
        out = tmp_path / "out"
        model = ("--model", made / "model", "--scan", made / "heads.json")
        done = invoke(NAME, *model, "--out", out, *arguments)
        assert done.returncode == 0, done.stderr
        return done, out

    return run


@pytest.mark.fault("B69")
def test_a_run_writes_the_page_and_the_figures_and_nothing_else(render, tmp_path):
    (tmp_path / "prompt.txt").write_bytes("\ufeffw7 w8 東 🙂 w7\r\nw8".encode())
    prompts = ("--prompt", "w5 w6 w5 w6 w5", "--prompt-file", tmp_path / "prompt.txt")
    done, out = render(*prompts, "--format", "html,png,svg,pdf")
    pictures = {f"gallery{n}.{ending}" for n in ("", "_2") for ending in ("png", "svg", "pdf")}
    assert {path.name for path in out.iterdir()} == {"gallery.html", *pictures}
    page = (out / "gallery.html").read_text(encoding="utf-8")
    assert page.count('<script type="text/plain" id="w0-') == 8
    assert page.count('<script type="text/plain" id="w1-') == 8
    assert "gallery.html" in done.stdout


@pytest.mark.fault("C27", "C32")
def test_a_file_of_chats_is_a_prompt_a_line(render, tmp_path):
    messages = [{"role": "w9", "content": "w5 w6 w5 w6"}]
    lines = ({"messages": messages}, {"text": "w5 </s> w6"}, {"tokens": [1, 5, 6]})
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    given = ("--prompt-file", tmp_path / "p.jsonl", "--format", "html,png")
    _, out = render(*given, "--heads", "L0H1")
    prompts = Parsed((out / "gallery.html").read_text(encoding="utf-8")).data["prompts"]
    assert [prompt["template"] for prompt in prompts] == [[0, 1, 2, 3, 8], [], []]
    assert [len(prompt["ids"]) for prompt in prompts] == [9, 4, 3]
    assert prompts[1]["special"] == [0, 2]
    assert (out / "head_L0H1_3.png").exists()


def test_patterns_in_a_file_are_shown_without_a_model(made, tmp_path):
    model = interp.load_model(made / "model")
    patterns = interp.attention_patterns(model, [[1, 5, 6, 5, 6], [1, 7, 8, 7, 8]])
    np.savez(tmp_path / "saved.npz", patterns=patterns.numpy(), tokens=patterns.tokens.numpy())
    out = tmp_path / "out"
    given = ["--patterns", tmp_path / "saved.npz", "--heads", "L1H2", "--out", out]
    done = invoke(NAME, *given, "--format", "html,svg", "--draw", "page,heads,arcs,zoo,layers")
    assert done.returncode == 0, done.stderr
    each = {f"{of}{n}" for of in ("gallery", "head_L1H2", "arcs_L1H2") for n in ("", "_2")}
    assert {path.stem for path in out.iterdir()} == {"zoo", "score_by_layer", *each}
    page = (out / "gallery.html").read_text(encoding="utf-8")
    for row in range(2):
        kept = unpacked(packed(page, f"w{row}-L1H2"))
        assert (kept - patterns[1, row, 2]).abs().max() < 0.002


def packed(page, name):
    """The weights of a head as the page has them."""
    found = re.search(rf'<script type="text/plain" id="{name}"[^>]*>([^<]*)</script>', page)
    assert found
    return found[1].strip()


def test_bidirectional_patterns_in_a_file_need_both_ways(tmp_path):
    patterns = looking_ahead()
    np.savez(tmp_path / "p.npz", patterns=patterns.numpy(), tokens=patterns.tokens.numpy())
    special = ",".join(map(str, sorted(patterns.special)))
    given = ["--patterns", tmp_path / "p.npz", "--special", special, "--out", tmp_path / "out"]
    for name in (NAME, "find_induction_heads"):
        assert refused(invoke(name, *given), "--both-ways")
        assert not (tmp_path / "out").exists()
    for name in (NAME, "find_induction_heads"):
        done = invoke(name, *given, "--both-ways", "--format", "svg")
        assert done.returncode == 0, done.stderr
    scan = interp.HeadScan.load(tmp_path / "out" / "heads.json")
    assert scan.made_by["direction"] == "both ways"
    assert [str(head) for head in scan.heads("next token")] == ["L0H0"]


def test_only_the_heads_asked_for_are_on_the_page(made, render):
    table = interp.HeadScan.load(made / "heads.json")
    label = next(iter(table.summary()))
    labelled = sorted(str(head) for head in table.heads(label))
    for options, heads in (
        (["--heads", "L0H1, 1.2"], ["L0H1", "L1H2"]),
        (["--prompt", "w5 w6", "--label", label.replace(" ", "_")], labelled),
    ):
        done, out = render(*options)
        assert [path.name for path in out.iterdir()] == ["gallery.html"]
        page = (out / "gallery.html").read_text(encoding="utf-8")
        assert sorted(re.findall(r'id="w0-(L\d+H\d+)"', page)) == heads
        assert f"{8 - len(heads)} of the scan's 8 heads" in done.stdout or len(heads) == 8


def test_the_figures_asked_for_are_drawn_and_no_others(render):
    given = ["--heads", "L0H1,L1H2", "--prompt", "w5 w6 w5 w6", "--prompt", "w7", "--query", "0"]
    _, out = render(*given, "--format", "svg", "--draw", "heads,arcs,zoo,layers")
    each = {f"{of}_{head}{n}" for of in ("head", "arcs") for head in HEADS for n in ("", "_2")}
    assert {path.stem for path in out.iterdir()} == {"zoo", "score_by_layer", *each}


ARCS = ["--draw", "arcs", "--format", "png"]
BEFORE_LOADING = {
    "unknown figure": (["--draw", "all"], "--draw"),
    "a query without arcs": (["--heads", "L0H1", "--format", "png", "--query", "0"], "--query"),
    "patterns and a prompt": (["--patterns", "no.npz", "--prompt", "w5"], "--model"),
    "tokens without patterns": (["--tokens", "ids.json"], "--tokens"),
    "no size": (["--limit", "-1"], "--limit"),
    "unknown format": (["--format", "gif"], "--format"),
    "unknown head name": (["--heads", "five"], "--heads"),
    "heads and label": (["--heads", "L0H0", "--label", "sink"], "--heads"),
    "no such table": (["--scan", "nothing.json"], "--scan"),
    "a file that is no text": (["--prompt-file", "picture.png"], "--prompt-file"),
    "a figure without its format": (["--draw", "zoo"], "--draw"),
    "unknown label": (["--label", "clever"], "--label"),
}
AFTER_LOADING = {
    "no such query": (["--heads", "L0H1", "--prompt", "w5", "--query", "9", *ARCS], "--query"),
    "empty prompt": (["--prompt", ""], "--prompt"),
    "prompt beyond the context": (["--prompt", "w5 " * 99], "--prompt"),
    "no room": (["--limit", "0.1", "--prompt", "w5"], "limit must"),
}


@pytest.mark.parametrize("mistake", [*BEFORE_LOADING, *AFTER_LOADING])
def test_a_mistake_gets_one_line_and_writes_nothing(mistake, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    arguments, option = {**BEFORE_LOADING, **AFTER_LOADING}[mistake]
    model = made / "model" if mistake in AFTER_LOADING else tmp_path / "missing"  # Never opened.
    given = ["--model", model, "--out", tmp_path / "out"]
    if "--scan" not in arguments:
        given += ["--scan", made / "heads.json"]
    done = invoke(NAME, *given, *arguments)
    assert refused(done, option)
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_every_figure_of_a_long_prompt_says_what_it_shows(made, monkeypatch):
    monkeypatch.setattr(rendering, "LONGEST", 5)
    model = interp.load_model(made / "model")
    table = interp.HeadScan.load(made / "heads.json")
    prompts = rendering.of_model(model, [[5, 6, 7] * 3])
    asked, heads = ["page", "heads", "arcs", "zoo"], [interp.Head(0, 1)]
    figures = dict(rendering.figures(prompts, table, asked, heads, [], None, lambda name: None))
    assert list(figures) == ["zoo", "gallery", "head_L0H1", "arcs_L0H1"]
    for figure in figures.values():
        assert any("the first 5 of 9 tokens" in text.get_text() for text in figure.texts)


def test_a_table_of_another_model_is_refused(made, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "other")
    options = ("--model", tmp_path / "other", "--scan", made / "heads.json", "--out", tmp_path)
    assert refused(invoke(NAME, *options), "--scan must be of the model's weights, other", "model")
