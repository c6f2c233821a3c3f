"""The built-in kinds of heads, and which kinds a scan, a table or a user means.

To add a kind, write its rule (see `interp.kinds.targets`) and add one entry to a table here.
"""

import re
import runpy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from interp.errors import InputError, quoted, reading
from interp.kinds import targets as rules
from interp.kinds import vocabulary as more
from interp.kinds.kind import Kind
from interp.kinds.meaning import OF_MEANING
from interp.kinds.names import OF_NAMES

ANTI_INDUCTION = "anti-induction"
FORCED_WINDOW = "local window (by architecture)"


def _by_name(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


KINDS = _by_name(
    Kind(
        "induction",
        rules.induction,
        None,  # A bidirectional model sees the next token.
        threshold=0.4,  # The usual value for stripes (ARENA 1.2); used for the next four too.
        look="looks right after an earlier copy",
        null="shuffled",
        opposite=ANTI_INDUCTION,
        source="Olsson et al. 2022, arXiv 2209.11895",
    ),
    Kind(
        "duplicate_token",
        rules.duplicate_token,
        rules.any_copy,
        threshold=0.4,
        look="looks at earlier copies of the token",
        look_both_ways="looks at other copies of the token",
        null="shuffled",
        source="Wang et al. 2022, arXiv 2211.00593",
    ),
    Kind("previous_token", rules.previous_token, rules.previous_token, 0.4, "looks one token back"),
    Kind("next_token", None, rules.next_token, 0.4, "looks one token ahead"),
    Kind(
        "current_token", rules.current_token, rules.current_token, 0.4, "looks at the token itself"
    ),
    Kind(
        "local_window",
        rules.local_window,
        rules.window_around,
        threshold=0.5,  # No published value: more than half of the attention.
        look="looks at the last {width} tokens",
        look_both_ways="looks at {half} tokens on each side",
        forced=FORCED_WINDOW,
    ),
    # epsilon = 0.3 of Gu et al. 2024 (arXiv 2410.10781).
    Kind(
        "sink",
        rules.sink,
        rules.sink,
        threshold=0.3,
        look="attends to the first token or another sink",
        on="random",
        source="Xiao et al. 2023, arXiv 2309.17453",
    ),
)
"""The kinds of a default scan by name, the most specific first."""


@cache
def offset(distance: int) -> Kind:
    """The kind of heads that look a fixed distance back, such as `offset_3`."""
    look = f"looks {distance} tokens back"
    return Kind(f"offset_{distance}", more.offset(distance), look=look)


MORE = _by_name(
    Kind(
        "ngram_induction",
        more.ngram_induction,
        look="looks right after an earlier copy of the last two tokens",
        null="shuffled",
        on="text",
        source="Akyürek et al. 2024, arXiv 2401.12973",
    ),
    Kind(
        "word_form",
        more.word_form,
        look="looks at earlier forms of its word",
        null="shuffled",
        on="text",
    ),
    *OF_NAMES,
    *OF_MEANING,
    *map(offset, (2, 3, 4)),
    Kind(
        "last_punctuation",
        more.last_punctuation,
        look="looks at the last punctuation mark",
        on="text",
        source="Clark et al. 2019, arXiv 1906.04341",
    ),
    Kind(
        "last_delimiter",
        more.last_delimiter,
        look="looks at the last line end or other delimiter",
        on="text",
        source="Chen et al. 2024, arXiv 2412.12094",
    ),
    Kind(
        "start_of_sentence",
        more.start_of_sentence,
        look="looks at the first token of its sentence",
        on="text",
    ),
    Kind(
        "start_of_word",
        more.start_of_word,
        look="looks at the first piece of its word",
        on="text",
    ),
    Kind("digits", more.digits, look="looks from digits at digits", on="text"),
    Kind(
        "bracket_partner",
        more.bracket_partner,
        look="looks from a closing bracket at the opening one",
        on="text",
    ),
    Kind(
        "quotation_partner",
        more.quotation_partner,
        look="looks from a closing quotation mark at the opening one",
        on="text",
    ),
    Kind("same_class", more.same_class, look="looks at tokens of its own class", on="text"),
    Kind(
        "recent_tokens",
        more.recent,
        look="looks at tokens right before the last {width}",
        on="text",
    ),
)
"""The kinds that a scan scores on request, and `offset_K` for any other distance."""

LABELS = {kind.name: kind.label for kind in KINDS.values() if kind.defined(causal=True)}
"""The default kinds of causal models and their labels, the most specific first."""


WORDS = [word for name in LABELS for word in KINDS[name].scored_labels]
"""Every label that a score of a default kind gives in a causal model."""


def kinds_of(causal: bool, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Kind]:
    """The kinds defined in a causal or in a bidirectional model, by name."""
    return {name: kind for name, kind in kinds.items() if kind.defined(causal)}


def known_kind(text: str) -> Kind | None:
    """A built-in kind by its name or a label; `offset_7` is one too."""
    if far := re.fullmatch(r"offset[_ ]([1-9]\d{0,5})", text):
        return offset(int(far[1]))
    return kind_of(text, KINDS | MORE)


def kind_of(text: str, kinds: Mapping[str, Kind] = KINDS) -> Kind | None:
    """The kind with a name or a label; None for a label that no kind has, such as `mixed`.

    Example:
        >>> kind_of("previous token").name, kind_of("anti-induction").name, kind_of("mixed")
        ('previous_token', 'induction', None)
    """
    return next((k for k in kinds.values() if text == k.name or text in k.labels), None)


def as_kinds(given: Any) -> dict[str, Kind]:
    """Kinds by name, from kinds, names, labels, `default`, `all`, or several of these.

    `FILE.py:NAME` is a kind of your own in a Python file, which is run.
    None means the default ones. They keep their order, but for kinds that contain others (the
    local window, the sink), which come last.

    Example:
        >>> list(as_kinds("sink, previous token"))
        ['previous_token', 'sink']
    """
    if given is None:
        return KINDS
    chosen: dict[str, Kind] = {}
    for one in _each(given):
        for name, kind in _named(one).items():
            if chosen.setdefault(name, kind) != kind:
                raise InputError(f"kinds must have different names, got {name} twice")
            # Only the threshold of a built-in kind may be another: its name stands for its rule.
            ours = known_kind(name)
            if ours not in (None, replace(kind, threshold=ours.threshold if ours else 1.0)):
                raise InputError(f"kinds must not have the name of a built-in kind, got {name}")
    if not chosen:
        raise InputError("kinds must be at least one, got none")
    last = [name for name in chosen if name in ("local_window", "sink")]
    return {name: chosen[name] for name in [*(n for n in chosen if n not in last), *last]}


def _named(one: Any) -> Mapping[str, Kind]:
    if isinstance(one, str) and one in ("default", "all"):
        return KINDS if one == "default" else KINDS | MORE
    if isinstance(one, str) and (place := re.fullmatch(r"(.+\.py):(\w+)", one)):
        return _by_name(_from_file(*place.groups()))
    if (kind := one if isinstance(one, Kind) else known_kind(str(one))) is None:
        words = ", ".join(["default", "all", *KINDS, *MORE])
        words += ", FILE.py:NAME or interp.Kind"
        raise InputError(f"kinds must be some of {words}, got {quoted(one)}")
    return {kind.name: kind}


def _from_file(path: str, name: str) -> Kind:
    """The kind `name` of a Python file, which is run."""
    with reading(path, "a Python file with kinds of heads"):
        kind = runpy.run_path(path).get(name)
        if not isinstance(kind, Kind):
            raise InputError(f"{name} must be a kind made by interp.kind, got {quoted(kind)}")
    return kind


def _each(given: Any) -> Iterable[Any]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",")]
    if isinstance(given, Mapping):
        return given.values()
    return [given] if isinstance(given, Kind) else given


def kinds_in(
    columns: Collection[str], record: Mapping[str, Any] | None = None, own: Collection[Kind] = ()
) -> dict[str, Kind]:
    """The kinds of a table: those in its record, or else in its columns.

    Kinds that are neither built in nor among `own` have no rule.

    Example:
        >>> list(kinds_in(["next_token"]))[:3]
        ['duplicate_token', 'previous_token', 'next_token']
        >>> list(kinds_in(["sink", "to_name", "to_name_chance"]))[-3:]
        ['to_name', 'local_window', 'sink']
    """
    ours = _by_name(*own)

    def named(name: str, **about: Any) -> Kind:
        kind = ours.get(name) or known_kind(name)
        return Kind(name, None, **about) if kind is None else replace(kind, **about)

    if record:
        return {
            name: named(name, threshold=about["threshold"], look=about["look"])
            for name, about in record.items()
            if name in columns
        }
    causal = not any(k.rule is None and k.name in columns for k in KINDS.values())
    others = [
        name
        for name in columns
        if f"{name}_chance" in columns and name not in KINDS and not name.startswith("text_")
    ]
    return as_kinds([named(name) for name in [*kinds_of(causal), *others]])
