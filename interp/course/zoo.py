"""A zoo of patterns: what each kind of head should look like, beside the strongest real one."""

from typing import Any

from torch import Tensor

from interp.course.stepped import rounded
from interp.errors import InputError
from interp.heads import Head
from interp.kinds import probes as tokens
from interp.kinds.kind import KINDS, LABELS
from interp.kinds.looks import ideal
from interp.models import Model, hooks
from interp.scan.table import HeadScan
from interp.show.pages.prompts import special_of, thresholds_of
from interp.text import visible

LENGTH = 41
"""Tokens of the row that is shown, BOS among them: random ones, then the same again."""


def zoo(model: Model, scan: HeadScan, *, seed: int = 0) -> dict[str, Any]:
    """Ideal and real patterns on random tokens that repeat.

    An ideal head spreads its attention evenly over its targets, and rests on the first token
    where it has none.

    Args:
        model: Whose heads are shown.
        scan: Of this model. A kind that no head of it carries is left out.
        seed: Of the tokens.

    Returns:
        words: The text of each token.
        about: What is shown, in a sentence.
        kinds: For each kind `name`, `looks`, `ideal`, `head`, `score`, and `pattern`.

    Raises:
        InputError: If no head has a label, or the model has no room for the tokens.
    """
    length = min(LENGTH, model.n_ctx)
    probe = tokens.repeated(model.vocabulary, rows=1, length=length, bos=model.bos, seed=seed)
    heads: dict[str, Head] = {}
    first = dict(zip(scan.frame["name"].tolist(), scan.frame["label"].tolist(), strict=True))
    for kind, word in LABELS.items():
        found = scan.heads(word)
        # One whose label it is before one that carries it among others.
        for head in sorted(found, key=lambda head: first[str(head)] != word)[:1]:
            heads[kind] = head
    if not heads:
        raise InputError("scan must have a head with a label, got none")
    patterns: dict[int, Tensor] = {}
    hooks.run(
        model,
        probe.tokens,
        lambda layer, pattern: patterns.__setitem__(layer, pattern[0].cpu()),
        layers=sorted({head.layer for head in heads.values()}),
    )
    thresholds, special = thresholds_of(scan), special_of(scan)
    scores = scan.frame.set_index("name")
    kinds = [
        {
            "name": LABELS[kind],
            "looks": KINDS[kind].looks(thresholds),
            "ideal": rounded(ideal(kind, probe.tokens[0], thresholds, special)),
            "head": str(head),
            "score": float(scores.loc[str(head), kind]),
            "pattern": rounded(patterns[head.layer][head.head]),
        }
        for kind, head in heads.items()
    ]
    return {
        "words": [visible(text) for text in model.texts_of(probe.tokens[0])],
        "about": f"{model.name}, {length} tokens: random ones that come again after"
        f" {probe.periods[0]}.",
        "kinds": kinds,
    }
