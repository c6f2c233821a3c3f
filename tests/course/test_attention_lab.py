"""The page to play with attention, but for what takes a browser: its data, and the script."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
import torch
from places import SCRIPTS

import interp
from interp.attention.multihead import multi_head_attention
from interp.attention.reference import attention, causal_mask
from interp.course import costs
from interp.course import lab as page
from interp.course.designed import EXAMPLE, NAMES, designed_layer, embed
from interp.course.stepped import circuit
from interp.kinds.kind import KINDS, LABELS
from interp.kinds.looks import ideal
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE

SCRIPT = SCRIPTS / "attention_lab.py"


def data_of(document):
    """What the page's script is given."""
    return json.loads(re.search(r'id="data">(.*?)</script>', document, re.DOTALL)[1])


@pytest.fixture(scope="module")
def stepped():
    return circuit()


def test_the_first_example_is_the_worked_one():
    example = page.beginnings()["scores"]["examples"][0]
    pattern = torch.tensor(example["scores"]).softmax(-1)
    expected = [[0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035]]
    torch.testing.assert_close(pattern, torch.tensor(expected), atol=1e-4, rtol=0)
    out = pattern @ torch.tensor(example["values"])
    expected = [[6.017, 3.983], [3.983, 6.017], [5.0, 5.0]]
    torch.testing.assert_close(out, torch.tensor(expected), atol=1e-3, rtol=0)


def looking(query_angle, key_angle, gain):
    x = torch.tensor(page.beginnings()["turned"]["x"], dtype=torch.float64)
    W_Q, W_K = page.turned(query_angle, key_angle, gain)
    return attention(x @ W_Q, x @ W_K, x)


def test_w_q_turned_by_a_step_looks_one_token_back():
    step = page.beginnings()["turned"]["step"]
    assert looking(step, 0, 100).pattern.argmax(-1).tolist() == [0, *range(7)]
    assert looking(0, 0, 100).pattern.argmax(-1).tolist() == list(range(8))


def test_both_turned_alike_change_nothing_and_the_gain_is_the_score_of_a_hit():
    torch.testing.assert_close(looking(70, 70, 10).scores, looking(0, 0, 10).scores)
    torch.testing.assert_close(
        looking(70, 70, 10).scores.diagonal(), torch.full((8,), 10.0).double()
    )
    assert not looking(70, 0, 10).pattern.allclose(looking(0, 0, 10).pattern)


def test_a_negative_gain_is_refused():
    with pytest.raises(interp.InputError, match=r"gain must be at least 0, got -1"):
        page.turned(0, 0, -1)


def test_the_heads_that_are_mixed_are_the_designed_ones():
    data = page.beginnings()["mixed"]
    x = torch.tensor(data["x"], dtype=torch.float64)
    layer = designed_layer(EXAMPLE, window=page.WINDOW, gates=torch.ones(len(NAMES)))
    mask = causal_mask(len(x))
    expected = multi_head_attention(embed(EXAMPLE)[None], layer, mask=mask).pattern[0]
    for h in range(len(NAMES)):
        W_Q, W_K = (torch.tensor(data[name][h], dtype=torch.float64) for name in ("W_Q", "W_K"))
        torch.testing.assert_close(attention(x @ W_Q, x @ W_K, x, mask=mask).pattern, expected[h])


SMALL = {"n": 64, "d": 64, "heads": 4, "kv_heads": 4, "layers": 1, "window": 64, "tile": 128}


def test_costs_by_formula_are_those_that_are_counted():
    counted = {record.name: record.measured for record in costs.operations()}
    for n in (64, 128, 256):
        cost = page.cost(**{**SMALL, "n": n})
        assert cost["projections"] == counted[f"projections, 8 n d^2, n = {n}, d = 64"]
        assert cost["pairs"] == counted[f"pairs, 4 n^2 d, n = {n}, d = 64"]
    counted = {record.name: record.measured for record in costs.cache_size()}
    for name, kv_heads in (("multi-head", 32), ("grouped-query", 8), ("multi-query", 1)):
        llama = {"d": 4096, "heads": 32, "kv_heads": kv_heads, "layers": 32}
        assert (
            page.cost(**{**SMALL, **llama, "n": 1})["cache_bytes"] == counted[f"{name}, one token"]
        )
    counted = {record.name: record.measured for record in costs.score_memory()}
    one = page.cost(**{**SMALL, "n": 1024, "heads": 1, "kv_heads": 1})
    assert one["score_bytes"] == counted["all scores, 4 n^2, n = 1024"]
    assert one["tile_bytes"] == counted["tiles of 128, 4 tile^2, n = 1024"]
    for record in costs.reach():
        layers, back = map(int, re.findall(r"= (\d+)", record.name))
        reach = page.cost(**{**SMALL, "n": 128, "layers": layers, "window": back + 1})["reach"]
        assert reach == record.measured


def test_a_window_as_long_as_the_text_is_none():
    cost = page.cost(**{**SMALL, "window": 1000})
    assert cost["window_pairs"] == cost["pairs"]
    assert cost["window_cache_bytes"] == cost["cache_bytes"]
    assert page.cost(**{**SMALL, "window": 16})["window_pairs"] == cost["pairs"] / 4


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"tile": -1}, "tile must be at least 1, got -1"),
        ({"kv_heads": 3}, "heads must divide d and be a multiple of kv_heads, got 4, 64 and 3"),
        ({"heads": 5, "kv_heads": 5}, "got 5, 64 and 5"),
        ({"kv_heads": 0}, "got 4, 64 and 0"),
    ],
)
def test_what_costs_nothing_can_be_said_of_is_refused(wrong, told):
    with pytest.raises(interp.InputError, match=told):
        page.cost(**{**SMALL, **wrong})


