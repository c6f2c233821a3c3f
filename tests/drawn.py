"""Small results to draw: scans, effects of heads, and a sweep."""

import itertools

import numpy as np
import pandas as pd

from interp.effects.head_effects import HeadEffects
from interp.heads import Head
from interp.kinds.builtin import KINDS, kinds_of
from interp.kinds.labels import HeadLabel
from interp.scan.table import HeadScan
from interp.sweeps.trajectories import Trajectories

CAUSAL = kinds_of(True)
MADE_BY = {
    "model": "planted",
    "bos": 0,
    "seed": 3,
    "dtype": "float32",
    "device": "cpu",
    "tokenizer": False,
    "bos_text": None,
    "probes": [{"parts": ["repeated"], "rows": 1, "length": 33, "periods": [16]}],
    "scored_on": {"induction": "repeated", "sink": "random"},
}


def made_up(layers, heads, **made_by):
    """Any number of heads, every third one labelled, some not measured."""
    rows = []
    for layer, head in itertools.product(range(layers), range(heads)):
        holds = (layer + head) % 3 == 0
        scores = dict.fromkeys(CAUSAL, 0.9 if holds else 0.1)
        if layer == 1:
            del scores["induction"], scores["duplicate_token"]
        labels = tuple(KINDS[kind].label for kind in scores) if holds else ("mixed",)
        missing = {} if "induction" in scores else {"induction": "no token is repeated"}
        rows.append(HeadLabel(Head(layer, head), labels[0], labels, scores, {}, missing))
    return HeadScan.of(rows, made_by=MADE_BY | made_by)


def explained_scan(layers, heads):
    """A scan in which each head is explained by another kind, the last one by none."""
    frame, kinds = made_up(layers, heads).frame, [*CAUSAL]
    place = np.arange(len(frame))
    ends = {"explained_null": 0.2, "explained_low": 0.1, "explained_high": 0.9}
    by = {f"explained_by_{kind}": (place % 7 == n) / 2 for n, kind in enumerate(kinds)}
    frame = frame.assign(outside_sinks=0.5, explained=place / len(place), **ends, **by)
    frame.loc[place[-1], ["explained", "explained_low", "explained_high", *by]] = None
    return HeadScan(frame, MADE_BY)


def effects_of(rows: list[dict], **made_by) -> HeadEffects:
    ends = {"low": -0.5, "high": 0.5, "random_low": -0.1, "random_high": 0.1}
    frame = pd.DataFrame([{"name": str(Head(r["layer"], r["head"])), **ends, **r} for r in rows])
    return HeadEffects(frame, {"model": "a model", "unit": "logits", **made_by})


STEPS = (0, 100, 200)
ONSETS = {"a": 100, "b": 200}


def row(model, step, layer):
    """The head of layer 1 becomes an induction head, that of layer 0 stays a sink."""
    formed = step >= ONSETS[model] and layer == 1
    scores = {"induction": 0.9 if formed else 0.05, "sink": 0.7 if layer == 0 else 0.2}
    label = "sink" if layer == 0 else "induction" if formed else "mixed"
    around = {f"{k}_low": x - 0.02 for k, x in scores.items()}
    around |= {f"{k}_high": x + 0.02 for k, x in scores.items()}
    around |= {f"{k}_null_99": 0.3 for k in scores} | {f"{k}_chance": 0.05 for k in scores}
    head = {"layer": layer, "head": 0, "name": f"L{layer}H0", "failed": None}
    labels = {"model": model, "revision": f"checkpoint-{step}", "step": step}
    return {**labels, **head, **scores, **around, "label": label, "labels": [label]}


def sweep_of_two():
    """Two models at three checkpoints."""
    return Trajectories.of(
        pd.DataFrame([row(m, step, layer) for m in ONSETS for step in STEPS for layer in (0, 1)])
    )
