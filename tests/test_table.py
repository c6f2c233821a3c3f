import inspect
import re

import pytest
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
