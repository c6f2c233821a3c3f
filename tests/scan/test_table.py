"""The table of heads: what its files keep, and that damaged files are refused."""

import json
import os
import random
from io import StringIO

import pandas as pd
import pytest
import torch
from parsed import Parsed
from places import ROOT
from rich.console import Console
from tiny_models import tiny

import interp
from interp.effects.sink_experiment import sink_experiment
from interp.effects.verify import verify
from interp.scan.report import report
from interp.scan.table import check_scan
from interp.show.pages.gallery import gallery_of_model

ENDINGS = ["csv", "parquet", "json"]


def planted() -> interp.HeadScan:
    """Heads with known answers: previous token, sink, and one that attends evenly."""
    length = 40
    previous = torch.eye(length).roll(-1, 1)
    previous[0] = torch.eye(length)[0]
    sink = torch.zeros(length, length)
    sink[:, 0] = 1
    even = torch.ones(length, length).tril()
    patterns = torch.stack([previous, sink, even / even.sum(-1, keepdim=True)])
    return interp.HeadScan.of(interp.classify_heads(patterns, torch.arange(length)))


def planted_differently() -> interp.HeadScan:
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
    assert set(table.heads("previous_token")) == {(0, 0), (0, 1), (1, 0)}
    assert list(table.frame["name"]) == ["L0H0", "L0H1", "L1H0", "L1H1"]


@pytest.mark.fault("B68")
@pytest.mark.skipif(os.name == "nt", reason="names are text there")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_whose_name_is_not_utf8_holds_tables(tmp_path, ending):
    path = tmp_path / os.fsdecode(b"caf\xe9") / f"heads.{ending}"
    planted_differently().save(path)
    assert len(interp.HeadScan.load(path).frame) == 4


def test_heads_are_listed_by_label_strongest_first():
    scan = planted()
    assert scan.heads("previous token") == [(0, 0)]
    assert scan.heads("sink") == [(0, 1)]
    assert scan.heads("induction") == []
    assert scan.summary() == {"previous token": 1, "sink": 1, "mixed": 1}
    assert repr(scan) == "HeadScan(patterns: 3 heads: 1 previous token, 1 sink, 1 mixed)"
    strongest = interp.HeadScan(scan.frame.assign(labels=[["sink"]] * 3), {})
    assert strongest.heads("sink")[0] == (0, 1)
    with pytest.raises(interp.InputError, match="label must be one of induction, "):
        scan.heads("inductoin")


def test_a_notebook_shows_the_strongest_heads_of_each_label():
    strongest = planted().strongest()
    assert strongest["label"].tolist() == ["previous token", "sink", "mixed"]
    assert strongest["score"].tolist()[:2] == pytest.approx([1, 1])
    assert strongest["score"].isna()[2]
    page = planted()._repr_html_()
    assert all(name in page for name in ("L0H0", "previous token", "<table"))


def test_the_csv_joins_labels_with_semicolons_and_json_lists_them(tmp_path):
    for ending in ("csv", "json"):
        planted().save(tmp_path / f"heads.{ending}")
    assert pd.read_csv(tmp_path / "heads.csv")["labels"][0] == "previous token;local window"
    content = json.loads((tmp_path / "heads.json").read_text(encoding="utf-8"))
    assert content["schema_version"] == 1
    assert content["heads"][0]["labels"] == ["previous token", "local window"]
    assert content["heads"][0]["induction"] is None


