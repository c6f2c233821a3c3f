"""Scores on your own prompts: what they are, and that a stopped run resumes."""

import json
import logging

import pandas as pd
import pytest
import torch
from invoked import invoke, refused
from tiny_models import chat_model, tiny, words_tokenizer

import interp
from interp.kinds.builtin import LABELS
from interp.scan.prompts import prompts_in

REPEATED = "w3 w4 w5 w6 w7 w8 w9 w3 w4 w5 w6 w7 w8 w9"
NOVEL = "w10 w11 w12 w13 w14 w15 w16 w17"
PROMPTS = [REPEATED, NOVEL, [1, 20, 21, 22, 23, 24, 20, 21, 22, 23, 24]]
FILES = {"scores.parquet", "scores.json"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny("llama").save_pretrained(path)
    words_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(path):
    return interp.load_model(path)


@pytest.fixture(scope="module")
def scores(model):
    return interp.score_prompts(model, PROMPTS)


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def stop_after(number):
    def progress(done, total):
        if done == number:
            raise KeyboardInterrupt

    return progress


def stopped(model, folder, after=2, **options):
    with pytest.raises(KeyboardInterrupt, match=f"{after} of 3 prompts"):
        interp.score_prompts(model, PROMPTS, folder, progress=stop_after(after), **options)


def test_the_scores_are_those_of_the_patterns_by_the_same_kinds(model, scores):
    for number, prompt in enumerate(PROMPTS):
        patterns = interp.attention_patterns(model, prompt)
        verdicts = interp.classify_heads(patterns, special=model.special)
        frame = scores.frame[scores.frame["prompt"] == number].set_index(["name", "score"])
        expected = {
            (str(v.head), kind): (v.scores[kind], v.chance[kind])
            for v in verdicts
            for kind in v.scores
        }
        assert set(frame.index) == set(expected)
        for key, pair in expected.items():
            assert tuple(frame.loc[key, ["value", "chance"]]) == pytest.approx(pair, abs=1e-5)


def test_patterns_and_streaming_give_the_same_scores(model, scores):
    hooked = interp.score_prompts(model, PROMPTS, method="hooks")
    assert (scores.made_by["method"], hooked.made_by["method"]) == ("stream", "hooks")
    pd.testing.assert_frame_equal(hooked.frame, scores.frame, atol=1e-5)


def test_the_queries_of_induction_are_those_with_an_earlier_copy(scores):
    rows = scores.frame.query("prompt == 0 and score == 'induction'")
    assert set(rows["queries"]) == {7}  # The second copy's tokens.


def test_a_text_opens_with_bos_once_and_ids_are_run_as_they_are(model):
    run = interp.score_prompts(model, [f"<s> {NOVEL}", NOVEL, list(range(10, 18))])
    assert run.made_by["prompts"]["tokens"] == [9, 9, 8]
    assert run.made_by["prompts"]["n_bos"] == [1, 1, 0]
    assert interp.score_prompts(model, [NOVEL], bos=False).made_by["prompts"]["tokens"] == [8]


def test_a_prompt_that_judges_nothing_has_no_rows(model):
    run = interp.score_prompts(model, ["w3"])
    assert run.frame.empty
    assert list(run.frame.dtypes) == list(interp.score_prompts(model, [NOVEL]).frame.dtypes)
    assert run.strongest().empty
    assert list(run.strongest().columns) == ["score", "prompts", "name", "value", "chance"]


def test_the_strongest_head_has_the_highest_mean_over_prompts(scores):
    best = scores.strongest().set_index("score").loc["induction"]
    means = scores.frame.query("score == 'induction'").groupby("name")["value"].mean()
    assert (best["name"], best["value"]) == (means.idxmax(), means.max())
    assert best["prompts"] == 2
    assert scores.strongest().set_index("score").loc["sink", "prompts"] == 3


def test_scores_come_back_from_their_files_and_show_their_numbers(scores, tmp_path):
    scores.save(tmp_path / "new")
    again = interp.PromptScores.load(tmp_path / "new")
    pd.testing.assert_frame_equal(again.to_frame(), scores.frame, check_exact=True)
    assert again.made_by == scores.made_by
    best = scores.strongest().set_index("score").loc["induction"]
    assert f"induction {best['name']} {best['value']:.2f}" in repr(again)


def test_a_stopped_run_resumes_and_the_files_are_those_of_a_whole_one(model, tmp_path, caplog):
    interp.score_prompts(model, PROMPTS, tmp_path / "whole")
    stopped(model, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {".parts"}
    seen = []
    with caplog.at_level(logging.INFO, "interp"):
        interp.score_prompts(
            model, PROMPTS, tmp_path / "out", progress=lambda done, _: seen.append(done)
        )
    assert seen == [2]
    assert "2 of 3 prompts are done" in caplog.text
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert set(files(tmp_path / "out")) == FILES


OTHERS = {
    "thresholds": {"thresholds": interp.Thresholds(window_width=3)},
    "method": {"method": "hooks"},
    "prompts": {"bos": False},
    "restart": {"restart": True},
}


@pytest.mark.parametrize("setting", OTHERS)
def test_a_run_with_other_settings_scores_every_prompt_anew(model, tmp_path, setting):
    stopped(model, tmp_path)
    seen = []
    run = interp.score_prompts(
        model, PROMPTS, tmp_path, progress=lambda done, _: seen.append(done), **OTHERS[setting]
    )
    assert seen == [0, 1, 2]
    whole = interp.score_prompts(model, PROMPTS, **OTHERS[setting])
    pd.testing.assert_frame_equal(run.frame, whole.frame, check_exact=True)
    assert (tmp_path / ".parts").exists() == (setting != "restart")


@pytest.mark.fault("B69")
def test_parts_of_other_weights_and_other_number_types_are_never_taken(model, path, tmp_path):
    stopped(model, tmp_path)
    other = tiny("llama")
    with torch.no_grad():
        next(other.parameters())[3] += 1
    half = interp.load_model(path, dtype="bfloat16")
    seen = []
    for changed in (interp.load_model(other, words_tokenizer()), half):
        interp.score_prompts(changed, PROMPTS, tmp_path, progress=lambda n, _: seen.append(n))
    assert seen == [0, 1, 2] * 2


def flipped(content: bytes, value: bytes) -> bytes:
    at = content.index(value)
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("change", ["cut", "a bit"])
def test_a_damaged_part_is_refused(model, tmp_path, change):
    stopped(model, tmp_path)
    (part,) = tmp_path.glob(".parts/*/000001.parquet")
    content, value = part.read_bytes(), pd.read_parquet(part)["value"].to_numpy()[0].tobytes()
    part.write_bytes(content[:100] if change == "cut" else flipped(content, value))
    with pytest.raises(interp.InputError, match=r"000001.parquet"):
        interp.score_prompts(model, PROMPTS, tmp_path)
    part.unlink()
    interp.score_prompts(model, PROMPTS, tmp_path)
    assert set(files(tmp_path)) == FILES


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("interp.scan.prompts.PromptScores.save", "3 of 3"),
        ("interp.scan.parts.Parts.remove", "all"),
    ],
)
def test_an_interrupt_after_the_last_prompt_names_what_is_kept(
    model, tmp_path, monkeypatch, place, message
):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    with pytest.raises(KeyboardInterrupt, match=message):
        interp.score_prompts(model, PROMPTS, tmp_path)


