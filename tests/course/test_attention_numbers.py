"""The numbers, and the script as a user runs it, in a process of its own."""

import json
import math
import subprocess
import sys

import pytest
import torch
from places import SCRIPTS

from interp.course.costs import cache_size, loop_products, operations, reach, score_memory
from interp.course.numbers import numbers
from interp.course.records import Record, lines

SCRIPT = SCRIPTS / "attention_numbers.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, check=False
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("numbers")
    return run("--out", out), out


@pytest.fixture(scope="module")
def records(done):
    return json.loads((done[1] / "attention_numbers.json").read_text(encoding="utf-8"))


def test_every_number_is_as_expected_and_the_records_say_so_themselves(done, records):
    assert done[0].returncode == 0, done[0].stdout + done[0].stderr
    assert f"{len(records)} of {len(records)} numbers are as expected" in done[0].stdout
    assert [path.name for path in done[1].iterdir()] == ["attention_numbers.json"]
    for record in records:
        assert {"name", "expected", "measured", "tolerance", "ok"} <= record.keys()
        assert record["ok"] is True
        expected, measured = (torch.tensor(record[n]).double() for n in ("expected", "measured"))
        assert expected.shape == measured.shape
        # torch.tensor reads numbers as float32.
        assert ((expected - measured).abs() <= record["tolerance"] + 1e-7 * expected.abs()).all()
    names = [record["name"] for record in records]
    assert len(set(names)) == len(names)


NAMED = {
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


@pytest.mark.parametrize("name", NAMED)
def test_the_numbers_of_the_explanation_are_among_them(records, name):
    record = next(record for record in records if record["name"] == name)
    assert record["expected"] == NAMED[name]


def test_every_record_is_printed(done, records):
    printed = done[0].stdout
    for record in records:
        assert record["name"] in printed
        assert record["table"] in printed
    assert "NOT OK" not in printed


@pytest.mark.parametrize("seed", range(1, 6))
def test_any_seed_will_do_and_the_random_state_is_left_alone(seed):
    before = torch.random.get_rng_state()
    assert [record.name for record in numbers(seed) if not record.ok] == []
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_counted_does_not_depend_on_the_machine():
    counted = [*operations(), *score_memory(), *cache_size(), *reach()]
    assert all(record.measured == record.expected for record in counted)
    assert {record.tolerance for record in counted} == {0.0}


def test_the_loop_multiplies():
    q, k = [[1.0, 2.0], [0.0, 1.0]], [[3.0, 4.0], [5.0, 6.0], [1.0, 0.0]]
    assert loop_products(q, k) == [[11, 17, 1], [4, 6, 0]]


def test_a_record_is_right_only_within_its_tolerance_and_in_the_same_shape():
    assert Record("t", "n", [1, 2], [1.0, 2.25], 0.25).ok
    assert not Record("t", "n", [1, 2], [1.0, 2.26], 0.25).ok
    assert not Record("t", "n", [1, 2], [1.0, 1.74], 0.25).ok
    assert not Record("t", "n", [1, 1], [1.0], 0.25).ok
    assert not Record("t", "n", 1, math.nan, 0.25).ok
    assert Record("t", "n", 1, 1, 0.0).to_json()["ok"] is True


def test_lines_stand_under_each_other_and_tell_what_is_off():
    shown = [*lines([Record("t", "나는", 1, 1.0, 0.0), Record("t", "abcdefgh", 2, 3.5, 1.0, "s")])]
    assert shown == [
        "t         expected  measured  within",
        "나는             1         1       0  ok",
        "abcdefgh         2    3.5000     1 s  NOT OK",
        "",
        "1 of 2 numbers are as expected",
    ]


def test_a_number_that_is_off_is_told_by_the_exit_code_and_saved_all_the_same(tmp_path):
    code = (
        "import runpy, sys, interp.course.numbers as numbers\n"
        "numbers.V = ((9.0, 0.0), (0.0, 10.0), (5.0, 5.0))\n"
        "script, sys.argv = sys.argv[1], sys.argv[1:]\n"
        "runpy.run_path(script, run_name='__main__')\n"
    )
    arguments = [sys.executable, "-c", code, str(SCRIPT), "--out", str(tmp_path)]
    failed = subprocess.run(arguments, capture_output=True, encoding="utf-8", check=False)
    assert failed.returncode == 1, failed.stderr
    saved = json.loads((tmp_path / "attention_numbers.json").read_text(encoding="utf-8"))
    assert {"output of 나는", "output of 간다"} & {r["name"] for r in saved if not r["ok"]}
    assert failed.stdout.count("NOT OK") == sum(not record["ok"] for record in saved) > 0


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--seed", "-1"], "--seed"), (["--out", "file/below"], "folder must")]
)
def test_a_mistake_gets_one_line_and_exit_code_2_and_writes_nothing(tmp_path, arguments, said):
    (tmp_path / "file").touch()
    given = [str(tmp_path / a) if a == "file/below" else a for a in arguments]
    failed = run("--out", tmp_path / "out", *given)
    assert failed.returncode == 2
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
