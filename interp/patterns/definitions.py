"""Published scores of heads, each as its source defines it.

The same head has an "induction score" of .84 with one tool and .42 with another: a stripe's mean,
a share of all attention, or a mean over pairs. `DEFINITIONS` gives each formula, its source, and
the ceiling that a perfect head reaches on the same tokens; compare numbers only by their ceilings.

All scores take one layer's attention and the token ids, and give one number per head:

    pattern [batch, head, query, key], tokens [batch, pos]  ->  [head]

Several were made for prompts of one block and its copies, `[x, x]` or `[BOS, x, x]`. The
period is read off the tokens, and rows may differ in it.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from interp.errors import InputError, quoted
from interp.kinds.builtin import KINDS
from interp.kinds.looks import ideal
from interp.kinds.mass import FromPattern, attention_mass, visible_keys
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE, induction
from interp.patterns.read import take
from interp.patterns.tensor import check_pattern

EPSILON = 0.3
"""Mean attention to the first token above which Gu et al. 2024 speak of a sink."""

ADDED = 1e-6
"""What Song et al. 2024 add to each key before they renormalise a row."""

_Pattern = Float[Tensor, "batch head query key"]
_Tokens = Int[Tensor, "batch pos"]
_Pairs = Bool[Tensor, "batch query key"]
_PerHead = Float[Tensor, " head"]


@dataclass(frozen=True)
class Definition:
    """One score: what it is, where it comes from, and how to compute it.

    Attributes:
        name: In `DEFINITIONS`.
        kind: The kind of head that it is meant to show; `distance` and `entropy` show none.
        formula: In one line; A is the pattern, q a query, k a key, n the tokens in a row.
        range: The least and the greatest value there can be, on any prompt.
        source: Who defined it, and when.
        score: One number per head, from a pattern and its tokens, none of which is padding.
        perfect: From the tokens, the pattern of a head that attends evenly to what the score looks
            for, else to the first token. For `distance` and `entropy`, that of the highest score.
    """

    name: str
    kind: str
    formula: str
    range: tuple[float, float]
    source: str
    score: Callable[[_Pattern, _Tokens], _PerHead]
    perfect: Callable[[_Tokens], Float[Tensor, "batch 1 query key"]]

    def ceiling(self, tokens: Int[Tensor, "batch pos"]) -> float:
        """What a perfect head scores on these tokens.

        Example:
            >>> tokens = torch.tensor([[0, 5, 6, 7, 8, 5, 6, 7, 8]])
            >>> round(DEFINITIONS["mul_induction"].ceiling(tokens), 3)
            0.444
        """
        return float(self.score(self.perfect(tokens), tokens))


def scores_by_definition(
    pattern: Any,
    tokens: Any = None,
    names: Collection[str] | None = None,
    *,
    learned_sinks: bool | None = None,
) -> dict[str, Float[Tensor, "*layer head"]]:
    """Score heads by several definitions.

    Args:
        pattern: Causal attention after the softmax, from any source that `interp.read_patterns`
            accepts.
        tokens: The ids that were run, without padding; not needed where the source has them.
        names: Of `DEFINITIONS`. If left out, all that are defined on these tokens: some need
            tokens that repeat, some a block and its copies.
        learned_sinks: Whether part of the attention may go to a learned sink that is no key
            (gpt-oss), so that rows sum to less than 1, as for `interp.classify_heads`. A is then
            what went to keys; only `mul_...` and `diagonal_without_first` divide by it.

    Returns:
        Scores `[head]` of an array of one layer, `[layer, head]` of sources with layers; NaN for
        heads that are not finite.

    Raises:
        InputError: If a named score is not defined on these tokens, or if there is padding.

    Example:
        >>> scores_by_definition(torch.eye(4)[None, None], [3, 1, 4, 1], ["sink_mean"])
        {'sink_mean': tensor([0.2500])}
    """
    check_names(names or ())
    ran = take(pattern, tokens)
    ids = ran.tokens
    if (ids == NONE).any():
        raise InputError("tokens must hold no padding, got -1")
    if not ran.causal or ran.stack == "cross" or ran.first_query:
        raise InputError("patterns must be causal, with every query, got others")
    heads = {layer.shape[1] for layer in ran.arrays}
    if len(heads) > 1:
        got = f"{sorted(heads)}: give one layer at a time"
        raise InputError(f"patterns must have one number of heads in each layer, got {got}")
    sinks = ran.learned_sinks if learned_sinks is None else learned_sinks
    found: dict[str, list[Tensor]] = {}
    for number, array in zip(ran.layers, ran.arrays, strict=True):
        layer = array.detach().float()
        finite = check_pattern(layer, ids, where=f"layer {number}", learned_sinks=sinks)
        for name in DEFINITIONS if names is None else names:
            try:
                score = DEFINITIONS[name].score(layer, ids)
                found.setdefault(name, []).append(score.where(finite, torch.nan))
            except InputError:
                if names is not None:
                    raise
    alone = getattr(pattern, "ndim", 0) in (3, 4) and len(ran.arrays) == 1
    return {name: one[0] if alone else torch.stack(one) for name, one in found.items()}


def check_names(names: Collection[str], argument: str = "names") -> None:
    """Refuse what is not in `DEFINITIONS`; `argument` is what the caller calls the names."""
    wrong = [names] if isinstance(names, str) else [one for one in names if one not in DEFINITIONS]
    if wrong:
        listed = ", ".join(DEFINITIONS)
        raise InputError(f"{argument} must be a list of {listed}, got {quoted(wrong)}")


def perfect_pattern(
    tokens: Int[Tensor, "batch pos"], kind: str
) -> Float[Tensor, "batch 1 query=pos key=pos"]:
    """Attention of a causal head of one kind: evenly on the kind's targets, else at rest.

    Example:
        >>> perfect_pattern(torch.tensor([[0, 7, 8, 7]]), "duplicate_token")[0, 0, 3]
        tensor([0., 1., 0., 0.])
    """
    return rearrange(
        [ideal(KINDS[kind], row, asdict(Thresholds()), []) for row in tokens], "b q k -> b 1 q k"
    )


def blocks(tokens: Int[Tensor, "batch pos"]) -> list[tuple[int, int]]:
    """For each row where its repeated block starts, 0 or (after a BOS) 1, and its period.

    The period is the least distance, of two tokens at least, at which all that follows is
    a repeat; at least half a copy must follow the block.

    Example:
        >>> blocks(torch.tensor([[5, 6, 7, 5, 6, 7], [0, 5, 6, 5, 6, 5]]))
        [(0, 3), (1, 2)]
    """
    found = []
    for number, row in enumerate(tokens):
        n = len(row)
        periods = (
            (start, period)
            for start in (0, 1)
            for period in range(2, 2 * (n - start) // 3 + 1)
            if torch.equal(row[start + period :], row[start : n - period])
        )
        one = next(periods, None)
        if one is None:
            rule = "be a block and its copies, with or without one token before them"
            raise InputError(f"tokens must {rule}, got row {number} without a period")
        found.append(one)
    return found


def answer(tokens: Int[Tensor, " pos"]) -> tuple[int, list[int]]:
    """The length of the answer that ends a row, and where in the row before it the needles start.

    The answer is the longest end of the row that also occurs before it; each place where it does
    is a needle.

    Example:
        >>> answer(torch.tensor([1, 7, 8, 9, 2, 3, 8, 9]))
        (2, [2])
    """
    ids, sizes = tokens.tolist(), []
    for end in range(1, len(ids)):
        backwards = zip(reversed(ids[:end]), reversed(ids[end:]))
        sizes.append(len([*takewhile(lambda pair: pair[0] == pair[1], backwards)]))
    size = max(sizes, default=0)
    if not size:
        raise InputError("tokens must end in a copy of tokens before it, got another last token")
    return size, [end - size for end, one in enumerate(sizes, 1) if one == size]


# The pairs of a query and a key that a detector looks for.


def _previous(tokens: _Tokens) -> _Pairs:
    """Where k = q - 1, the first token among the keys."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    return (place == place[:, None] - 1).expand(len(tokens), -1, -1)


