"""Write what a sweep found: `python benchmarks/trajectories.py SWEEP NAME`.

Writes figures/sweeps/NAME.json and its figures NAME_emergence.png, NAME_layers.png and
NAME_models.png from the folder SWEEP; docs/sweeps.md quotes them. `seeds` are eight runs of
`interp train --seed N --steps 2000 --checkpoints 50`, `grid` those of several widths and depths,
`--width W --layers L --steps 1000 --checkpoints 20`, named "L layers, width W".
"""

import itertools
import sys
from pathlib import Path

import numpy as np

import interp
from interp import files
from interp.files import plain_rows
from interp.show import figures
from interp.sweeps.trajectories import Trajectories

FOLDER = Path(__file__).parents[1] / "figures" / "sweeps"


def matching(over: Trajectories) -> dict:
    """How well the heads of models of the same depth match, next to permuted tables."""
    layers = over.table.groupby("model")["layer"].max()
    pairs = [
        over.match(one, other, draws=100)
        for one, other in itertools.combinations(layers.index, 2)
        if layers[one] == layers[other]
    ]
    nulls = [float(np.quantile(pair.null, 0.99)) for pair in pairs]
    names = [(pair.frame["name"].str, pair.frame["other"].str) for pair in pairs]
    return {
        "pairs": len(pairs),
        "similarity": float(np.mean([pair.similarity for pair in pairs])),
        "null_99": float(np.mean(nulls)),
        "above_null": sum(pair.similarity > null for pair, null in zip(pairs, nulls)),
        "same_layer": float(np.mean([(a[:2] == b[:2]).mean() for a, b in names])),
        "same_head": float(np.mean([(a[:] == b[:]).mean() for a, b in names])),
    }


def record(over: Trajectories) -> dict:
    """The numbers of a sweep: orders, onsets, labels, and the strongest heads at the end."""
    onsets, flips, best = over.onsets(), over.flips(), over.strongest()
    last = best[best["step"] == best.groupby("model")["step"].transform("max")]
    models = over.table.drop_duplicates("model")["model"].tolist()
    ends = {model: over.last(model) for model in models}
    induction = {
        model: [n for n, labels in zip(end["name"], end["labels"]) if "induction" in labels]
        for model, end in ends.items()
    }
    return {
        "models": len(models),
        "checkpoints": int(over.table["step"].nunique()),
        "units": int(over.table.groupby(["model", "step"]).ngroups),
        "order": plain_rows(over.order()),
        "labelled": plain_rows(over.order("labelled")),
        "flips": {"mean": float(flips["flips"].mean()), "most": int(flips["flips"].max())},
        "matching": matching(over),
        "induction_heads": induction,
        "last": plain_rows(last[["model", "kind", "name", "score", "low", "high", "null_99"]]),
        "onsets": plain_rows(onsets),
        "versions": files.versions(),
    }


if __name__ == "__main__":
    out, name = sys.argv[1:]
    over = interp.trajectories(out)
    files.write_json(FOLDER / f"{name}.json", record(over), indent=None)
    depths = over.table.groupby("model")["layer"].max()
    deepest = None if depths.nunique() == 1 else str(depths.index[-1])
    two = Trajectories.of(over.table[over.table["model"].isin(depths.index[depths == 1])])
    drawn = {
        "emergence": figures.emergence_curves(two),  # Of the models of two layers.
        "layers": figures.layer_map(over, deepest),
        "models": figures.model_comparison(over),
    }
    figures.save_figures({f"{name}_{n}": of for n, of in drawn.items()}, FOLDER, ["png"])
    print(over)  # noqa: T201
