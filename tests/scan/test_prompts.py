"""Scores on prompts of one's own: what they are, and that a stopped run goes on."""

import itertools
import json
import logging
import os
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from forked import SCRIPTS, forked
from tiny_models import tiny, words_tokenizer

import interp
from interp import command
from interp.files import held
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
    with pytest.raises(KeyboardInterrupt, match=f"{after} of 3 prompts are kept"):
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


def test_a_kind_that_a_prompt_cannot_judge_is_absent(scores):
    kinds = scores.frame.groupby("prompt")["score"].unique().map(set)
    assert {"induction", "duplicate_token"} <= kinds[0] & kinds[2]
    assert {"sink", "previous_token"} <= kinds[1]
    assert not {"induction", "duplicate_token"} & kinds[1]


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


@pytest.mark.fault("B47")
def test_heads_are_counted_from_0_and_named_so(scores):
    assert set(scores.frame["layer"]) == {0, 1}
    assert set(scores.frame["head"]) == {0, 1, 2, 3}
    named = "L" + scores.frame["layer"].astype(str) + "H" + scores.frame["head"].astype(str)
    assert list(named) == list(scores.frame["name"])


def test_the_strongest_head_has_the_highest_mean_over_prompts(scores):
    best = scores.strongest().set_index("score").loc["induction"]
    means = scores.frame.query("score == 'induction'").groupby("name")["value"].mean()
    assert (best["name"], best["value"]) == (means.idxmax(), means.max())
    assert best["prompts"] == 2
    assert scores.strongest().set_index("score").loc["sink", "prompts"] == 3


def test_a_stopped_run_goes_on_and_the_files_are_those_of_a_whole_one(model, tmp_path):
    interp.score_prompts(model, PROMPTS, tmp_path / "whole")
    stopped(model, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {".parts"}
    seen = []
    interp.score_prompts(
        model, PROMPTS, tmp_path / "out", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 3)]
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert set(files(tmp_path / "out")) == FILES


OTHERS = {
    "thresholds": {"thresholds": interp.Thresholds(window_width=3)},
    "method": {"method": "hooks"},
    "prompts": {"bos": False},
}


@pytest.mark.parametrize("setting", OTHERS)
def test_parts_made_with_other_settings_are_never_taken(model, tmp_path, setting):
    stopped(model, tmp_path)
    for _ in range(2):
        with pytest.raises(
            interp.InputError, match=f"one that differs in {setting} was stopped: --restart"
        ):
            interp.score_prompts(model, PROMPTS, tmp_path, **OTHERS[setting])
    run = interp.score_prompts(model, PROMPTS, tmp_path, restart=True, **OTHERS[setting])
    pd.testing.assert_frame_equal(
        run.frame, interp.score_prompts(model, PROMPTS, **OTHERS[setting]).frame, check_exact=True
    )
    assert set(files(tmp_path)) == FILES


@pytest.mark.fault("B69")
def test_parts_of_other_weights_and_other_number_types_are_never_taken(model, path, tmp_path):
    stopped(model, tmp_path)
    other = tiny("llama")
    with torch.no_grad():
        next(other.parameters())[3] += 1
    other = interp.load_model(other, words_tokenizer())
    with pytest.raises(interp.InputError, match="one that differs in model, revision was stopped"):
        interp.score_prompts(other, PROMPTS, tmp_path)
    with pytest.raises(interp.InputError, match="differs in revision, dtype was stopped"):
        interp.score_prompts(interp.load_model(path, dtype="bfloat16"), PROMPTS, tmp_path)


def test_a_damaged_part_is_told_and_not_scored(model, tmp_path):
    stopped(model, tmp_path)
    (part,) = tmp_path.glob(".parts/*/000001.parquet")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(interp.InputError, match=r"whole parts, got .*000001.parquet: remove it"):
        interp.score_prompts(model, PROMPTS, tmp_path)
    part.unlink()
    interp.score_prompts(model, PROMPTS, tmp_path)
    assert set(files(tmp_path)) == FILES


def forged(part, **columns):
    pd.read_parquet(part).assign(**columns).to_parquet(part, index=False)


def flipped(part):
    content = bytearray(part.read_bytes())
    value = pd.read_parquet(part)["value"].to_numpy()[0].tobytes()
    content[content.index(value)] ^= 1
    part.write_bytes(content)


