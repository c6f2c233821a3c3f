import pytest
from invoked import invoke, refused

import interp


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from tiny_models import tiny

    folder = tmp_path_factory.mktemp("run") / "checkpoint-3"
    tiny("gpt2").save_pretrained(folder)
    return folder


def test_a_sweep_writes_a_table_says_what_failed_and_plans_what_is_left(checkpoint, tmp_path):
    out = tmp_path / "out"
    options = (checkpoint, tmp_path / "none", "--out", out, "--quick", "--rows", 1)
    planned = invoke("sweep", *options, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines()[:2] == [
        f"to do: {checkpoint.parent.name} checkpoint-3",
        f"to do: {tmp_path / 'none'} main",
    ]
    assert not out.exists()
    done = invoke("sweep", *options)
    assert done.returncode == 0, done.stderr
    assert f"failed: {tmp_path / 'none'} main: model must be a hub id" in done.stdout
    assert "2 units of 2 models: 1 done, 1 failed" in done.stdout
    assert interp.sweep(checkpoint, out=out, quick=True, rows=1).plan["state"].item() == "done"


def test_a_sweep_writes_a_page_to_browse(checkpoint, tmp_path):
    page = tmp_path / "page.html"
    options = (checkpoint, "--out", tmp_path / "out", "--rows", 2, "--page", page)
    assert f"wrote {page}" in invoke("sweep", *options).stdout
    assert f'"name":"{checkpoint.parent.name}"' in page.read_text(encoding="utf-8")


def test_a_mistake_gets_one_line_and_writes_nothing(checkpoint, tmp_path):
    wrong = {"--what": "dreams", "--kinds": "nonsense", "--prompts": "a.txt", "--page": "a.txt"}
    for options in wrong.items():
        assert refused(invoke("sweep", checkpoint, "--out", tmp_path / "out", *options), "must")
        assert not (tmp_path / "out").exists()
