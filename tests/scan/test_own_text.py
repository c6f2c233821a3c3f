"""Scans on your own text: the same numbers as from rows at once, in pieces, resumed."""

import json

import pandas as pd
import pytest
import torch
from tiny_models import tiny, words_tokenizer

import interp
from interp.scan import own_text
from interp.scan.own_text import texts_in

TEXTS = [
    *(" ".join(f"w{3 + (i * i + j) % 190}" for i in range(70)) for j in range(5)),
    *("w3 w4 w5", " ".join(f"w{3 + i % 40}" for i in range(45))),
]
DRAWN = ("_low", "_high", "_spread", "tokens_null", "tokens_null_99", "borderline", "margin")
DRAWN += ("unexplained",)  # Where several weights round to 1.
OPTIONS = {"rows": 2, "length": 33, "kinds": ["previous token", "recent tokens", "sink"]}


@pytest.fixture(scope="module")
def model():
    plain = tiny("llama", max_position_embeddings=160)
    plain.model.layers[1].self_attn.q_proj.weight.data *= 40
    return interp.load_model(plain, words_tokenizer())


@pytest.fixture(scope="module")
def whole(model):
    return interp.scan_heads(model, text=TEXTS, explained=True, **OPTIONS)


@pytest.fixture
def in_pieces(monkeypatch):
    """Two rows a piece, summed to one."""
    monkeypatch.setattr(own_text, "AT_ONCE", 33)
    monkeypatch.setattr(own_text, "BLOCKS", 6)


def test_every_text_is_read_in_rows_of_its_own(whole):
    """Five texts of two rows and a rest, one too short, and one of a row and a rest."""
    text = whole.made_by["text"]
    assert (text["rows"], text["tokens"], text["left_out"]) == (11, 11 * 32, 5 * 6 + 3 + 13)
    assert whole.frame["recent_tokens"].notna().all()
    assert whole.frame["recent_tokens_null_99"].notna().all()


def test_the_scores_are_those_of_the_same_rows_at_once(model, whole):
    """The scores on text of the same texts, a row each, with the same positions."""
    ids = [model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    rows = [[model.bos, *some[at : at + 32]] for some in ids for at in range(0, len(some), 32)]
    rows = [row for row in rows if len(row) == 33]
    scores = interp.score_prompts(model, rows, kinds=OPTIONS["kinds"]).to_frame()
    scores["total"] = scores["value"] * scores["queries"]
    sums = scores.groupby(["score", "name"])[["total", "queries"]].sum()
    means = sums["total"] / sums["queries"]
    for name in ("recent_tokens", "text_previous_token", "text_sink"):
        expected = means[name.removeprefix("text_")].loc[whole.frame["name"]].tolist()
        assert whole.frame[name].tolist() == pytest.approx(expected, abs=1e-6)


def test_pieces_and_blocks_change_no_score(model, whole, in_pieces):
    scan = interp.scan_heads(model, text=iter(TEXTS), explained=True, **OPTIONS)
    assert scan.made_by["text"]["rows_of_block"] == 2
    same = [name for name in whole.frame if not name.endswith(DRAWN)]
    pd.testing.assert_frame_equal(scan.frame[same], whole.frame[same], atol=1e-6)
    for name in ("L0H0", "L0H3"):
        for which in ("unexplained", "engagement"):
            one, other = (x.made_by["explained"][which][name] for x in (scan, whole))
            assert [x["query"] for x in one] == [x["query"] for x in other]


def test_a_stopped_scan_resumes_to_the_same_table(model, whole, in_pieces, tmp_path):
    def scanned(stop):
        def progress(done, total):
            if total == 6 and done == stop:
                raise KeyboardInterrupt

        known = {"text": TEXTS, "folder": tmp_path, "explained": True, **OPTIONS}
        return interp.scan_heads(model, progress=progress, **known)

    with pytest.raises(KeyboardInterrupt, match="2 of 6 parts of text are kept in"):
        scanned(2)
    files = [*tmp_path.glob(".parts/*/*")]
    before = {file: file.stat().st_mtime_ns for file in files}
    with pytest.raises(KeyboardInterrupt, match="4 of 6"):
        scanned(4)
    assert before == {file: file.stat().st_mtime_ns for file in files}
    frame = scanned(None).frame
    same = [name for name in whole.frame if not name.endswith(DRAWN)]
    pd.testing.assert_frame_equal(frame[same], whole.frame[same], atol=1e-6)
    assert [*tmp_path.iterdir()] == []


def test_texts_come_from_files_of_every_kind_and_folders(tmp_path):
    lines = "".join(json.dumps({"text": text, "more": 1}) + "\n" for text in ("a b", None, "c"))
    (tmp_path / "1.jsonl").write_text(lines + "\n")
    pd.DataFrame({"text": ["d", None, "e"], "more": [1, 2, 3]}).to_parquet(tmp_path / "2.parquet")
    (tmp_path / "3.txt").write_text("f\n\ng" * 20000, encoding="utf-8")
    (tmp_path / ".hidden").write_text("no")
    texts = [*texts_in(tmp_path)]
    assert texts[:4] == ["a b", "c", "d", "e"]
    assert "".join(texts[4:]) == "f\n\ng" * 20000
    assert all(text.endswith("\n") for text in texts[4:-1])
    assert len(texts) == 6


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_text('{"words": 1}\n'), "must be a file of texts"),
        (lambda path: path.write_text('{"text": "w3 w4"}\n'), "more than 16 tokens"),
        (lambda path: path.write_text('{"text": 5}\n'), "must be texts.* got 5"),
        (lambda path: None, "must be a file of texts"),
    ],
)
def test_text_that_cannot_be_run_is_refused(model, tmp_path, write, said):
    write(tmp_path / "a.jsonl")
    with pytest.raises(interp.InputError, match=said):
        interp.scan_heads(model, text=tmp_path / "a.jsonl", **OPTIONS)


def test_text_needs_a_tokenizer():
    with pytest.raises(interp.InputError, match="text must be read by a tokenizer"):
        interp.scan_heads(tiny("gpt2"), text=["a"], rows=2)


def test_the_rows_in_memory_are_those_of_examples(model, in_pieces):
    long = [" ".join(f"w{3 + (i * i + j) % 190}" for i in range(65)) for j in range(3)]
    cut = own_text.Cut.of(model, long * 60, 33, 1)
    assert (cut.rows.total(), cut.rows_of_block, cut.pieces) == (360, 60, 6)
    for probe in cut.run(model):
        assert probe.tokens.shape == (60, 33)
        assert torch.equal(probe.tokens[:, 0], torch.full((60,), model.bos))
