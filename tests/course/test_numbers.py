"""The numbers, and the script that prints and saves them."""

import json
import math

import pytest
import torch
from invoked import invoke, refused

from interp.course import costs
from interp.course import numbers as course
from interp.course.numbers import Record, lines, numbers


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("numbers")
    return invoke("attention_numbers", "--out", out, "--format", "png"), out


@pytest.fixture(scope="module")
def records(done):
    return json.loads((done[1] / "attention_numbers.json").read_text(encoding="utf-8"))


def test_every_number_is_as_expected_and_the_saved_records_prove_it(done, records):
    assert done[0].returncode == 0, done[0].stdout + done[0].stderr
    assert f"{len(records)} of {len(records)} numbers are as expected" in done[0].stdout
    written = sorted(path.name for path in done[1].iterdir())
    assert written == ["attention_numbers.json", "designed_heads.png"]
    assert "NOT OK" not in done[0].stdout
    for record in records:
        assert record["name"] in done[0].stdout
        assert record["ok"] is True
        expected, measured = (torch.tensor(record[n]).double() for n in ("expected", "measured"))
        assert expected.shape == measured.shape
        # torch.tensor reads numbers as float32.
        assert ((expected - measured).abs() <= record["tolerance"] + 1e-7 * expected.abs()).all()
    names = [record["name"] for record in records]
    assert len(set(names)) == len(names)


def test_the_numbers_of_the_explanation_are_among_them(records):
    expected = {record["name"]: record["expected"] for record in records}
    assert (
        expected
        | {
            "pattern of 나는": [0.4011, 0.1978, 0.4011],
            "pattern of 학교에": [0.1978, 0.4011, 0.4011],
            "pattern of 간다": [0.2483, 0.2483, 0.5035],
            "output of 나는": [6.017, 3.983],
            "output of 학교에": [3.983, 6.017],
            "output of 간다": [5, 5],
            "softmax of [10, 2, 1]": [0.9995, 0.0003, 0.0001],
            "softmax of [10, 2, 1] / 8": [0.591, 0.217, 0.192],
            "standard deviation of q . k, d_k = 64": 8,
            "p_0 / p_1 where scores differ by 1": math.e,
            "grouped-query, 8,192 tokens": 1,
            "pairs over projections, n = 128, d = 64": 1,
        }
        == expected
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_any_seed_works_and_leaves_the_random_state_unchanged(seed):
    before = torch.random.get_rng_state()
    assert [record.name for record in numbers(seed) if not record.ok] == []
    assert torch.equal(torch.random.get_rng_state(), before)


def test_counts_equal_the_formulas_on_any_machine():
    counted = [
        record
        for part in (costs.operations, costs.score_memory, costs.cache_size, costs.reach)
        for record in part()
    ]
    assert all(record.measured == record.expected for record in counted)
    assert {record.tolerance for record in counted} == {0.0}


def test_the_loop_multiplies():
    q, k = [[1.0, 2.0], [0.0, 1.0]], [[3.0, 4.0], [5.0, 6.0], [1.0, 0.0]]
    assert costs.loop_products(q, k) == [[11, 17, 1], [4, 6, 0]]


def test_a_record_is_ok_only_within_its_tolerance_and_in_the_same_shape():
    assert Record("t", "n", [1, 2], [1.0, 2.25], 0.25).ok
    assert not Record("t", "n", [1, 2], [1.0, 2.26], 0.25).ok
    assert not Record("t", "n", [1, 2], [1.0, 1.74], 0.25).ok
    assert not Record("t", "n", [1, 1], [1.0], 0.25).ok
    assert not Record("t", "n", 1, math.nan, 0.25).ok


def test_printed_columns_are_aligned_and_mark_numbers_that_are_off():
    shown = [*lines([Record("t", "나는", 1, 1.0, 0.0), Record("t", "abcdefgh", 2, 3.5, 1.0, "s")])]
    assert shown == [
        "t         expected  measured  tolerance",
        "나는             1         1          0  ok",
        "abcdefgh         2    3.5000        1 s  NOT OK",
        "",
        "1 of 2 numbers are as expected",
    ]


def test_a_number_that_is_off_sets_the_exit_code_and_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "V", ((9.0, 0.0), (0.0, 10.0), (5.0, 5.0)))
    monkeypatch.setattr(costs, "costs", lambda seed: [])
    failed = invoke("attention_numbers", "--out", tmp_path, "--format", "png")
    assert failed.returncode == 1, failed.stderr
    saved = json.loads((tmp_path / "attention_numbers.json").read_text(encoding="utf-8"))
    assert {"output of 나는", "output of 간다"} <= {r["name"] for r in saved if not r["ok"]}
    assert failed.stdout.count("NOT OK") == sum(not record["ok"] for record in saved) > 0


def test_a_mistake_gets_one_line_and_exit_code_2_and_writes_nothing(tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "out"
    assert refused(invoke("attention_numbers", "--out", out, "--seed", "-1"), "--seed")
    assert refused(invoke("attention_numbers", "--out", tmp_path / "file" / "below"), "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
