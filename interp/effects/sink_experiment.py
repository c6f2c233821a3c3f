"""What a model loses when its cache lets go of the first tokens, and which heads lose it.

A cache of the last tokens alone is enough for most of what a text says, and still a model that
rests on its first token falls apart once that token has left; with a few first tokens kept in the
same room it goes on as before (Xiao et al. 2023, arXiv 2309.17453, sections 3.1 and 3.2, who
compare 0 + 1024 with 4 + 1020 tokens). Here that is measured on text of the project's own, with
two controls: other early tokens kept instead of the first, which a model that merely wants more
room would take as well, and positions of the text instead of those in the cache.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.effects import windowed
from interp.effects.windowed import Cut
from interp.errors import InputError, whole
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.evidence import interval
from interp.kinds.labels import LABELS
from interp.kinds.mass import Tally
from interp.models import Model
from interp.models.hooks import attention_layers
from interp.scan.plan import encoded_passages
from interp.scan.record import Record
from interp.scan.table import HeadScan, check_scan

SCHEMA_VERSION = 1

CONDITIONS = {
    "full": "everything",
    "window": "the last {size} tokens",
    "sink_window": "the first {kept} and the last {last}",
    "sink_window_text_positions": "the same, numbered as in the text",
    "other_window": "tokens {kept} to {end} and the last {last}",
}
"""What the cache holds, by the name of the condition."""


def conditions(size: int, kept: int) -> dict[str, Cut | None]:
    """The caches that are compared: the full one, and others of `size` tokens."""
    return {
        "full": None,
        "window": Cut(size),
        "sink_window": Cut(size, kept),
        "sink_window_text_positions": Cut(size, kept, renumbered=False),
        "other_window": Cut(size, kept, first=kept),
    }


def sink_experiment(
    model: Model,
    scan: HeadScan,
    *,
    size: int = 128,
    kept: int = 4,
    length: int = 384,
    rows: int = 6,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """The loss of `model` on text with its cache whole and cut, and which heads the cut hurts.

    A row is counted from query `size + kept` on, where every cut cache has let tokens go.

    Args:
        model: With rotary positions and a tokenizer.
        scan: Its heads' labels.
        size: Tokens in a cut cache.
        kept: Of the first tokens, how many stay.
        length: Tokens in a row of text, BOS included.
        rows: How many at most; fewer if the texts are used up.
        progress: Called with the runs done and their total number.

    Returns:
        Plain values, ready for JSON, losses in nats:
        - `loss` by condition, the mean over the counted queries; `loss_interval`: its 95 % interval
          over rows; `cost`, `cost_interval`: the same of the loss minus that of `full`, by row;
        - `loss_by_position` by condition: the mean over rows for each query;
        - `recovered`: the share of the window's cost that the kept tokens save; None if there is no
          cost to save;
        - `labels`: for each label the cost when only its heads are cut, and when they keep the
          first tokens (numbered as in the text);
        - `heads`: each head's mean attention on the first `kept` tokens with the full cache (what
          the cut takes), on the others that are cut, and on the kept ones under `sink_window`;
        - `verdict`, in words, and `made_by`.

    Raises:
        InputError: If the model will not do (`interp.effects.windowed.check`), the scan is another
            model's, the numbers do not fit, or there are fewer than two rows of text.
    """
    check_sizes(size=size, kept=kept, length=length)
    whole("rows", rows, least=2)
    caches, start = conditions(size, kept), size + kept
    check_scan(scan, model)
    windowed.check(model, length)
    text = probes.text(encoded_passages(model), rows=rows, length=length, bos=model.bos)
    if text is None or len(text.tokens) < 2:
        found = 0 if text is None else len(text.tokens)
        raise InputError(f"length must leave at least 2 rows of text, got {found} of {length}")
    groups = _groups(model, scan)
    total = len(caches) + 2 * len(groups)
    looks = {name: _Masses(Cut(size), kept, start) for name in ("full", "sink_window")}
    by_row, done = {}, 0
    for name, cut in caches.items():
        by_row[name] = windowed.losses(model, text.tokens, cut, visit=looks.get(name))
        done += 1
        progress(done, total)
    by_label = {}
    for label, heads in groups.items():
        for name in ("window", "sink_window_text_positions"):
            by_label[label, name] = windowed.losses(model, text.tokens, caches[name], heads=heads)
            done += 1
            progress(done, total)

    counted = {name: rows[:, start:] for name, rows in by_row.items()}
    cost = {name: rows - counted["full"] for name, rows in counted.items()}
    label_cost = {key: rows[:, start:] - counted["full"] for key, rows in by_label.items()}
    means = {name: _mean(rows) for name, rows in cost.items()}
    result = {
        "schema_version": SCHEMA_VERSION,
        "made_by": _made_by(model, scan, text, size=size, kept=kept, length=length),
        "caches": {name: _words(name, size, kept) for name in caches},
        "counted_from": start,
        "loss": {name: _mean(rows) for name, rows in counted.items()},
        "loss_interval": {name: _interval(rows) for name, rows in counted.items()},
        "cost": means,
        "cost_interval": {name: _interval(rows) for name, rows in cost.items()},
        "recovered": 1 - means["sink_window"] / means["window"] if means["window"] > 0 else None,
        "loss_by_position": {name: rows.mean(0).tolist() for name, rows in by_row.items()},
        "heads": _heads(model, scan, looks),
    }
    result["labels"] = {
        label: {
            "heads": int(heads.sum()),
            **_mean_masses(result["heads"], label),
            "cost": _mean(label_cost[label, "window"]),
            "cost_interval": _interval(label_cost[label, "window"]),
            "cost_kept": _mean(label_cost[label, "sink_window_text_positions"]),
            "cost_kept_interval": _interval(label_cost[label, "sink_window_text_positions"]),
        }
        for label, heads in groups.items()
    }
    result["verdict"] = verdict(result)
    return result


def check_sizes(*, size: int, kept: int, length: int, context: int | None = None) -> None:
    """Refuse a cache that holds no last token, and a row too short to let anything go.

    Args:
        size: As for `sink_experiment`, as are the next two.
        kept: Of the first tokens.
        length: Of a row.
        context: The longest row that the model takes, if it is known.

    Raises:
        InputError: If one of them is out of range.
    """
    whole("kept", kept, least=1)
    Cut(size, kept)
    if whole("length", length) < size + kept + 2:
        raise InputError(
            f"length must be at least size + kept + 2, {size + kept + 2} tokens, got {length}"
        )
    if context is not None:
        windowed.check_length(length, context)


def verdict(result: Mapping[str, Any]) -> str:
    """What was found, in a sentence.

    The window alone is clearly worse if the interval of its cost lies above 0 and above that of
    the window with the first tokens kept.
    """
    size, kept = result["made_by"]["size"], result["made_by"]["kept"]
    cost, ends = result["cost"], result["cost_interval"]

    def told(name: str) -> str:
        low, high = ends[name]
        return f"{cost[name]:+.2f} nats [{low:+.2f}, {high:+.2f}]"

    compared = (
        f"a cache of the last {size} tokens costs {told('window')}, one of the first {kept}"
        f" and the last {size - kept} {told('sink_window')}"
    )
    if ends["window"][0] > max(0, ends["sink_window"][1]):
        return f"the window alone is clearly worse: {compared}"
    return f"the window alone is not clearly worse: {compared}"


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The result for people to read."""
    made_by = result["made_by"]
    yield (
        f"{made_by['model']}, {made_by['rows']} rows of {made_by['length']} tokens of text,"
        f" queries from {result['counted_from']} on, nats per token"
    )
    yield f"{'the cache holds':<42} loss  [95 % interval]    more than full"
    for name, words in result["caches"].items():
        low, high = result["loss_interval"][name]
        yield (
            f"{words:<42} {result['loss'][name]:.2f}  [{low:.2f}, {high:.2f}]"
            f"     {result['cost'][name]:+.2f}"
        )
    yield result["verdict"]
    yield ""
    yield "only the heads of one label cut: attention on the first tokens and on others that"
    yield "leave, cost without and with the first tokens kept"
    for label, found in result["labels"].items():
        heads = f"{found['heads']} head" + ("s" if found["heads"] != 1 else "")
        costs = f"cost {found['cost']:+.2f}   kept {found['cost_kept']:+.2f}"
        yield (
            f"{label:<16} {heads:>10}   first {found['on_first']:.2f}   others"
            f" {found['on_others']:.2f}   {costs}"
        )


