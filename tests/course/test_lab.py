"""The attention lab without a browser: its data, its parts from models, and the script."""

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
import torch
from invoked import invoke, refused
from places import ROOT

import interp
from interp.attention.multihead import multi_head_attention
from interp.attention.reference import attention, causal_mask
from interp.course import lab as page
from interp.course.designed import EXAMPLE, NAMES, designed_layer, embed
from interp.course.stepped import circuit
from interp.course.zoo import zoo
from interp.kinds.builtin import KINDS, LABELS
from interp.kinds.looks import ideal
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE


def data_of(document):
    """The data of the page's script."""
    return json.loads(re.search(r'id="data">(.*?)</script>', document, re.DOTALL)[1])


@pytest.fixture(scope="module")
def stepped():
    return circuit()


def test_the_mixed_heads_are_the_designed_ones():
    data = page.beginnings()["mixed"]
    x = torch.tensor(data["x"], dtype=torch.float64)
    layer = designed_layer(EXAMPLE, window=page.WINDOW, gates=torch.ones(len(NAMES)))
    mask = causal_mask(len(x))
    expected = multi_head_attention(embed(EXAMPLE)[None], layer, mask=mask).pattern[0]
    for h in range(len(NAMES)):
        W_Q, W_K = (torch.tensor(data[name][h], dtype=torch.float64) for name in ("W_Q", "W_K"))
        torch.testing.assert_close(attention(x @ W_Q, x @ W_K, x, mask=mask).pattern, expected[h])


def test_the_circuit_copies_the_next_word_and_predicts_nothing_without_its_first_head(stepped):
    words, vocabulary = stepped["words"], stepped["vocabulary"]
    again = range(words.index("the", 2), len(words))
    period = again[0] - words.index("the")
    run = stepped["with_head"]
    for i in again:
        expected = words[i - period + 1]
        for name in ("copied", "next"):
            row = run[name][i]
            assert vocabulary[row.index(max(row))] == expected, (name, i)
        assert run["induction"][i][i - period + 1] > 0.99
        assert run["previous"][i][i - 1] > 0.99
        before = run["before"][i]
        assert before[vocabulary.index(words[i - 1])] == max(before) > 0.99
    run = stepped["without_head"]
    for i in again:
        assert max(map(abs, run["before"][i] + run["copied"][i])) < 1e-3
        assert run["induction"][i][0] > 0.99
        assert max(run["next"][i]) < 0.2


@pytest.mark.parametrize("kind", LABELS)
def test_an_ideal_head_attends_to_its_targets_only(kind):
    ids = torch.tensor([[0, *range(1, 13), *range(1, 9)]])
    pattern, keys = ideal(KINDS[kind], ids[0], asdict(Thresholds()), []), KINDS[kind](ids)[0]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(21))
    for query, row in enumerate(pattern):
        targets = {key for key in keys[query].tolist() if key != NONE} or {0}
        assert set(row.nonzero()[:, 0].tolist()) == targets
        assert len(set(row[list(targets)].tolist())) == 1


class Parts(HTMLParser):
    """Tags, ids, and every address outside the page."""

    def __init__(self, document):
        super().__init__()
        self.tags, self.ids, self.outside = [], [], []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "action") and not value.startswith(("#", "data:")):
                self.outside.append(value)


def test_the_page_loads_nothing_and_its_policy_allows_only_its_own_script(stepped):
    document = page.lab({"circuit": stepped})
    parts = Parts(document)
    assert parts.outside == []
    assert {*page.beginnings(), "circuit", "zoo"} <= set(parts.ids)
    assert re.findall(r"default-src 'none'; script-src 'sha256-[^']+'; style-src", document)
    assert data_of(document).keys() == {*page.beginnings(), "circuit"}
    assert document == page.lab({"circuit": stepped})


def test_no_text_ends_the_script_element(stepped):
    hostile = "</script><script>window.X = 1</script>&<b>"
    plain = Parts(page.lab({"circuit": stepped}))
    document = page.lab({"circuit": {**stepped, "words": [hostile]}}, title=hostile)
    assert Parts(document).tags == plain.tags
    assert data_of(document)["circuit"]["words"] == [hostile]


def test_an_unknown_part_is_refused():
    with pytest.raises(interp.InputError, match=r"^parts must"):
        page.lab({"gallery": {}})


def test_the_script_writes_the_page_with_the_heads_of_the_given_model(tmp_path):
    from interp import models

    built = interp.build_circuit("absolute", 64, 65)
    models.save(built, tmp_path / "model")
    out = tmp_path / "new"
    done = invoke("attention_lab", "--model", tmp_path / "model", "--out", out)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in out.iterdir()] == ["lab.html"]
    kinds = data_of((out / "lab.html").read_text(encoding="utf-8"))["zoo"]["kinds"]
    shown = {kind["name"]: kind for kind in kinds}
    record = built.plain.config.hand_built
    assert shown["induction"]["head"] == record["induction_head"]
    assert shown["previous token"]["head"] == record["previous_token_head"]
    for name in ("induction", "previous token"):
        real, expected = (torch.tensor(shown[name][part]) for part in ("pattern", "ideal"))
        assert (real - expected).abs().max() < 0.01
    scan = "--scan", ROOT / "figures" / "heads.json"
    other = tmp_path / "other"
    done = invoke("attention_lab", "--model", tmp_path / "model", *scan, "--out", other)
    assert refused(
        done, "--scan must be of the model's weights", "got one of SmolLM2-135M-Instruct"
    )
    assert not other.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-zoo", "--scan", "heads.json"], "--scan must"),
        (["--scan", "nothing.json", "--out", "made"], "--scan"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(invoke("attention_lab", *arguments), named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_model
def test_the_heads_of_the_default_model_resemble_their_kind(real_model, real_scan):
    kinds = {kind["name"]: kind for kind in zoo(real_model, real_scan)["kinds"]}
    for name in ("induction", "previous token", "sink"):
        real, expected = (torch.tensor(kinds[name][part]) for part in ("pattern", "ideal"))
        # Weight on the ideal's targets, over the second half.
        assert (real * (expected > 0)).sum(-1)[25:].mean() > 0.6, name
