"""How often the classifier is right, measured on planted heads.

Planted heads (`interp.trust.planted`) of every kind, as strong as those of a real model, and as
many
near misses, are labelled by `interp.classify_heads`, and the labels compared with what the
heads were made to be. The threshold that all stripes share is chosen on one set of heads and
reported on another. By strength the same is done for heads of every kind, to see where the
label stops being sure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, cycle, islice, product
from typing import Any, SupportsIndex

import torch
from torch import Generator

from interp.errors import InputError, whole, whole_seed
from interp.kinds.kind import LABELS
from interp.kinds.labels import MIXED, HeadLabel, excess, to_spare
from interp.kinds.scores import Thresholds, as_thresholds
from interp.patterns.classify import classify_heads
from interp.trust.planted import (
    KINDS,
    NEAR_MISSES,
    ROLES,
    STRIPES,
    Planted,
    draw_rows,
    plant,
    truth,
)

GRID = tuple(step / 100 for step in range(10, 91))
"""Thresholds that are tried."""

STRENGTHS = tuple(sorted({step / 50 for step in (*range(0, 51, 5), *range(13, 29))}))
"""Strengths at which the curve is measured: closer together where the thresholds are."""

SURE = 0.99
"""Share of right labels from which on a label counts as sure."""

FEWEST = 2 * len(KINDS) * len(STRENGTHS)
"""Heads that it takes to see every kind at every strength."""

_TOGETHER = 16  # Heads that attend to the same rows.


@dataclass(frozen=True)
class Judged:
    """A planted head and what the classifier says about it.

    Attributes:
        role: Its name in `interp.trust.planted.ROLES`.
        strength: As it was planted.
        truth: The label that it ought to get for what it does in these rows.
        usual_truth: The label that it ought to get for what it does on average.
        verdict: The classifier's.
    """

    role: str
    strength: float
    truth: str
    usual_truth: str
    verdict: HeadLabel

    def label_at(self, thresholds: Thresholds) -> str:
        """The label at other thresholds, from the scores as measured."""
        spare = to_spare(self.verdict.scores, self.verdict.chance, thresholds)
        return next((LABELS[kind] for kind, value in spare.items() if value >= 0), MIXED)


def real_strengths(heads: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By kind, the excess of the heads whose most specific label it is.

    Args:
        heads: One record per head, as in the table of a scan.

    Raises:
        InputError: If a kind has no head.
    """
    heads = list(heads)
    found = {
        kind: [
            excess(float(head[kind]), float(head[f"{kind}_chance"]))
            for head in heads
            if head["label"] == label
        ]
        for kind, label in LABELS.items()
    }
    for kind, label in LABELS.items():
        if not found[kind]:
            raise InputError(f"heads must have one of every kind, got none labelled {label!r}")
    return found