class _Masses:
    """Attention on the first tokens, and on the others that a window hides, by layer and row."""

    def __init__(self, window: Cut, kept: int, start: int) -> None:
        self.window, self.kept, self.start = window, kept, start
        self.on_first: dict[int, list[Float[Tensor, " head"]]] = {}
        self.on_others: dict[int, list[Float[Tensor, " head"]]] = {}

    def __call__(self, layer: int, pattern: Float[Tensor, "row head query key"]) -> None:
        late = pattern[0, :, self.start :]
        hidden = ~self.window.visible(pattern.shape[-1])[self.start :].to(late.device)
        hidden[:, : self.kept] = False
        first = late[..., : self.kept].sum(-1).mean(-1)
        self.on_first.setdefault(layer, []).append(first.cpu())
        self.on_others.setdefault(layer, []).append((late * hidden).sum(-1).mean(-1).cpu())


def _heads(model: Model, scan: HeadScan, looks: Mapping[str, _Masses]) -> list[dict[str, Any]]:
    labels = dict(zip(scan.frame["name"], scan.frame["label"], strict=True))
    full, kept = looks["full"], looks["sink_window"]
    means = {
        "on_first": full.on_first,
        "on_others": full.on_others,
        "on_first_kept": kept.on_first,
    }
    by_layer = {
        name: {layer: torch.stack(rows).mean(0) for layer, rows in found.items()}
        for name, found in means.items()
    }
    return [
        {
            "name": str(Head(layer, head)),
            "label": labels[str(Head(layer, head))],
            **{name: float(found[layer][head]) for name, found in by_layer.items()},
        }
        for layer in attention_layers(model, None)
        for head in range(model.n_heads)
    ]


