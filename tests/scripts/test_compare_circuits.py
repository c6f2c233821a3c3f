import json
import subprocess
import sys

import pytest
from places import SCRIPTS

SCRIPT = SCRIPTS / "compare_circuits.py"


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_four_columns_are_printed_and_written(folder, tmp_path):
    ran = run("--model", folder, "--rows", 2, "--out", tmp_path / "out", "--format", "png")
    assert ran.returncode == 0, ran.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "comparison.json",
        "circuit_patterns.png",
    }
    content = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert list(content["circuits"]) == ["absolute", "rotary", "learned", "real"]
    assert content["circuits"]["learned"]["induction"] > 0.9
    assert content["circuits"]["learned"]["K_rank"] == 1
    assert content["circuits"]["learned"]["K_z"] > 10
    # The random model has no induction heads: what needs none is there all the same.
    assert "loss_second_copy" in content["circuits"]["real"]
    assert content["edges"] == []
    assert "no circuit_diagram: nothing to draw" in ran.stdout
    assert "left out of real: no head is labelled induction, the highest score is" in ran.stdout
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert ["induction", "head", "L1H5", "L1H2", "L1H1", "-"] in lines


MISTAKES = {
    "no such model": (["--model", "./nowhere"], "no such file or folder"),
    "no such format": (["--format", "gif"], "--format must list some of png, svg, pdf, got 'gif'"),
    "too few rows": (["--rows", "1"], "--rows"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_exit_code_2_and_writes_nothing(mistake, tmp_path):
    arguments, told = MISTAKES[mistake]
    ran = run(*arguments, "--out", tmp_path / "out")
    assert ran.returncode == 2
    errors = [line for line in ran.stderr.splitlines() if not line.startswith("loading")]
    assert len(errors) == 1
    assert told in errors[0]
    assert not (tmp_path / "out").exists()
