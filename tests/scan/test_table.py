import copy
import inspect
import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import config
from places import ROOT
from tiny_models import tiny, words_tokenizer

import interp
from interp.kinds.kind import LABELS
from interp.patterns.definitions import DEFINITIONS
from interp.scan.report import report

ENDINGS = ["csv", "parquet", "json"]

ENTRIES = re.findall(
    r"`([a-z0-9_<>]+)`",
    " ".join(re.findall(r"^- (`[^:]+):", inspect.getdoc(interp.HeadScan) or "", re.MULTILINE)),
)
STAND_FOR = {
    "<kind>": f"({'|'.join(LABELS)})",
    "<n>": r"\d+",
    "<name>": f"({'|'.join(DEFINITIONS)})",
}


def explained_by(entry: str) -> re.Pattern[str]:
    for placeholder, values in STAND_FOR.items():
        entry = entry.replace(placeholder, values)
    return re.compile(entry)


@pytest.fixture(scope="module")
def scan():
    """A scan with everything on."""
    text = " ".join(f"w{3 + i * i % 190}" for i in range(400))
    model = interp.load_model(tiny("llama", max_position_embeddings=160), words_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        return interp.scan_heads(model, rows=2, length=150, definitions=DEFINITIONS)


def test_every_column_is_explained_and_nothing_else(scan):
    patterns, columns = {entry: explained_by(entry) for entry in ENTRIES}, [*scan.frame]
    assert len(columns) > 80
    assert [c for c in columns if not any(p.fullmatch(c) for p in patterns.values())] == []
    assert [e for e, p in patterns.items() if not any(map(p.fullmatch, columns))] == []


def planted_differently():
    """Layer 0 looks at the previous token; head 1 of layer 1 at its own, head 0 at the previous."""
    previous = torch.eye(12).roll(-1, dims=1)
    previous[0], previous[:, 0] = torch.eye(12)[0], torch.tensor([1.0, 1.0] + [0.0] * 10)
    patterns = torch.stack([previous, previous, previous, torch.eye(12)]).view(2, 1, 2, 12, 12)
    return interp.HeadScan.of(interp.classify_heads(patterns, list(range(12))), made_by={})


@pytest.mark.fault("B47")
@pytest.mark.parametrize("ending", ENDINGS)
def test_layers_and_heads_count_from_0_in_every_file_and_name(tmp_path, ending):
    path = tmp_path / f"heads.{ending}"
    planted_differently().save(path)
    table = interp.HeadScan.load(path)
    assert table.heads("current token") == [(1, 1)]
    assert set(table.heads("previous token")) == {(0, 0), (0, 1), (1, 0)}
    assert list(table.frame["name"]) == ["L0H0", "L0H1", "L1H0", "L1H1"]


@pytest.mark.fault("B68")
@pytest.mark.skipif(os.name == "nt", reason="names are no bytes there")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_whose_name_is_no_utf8_takes_files_and_gives_them_back(tmp_path, ending):
    path = tmp_path / os.fsdecode(b"caf\xe9") / f"heads.{ending}"
    planted_differently().save(path)
    assert len(interp.HeadScan.load(path).frame) == 4


@pytest.fixture(scope="module")
def saved(scan, tmp_path_factory):
    """What a scan of one labelled head looks like as JSON: the others are mixed."""
    path = tmp_path_factory.mktemp("saved") / "heads.json"
    scan.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    for head in content["heads"]:
        head |= {"label": "mixed", "labels": ["mixed"], "sink_position": None}
    content["heads"][0] |= {"label": "previous token", "labels": ["previous token", "sink"]}
    return content


def refused(call, *args, **options):
    """The one line that something is refused with."""
    with pytest.raises(interp.InputError) as caught:
        call(*args, **options)
    told = str(caught.value)
    assert told.isprintable()
    assert len(told) < 700
    return told


def refused_when(saved, tmp_path, change):
    """What is said of a table that was edited."""
    content = copy.deepcopy(saved)
    change(content)
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return refused(interp.HeadScan.load, path)


def test_the_table_that_is_edited_below_is_one(saved, tmp_path):
    (tmp_path / "heads.json").write_text(json.dumps(saved), encoding="utf-8")
    assert interp.HeadScan.load(tmp_path / "heads.json").heads("sink") == [(0, 0)]


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("layer", None, "must hold a number for each head"),
        ("layer", True, "must hold whole numbers"),
        ("head", 0.5, "must hold whole numbers"),
        ("head", 10**30, "must hold whole numbers"),
        ("window", -4, "must be at least 1, got -4"),
        ("window", 0, "must be at least 1"),
        ("sink_position", -9, "must be at least 0, got -9"),
        ("sink_position", 1.5, "must hold whole numbers"),
        ("entropy", -5, "must be at least 0"),
        ("mean_distance", -1, "must be at least 0"),
        ("induction", "0.5", "must hold numbers"),
        ("induction", True, "must hold numbers"),
        ("induction", [1], "must hold numbers"),
        ("induction_spread", -0.1, "must be from 0 to 1"),
        ("induction_chance", 2, "must be from 0 to 1"),
        ("induction_null", 3, "must be from 0 to 1"),
        ("sink_null_99", -1, "must be at least 0"),
        ("text_sink", 1.5, "must be from 0 to 1"),
        ("text_sink_chance", 1.5, "must be from 0 to 1"),
        ("text_sink_value_weighted", 9, "must be from 0 to 1"),
        ("induction_at_32", -1, "must be from 0 to 1"),
        ("margin", 7, "must be at most 1, got 7"),
        ("ov_copying", -3, "must be from -1 to 1"),
        ("as_stripe", 9, "must be from 0 to 1"),
        ("name", 5, "must hold text"),
        ("not_measured", [1], "must hold text"),
        ("induction_low", 0.9, "must be at most induction_high"),
        ("induction_low", None, "must be there or missing together"),
    ],
)
def test_a_value_that_no_scan_can_have_is_refused_by_its_column(
    saved, tmp_path, column, value, rule
):
    told = refused_when(saved, tmp_path, lambda edited: edited["heads"][0].update({column: value}))
    assert re.search(rf"columns? {column} .*{rule}", told)