def _mean_masses(heads: list[dict[str, Any]], label: str) -> dict[str, float]:
    own = [head for head in heads if head["label"] == label]
    names = ("on_first", "on_others", "on_first_kept")
    return {name: sum(head[name] for head in own) / len(own) for name in names}


def _groups(model: Model, scan: HeadScan) -> dict[str, Bool[Tensor, "layer head"]]:
    """The heads of each label, by the first that each has; the usual order, others after it."""
    order = [*LABELS.values(), *sorted(set(scan.frame["label"]) - set(LABELS.values()))]
    groups: dict[str, Bool[Tensor, "layer head"]] = {}
    for label in order:
        names = scan.frame.loc[scan.frame["label"] == label, "name"]
        heads = torch.zeros(model.n_layers, model.n_heads, dtype=torch.bool)
        for layer, head in map(Head.parse, names):
            heads[layer, head] = True
        if heads.any():
            groups[label] = heads
    return groups


def _mean(rows: Float[Tensor, "row query"]) -> float:
    return float(rows.double().mean())


def _interval(rows: Float[Tensor, "row query"]) -> list[float]:
    total = rows.double().sum(1, keepdim=True)
    queries = torch.full((len(rows),), rows.shape[1])
    return interval(Tally(total, torch.zeros_like(total), queries))[:, 0].tolist()


def _words(name: str, size: int, kept: int) -> str:
    return CONDITIONS[name].format(size=size, kept=kept, last=size - kept, end=2 * kept - 1)


def _made_by(model: Model, scan: HeadScan, text: probes.Probe, **options: int) -> dict[str, Any]:
    return Record.of_model(
        model,
        **options,
        rows=len(text.tokens),
        tokens=text.record()["tokens"],
        labels_from={
            name: scan.made_by[name] for name in ("seed", "thresholds") if name in scan.made_by
        },
    )
