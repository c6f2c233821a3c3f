"""When each kind of head forms: scores over checkpoints, onsets, and labels that change."""

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import InputError, Seed, checked, quoted
from interp.sweeps.matching import HeadMatch, match_heads, scored_kinds

_HEAD = ["model", "layer", "head", "name"]


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The scores of every head over the checkpoints of one or several models.

    Attributes:
        scores: A row per model, checkpoint, head and kind: `model`, `step`, `layer`, `head`,
            `name`, `kind`, `score`, its 95 % interval `low` to `high`, `null_99` (99 % quantile of
            the null), `holds` (whether the head has the kind's label).
        table: The rows of the sweep that have results, sorted.
    """

    scores: pd.DataFrame
    table: pd.DataFrame

    @classmethod
    def of(cls, frame: Any) -> "Trajectories":
        """Those in a table of scans, such as `read_sweep` returns, also of several sweeps.

        Raises:
            InputError: If it has no scans, no nulls, or two results of the same checkpoint.
        """
        frame = frame[frame["failed"].isna()].reset_index(drop=True)
        if "label" not in frame or frame.empty:
            raise InputError("out must be the folder of a sweep of scans, got one without labels")
        twice = frame[frame.duplicated(["model", "step", "layer", "head"])]
        if not twice.empty:
            place = f"{twice['model'].iloc[0]} {twice['revision'].iloc[0]}"
            raise InputError(
                f"out must have one result of each checkpoint and step, got two for {place}:"
                " delete the files of the old one"
            )
        frame = frame.sort_values(["model", "layer", "head", "step"], ignore_index=True)
        pieces = []
        for name, label in scored_kinds(frame).items():
            columns = [name, f"{name}_low", f"{name}_high", f"{name}_null_99"]
            if {*columns} <= {*frame.columns} and frame[columns[3]].notna().any():
                one = frame[["model", "revision", "step", "layer", "head", "name"]].assign(
                    kind=name
                )
                one[["score", "low", "high", "null_99"]] = frame[columns].astype(float).to_numpy()
                pieces.append(one.assign(holds=[label in labels for labels in frame["labels"]]))
        if not pieces:
            raise InputError("out must be of a sweep with nulls, got none: sweep without quick")
        return cls(pd.concat(pieces, ignore_index=True), frame)

    def __repr__(self) -> str:
        models, steps = self.table["model"].nunique(), self.table["step"].nunique()
        first = ", ".join(
            f"{row['kind'].replace('_', ' ')} {row['median']:g} [{row['low']:g}, {row['high']:g}]"
            for row in self.order().to_dict("records")
        )
        return f"Trajectories({models} models, {steps} checkpoints; onset: {first or 'of no kind'})"

    @property
    def kinds(self) -> list[str]:
        """The kinds that have scores with a null, the most specific first."""
        return list(dict.fromkeys(self.scores["kind"]))

    def to_frame(self) -> pd.DataFrame:
        """Copy of `scores`."""
        return self.scores.copy()

    def onsets(self) -> pd.DataFrame:
        """When each head became a head of each kind.

        Returns:
            A row per model, head and kind that has an onset. `onset` is the step of the first
            checkpoint whose lower interval is above the null; it happened after the step `after`,
            that of the checkpoint before, missing if it is the first. `labelled` is the step of
            the first checkpoint with the label, missing if there is none.
        """
        frame: Any = self.scores.assign(clear=self.scores["low"] > self.scores["null_99"])
        keys = [*_HEAD, "kind"]
        frame["after"] = frame.groupby(keys)["step"].shift()
        first = frame[frame["clear"]].drop_duplicates(keys).set_index(keys).sort_index()
        labelled = frame[frame["holds"]].groupby(keys)["step"].min().rename("labelled")
        first = first[["step", "after"]].rename(columns={"step": "onset"}).join(labelled)
        return first.astype("Int64").reset_index()

    @checked
    def order(self, by: str = "onset", *, seed: Seed = 0) -> pd.DataFrame:
        """The kinds by their onset in a model, that of its first head.

        Args:
            by: `onset` (the score is above its null) or `labelled` (a head has the label).
            seed: Seed of the bootstrap.

        Returns:
            A row per kind, the earliest first: `models` with an onset `of` all; `median` of their
            onsets in steps; `low` and `high`, its 95 % interval over the models (bootstrap), of one
            model the two checkpoints that the onset lies between; `before_next`, the share of
            the models with both onsets in which it comes before the kind of the next row.
        """
        if by not in ("onset", "labelled"):
            raise InputError(f"by must be onset or labelled, got {quoted(by)}")
        onsets: Any = self.onsets().dropna(subset=[by])
        steps = onsets.astype({by: float}).pivot_table(
            index="model", columns="kind", values=by, aggfunc="min"
        )
        models = self.table["model"].nunique()
        before: Any = self.scores["step"]
        generator, rows = np.random.default_rng(seed), []
        for kind in steps:
            known = steps[kind].dropna().to_numpy(float)
            drawn = np.median(generator.choice(known, (2000, len(known))), axis=1)
            low, high = np.quantile(drawn, [0.025, 0.975])
            if len(known) == 1:
                earlier = before[before < known[0]]
                low = float(earlier.max()) if len(earlier) else known[0]
            rows.append((kind, len(known), models, float(np.median(known)), low, high))
        columns = ["kind", "models", "of", "median", "low", "high"]
        order = pd.DataFrame(rows, columns=pd.Index(columns)).sort_values("median", kind="stable")
        ordered = order["kind"].tolist()
        shares = [
            float((steps[one] < steps[other])[steps[[one, other]].notna().all(axis=1)].mean())
            for one, other in pairwise(ordered)
        ]
        return order.assign(before_next=[*shares, np.nan][: len(order)]).reset_index(drop=True)

    def flips(self) -> pd.DataFrame:
        """How often the label of each head changes from a checkpoint to the next.

        Returns:
            A row per model and head: `flips`, `last` (step of the last one) and `labels` in their
            order.
        """

        def of_head(rows: Any) -> pd.Series:
            labels = rows["label"].astype(str)
            changed = labels.ne(labels.shift()) & (np.arange(len(rows)) > 0)
            last = rows["step"][changed].max() if changed.any() else pd.NA
            path = " > ".join(labels[changed | (np.arange(len(rows)) == 0)])
            return pd.Series({"flips": int(changed.sum()), "last": last, "labels": path})

        columns = ["label", "step"]
        table: Any = self.table
        return table.groupby(_HEAD)[columns].apply(of_head).reset_index()

    def strongest(self) -> pd.DataFrame:
        """The row of `scores` of the strongest head, per model, step and kind."""
        known: Any = self.scores.dropna(subset=["score"])
        best = known.groupby(["model", "kind", "step"], sort=True)["score"].idxmax()
        return known.loc[best].reset_index(drop=True)

    def last(self, model: str) -> pd.DataFrame:
        """The table of the last checkpoint of a model."""
        rows: Any = self.table[self.table["model"] == model]
        if rows.empty:
            known = ", ".join(dict.fromkeys(self.table["model"]))
            raise InputError(f"model must be one of {known}, got {quoted(model)}")
        return rows[rows["step"] == rows["step"].max()].reset_index(drop=True)

    def match(self, model: str, other: str, **options: Any) -> HeadMatch:
        """Which heads of two models do the same, at their last checkpoints: `match_heads`."""
        return match_heads(self.last(model), self.last(other), **options)


def trajectories(out: str | os.PathLike[str]) -> Trajectories:
    """How the heads change over the checkpoints that `interp.sweep` scanned into `out`.

    Args:
        out: Folder of a sweep, with nulls: not of `quick=True`.

    Returns:
        `Trajectories`: `to_frame()`, `onsets()` of each head and kind, `order()` of the kinds with
        intervals, `flips()` of labels, `match()` of the heads of two models. The step of a
        checkpoint is the number in its revision.

    Raises:
        InputError: If `out` has no scans, or two results of the same checkpoint.

    Example:
        >>> import tempfile
        >>> import interp
        >>> toys = [interp.build_circuit("rotary", 64, 65, match=m) for m in (False, True, True)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = interp.sweep({"toy": toys}, out=folder, rows=4, kinds="induction, sink")
        ...     onsets = interp.trajectories(folder).onsets()
        >>> onsets[onsets["kind"] == "induction"][["name", "after", "onset"]].to_dict("records")
        [{'name': 'L1H2', 'after': 0, 'onset': 1}]
    """
    from interp.sweeps.sweep import read_sweep  # Loads models, which figures do not need.

    return Trajectories.of(read_sweep(out))