def test_infinity_is_no_number_of_a_scan(scan, tmp_path):
    frame = scan.to_frame()
    frame.loc[0, "induction_logit_effect"] = INFINITE
    told = refused(interp.HeadScan(frame, {}).save, tmp_path / "heads.json")
    assert told == "column induction_logit_effect must be finite, got inf"
    frame.assign(labels="mixed").to_csv(tmp_path / "heads.csv", index=False)
    assert "must be finite, got inf" in refused(interp.HeadScan.load, tmp_path / "heads.csv")


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        (["sink", "previous token"], "the most specific first"),
        (["sink", "sink"], "listed once"),
        (["mixed", "sink"], "must be among"),
        (["stripe"], "must be among"),
        (["next token"], "label must have a score in next_token"),
        (["duplicate token"], "label must have a score in duplicate_token"),
        (["anti-induction"], "label must have a score in induction"),
        (["local window (by architecture)"], "label must have a score in window"),
        (["not enough tokens"], "label must be mixed where there are scores"),
        ([], "labels must be words"),
        (None, "labels must be words"),
    ],
)
def test_labels_that_no_scan_gives_are_refused(saved, tmp_path, labels, rule):
    def change(edited):
        unknown = {"induction": None, "duplicate_token": None, "local_window": None}
        label = labels[0] if labels else "sink"
        edited["heads"][0].update({"label": label, "labels": labels, "window": None, **unknown})

    assert rule in refused_when(saved, tmp_path, change)


def test_a_label_whose_score_is_below_chance_is_refused(saved, tmp_path):
    def change(edited):
        edited["heads"][0].update(label="sink", labels=["sink"], sink=0.0, sink_chance=0.2)

    rule = "label must have a score in sink above its chance, got 'sink' for L0H0"
    assert rule in refused_when(saved, tmp_path, change)


def test_a_label_is_the_first_of_all_that_hold(saved, tmp_path):
    told = refused_when(saved, tmp_path, lambda edited: edited["heads"][0].update(label="sink"))
    assert "label must be the first of labels, got 'sink' for L0H0" in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_layers", 99),
        ("n_layers", 1),
        ("n_layers", True),
        ("n_heads", 3),
        ("n_heads", 5),
        ("attention", ["full"]),
        ("attention", ["full", "none"]),
        ("seed", "q"),
        ("seed", -1),
        ("direction", "up"),
        ("method", "magic"),
        ("bos", -1),
        ("special", [-1]),
        ("special", [1.5]),
        ("n_bos", 7),
        ("tokenizer", "no"),
        ("quick", 1),
        ("thresholds", {"induction": 9}),
        ("thresholds", {"other": 0.5}),
        ("thresholds", {"window_width": 0.5}),
        ("left_out", {"a": 5}),
        ("model", None),
        ("model", "\ud800"),
        ("mine", INFINITE),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_record_that_no_scan_makes_is_refused(saved, tmp_path, name, value):
    told = refused_when(saved, tmp_path, lambda edited: edited["made_by"].update({name: value}))
    assert re.search("made_by|must be in \\(0, 1|must be a whole number|half of one|finite", told)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 0),
        ("rows", 3),
        ("length", -1),
        ("length", 149),
        ("tokens", []),
        ("tokens", ["a b"] * 2),
        ("tokens", [5] * 2),
        ("periods", []),
        ("periods", [0] * 2),
        ("periods", [150] * 2),
        ("parts", []),
    ],
)
def test_a_probe_whose_numbers_do_not_fit_each_other_is_refused(saved, tmp_path, name, value):
    def change(edited):
        edited["made_by"]["probes"][0][name] = value

    assert "made_by must" in refused_when(saved, tmp_path, change)


