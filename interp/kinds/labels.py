"""From attention to labels: what each head does, how much, and against which chance level.

The main path is `classify_heads`, and it is short: score every layer, then label every
head. A score is the mean `attention_mass` on the kind's targets. A label needs more than
the score: attention spread evenly over all keys also lands on targets, and on a short
prompt it does so a lot. So the threshold is put to the *excess* over even attention,

    excess = (score - chance) / (1 - chance),

which is 0 for an even head, 1 for a perfect one, and never above the score itself.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxtyping import Float, Int
from torch import Tensor

from interp.heads import Head
from interp.kinds.kind import FORCED_WINDOW, KINDS, LABELS, kinds_of
from interp.kinds.scores import LayerScores, Thresholds, as_thresholds, targets_of
from interp.kinds.targets import NONE, earlier_copies, first_token, ordinary

MIXED = "mixed"
NOT_ENOUGH = "not enough tokens"

CROSS = "cross-attention"
"""What heads are called that look at another text, of which no kind is defined."""

_TO_WINDOW = tuple(KINDS)[: tuple(KINDS).index("local_window") + 1]
"""The kinds that are no less specific than a local window."""


@dataclass(frozen=True)
class HeadLabel:
    """The verdict on one head, with its evidence.

    Attributes:
        head: Which head.
        label: The most specific of `labels`; `mixed` if none holds, `not enough tokens` if
            nothing could be measured.
        labels: All that hold.
        scores: Mean attention mass by kind, in [0, 1]; kinds that could not be measured
            are absent.
        chance: The same for attention spread evenly.
        not_measured: Why a kind is absent from `scores`.
        entropy: Mean entropy of the attention of a query, in nats.
        mean_distance: Mean distance from query to key, in tokens.
        sink_position: Where a sink head rests, counted from the first token; None for others.
        sink_at: The same with the token in words, as `[SEP] at 7`; None where texts or special
            ids are not known.
        window: How far back (or either way) the model lets this layer look, the query included;
            None if there is no limit.
        margin: How much excess (or, if nearer, mass above the null) the kind that gives `label`
            has to spare; for `mixed` how much the nearest kind lacks, below 0. None for a
            label that no score gives.
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
    sink_at: str | None = None
    window: int | None = None
    margin: float | None = None

    def __repr__(self) -> str:
        also = f" (also {', '.join(self.labels[1:])})" if self.labels[1:] else ""
        best = sorted(self.scores.items(), key=lambda item: -item[1])[:3]
        scores = ", ".join(f"{kind} {score:.2f}" for kind, score in best) or "no scores"
        return f"HeadLabel({self.head} {self.label}{also}: {scores})"


def with_sink_named(
    verdict: HeadLabel,
    tokens: Int[Tensor, "batch pos"],
    texts: Sequence[Sequence[str]],
    special: Collection[int],
) -> HeadLabel:
    """The verdict with `sink_at`: the special token where the head rests, or that it is none.

    Args:
        verdict: On any head.
        tokens: The ids that were run; -1 is padding.
        texts: The text of each of a row's tokens, without the padding.
        special: Ids of special tokens.
    """
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