def test_a_run_that_stops_before_any_prompt_is_done_leaves_nothing(model, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="0 of 3 prompts"):
        interp.score_prompts(model, PROMPTS, tmp_path / "a" / "b", progress=stop_after(0))
    assert list(tmp_path.iterdir()) == []


def read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    return prompts_in(tmp_path / name)


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    prompts, source = read(tmp_path, "a.txt", "\ufeffone\u2028still\r\n\n two \nthree".encode())
    assert prompts == ["one\u2028still", " two ", "three"]
    assert source is not None
    assert source["name"] == "a.txt"
    assert len(source["sha256"]) == 64


def test_a_json_file_has_texts_or_ids(tmp_path):
    lines = b'{"text": "one\\ntwo", "n": 1}\n{"tokens": [1, 2]}\n'
    assert read(tmp_path, "a.jsonl", lines)[0] == ["one\ntwo", [1, 2]]


@pytest.mark.fault("C27")
def test_a_chat_in_a_file_is_scored_as_its_messages_are(tmp_path):
    messages = [{"role": "user", "content": "w5 w6 w7 w8 w9 w5 w6 w7 w8 w9"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages, "id": 7}) + "\n")
    model = chat_model()
    own = interp.score_prompts(model, [messages])
    pd.testing.assert_frame_equal(
        interp.score_prompts(model, tmp_path / "a.jsonl").frame, own.frame, check_exact=True
    )
    pd.testing.assert_frame_equal(interp.score_prompts(model, messages).frame, own.frame)
    every = interp.score_prompts(model, [messages], positions="all")
    assert (own.made_by["prompts"]["counted"], every.made_by["prompts"]["counted"]) == ([10], [15])