def without(name):
    return lambda edited: edited.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("made_by"), "made_by must be there"),
        (without("heads"), "heads must be there"),
        (without("schema_version"), "schema_version must be 1, got None"),
        (lambda edited: edited.update(schema_version=True), "schema_version must be 1, got True"),
        (lambda edited: edited.update(schema_version=1.0), "schema_version must be 1, got 1.0"),
        (lambda edited: edited.update(heads={}), "heads must be a list of objects"),
        (lambda edited: edited.update(heads=[1]), "heads must be a list of objects"),
        (lambda edited: edited["heads"].pop(), "table must hold the 8 heads that made_by tells of"),
        (lambda edited: edited["heads"][1].pop("sink"), "got 'sink' in number 1 missing"),
        (lambda edited: edited["heads"][1].update(snik=1), "got 'snik' in number 1 alone"),
        (lambda edited: [head.pop("sink_high") for head in edited["heads"]], "sink_low and sink_"),
        (lambda edited: [head.pop("sink_chance") for head in edited["heads"]], "sink_chance"),
        (lambda edited: [head.update(induction_at_x=0) for head in edited["heads"]], "a distance"),
        (lambda edited: [head.update(note="a") for head in edited["heads"]], "must hold numbers"),
    ],
)
def test_which_part_of_a_table_is_missing_is_said_in_words(saved, tmp_path, change, message):
    assert message in refused_when(saved, tmp_path, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-1] + ', "schema_version": 1}', "a name is there twice"),
        (lambda text: text.replace('"layer": 0,', '"layer": 0, "layer": 0,', 1), "there twice"),
        (lambda text: text.replace('"layer": 0,', '"layer": NaN,', 1), "finite, got NaN"),
        (lambda text: text.replace('"layer": 0,', f'"layer": {"9" * 5000},', 1), "fewer digits"),
        (lambda text: text + "x", "something else at line 1, column"),
        (lambda text: "[" * 100_000, "nested less deeply"),
        (lambda text: "", "something else at line 1, column 1"),
    ],
)
def test_what_is_no_json_is_refused_by_its_place(saved, tmp_path, change, message):
    (tmp_path / "heads.json").write_text(change(json.dumps(saved)), encoding="utf-8")
    assert message in refused(interp.HeadScan.load, tmp_path / "heads.json")


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_a_byte_order_mark_before_a_table_is_no_part_of_it(scan, tmp_path, ending):
    path = tmp_path / f"heads.{ending}"
    scan.save(path)
    plain = interp.HeadScan.load(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert interp.HeadScan.load(path).frame.equals(plain.frame)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-3], "it may be cut"),
        (lambda text: text[:-60] + "\n", "values, got"),
        (lambda text: text.replace("sink,", "induction,", 1), "got 'induction' twice"),
        (lambda text: text.replace("\n", ",0\n").replace(",0\n", "\n", 1), "values, got"),
        (lambda text: text.replace(",mixed,", ",True,"), "label must be the first of labels"),
        (lambda text: "", "it may be cut"),
    ],
)
def test_a_line_of_a_csv_file_is_whole_or_refused(saved, tmp_path, change, message):
    (tmp_path / "heads.json").write_text(json.dumps(saved), encoding="utf-8")
    interp.HeadScan.load(tmp_path / "heads.json").save(tmp_path / "heads.csv")
    text = (tmp_path / "heads.csv").read_text(encoding="utf-8")
    (tmp_path / "heads.csv").write_text(change(text), encoding="utf-8")
    assert message in refused(interp.HeadScan.load, tmp_path / "heads.csv")


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"schema_version": 2, "made_by": {}}, "schema_version must be 1, got 2"),
        ({"schema_version": True, "made_by": {}}, "schema_version must be 1, got True"),
        ({"made_by": {}}, "schema_version must be 1, got None"),
        ({"schema_version": 1}, "made_by must be there"),
        ({"schema_version": 1, "made_by": [1]}, "made_by must be an object"),
    ],
)
def test_what_a_parquet_file_tells_is_read_as_what_json_tells(scan, tmp_path, attrs, message):
    frame = scan.to_frame()
    frame.attrs = attrs
    frame.to_parquet(tmp_path / "heads.parquet")
    assert message in refused(interp.HeadScan.load, tmp_path / "heads.parquet")


