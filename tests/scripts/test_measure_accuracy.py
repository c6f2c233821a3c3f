import json
from typing import Any

import pytest
from invoked import invoke, refused

from interp.commands import accuracy as command
from interp.heads import Head
from interp.trust import accuracy, shortcut

STRENGTHS = (0.0, 0.4, 0.5, 1.0)
SHORTCUT = shortcut.Shortcut(Head(1, 3), 500, 0.9, 0.85, "mixed", ("mixed",), 0.1, 0.05)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run with few heads at few strengths, and no training: its record, and what was printed."""
    out = tmp_path_factory.mktemp("run") / "deep"
    measure: Any = accuracy.measure_accuracy

    def smaller(strengths, *, heads, seed, progress):
        assert heads == 336
        # Without the check of the number of heads.
        return measure.__wrapped__(strengths, heads=84, seed=seed, progress=progress)

    def untrained(*, seed):
        assert seed == 3
        return SHORTCUT

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accuracy, "STRENGTHS", STRENGTHS)
        patch.setattr(accuracy, "measure_accuracy", smaller)
        patch.setattr(shortcut, "positional_shortcut", untrained)
        done = invoke("measure_accuracy", "--seed=3", "--heads=336", "--format=svg", "--out", out)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"accuracy.json", "accuracy.svg"}
    return json.loads((out / "accuracy.json").read_text(encoding="utf-8")), done


def test_the_record_has_the_names_that_others_use(small_run):
    result, _ = small_run
    assert 0.95 <= result["accuracy"] <= 1
    assert sum(sum(row.values()) for row in result["confusion"].values()) == 84
    assert result["sizes"] == {"choose": 42, "report": 84, "curve": 40}
    assert [record["strength"] for record in result["by_strength"]] == list(STRENGTHS)
    assert result["made_by"]["seed"] == 3
    assert {"interp", "torch"} <= set(result["made_by"]["versions"])
    fooling = result["shortcut"]
    assert (fooling["head"], fooling["steps"], fooling["label"]) == ("L1H3", 500, "mixed")


def test_it_prints_a_short_table(small_run):
    result, done = small_run
    assert f"accuracy {result['accuracy']:.4f}" in done.stdout
    assert "position alone" in done.stdout
    assert len(done.stdout.splitlines()) < 50


@pytest.mark.parametrize(
    ("option", "value"),
    [("--table", "missing.csv"), ("--heads", "335")],
)
def test_a_mistake_gets_one_line_and_writes_nothing(option, value, tmp_path):
    assert refused(invoke("measure_accuracy", option, value, "--out", tmp_path / "out"), option)
    assert list(tmp_path.iterdir()) == []


def test_the_least_number_of_heads_is_the_modules():
    assert command.FEWEST == accuracy.FEWEST
