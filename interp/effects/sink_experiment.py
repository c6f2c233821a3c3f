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
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from interp.effects import windowed
from interp.effects.saved import Report
from interp.effects.windowed import Cut
from interp.errors import Count, InputError, Whole, checked
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.evidence import interval
from interp.kinds.kind import LABELS
from interp.kinds.mass import Tally
from interp.models import Model, attention_layers
from interp.scan.plan import encoded_passages
from interp.scan.record import Record
from interp.scan.table import HeadScan, check_scan

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1

CONDITIONS = {
    "full": "everything",
    "window": "the last {size} tokens",
    "sink_window": "the first {kept} and the last {last}",
    "sink_window_text_positions": "the same, numbered as in the text",
    "other_window": "tokens {kept} to {end} and the last {last}",
}
"""Contents of the cache, by the name of the condition."""


def conditions(size: int, kept: int) -> dict[str, Cut | None]:
    """The caches that are compared: the full one, and those of `size` tokens."""
    return {
        "full": None,
        "window": Cut(size),
        "sink_window": Cut(size, kept),
        "sink_window_text_positions": Cut(size, kept, renumbered=False),
        "other_window": Cut(size, kept, first=kept),
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

    def to_frame(self) -> "pd.DataFrame":
        """A table with a row for each cache: its loss and cost in nats, with 95 % intervals."""
        import pandas as pd

        rows = []
        for name, words in self["caches"].items():
            row: dict[str, Any] = {"condition": name, "cache": words}
            for measure in ("loss", "cost"):
                low, high = self[f"{measure}_interval"][name]
                row |= {measure: self[measure][name], f"{measure}_low": low}
                row |= {f"{measure}_high": high}
            rows.append(row)
        return pd.DataFrame.from_records(rows)


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
        InputError: If the model cannot be measured this way (`interp.effects.windowed.check`), the
            scan is of another model, or there are fewer than two rows of text.
    """
    check_sizes(size=size, kept=kept, length=length)
    caches, start = conditions(size, kept), size + kept
    check_scan(scan, model)
    windowed.check(model, length)
    text = probes.text(encoded_passages(model), rows=rows, length=length, bos=model.bos)
    if text is None or len(text.tokens) < 2:
        number = 0 if text is None else len(text.tokens)
        raise InputError(f"length must leave at least 2 rows of text, got {number} of {length}")
    groups = _groups(model, scan)
    total = len(caches) + 2 * len(groups)
    masses = {name: _Masses(Cut(size), kept, start) for name in ("full", "sink_window")}
    by_row, by_label, done = {}, {}, itertools.count(1)
    for name, cut in caches.items():
        by_row[name] = windowed.losses(model, text.tokens, cut, visit=masses.get(name))
        progress(next(done), total)
    for label, heads in groups.items():
        for name in ("window", "sink_window_text_positions"):
            by_label[label, name] = windowed.losses(model, text.tokens, caches[name], heads=heads)
            progress(next(done), total)

    counted = {name: losses[:, start:] for name, losses in by_row.items()}
    cost = {name: losses - counted["full"] for name, losses in counted.items()}
    means = {name: _mean(losses) for name, losses in cost.items()}
    of_heads = _heads(model, scan, masses)
    labels = {}
    for label, heads in groups.items():
        bare = by_label[label, "window"][:, start:] - counted["full"]
        with_first = by_label[label, "sink_window_text_positions"][:, start:] - counted["full"]
        labels[label] = {
            "heads": int(heads.sum()),
            **_mean_masses(of_heads, label),
            "cost": _mean(bare),
            "cost_interval": _interval(bare),
            "cost_kept": _mean(with_first),
            "cost_kept_interval": _interval(with_first),
        }
    result = {
        "schema_version": SCHEMA_VERSION,
        "made_by": _made_by(model, scan, text, size=size, kept=kept, length=length),
        "caches": {name: _words(name, size, kept) for name in caches},
        "counted_from": start,
        "loss": {name: _mean(losses) for name, losses in counted.items()},
        "loss_interval": {name: _interval(losses) for name, losses in counted.items()},
        "cost": means,
        "cost_interval": {name: _interval(losses) for name, losses in cost.items()},
        "recovered": 1 - means["sink_window"] / means["window"] if means["window"] > 0 else None,
        "loss_by_position": {name: losses.mean(0).tolist() for name, losses in by_row.items()},
        "heads": of_heads,
        "labels": labels,
    }
    return SinkExperiment({**result, "verdict": verdict(result)})


def check_sizes(*, size: int, kept: int, length: int, context: int | None = None) -> None:
    """Refuse a cache without room for a last token, and a row too short to drop a token.

    Args:
        size: As for `sink_experiment`, as are the next two.
        kept: Number of first tokens that stay.
        length: Tokens in a row.
        context: The longest row that the model takes, if it is known.
    """
    Cut(size, kept)
    if length < size + kept + 2:
        raise InputError(
            f"length must be at least size + kept + 2, {size + kept + 2} tokens, got {length}"
        )
    if context is not None:
        windowed.check_length(length, context)


def verdict(result: Mapping[str, Any]) -> str:
    """The finding in a sentence.

    The window alone is clearly worse if the interval of its cost is above 0 and above that of
    the window with the first tokens kept.
    """
    size, kept = result["made_by"]["size"], result["made_by"]["kept"]
    cost, ends = result["cost"], result["cost_interval"]

    def amount(name: str) -> str:
        low, high = ends[name]
        return f"{cost[name]:+.2f} nats [{low:+.2f}, {high:+.2f}]"

    worse = ends["window"][0] > max(0, ends["sink_window"][1])
    return (
        f"the window alone is {'' if worse else 'not '}clearly worse:"
        f" a cache of the last {size} tokens costs {amount('window')}, one of the first {kept}"
        f" and the last {size - kept} {amount('sink_window')}"
    )


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The result as lines to print."""
    made_by = result["made_by"]
    yield (
        f"{made_by['model']}, {made_by['rows']} rows of {made_by['length']} tokens of text,"
        f" queries from {result['counted_from']} on, nats per token"
    )
    yield f"{'cache':<42} loss  [95 % interval]    more than full"
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
    for label, group in result["labels"].items():
        heads = f"{group['heads']} head" + ("s" if group["heads"] != 1 else "")
        yield (
            f"{label:<16} {heads:>10}   first {group['on_first']:.2f}   others"
            f" {group['on_others']:.2f}   cost {group['cost']:+.2f}   kept"
            f" {group['cost_kept']:+.2f}"
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


def _heads(model: Model, scan: HeadScan, masses: Mapping[str, _Masses]) -> list[dict[str, Any]]:
    labels = dict(zip(scan.frame["name"], scan.frame["label"], strict=True))
    full, kept = masses["full"], masses["sink_window"]
    by_row = {
        "on_first": full.on_first,
        "on_others": full.on_others,
        "on_first_kept": kept.on_first,
    }
    records = []
    for layer in attention_layers(model, None):
        means = {name: torch.stack(rows[layer]).mean(0) for name, rows in by_row.items()}
        for head in range(model.n_heads):
            name = str(Head(layer, head))
            of_head = {measure: float(mean[head]) for measure, mean in means.items()}
            records.append({"name": name, "label": labels[name], **of_head})
    return records


def _mean_masses(heads: list[dict[str, Any]], label: str) -> dict[str, float]:
    members = [head for head in heads if head["label"] == label]
    names = ("on_first", "on_others", "on_first_kept")
    return {name: sum(head[name] for head in members) / len(members) for name in names}


def _groups(model: Model, scan: HeadScan) -> dict[str, Bool[Tensor, "layer head"]]:
    """The heads of each label, in the usual order of labels; each head counts for its first."""
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


def _made_by(model: Model, scan: HeadScan, text: probes.Probe, **options: Any) -> dict[str, Any]:
    return Record.of_model(
        model,
        **options,
        rows=len(text.tokens),
        tokens=text.record()["tokens"],
        labels_from={
            name: scan.made_by[name] for name in ("seed", "thresholds") if name in scan.made_by
        },
    )