def test_a_table_that_pandas_alone_wrote_is_read_without_a_record(scan, tmp_path):
    scan.frame.to_parquet(tmp_path / "heads.parquet")
    again = interp.HeadScan.load(tmp_path / "heads.parquet")
    assert again.frame.equals(scan.frame)
    assert again.made_by == {}


def any_patterns(chance: random.Random) -> list[interp.HeadLabel]:
    """Verdicts on random attention of any shape: sharp or even, rounded, masked, both ways."""
    layers, rows, heads, length = (chance.randint(1, most) for most in (3, 3, 4, 40))
    generator = torch.Generator().manual_seed(chance.randrange(2**32))
    scores = torch.randn(layers, rows, heads, length, length, generator=generator)
    causal, learned = chance.random() < 0.7, chance.random() < 0.3
    hidden = torch.ones(length, length).triu(1).bool() & causal
    patterns = (scores * chance.choice([0, 1, 9])).masked_fill(hidden, -torch.inf).softmax(-1)
    patterns *= chance.random() if learned else chance.choice([0.992, 1, 1.008])
    tokens = torch.randint(chance.choice([2, 5, 99]), (rows, length), generator=generator)
    return interp.classify_heads(
        patterns.half() if chance.random() < 0.3 else patterns,
        tokens,
        special=chance.sample(range(5), chance.randint(0, 2)),
        causal=causal,
        learned_sinks=learned,
        windows=chance.choice([None, [length] * layers]),
    )


@pytest.mark.parametrize("seed", range(3))
def test_whatever_can_be_classified_comes_back_from_every_file(tmp_path, seed):
    chance = random.Random(seed)
    for _ in range(8):
        scan = interp.HeadScan.of(any_patterns(chance), made_by={"mine": [1, None, {"a": "\n"}]})
        for ending in ENDINGS:
            scan.save(tmp_path / f"heads.{ending}")
            again = interp.HeadScan.load(tmp_path / f"heads.{ending}")
            # The CSV keeps six decimals.
            pd.testing.assert_frame_equal(again.frame, scan.frame, check_exact=False, atol=1e-6)
            assert ending == "csv" or again.made_by == scan.made_by


@pytest.mark.parametrize("path", sorted((ROOT / "figures").rglob("heads.*")), ids=str)
def test_every_table_that_is_kept_here_is_one(path):
    assert len(interp.HeadScan.load(path).frame) == 270


def test_a_row_that_sums_to_1_within_rounding_has_scores_that_a_table_takes():
    patterns = 1.008 * torch.eye(12).expand(1, 1, 12, 12)
    frame = interp.HeadScan.of(interp.classify_heads(patterns, range(12))).frame
    assert frame["current_token"][0] == pytest.approx(1.008)


def test_no_name_from_a_file_steers_a_terminal_or_a_page(saved, tmp_path):
    content = copy.deepcopy(saved)
    hostile = "a\x1b[31m\n\u202eb"
    content["made_by"] |= {"model": hostile, "device": hostile, "bos_text": hostile}
    content["made_by"]["left_out"] = {hostile: hostile}
    (tmp_path / "heads.json").write_text(json.dumps(content), encoding="utf-8")
    scan = interp.HeadScan.load(tmp_path / "heads.json")
    lines = [part for part in report(scan, 3) if isinstance(part, str)]
    assert repr(scan).startswith("HeadScan(aU+001B[31m⏎U+202Eb: 8 heads")
    assert lines[0].startswith("aU+001B[31m⏎U+202Eb: 8 heads")
    assert all(text.isprintable() for text in (repr(scan), *lines))
    page = scan._repr_html_()
    assert "aU+001B[31m⏎U+202Eb: 8 heads" in page
    assert not set(page) & {"\x1b", "\u202e"}