def edited(tmp_path, ending, change):
    """A saved table whose text is changed."""
    path = tmp_path / f"heads.{ending}"
    planted().save(path)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-3],
        lambda text: text[:-120] + "\n",
        lambda text: text.replace("sink,", "induction,", 1),
        lambda text: text.replace("\n", ",0\n").replace(",0\n", "\n", 1),
        lambda text: text.replace(",mixed,", ",True,", 1),
        lambda text: "",
        lambda text: "a,b\n1,2\n",
    ],
)
def test_a_csv_file_that_is_cut_or_edited_is_refused(tmp_path, change):
    with pytest.raises(interp.InputError, match=r"must.*heads\.csv"):
        interp.HeadScan.load(edited(tmp_path, "csv", change))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
        lambda text: text.replace('"schema_version": 1', '"schema_version": true'),
        lambda text: text.replace('"made_by"', '"made"'),
        lambda text: text.replace('"heads"', '"header"'),
        lambda text: text.replace('"layer": 0,', '"layer": 0, "layer": 0,', 1),
        lambda text: text.replace('"layer": 0,', '"layer": NaN,', 1),
        lambda text: text.replace('"layer": 0,', f'"layer": {"9" * 5000},', 1),
        lambda text: text + "x",
        lambda text: "[" * 100_000,
        lambda text: "[1]",
    ],
)
def test_a_json_file_of_another_kind_is_refused(tmp_path, change):
    with pytest.raises(interp.InputError, match=r"must.*heads\.json"):
        interp.HeadScan.load(edited(tmp_path, "json", change))


@pytest.mark.parametrize(
    "attrs",
    [{"schema_version": 2, "made_by": {}}, {"made_by": {}}, {"schema_version": 1, "made_by": [1]}],
)
def test_a_record_of_another_kind_in_a_parquet_file_is_refused(tmp_path, attrs):
    frame = planted().to_frame()
    frame.attrs = attrs
    frame.to_parquet(tmp_path / "heads.parquet")
    with pytest.raises(interp.InputError, match="must"):
        interp.HeadScan.load(tmp_path / "heads.parquet")


def test_a_table_that_pandas_wrote_loads_without_a_record(tmp_path):
    scan = planted()
    scan.frame.to_parquet(tmp_path / "heads.parquet")
    again = interp.HeadScan.load(tmp_path / "heads.parquet")
    assert again.frame.equals(scan.frame)
    assert again.made_by == {}


def any_patterns(chance: random.Random) -> list[interp.HeadLabel]:
    """Labels of random attention of any shape: sharp or even, rounded, masked, bidirectional."""
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


@pytest.mark.parametrize("seed", range(4))
def test_whatever_can_be_classified_comes_back_from_every_file(tmp_path, seed):
    chance = random.Random(seed)
    for _ in range(2):
        scan = interp.HeadScan.of(any_patterns(chance), made_by={"mine": [1, None, {"a": "\n"}]})
        for ending in ENDINGS:
            scan.save(tmp_path / f"heads.{ending}")
            again = interp.HeadScan.load(tmp_path / f"heads.{ending}")
            # The CSV keeps six decimals.
            pd.testing.assert_frame_equal(again.frame, scan.frame, check_exact=False, atol=1e-6)
            assert ending == "csv" or again.made_by == scan.made_by


@pytest.mark.fault("C40")
def test_borderline_scores_are_marked_in_report_page_and_text(tmp_path):
    tokens = torch.arange(20)
    back, even = torch.eye(20)[(tokens - 1).clamp(min=0)], torch.ones(20, 20).tril()
    even = even / even.sum(-1, keepdim=True)
    # The excess is the share that goes to the previous token, and no other kind comes near.
    heads = torch.stack([share * back + (1 - share) * even for share in (0.6, 0.4005, 0.3995)])
    scan = interp.HeadScan.of(interp.classify_heads(heads, tokens))
    assert scan.frame["label"].tolist() == ["previous token"] * 2 + ["mixed"]
    assert scan.borderline() == scan.borderline("previous_token") == [(0, 1), (0, 2)]
    assert "; 2 borderline)" in repr(scan)
    console = Console(width=120, file=StringIO())
    for part in report(scan, 3):
        console.print(part)
    printed = console.file.getvalue()
    score = f"{scan.frame['previous_token'].tolist()[1]:.2f}"
    assert f" ~{score} " in printed
    assert printed.count("~") == 2  # And what it means.
    page = Parsed(interp.gallery(scan, heads, tokens).to_html())
    near = [head["borderline"] for head in page.data["heads"]]
    assert near == [[""], ["previous_token"], ["previous_token"]]
    assert any("~ marks a borderline" in note for note in page.data["notes"])
    scan.save(tmp_path / "heads.csv")
    assert interp.HeadScan.load(tmp_path / "heads.csv").borderline() == [(0, 1), (0, 2)]
    assert "borderline" not in repr(interp.HeadScan(scan.frame.drop(columns="borderline"), {}))


