"""The zoo: the ideal pattern of each kind of head next to that of the strongest real head."""

from typing import Any

from torch import Tensor

from interp.course.stepped import rounded
from interp.errors import InputError
from interp.kinds import probes as tokens
from interp.kinds.builtin import KINDS, LABELS
from interp.kinds.looks import ideal
from interp.models import Model, hooks
from interp.scan.table import HeadScan
from interp.show.about import special_of, zoo_heads
from interp.text import visible

LENGTH = 41
"""Number of tokens: BOS, then random tokens that repeat."""


def zoo(model: Model, scan: HeadScan, *, seed: int = 0) -> dict[str, Any]:
    """Ideal and real patterns on random tokens that repeat.

    An ideal head spreads its attention evenly over its targets, or attends to the first token
    where it has no target.

    Args:
        model: Model of the real heads.
        scan: Scan of this model. The zoo leaves out a kind that no head has.
        seed: Seed of the random tokens.

    Returns:
        words: Text of each token.
        about: Description of the model and the tokens.
        kinds: For each kind `name`, `looks`, `ideal`, `head`, `score`, and `pattern`.
    """
    length = min(LENGTH, model.n_ctx)
    probe = tokens.repeated(model.vocabulary, rows=1, length=length, bos=model.bos, seed=seed)
    heads = {kind: head for kind, head in zoo_heads(scan).items() if kind in LABELS}
    if not heads:
        raise InputError("scan must have a head with a label, got none")
    patterns: dict[int, Tensor] = {}
    hooks.run(
        model,
        probe.tokens,
        lambda layer, pattern: patterns.__setitem__(layer, pattern[0].cpu()),
        layers=sorted({head.layer for head in heads.values()}),
    )
    thresholds, special = scan.thresholds, special_of(scan)
    scores = scan.frame.set_index("name")
    kinds = [
        {
            "name": LABELS[kind],
            "looks": KINDS[kind].looks(thresholds),
            "ideal": rounded(ideal(KINDS[kind], probe.tokens[0], thresholds, special)),
            "head": str(head),
            "score": float(scores.loc[str(head), kind]),
            "pattern": rounded(patterns[head.layer][head.head]),
        }
        for kind, head in heads.items()
    ]
    return {
        "words": [visible(text) for text in model.texts_of(probe.tokens[0])],
        "about": f"{model.name} on {length} random tokens that repeat after {probe.periods[0]}.",
        "kinds": kinds,
    }
