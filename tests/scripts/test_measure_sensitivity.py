import pandas as pd
from invoked import invoke, refused
from tiny_models import tiny

FEW = ("--rows", 2, "--seeds", 2, "--format", "svg")


def test_every_condition_has_a_column_and_every_labelled_head_a_line(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    options = ("--model", tmp_path / "model", "--lengths", "40,64", "--out", tmp_path / "out")
    done = invoke("measure_sensitivity", *options, *FEW)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "sensitivity.csv", keep_default_na=False)
    conditions = ["seed 0", "seed 1", "40 tokens", "no BOS", "two BOS", "bfloat16"]
    assert list(table.columns) == [
        *("name", "kind", *conditions, "lowest", "highest", "spread", "flips")
    ]
    drawn = (table["kind"] != "sink").any()
    assert (tmp_path / "out" / "sensitivity.svg").exists() == drawn
    assert ("no figure" in done.stdout) != drawn


def test_a_context_too_short_for_two_bos_leaves_that_condition_out_and_says_so(tmp_path):
    tiny("gpt2", n_positions=12).save_pretrained(tmp_path / "model")
    options = ("--model", tmp_path / "model", "--lengths", "12", "--out", tmp_path / "out")
    done = invoke("measure_sensitivity", *options, *FEW)
    assert done.returncode == 0, done.stderr
    columns = pd.read_csv(tmp_path / "out" / "sensitivity.csv").columns
    assert "no BOS" in columns
    assert "two BOS" not in columns
    assert "left out: two BOS" in done.stdout


def test_lengths_that_no_scan_can_have_are_refused_before_any_scan(folder, tmp_path):
    for lengths in ("4", "65,129"):
        options = ("--model", folder, "--lengths", lengths, "--out", tmp_path / "out")
        done = invoke("measure_sensitivity", *options)
        assert refused(done, "error: --lengths must")
        assert not (tmp_path / "out").exists()
