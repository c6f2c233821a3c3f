"""The results of `verify`: effects with their intervals, verdicts in words, tables and files."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from interp.effects.saved import Saved
from interp.heads import Head

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1

FEW_DRAWS = 20
"""With fewer random draws a verdict is marked: they show little of what random heads can do."""

NOT_JUDGED = "not judged: no heads of that label"


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
        few = " (few draws)" if len(self.random) < FEW_DRAWS else ""
        least, most = min(self.random), max(self.random)
        others = "random heads of the same layers"
        if low > max(most, 0):
            costs = f"costs {self.value:.2f} nats [{low:.2f}, {high:.2f}]"
            return f"causal{few}: {costs}, {others} at most {most:.2f}"
        if high < min(least, 0):
            saves = f"saves {-self.value:.2f} nats [{-high:.2f}, {-low:.2f}]"
            return f"helps when removed{few}: {saves}, {others} at most {max(-least, 0):.2f}"
        inside = min(least, 0) <= low and high <= max(most, 0)
        word = "no effect beyond random heads" if inside else "not decided"
        return f"{word}{few}: {signed}, {others} {least:+.2f} to {most:+.2f}"

    def to_json(self) -> dict[str, Any]:
        """The effect as it is written."""
        return {
            "verdict": self.verdict,
            "effect": self.value,
            "interval": list(self.interval),
            "random_effects": list(self.random),
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Effect":
        """The effect that `to_json` wrote."""
        return cls(content["effect"], tuple(content["interval"]), tuple(content["random_effects"]))


@dataclass(frozen=True)
class LabelEffects:
    """The heads of one label, and the effects of ablating them together.

    Attributes:
        label: The label.
        heads: Heads that were ablated together, the strongest first.
        scores: The kind's score of each, in [0, 1]; None where the label has no score.
        labelled: How many of `heads`, the first ones, carry the label. The others are the next by
            score: their excess is at least half of the label's threshold.
        draws: The random heads of each draw.
        notes: Caveats.
        effects: By method (`zero`, `mean`) and measure.
    """

    label: str
    heads: tuple[Head, ...] = ()
    scores: tuple[float | None, ...] = ()
    labelled: int = 0
    draws: tuple[tuple[Head, ...], ...] = ()
    notes: tuple[str, ...] = ()
    effects: dict[str, dict[str, Effect]] = field(default_factory=dict)

    @property
    def main(self) -> Effect | None:
        """The effect that decides: by the first method, on the first measure."""
        measures = next(iter(self.effects.values()), {})
        return next(iter(measures.values()), None)

    @property
    def verdict(self) -> str:
        """The verdict of the deciding effect; or why there is none."""
        return self.main.verdict if self.main else NOT_JUDGED

    def to_json(self) -> dict[str, Any]:
        """The effects as they are written: the deciding one on top, all of them below."""
        main = self.main
        return {
            "verdict": self.verdict,
            "heads": [str(head) for head in self.heads],
            "effect": main.value if main else None,
            "interval": list(main.interval) if main else None,
            "random_effects": list(main.random) if main else [],
            "scores": list(self.scores),
            "labelled": self.labelled,
            "notes": list(self.notes),
            "measures": {
                method: {name: effect.to_json() for name, effect in measures.items()}
                for method, measures in self.effects.items()
            },
            "random_heads": [[str(head) for head in draw] for draw in self.draws],
        }

    @classmethod
    def of_json(cls, label: str, content: dict[str, Any]) -> "LabelEffects":
        """The effects that `to_json` wrote."""
        effects = {
            method: {name: Effect.of_json(effect) for name, effect in measures.items()}
            for method, measures in content["measures"].items()
        }
        return cls(
            label,
            tuple(map(Head.parse, content["heads"])),
            tuple(content["scores"]),
            content["labelled"],
            tuple(tuple(map(Head.parse, draw)) for draw in content["random_heads"]),
            tuple(content["notes"]),
            effects,
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

    def to_frame(self) -> "pd.DataFrame":
        """A table with a row for each label, method and measure, in nats.

        Columns: `label`, `heads`, `method`, `measure`, `effect`, `low` and `high` (the interval),
        `random_low` and `random_high` (over the random draws), `verdict`.
        """
        import pandas as pd

        rows = [
            {
                "label": label,
                "heads": ", ".join(map(str, result.heads)),
                "method": method,
                "measure": measure,
                "effect": effect.value,
                "low": effect.interval[0],
                "high": effect.interval[1],
                "random_low": min(effect.random, default=None),
                "random_high": max(effect.random, default=None),
                "verdict": _word(effect.verdict),
            }
            for label, result in self.labels.items()
            for method, measures in result.effects.items()
            for measure, effect in measures.items()
        ]
        return pd.DataFrame.from_records(rows)

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "made_by": self.made_by,
            "before": self.before,
            "labels": {label: result.to_json() for label, result in self.labels.items()},
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Verification":
        """The result that `to_json` wrote."""
        labels = {
            name: LabelEffects.of_json(name, each) for name, each in content["labels"].items()
        }
        return cls(content["before"], labels, content["made_by"])


def _word(verdict: str) -> str:
    return verdict.partition(":")[0]
