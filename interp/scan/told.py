"""What a saved scan tells of how it was made, checked as anything from a file is."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from interp.errors import MOST_SEED, InputError, is_number, quoted
from interp.heads import Head
from interp.kinds.scores import Thresholds
from interp.patterns.tensor import MOST_LAYERS

_COUNT = range(1, 2**31)
_ID = range(2**63)
_LAYERS = range(1, MOST_LAYERS + 1)

_PROBE = {"parts": [str], "rows": _COUNT, "length": _COUNT, "periods": [_COUNT]}

TOLD: dict[str, Any] = {
    "model": str,
    "revision": (str, None),
    "n_layers": _LAYERS,
    "n_heads": _LAYERS,
    "direction": {"causal", "both ways"},
    "attention": [str],
    "alibi_slopes": ([float], None),
    "dtype": str,
    "device": str,
    "off_cpu": (float, None),
    "bos": (_ID, None),
    "bos_text": (str, None),
    "special": [_ID],
    "n_bos": range(3),
    "seed": range(MOST_SEED + 1),
    "method": {"stream", "hooks"},
    "tokenizer": bool,
    "probes": [_PROBE],
    "scored_on": {str: str},
    "thresholds": {str: float},
    "versions": {str: str},
    "quick": bool,
    "left_out": {str: str},
    "patterns": {"file": str},
    "rows": _COUNT,
    "length": _COUNT,
    "learned_sinks": bool,
}
"""All that a scan of ours tells, and of what kind each is: see `_is`. What else somebody may
want to keep with a table is taken as it is, if a file can hold it."""

_BESIDE = {
    "probes": ("tokenizer", "bos", "bos_text", "seed", "dtype", "device"),
    "patterns": ("rows", "length", "dtype", "special", "learned_sinks"),
    "attention": ("n_layers", "n_heads"),
}
"""What must be told too where one of these is."""

_DEEPEST = 50
"""Lists and objects within each other."""


def check_told(made_by: Any, heads: Collection[tuple[int, int]]) -> dict[str, Any]:
    """`made_by` as it is, if it is a record that a scan can have.

    Args:
        made_by: From anywhere.
        heads: Layer and head of each row of the table that it stands beside.

    Raises:
        InputError: If it is none, or no file could hold it; the message names what is wrong
            with it.
    """
    if not isinstance(made_by, dict):
        raise InputError(f"made_by must be an object, got {type(made_by).__name__}")
    _check_plain(made_by, "made_by")
    for name, kind in TOLD.items():
        if name in made_by and not _is(made_by[name], kind):
            raise InputError(
                f"made_by must have {name} as a scan writes it, got {repr(made_by[name])[:80]}"
            )
    for name, others in _BESIDE.items():
        if name in made_by and (absent := [other for other in others if other not in made_by]):
            raise InputError(f"made_by must have {', '.join(absent)} where it has {name}")
    thresholds = made_by.get("thresholds", {})
    if unknown := {*thresholds} - {field.name for field in fields(Thresholds)}:
        raise InputError(f"made_by must have no unknown thresholds, got {min(unknown)[:80]!r}")
    Thresholds(**thresholds)
    for probe in made_by.get("probes", []):
        _check_probe(probe)
    _check_heads(made_by, heads)
    return made_by


def is_text(value: Any) -> bool:
    """Whether `value` is text that UTF-8 can write, as JSON's may not be."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_plain(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what JSON cannot hold, or would give back as something else."""
    if value is None or isinstance(value, bool) or is_number(value) or is_text(value):
        return
    if depth == _DEEPEST:
        raise InputError(f"made_by must be nested less than {_DEEPEST} deep, got more in {where}")
    if isinstance(value, list | tuple):
        for item in value:
            _check_plain(item, where, depth + 1)
    elif isinstance(value, dict) and all(map(is_text, value)):
        for name, item in value.items():
            _check_plain(item, name if depth == 0 else where, depth + 1)
    else:
        raise InputError(
            "made_by must hold text, finite numbers, lists and objects of these by name, got"
            f" {type(value).__name__} {quoted(value)} in {where}"
        )


def _is(value: Any, kind: Any) -> bool:
    """Whether `value` is of a kind.

    A kind is a type (`float`: any number), a range of whole numbers, a set of words, a list of
    one kind, a tuple of kinds of which any will do (or None), or an object: by its names, or of
    any names with values of one kind.
    """
    if isinstance(kind, range):
        return type(value) is int and value in kind
    if isinstance(kind, tuple):
        return any(value is None if one is None else _is(value, one) for one in kind)
    if isinstance(kind, set):
        return isinstance(value, str) and value in kind
    if isinstance(kind, list):
        return isinstance(value, list | tuple) and all(_is(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return False
        if str in kind:
            return all(_is(item, kind[str]) for item in value.values())
        return all(name in value and _is(value[name], inner) for name, inner in kind.items())
    return is_number(value) if kind is float else isinstance(value, kind)


def _check_probe(probe: dict[str, Any]) -> None:
    """Refuse a probe whose numbers do not fit each other."""
    rows, length = probe["rows"], probe["length"]
    if not probe["parts"]:
        raise InputError("made_by must name the parts of each probe, got none")
    periods = probe["periods"]
    repeats = probe["parts"] != ["text"]
    if len(periods) != rows * repeats or max(periods, default=0) >= length:
        raise InputError(
            f"made_by must have a period within {length} tokens for each of the {rows} rows of a"
            f" probe that repeats, and none for text, got {len(periods)}"
        )
    tokens = probe.get("tokens")
    if tokens is not None and not (
        _is(tokens, [str]) and len(tokens) == rows and all(_ids(row) == length for row in tokens)
    ):
        raise InputError(
            f"made_by must have the {length} token ids of each of a probe's {rows} rows"
        )


def _ids(row: str) -> int | None:
    """How many token ids a text holds; None if it holds anything else."""
    parts = row.split(" ")
    return len(parts) if all(part.isascii() and part.isdecimal() for part in parts) else None


def _check_heads(made_by: dict[str, Any], heads: Collection[tuple[int, int]]) -> None:
    """Refuse a table of other heads than the model has that was scanned."""
    layers, kinds = made_by.get("n_layers", MOST_LAYERS), made_by.get("attention")
    number = made_by.get("n_heads", MOST_LAYERS)
    if beyond := [Head(*head) for head in heads if head[0] >= layers or head[1] >= number]:
        raise InputError(
            f"table must hold heads of the {layers} layers of {number} that made_by tells of,"
            f" got {beyond[0]}"
        )
    if kinds is None:
        return
    if len(kinds) != layers:
        raise InputError(
            f"made_by must tell the attention of each of n_layers {layers}, got {len(kinds)}"
        )
    own = sum(not kind.startswith("none") for kind in kinds) * number
    if len(heads) != own or any(kinds[layer].startswith("none") for layer, _ in heads):
        raise InputError(f"table must hold the {own} heads that made_by tells of, got {len(heads)}")