def _copies(tokens: _Tokens) -> _Pairs:
    """Where k < q, where the token is the query's own."""
    return (tokens[:, :, None] == tokens[:, None]).tril(-1)


def _followers(tokens: _Tokens) -> _Pairs:
    """Where k <= q, where the token before is the query's own."""
    return pad(_copies(tokens)[..., :-1], (1, 0))


def _needles(tokens: _Tokens) -> _Pairs:
    """Where the token after q is in the answer, and k in a needle holds the same token."""
    there = (tokens[:, :, None] == tokens[:, None])[:, 1:]
    found = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool, device=tokens.device)
    for row, same, (size, starts) in zip(found, there, map(answer, tokens), strict=True):
        keys = [start + n for start in starts for n in range(size)]
        row[-size - 1 : -1, keys] = same[-size:, keys]
    return found


def _visible(tokens: _Tokens) -> _Pairs:
    """Where k <= q."""
    return (tokens[:, :, None] != NONE).expand(-1, -1, tokens.shape[1]).tril()


def _even(pairs: Callable[[_Tokens], _Pairs], tokens: _Tokens) -> Float[Tensor, "batch 1 q k"]:
    """Each query's attention spread evenly over its keys; on the first where it has none."""
    chosen = pairs(tokens)
    first = torch.zeros_like(chosen)
    first[..., 0] = True
    kept = torch.where(chosen.any(-1, keepdim=True), chosen, first).float()
    return rearrange(kept / kept.sum(-1, keepdim=True), "b q k -> b 1 q k")


