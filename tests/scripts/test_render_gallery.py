"""The gallery script as a user runs it, in a process of its own."""

import json
import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from paged import looking_ahead
from parsed import Parsed
from places import SCRIPTS
from test_two_directional import CLS, SEP, bert_tokenizer, encoder
from tiny_models import tiny, words_tokenizer

import interp
from interp.show.pages.packing import unpacked

SCRIPT = SCRIPTS / "render_gallery.py"


ASCII = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments, **settings):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "DISPLAY": "nowhere:9", **settings},
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tiny model with a tokenizer, and the table of its heads."""
    path = tmp_path_factory.mktemp("made")
    tiny("llama").save_pretrained(path / "model")
    words_tokenizer().save_pretrained(path / "model")
    scan = interp.scan_heads(interp.load_model(path / "model"), rows=2, quick=True)
    scan.save(path / "heads.json")
    return path


@pytest.mark.fault("B68", "B69")
def test_a_run_writes_the_page_and_the_pictures_and_nothing_else(made, tmp_path):
    (tmp_path / "prompt.txt").write_text("w7 w8 東 🙂 w7", encoding="utf-8")
    out = tmp_path / "out"
    given = ["--model", made / "model", "--scan", made / "heads.json", "--out", out]
    given += ["--prompt", "w5 w6 w5 w6 w5", "--prompt-file", tmp_path / "prompt.txt"]
    done = run(*given, "--format", "html,png,svg,pdf")
    assert done.returncode == 0, done.stderr
    pictures = {f"gallery{n}.{ending}" for n in ("", "_2") for ending in ("png", "svg", "pdf")}
    assert {path.name for path in out.iterdir()} == {"gallery.html", *pictures}
    page = (out / "gallery.html").read_text(encoding="utf-8")
    assert page.count('<script type="text/plain" id="w0-') == 8
    assert page.count('<script type="text/plain" id="w1-') == 8
    assert "a page of about" in done.stderr
    assert "gallery.html" in done.stdout
    again = tmp_path / "again"
    given[given.index(out)] = again
    # A console that knows ASCII alone gets the same files.
    assert run(*given, "--format", "html,png,svg,pdf", **ASCII).returncode == 0
    for path in out.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_patterns_in_a_file_are_shown_without_a_model(made, tmp_path):
    model = interp.load_model(made / "model")
    patterns = interp.attention_patterns(model, [[1, 5, 6, 5, 6], [1, 7, 8, 7, 8]])
    np.savez(tmp_path / "saved.npz", patterns=patterns.numpy(), tokens=patterns.tokens.numpy())
    out = tmp_path / "out"
    given = ["--patterns", tmp_path / "saved.npz", "--heads", "L1H2", "--out", out]
    done = run(*given, "--format", "html,svg", "--draw", "page,heads,arcs,zoo,layers")
    assert done.returncode == 0, done.stderr
    assert "loading" not in done.stderr
    each = {f"{of}{n}" for of in ("gallery", "head_L1H2", "arcs_L1H2") for n in ("", "_2")}
    assert {path.stem for path in out.iterdir()} == {"zoo", "score_by_layer", *each}
    page = Parsed((out / "gallery.html").read_text(encoding="utf-8"))
    assert [prompt["ids"] for prompt in page.data["prompts"]] == patterns.tokens.tolist()
    for row in range(2):
        kept = unpacked(page.scripts[f"w{row}-L1H2"])
        assert (kept - patterns[1, row, 2]).abs().max() < 0.002


def test_a_model_that_looks_both_ways_is_shown_and_drawn_whole(tmp_path):
    encoder().save_pretrained(tmp_path / "bert")
    bert_tokenizer().save_pretrained(tmp_path / "bert")
    given = ["--model", tmp_path / "bert", "--heads", "L1H2", "--out", tmp_path / "out"]
    done = run(*given, "--format", "html,svg")
    assert done.returncode == 0, done.stderr
    page = Parsed((tmp_path / "out" / "gallery.html").read_text(encoding="utf-8"))
    model = interp.load_model(tmp_path / "bert")
    assert len(page.data["prompts"]) == 2
    for row, prompt in enumerate(page.data["prompts"]):
        assert (prompt["ids"][0], prompt["ids"][-1], prompt["causal"]) == (CLS, SEP, False)
        kept = unpacked(page.scripts[f"w{row}-L1H2"], keys=len(prompt["ids"]))
        own = interp.attention_patterns(model, [prompt["ids"]])
        assert (kept - own[1, 0, 2]).abs().max() < 0.002
    each = {f"{of}{n}" for of in ("gallery", "head_L1H2") for n in ("", "_2")}
    assert {path.stem for path in (tmp_path / "out").iterdir()} == each


def test_only_the_heads_asked_for_are_drawn_on_prompts_of_our_own(made, tmp_path):
    given = ["--model", made / "model", "--scan", made / "heads.json", "--out", tmp_path]
    done = run(*given, "--heads", "L0H1, 1.2")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gallery.html"]
    page = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert re.findall(r'id="w0-(L\d+H\d+)"', page) == ["L0H1", "L1H2"]
    assert "6 of the scan's 8 heads are not on this page." in done.stdout


def test_the_pictures_asked_for_are_drawn_and_no_others(made, tmp_path):
    given = ["--model", made / "model", "--scan", made / "heads.json", "--out", tmp_path]
    given += ["--heads", "L0H1,L1H2", "--prompt", "w5 w6 w5 w6", "--prompt", "w7", "--query", "0"]
    done = run(*given, "--format", "svg", "--draw", "heads,arcs,zoo,layers")
    assert done.returncode == 0, done.stderr
    each = {f"{of}_{head}{n}" for of in ("head", "arcs") for head in HEADS for n in ("", "_2")}
    assert {path.stem for path in tmp_path.iterdir()} == {"zoo", "score_by_layer", *each}


def test_a_label_chooses_the_heads_that_carry_it(made, tmp_path):
    table = interp.HeadScan.load(made / "heads.json")
    word = next(iter(table.summary()))
    given = ["--model", made / "model", "--out", tmp_path, "--prompt", "w5 w6"]
    done = run(*given, "--scan", made / "heads.json", "--label", word, "--format", "html,png")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    shown = re.findall(r'id="w0-(L\d+H\d+)"', page)
    assert sorted(shown) == sorted(str(head) for head in table.heads(word))


HEADS = ("L0H1", "L1H2")
MISTAKES = {
    "unknown picture": (["--draw", "all"], "--draw must list some of page, heads, arcs, zoo"),
    "heads in full without heads": (["--draw", "arcs"], "--draw must list heads and arcs with"),
    "no such query": (
        ["--heads", "L0H1", "--draw", "arcs", "--format", "png", "--prompt", "w5", "--query", "9"],
        "--query must be from 0 to 1, got 9",
    ),
    "a query without arcs": (
        ["--heads", "L0H1", "--format", "png", "--query", "0"],
        "--query must come with --draw arcs, got page,heads",
    ),
    "a query without a picture": (["--query", "0"], "--query must come with a picture"),
    "patterns and a prompt": (
        ["--patterns", "nothing.npz", "--prompt", "w5"],
        "--model must be left out with --patterns, got both",
    ),
    "tokens without patterns": (
        ["--tokens", "ids.json"],
        "--tokens must stand with --patterns, got it alone",
    ),
    "no size": (["--limit", "-1"], "--limit must be a number above 0 (millions of bytes), got -1"),
    "unknown format": (["--format", "gif"], "--format must list some of html, png, svg, pdf"),
    "unknown head name": (["--heads", "five"], "--heads: head must be named like L5H1"),
    "heads and label": (["--heads", "L0H0", "--label", "sink"], "--heads must stand without"),
    "no such table": (["--scan", "nothing.json"], "--scan"),
    "no such prompt file": (["--prompt-file", "nothing.txt"], "--prompt-file must be a text file"),
    "absent head": (["--heads", "L9H9"], "heads must be in the scan, got L9H9"),
    "absent head in a picture": (
        ["--heads", "L0H99", "--format", "png", "--draw", "page", "--prompt", "w5"],
        "--heads must be in the scan, got L0H99",
    ),
    "a picture without its format": (["--draw", "zoo"], "--draw must come with a picture"),
    "unknown label": (
        ["--label", "clever"],
        "--label: label must be one of induction, anti-induction, duplicate token, previous token,"
        " current token, local window, sink, mixed, got 'clever'",
    ),
    "both ways without patterns": (
        ["--both-ways"],
        "--both-ways must stand with --patterns, got it alone",
    ),
    "empty prompt": (["--prompt", ""], "prompt must have at least one token"),
    "prompt beyond the context": (["--prompt", "w5 " * 99], "prompt must fit the model's context"),
    "a file beyond the context": (
        ["--prompt", "w5", "--prompt-file", "long.txt"],
        "--prompt-file long.txt: prompt must fit the model's context",
    ),
    "a file that is no text": (
        ["--prompt-file", "picture.png"],
        "--prompt-file must be a text file, got picture.png: it is not UTF-8",
    ),
    "no room": (["--limit", "0.1", "--prompt", "w5"], "limit must leave room"),
}
AFTER_LOADING = {
    "no such query",
    "empty prompt",
    "prompt beyond the context",
    "a file beyond the context",
    "no room",
}
"""What cannot be known before; a query is, before the heads are scanned."""


ONE_BY_ONE = """
import json, runpy, sys
for sys.argv in json.load(sys.stdin):
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as left:
        code = left.code
    for stream in (sys.stdout, sys.stderr):
        print(f"<<{code}>>", file=stream, flush=True)
