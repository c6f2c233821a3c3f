import json

import pytest
from invoked import invoke, refused
from labelled import common_words
from tiny_models import tiny, words_tokenizer

import interp

QUICK = ("--rows", 2, "--length", 20, "--draws", 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a tiny model, and a table that calls one of its heads an induction head."""
    path = tmp_path_factory.mktemp("verify")
    tiny("llama").save_pretrained(path / "model")
    common_words().save_pretrained(path / "model")
    scan = interp.scan_heads(path / "model", rows=2)
    frame = scan.to_frame()
    chosen = frame["name"] == "L1H2"
    frame["label"] = frame["label"].where(~chosen, "induction")
    frame["labels"] = [
        ["induction"] if name == "L1H2" else [x for x in labels if x != "induction"]
        for name, labels in zip(frame["name"], frame["labels"])
    ]
    frame["induction"] = frame["induction"].where(~chosen, 0.9)
    interp.HeadScan(frame, scan.made_by).save(path / "heads.json")
    return path


@pytest.fixture(scope="module")
def done(saved):
    """One run on the saved table for some labels, in a folder with the results for all."""
    (saved / "out").mkdir()
    (saved / "out" / "effects.json").write_text("of all labels")
    ran = invoke(
        "verify_heads",
        *("--model", saved / "model", "--scan", saved / "heads.json", "--seed", 3),
        *("--label", "induction, duplicate_token", "--out", saved / "out"),
        *QUICK,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.fixture(scope="module")
def content(saved, done):
    path = saved / "out" / "effects_induction_duplicate_token.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_for_some_labels_writes_a_file_of_their_names(saved, content):
    assert (saved / "out" / "effects.json").read_text() == "of all labels"
    assert len(list((saved / "out").iterdir())) == 2
    assert list(content["labels"]) == ["induction", "duplicate token"]
    found = content["labels"]["induction"]
    assert found["heads"][0] == "L1H2"
    assert found["labelled"] == 1
    assert isinstance(found["effect"], float)
    assert found["interval"][0] <= found["effect"] <= found["interval"][1]
    assert len(found["random_effects"]) == 2
    assert set(found["measures"]) == {"zero", "mean"}
    made_by = content["made_by"]
    assert (made_by["seed"], made_by["draws"], made_by["model"]) == (3, 2, "model")
    assert [probe["parts"] for probe in made_by["probes"]] == [["random", "repeated"], ["text"]]


def test_the_verdict_for_each_label_and_measure_is_printed(content, done):
    found = content["labels"]["induction"]
    assert f"induction: {found['verdict']}" in done.stdout
    for method, measures in found["measures"].items():
        for name, effect in measures.items():
            words = "in-context score" if "context" in name else name.replace("_", " ")
            assert f"{method}, {words}: {effect['verdict']}" in done.stdout
            assert "(few draws)" in effect["verdict"]
    assert "L1H2" in done.stdout
    assert "few draws: fewer than 20" in done.stdout


def test_without_a_table_the_model_is_scanned_first_and_all_labels_are_judged(saved, tmp_path):
    options = ("--model", saved / "model", "--out", tmp_path, "--method", "mean")
    ran = invoke("verify_heads", *options, *QUICK)
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["effects.json"]
    labels = json.loads((tmp_path / "effects.json").read_text(encoding="utf-8"))["labels"]
    assert {"induction", "duplicate token", "previous token", "sink"} <= set(labels)
    for found in labels.values():
        if not found["heads"]:
            assert found["verdict"].startswith("not judged")
        else:
            assert list(found["measures"]) == ["mean"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--scan", "missing.json"), ("--method", "half"), ("--draws", "0"), ("--label", "duck")],
)
def test_a_mistake_gets_one_line_and_writes_nothing(option, value, tmp_path):
    ran = invoke("verify_heads", option, value, "--out", tmp_path / "out")
    assert refused(ran, option)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("C06", "C07", "C08", "C42")
def test_another_checkpoint_of_the_same_name_gets_neither_the_table_nor_the_folder(tmp_path):
    for run, scale in (("runA", 1.0), ("runB", 1.01)):
        own = tiny("gpt2")
        own.transformer.h[0].attn.c_attn.weight.data *= scale
        own.save_pretrained(tmp_path / run / "last")
    words_tokenizer().save_pretrained(tmp_path / "words")
    options = ("--tokenizer", tmp_path / "words", "--name", "mine", "--out", tmp_path / "out")
    first = ("--model", tmp_path / "runA" / "last", *options)
    other = ("--model", tmp_path / "runB" / "last", *options)
    quick = ("--rows", 2, "--quick", "--format", "png")
    assert invoke("find_induction_heads", *first, *quick).returncode == 0
    made_by = interp.HeadScan.load(tmp_path / "out" / "heads.json").made_by
    assert (made_by["model"], made_by["tokenizer"]) == ("mine", True)
    before = (tmp_path / "out" / "heads.json").read_bytes()
    for name, more in (("find_induction_heads", quick), ("render_gallery", ())):
        assert refused(invoke(name, *other, *more), "--out must not hold", made_by["digest"])
    assert (tmp_path / "out" / "heads.json").read_bytes() == before
    table = ("--scan", tmp_path / "out" / "heads.json", "--out", tmp_path / "new")
    for name in ("verify_heads", "render_gallery"):
        ran = invoke(name, *other[:-2], *table)
        assert refused(ran, "scan must be of the model's weights, mine", made_by["digest"])
    ran = invoke("verify_heads", *first, "--revision", "main")
    assert refused(ran, "--revision must come with a hub id")