@pytest.mark.fault("C41")
def test_kinds_without_a_score_have_a_reason(model):
    scores = interp.score_prompts(model, [NOVEL, "nothing that this tokenizer knows", "w3 w4"])
    novel, unknown, short = scores.made_by["prompts"]["not_measured"]
    assert novel["induction"] == novel["duplicate_token"] == "no token is repeated"
    assert set(unknown.values()) == {"all tokens after the first are special or unknown"}
    assert set(unknown) == {*LABELS}
    assert short["previous_token"] == "not enough tokens"
    assert "2 of 3: induction, duplicate token: no token is repeated" in repr(scores)
    assert ": 1 prompt, " in repr(interp.score_prompts(model, [NOVEL]))
    for number, missing in enumerate((novel, unknown, short)):
        assert {*scores.frame.query(f"prompt == {number}")["score"]} == {*LABELS} - {*missing}


@pytest.mark.fault("C41")
def test_the_least_number_of_positions_is_an_option(path, tmp_path):
    (tmp_path / "p.txt").write_text("w3 w4 w5 w6 w3 w4\n")
    model = interp.load_model(path)
    assert "induction" not in {*interp.score_prompts(model, tmp_path / "p.txt").frame["score"]}
    few = interp.score_prompts(model, tmp_path / "p.txt", min_queries=2)
    assert set(few.frame.query("score == 'induction'")["queries"]) == {2}
    given = ("--model", path, "--prompts", tmp_path / "p.txt", "--out", tmp_path / "out")
    done = invoke("score_prompts", *given, "--min-queries", 2, "--positions", "1:")
    assert done.returncode == 0, done.stderr
    saved = interp.PromptScores.load(tmp_path / "out")
    pd.testing.assert_frame_equal(saved.frame, few.frame, check_exact=True)
    done = invoke("score_prompts", *given, "--positions", ":4")
    assert "not measured on 1 of 1: induction, duplicate token: no token is rep" in done.stdout
    assert refused(invoke("score_prompts", *given, "--positions", "4"), "START:END or all")


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "a"}\n["b"]',
        b'{"text": "a", "tokens": [1]}',
        b'{"tokens": [1.5, true]}',
        b'{"tokens": [1], "messages": []}',
        b"{",
        b"\xff\xfe\x00",
        b"\n \n",
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path, content):
    with pytest.raises(interp.InputError, match=r"(?s)must.*a\.jsonl"):
        read(tmp_path, "a.jsonl", content)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a.csv", r"must be a .txt or .jsonl file, got 'a.csv'"),
        ("missing.txt", "missing.txt"),
        ([], "must be at least one, got none"),
        (["w3 w4", ""], "prompt 1: prompt must have at least one token"),
        ([[1, 200]], "prompt 0: token ids must be from 0 to 199"),
        ([[3] * 65], "prompt 0: prompt must fit the model's context of 64"),
        ([[[3, 4], [5, 6]]], "prompt 0 must be one row, got 2"),
    ],
)
def test_wrong_prompts_are_refused_and_nothing_is_written(model, given, message, tmp_path):
    with pytest.raises(interp.InputError, match=message):
        interp.score_prompts(model, given, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