def test_the_circuit_says_what_came_next_and_without_its_first_head_nothing(stepped):
    words, vocabulary = stepped["words"], stepped["vocabulary"]
    again = range(words.index("the", 2), len(words))
    first = again[0] - words.index("the")
    run = stepped["with_head"]
    for i in again:
        copied = words[i - first + 1]
        for name in ("said", "next"):
            row = run[name][i]
            assert vocabulary[row.index(max(row))] == copied, (name, i)
        assert run["induction"][i][i - first + 1] > 0.99
        assert run["previous"][i][i - 1] > 0.99
        before = run["before"][i]
        assert before[vocabulary.index(words[i - 1])] == max(before) > 0.99
    run = stepped["without_head"]
    for i in again:
        assert max(map(abs, run["before"][i] + run["said"][i])) < 1e-3
        assert run["induction"][i][0] > 0.99
        assert max(run["next"][i]) < 0.2


@pytest.mark.parametrize("kind", LABELS)
def test_an_ideal_head_looks_at_its_targets_alone(kind):
    ids = torch.tensor([[0, *range(1, 13), *range(1, 9)]])
    pattern, keys = ideal(kind, ids[0], asdict(Thresholds()), []), KINDS[kind](ids)[0]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(21))
    for query, row in enumerate(pattern):
        wanted = {key for key in keys[query].tolist() if key != NONE} or {0}
        assert set(row.nonzero()[:, 0].tolist()) == wanted
        assert len(set(row[list(wanted)].tolist())) == 1


class Parts(HTMLParser):
    """Tags, ids, and whatever could point outside."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.outside = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "action") and not value.startswith(("#", "data:")):
                self.outside.append(value)


def parts_of(document):
    parts = Parts()
    parts.feed(document)
    return parts


def test_the_page_points_nowhere_and_its_policy_knows_its_script_alone(stepped):
    document = page.lab({"circuit": stepped})
    parts = parts_of(document)
    assert parts.outside == []
    assert {*page.beginnings(), "circuit", "zoo"} <= set(parts.ids)
    assert re.findall(r"default-src 'none'; script-src 'sha256-[^']+'; style-src", document)
    assert data_of(document).keys() == {*page.beginnings(), "circuit"}
    assert document == page.lab({"circuit": stepped})


def test_no_text_ends_the_script_it_stands_in(stepped):
    hostile = "</script><script>window.X = 1</script>&<b>"
    plain = parts_of(page.lab({"circuit": stepped}))
    document = page.lab({"circuit": {**stepped, "words": [hostile]}}, title=hostile)
    assert parts_of(document).tags == plain.tags
    assert data_of(document)["circuit"]["words"] == [hostile]


def test_an_unknown_part_is_refused():
    with pytest.raises(interp.InputError, match="parts must be some of circuit, zoo, got gallery"):
        page.lab({"gallery": {}})


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


def test_the_script_writes_the_page_and_nothing_else(tmp_path):
    done = run("--no-zoo", "--out", tmp_path / "new" / "page.html")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
    document = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "zoo" not in data_of(document)
    assert "page.html" in done.stdout


def test_the_zoo_shows_the_heads_of_the_model_asked_for(tmp_path):
    from interp import models

    built = interp.build_circuit("absolute", 64, 65)
    models.save(built, tmp_path / "model")
    done = run("--model", tmp_path / "model", "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    zoo = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))["zoo"]
    shown = {kind["name"]: kind for kind in zoo["kinds"]}
    record = built.plain.config.hand_built
    assert shown["induction"]["head"] == record["induction_head"]
    assert shown["previous token"]["head"] == record["previous_token_head"]
    for name in ("induction", "previous token"):
        kind = shown[name]
        real, wanted = torch.tensor(kind["pattern"]), torch.tensor(kind["ideal"])
        assert (real - wanted).abs().max() < 0.01
    table = SCRIPT.parent.parent / "figures" / "heads.json"
    other = tmp_path / "other.html"
    done = run("--model", tmp_path / "model", "--scan", table, "--out", other)
    assert done.returncode == 2
    assert "--scan must be of model, got one of SmolLM2-135M-Instruct" in done.stderr
    assert not other.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "page.txt"], "--out must be a file name that ends in .html, got page.txt"),
        (["--no-zoo", "--scan", "heads.json"], "--scan must stand without --no-zoo, got both"),
        (["--scan", "nothing.json", "--out", "made/page.html"], "--scan"),
    ],
)
def test_a_mistake_gets_a_line_and_exit_code_2(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_model
def test_the_default_models_heads_look_like_their_kind(real_model, real_scan):
    from interp.course.zoo import zoo

    kinds = {kind["name"]: kind for kind in zoo(real_model, real_scan)["kinds"]}
    assert {"induction", "previous token", "sink"} <= set(kinds)
    for name in ("induction", "previous token", "sink"):
        real, wanted = (torch.tensor(kinds[name][part]) for part in ("pattern", "ideal"))
        # The row's weight on the ideal's targets, over the second half.
        assert (real * (wanted > 0)).sum(-1)[25:].mean() > 0.6, name
