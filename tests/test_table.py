import inspect
import os
import re

import pytest
import torch
from tiny_models import tiny, words_tokenizer

import interp
from interp.definitions import DEFINITIONS
from interp.targets import TARGETS

ENTRIES = re.findall(
    r"`([a-z0-9_<>]+)`",
    " ".join(re.findall(r"^- (`[^:]+):", inspect.getdoc(interp.HeadScan) or "", re.MULTILINE)),
)
STAND_FOR = {
    "<kind>": f"({'|'.join(TARGETS)})",
    "<n>": r"\d+",
    "<name>": f"({'|'.join(DEFINITIONS)})",
}


def explained_by(entry: str) -> re.Pattern[str]:
    for placeholder, values in STAND_FOR.items():
        entry = entry.replace(placeholder, values)
    return re.compile(entry)


@pytest.fixture(scope="module")
def columns():
    """The columns of a scan with everything on."""
    text = " ".join(f"w{3 + i * i % 190}" for i in range(400))
    model = interp.load_model(tiny("llama", max_position_embeddings=160), words_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.tokens.passages", lambda: {"words": text})
        return list(interp.scan_heads(model, rows=2, length=150, definitions=DEFINITIONS).frame)


def test_every_column_is_explained_and_nothing_else(columns):
    patterns = {entry: explained_by(entry) for entry in ENTRIES}
    assert len(columns) > 80
    assert [c for c in columns if not any(p.fullmatch(c) for p in patterns.values())] == []
    assert [e for e, p in patterns.items() if not any(map(p.fullmatch, columns))] == []


def planted_differently():
    """Layer 0 looks at the previous token; head 1 of layer 1 at its own, head 0 at the previous."""
    previous = torch.eye(12).roll(-1, dims=1)
    previous[0], previous[:, 0] = torch.eye(12)[0], torch.tensor([1.0, 1.0] + [0.0] * 10)
    patterns = torch.stack([previous, previous, previous, torch.eye(12)]).view(2, 1, 2, 12, 12)
    return interp.HeadScan.of(interp.classify_heads(patterns, list(range(12))), made_by={})


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_layers_and_heads_count_from_0_in_every_file_and_name(tmp_path, ending):
    path = tmp_path / f"heads.{ending}"
    planted_differently().save(path)
    table = interp.HeadScan.load(path)
    assert table.heads("current token") == [(1, 1)]
    assert set(table.heads("previous token")) == {(0, 0), (0, 1), (1, 0)}
    assert list(table.frame["name"]) == ["L0H0", "L0H1", "L1H0", "L1H1"]


@pytest.mark.skipif(os.name == "nt", reason="names are no bytes there")
@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_a_folder_whose_name_is_no_utf8_takes_files_and_gives_them_back(tmp_path, ending):
    path = tmp_path / os.fsdecode(b"caf\xe9") / f"heads.{ending}"
    planted_differently().save(path)
    assert len(interp.HeadScan.load(path).frame) == 4