FORGED = {
    "a bit": flipped,
    "scores beyond 1": lambda part: forged(part, value=1.5),
    "scores that are no numbers": lambda part: forged(part, chance=float("nan")),
    "scores of another prompt": lambda part: forged(part, prompt=1),
    "words for numbers": lambda part: forged(part, queries="many"),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_part_that_was_changed_is_never_taken(model, tmp_path, change):
    stopped(model, tmp_path)
    (part,) = tmp_path.glob(".parts/*/000000.parquet")
    change(part)
    with pytest.raises(interp.InputError, match=r"whole parts, got .*000000.parquet"):
        interp.score_prompts(model, PROMPTS, tmp_path)


STRANGE = {
    "a link in its place": lambda parts, theirs: parts.symlink_to(theirs),
    "a link": lambda parts, theirs: (parts / ("0" * 16)).symlink_to(theirs),
    "a file": lambda parts, theirs: (parts / ("0" * 16)).write_text("kept"),
    "a folder": lambda parts, theirs: (parts / "below").mkdir(),
}


@pytest.mark.parametrize("place", STRANGE)
def test_what_others_have_among_the_parts_is_refused_and_stays(model, tmp_path, place):
    theirs, parts = tmp_path / "theirs", tmp_path / "out" / ".parts"
    (theirs / ("0" * 16)).mkdir(parents=True)
    parts.parent.mkdir()
    if place != "a link in its place":
        parts.mkdir()
    STRANGE[place](parts, theirs)
    before = sorted(tmp_path.rglob("*"))
    for restart in (False, True):
        with pytest.raises(interp.InputError, match=r"nothing but parts in its \.parts, got"):
            interp.score_prompts(model, PROMPTS, tmp_path / "out", restart=restart)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_record_of_other_settings_that_is_none_is_told_as_such(model, tmp_path):
    stopped(model, tmp_path)
    (record,) = tmp_path.glob(".parts/*/settings.json")
    for content in ("[" * 100_000, "[1]", '{"settings": 1}', '{"a": 1, "a": 2}'):
        record.write_text(content)
        with pytest.raises(interp.InputError, match="one that differs in its record was stopped"):
            interp.score_prompts(model, PROMPTS, tmp_path, bos=False)


def test_a_folder_where_a_run_is_at_work_is_refused(model, tmp_path):
    stopped(model, tmp_path)
    with held(tmp_path / ".parts"), pytest.raises(interp.InputError, match="must not be in use"):
        interp.score_prompts(model, PROMPTS, tmp_path, restart=True)
    assert len(list(tmp_path.glob(".parts/*/0*.parquet"))) == 2


def test_a_run_that_fails_before_any_prompt_is_done_leaves_nothing(model, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="nothing was written"):
        interp.score_prompts(model, PROMPTS, tmp_path / "a" / "b", progress=stop_after(0))
    assert list(tmp_path.iterdir()) == []


def interrupting(name, number):
    """A profile function that interrupts as a function of the package is entered that time."""
    calls = itertools.count(1)

    def see(frame, event, argument):
        entered = event == "call" and frame.f_code.co_name == name
        ours = entered and Path(frame.f_code.co_filename).parent == Path(interp.__file__).parent
        if ours and next(calls) == number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    return see


def told_when_interrupted(place, model, folder, **options):
    sys.setprofile(interrupting(*place))
    try:
        with pytest.raises(KeyboardInterrupt) as stop:
            interp.score_prompts(model, PROMPTS, folder, **options)
    finally:
        sys.setprofile(None)
    return str(stop.value)


ON = "prompts are kept, and the same call goes on from there"
PLACES = {
    "before a part": (("_made_by", 1), "nothing was written", 0),
    "as the first part is there": (("_settle", 4), f"1 of 3 {ON}", 1),
    "as the second part is there": (("_settle", 7), f"2 of 3 {ON}", 2),
    "before results are written": (("save", 1), f"3 of 3 {ON}", 3),
    "as results are there": (("_settle", 13), "scores.json and scores.parquet were written to", 0),
    "as parts are removed": (("parts_of", 2), "scores.json and scores.parquet were written to", 0),
}
"""Where a run is interrupted, what it tells, and how many parts are there."""


@pytest.mark.parametrize("place", PLACES)
def test_an_interruption_tells_what_is_on_disk_at_that_moment(model, tmp_path, place):
    at, expected, parts = PLACES[place]
    told = told_when_interrupted(at, model, tmp_path)
    assert told.startswith(expected)
    assert len(list(tmp_path.glob(".parts/*/0*.parquet"))) == parts
    there = {".parts"} if parts else FILES if "written to" in told else set()
    assert {file.name for file in tmp_path.iterdir()} == there


def test_a_run_that_goes_on_tells_what_was_kept_before_it_and_how_many_are_done(
    model, tmp_path, caplog
):
    stopped(model, tmp_path)
    kept = "nothing was written; prompts kept from a run before: 2"
    assert told_when_interrupted(("_made_by", 1), model, tmp_path) == kept
    assert told_when_interrupted(("parts_of", 1), model, tmp_path) == f"2 of 3 {ON}"
    with caplog.at_level(logging.INFO, "interp"):
        interp.score_prompts(model, PROMPTS, tmp_path)
    assert [record.getMessage() for record in caplog.records] == ["2 of 3 prompts are done already"]


def test_a_call_that_throws_parts_away_does_not_promise_to_go_on_from_them(model, tmp_path):
    told = told_when_interrupted(("_settle", 4), model, tmp_path, restart=True)
    assert told == (
        "1 of 3 prompts are kept, and the same call without --restart (restart=True) goes on"
        " from there"
    )


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_the_script_tells_what_there_is_while_it_loads_and_once_all_is_written(
    model, tmp_path, monkeypatch
):
    script = runpy.run_path(str(SCRIPTS / "score_prompts.py"))["main"]
    (tmp_path / "p.txt").write_text(f"{REPEATED}\n{NOVEL}\n", encoding="utf-8")
    out = tmp_path / "out"
    stopped(model, out)
    monkeypatch.setattr(interp, "load_model", interrupt)
    with pytest.raises(KeyboardInterrupt, match="prompts kept from a run before: 2"):
        script(tmp_path / "p.txt", out=out)
    monkeypatch.setattr(interp, "load_model", lambda *_, **__: model)
    monkeypatch.setattr(command, "show", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"were written to .*out, whole"):
        script(tmp_path / "p.txt", out=out, restart=True)
    assert {file.name for file in out.iterdir()} == FILES


def read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    return prompts_in(tmp_path / name)


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    found, source = read(tmp_path, "a.txt", "\ufeffone\u2028still\r\n\n two \nthree".encode())
    assert found == ["one\u2028still", " two ", "three"]
    assert source is not None
    assert source["name"] == "a.txt"
    assert len(source["sha256"]) == 64


def test_a_json_file_has_texts_or_ids(tmp_path):
    lines = b'{"text": "one\\ntwo", "n": 1}\n{"tokens": [1, 2]}\n'
    assert read(tmp_path, "a.jsonl", lines)[0] == ["one\ntwo", [1, 2]]


NO_PROMPTS = {
    "no object": (b'{"text": "a"}\n["b"]', 'prompts must have "text" or "tokens" .* in line 2'),
    "a word": (b'"text"', "in line 1"),
    "both": (b'{"text": "a", "tokens": [1]}', "in line 1"),
    "neither": (b"{}", "in line 1"),
    "numbers that are no ids": (b'{"tokens": [1.5, true]}', "in line 1"),
    "a text that is none": (b'{"text": 3}', "in line 1"),
    "no JSON": (b"{", "in line 1"),
    "a name twice": (b'{"text": "a", "text": "b"}', "in line 1"),
    "deep": (b"[" * 100_000, "in line 1"),
    "no UTF-8": (b"\xff\xfe\x00", "prompts: text must be UTF-8, got something else at byte 0"),
    "nothing": (b"\n \n", "prompts must be at least one, got none in"),
}


@pytest.mark.parametrize("fault", NO_PROMPTS)
def test_a_file_without_prompts_is_told_with_its_line(tmp_path, fault):
    content, message = NO_PROMPTS[fault]
    with pytest.raises(interp.InputError, match=message):
        read(tmp_path, "a.jsonl", content)


def test_a_pipe_or_a_device_is_never_read_for_prompts(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.txt", "endless.jsonl"):
        with pytest.raises(interp.InputError, match="got a folder or a device"):
            prompts_in(tmp_path / name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a.csv", r"must be a .txt or .jsonl file, got 'a.csv'"),
        ("missing.txt", "prompts: path must be a file that is there, got missing.txt"),
        ("a\0.txt", r"path must be the path of a file, got 'a\\x00.txt'"),
        (["w3 \ud800"], r"prompt 0: prompt must be text that UTF-8 can write, got '\\ud800' at"),
        ([], "must be at least one, got none"),
        (None, "must be several texts or rows of ids, got None"),
        (["w3 w4", ""], "prompt 1: prompt must have at least one token"),
        ([[]], "prompt 0 must have at least one token"),
        ([[1, 200]], "prompt 0: token ids must be from 0 to 199"),
        ([[3] * 65], "prompt 0: prompt must fit the model's context of 64"),
        ([[[3, 4], [5, 6]]], "prompt 0 must be one row, got 2"),
        ([3, 4], "prompt 0: "),
        ([None], "prompt 0: "),
    ],
)
def test_what_are_no_prompts_is_told_in_one_line(model, given, message, tmp_path):
    with pytest.raises(interp.InputError, match=message) as error:
        interp.score_prompts(model, given, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("B68")
def test_a_killed_process_is_gone_on_from_under_an_ascii_console(path, model, tmp_path):
    lines = [f"w{3 + i % 90} é → w5 w6 w7 w{3 + i % 90} é w6" for i in range(8)]
    (tmp_path / "p.txt").write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "out→"
    arguments = ("--model", path, "--prompts", tmp_path / "p.txt", "--out", out)
    ascii_only = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    with forked(tmp_path, **ascii_only) as scripts:
        killed = scripts.run("score_prompts", *arguments, stop=("os.rename", "/000002.parquet"))
        assert killed.returncode == -9
        assert {file.name for file in out.iterdir()} == {".parts"}
        kept = sorted(out.glob(".parts/*/0*.parquet"))
        assert [part.name for part in kept] == ["000000.parquet", "000001.parquet"]
        for part in kept:
            pd.read_parquet(part)  # Each is whole.
        done = scripts.run("score_prompts", *arguments)
    assert done.returncode == 0, done.stderr
    assert "wrote scores.json, scores.parquet" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    interp.score_prompts(model, tmp_path / "p.txt", tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")
    made_by = json.loads((out / "scores.json").read_text(encoding="utf-8"))["made_by"]
    assert made_by["file"]["name"] == "p.txt"
