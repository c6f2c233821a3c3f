import json

from invoked import invoke, refused


def test_the_four_columns_are_printed_and_written(folder, tmp_path):
    options = ("--model", folder, "--rows", 2, "--out", tmp_path / "out", "--format", "png")
    done = invoke("compare_circuits", *options)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "comparison.json",
        "circuit_patterns.png",
    }
    content = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert list(content["circuits"]) == ["absolute", "rotary", "learned", "real"]
    assert content["circuits"]["learned"]["induction"] > 0.9
    assert content["circuits"]["learned"]["K_rank"] == 1
    assert content["circuits"]["learned"]["K_z"] > 10
    # The random model has no induction heads; the other measures are there all the same.
    assert "loss_second_copy" in content["circuits"]["real"]
    assert content["edges"] == []
    assert "no circuit_diagram" in done.stdout
    assert "left out of real" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["induction", "head", "L1H5", "L1H2", "L1H1", "-"] in lines


def test_a_mistake_gets_one_line_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    assert refused(invoke("compare_circuits", "--model", "./nowhere", "--out", out), "--model")
    assert not out.exists()