"""


def one_by_one(calls, folder):
    """What each call printed, told and came to, all in one process: starting it takes longest."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE],
        input=json.dumps([[str(argument) for argument in call] for call in calls]),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    split = [re.split(r"<<(\d+)>>\n", stream)[:-1] for stream in (done.stdout, done.stderr)]
    return list(zip(split[0][::2], split[1][::2], split[1][1::2], strict=True))


@pytest.fixture(scope="module")
def mistaken(made, tmp_path_factory):
    """All mistakes, one after the other."""
    out = tmp_path_factory.mktemp("mistakes") / "out"
    (out.parent / "long.txt").write_text("w5 " * 99, encoding="utf-8")
    (out.parent / "picture.png").write_bytes(b"\x89PNG\r\n")
    calls = []
    for name, (arguments, _) in MISTAKES.items():
        given = ["--model", made / "model", "--out", out]
        if name != "no such query" and "--scan" not in arguments:
            given += ["--scan", made / "heads.json"]
        calls.append([SCRIPT, *given, *arguments])
    return dict(zip(MISTAKES, one_by_one(calls, out.parent), strict=True)), out


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_line_and_exit_code_2_and_writes_nothing(mistake, mistaken):
    results, out = mistaken
    printed, told, code = results[mistake]
    assert code == "2"
    assert MISTAKES[mistake][1] in told
    assert told.count("error: ") == 1
    assert "Traceback" not in told
    assert ("loading" in told) == (mistake in AFTER_LOADING)
    assert "scanning" not in told
    assert printed == ""
    assert not out.exists()