@pytest.mark.parametrize("path", sorted((ROOT / "figures").rglob("heads.*")), ids=str)
def test_every_committed_table_loads(path):
    assert len(interp.HeadScan.load(path).frame) == 270


def test_names_from_a_file_never_control_a_terminal(tmp_path):
    hostile = "a\x1b[31m\n\u202eb"
    made_by = {"model": hostile, "left_out": {hostile: hostile}}
    interp.HeadScan(planted().frame, made_by).save(tmp_path / "heads.json")
    scan = interp.HeadScan.load(tmp_path / "heads.json")
    lines = [part for part in report(scan, 3) if isinstance(part, str)]
    assert repr(scan).startswith("HeadScan(aU+001B[31m⏎U+202Eb: 3 heads")
    assert lines[0].startswith("aU+001B[31m⏎U+202Eb: 3 heads")
    assert all(text.isprintable() for text in (repr(scan), *lines))


@pytest.mark.parametrize("path", ["a\0.csv", f"{'x' * 300}.csv", "", "a.txt", "."])
def test_a_path_that_cannot_be_a_table_is_refused_and_nothing_is_written(
    tmp_path, monkeypatch, path
):
    monkeypatch.chdir(tmp_path)
    scan = planted()
    for call in (scan.save, interp.HeadScan.load):
        with pytest.raises((ValueError, OSError)):
            call(path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def trained():
    """A model, the same one after a step of training, and the scan of the first."""
    one, other = tiny("gpt2"), tiny("gpt2")
    with torch.no_grad():
        other.get_parameter("transformer.h.1.attn.c_attn.weight")[0, 0] += 1e-4
    models = [interp.load_model(own) for own in (one, other)]
    return *models, interp.scan_heads(models[0], rows=2, quick=True)


@pytest.mark.fault("C07")
def test_a_table_of_other_weights_is_refused_wherever_it_meets_a_model(trained):
    one, other, scan = trained
    assert one.name == other.name
    row = [1, *range(5, 15), *range(5, 15)]
    for use in (
        lambda model: check_scan(scan, model),
        lambda model: verify(model, scan, top=1, draws=1, rows=2, length=20),
        lambda model: sink_experiment(model, scan),
        lambda model: gallery_of_model(scan, model, [row]),
    ):
        message = (
            f"{one.name} with digest {other.digest}, got one of {one.name} with digest {one.digest}"
        )
        with pytest.raises(interp.InputError, match=f"^scan must be .*{message}"):
            use(other)
    check_scan(scan, one)


@pytest.mark.fault("C07")
def test_an_older_table_is_compared_by_name(trained):
    one, other, scan = trained
    made_by = {**scan.made_by, "digest": None}
    check_scan(interp.HeadScan(scan.frame, made_by), other)
    with pytest.raises(interp.InputError, match=f"of the model, {one.name}, got one of another"):
        check_scan(interp.HeadScan(scan.frame, {**made_by, "model": "another"}), one)
    renamed = {**scan.made_by, "model": "another"}
    check_scan(interp.HeadScan(scan.frame, renamed), one)  # The weights decide.


@pytest.mark.fault("C07")
def test_a_table_in_another_number_format_or_without_a_record_gives_a_warning(trained, caplog):
    one, _, scan = trained
    half = interp.load_model(tiny("gpt2").bfloat16())
    check_scan(scan, half)
    check_scan(interp.HeadScan(scan.frame, {}), one)  # As from a CSV file.
    assert "does not record its model" in caplog.text
    assert "scan was made in float32, and the model runs in bfloat16" in caplog.text


@pytest.mark.fault("C07")
def test_prompts_of_another_checkpoint_are_not_resumed(trained, tmp_path):
    one, other, _ = trained
    with pytest.raises(KeyboardInterrupt):
        interp.score_prompts(one, [[1, 5, 6], [1, 7]], tmp_path, progress=_stop_at_second)
    done = []
    interp.score_prompts(other, [[1, 5, 6], [1, 7]], tmp_path, progress=lambda i, _: done.append(i))
    assert done == [0, 1]


def _stop_at_second(done: int, total: int) -> None:
    if done == 1:
        raise KeyboardInterrupt
