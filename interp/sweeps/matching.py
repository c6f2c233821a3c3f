"""Which heads of two models do the same: optimal assignment on their scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from interp.errors import Count, InputError, Seed, checked
from interp.kinds.builtin import KINDS, MORE, known_kind


@dataclass(frozen=True, eq=False)
class HeadMatch:
    """The heads of two models in pairs, each with its similarity and the null.

    Attributes:
        frame: A row per pair: `name` and `other`; `similarity`, 1 minus the mean difference of
            their scores, in [0, 1]; `null_99`, the 99 % quantile of the similarity of that head's
            partner where nothing matches.
        similarity: Mean over the pairs.
        null: The mean similarity for each permutation, in which the scores of each kind are dealt
            anew to the heads of the other model, and all heads are matched again.
    """

    frame: pd.DataFrame
    similarity: float
    null: Float[np.ndarray, " draw"]

    def __repr__(self) -> str:
        return (
            f"HeadMatch({len(self.frame)} pairs, similarity {self.similarity:.3f}; permuted"
            f" {self.null.mean():.3f}, 99 % quantile {np.quantile(self.null, 0.99):.3f})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Copy of the pairs."""
        return self.frame.copy()


@checked
def match_heads(one: Any, other: Any, *, draws: Count = 200, seed: Seed = 0) -> HeadMatch:
    """Pair the heads of two tables so that the scores of the pairs differ least (Kuhn 1955).

    Args:
        one: Table of a scan; if the tables differ in size, all heads of the smaller one get a
            partner.
        other: Table of another model, or of the same one at another time.
        draws: Number of permutations for the null.
        seed: Seed of the permutations.
    """
    kinds = scored_kinds(one)
    names = [name for kind in kinds for name in (kind, f"text_{kind}")]
    whole = [n for n in names if n in one and n in other and one[n].notna().any()]
    ours, theirs = (table[whole].to_numpy(float, na_value=np.nan) for table in (one, other))
    measured = ~(np.isnan(ours).any(0) | np.isnan(theirs).any(0))
    if not measured.any():
        raise InputError("tables must share scores that all heads have, got none")
    ours, theirs = ours[:, measured], theirs[:, measured]
    rows, columns, similarity = _matched(ours, theirs)
    generator = np.random.default_rng(seed)
    drawn = np.full((draws, len(ours)), np.nan)
    for draw in drawn:
        places, _, values = _matched(ours, generator.permuted(theirs, axis=0))
        draw[places] = values
    frame = pd.DataFrame(
        {
            "name": one["name"].to_numpy()[rows],
            "other": other["name"].to_numpy()[columns],
            "similarity": similarity,
            "null_99": np.nanquantile(drawn, 0.99, axis=0)[rows],
        }
    )
    return HeadMatch(frame, float(similarity.mean()), np.nanmean(drawn, axis=1))


def scored_kinds(frame: Any) -> dict[str, str]:
    """The kinds that have scores in a table, the most specific first, with their labels.

    A sweep may hold causal and bidirectional models, and columns without values.
    """
    there = [name for name in map(str, frame.columns) if f"{name}_chance" in frame]
    there = [name for name in there if frame[name].notna().any() and not name.startswith("text_")]
    order = [*KINDS, *MORE]
    there.sort(key=lambda name: order.index(name) if name in order else len(order))
    known = ((name, known_kind(name)) for name in there)
    return {name: kind.label if kind else name.replace("_", " ") for name, kind in known}


def _matched(
    ours: Float[np.ndarray, "head score"], theirs: Float[np.ndarray, "other score"]
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, " pair"]]:
    alike = 1 - np.stack([np.abs(theirs - row).mean(-1) for row in ours])
    rows, columns = linear_sum_assignment(alike, maximize=True)
    return rows, columns, alike[rows, columns]
