"""`Kind`, the definition of a kind of head, and `kind`, which makes one from a function.

`interp.kinds.builtin` declares the built-in kinds. Whatever lists kinds (labels, columns, probes,
figures, pages, planted heads) takes them as values, so that your own are treated as those are.
"""

import hashlib
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from interp.errors import InputError, checked, quoted, told
from interp.kinds.targets import NONE, Keys, Tokens, positions

Rule = Callable[..., Any]
"""`rule(tokens)`, and by name what else it needs: `texts`, `special`, `width` (see `kind`)."""

Texts = Sequence[Sequence[str]]
"""Text of each token, a list a row, as long as the row of `tokens`; "" at padding."""


@dataclass(frozen=True)
class Kind:
    """A kind of head: everything that the toolkit knows about it.

    Attributes:
        name: Name of its column, such as `previous_token`.
        rule: Its targets in a causal model; None where the kind is not defined there.
        both_ways: Its targets in a bidirectional model; None where it is not defined there.
        threshold: Least excess over even attention for the label, in (0, 1].
        look: What a head of this kind does, in a few words; `{width}` and `{half}` are the width of
            the local window and half of it.
        look_both_ways: `look` in a bidirectional model, where it differs.
        null: Source of the null: `shuffled` scores the same targets on rows in another order, for
            rules that match tokens; `drawn` scores as many random keys, for rules of position; a
            function is a second rule, whose keys are scored.
        on: Where a scan scores it: `repeated` (random tokens, from the first repeat on), `random`
            (before it, where heads are idle), `text` (natural text), or a tuple of prompts, each
            a text or a row of token ids.
        opposite: Label of a head of this kind that pushes the right next token down.
        forced: Label of a head that the architecture alone makes this kind.
        source: Paper that describes it.

    Example:
        >>> import interp
        >>> from interp.kinds.targets import previous_token
        >>> before = interp.Kind("before", lambda tokens, texts: previous_token(tokens), on="text")
        >>> before.threshold  # Excess over even attention for the label.
        0.4
    """

    name: str
    rule: Rule | None
    both_ways: Rule | None = None
    threshold: float = 0.4
    look: str = ""
    look_both_ways: str | None = None
    null: str | Rule = "drawn"
    on: str | tuple[Any, ...] = "repeated"
    opposite: str | None = None
    forced: str | None = None
    source: str = ""

    def __post_init__(self) -> None:
        taken = self.name in _TAKEN or _COLUMN.fullmatch(self.name)
        if taken or not re.fullmatch("[a-z][a-z0-9_]*", self.name):
            rule_is = "letters a to z, digits and _, and no column of tables"
            raise InputError(f"a kind's name must be {rule_is}, got {quoted(self.name)}")
        if isinstance(self.on, str) and self.on not in ("repeated", "random", "text"):
            raise InputError(
                f"on must be repeated, random, text or a list of prompts, got {quoted(self.on)}"
            )
        if not callable(self.null) and self.null not in ("shuffled", "drawn"):
            raise InputError(f"null must be shuffled, drawn or a rule, got {quoted(self.null)}")
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold must be in (0, 1], got {self.threshold!r}")
        for rule in (self.rule, self.both_ways, self.null):
            if callable(rule) and (other := [*signature(rule).parameters][1:]) and {*other} - _MORE:
                raise InputError(
                    f"rule must take tokens and, by name, some of {', '.join(sorted(_MORE))},"
                    f" got {', '.join(other)}"
                )

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

    @property
    def idle(self) -> bool:
        """Whether it is what a head does that has nothing to do."""
        return self.on == "random"

    @property
    def part(self) -> str:
        """The part of a scan's probes on which it is scored."""
        return self.on if isinstance(self.on, str) else f"prompts of {self.name}"

    @property
    def null_part(self) -> str:
        """The part that is its null."""
        if self.part in ("repeated", "random"):
            return {"repeated": "shuffled", "random": "elsewhere"}[self.part]
        return f"{self.part}, {'shuffled' if self.null == 'shuffled' else 'elsewhere'}"

    def takes(self, name: str) -> bool:
        """Whether one of its rules needs `texts`, `special` or `width`."""
        rules = (self.rule, self.both_ways, self.null)
        return any(callable(rule) and name in signature(rule).parameters for rule in rules)

    def defined(self, causal: bool) -> bool:
        """Whether a causal, or a bidirectional model can have it; True if its rule is lost."""
        return (self.rule if causal else self.both_ways) is not None or not self.has_rule

    @property
    def has_rule(self) -> bool:
        """Whether its targets are known: a table from a file may name kinds without them."""
        return self.rule is not None or self.both_ways is not None

    def __call__(
        self,
        tokens: Tokens,
        texts: Texts | None = None,
        *,
        special: Collection[int] = (),
        width: int = 8,
        causal: bool = True,
    ) -> Keys:
        """The positions where each query should look.

        Args:
            tokens: Token ids; -1 is padding.
            texts: Text of each token, for rules that read it.
            special: Ids of special tokens.
            width: Width of the local window.
            causal: Whether no query looks ahead.

        Returns:
            Positions in the query's row, filled up with -1.

        Raises:
            InputError: If the rule gives keys out of range or, in a causal model, after their
                query, or if they depend on the other rows of the batch.
        """
        known = {"special": special, "width": width, "causal": causal}
        return self._keys(self.rule if causal else self.both_ways, tokens, texts, **known)

    def elsewhere(self, tokens: Tokens, texts: Texts | None = None, **known: Any) -> Keys:
        """The keys of the null, if `null` is a rule; the arguments are those of a call."""
        return self._keys(self.null, tokens, texts, **known)

    def _keys(
        self, rule: Any, tokens: Tokens, texts: Texts | None, *, causal: bool, **more: Any
    ) -> Keys:
        if rule is None:
            raise InputError(
                f"{self.name} must have a rule, which files do not hold: give your kind as kinds="
            )
        names = [*signature(rule).parameters][1:]
        if "texts" in names and (texts is None or {*map(len, texts)} != {tokens.shape[1]}):
            sizes = "none" if texts is None else f"rows of {[*map(len, texts)]}"
            raise InputError(
                f"texts must have a text for each of {tokens.shape[1]} positions of a row for"
                f" {self.name}, got {sizes}"
            )
        more = {name: value for name, value in more.items() if name in names}

        def given(rows: slice) -> Tensor:
            read = {"texts": texts[rows]} if texts is not None and "texts" in names else {}
            try:
                keys = rule(tokens[rows].clone(), **more, **read)
                return torch.as_tensor([] if keys is None else keys)
            except InputError:
                raise
            except Exception as error:
                place = _place_in(rule, error)
                raise InputError(
                    f"{self.name} must have a rule that gives keys, got {told(error)}{place}"
                ) from error

        if str(getattr(rule, "__module__", "")).startswith("interp.kinds."):
            return rule(tokens, **more, **({"texts": texts} if "texts" in names else {}))
        keys = given(slice(None))
        keys = self._checked(keys, tokens, causal)
        for row in range(len(tokens) * (len(tokens) > 1)):
            one = slice(row, row + 1)
            alone = self._checked(given(one), tokens[one], causal)
            if (query := _first_other(alone[0], keys[row])) is not None:
                raise InputError(
                    f"{self.name} must give a row the same keys with and without other rows, got"
                    f" others for query {query} of row {row} alone"
                )
        return keys

    def _checked(self, given: Tensor, tokens: Tokens, causal: bool) -> Keys:
        """What a rule gave as keys `[batch, query, m]`, each of them once."""
        keys = given[..., None] if given.ndim == 2 else given
        if keys.shape[:2] != tokens.shape or keys.ndim != 3 or keys.dtype not in _WHOLE:
            shape = " x ".join(map(str, keys.shape))
            raise InputError(
                f"{self.name} must give whole numbers [batch, query] or [batch, query, m], got"
                f" {shape} of {keys.dtype} for {len(tokens)} x {tokens.shape[1]} tokens"
            )
        keys = keys.to(tokens.device).long()
        query, length = positions(tokens)[..., None], tokens.shape[1]
        wrong = (keys < NONE) | (keys >= length) | (causal & (keys > query))
        real = tokens != NONE
        rows = torch.arange(len(keys), device=keys.device)[:, None, None]
        wrong |= real[..., None] & (keys != NONE) & ~real[rows, keys.clamp(0, length - 1)]
        if wrong.any():
            row, at, column = wrong.nonzero()[0].tolist()
            rule = "at or before the query" if causal else "in the row"
            raise InputError(
                f"{self.name} must give keys {rule}, got {int(keys[row, at, column])} for query"
                f" {at} of row {row}"
            )
        return _once(torch.where(real[..., None], keys, NONE))

    def looks(self, thresholds: Mapping[str, Any], *, causal: bool = True) -> str:
        """What a head of this kind does, in a few words."""
        words = self.look if causal else self.look_both_ways or self.look
        width = thresholds["window_width"]
        return words.replace("{width}", str(width)).replace("{half}", str(width // 2))

    def record(self) -> dict[str, Any]:
        """What a table's record says of it: enough to list and draw it without its rule."""
        null = self.null if isinstance(self.null, str) else "its own rule"
        about = {"look": self.look, "threshold": self.threshold, "on": self.part, "null": null}
        return about | ({"digest": self.digest} if self.digest else {})

    @property
    def digest(self) -> str:
        """A digest of the rule's targets on a fixed text, by which two rules are compared.

        Empty without a rule, or if the rule fails on that text.
        """
        texts = re.findall(r"\n|\d| ?\w{1,4}| ?[^\w\s]", _TEXT)
        ids = {text: number for number, text in enumerate(texts)}
        tokens = torch.tensor([[ids[text] for text in texts]])
        with suppress(InputError):
            keys = self(tokens, [texts], causal=self.rule is not None)[0].tolist()
            targets = repr([sorted({*row} - {NONE}) for row in keys])
            return hashlib.sha256(targets.encode()).hexdigest()[:16]
        return ""


_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)

_MORE = {"texts", "special", "width"}

_TAKEN = {
    *("layer", "head", "name", "label", "labels", "entropy", "mean_distance", "sinks", "window"),
    *("sink_position", "sink_at", "sink_column", "sink_queries", "anti_induction", "margin"),
    *("borderline", "not_measured", "ov_copying", "min_queries", "window_width", "score", "mixed"),
    *("explained", "outside_sinks", "unexplained", "preferred"),
}
"""Names that tables and thresholds use for something else."""

_COLUMN = re.compile(
    "(text|explained|as|induction_at|induction_logit)_.*|.*_(chance|low|high|spread|null|null_99|threshold)"
)
"""Names that tables make from those of kinds."""

_TEXT = """When Mary and John went to the store, John said: "Mary, is it 1957 or 1958?"
- (one) unbelievable rose; a Rose; the roses [two]
When Mary and Anna went home, Anna said that they were unbelievable. The store is the store.
"""
"""A text with something for most rules to find."""


@checked
def kind(
    name: Any,
    *,
    threshold: float = 0.4,
    look: str | None = None,
    on: Any = "text",
    null: Any = "drawn",
    source: str = "",
) -> Callable[[Rule], Kind]:
    """Make a kind of head from a function that says where a query should look.

    The function takes `tokens [batch, pos]` (-1 is padding) and, by name, what else it needs:
    `texts` (the text of each token, a list a row), `special` (ids of special tokens) or `width`
    (of the local window). It returns the positions `[batch, query, m]` of each query's targets,
    or `[batch, query]`, filled up with -1: never after the query in a causal model.

    Args:
        name: The label in words, such as `last punctuation`; its column is `last_punctuation`.
        threshold: Least excess over even attention for the label, in (0, 1].
        look: What a head of this kind does, in a few words; by default `looks at its targets`.
        on: Where a scan scores it, as for `Kind`: `text` by default.
        null: Its null, as for `Kind`: as many keys at random by default.
        source: Paper that describes it.

    Returns:
        A decorator that turns the function into a `Kind`.

    Example:
        >>> from interp.kinds.targets import latest
        >>> @kind("last comma", threshold=0.3)
        ... def last_comma(tokens, texts):
        ...     return latest([[text.strip() == "," for text in row] for row in texts])
        >>> last_comma(torch.tensor([[5, 6, 7, 8]]), [["a", ",", " b", " c"]])[0, :, 0].tolist()
        [-1, -1, 1, 1]
    """
    if not isinstance(name, str):
        raise InputError(f'name must be given, as in @interp.kind("last comma"), got {name!r}')
    known: dict[str, Any] = {"threshold": threshold, "null": null, "source": source}
    known["on"] = on if isinstance(on, str) else tuple(on)
    column = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")
    look = look or "looks at its targets"
    return lambda rule: Kind(column, rule, rule, look=look, **known)


def _place_in(rule: Rule, error: Exception) -> str:
    """The line of the rule's file where it failed."""
    path = getattr(getattr(rule, "__code__", None), "co_filename", None)
    lines = [
        one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == path
    ]
    return f" in line {lines[-1]} of {path}" if lines else ""


def _first_other(ours: Int[Tensor, "query _"], others: Int[Tensor, "query _"]) -> int | None:
    """The first query with different keys; their order does not matter."""
    size = max(ours.shape[1], others.shape[1])
    both = (pad(keys, (0, size - keys.shape[1]), value=NONE).sort(-1) for keys in (ours, others))
    one, other = (ordered.values for ordered in both)
    return next(iter((one != other).any(-1).nonzero()[:, 0].tolist()), None)


def _once(keys: Keys) -> Keys:
    """Each query's keys without repeats, which would count an attention twice."""
    if keys.shape[-1] < 2:
        return keys
    ordered = keys.sort(-1, descending=True).values
    again = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != NONE)
    if not again.any():
        return keys
    return torch.cat([ordered[..., :1], ordered[..., 1:].masked_fill(again, NONE)], -1)
