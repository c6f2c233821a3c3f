import pytest
from invoked import invoke, refused

import interp
from interp.models import save

FILES = {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json"),
}


@pytest.mark.parametrize(
    ("positions", "kind", "found"),
    [("absolute", "GPT2LMHeadModel", "L1H5"), ("rotary", "LlamaForCausalLM", "L1H2")],
)
def test_the_folder_is_a_model_with_the_heads_that_are_printed(positions, kind, found, tmp_path):
    out = tmp_path / "circuit"
    out.mkdir()
    (out / "config.json").write_text("of an earlier run", encoding="utf-8")
    options = ("--positions", positions, "--vocab", 64, "--length", 49, "--out", out)
    done = invoke("build_circuit", *options)
    assert done.returncode == 0, done.stderr
    assert f"{found} induction; 64 ids, 49 positions" in done.stdout
    assert {path.name for path in out.iterdir()} == FILES
    model = interp.load_model(out)
    assert type(model.plain).__name__ == kind
    assert interp.scan_heads(model, rows=4, quick=True).heads("induction") == [
        interp.Head.parse(found)
    ]


def test_a_folder_that_holds_something_else_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "notes.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(interp.InputError, match=r"notes\.txt"):
        save(interp.build_circuit("rotary", vocabulary=64, length=49), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_parts_can_be_left_out_and_the_folder_says_so(tmp_path):
    out = tmp_path / "circuit"
    arguments = ("--positions", "rotary", "--no-previous", "--wrong-copy", 0.5, "--out", out)
    done = invoke("build_circuit", *arguments)
    assert done.returncode == 0, done.stderr
    assert "no induction" in done.stdout
    model = interp.load_model(out)
    made = model.plain.config.hand_built
    assert (made["previous"], made["match"], made["wrong_copy"]) == (False, True, 0.5)
    scan = interp.scan_heads(model, rows=4, quick=True)
    assert scan.heads("induction") == scan.heads("previous token") == []


MISTAKES = {
    "too many ids": (["--vocab", 50257], "vocabulary must"),
    "too long": (["--length", 9000], "length must"),
    "unknown positions": (["--positions", "round"], "positions must"),
    "a share above 1": (["--blur", 1.5], "blur must"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_writes_nothing(mistake, tmp_path):
    arguments, rule = MISTAKES[mistake]
    out = tmp_path / "new" / "circuit"
    assert refused(invoke("build_circuit", "--positions=absolute", *arguments, "--out", out), rule)
    assert not list(tmp_path.iterdir())