@pytest.fixture
def unchecked():
    """Functions as users call them: the tests' own check of annotated types is left out."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


VERDICTS = interp.classify_heads(torch.ones(1, 1, 1), [0])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((None,), "verdicts must be one HeadLabel for each head"),
        (([1, 2],), "verdicts must be one HeadLabel for each head"),
        (([],), "verdicts must be one HeadLabel for each head"),
        (("ab",), "verdicts must be one HeadLabel for each head"),
        ((VERDICTS * 2,), "one row per head"),
        ((VERDICTS, [{}, {}]), "others must be one dict for each of 1 heads"),
        ((VERDICTS, []), "others must be one dict for each of 1 heads"),
        ((VERDICTS, 5), "others must be one dict for each of 1 heads"),
        ((VERDICTS, [5]), "others must be one dict for each of 1 heads"),
        ((VERDICTS, [{"x": "a"}]), "column x must hold numbers"),
        ((VERDICTS, [{"ov_copying": 7}]), "column ov_copying must be from -1 to 1, got 7"),
        ((VERDICTS, [{5: 7}]), "columns must have names"),
        ((VERDICTS, None, 5), "made_by must be a dict"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_are_no_verdicts_makes_no_table(args, message):
    assert message in refused(interp.HeadScan.of, *args)


@pytest.mark.parametrize(
    "path", [5, None, b"a.csv", "a\0.csv", f"{'x' * 300}.csv", "", "a.txt", ["a.csv"], "."]
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_path_of_a_file_is_refused_in_words(scan, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for call in (scan.save, interp.HeadScan.load):
        assert re.match("path must|name must", refused(call, path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_a_pipe_or_a_circle_of_links_is_no_table(scan, tmp_path, ending):
    folder, pipe, circle = (tmp_path / f"{name}.{ending}" for name in ("folder", "pipe", "circle"))
    folder.mkdir()
    assert "must be a file, got a folder" in refused(scan.save, folder)
    assert "must be a file, got a folder" in refused(interp.HeadScan.load, folder)
    if os.name != "nt":
        os.mkfifo(pipe)
        circle.symlink_to(circle)
        assert "must be a file, got a folder or a device" in refused(interp.HeadScan.load, pipe)
        assert "must be a file that can be read" in refused(interp.HeadScan.load, circle)


CIRCLE: list = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        {1},
        torch.ones(2),
        np.float32(1),
        b"a",
        Path("a"),
        object(),
        INFINITE,
        10**5000,
        "\ud800",
        {1: 2},
        CIRCLE,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_record_that_no_file_can_hold_is_refused_before_anything_is_written(
    scan, tmp_path, value, ending
):
    path = tmp_path / "new" / f"heads.{ending}"
    assert "made_by must" in refused(interp.HeadScan(scan.frame, {"mine": value}).save, path)
    assert not path.parent.exists()


@pytest.mark.parametrize("frame", [None, pd.DataFrame(), planted_differently().frame.head(0)])
@pytest.mark.usefixtures("unchecked")
def test_a_table_without_heads_is_not_written(tmp_path, frame):
    assert re.match("frame must|table must", refused(interp.HeadScan(frame, {}).save, "a.json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": 5}, "windows must be a list of one entry a layer, got 5"),
        ({"windows": {0: 1}}, "windows must be a list of one entry a layer"),
        ({"windows": ["a"]}, "windows must be a whole number, got 'a'"),
        ({"windows": [True]}, "windows must be a whole number, got True"),
        ({"windows": [10**20]}, "windows must be from 1 to 2147483647, got 1000000"),
        ({"windows": [1, None]}, "windows must have one entry for each of 1 layers, got 2"),
        ({"thresholds": {"sink": 0.5}}, "thresholds must be interp.Thresholds(...), got dict"),
        ({"special": [1.5]}, "special must be a whole number, got 1.5"),
        ({"causal": "no"}, "causal must be True or False, got 'no'"),
        ({"learned_sinks": 1}, "learned_sinks must be True or False, got 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_argument_of_another_kind_is_refused_by_name(options, message):
    assert message in refused(interp.classify_heads, torch.ones(1, 1, 1), [0], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": [1]},
        {"quick": "no"},
        {"progress": 5},
        {"definitions": 5},
        {"definitions": [[1]]},
        {"rows": "a"},
        {"seed": 1.5},
        {"bos": "x"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_an_argument_of_a_scan_is_refused_before_a_model_is_looked_for(options):
    assert refused(interp.scan_heads, "./none", **options).startswith(f"{next(iter(options))} must")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("induction", "a"),
        ("induction", float("nan")),
        ("sink", None),
        ("sink", True),
        ("window_width", 2.5),
        ("min_queries", "8"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_threshold_is_a_number(name, value):
    assert refused(interp.Thresholds, **{name: value}).startswith(f"{name} must be")


@pytest.mark.usefixtures("unchecked")
def test_thresholds_of_numpy_are_as_good_and_can_be_kept():
    made = interp.Thresholds(sink=np.float32(0.5), window_width=np.int64(4))
    assert json.dumps(vars(made)) == json.dumps(vars(interp.Thresholds(sink=0.5, window_width=4)))
