import os

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # As many workers as cores: one for each.

import pytest
from tiny_models import tiny, words_tokenizer

import interp


@pytest.fixture
def folder(tmp_path):
    """A local Hugging Face folder with a tiny grouped-query model and its tokenizer."""
    path = tmp_path / "tiny-llama"
    tiny("llama").save_pretrained(path)
    words_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def real_model():
    return interp.load_model()


@pytest.fixture(scope="session")
def real_scan(real_model):
    return interp.scan_heads(real_model)