DEFINITIONS: dict[str, Definition] = {}
"""Every definition by name."""


def _defined(
    name: str,
    formula: str,
    source: str,
    *,
    kind: str = "induction",
    range: tuple[float, float] = (0.0, 1.0),
    perfect: Callable[[_Tokens], Float[Tensor, "batch 1 query key"]] | None = None,
) -> Callable[[Callable[..., _PerHead]], Callable[..., _PerHead]]:
    """Add the decorated score to `DEFINITIONS`; its perfect head is that of `kind`."""

    def add(score: Callable[..., _PerHead]) -> Callable[..., _PerHead]:
        ideal_head = perfect or partial(perfect_pattern, kind=kind)
        DEFINITIONS[name] = Definition(name, kind, formula, range, source, score, ideal_head)
        return score

    return add


def _require_a_repeat(there: Bool[Tensor, "..."]) -> None:
    if not there.any():
        raise InputError("tokens must repeat, got none with an earlier copy to look at")


def _stripe_and_chance(pattern: _Pattern, tokens: _Tokens) -> tuple[_PerHead, Float[Tensor, ""]]:
    """Mean attention on induction targets, and what even attention would have there."""
    keys = induction(tokens)
    counted = (keys != NONE).any(-1)
    _require_a_repeat(counted)
    mass = reduce(attention_mass(pattern, keys), "b h q -> h", "sum")
    even = (keys != NONE).sum(-1) / visible_keys(tokens)
    return mass / counted.sum(), even[counted].mean()


