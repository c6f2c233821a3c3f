"""The attention lab: an interactive page, and the numbers that its sections start from.

The page computes in the browser, in float64, by its own short formulas. Tests compare its
numbers with those of `interp.attention.reference`, `interp.course.designed` and
`interp.course.costs`.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange

from interp.attention.reference import attention_scores
from interp.course import numbers
from interp.course.designed import D_HEAD, EXAMPLE, NAMES, PLACE, WORD, designed_layer, embed
from interp.errors import InputError
from interp.show.pages import webpage

TITLE = "Attention lab"

COLOURS = {
    "red": (220, 50, 47),
    "yellow": (240, 200, 30),
    "green": (60, 170, 70),
    "cyan": (40, 180, 200),
    "blue": (50, 90, 220),
    "violet": (160, 60, 200),
}
"""Values of the soft lookup: red, green and blue from 0 to 255."""

THREE = "I", "school", "go"
"""The words of `numbers.WORDS` in English, in their order."""

LENGTH = 10
"""Number of tokens in the section on masks."""

WINDOW = 3
"""Window of the designed local head."""


def lab(parts: Mapping[str, Any], *, title: str = TITLE) -> str:
    """The attention lab as one HTML page that loads nothing else.

    Args:
        parts: Sections that need a model: `circuit` from `interp.course.stepped.circuit` and
            `zoo` from `interp.course.zoo.zoo`. The page leaves out a section without its part.
        title: Title of the page.
    """
    if unknown := parts.keys() - {"circuit", "zoo"}:
        raise InputError(f"parts must be some of circuit, zoo, got {', '.join(sorted(unknown))}")
    return webpage.lab_page(title, {**beginnings(), **parts})


def beginnings() -> dict[str, Any]:
    """Initial data of each section as plain lists, by the section's id."""
    x, words, n = embed(EXAMPLE), list(EXAMPLE.words), len(EXAMPLE.words)
    turn = 2 * math.pi * torch.arange(len(COLOURS), dtype=torch.float64) / len(COLOURS)
    q, k, v = (
        torch.tensor(rows, dtype=torch.float64) for rows in (numbers.Q, numbers.K, numbers.V)
    )
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(LENGTH, LENGTH, generator=generator, dtype=torch.float64)
    layer = designed_layer(EXAMPLE, window=WINDOW, gates=torch.ones(len(NAMES)))
    W_Q, W_K = (
        rearrange(W, "d_model (head d) -> head d_model d", d=D_HEAD) for W in (layer.W_Q, layer.W_K)
    )
    return {
        "lookup": {
            "names": list(COLOURS),
            "keys": torch.stack([turn.cos(), turn.sin()], -1).tolist(),
            "values": [list(colour) for colour in COLOURS.values()],
            "angle": 20,
            "temperature": 0.3,
        },
        "scores": {
            "examples": [
                *(
                    {
                        "name": f"three words with q, k and v{language}",
                        "words": list(three),
                        "scores": attention_scores(q, k).tolist(),
                        "values": v.tolist(),
                    }
                    for language, three in (("", THREE), (", in Korean", numbers.WORDS))
                ),
                {
                    "name": "eight words, all scores 0",
                    "words": words,
                    "scores": torch.zeros(n, n).tolist(),
                    "values": x[:, PLACE].tolist(),
                },
            ]
        },
        "turned": {"words": words, "x": x[:, PLACE].tolist(), "step": 180 / n}
        | {"query_angle": 0.0, "key_angle": 0.0, "gain": 10.0},
        "masks": {
            "words": [str(i) for i in range(LENGTH)],
            "scores": (scores * 1000).round().div(1000).tolist(),
        },
        "mixed": {"words": words, "heads": list(NAMES), "x": x.tolist(), "first_word": WORD}
        | {"W_Q": W_Q.tolist(), "W_K": W_K.tolist()},
        "cost": {"n": 2048, "d": 1024, "heads": 16, "kv_heads": 4}
        | {"layers": 24, "window": 512, "tile": 128},
    }