def measure_accuracy(
    strengths: Mapping[str, Sequence[float]],
    *,
    heads: SupportsIndex,
    seed: SupportsIndex,
    thresholds: Thresholds | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Label planted heads and count.

    Args:
        strengths: By kind, how strong real heads are, as from `real_strengths`. Each planted
            head is as strong as one of them, and each near miss as one of the kind that it
            nearly is.
        heads: How many to plant to report on; half as many to choose, and half by strength.
        seed: Of all luck, by generators of their own.
        thresholds: Under test; `Thresholds()` if left out.
        progress: Called with the heads done and their number.

    Returns:
        `accuracy`: share of right labels in the second set, and `interval`, its 95 % interval
        (Wilson 1927). `accuracy_on_average`: share of labels that are right about what the heads
        do in any rows, not just in those that they were seen in. `confusion`: truth, label,
        count. `kinds` and `near_misses`: by role, see `by_role`. `by_strength`: see `curve`.
        `sure_from`: by kind, the least strength from which on it is found in `SURE` of the cases.
        `chosen`: the stripe threshold that was best on the first set, see `choose`.
        `thresholds`, `seed`, `sizes`.

    Raises:
        InputError: If there are too few heads for every kind at every strength of the curve, or
            a number is not a whole one.
    """
    heads, seed = whole("heads", heads, least=FEWEST), whole_seed(seed)
    thresholds = as_thresholds(thresholds)
    luck = Generator().manual_seed(seed)
    at_each = islice(cycle(KINDS), heads // 2 // len(STRENGTHS))
    plans = [
        plan(strengths, heads // 2),
        plan(strengths, heads),
        list(product(at_each, STRENGTHS)),
    ]
    total, done, sets = sum(map(len, plans)), 0, []
    for planned in plans:
        judged = []
        for some in _batches(planned, luck):
            judged += judge(some, luck, thresholds)
            done += len(some)
            if progress is not None:
                progress(done, total)
        sets.append(judged)
    choosing, reporting, by_strength = sets
    right = sum(head.verdict.label == head.truth for head in reporting)
    return {
        "accuracy": right / len(reporting),
        "interval": wilson(right, len(reporting)),
        "accuracy_on_average": _right_at(reporting, thresholds),
        "confusion": confusion(reporting),
        "kinds": by_role(reporting, KINDS, thresholds),
        "near_misses": by_role(reporting, NEAR_MISSES, thresholds),
        "by_strength": curve(by_strength),
        "sure_from": sure_from(by_strength),
        "chosen": choose(choosing, reporting, thresholds),
        "thresholds": asdict(thresholds),
        "seed": seed,
        "sizes": {"choose": len(choosing), "report": len(reporting), "curve": len(by_strength)},
    }


def plan(strengths: Mapping[str, Sequence[float]], heads: int) -> list[tuple[str, float]]:
    """Roles and strengths: kinds and near misses by turns, each as often as any other.

    Within a role the strengths come by turns too; a near miss has those of the kind that it
    nearly is, and of all stripes where it is near none.
    """
    stripes = [strength for kind in STRIPES for strength in strengths[kind]]
    turns = {}
    for name, role in ROLES.items():
        like = role.kind or role.nearly
        turns[name] = cycle(strengths[like] if like else stripes)
    roles = chain.from_iterable(zip(cycle(KINDS), cycle(NEAR_MISSES)))
    return [(role, next(turns[role])) for role in islice(roles, heads)]


def judge(
    planned: Sequence[tuple[str, float]], generator: Generator, thresholds: Thresholds
) -> list[Judged]:
    """Plant the heads, all in the same fresh rows, and label them."""
    bos = 0
    rows = draw_rows(generator, bos=bos)
    made: list[Planted] = [
        plant(rows, role, strength, generator=generator, thresholds=thresholds)
        for role, strength in planned
    ]
    patterns = torch.stack([head.pattern for head in made], dim=1)
    verdicts = classify_heads(patterns, rows.tokens, special=[bos], thresholds=thresholds)
    return [
        Judged(
            head.role,
            head.strength,
            truth(head.excess, thresholds),
            truth(head.usual_excess, thresholds),
            verdict,
        )
        for head, verdict in zip(made, verdicts)
    ]


def confusion(judged: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """How many heads of each truth got each label: `[truth][label]`."""
    names = [*LABELS.values(), MIXED]
    counts = Counter((head.truth, head.verdict.label) for head in judged)
    others = sorted({label for _, label in counts} - set(names))
    return {truth: {label: counts[truth, label] for label in names + others} for truth in names}


def by_role(
    judged: Sequence[Judged], roles: Iterable[str], thresholds: Thresholds
) -> list[dict[str, Any]]:
    """For each role: how many heads, how many right, what they were taken for.

    For a near miss also `fooled`: how many got the label of the kind that they nearly are.
    """
    records = []
    for role in roles:
        own = [head for head in judged if head.role == role]
        nearly = ROLES[role].nearly
        record = {
            "role": role,
            "heads": len(own),
            "right": sum(head.verdict.label == head.truth for head in own),
            "labels": dict(Counter(head.verdict.label for head in own).most_common()),
        }
        if nearly:
            record |= {
                "nearly": LABELS[nearly],
                "fooled": sum(LABELS[nearly] in head.verdict.labels for head in own),
            }
        records.append(record)
    return records


def curve(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """By strength, of planted heads of every kind.

    Returns:
        Records of `strength`, `heads`, `accuracy` (share whose label is the truth, which below
        the threshold is not their kind), `labelled` (share that got their kind as the label), and
        `labelled_by_kind`.
    """
    records = []
    for strength in sorted({head.strength for head in judged}):
        own = [head for head in judged if head.strength == strength]
        records.append(
            {
                "strength": strength,
                "heads": len(own),
                "accuracy": _share(head.verdict.label == head.truth for head in own),
                "labelled": _share(_found(head) for head in own),
                "labelled_by_kind": {
                    kind: _share(_found(head) for head in own if ROLES[head.role].kind == kind)
                    for kind in dict.fromkeys(ROLES[head.role].kind for head in own)
                },
            }
        )
    return records


def sure_from(judged: Sequence[Judged]) -> dict[str, float | None]:
    """By kind: the least strength from which on its heads get their label, `SURE` of them.

    None if not even the strongest do.
    """
    found: dict[str, float | None] = {}
    for kind in LABELS:
        found[kind] = None
        for record in reversed(curve([head for head in judged if ROLES[head.role].kind == kind])):
            if record["labelled"] < SURE:
                break
            found[kind] = record["strength"]
    return found


def choose(
    choosing: Sequence[Judged], reporting: Sequence[Judged], thresholds: Thresholds
) -> dict[str, Any]:
    """The one threshold for all stripes that labels `choosing` best, tried on `reporting`.

    Right is what a head does on average. Heads that are planted as strong as real ones are all
    above the shipped thresholds there and near misses all below, so that the truth does not
    hang on where between them a threshold lies. Of equally good thresholds it is the middle one.
    """
    tried = {value: _right_at(choosing, _stripes_at(value, thresholds)) for value in GRID}
    best = [value for value, right in tried.items() if right == max(tried.values())]
    value = best[len(best) // 2]
    return {
        "stripe_threshold": value,
        "equally_good": [best[0], best[-1]],
        "accuracy_where_chosen": _right_at(choosing, _stripes_at(value, thresholds)),
        "accuracy": _right_at(reporting, _stripes_at(value, thresholds)),
        "shipped": {kind: getattr(thresholds, kind) for kind in STRIPES},
        "accuracy_shipped": _right_at(reporting, thresholds),
        "tried": [{"threshold": t, "accuracy": right} for t, right in tried.items()],
    }


def wilson(right: int, number: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), which holds near 0 and 1 too.

    Example:
        >>> [round(end, 3) for end in wilson(99, 100)]
        [0.946, 0.998]
    """
    z = 1.959963984540054  # 97.5 % of the standard normal distribution lie below it.
    share, per = right / number, z**2 / number
    middle = share + per / 2
    reach = (per * (share * (1 - share) + per / 4)) ** 0.5
    return max(0.0, (middle - reach) / (1 + per)), min(1.0, (middle + reach) / (1 + per))


def lines(result: Mapping[str, Any]) -> list[str]:
    """What a person wants to know of a result of `measure_accuracy`, line by line."""
    low, high = result["interval"]
    chosen, sizes = result["chosen"], result["sizes"]
    missed = [record for record in result["near_misses"] if "fooled" in record]
    text = [
        f"accuracy {result['accuracy']:.4f} (95 %: {low:.4f} to {high:.4f}): share of right labels"
        f" of {sizes['report']} planted heads and near misses as strong as real heads; right is"
        " what a head does in the rows that it was seen in",
        f"accuracy in any rows {result['accuracy_on_average']:.4f}: the same, where right is what"
        " it does on average over all rows that there could be",
        f"near misses taken for what they nearly are: {sum(r['fooled'] for r in missed)}"
        f" of {sum(r['heads'] for r in missed)}",
        "stripe threshold: the excess over even attention from which induction, duplicate token,"
        " previous token and current token are labelled;"
        f" chosen on {sizes['choose']} other heads: {chosen['stripe_threshold']}"
        f" ({chosen['equally_good'][0]} to {chosen['equally_good'][1]} are as good);"
        f" accuracy in any rows with it {chosen['accuracy']:.4f}, with the thresholds as shipped"
        f" {chosen['accuracy_shipped']:.4f}",
        "by strength, of planted heads of every kind",
        "  strength: excess over even attention that the head was planted with",
        "  accuracy: share of right labels; below the threshold its kind's label is not right",
        "  labelled as their kind: share that got their kind as the label",
        "strength  accuracy  labelled as their kind",
    ]
    text += [
        f"{record['strength']:8.2f}  {record['accuracy']:8.3f}  {record['labelled']:8.3f}"
        for record in result["by_strength"]
    ]
    text += [
        f"{LABELS[kind]} is sure (found in {SURE:.0%} of the cases) from a strength of {strength}"
        if strength is not None
        else f"{LABELS[kind]} is not sure at any strength"
        for kind, strength in result["sure_from"].items()
    ]
    return text


def _batches(
    planned: list[tuple[str, float]], generator: Generator
) -> Iterable[list[tuple[str, float]]]:
    """The plan in a random order, so that roles and rows go together by chance."""
    order = torch.randperm(len(planned), generator=generator).tolist()
    for start in range(0, len(order), _TOGETHER):
        yield [planned[i] for i in order[start : start + _TOGETHER]]


def _found(head: Judged) -> bool:
    kind = ROLES[head.role].kind
    return kind is not None and head.verdict.label == LABELS[kind]


def _share(right: Iterable[bool]) -> float:
    counted = list(right)
    return sum(counted) / len(counted)


def _stripes_at(value: float, thresholds: Thresholds) -> Thresholds:
    return replace(thresholds, **dict.fromkeys(STRIPES, value))


def _right_at(judged: Sequence[Judged], thresholds: Thresholds) -> float:
    return _share(head.label_at(thresholds) == head.usual_truth for head in judged)
