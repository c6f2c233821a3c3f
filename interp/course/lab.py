"""The page to play with attention: what it starts from, and the formulas that it computes by.

The page computes in the reader's browser, in float64, with a few lines of its own. What it starts
from is here, made by the same modules that the rest is checked against, and what it must get is
what they give for the same numbers: `interp.attention.reference` for patterns and outputs,
`interp.course.designed`
for heads by hand, `cost` for operations and memory. Tests hold the page to that, cell by cell.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.attention.reference import attention_scores
from interp.course import numbers
from interp.course.designed import D_HEAD, EXAMPLE, NAMES, PLACE, WORD, designed_layer, embed
from interp.errors import InputError
from interp.show.pages import webpage

TITLE = "Attention, to play with"

COLOURS = {
    "red": (220, 50, 47),
    "yellow": (240, 200, 30),
    "green": (60, 170, 70),
    "cyan": (40, 180, 200),
    "blue": (50, 90, 220),
    "violet": (160, 60, 200),
}
"""Values of the soft lookup: red, green and blue from 0 to 255."""

LENGTH = 10
"""Tokens in the section on masks."""

WINDOW = 3
"""Tokens that the designed local head sees."""


def lab(parts: Mapping[str, Any], *, title: str = TITLE) -> str:
    """The whole page as HTML.

    Args:
        parts: What needs a model: `circuit` from `interp.course.stepped.circuit` and `zoo` from
            `interp.course.zoo.zoo`. A section without its part is left out.
        title: Of the page.

    Raises:
        InputError: If a part is unknown.
    """
    if unknown := parts.keys() - {"circuit", "zoo"}:
        raise InputError(f"parts must be some of circuit, zoo, got {', '.join(sorted(unknown))}")
    return webpage.lab_page(title, {**beginnings(), **parts})


def beginnings() -> dict[str, Any]:
    """What each section starts from, as plain lists; a section's name is its key."""
    return {
        "lookup": _lookup(),
        "scores": _scores(),
        "turned": _turned(),
        "masks": _masks(),
        "mixed": _mixed(),
        "cost": {"n": 2048, "d": 1024, "heads": 16, "kv_heads": 4}
        | {"layers": 24, "window": 512, "tile": 128},
    }


def turned(
    query_angle: float | int, key_angle: float | int, gain: float | int
) -> tuple[Float[Tensor, "2 2"], Float[Tensor, "2 2"]]:
    """W_Q and W_K that turn the plane, as the page's two angles and its gain set them.

    Rows are multiplied from the left, `x @ W`: a positive angle turns back, towards the places
    of earlier tokens. Each carries `sqrt(gain)`, and the root of sqrt(d_k), which attention
    divides by: the score of two points is `gain` times their product after the turns.

    Args:
        query_angle: Of W_Q, in degrees.
        key_angle: Of W_K, in degrees.
        gain: Score, in nats, of a unit query and a key that lies on it.

    Raises:
        InputError: If the gain is below 0.
    """
    if gain < 0:
        raise InputError(f"gain must be at least 0, got {gain}")
    size = math.sqrt(gain * math.sqrt(2))
    made = []
    for degrees in (query_angle, key_angle):
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        made.append(size * torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64))
    return made[0], made[1]


def cost(
    *, n: int, d: int, heads: int, kv_heads: int, layers: int, window: int, tile: int
) -> dict[str, float]:
    """Operations, memory and reach of a stack of causal attention layers, by formula.

    A multiply-add counts as two operations. `interp.course.costs` counts the same as it runs.

    Args:
        n: Tokens.
        d: Width of the model; `d / heads` is that of a head.
        heads: Query heads.
        kv_heads: Key-value heads, which divide the query heads evenly.
        layers: Number of layers.
        window: Keys that a query sees, itself included; at least n is no window.
        tile: Queries and keys of a tile.

    Returns:
        projections: Of one layer: `4 n d^2 (1 + kv_heads / heads)`, `8 n d^2` for multi-head.
        pairs: Of one layer without a window: `4 n^2 d`.
        window_pairs: With it: `4 n w d`.
        score_bytes: All scores of one layer in float32.
        tile_bytes: One tile of them, one head at a time.
        cache_bytes: Keys and values of all layers, 2 bytes to a number.
        window_cache_bytes: The same of the tokens within the window.
        reach: Tokens back that the last layer's query has heard of, `layers (w - 1)`.

    Raises:
        InputError: If a number is below 1, or heads do not divide.
    """
    given = {"n": n, "d": d, "layers": layers, "window": window, "tile": tile}
    for name, value in given.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if min(heads, kv_heads) < 1 or heads % kv_heads or d % heads:
        raise InputError(
            f"heads must divide d and be a multiple of kv_heads, got {heads}, {d} and {kv_heads}"
        )
    seen, side = min(window, n), min(tile, n)
    per_token = 2 * 2 * layers * kv_heads * (d // heads)
    return {
        "projections": 4 * n * d**2 + 4 * n * d**2 * kv_heads / heads,
        "pairs": 4 * n**2 * d,
        "window_pairs": 4 * n * seen * d,
        "score_bytes": 4 * heads * n**2,
        "tile_bytes": 4 * side**2,
        "cache_bytes": per_token * n,
        "window_cache_bytes": per_token * seen,
        "reach": min(layers * (seen - 1), n - 1),
    }


def _lookup() -> dict[str, Any]:
    turn = 2 * math.pi * torch.arange(len(COLOURS), dtype=torch.float64) / len(COLOURS)
    return {
        "names": list(COLOURS),
        "keys": torch.stack([turn.cos(), turn.sin()], -1).tolist(),
        "values": [list(colour) for colour in COLOURS.values()],
        "angle": 20,
        "temperature": 0.3,
    }


def _scores() -> dict[str, Any]:
    q, k, v = (
        torch.tensor(rows, dtype=torch.float64) for rows in (numbers.Q, numbers.K, numbers.V)
    )
    n = len(EXAMPLE.words)
    return {
        "examples": [
            {
                "name": "three words with Q, K and V",
                "words": list(numbers.WORDS),
                "scores": attention_scores(q, k).tolist(),
                "values": v.tolist(),
            },
            {
                "name": "eight words, all scores 0",
                "words": list(EXAMPLE.words),
                "scores": torch.zeros(n, n).tolist(),
                "values": embed(EXAMPLE)[:, PLACE].tolist(),
            },
        ]
    }


def _turned() -> dict[str, Any]:
    x = embed(EXAMPLE)[:, PLACE]
    start = {"query_angle": 0.0, "key_angle": 0.0, "gain": 10.0}
    return {"words": list(EXAMPLE.words), "x": x.tolist(), "step": 180 / len(x), **start}


def _masks() -> dict[str, Any]:
    luck = torch.Generator().manual_seed(0)
    scores = torch.randn(LENGTH, LENGTH, generator=luck, dtype=torch.float64)
    return {
        "words": [str(i) for i in range(LENGTH)],
        "scores": (scores * 1000).round().div(1000).tolist(),
    }


def _mixed() -> dict[str, Any]:
    x = embed(EXAMPLE)
    layer = designed_layer(EXAMPLE, window=WINDOW, gates=torch.ones(len(NAMES)))
    W_Q, W_K = (
        rearrange(W, "d_model (head d) -> head d_model d", d=D_HEAD) for W in (layer.W_Q, layer.W_K)
    )
    return {
        "words": list(EXAMPLE.words),
        "heads": list(NAMES),
        "x": x.tolist(),
        "first_word": WORD,
        "W_Q": W_Q.tolist(),
        "W_K": W_K.tolist(),
    }
