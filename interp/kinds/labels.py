"""From scores to labels, with margins.

Even attention lands on targets too, and on a short prompt often. So a threshold applies to the
*excess* over even attention,

    excess = (score - chance) / (1 - chance),

which is 0 for an even head, 1 for a perfect one, and never above the score itself.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.heads import Head
from interp.kinds.builtin import FORCED_WINDOW, KINDS, LABELS
from interp.kinds.kind import Kind
from interp.kinds.scores import STATISTICS, LayerScores, Thresholds
from interp.kinds.targets import NONE, Tokens, at_keys, earlier_copies, first_token, ordinary

MIXED = "mixed"
NOT_ENOUGH = "not enough tokens"

FIRST_ONLY = "only the first token and special tokens; rows are too short for later sinks"
"""Which sinks can be found where no later token has enough queries after it."""

EMPTY: Mapping[str, Any] = MappingProxyType({})

NOT_FINITE = "not finite"
"""Label of heads with NaN or infinity in their attention."""

CROSS = "cross-attention"
"""Label of heads that attend to another text, where no kind is defined."""

NEAR, NEAR_IN_BFLOAT16 = 0.01, 0.02
"""How far a score may be from its threshold or null to count as borderline.

Of 283 scores of the default model, bfloat16 moves one in twenty by .009 or more, and none by more
than .019.
"""


@dataclass(frozen=True)
class HeadLabel:
    """Label of one head, with its evidence.

    Attributes:
        head: The head.
        label: The most specific of `labels`; `mixed`, or `not enough tokens` to measure a kind.
        labels: All labels of the head.
        scores: Mean attention mass by kind, in [0, 1], of the kinds that could be measured.
        chance: Scores of attention spread evenly.
        not_measured: Reason, by kind, why a score is missing, or which sinks it leaves out.
        entropy: Mean entropy of a query's attention, in nats.
        mean_distance: Mean distance from query to key, in tokens.
        sink_position: Position of a sink head's strongest sink, from the first token; None for
            others.
        sinks: Share of each of its sinks, by position from the first token: the mean attention to
            it of the queries that can use it, in [0, 1]. Of several rows, the positions that are
            sinks in at least half of them, and the strongest.
        sink_at: Token and position of the sink, such as `[SEP] at 7`, where texts are known.
        window: Number of keys that the layer sees in one direction, the query included, if limited.
        margin: Distance of the excess of `label`'s kind above its threshold, or of the score above
            its null if that is less; for `mixed` that of the nearest kind, below 0. None for a
            label without a score.
        borderline: Kinds whose score is so near to the threshold or null that it may be on either
            side: within .01 (of a bfloat16 model .02), or within its interval, if there is one.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> patterns = interp.attention_patterns(toy, [[0, *range(5, 15), *range(5, 15)]])
        >>> label = interp.classify_heads(patterns)[13]
        >>> label.head, label.label
        (L1H5, 'induction')
    """

    head: Head
    label: str
    labels: tuple[str, ...]
    scores: Mapping[str, float]
    chance: Mapping[str, float]
    not_measured: Mapping[str, str] = field(default_factory=dict)
    entropy: float | None = None
    mean_distance: float | None = None
    sink_position: int | None = None
    sinks: Mapping[int, float] = field(default_factory=dict)
    sink_at: str | None = None
    window: int | None = None
    margin: float | None = None
    borderline: tuple[str, ...] = ()

    def __repr__(self) -> str:
        also = f" (also {', '.join(self.labels[1:])})" if self.labels[1:] else ""
        best = sorted(self.scores.items(), key=lambda item: -item[1])[:3]
        scores = ", ".join(f"{kind} {score:.2f}" for kind, score in best) or "no scores"
        near = f"; borderline: {', '.join(self.borderline)}" if self.borderline else ""
        return f"HeadLabel({self.head} {self.label}{also}: {scores}{near})"


def judge_layer(
    layer: int,
    scores: LayerScores,
    tokens: Tokens,
    thresholds: Thresholds,
    *,
    kinds: Mapping[str, Kind] = KINDS,
    special: Collection[int] = (),
    causal: bool = True,
    window: int | None = None,
    counted: Bool[Tensor, "batch pos"] | None = None,
    apart: Bool[Tensor, "batch pos"] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
    absent: Mapping[str, str] = EMPTY,
    alibi_slopes: Sequence[float] | None = None,
    seen: Int[Tensor, " query"] | None = None,
    nulls: Mapping[str, Float[Tensor, " head"]] | None = None,
    intervals: Mapping[str, Float[Tensor, "end=2 head"]] | None = None,
    near: float = NEAR,
    induction_effect: Float[Tensor, "end=2 head"] | None = None,
    largest_effect: float = 0.0,
) -> list[HeadLabel]:
    """Label the heads of one layer: one label for each kind with enough excess that beats its null.

    Args:
        layer: Number of the layer.
        scores: Scores of the layer, without those of too few queries.
        tokens: Token ids that were run; -1 is padding.
        thresholds: Thresholds of the labels.
        kinds: The kinds that were asked for, by name, the most specific first.
        special: Ids of special tokens.
        causal: Whether no query looks ahead.
        window: Number of keys back that the layer sees. If that is less than the prompt, every head
            of the layer is local by architecture.
        counted: Positions that count; all if left out.
        apart: Positions of a chat template (see `interp.kinds.scores.ask`).
        texts: Text of each of a row's tokens, without padding, to name the sinks.
        absent: Reason, by kind, why it could not be asked for.
        alibi_slopes: Slope of each head (ALiBi); a head that is local by its slope alone is
            local by architecture.
        seen: Number of keys visible to each query that the local window counts; only for slopes.
        nulls: Nulls that the scores must exceed, by kind.
        intervals: Intervals of the scores, by kind; NaN where there is none.
        near: How far a borderline score may be from its threshold or null.
        induction_effect: Interval of the effect on the right next token's logit; a head with
            the induction label is `anti-induction` (McDougall et al. 2023, arXiv 2310.04625)
            if all of the interval is as far below 0 as the threshold says.
        largest_effect: Largest absolute effect of any head of the model.
    """
    known = {"special": special, "window": window, "causal": causal}
    known |= {"counted": counted, "apart": apart, "kinds": kinds, "absent": absent}
    missing = not_measured(tokens, scores.tallies, thresholds, **known)
    if (sink := scores.tallies.get("sink")) and int(sink.queries.max()) <= thresholds.sink_queries:
        missing["sink"] = FIRST_ONLY
    null_of = {kind: null.tolist() for kind, null in (nulls or {}).items()}
    ends_of = {kind: ends.T.tolist() for kind, ends in (intervals or {}).items()}
    kinds = {name: kind for name, kind in kinds.items() if name in scores.tallies}
    means = {name: tally.mean.tolist() for name, tally in scores.tallies.items()}
    chances = {kind: scores.tallies[kind].uniform_mean.tolist() for kind in kinds}
    least_effect = thresholds.anti_induction * largest_effect

    window_forced = window is not None and window < tokens.shape[1]

    verdicts = []
    for head in range(scores.sink_position.shape[1]):
        score = {kind: means[kind][head] for kind in kinds}
        chance = {kind: chances[kind][head] for kind in kinds}
        margins, earned, borderline = {}, [], []
        for kind, spare in to_spare(score, chance, thresholds, kinds).items():
            above_null = score[kind] - null_of[kind][head] if kind in null_of else math.inf
            margins[kind] = min(spare, above_null)
            if spare >= 0 and above_null > 0:
                earned.append(kind)
            ends = ends_of[kind][head] if kind in ends_of else [math.nan] * 2
            # A NaN is never less or more, so that the first of two stays.
            low, high = min(score[kind] - near, ends[0]), max(score[kind] + near, ends[1])
            least = at_threshold(thresholds.of(kinds[kind]), chance[kind])
            if low < max(least, score[kind] - above_null) <= high:
                borderline.append(kind)
        down = induction_effect is not None and float(induction_effect[1, head]) < -least_effect
        labels = [(kinds[kind].opposite if down else None) or kinds[kind].label for kind in earned]
        if window_forced:
            labels.insert(sum(not kinds[kind].idle for kind in earned), FORCED_WINDOW)
        place, sinks = None, {}
        if "sink" in earned:
            counted = scores.tallies["sink"].queries > 0
            place = int(scores.sink_position[counted, head].mode().values)
            sinks = _sinks(scores, head, place)
        margin = margins[earned[0]] if earned else max(margins.values(), default=None)
        labels = labels or [MIXED if kinds else NOT_ENOUGH]
        verdicts.append(
            HeadLabel(
                head=Head(layer, head),
                label=labels[0],
                labels=tuple(labels),
                scores=score,
                chance=chance,
                not_measured=missing,
                **{name: means[name][head] for name in STATISTICS if name in means},
                sink_position=place,
                sinks=sinks,
                window=window,
                margin=None if labels[0] == FORCED_WINDOW else margin,
                borderline=tuple(borderline),
            )
        )
    if alibi_slopes is not None and seen is not None:
        pairs = zip(verdicts, alibi_slopes, strict=True)
        verdicts = [_with_slope(verdict, slope, seen, thresholds) for verdict, slope in pairs]
    if texts is not None:
        verdicts = [_with_sink_named(verdict, tokens, texts, special) for verdict in verdicts]
    return verdicts


def _sinks(scores: LayerScores, head: int, strongest: int) -> dict[int, float]:
    """The mean share of each of a head's sinks, over the rows in which it is one."""
    if scores.sinks is None:
        return {}
    shares = scores.sinks.coalesce()
    of_head = shares.indices()[1] == head
    places, which = shares.indices()[2, of_head].unique(return_inverse=True)
    rows = which.bincount(minlength=len(places))
    means = torch.zeros(len(places)).index_add_(0, which, shares.values()[of_head]) / rows
    least = int((scores.tallies["sink"].queries > 0).sum()) / 2
    listed = zip(places.tolist(), means.tolist(), rows.tolist())
    return {at: mean for at, mean, number in listed if number >= least or at == strongest}


