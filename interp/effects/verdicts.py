"""The results of `verify`: effects with their intervals, verdicts in words, tables and files."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp.effects.saved import Saved
from interp.heads import Head

FEW_DRAWS = 20
"""With fewer random draws a verdict is marked: they show little of what random heads can do."""


@dataclass(frozen=True)
class Effect:
    """The effect of ablating heads on one measure, in nats: after minus before.

    Attributes:
        value: Mean over rows; above 0, the model is worse without the heads.
        interval: The middle 95 % of such means over rows resampled with replacement.
        random: The same mean for each random draw of other heads.
    """

    value: float
    interval: tuple[float, float]
    random: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """The verdict in words, with the interval.

        An effect is causal if its whole interval is beyond every random draw, and beyond 0; there
        is no effect if the whole interval is within them; else the verdict is not decided. Fewer
        than `FEW_DRAWS` draws are marked as few.
        """
        low, high = self.interval
        signed = f"{self.value:+.2f} nats [{low:+.2f}, {high:+.2f}]"
        if not self.random:
            return f"not judged: {signed}, but the same layers have no other heads to compare with"
        least, most = min(self.random), max(self.random)
        floor, ceiling = min(least, 0), max(most, 0)
        effect, random = signed, f"{least:+.2f} to {most:+.2f}"
        if low > ceiling:
            word, random = "causal", f"at most {most:.2f}"
            effect = f"costs {self.value:.2f} nats [{low:.2f}, {high:.2f}]"
        elif high < floor:
            word, random = "helps when removed", f"at most {-floor:.2f}"
            effect = f"saves {-self.value:.2f} nats [{-high:.2f}, {-low:.2f}]"
        else:
            inside = floor <= low and high <= ceiling
            word = "no effect beyond random heads" if inside else "not decided"
        few = " (few draws)" if len(self.random) < FEW_DRAWS else ""
        return f"{word}{few}: {effect}, random heads of the same layers {random}"

    def to_json(self) -> dict[str, Any]:
        """The effect as it is written."""
        numbers = {"effect": self.value, "interval": [*self.interval]}
        return {"verdict": self.verdict, **numbers, "random_effects": [*self.random]}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Effect":
        """The effect that `to_json` wrote."""
        return cls(content["effect"], tuple(content["interval"]), tuple(content["random_effects"]))


@dataclass(frozen=True)
class LabelEffects:
    """The heads of one label, and the effects of ablating them together.

    Attributes:
        heads: Heads that were ablated together, the strongest first.
        scores: The kind's score of each, in [0, 1]; None where the label has no score.
        labelled: How many of `heads`, the first ones, carry the label. The others are the next by
            score: their excess is at least half of the label's threshold.
        draws: The random heads of each draw.
        notes: Caveats.
        effects: By method (`zero`, `mean`) and measure.
    """

    heads: tuple[Head, ...] = ()
    scores: tuple[float | None, ...] = ()
    labelled: int = 0
    draws: tuple[tuple[Head, ...], ...] = ()
    notes: tuple[str, ...] = ()
    effects: dict[str, dict[str, Effect]] = field(default_factory=dict)

    @property
    def main(self) -> Effect | None:
        """The effect that decides: by the first method, on the first measure."""
        return next((e for measures in self.effects.values() for e in measures.values()), None)

    @property
    def verdict(self) -> str:
        """The verdict of the deciding effect; or why there is none."""
        return self.main.verdict if self.main else "not judged: no heads of that label"

    def to_json(self) -> dict[str, Any]:
        """The effects as they are written: the deciding one on top, all of them below."""
        absent = {"effect": None, "interval": None, "random_effects": []}
        return {
            "verdict": self.verdict,
            "heads": [*map(str, self.heads)],
            **(self.main.to_json() if self.main else absent),
            "scores": [*self.scores],
            "labelled": self.labelled,
            "notes": [*self.notes],
            "measures": {
                method: {name: effect.to_json() for name, effect in measures.items()}
                for method, measures in self.effects.items()
            },
            "random_heads": [[*map(str, draw)] for draw in self.draws],
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "LabelEffects":
        """The effects that `to_json` wrote."""
        return cls(
            tuple(map(Head.parse, content["heads"])),
            tuple(content["scores"]),
            content["labelled"],
            tuple(tuple(map(Head.parse, draw)) for draw in content["random_heads"]),
            tuple(content["notes"]),
            {
                method: {name: Effect.of_json(effect) for name, effect in measures.items()}
                for method, measures in content["measures"].items()
            },
        )


@dataclass(frozen=True, repr=False)
class Verification(Saved):
    """The result of `interp.verify`.

    Attributes:
        before: Each measure without any ablation, mean over rows, in nats.
        labels: By label.
        made_by: Model, probes with the token ids that were run, seed, choices and versions.
    """

    before: dict[str, float]
    labels: dict[str, LabelEffects]
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        verdicts = (
            label + (f" {r.main.value:+.2f} nats" if r.main else "") + f" {_word(r.verdict)}"
            for label, r in self.labels.items()
        )
        return f"Verification({self.made_by.get('model', 'a model')}: {', '.join(verdicts)})"

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each label, method and measure, in nats.

        Columns: `label`, `heads`, `method`, `measure`, `effect`, `low` and `high` (the interval),
        `random_low` and `random_high` (over the random draws), `verdict`.
        """
        rows = [
            {
                "label": label,
                "heads": ", ".join(map(str, result.heads)),
                "method": method,
                "measure": measure,
                "effect": effect.value,
                **dict(zip(("low", "high"), effect.interval, strict=True)),
                "random_low": min(effect.random, default=None),
                "random_high": max(effect.random, default=None),
                "verdict": _word(effect.verdict),
            }
            for label, result in self.labels.items()
            for method, measures in result.effects.items()
            for measure, effect in measures.items()
        ]
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        labels = {label: result.to_json() for label, result in self.labels.items()}
        made = {"schema_version": 1, "made_by": self.made_by}
        return {**made, "before": self.before, "labels": labels}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Verification":
        """The result that `to_json` wrote."""
        labels = {name: LabelEffects.of_json(each) for name, each in content["labels"].items()}
        return cls(content["before"], labels, content["made_by"])


def _word(verdict: str) -> str:
    return verdict.partition(":")[0]
