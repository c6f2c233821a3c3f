"""Patterns of any source through one way in, and what is refused there."""

import pickle
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from tiny_models import tiny

import interp
from interp.arrays import layer_number
from interp.errors import InputError
from interp.targets import NONE

IDS = [3, *range(10, 20), *range(10, 20)]
LENGTH = len(IDS)


def planted(kind: str, length: int = LENGTH) -> torch.Tensor:
    """One head `[query, key]`: it looks where the kind looks, or else at the first token."""
    pattern = torch.zeros(length, length)
    for q in range(length):
        k = {"previous": q - 1, "induction": q - 9 if q > 10 else 0, "current": q}[kind]
        pattern[q, max(k, 0)] = 1
    return pattern


HEADS = torch.stack([planted("previous"), planted("induction")])[None]  # [batch, head, ...]
STACK = torch.stack([HEADS, HEADS.flip(1)])
LABELS = ["previous token", "induction", "induction", "previous token"]


def labels(source: Any, tokens: Any = None, **options: Any) -> list[str]:
    """Labels straight from the source, which are those of what `read_patterns` makes of it."""
    verdicts = interp.classify_heads(source, tokens, **options)
    read = interp.read_patterns(source, tokens)
    again = interp.classify_heads(read)
    assert [v.labels for v in again] == [v.labels for v in verdicts]
    assert [v.head for v in again] == [v.head for v in verdicts]
    return [verdict.label for verdict in verdicts]


def numpy_of(stack: torch.Tensor) -> np.ndarray:
    return stack.numpy()


# Files.


def test_an_npy_file_is_read_with_its_tokens_in_any_kind_of_file(tmp_path):
    np.save(tmp_path / "p.npy", STACK.numpy())
    np.save(tmp_path / "t.npy", np.array(IDS))
    np.savez(tmp_path / "t.npz", input_ids=np.array([IDS]))
    safetensors.torch.save_file({"tokens": torch.tensor(IDS)}, tmp_path / "t.safetensors")
    (tmp_path / "t.json").write_text(str(IDS))
    (tmp_path / "one_line.txt").write_text(", ".join(map(str, IDS)))
    (tmp_path / "one_each.txt").write_text("\n".join(map(str, IDS)) + "\n")
    names = ["t.npy", "t.npz", "t.safetensors", "t.json", "one_line.txt", "one_each.txt"]
    for name in names:
        assert labels(tmp_path / "p.npy", tmp_path / name) == LABELS, name
    assert labels(str(tmp_path / "p.npy"), IDS) == LABELS
