import json

import pandas as pd
import pytest
from invoked import invoke, refused
from tiny_models import tiny, words_tokenizer

import interp


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("patch")
    tiny("llama").save_pretrained(path / "model")
    words_tokenizer().save_pretrained(path / "model")
    rows = [(f"w5 w{i} w7 w5", f"w5 w{i + 9} w7 w5", f" w{i}", f" w{i + 9}") for i in (20, 30, 40)]
    names = ("clean", "corrupted", "right", "wrong")
    lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    (path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return path


def test_your_own_pairs_become_a_table_and_a_map(folder):
    options = ("--metric", "loss", "--what", "v", "--position", -1, "--format", "png,svg")
    files = (
        "--model",
        folder / "model",
        "--pairs",
        folder / "pairs.jsonl",
        "--out",
        folder / "out",
    )
    ran = invoke("patch_heads", *files, *options, "--top", 2)
    assert ran.returncode == 0, ran.stderr
    names = {"patch.csv", "patch.json", "head_map.png", "head_map.svg"}
    assert {path.name for path in (folder / "out").iterdir()} == names
    effects = interp.HeadEffects.load(folder / "out" / "patch.json")
    model = interp.load_model(folder / "model")
    task = interp.tasks.from_file(model, folder / "pairs.jsonl")
    from interp.effects.metrics import loss

    own = interp.patch(model, task.clean, task.corrupted, loss(task), "v", position=-1)
    pd.testing.assert_frame_equal(effects.to_frame(), own.to_frame())
    table = pd.read_csv(folder / "out" / "patch.csv")
    assert table["effect"].tolist() == pytest.approx(own.to_frame()["effect"].tolist())
    lines = ran.stdout.splitlines()
    assert f"solves {task.solved(model):.0%} of 3 pairs (pairs)" in lines[0]
    first = own.strongest(1).iloc[0]
    assert lines[2].startswith(f"{first['name']} {first['effect']:+.2f} [")
    assert len(lines) == 5


def test_what_is_wrong_gets_one_line_and_no_file(folder):
    model, out = ("--model", folder / "model"), ("--out", folder / "none")
    for options in (
        ("--pairs", folder / "model" / "config.json"),
        ("--what", "w"),
        ("--task", "x"),
    ):
        assert refused(invoke("patch_heads", *model, *out, *options))
    assert not (folder / "none").exists()
