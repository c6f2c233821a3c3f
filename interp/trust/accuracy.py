"""The accuracy of the labels, measured on planted heads.

Planted heads (`interp.trust.planted`) of every kind, as strong as those of a real model, and as
many near misses, are labelled by `interp.classify_heads`, and the labels compared with the truth.
The threshold that all stripes share is chosen on one set of heads and reported on another. A third
set has heads of every kind at every strength, and shows from which strength a label is sure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, cycle, islice, product
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Generator

from interp.effects.saved import Report
from interp.errors import InputError, Seed, Whole, checked
from interp.kinds.builtin import LABELS
from interp.kinds.labels import MIXED, HeadLabel, excess, to_spare
from interp.kinds.scores import Thresholds, as_thresholds
from interp.patterns.classify import classify_heads
from interp.trust.planted import KINDS, NEAR_MISSES, ROLES, STRIPES, draw_rows, plant, truth

if TYPE_CHECKING:
    import pandas as pd

GRID = tuple(step / 100 for step in range(10, 91))
"""Candidate thresholds."""

STRENGTHS = tuple(sorted({step / 50 for step in (*range(0, 51, 5), *range(13, 29))}))
"""Strengths of the curve: closer together near the thresholds."""

SURE = 0.99
"""Share of right labels from which a label counts as sure."""

FEWEST = 2 * len(KINDS) * len(STRENGTHS)
"""Fewest heads that have every kind at every strength."""

_TOGETHER = 16  # Heads that attend to the same rows.


@dataclass(frozen=True)
class Judged:
    """A planted head and the classifier's verdict on it."""

    role: str  # Name in `interp.trust.planted.ROLES`.
    strength: float  # Strength as planted.
    truth: str  # The right label for its attention in these rows.
    usual_truth: str  # The right label for its attention on average.
    verdict: HeadLabel

    @property
    def right(self) -> bool:
        """Whether the label is the truth."""
        return self.verdict.label == self.truth

    @property
    def found(self) -> bool:
        """Whether the label is that of the kind that was planted."""
        kind = ROLES[self.role].kind
        return kind is not None and self.verdict.label == LABELS[kind]

    def label_at(self, thresholds: Thresholds) -> str:
        """The label at other thresholds, from the same scores."""
        spare = to_spare(self.verdict.scores, self.verdict.chance, thresholds)
        return next((LABELS[kind] for kind, value in spare.items() if value >= 0), MIXED)


class Accuracy(Report):
    """The result of `measure_accuracy`, a mapping.

    - `accuracy`: share of right labels in the second set; `interval`: its 95 % interval (`wilson`);
    - `accuracy_on_average`: share of labels that are right for the heads' attention on average, not
      just in the rows that were classified;
    - `confusion`: truth, label, count; `kinds` and `near_misses`: by role, see `by_role`;
    - `by_strength`: see `curve`; `sure_from`: by kind, see `sure_from`;
    - `chosen`: the stripe threshold that was best on the first set, see `choose`;
    - `thresholds`, `seed`, `sizes`.
    """

    def __repr__(self) -> str:
        low, high = self["interval"]
        heads = self["sizes"]["report"]
        return f"Accuracy({self['accuracy']:.4f} [{low:.4f}, {high:.4f}] of {heads} planted heads)"

    def to_frame(self) -> "pd.DataFrame":
        """The confusion table: a row for each truth, a column for each label, counts of heads."""
        import pandas as pd

        return pd.DataFrame.from_dict(self["confusion"], orient="index")