def excess(score: float, chance: float) -> float:
    """`(score - chance) / (1 - chance)`: 0 for even attention, 1 when all is on target.

    0 where chance is 1, because every visible key is a target.

    Example:
        >>> excess(0.75, 0.5)
        0.5
    """
    return (score - chance) / (1 - chance) if chance < 1 - 1e-6 else 0.0


def at_threshold(threshold: float, chance: float) -> float:
    """The score whose `excess` is the threshold; infinite where chance is 1."""
    return chance + threshold * (1 - chance) if chance < 1 - 1e-6 else math.inf


def to_spare(
    scores: Mapping[str, float],
    chance: Mapping[str, float],
    thresholds: Thresholds,
    kinds: Mapping[str, Kind] = KINDS,
) -> dict[str, float]:
    """Distance of the excess above its threshold, by kind, the most specific first."""
    return {
        name: excess(scores[name], chance[name]) - thresholds.of(kind)
        for name, kind in kinds.items()
        if name in scores
    }


def not_measured(
    tokens: Tokens,
    measured: Collection[str],
    thresholds: Thresholds,
    *,
    kinds: Mapping[str, Kind] = KINDS,
    special: Collection[int],
    window: int | None,
    causal: bool,
    counted: Bool[Tensor, "batch pos"] | None = None,
    apart: Bool[Tensor, "batch pos"] | None = None,
    absent: Mapping[str, str] = EMPTY,
) -> dict[str, str]:
    """The reason in words for each kind that is not in `measured`."""
    fit = plain = ordinary(tokens, special)
    if counted is not None:
        fit = plain & counted
    copies = earlier_copies(tokens)
    if apart is not None:
        copies = torch.where(at_keys(apart, copies), NONE, copies)
    repeated = ((copies != NONE).any(-1) & fit).any()
    aims: dict[str, Any] = {"special": special, "width": thresholds.window_width, "causal": causal}
    reasons = {}
    for name, kind in kinds.items():
        if name in measured:
            continue
        if not kind.defined(causal):
            reasons |= {} if causal else {name: "the model looks both ways"}
            continue
        if name not in KINDS:
            few = f"fewer than {thresholds.min_queries} queries have a target"
            reasons[name] = absent.get(name, few)
            continue
        keys = kind(tokens, **aims)
        if not plain.any() and (tokens != NONE).sum() > len(tokens):
            reasons[name] = "all tokens after the first are special or unknown"
        elif window is not None and ((keys != NONE).any(-1) & fit).sum() >= thresholds.min_queries:
            reasons[name] = f"the targets lie beyond the layer's window of {window} tokens"
        elif kind.null == "shuffled" and not repeated:
            where = "" if fit.equal(plain) else " at the positions that count"
            reasons[name] = f"no token is repeated{where}"
        else:
            reasons[name] = NOT_ENOUGH
    return reasons


