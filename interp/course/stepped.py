"""The two-layer induction circuit on a sentence that begins again, to be stepped token by token.

The hand-built circuit of `interp.build_circuit` is run twice, with its previous-token head and
without, and what the page shows of each run is kept: the two heads' patterns, the probabilities
of the next token, and what the residual stream holds, read in the circuit's own directions.
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
"""To which the numbers in the page are rounded."""


def circuit() -> dict[str, Any]:
    """Both runs as plain lists.

    Returns:
        words, vocabulary: The text of each token, and of each id.
        previous, induction: The names of the two heads.
        with_head, without_head: Each run:
            previous, induction: Patterns `[query, key]`.
            token, before, said: What the stream holds of each word `[pos, id]`, 1 for all of it:
                of the token itself, of what the previous-token head wrote, of what the induction
                head wrote. A product of code words, so another word than the one that is there
                has a little, of either sign.
            next: Probabilities of the next token `[pos, id]`.
    """
    vocabulary = list(dict.fromkeys(SENTENCE))
    ids = torch.tensor([[vocabulary.index(word) for word in SENTENCE]])
    models = [
        build_circuit("absolute", len(vocabulary), len(SENTENCE), previous=previous)
        for previous in (True, False)
    ]
    # Without a previous-token head its place is taken by an idle one.
    record = models[0].plain.config.hand_built
    heads = Head.parse(record["previous_token_head"]), Head.parse(record["induction_head"])
    value = f"blocks.{heads[0].layer}.attn.hook_v"
    values = hooks.run_with(models[0], ids, [value])[value][0, :, heads[0].head]
    # A head's values are code words of length 1; BOS has none.
    first_places = [SENTENCE.index(word) for word in vocabulary]
    with_head, without_head = (_run(model, ids, heads, values[first_places]) for model in models)
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
    words: Float[Tensor, "id d_head"],
) -> dict[str, Any]:
    first, second = heads
    parts = ("pattern", "z", "v")
    names = {
        (head, part): f"blocks.{head.layer}.attn.hook_{part}" for head in heads for part in parts
    }
    seen = hooks.run_with(model, ids, list(names.values()))
    z = {head: seen[names[head, "z"]][0, :, head.head] for head in heads}
    with torch.no_grad(), evaluating(model.plain):
        logits = model.plain(ids).logits[0]
    made = {
        "previous": seen[names[first, "pattern"]][0, first.head],
        "induction": seen[names[second, "pattern"]][0, second.head],
        "token": seen[names[second, "v"]][0, :, second.head] @ words.T,
        "before": z[first] @ words.T,
        "said": z[second] @ words.T,
        "next": logits.softmax(-1),
    }
    return {name: rounded(rows) for name, rows in made.items()}


def rounded(rows: Float[Tensor, "row column"]) -> list[list[float]]:
    """A matrix as lists of few characters, off by `0.5 * 10 ** -DIGITS` at most."""
    return [[round(x, DIGITS) for x in row] for row in rows.double().tolist()]
