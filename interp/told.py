"""What a saved scan tells of how it was made, checked as anything from a file is."""

from typing import Any

from interp.errors import InputError

_NUMBER = (int, float)

_PROBE = {"parts": [str], "rows": int, "length": int, "periods": [int]}

_KINDS: dict[str, Any] = {
    "model": str,
    "bos": (int, type(None)),
    "scored_on": {str: str},
    "left_out": {str: str},
    "thresholds": {str: _NUMBER},
    "probes": [_PROBE],
    "special": [int],
    "patterns": {"file": str},
}
"""Of what kind each thing is that is told to readers, or made use of."""

_BESIDE = {
    "probes": ("tokenizer", "bos", "bos_text", "seed", "dtype", "device"),
    "patterns": ("rows", "length", "dtype", "special", "learned_sinks"),
}
"""What must be told too where one of these is."""


def check_told(made_by: Any) -> dict[str, Any]:
    """`made_by` as it is, if it is a record that a scan can have.

    Raises:
        InputError: If it is none; the message names what is wrong with it.
    """
    if not isinstance(made_by, dict):
        raise InputError("made_by must be an object")
    for name, kind in _KINDS.items():
        if name in made_by and not _is(made_by[name], kind):
            raise InputError(f"made_by must have {name} as a scan writes it")
    for name, others in _BESIDE.items():
        if name in made_by and (absent := [other for other in others if other not in made_by]):
            raise InputError(f"made_by must have {', '.join(absent)} where it has {name}")
    return made_by


def _is(value: Any, kind: Any) -> bool:
    """Whether `value` is of a kind: types, a list of one kind, or an object by its names."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return False
        if str in kind:
            return all(isinstance(k, str) and _is(v, kind[str]) for k, v in value.items())
        return all(name in value and _is(value[name], inner) for name, inner in kind.items())
    return isinstance(value, kind) and not isinstance(value, bool)
