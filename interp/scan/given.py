"""A table of heads from a file of patterns, without a model."""

import hashlib
import os
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from interp.files import versions
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE
from interp.patterns.classify import classify_heads
from interp.patterns.read import copied
from interp.patterns.tensor import Ran
from interp.scan.columns import EFFECT
from interp.scan.table import HeadScan

SHOWN = 256
"""Number of tokens that a figure of given patterns shows."""


def scan_given(
    given: Ran,
    patterns: str | os.PathLike[str],
    tokens: str | os.PathLike[str] | None = None,
    *,
    special: Collection[int] = (),
    learned_sinks: bool = False,
    causal: bool = True,
) -> HeadScan:
    """The heads of `given`, which was read from the files `patterns` and `tokens`."""
    verdicts = classify_heads(given, special=special, learned_sinks=learned_sinks, causal=causal)
    rows, length = given.tokens.shape
    absent = ("<kind>_low", "<kind>_null", "text_<kind>", EFFECT, "ov_copying")
    made_by: dict[str, Any] = {
        "patterns": _file(patterns),
        "tokens": _file(patterns if tokens is None else tokens),
        "rows": rows,
        "length": length,
        "dtype": str(given.arrays[0].dtype).removeprefix("torch."),
        "special": sorted(special),
        "learned_sinks": learned_sinks,
        "direction": "causal" if causal else "both ways",
        "thresholds": asdict(Thresholds()),
        "versions": versions(),
        "left_out": dict.fromkeys(absent, "patterns were given, and no model to run"),
    }
    return HeadScan.of(verdicts, made_by=made_by)


def first_prompt(given: Ran, *, learned_sinks: bool = False, causal: bool = True) -> Ran:
    """The first `SHOWN` tokens of the first prompt, and its patterns, checked.

    Causal attention is cut first; bidirectional attention is read in full and then cut.
    """
    start = int((given.tokens[0] != NONE).int().argmax())
    cut = slice(start, start + SHOWN if causal else None)
    shown = replace(
        given,
        tokens=given.tokens[:1, cut],
        arrays=[layer[:1, :, cut, cut] for layer in given.arrays],
        first_query=max(0, given.first_query - start),
        learned_sinks=learned_sinks,
        causal=causal,
    )
    return copied(shown)[0].beginning(SHOWN)


def _file(path: str | os.PathLike[str]) -> dict[str, str]:
    with Path(path).open("rb") as file:
        return {"file": Path(path).name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
