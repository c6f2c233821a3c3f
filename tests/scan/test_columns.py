"""The columns of a table: all explained, and every wrong value refused."""

import copy
import json
import re

import pytest
import torch
from places import ROOT
from tiny_models import tiny, words_tokenizer

import interp
from interp.kinds.builtin import KINDS
from interp.patterns.definitions import DEFINITIONS
from interp.scan.columns import COLUMNS, column
from interp.scan.record import ExampleRecord, PlaceRecord


@pytest.fixture(scope="module")
def scan():
    """A scan with everything on."""
    text = " ".join(f"w{3 + i * i % 190}" for i in range(400))
    model = interp.load_model(tiny("llama", max_position_embeddings=160), words_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        return interp.scan_heads(model, rows=2, length=150, definitions=DEFINITIONS)


@pytest.fixture(scope="module")
def saved(scan, tmp_path_factory):
    """The scan as JSON, its labels replaced: only the first head has any."""
    path = tmp_path_factory.mktemp("saved") / "heads.json"
    scan.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    for head in content["heads"]:
        head |= {"label": "mixed", "labels": ["mixed"], "sink_position": None}
    content["heads"][0] |= {"label": "previous token", "labels": ["previous token", "sink"]}
    return content


def refused_when(saved, tmp_path, change):
    """The message with which an edited table is refused."""
    content = copy.deepcopy(saved)
    change(content)
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(interp.InputError) as caught:
        interp.HeadScan.load(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_the_table_that_is_edited_below_loads(saved, tmp_path):
    (tmp_path / "heads.json").write_text(json.dumps(saved), encoding="utf-8")
    assert interp.HeadScan.load(tmp_path / "heads.json").heads("sink") == [(0, 0)]


def columns_page() -> str:
    """The columns as a Markdown page, `docs/columns.md`."""
    kinds = ", ".join(f"`{kind}`" for kind in KINDS)
    lines = [
        "# Columns of a scan\n",
        "One row per head. `<kind>` is each of",
        kinds,
        "(`next_token` in bidirectional models only), `<drawn>` each that goes by position.",
        "A value that was not measured is missing.\n",
        "| column | type | range | meaning |\n|---|---|---|---|",
    ]
    for name, kind, (low, high), meaning in COLUMNS:
        limits = f"{low:g} to {high:g}".replace("-inf to inf", "").replace("to inf", "and more")
        lines.append(f"| `{name}` | {kind} | {limits.replace('-inf', 'up')} | {meaning} |")
    lines += [
        "\n## Examples\n",
        "With `explained=True`, `made_by.explained` of the JSON and Parquet files has examples",
        "from the text, by head: in `unexplained` the pairs of a query and a key with the most",
        "attention that no kind explains, the largest first; in `engagement` one for each tenth of",
        "the queries by the share of their attention that is not on sinks, the least engaged",
        "first, with the key outside sinks that gets most.\n",
        "| entry | meaning |\n|---|---|",
    ]
    for name, field in ExampleRecord.model_fields.items():
        lines.append(f"| `{name}` | {field.description} |")
    for name, field in PlaceRecord.model_fields.items():
        lines.append(f"| `query.{name}`, `key.{name}` | {field.description} |")
    return "\n".join(lines) + "\n"


def test_the_page_explains_every_column_of_a_scan(scan):
    unknown = [name for name in scan.frame if not column(name).meaning]
    assert unknown == []
    assert len({known.name for known in COLUMNS}) == len(COLUMNS)
    page = ROOT / "docs" / "columns.md"
    if not page.exists() or page.read_text(encoding="utf-8") != columns_page():
        page.write_text(columns_page(), encoding="utf-8")
        pytest.fail("docs/columns.md was out of date and has been written anew")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head", 0.5),
        ("window", 0),
        ("entropy", -5),
        ("induction", 1.5),
        ("induction", [1]),
        ("induction_null", 3),
        ("induction_at_32", -1),
        ("margin", 7),
        ("as_stripe", 9),
        ("induction_low", 0.9),
        ("induction_low", None),
    ],
)
def test_a_value_that_no_scan_can_have_is_refused_by_its_column(saved, tmp_path, name, value):
    message = refused_when(saved, tmp_path, lambda edited: edited["heads"][0].update({name: value}))
    assert re.search(rf"columns? {name} .*must", message)


@pytest.mark.parametrize(
    "labels",
    [["mixed", "sink"], ["stripe"], ["next token"], ["duplicate token"], ["anti-induction"], []],
)
def test_labels_that_are_unknown_or_have_no_score_are_refused(saved, tmp_path, labels):
    def change(edited):
        missing = {"induction": None, "duplicate_token": None}
        edited["heads"][0].update({"label": (labels or ["sink"])[0], "labels": labels, **missing})

    assert "must" in refused_when(saved, tmp_path, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda heads: [head.pop("sink_high") for head in heads],
        lambda heads: [head.pop("sink_chance") for head in heads],
        lambda heads: [head.update(note="a") for head in heads],
        lambda heads: heads[1].pop("sink"),
        lambda heads: heads[1].update(snik=1),
        lambda heads: heads[1].update(name="L0H0", head=0),
        lambda heads: heads[0].update(layer=1),
        lambda heads: heads.clear(),
    ],
)
def test_a_table_with_missing_or_odd_columns_is_refused(saved, tmp_path, change):
    assert "must" in refused_when(saved, tmp_path, lambda edited: change(edited["heads"]))


def test_a_row_that_sums_to_1_within_rounding_has_scores_that_a_table_takes():
    patterns = 1.008 * torch.eye(12).expand(1, 1, 12, 12)
    frame = interp.HeadScan.of(interp.classify_heads(patterns, range(12))).frame
    assert frame["current_token"][0] == pytest.approx(1.008)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_heads", 5),
        ("attention", ["full", "none"]),
        ("seed", -1),
        ("bos", -1),
        ("special", [1.5]),
        ("tokenizer", "no"),
        ("thresholds", {"induction": 9.0}),
        ("left_out", {"a": 5}),
        ("model", None),
        ("probes", [{"rows": 1}]),
        ("probes", [{"parts": [], "rows": 2, "length": 9, "periods": []}]),
        ("probes", [{"parts": ["text"], "rows": 2, "length": 9, "periods": [], "tokens": ["a"]}]),
    ],
)
def test_a_record_that_no_scan_makes_is_refused(saved, tmp_path, name, value):
    message = refused_when(saved, tmp_path, lambda edited: edited["made_by"].update({name: value}))
    assert re.search("(made_by|table|thresholds|induction).* must", message)


@pytest.mark.parametrize("value", [{1}, float("inf"), "\ud800"], ids=["set", "infinity", "half"])
def test_a_record_that_no_file_can_hold_is_refused_before_anything_is_written(
    scan, tmp_path, value
):
    path = tmp_path / "new" / "heads.parquet"
    with pytest.raises(interp.InputError, match="made_by must hold"):
        interp.HeadScan(scan.frame, {"mine": value}).save(path)
    assert not path.parent.exists()
