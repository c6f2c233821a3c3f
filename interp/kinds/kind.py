"""`Kind`, the definition of a kind of head, and the table of the built-in kinds, `KINDS`.

Everything that lists kinds (labels, columns, thresholds, probes, figures, pages, planted heads)
reads this table. To add a kind, write its rule (see `interp.kinds.targets`) and add one entry.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from interp.kinds import targets as rules
from interp.kinds.targets import Keys, Tokens

ANTI_INDUCTION = "anti-induction"
FORCED_WINDOW = "local window (by architecture)"

Rule = Callable[..., Keys]
"""`rule(tokens, special)`: the targets of each query."""


@dataclass(frozen=True)
class Kind:
    """A kind of head: everything that the toolkit knows about it.

    Attributes:
        name: Name of its column, such as `previous_token`.
        rule: Its targets in a causal model; None where the kind is not defined there.
        both_ways: Its targets in a bidirectional model; None where it is not defined there.
        threshold: Least excess over even attention for the label, in (0, 1].
        look: Behaviour of such a head in a few words; `{width}` and `{half}` are the width of the
            local window and half of it.
        look_both_ways: `look` in a bidirectional model, where it differs.
        null: Source of the null: `shuffled` scores the same targets on rows in another order, for
            rules that match tokens; `drawn` scores as many random keys, for rules of position.
        idle: Whether it is scored before the first repeat, where heads are idle, instead of after.
        wide: Whether the rule takes the `width` of the local window.
        opposite: Label of such a head that pushes the right next token down.
        forced: Label of a head that the architecture alone makes this kind.
    """

    name: str
    rule: Rule | None
    both_ways: Rule | None
    threshold: float
    look: str
    look_both_ways: str | None = None
    null: Literal["shuffled", "drawn"] = "drawn"
    idle: bool = False
    wide: bool = False
    opposite: str | None = None
    forced: str | None = None

    @property
    def label(self) -> str:
        """The label in words: `previous token`."""
        return self.name.replace("_", " ")

    @property
    def scored_labels(self) -> list[str]:
        """The labels that a score of this kind gives."""
        return [self.label] if self.opposite is None else [self.label, self.opposite]

    @property
    def labels(self) -> list[str]:
        """All labels of this kind, including the one by architecture."""
        return self.scored_labels + ([] if self.forced is None else [self.forced])

    def __call__(
        self, tokens: Tokens, special: Collection[int] = (), *, width: int = 8, causal: bool = True
    ) -> Keys:
        """The positions where each query should look, for a local window of `width` tokens."""
        rule = self.rule if causal else self.both_ways
        assert rule is not None, f"{self.name} is not defined here"
        return rule(tokens, special, **({"width": width} if self.wide else {}))

    def looks(self, thresholds: Mapping[str, Any], *, causal: bool = True) -> str:
        """Behaviour of such a head in a few words.

        Example:
            >>> KINDS["local_window"].looks({"window_width": 8})
            'looks at the last 8 tokens'
            >>> KINDS["local_window"].looks({"window_width": 8}, causal=False)
            'looks at 4 tokens on each side'
        """
        words = self.look if causal else self.look_both_ways or self.look
        width = thresholds["window_width"]
        return words.format(width=width, half=width // 2)


_BUILT_IN = (
    Kind(
        "induction",
        rules.induction,
        None,  # A bidirectional model sees the next token.
        threshold=0.4,  # The usual value for stripes (ARENA 1.2); used for the next four too.
        look="looks right after an earlier copy",
        null="shuffled",
        opposite=ANTI_INDUCTION,
    ),
    Kind(
        "duplicate_token",
        rules.duplicate_token,
        rules.any_copy,
        threshold=0.4,
        look="looks at earlier copies of the token",
        look_both_ways="looks at other copies of the token",
        null="shuffled",
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
        wide=True,
        forced=FORCED_WINDOW,
    ),
    # epsilon = 0.3 of Gu et al. 2024 (arXiv 2410.10781).
    Kind(
        "sink", rules.sink, rules.sink, 0.3, "attends to the first token or another sink", idle=True
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _BUILT_IN}
"""Every kind by name, the most specific first."""

LABELS = {kind.name: kind.label for kind in _BUILT_IN if kind.rule is not None}
"""The kinds of causal models and their labels, the most specific first."""


def kinds_of(causal: bool) -> dict[str, Kind]:
    """The kinds defined in a causal or in a bidirectional model, by name."""
    return {
        name: kind
        for name, kind in KINDS.items()
        if (kind.rule if causal else kind.both_ways) is not None
    }


def kinds_in(columns: Collection[str]) -> dict[str, Kind]:
    """The kinds defined for the model of a table, by its columns.

    Example:
        >>> list(kinds_in(["next_token"]))[:3]
        ['duplicate_token', 'previous_token', 'next_token']
    """
    return kinds_of(not any(kind.rule is None and kind.name in columns for kind in KINDS.values()))


def kind_of(text: str) -> Kind | None:
    """The kind with a name or a label; None for a label that no kind has, such as `mixed`.

    Example:
        >>> kind_of("previous token").name, kind_of("anti-induction").name, kind_of("mixed")
        ('previous_token', 'induction', None)
    """
    names = (kind for kind in KINDS.values() if text == kind.name or text in kind.labels)
    return next(names, None)
