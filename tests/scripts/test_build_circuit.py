import re
import subprocess
import sys

import pytest
from places import SCRIPTS

import interp
from interp.models import save

SCRIPT = SCRIPTS / "build_circuit.py"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("positions", "kind", "found"),
    [("absolute", "GPT2LMHeadModel", "L1H5"), ("rotary", "LlamaForCausalLM", "L1H2")],
)
def test_the_folder_is_a_model_with_the_heads_that_are_printed(positions, kind, found, tmp_path):
    out = tmp_path / "circuit"
    wanted = ("--positions", positions, "--vocab", 64, "--length", 49, "--out", out)
    out.mkdir()
    (out / "config.json").write_text("of an earlier run", encoding="utf-8")
    ran = run(*wanted)
    assert ran.returncode == 0, ran.stderr
    assert f"{found} induction; 64 ids, 49 positions" in ran.stdout
    assert "Writing" not in ran.stderr
    assert {path.name for path in out.iterdir()} == FILES
    model = interp.load_model(out)
    assert type(model.plain).__name__ == kind
    assert interp.scan_heads(model, rows=4, quick=True).heads("induction") == [
        interp.Head.parse(found)
    ]


def test_a_folder_where_a_run_was_killed_is_written_to_again(tmp_path):
    for name, file in ((".interp-partial-0", "config.json"), (".interp-ready-0", "config.json")):
        (tmp_path / name / "files").mkdir(parents=True)
        (tmp_path / name / "files" / file).write_text("of a killed run", encoding="utf-8")
    save(interp.build_circuit("rotary", vocabulary=64, length=49), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert interp.load_model(tmp_path).n_layers == 2


def test_a_folder_that_holds_something_else_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "notes.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(interp.InputError, match=r"of the model alone, got notes\.txt in it"):
        save(interp.build_circuit("rotary", vocabulary=64, length=49), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_parts_can_be_left_out_and_the_folder_says_so(tmp_path):
    out = tmp_path / "circuit"
    arguments = ("--positions", "rotary", "--no-previous", "--wrong-copy", 0.5, "--out", out)
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    model = interp.load_model(out)
    made = model.plain.config.hand_built
    assert (made["previous"], made["match"], made["wrong_copy"]) == (False, True, 0.5)
    scan = interp.scan_heads(model, rows=4, quick=True)
    assert scan.heads("induction") == scan.heads("previous token") == []


MISTAKES = {
    "too many ids": (["--vocab", 50257], "must be from 8 to 32769, got 50257"),
    "too long": (["--length", 9000], "length must be from 8 to 4096, got 9000"),
    "unknown positions": (["--positions", "round"], "one of absolute, rotary, got 'round'"),
    "a share above 1": (["--blur", 1.5], "blur must be from 0 to 1, got 1.5"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_exit_code_2_and_writes_nothing(mistake, tmp_path):
    arguments, message = MISTAKES[mistake]
    ran = run("--positions", "absolute", *arguments, "--out", tmp_path / "new" / "circuit")
    assert ran.returncode == 2
    assert message in re.sub(r"\s+", " ", ran.stderr)
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())
