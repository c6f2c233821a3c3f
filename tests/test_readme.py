"""What the README says is what the repository does."""

import json
import pydoc
import re
import subprocess
import sys

import pandas as pd
import pytest
from places import ROOT

import interp

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [c.strip() for c in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)]


def heads_line(row) -> str:
    also = ", ".join(label for label in row["labels"].split(";") if label != "induction")
    ends = f"{row['induction_low']:.2f} to {row['induction_high']:.2f}"
    null, text = (f"{row[c]:.2f}" for c in ("induction_null_99", "text_induction"))
    score, effect = f"{row['induction']:.2f}", f"{row['induction_logit_effect']:+.2f}"
    return f"| {' | '.join([row['name'], score, ends, null, text, effect, also])} |"


def test_the_induction_heads_shown_are_those_of_the_committed_table():
    table = pd.read_csv(ROOT / "figures" / "heads.csv")
    found = table[table["label"] == "induction"].sort_values("induction", ascending=False)
    block = README.split("figures/heads.csv -->")[1].split("<!-- end -->")[0]
    assert block.strip().splitlines()[2:] == [heads_line(row) for _, row in found.iterrows()]
    assert f"[{', '.join(found['name'][:3])}, ...]" in README


def cost_line(record) -> str:
    seconds = (f"{record[name]:.2f}" for name in ("forward_s", "stream_s", "ratio"))
    peers = ("transformer_lens_ratio", "transformer_lens_shared_ratio")
    ratios = (f"{record[name]:.1f}" if name in record else "-" for name in peers)
    memory = f"{record['extra_memory_mb']:.0f}"
    return f"| {record['length']:,} | {' | '.join([*seconds, memory, *ratios])} |"


def test_the_costs_shown_are_those_of_the_committed_run():
    records = json.loads((ROOT / "benchmarks" / "streaming.json").read_text(encoding="utf-8"))
    block = README.split("benchmarks/streaming.json -->")[1].split("<!-- end -->")[0]
    assert block.strip().splitlines()[2:] == [cost_line(record) for record in records]
    largest = records[[record["length"] for record in records].index(2048)]
    documented = f"{largest['transformer_lens_memory_mb'] / 1024:.0f}"
    shared = f"{largest['transformer_lens_shared_memory_mb'] / 1024:.1f}"
    takes = f"at 2,048 they take {documented} and {shared} GiB"
    assert takes in " ".join(README.split())


def test_the_accuracy_shown_is_that_of_the_committed_run():
    record = json.loads((ROOT / "figures" / "accuracy.json").read_text(encoding="utf-8"))
    words = " ".join(README.split())
    size, share = record["sizes"]["report"], 100 * record["accuracy"]
    assert f"On {size:,} planted heads and near misses" in words
    assert f"{share:.1f} % of the labels are right" in words
    assert not any(near.get("fooled") for near in record["near_misses"])


def effects_line(label, found) -> str:
    ends = " to ".join(f"{end:.2f}" for end in found["interval"])
    random = " to ".join(f"{f(found['random_effects']):.2f}" for f in (min, max))
    word = found["verdict"].partition(":")[0]
    count, effect = str(len(found["heads"])), f"{found['effect']:.2f}"
    return f"| {' | '.join([label, count, effect, ends, random, word])} |"


def test_the_effects_shown_are_those_of_the_committed_run():
    record = json.loads((ROOT / "figures" / "effects.json").read_text(encoding="utf-8"))
    block = README.split("figures/effects.json -->")[1].split("<!-- end -->")[0]
    judged = {label: found for label, found in record["labels"].items() if found["heads"]}
    lines = [effects_line(label, found) for label, found in judged.items()]
    assert block.strip().splitlines()[2:] == lines
    assert record["made_by"]["draws"] == 20


def test_the_sensitivity_told_is_that_of_the_committed_table():
    table = pd.read_csv(ROOT / "figures" / "sensitivity.csv")
    flipped = table[table["flips"].notna()]
    sinks = (flipped["kind"] == "sink").sum()
    told = f"{len(flipped)} of {len(table)} labels flip, {sinks} of them sinks"
    assert told in " ".join(README.split())


def test_the_cost_of_a_gallery_is_that_of_the_committed_run():
    records = json.loads((ROOT / "benchmarks" / "gallery.json").read_text(encoding="utf-8"))
    short, long = records
    assert (short["length"], short["heads"]) == (128, 270)
    words = " ".join(README.split())
    assert f"{short['size_mb']:.1f} MB, and are in sight {short['view_s']:.1f} s after" in words
    peer, seconds = short["circuitsvis_size_mb"], short["circuitsvis_view_s"]
    assert f"from CircuitsVis takes {peer:.0f} MB and {seconds:.0f} s" in words
    assert short["bertviz_view_s"] is None
    assert f"from BertViz {short['bertviz_size_mb']:.0f} MB" in words
    assert short["size_mb"] <= 4
    assert long["size_mb"] <= 20
    assert max(record["max_error"] for record in records) <= 0.002


def test_the_thresholds_shown_are_the_ones_in_force():
    thresholds = interp.Thresholds()
    for label, value in re.findall(r"^\| ([a-z ]+) \| .* \| (0\.\d) \|$", README, re.MULTILINE):
        assert getattr(thresholds, label.replace(" ", "_")) == float(value)
    assert f"the last {thresholds.window_width} positions" in README


def test_there_are_two_commands_of_one_line_each_with_an_environment_of_its_own():
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        assert "\n" not in command
        environment = re.match(r"python3 -m venv (\S+) && ", command)
        assert environment
        assert command.count(f"{environment[1]}/bin/python -m pip install") == 1
    assert COMMANDS[0].split()[3] != COMMANDS[1].split()[3]


def test_the_decisive_check_runs_the_readmes_test_command():
    code = r"""
test_command=$(grep -m1 -- '-m pytest' README.md)
echo "$test_command"
echo "${test_command% && *-m pytest*}"
"""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "test_command=$(grep -m1 -- '-m pytest' README.md)" in lines
    assert "setup=${test_command% && *-m pytest*}" in lines
    done = subprocess.run(
        ["bash", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    whole, setup = done.stdout.splitlines()
    assert whole == COMMANDS[1]
    assert setup == whole.rsplit(" && ", 1)[0]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_what_is_linked_is_there(name):
    assert (ROOT / name).exists()


def test_the_version_installed_is_the_one_of_the_package():
    from importlib.metadata import version

    assert version("interp") == interp.__version__


@pytest.mark.real_model
def test_the_notebook_lines_run(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code
    done = subprocess.run(
        [sys.executable, "-c", code[1]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "heads.parquet").exists()


PUBLIC = [name for name in dir(interp) if not name.startswith("_")]


def test_help_fits_on_two_screens_and_lists_every_public_name_once():
    assert len(pydoc.render_doc(interp, renderer=pydoc.plaintext).splitlines()) <= 100
    listed = re.findall(r"^    ([A-Za-z_]+)  ", interp.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == PUBLIC
