"""The two-layer induction circuit on a sentence that repeats, for the lab to step through.

The hand-built circuit of `interp.build_circuit` runs twice, with and without its previous-token
head. For each run the page shows the patterns of the two heads, the probabilities of the next
token, and the contents of the residual stream, read in the circuit's own directions.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.circuits.build import build_circuit
from interp.heads import Head
from interp.models import Model, evaluating, hooks

AGAIN = ("the", "cat", "slept", "because", "it")
SENTENCE = ("<s>", *AGAIN, "was", "tired", *AGAIN)

DIGITS = 7
"""Decimals of the numbers in the page."""


def circuit() -> dict[str, Any]:
    """Both runs as plain lists.

    Returns:
        words, vocabulary: Text of each token, and of each id.
        previous, induction: Names of the two heads.
        with_head, without_head: Each run:
            previous, induction: Patterns `[query, key]`.
            token, before, copied: Strength of each word in the stream `[pos, id]`, 1 for fully
                there: from the embedding, from the previous-token head, from the induction
                head. It is a product of code words, so other words have small values of either
                sign.
            next: Probabilities of the next token `[pos, id]`.
    """
    vocabulary = list(dict.fromkeys(SENTENCE))
    ids = torch.tensor([[vocabulary.index(word) for word in SENTENCE]])
    models = [
        build_circuit("absolute", len(vocabulary), len(SENTENCE), previous=previous)
        for previous in (True, False)
    ]
    # Without the previous-token head, an idle head is in its place.
    record = models[0].plain.config.hand_built
    heads = Head.parse(record["previous_token_head"]), Head.parse(record["induction_head"])
    name = f"blocks.{heads[0].layer}.attn.hook_v"
    values = hooks.run_with(models[0], ids, [name])[name][0, :, heads[0].head]
    # A head's values are code words of length 1; BOS has none.
    codes = values[[SENTENCE.index(word) for word in vocabulary]]
    with_head, without_head = (_run(model, ids, heads, codes) for model in models)
    return {
        "words": list(SENTENCE),
        "vocabulary": vocabulary,
        "previous": str(heads[0]),
        "induction": str(heads[1]),
        "with_head": with_head,
        "without_head": without_head,
    }


def _run(
    model: Model,
    ids: Int[Tensor, "1 pos"],
    heads: tuple[Head, Head],
    codes: Float[Tensor, "id d_head"],
) -> dict[str, Any]:
    names = [f"blocks.{head.layer}.attn.hook_{part}" for head in heads for part in ("pattern", "z")]
    names.append(f"blocks.{heads[1].layer}.attn.hook_v")
    first, second = heads[0].head, heads[1].head
    run = hooks.run_with(model, ids, names)
    pattern_0, z_0, pattern_1, z_1, v_1 = (run[name][0] for name in names)
    with torch.no_grad(), evaluating(model.plain):
        logits = model.plain(ids).logits[0]
    parts = {
        "previous": pattern_0[first],
        "induction": pattern_1[second],
        "token": v_1[:, second] @ codes.T,
        "before": z_0[:, first] @ codes.T,
        "copied": z_1[:, second] @ codes.T,
        "next": logits.softmax(-1),
    }
    return {name: rounded(rows) for name, rows in parts.items()}


def rounded(rows: Float[Tensor, "row column"]) -> list[list[float]]:
    """A matrix as lists of numbers with `DIGITS` decimals."""
    return [[round(x, DIGITS) for x in row] for row in rows.double().tolist()]