def test_patterns_that_look_ahead_are_taken_from_a_file_when_the_scripts_are_told_so(tmp_path):
    patterns = looking_ahead()
    np.savez(tmp_path / "p.npz", patterns=patterns.numpy(), tokens=patterns.tokens.numpy())
    given = [SCRIPT, "--patterns", "p.npz", "--special", f"{CLS},{SEP}", "--out"]
    table = [SCRIPT.with_name("find_induction_heads.py"), *given[1:]]
    refused, shown, found = one_by_one(
        [
            [*given, "refused"],
            [*given, "shown", "--both-ways", "--format", "html,svg"],
            [*table, "found", "--both-ways", "--format", "svg"],
        ],
        tmp_path,
    )
    assert "a model that looks both ways, give causal=False (--both-ways)" in refused[1]
    assert [result[2] for result in (refused, shown, found)] == ["2", "0", "0"]
    assert not (tmp_path / "refused").exists()
    page = Parsed((tmp_path / "shown" / "gallery.html").read_text(encoding="utf-8"))
    assert page.data["groups"][2] == "next token"
    assert (unpacked(page.scripts["w0-L0H0"], keys=28) - patterns[0, 0, 0]).abs().max() < 0.002
    scan = interp.HeadScan.load(tmp_path / "found" / "heads.json")
    assert scan.made_by["direction"] == "both ways"
    assert [str(head) for head in scan.heads("next token")] == ["L0H0"]


def test_a_prompts_file_is_taken_as_it_is_but_for_its_byte_order_mark(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes("\ufeffa\r\nb\rc\n\ufeffd".encode())
    assert runpy.run_path(str(SCRIPT))["_read"](path) == "a\r\nb\rc\n\ufeffd"


def test_every_picture_of_a_long_prompt_says_what_it_shows(made, monkeypatch):
    monkeypatch.setattr("interp.show.pages.gallery.LONGEST", 5)
    model, table = (
        interp.load_model(made / "model"),
        interp.HeadScan.load(made / "heads.json"),
    )
    script = runpy.run_path(str(SCRIPT))
    shown = script["_of_model"](model, [[5, 6, 7] * 3], None, 0)
    asked, heads = ["page", "heads", "arcs", "zoo"], [interp.Head(0, 1)]
    figures = dict(script["_figures"](asked, table, shown, heads, None, None, lambda name: None))
    assert list(figures) == ["zoo", "gallery", "head_L0H1", "arcs_L0H1"]
    for figure in figures.values():
        assert any("the first 5 of 9 tokens" in text.get_text() for text in figure.texts)


def test_a_table_of_another_model_is_refused(made, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "other")
    done = run("--model", tmp_path / "other", "--scan", made / "heads.json", "--out", tmp_path)
    assert done.returncode == 2
    assert "--scan must be of other, got one of model" in done.stderr
