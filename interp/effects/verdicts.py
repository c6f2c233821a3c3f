"""What taking heads out showed: effects with their intervals, in words and as a file."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.errors import InputError
from interp.files import staged
from interp.heads import Head

SCHEMA_VERSION = 1

FEW_DRAWS = 20
"""Random draws below which they say little of what random heads can do."""

NOT_JUDGED = "not judged: no heads of that label"


@dataclass(frozen=True)
class Effect:
    """What taking heads out does to one measure, in nats: after minus before.

    Attributes:
        value: Mean over rows; above 0, the model is worse off without the heads.
        interval: The middle 95 % of such means over rows drawn anew, with replacement.
        random: The same mean for each random draw of other heads.
    """

    value: float
    interval: tuple[float, float]
    random: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """In words, with the interval.

        An effect is one if the whole interval lies beyond every random draw, and beyond 0;
        there is none if the whole interval lies within them; else it is not decided. Fewer than
        `FEW_DRAWS` draws are said to be few.
        """
        low, high = self.interval
        if not self.random:
            amount = f"{self.value:+.2f} nats [{low:+.2f}, {high:+.2f}]"
            return f"not judged: {amount}, but the same layers have no other heads to compare with"
        few = " (few draws)" if len(self.random) < FEW_DRAWS else ""
        least, most = min(self.random), max(self.random)
        if low > max(most, 0):
            amount = f"{self.value:.2f} nats [{low:.2f}, {high:.2f}]"
            return (
                f"causal{few}: costs {amount}, random heads of the same layers at most {most:.2f}"
            )
        if high < min(least, 0):
            amount = f"{-self.value:.2f} nats [{-high:.2f}, {-low:.2f}]"
            return (
                f"helps when removed{few}: saves {amount},"
                f" random heads of the same layers at most {max(-least, 0):.2f}"
            )
        inside = min(least, 0) <= low and high <= max(most, 0)
        word = "no effect beyond random heads" if inside else "not decided"
        return (
            f"{word}{few}: {self.value:+.2f} nats [{low:+.2f}, {high:+.2f}],"
            f" random heads of the same layers {least:+.2f} to {most:+.2f}"
        )


@dataclass(frozen=True)
class LabelEffects:
    """The heads of one label, and what taking them out does.

    Attributes:
        label: The label.
        heads: What was taken out together, the strongest first.
        scores: The kind's score of each, in [0, 1]; None where the label has none.
        labelled: How many of `heads`, the first ones, carry the label. The others come next by
            score: their excess is at least half of what the label needs.
        draws: The random heads of each draw.
        notes: What to keep in mind.
        effects: By method (`zero`, `mean`) and measure.
    """

    label: str
    heads: tuple[Head, ...] = ()
    scores: tuple[float | None, ...] = ()
    labelled: int = 0
    draws: tuple[tuple[Head, ...], ...] = ()
    notes: tuple[str, ...] = ()
    effects: dict[str, dict[str, Effect]] | None = None

    @property
    def main(self) -> Effect | None:
        """The effect that decides: by the first method, on the first measure."""
        if not self.effects:
            return None
        measures = next(iter(self.effects.values()))
        return next(iter(measures.values()))

    @property
    def verdict(self) -> str:
        """In words, with the interval; or why there is none."""
        return self.main.verdict if self.main else NOT_JUDGED

    def to_json(self) -> dict[str, Any]:
        """As it is written: the deciding effect on top, everything below."""
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
                method: {
                    name: {
                        "verdict": effect.verdict,
                        "effect": effect.value,
                        "interval": list(effect.interval),
                        "random_effects": list(effect.random),
                    }
                    for name, effect in measures.items()
                }
                for method, measures in (self.effects or {}).items()
            },
            "random_heads": [[str(head) for head in draw] for draw in self.draws],
        }


@dataclass(frozen=True)
class Verification:
    """What `interp.effects.verify.verify` found.

    Attributes:
        before: Each measure with all heads in place, mean over rows, in nats.
        labels: By label.
        made_by: Model, probes with the token ids that were run, seed, choices and versions.
    """

    before: dict[str, float]
    labels: dict[str, LabelEffects]
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        verdicts = (f"{label} {r.verdict.partition(':')[0]}" for label, r in self.labels.items())
        return f"Verification({self.made_by.get('model', 'a model')}: {', '.join(verdicts)})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.json` file, whole or not at all.

        Raises:
            InputError: If the name ends otherwise, or the folder cannot be written to.
        """
        path = as_json_path(path)
        content = {
            "schema_version": SCHEMA_VERSION,
            "made_by": self.made_by,
            "before": self.before,
            "labels": {label: found.to_json() for label, found in self.labels.items()},
        }
        with staged(path.parent) as scratch:
            text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
            (scratch / path.name).write_text(text + "\n", encoding="utf-8")


def as_json_path(path: str | os.PathLike[str]) -> Path:
    """`path`, if a result can be written there.

    Raises:
        InputError: If it does not end in `.json`, or is a folder.
    """
    path = Path(path)
    if path.suffix != ".json" or path.is_dir():
        raise InputError(f"out must be a file that ends in .json, got {path}")
    return path
