"""A page to browse a sweep: every head over the checkpoints of every model."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from interp.errors import checked
from interp.show.pages import webpage
from interp.sweeps.matching import scored_kinds
from interp.sweeps.trajectories import Trajectories

_MOST = 500_000
"""Scores on a page; of more, each model shows some of its checkpoints."""

_COLUMNS = ("score", "low", "high", "null_99")


@dataclass(frozen=True, eq=False)
class SweepPage(webpage.Html):
    """A page of trajectories, made by `sweep_page`."""

    title: str
    over: Trajectories

    def __repr__(self) -> str:
        return f"SweepPage({self.title}: {self.over!r})"

    def to_html(self) -> str:
        """The page: one HTML document without any reference to the outside."""
        data = self._data()
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n"
            for row in onset_rows(self.over)
        )
        return webpage.sweep_page(self.title, data, rows=rows)

    def _data(self) -> dict[str, Any]:
        """What the script draws: scores in thousandths, by model, kind, head and checkpoint."""
        scores: Any = self.over.scores
        every = math.ceil(len(scores) / _MOST)
        onsets, labels = self.over.onsets(), self.over.flips().set_index(["model", "name"])
        models = []
        for model, rows in scores.groupby("model", sort=False):
            steps = sorted(rows["step"].unique())[::-1][::every][::-1]
            heads = rows.drop_duplicates("name").sort_values(["layer", "head"])
            names, kinds = heads["name"].tolist(), {}
            for kind, of in rows.dropna(subset=["score"]).groupby("kind", sort=False):
                tables = (of.pivot(index="name", columns="step", values=c) for c in _COLUMNS)
                kinds[kind] = [_thousandths(t.reindex(names)[steps].to_numpy()) for t in tables]
            first: Any = onsets[onsets["model"] == model]
            first = first.sort_values(["onset", "layer", "head"])
            first = first[["name", "kind", "after", "onset", "labelled"]].astype(object)
            models.append(
                {
                    "name": model,
                    "steps": [int(step) for step in steps],
                    "heads": names,
                    "layer": heads["layer"].tolist(),
                    "labels": [labels.loc[(model, name), "labels"] for name in names],
                    "kinds": kinds,
                    "onsets": first.where(first.notna(), None).to_numpy().tolist(),
                }
            )
        words = scored_kinds(self.over.table)
        kinds = [{"kind": kind, "word": words[kind]} for kind in self.over.kinds]
        notes = [f"The curves show one of {every} checkpoints."] * (every > 1)
        return {"models": models, "kinds": kinds, "notes": notes}


@checked
def sweep_page(over: Any, title: str = "When kinds of heads form") -> SweepPage:
    """A page to browse `interp.trajectories(out)`: `.save("sweep.html")`, or show it in a notebook.

    A card per kind has the score of the strongest head of each model over the checkpoints, from 0
    to 1, and the layers of the chosen model. Choose a head to see its own score with its 95 %
    interval and its null. A table has all onsets.

    Args:
        over: `Trajectories`.
        title: Title of the page.
    """
    return SweepPage(title, over)


def onset_rows(over: Trajectories) -> list[tuple[str, ...]]:
    """Per kind: median onset with its 95 % interval, models, and the same of the first label."""
    labelled = over.order("labelled").set_index("kind").to_dict("index")
    rows = []
    for of in over.order().to_dict("records"):
        both, word = (of, labelled.get(of["kind"])), of["kind"].replace("_", " ")
        spans = [f"{o['median']:g} [{o['low']:g}, {o['high']:g}]" if o else "-" for o in both]
        shares = [f"{o['models'] if o else 0} of {of['of']}" for o in both]
        rows.append((word, spans[0], shares[0], spans[1], shares[1]))
    return rows


def _thousandths(values: np.ndarray) -> list[list[int | None]]:
    return [[None if math.isnan(x) else round(1000 * x) for x in row] for row in values]