def share_within(
    slope: float, width: int, seen: Int[Tensor, "*queries"]
) -> Float[Tensor, "*queries"]:
    """Share of attention that an ALiBi slope alone puts on the last `width` positions, in [0, 1].

    ALiBi (Press et al. 2021, arXiv 2108.12409) subtracts `slope * distance` from a score, with a
    slope for each head. On equal tokens attention is then geometric: a key one token farther back
    gets `exp(-slope)` times as much.

    `seen` is the number of keys that each query sees; `width` includes the query.

    Example:
        >>> from torch import tensor
        >>> share_within(math.log(2), 1, tensor([1, 2]))
        tensor([1.0000, 0.6667])
    """
    falls = math.exp(-slope)
    return (1 - falls ** seen.clamp(max=width).float()) / (1 - falls ** seen.float())


def _with_slope(
    verdict: HeadLabel, slope: float, seen: Int[Tensor, " query"], thresholds: Thresholds
) -> HeadLabel:
    """The verdict, local by architecture if the slope alone earns the label."""
    local = LABELS["local_window"]
    if local not in verdict.labels:
        return verdict
    alone = float(share_within(slope, thresholds.window_width, seen).mean())
    if excess(alone, verdict.chance["local_window"]) < thresholds.local_window:
        return verdict
    named = (FORCED_WINDOW if label == local else label for label in verdict.labels)
    labels = tuple(dict.fromkeys(named))  # The window may force it too.
    margin = None if verdict.label == local else verdict.margin
    return replace(verdict, label=labels[0], labels=labels, margin=margin)


def _with_sink_named(
    verdict: HeadLabel, tokens: Tokens, texts: Sequence[Sequence[str]], special: Collection[int]
) -> HeadLabel:
    """The verdict with `sink_at`: the special token that is the sink, or an ordinary one."""
    place = verdict.sink_position
    if place is None:
        return verdict
    starts = first_token(tokens).tolist()
    ids = [
        int(row[at + place]) if at + place < len(row) else NONE for row, at in zip(tokens, starts)
    ]
    there = Counter(texts[i][place] for i, token in enumerate(ids) if token in special)
    word = there.most_common(1)[0][0] if there else "an ordinary token"
    return replace(verdict, sink_at=f"{word} at {place}")
