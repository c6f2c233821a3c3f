"""The loss of a model when its cache drops the first tokens, and which heads depend on them.

A cache of the last tokens holds most of what the next token depends on, and still a model with
attention sinks on its first token fails once that token has left the cache; with a few first
tokens kept in a cache of the same size it continues as before (Xiao et al. 2023, arXiv 2309.17453,
sections 3.1 and 3.2, who compare 0 + 1024 with 4 + 1020 tokens). This experiment measures it on
the project's texts, with two controls: other early tokens kept instead of the first, which would
help as much if the model only needed more room, and positions in the text instead of positions in
the cache.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from interp.effects import windowed
from interp.effects.ablate import all_heads
from interp.effects.losses import interval
from interp.effects.saved import Report
from interp.effects.windowed import Cut
from interp.errors import Count, InputError, Whole, checked
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.builtin import LABELS
from interp.models import Model
from interp.scan.plan import encoded_passages
from interp.scan.record import Record
from interp.scan.table import HeadScan, check_scan

_MASSES = ("on_first", "on_others", "on_first_kept")


def conditions(size: int, kept: int) -> dict[str, tuple[str, Cut | None]]:
    """The caches that are compared, in words: the full one, and those of `size` tokens."""
    last = size - kept
    in_text = Cut(size, kept, renumbered=False)
    other = f"tokens {kept} to {2 * kept - 1} and the last {last}"
    return {
        "full": ("everything", None),
        "window": (f"the last {size} tokens", Cut(size)),
        "sink_window": (f"the first {kept} and the last {last}", Cut(size, kept)),
        "sink_window_text_positions": ("the same, numbered as in the text", in_text),
        "other_window": (other, Cut(size, kept, first=kept)),
    }


class SinkExperiment(Report):
    """The result of `sink_experiment`, a mapping; losses in nats.

    - `caches`: the contents of each cache in words, by the name of the condition;
    - `loss` by condition, the mean over the counted queries; `loss_interval`: its 95 % interval
      over rows; `cost`, `cost_interval`: the same of the loss minus that of `full`, by row;
    - `loss_by_position` by condition: the mean over rows for each query;
    - `counted_from`: the first query that counts, where every cut cache has dropped tokens;
    - `recovered`: the share of the window's cost that the kept tokens save; None if there is no
      cost to save;
    - `labels`: for each label the cost when only its heads are cut, and when they keep the
      first tokens (numbered as in the text);
    - `heads`: each head's mean attention on the first `kept` tokens with the full cache (which
      the cut removes), on the others that are cut, and on the kept ones under `sink_window`;
    - `verdict`, in words, and `made_by`.
    """

    def __repr__(self) -> str:
        return f"SinkExperiment({self['made_by']['model']}: {self['verdict']})"

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each cache: its loss and cost in nats, with 95 % intervals."""
        columns: dict[str, Any] = {"cache": self["caches"]}
        for measure in ("loss", "cost"):
            columns[measure] = self[measure]
            for i, end in enumerate(("low", "high")):
                ends = self[f"{measure}_interval"]
                columns[f"{measure}_{end}"] = {name: ends[name][i] for name in ends}
        return pd.DataFrame(columns).rename_axis("condition").reset_index()