@_defined(
    "stripe",
    "sum of A[q,k] over the induction targets k of q, mean over q that have any",
    "here, interp.kinds.targets; the pairs are those of Olsson et al. 2022 (2209.11895)",
)
def _stripe(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    return _stripe_and_chance(pattern, tokens)[0]


@_defined(
    "excess",
    "(stripe - chance) / (1 - chance); chance is the stripe of even attention",
    "here, interp.kinds.labels.excess",
    range=(-inf, 1.0),
)
def _excess(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    stripe, chance = _stripe_and_chance(pattern, tokens)
    return (stripe - chance) / (1 - chance)


@_defined(
    "boost",
    "stripe / chance; chance is the stripe of even attention",
    "here: how many times what even attention has",
    range=(0.0, inf),
)
def _boost(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    stripe, chance = _stripe_and_chance(pattern, tokens)
    return stripe / chance


@_defined(
    "diagonal",
    "mean of A[q,k] over k = q - period + 1, k >= 0",
    "TransformerLens Main_Demo (Nanda 2022) on [x, x]; ARENA 1.2 on [BOS, x, x]",
)
def _diagonal(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    # Its first entry is no induction: the query before the first copy looks at key 0.
    means = [
        row.diagonal(offset=1 - period, dim1=-2, dim2=-1).mean(-1)
        for row, (_, period) in zip(pattern, blocks(tokens), strict=True)
    ]
    return torch.stack(means).mean(0)


@_defined(
    "diagonal_without_first",
    "mean of A[q,k] / sum_j>0 (A[q,j] + 1e-6) over k = q - period + 1, k > 0",
    "Song, Xu and Zhong 2024, code of ood-generalization-via-composition",
)
def _diagonal_without_first(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    kept = pattern[..., 1:, 1:]
    # A row that is all on the first key has nothing left, and counts as 0.
    return _diagonal(kept / (kept + ADDED).sum(-1, keepdim=True), tokens)


@_defined(
    "prefix_mean",
    "mean of A[q,k] over all pairs with token[k-1] = token[q] and k <= q",
    "Olsson et al. 2022 (arXiv 2209.11895), prefix matching, with its erratum",
    perfect=partial(_even, _followers),
)
def _prefix_mean(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    there = _followers(tokens)
    _require_a_repeat(there)
    total = reduce(pattern * rearrange(there, "b q k -> b 1 q k"), "b h q k -> h", "sum")
    return total / there.sum()


@_defined(
    "prefix_sum",
    "sum of A[q, q - r period + 1] over r >= 1, mean over q after the first copy",
    "Crosbie and Shutova 2024, code of Induction_Heads_ICL, less A[q,1] which that adds for the"
    " last q of each copy",
)
def _prefix_sum(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    means = []
    for row, (start, period) in zip(pattern, blocks(tokens), strict=True):
        n = row.shape[-1]
        # One diagonal for each copy that lies so far back, from the block's second key on.
        on_copies = [
            row.diagonal(offset=1 - back, dim1=-2, dim2=-1)[:, start + 1 :].sum(-1)
            for back in range(period, n - start, period)
        ]
        means.append(torch.stack(on_copies).sum(0) / (n - start - period))
    return torch.stack(means).mean(0)


@_defined(
    "retrieval",
    "share of the answer's tokens, token[q+1], whose A[q] is largest at one like it in a needle",
    "Wu et al. 2024 (arXiv 2404.15574), retrieval score, with a needle copied word for word",
    kind="retrieval",
    perfect=partial(_even, _needles),
)
def _retrieval(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    there = _needles(tokens)
    copied = rearrange(there, "b q k -> b 1 q k").expand_as(pattern)
    hits = copied.gather(-1, pattern.argmax(-1, keepdim=True)).squeeze(-1).sum(-1)
    return (hits / there.any(-1).sum(-1, keepdim=True)).mean(0)


def _mul(pattern: _Pattern, tokens: _Tokens, *, pairs: Callable[[_Tokens], _Pairs]) -> _PerHead:
    there = rearrange(pairs(tokens), "b q k -> b 1 q k")
    return ((pattern * there).sum((-2, -1)) / pattern.sum((-2, -1))).mean(0)


def _abs(pattern: _Pattern, tokens: _Tokens, *, pairs: Callable[[_Tokens], _Pairs]) -> _PerHead:
    there = rearrange(pairs(tokens), "b q k -> b 1 q k").float()
    return 1 - ((pattern - there).abs().sum((-2, -1)) / tokens.shape[1]).mean(0)


for _measure, _score, _formula, _least in (
    ("mul", _mul, "sum(A D) / sum(A)", 0.0),
    ("abs", _abs, "1 - sum|A - D| / n, not rounded", -inf),
):
    for _kind, _pairs, _where in (
        ("induction", _followers, "token[k-1] = token[q] and k <= q"),
        ("duplicate_token", _copies, "token[k] = token[q] and k < q"),
        ("previous_token", _previous, "k = q - 1"),
    ):
        _defined(
            f"{_measure}_{_kind}",
            f"{_formula}, mean over rows; D[q,k] = 1 where {_where}, else 0",
            f"TransformerLens 4.3 (2026), detect_head with error_measure={_measure!r}",
            kind=_kind,
            range=(_least, 1.0),
            perfect=partial(_even, _pairs),
        )(partial(_score, pairs=_pairs))


@_defined(
    "sink_mean",
    "alpha, the mean of A[q,0] over q, the first among them; mean over rows",
    "Gu et al. 2024 (arXiv 2410.10781), section 3.2",
    kind="sink",
)
def _sink_mean(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    return reduce(pattern[..., 0], "b h q -> h", "mean")


@_defined(
    "sink_rate",
    f"share of rows with alpha > {EPSILON}",
    "Gu et al. 2024 (arXiv 2410.10781), section 3.2, code of Attention-Sink",
    kind="sink",
)
def _sink_rate(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    return (reduce(pattern[..., 0], "b h q -> b h", "mean") > EPSILON).float().mean(0)


@_defined(
    "mean_distance",
    "sum over k of A[q,k] (q - k), mean over q, in tokens",
    "Vig and Belinkov 2019",
    kind="distance",
    range=(0.0, inf),
    perfect=partial(perfect_pattern, kind="sink"),
)
def _mean_distance(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    return reduce(FromPattern(pattern).means().distance, "b h q -> h", "mean")


@_defined(
    "entropy",
    "- sum over k of A[q,k] ln A[q,k], mean over q, in nats",
    "Clark et al. 2019, section 3",
    kind="entropy",
    range=(0.0, inf),
    perfect=partial(_even, _visible),
)
def _entropy(pattern: _Pattern, tokens: _Tokens) -> _PerHead:
    return reduce(FromPattern(pattern).means().entropy, "b h q -> h", "mean")