def label_heads(
    layer: int,
    scores: LayerScores,
    thresholds: Thresholds,
    *,
    window: int | None = None,
    window_forced: bool = False,
    not_measured: Mapping[str, str] | None = None,
    nulls: Mapping[str, Float[Tensor, " head"]] | None = None,
    induction_effect: Float[Tensor, "end=2 head"] | None = None,
    largest_effect: float = 0.0,
) -> list[HeadLabel]:
    """Turn one layer's scores into verdicts: a label for each kind whose excess is enough.

    Where there is a null, the score must be above it too. A head that attends like an
    induction head and pushes the right answer down is `anti-induction` (McDougall et al. 2023,
    arXiv 2310.04625).

    Args:
        layer: The layer's own number.
        scores: As measured, on enough queries.
        thresholds: What decides.
        window: The layer's window, for the record.
        window_forced: Whether the prompt was longer than the window, so that every head of
            this layer is local whether it would be or not.
        not_measured: Why kinds are absent from `scores`.
        nulls: By kind, what a score must be above.
        induction_effect: Interval of the effect on the right next token's logit; a head is
            `anti-induction` if all of it is so far below 0 as the threshold says.
        largest_effect: The largest such effect of any head of the model, up or down.

    Raises:
        InputError: If `thresholds` are none.
    """
    thresholds = as_thresholds(thresholds)
    nulls = nulls or {}
    kinds = [kind for kind in KINDS if kind in scores.tallies]
    means = {name: tally.mean.tolist() for name, tally in scores.tallies.items()}
    chances = {kind: scores.tallies[kind].uniform_mean.tolist() for kind in kinds}

    verdicts = []
    for head in range(scores.sink_position.shape[1]):
        own = {kind: means[kind][head] for kind in kinds}
        chance = {kind: chances[kind][head] for kind in kinds}
        margins, held = {}, []
        for kind, spare in to_spare(own, chance, thresholds).items():
            above_null = own[kind] - float(nulls[kind][head]) if kind in nulls else math.inf
            margins[kind] = min(spare, above_null)
            if spare >= 0 and above_null > 0:
                held.append(kind)
        least = thresholds.anti_induction * largest_effect
        pushes_down = induction_effect is not None and float(induction_effect[1, head]) < -least
        labels = [
            (KINDS[kind].opposite if pushes_down else None) or KINDS[kind].label for kind in held
        ]
        if window_forced:
            labels.insert(sum(kind in _TO_WINDOW for kind in held), FORCED_WINDOW)
        place = None
        if LABELS["sink"] in labels:
            heard = scores.tallies["sink"].queries > 0
            place = int(scores.sink_position[heard, head].mode().values)
        verdicts.append(
            HeadLabel(
                head=Head(layer, head),
                label=labels[0] if labels else MIXED if kinds else NOT_ENOUGH,
                labels=tuple(labels) if labels else (MIXED if kinds else NOT_ENOUGH,),
                scores=own,
                chance=chance,
                not_measured=dict(not_measured or {}),
                entropy=means["entropy"][head] if "entropy" in means else None,
                mean_distance=means["mean_distance"][head] if "mean_distance" in means else None,
                sink_position=place,
                window=window,
                margin=_margin(margins, held, labels),
            )
        )
    return verdicts


def _margin(margins: Mapping[str, float], held: list[str], labels: list[str]) -> float | None:
    if labels and labels[0] == FORCED_WINDOW:
        return None
    return margins[held[0]] if held else max(margins.values(), default=None)


def excess(score: float, chance: float) -> float:
    """`(score - chance) / (1 - chance)`: 0 for even attention, 1 when all is on target.

    0 where chance is 1, since then every key in sight is a target and nothing is shown.

    Example:
        >>> excess(0.75, 0.5)
        0.5
    """
    return (score - chance) / (1 - chance) if chance < 1 - 1e-6 else 0.0


def to_spare(
    scores: Mapping[str, float], chance: Mapping[str, float], thresholds: Thresholds
) -> dict[str, float]:
    """By kind, the most specific first, how far the excess is above its threshold.

    A kind earns its label from 0 on (but for its null, where there is one).
    """
    return {
        kind: excess(scores[kind], chance[kind]) - getattr(thresholds, kind)
        for kind in KINDS
        if kind in scores
    }


def why_not_measured(
    tokens: Int[Tensor, "batch pos"],
    scores: LayerScores,
    thresholds: Thresholds,
    *,
    special: Collection[int] = (),
    window: int | None = None,
    causal: bool = True,
) -> dict[str, str]:
    """For each kind absent from `scores`, the reason in words."""
    copies = (earlier_copies(tokens) != NONE).any(-1) & ordinary(tokens, special)
    reasons = {} if causal else {"induction": "the model looks both ways"}
    for kind in kinds_of(causal):
        if kind in scores.tallies:
            continue
        without_window = (
            (targets_of(kind, tokens, special, thresholds, causal) != NONE).any(-1).sum()
        )
        if without_window >= thresholds.min_queries and window is not None:
            reasons[kind] = f"the targets lie beyond the layer's window of {window} tokens"
        elif KINDS[kind].null == "shuffled" and not copies.any():
            reasons[kind] = "no token is repeated"
        else:
            reasons[kind] = NOT_ENOUGH
    return reasons