@checked
def sink_experiment(
    model: Model,
    scan: HeadScan,
    *,
    size: Count = 128,
    kept: Count = 4,
    length: Whole = 384,
    rows: Annotated[Whole, Field(ge=2)] = 6,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SinkExperiment:
    """The loss of `model` on text with its cache whole and cut, and which heads the cut affects.

    A row is counted from query `size + kept` on, where every cut cache has dropped tokens.

    Args:
        model: A model with rotary positions and a tokenizer.
        scan: Labels of its heads.
        size: Number of tokens in a cut cache.
        kept: Number of first tokens that stay.
        length: Tokens in a row of text, BOS included.
        rows: Number of rows at most; fewer if the texts are used up.
        progress: Callback, called with the runs done and their total number.

    Raises:
        InputError: If the model cannot be measured this way (`interp.effects.windowed.check`).
    """
    check_sizes(size=size, kept=kept, length=length)
    caches, start = conditions(size, kept), size + kept
    check_scan(scan, model)
    windowed.check(model, length)
    text = probes.text(encoded_passages(model).values(), rows=rows, length=length, bos=model.bos)
    if text is None or len(text.tokens) < 2:
        raise InputError(f"length must leave at least 2 rows of text, got {length}")
    groups = _groups(model, scan)
    total, done = len(caches) + 2 * len(groups), itertools.count(1)
    masses: dict[tuple[str, int], list[Float[Tensor, " head"]]] = defaultdict(list)
    hidden = ~Cut(size).visible(length)[start:]
    hidden[:, :kept] = False

    def look(suffix: str, layer: int, pattern: Float[Tensor, "row head query key"]) -> None:
        late = pattern[0, :, start:]
        others = (late * hidden.to(late.device)).sum(-1)
        masses["on_first" + suffix, layer].append(late[..., :kept].sum(-1).mean(-1).cpu())
        masses["on_others" + suffix, layer].append(others.mean(-1).cpu())

    def run(name: str, **options: Any) -> Float[Tensor, "row query"]:
        by_query = windowed.losses(model, text.tokens, caches[name][1], **options)
        progress(next(done), total)
        return by_query

    looks = {"full": partial(look, ""), "sink_window": partial(look, "_kept")}
    by_query = {name: run(name, visit=looks.get(name)) for name in caches}
    counted = {name: losses[:, start:] for name, losses in by_query.items()}
    cost = {name: losses - counted["full"] for name, losses in counted.items()}
    means = {name: _mean(losses) for name, losses in cost.items()}
    labels_of = dict(zip(scan.frame["name"], scan.frame["label"], strict=True))
    of_heads = [
        {"name": str(head), "label": labels_of[str(head)]}
        | {
            name: float(torch.stack(masses[name, head.layer]).mean(0)[head.head])
            for name in _MASSES
        }
        for head in all_heads(model)
    ]
    labels: dict[str, dict[str, Any]] = {}
    for label, heads in groups.items():
        members = [head for head in of_heads if head["label"] == label]
        means_of = {name: sum(head[name] for head in members) / len(members) for name in _MASSES}
        labels[label] = {"heads": len(members), **means_of}
        for name, cache in {"cost": "window", "cost_kept": "sink_window_text_positions"}.items():
            more = run(cache, heads=heads)[:, start:] - counted["full"]
            labels[label] |= {name: _mean(more), f"{name}_interval": interval(more)}
    made_by = Record.of_model(
        model,
        size=size,
        kept=kept,
        length=length,
        rows=len(text.tokens),
        tokens=text.record()["tokens"],
        labels_from={
            n: scan.made_by[n] for n in ("digest", "seed", "thresholds") if n in scan.made_by
        },
    )
    result = {
        "schema_version": 1,
        "made_by": made_by,
        "caches": {name: words for name, (words, _) in caches.items()},
        "counted_from": start,
        "loss": {name: _mean(losses) for name, losses in counted.items()},
        "loss_interval": {name: interval(losses) for name, losses in counted.items()},
        "cost": means,
        "cost_interval": {name: interval(losses) for name, losses in cost.items()},
        "recovered": 1 - means["sink_window"] / means["window"] if means["window"] > 0 else None,
        "loss_by_position": {name: losses.mean(0).tolist() for name, losses in by_query.items()},
        "heads": of_heads,
        "labels": labels,
    }
    return SinkExperiment({**result, "verdict": verdict(result)})


def check_sizes(*, size: int, kept: int, length: int, context: int | None = None) -> None:
    """Refuse a cache without room for a last token, and a row too short to drop a token.

    `context` is the model's, if it is known.
    """
    Cut(size, kept)
    if length < size + kept + 2:
        raise InputError(
            f"length must be at least size + kept + 2, {size + kept + 2} tokens, got {length}"
        )
    if context is not None and length > context:
        raise InputError(f"length must fit the model's context of {context} tokens, got {length}")


def verdict(result: Mapping[str, Any]) -> str:
    """The finding in a sentence.

    The window alone is clearly worse if the interval of its cost is above 0 and above that of
    the window with the first tokens kept.
    """
    size, kept = result["made_by"]["size"], result["made_by"]["kept"]
    ends = result["cost_interval"]
    worse = ends["window"][0] > max(0, ends["sink_window"][1])
    alone, with_first = (
        f"{result['cost'][name]:+.2f} nats [{ends[name][0]:+.2f}, {ends[name][1]:+.2f}]"
        for name in ("window", "sink_window")
    )
    return (
        f"the window alone is {'' if worse else 'not '}clearly worse: a cache of the last {size}"
        f" tokens costs {alone}, one of the first {kept} and the last {size - kept} {with_first}"
    )


def _groups(model: Model, scan: HeadScan) -> dict[str, Bool[Tensor, "layer head"]]:
    """The heads of each label, in the usual order of labels; each head counts for its first."""
    names = scan.frame.groupby("label")["name"]
    order = [*LABELS.values(), *sorted({*map(str, scan.frame["label"])} - set(LABELS.values()))]
    groups = {label: torch.zeros(model.n_layers, model.n_heads) > 0 for label in order}
    for label, members in names:
        for head in map(Head.parse, members):
            groups[str(label)][head] = True
    return {label: heads for label, heads in groups.items() if heads.any()}


def _mean(values: Float[Tensor, "row query"]) -> float:
    return float(values.double().mean())
