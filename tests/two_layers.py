"""Patterns of two layers with two planted heads each, over tokens that repeat."""

import torch

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