def real_strengths(heads: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By kind, the excess of the heads whose most specific label it is.

    Args:
        heads: One record per head, as in the table of a scan.

    Raises:
        InputError: If a kind has no head.
    """
    heads, strengths = list(heads), {}
    for kind, label in LABELS.items():
        strengths[kind] = [
            excess(float(head[kind]), float(head[f"{kind}_chance"]))
            for head in heads
            if head["label"] == label
        ]
        if not strengths[kind]:
            raise InputError(f"heads must have one of every kind, got none labelled {label!r}")
    return strengths


@checked
def measure_accuracy(
    strengths: Mapping[str, Sequence[float]],
    *,
    heads: Annotated[Whole, Field(ge=FEWEST)],
    seed: Seed,
    thresholds: Thresholds | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Accuracy:
    """Label planted heads and count.

    Args:
        strengths: Strengths of real heads by kind, as from `real_strengths`. Each planted head
            is as strong as one of them, and each near miss as one of the kind that it resembles.
        heads: Number of heads to report on; half as many to choose, and half by strength.
        seed: Random seed.
        thresholds: Thresholds to test; `Thresholds()` if left out.
        progress: Callback, called with the heads done and their number.
    """
    thresholds = as_thresholds(thresholds)
    generator = Generator().manual_seed(seed)
    for_curve = product(islice(cycle(KINDS), heads // 2 // len(STRENGTHS)), STRENGTHS)
    plans = [plan(strengths, heads // 2), plan(strengths, heads), list(for_curve)]
    done, sets = 0, [list[Judged]() for _ in plans]
    for planned, judged in zip(plans, sets):
        # In random order, so that roles and rows combine at random.
        order = torch.randperm(len(planned), generator=generator).tolist()
        for start in range(0, len(order), _TOGETHER):
            some = [planned[i] for i in order[start : start + _TOGETHER]]
            judged += judge(some, generator, thresholds)
            done += len(some)
            if progress is not None:
                progress(done, sum(map(len, plans)))
    choosing, reporting, by_strength = sets
    right = sum(head.right for head in reporting)
    return Accuracy(
        {
            "accuracy": right / len(reporting),
            "interval": wilson(right, len(reporting)),
            "accuracy_on_average": _right_at(reporting, thresholds),
            "confusion": confusion(reporting),
            "kinds": by_role(reporting, KINDS),
            "near_misses": by_role(reporting, NEAR_MISSES),
            "by_strength": curve(by_strength),
            "sure_from": sure_from(by_strength),
            "chosen": choose(choosing, reporting, thresholds),
            "thresholds": asdict(thresholds),
            "seed": seed,
            "sizes": {"choose": len(choosing), "report": len(reporting), "curve": len(by_strength)},
        }
    )


def plan(strengths: Mapping[str, Sequence[float]], heads: int) -> list[tuple[str, float]]:
    """Roles and strengths: kinds and near misses in turn, each as often as any other.

    Within a role the strengths are taken in turn too; a near miss has those of the kind that it
    resembles, and of all stripes if it resembles no kind.
    """
    stripes = [strength for kind in STRIPES for strength in strengths[kind]]
    turns = {
        name: cycle(strengths[like] if (like := role.kind or role.nearly) else stripes)
        for name, role in ROLES.items()
    }
    roles = chain.from_iterable(zip(cycle(KINDS), cycle(NEAR_MISSES)))
    return [(role, next(turns[role])) for role in islice(roles, heads)]


def judge(
    planned: Sequence[tuple[str, float]], generator: Generator, thresholds: Thresholds
) -> list[Judged]:
    """Plant the heads, all in the same fresh rows, and label them."""
    rows = draw_rows(generator)
    heads = [
        plant(rows, role, strength, generator=generator, thresholds=thresholds)
        for role, strength in planned
    ]
    patterns = torch.stack([head.pattern for head in heads], dim=1)
    verdicts = classify_heads(patterns, rows.tokens, special=[0], thresholds=thresholds)
    return [
        Judged(*what, truth(head.excess, thresholds), truth(head.usual_excess, thresholds), verdict)
        for what, head, verdict in zip(planned, heads, verdicts)
    ]


def confusion(judged: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """How many heads of each truth got each label: `[truth][label]`."""
    names = [*LABELS.values(), MIXED]
    counts = Counter((head.truth, head.verdict.label) for head in judged)
    others = sorted({label for _, label in counts} - set(names))
    return {truth: {label: counts[truth, label] for label in names + others} for truth in names}


def by_role(judged: Sequence[Judged], roles: Iterable[str]) -> list[dict[str, Any]]:
    """For each role: how many heads, how many right, and the count of each label.

    For a near miss also `fooled`: how many got the label of the kind that they resemble.
    """
    records = []
    for role in roles:
        heads = [head for head in judged if head.role == role]
        record = {
            "role": role,
            "heads": len(heads),
            "right": sum(head.right for head in heads),
            "labels": dict(Counter(head.verdict.label for head in heads).most_common()),
        }
        if nearly := ROLES[role].nearly:
            fooled = sum(LABELS[nearly] in head.verdict.labels for head in heads)
            record |= {"nearly": LABELS[nearly], "fooled": fooled}
        records.append(record)
    return records


def curve(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """By strength, of planted heads of every kind.

    Records of `strength`, `heads`, `accuracy` (share whose label is the truth, which below the
    threshold is not their kind), `labelled` (share that got their kind), and `labelled_by_kind`.
    """
    records = []
    for strength in sorted({head.strength for head in judged}):
        heads = [head for head in judged if head.strength == strength]
        by_kind: dict[str | None, list[bool]] = {}
        for head in heads:
            by_kind.setdefault(ROLES[head.role].kind, []).append(head.found)
        records.append(
            {
                "strength": strength,
                "heads": len(heads),
                "accuracy": fmean(head.right for head in heads),
                "labelled": fmean(head.found for head in heads),
                "labelled_by_kind": {kind: fmean(found) for kind, found in by_kind.items()},
            }
        )
    return records


def sure_from(judged: Sequence[Judged]) -> dict[str, float | None]:
    """By kind: the least strength from which `SURE` of its heads get their label; None if none."""
    least: dict[str, float | None] = {}
    for kind in LABELS:
        least[kind] = None
        for record in reversed(curve([head for head in judged if ROLES[head.role].kind == kind])):
            if record["labelled"] < SURE:
                break
            least[kind] = record["strength"]
    return least


def choose(
    choosing: Sequence[Judged], reporting: Sequence[Judged], thresholds: Thresholds
) -> dict[str, Any]:
    """The one threshold for all stripes that labels `choosing` best, tested on `reporting`.

    The truth is the attention on average: there, heads as strong as real ones are all above the
    shipped thresholds and near misses all below, so that the truth does not depend on where
    between them a threshold is. Of equally good thresholds it is the middle one.
    """
    at = {value: replace(thresholds, **dict.fromkeys(STRIPES, value)) for value in GRID}
    tried = {value: _right_at(choosing, at[value]) for value in GRID}
    best = [value for value, right in tried.items() if right == max(tried.values())]
    value = best[len(best) // 2]
    return {
        "stripe_threshold": value,
        "equally_good": [best[0], best[-1]],
        "accuracy_where_chosen": tried[value],
        "accuracy": _right_at(reporting, at[value]),
        "shipped": {kind: getattr(thresholds, kind) for kind in STRIPES},
        "accuracy_shipped": _right_at(reporting, thresholds),
        "tried": [{"threshold": t, "accuracy": right} for t, right in tried.items()],
    }


def wilson(right: int, number: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), valid near 0 and 1 too.

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
    """The result of `measure_accuracy` as lines to print."""
    low, high = result["interval"]
    chosen, sizes = result["chosen"], result["sizes"]
    near = [record for record in result["near_misses"] if "fooled" in record]
    first, last = chosen["equally_good"]
    text = [
        f"accuracy {result['accuracy']:.4f} (95 %: {low:.4f} to {high:.4f}): share of right labels"
        f" of {sizes['report']} planted heads and near misses, in the rows that were classified",
        f"accuracy in any rows {result['accuracy_on_average']:.4f}: for their attention on average",
        f"near misses labelled as what they resemble: {sum(r['fooled'] for r in near)}"
        f" of {sum(r['heads'] for r in near)}",
        "threshold of induction, duplicate token, previous token and current token, chosen on"
        f" {sizes['choose']} other heads: {chosen['stripe_threshold']} ({first} to {last} are as"
        f" good); accuracy in any rows with it {chosen['accuracy']:.4f}, with the shipped"
        f" thresholds {chosen['accuracy_shipped']:.4f}",
        "by strength (excess over even attention as planted), of planted heads of every kind;",
        "below the threshold the label of their kind is not right",
        "strength  accuracy  labelled as their kind",
    ]
    text += [
        f"{r['strength']:8.2f}  {r['accuracy']:8.3f}  {r['labelled']:8.3f}"
        for r in result["by_strength"]
    ]
    for kind, strength in result["sure_from"].items():
        sure = f"sure (found in {SURE:.0%} of the cases) from a strength of {strength}"
        text.append(f"{LABELS[kind]} is {'not sure at any strength' if strength is None else sure}")
    return text


def _right_at(judged: Sequence[Judged], thresholds: Thresholds) -> float:
    return fmean(head.label_at(thresholds) == head.usual_truth for head in judged)
