"""Pairs of prompts: activations of heads in one run take their place in the other.

To replace the queries, keys, values or pattern of a head is to replace its output: by the one that
it would have with them in this run. So the outputs of all heads of a layer come from one
attention, and all maps from the same passes.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.ablate import chosen_heads
from interp.effects.head_effects import HeadEffects, ids_as_text, row_of
from interp.effects.losses import interval
from interp.effects.metrics import bound, record_of
from interp.effects.replaced import Change, Group, Prompts
from interp.effects.tasks import paired_tokens
from interp.errors import InputError, quoted
from interp.heads import Head
from interp.kinds.mass import FromQK
from interp.kinds.targets import NONE
from interp.models import load_model
from interp.models.stream import outputs_of, streams

LOG = logging.getLogger("interp")

WHAT = ("z", "q", "k", "v", "pattern")
"""Activations of a head that can be replaced."""


class Row(NamedTuple):
    """A row of a map: its columns, and the heads whose outputs change."""

    columns: dict[str, Any]
    heads: Sequence[Head]


class Pairs:
    """Two runs of each pair: `source`, whose activations are put into `target`.

    Arguments are those of `interp.patch`.
    """

    def __init__(
        self,
        model: Any,
        clean: Any,
        corrupted: Any,
        metric: Any,
        what: str,
        *,
        heads: Any,
        position: int | str | None,
        reverse: bool,
        seed: int,
    ) -> None:
        if what not in WHAT:
            raise InputError(f"what must be one of {', '.join(WHAT)}, got {quoted(what)}")
        self.model = model = load_model(model)
        self.known, chosen = chosen_heads(model, heads)
        self.chosen = {*chosen}
        if what != "z" and not streams(model):
            raise InputError(
                f"what must be z for {model.name}, got {what}: its attention cannot be streamed, so"
                " its queries, keys and values are not at hand"
            )
        ids = paired_tokens(model, *((corrupted, clean) if reverse else (clean, corrupted)))
        self._positions, self._what, self._seed = _positions(ids[1], position), what, seed
        self._metric = bound(metric, model)
        self.source, self.target = (
            Prompts(model, each, self._metric, streamed=what != "z") for each in ids
        )
        self.before = self.target.before
        self.whole = self.source.before - self.before
        _check_whole(self.whole, seed)
        names = ("corrupted", "clean") if reverse else ("clean", "corrupted")
        self._made_by = {
            "what": f"{what} of the {names[0]} run",
            "unit": f"share of the {names[0]} run: 0 {names[1]}, 1 {names[0]}",
            "seed": seed,
            "position": position,
            f"{names[0]}_mean": float((self.whole + self.before).mean()),
            f"{names[1]}_mean": float(self.before.mean()),
            "clean": ids_as_text(ids[reverse]),
            "prompts": ids_as_text(ids[1]),
        }

    def changes(self) -> Iterator[tuple[list[Row], list[Change]]]:
        """All rows of the map with their changes, those of a layer and a position together."""
        groups = [*zip(self.source.groups, self.target.groups, strict=True)]
        for layer in dict.fromkeys(head.layer for head in self.known):
            heads = [head for head in self.known if head.layer == layer]
            units = _units(heads, groups[0][0], self._what)
            for at in self._positions:
                place = {"what": self._what, **({} if at is None else {"position": at})}
                rows = [Row(row.columns | place, row.heads) for row in units]
                outputs = [patched(self._what, layer, *pair, at) for pair in groups]
                yield (
                    rows,
                    [{h: [z[:, :, h.head] for z in outputs] for h in row.heads} for row in rows],
                )

    def effects(
        self, rows: Sequence[Row], changes: Float[Tensor, "row pair"], **more: Any
    ) -> HeadEffects:
        """The map, from the changes of the metric in all `rows`; `more` is for `made_by`."""
        made_by = record_of(self.model, self._metric, **self._made_by, **more)
        columns, kept = [row.columns for row in rows], self.kept(rows)
        return HeadEffects.of(columns, changes, self.whole, self._seed, made_by, kept)

    def kept(self, rows: Sequence[Row]) -> list[bool]:
        """Which rows have a head that was asked for."""
        return [not self.chosen.isdisjoint(row.heads) for row in rows]


def patched(
    what: str, layer: int, source: Group, target: Group, position: int | None = None
) -> Float[Tensor, "batch pos head d_value"]:
    """What the heads of a layer put out in `target` with an activation that they have in `source`.

    At one position, or at all.
    """
    at: Any = slice(None) if position is None else [position]
    new = source.z[layer]
    if what != "z":
        own, theirs = target.attention[layer], source.attention[layer]
        reads = _reads(own)
        for name in "qk" if what == "pattern" else what:
            there = slice(None) if what == "pattern" else at
            reads[name] = reads[name].clone()
            reads[name][:, there] = _reads(theirs)[name][:, there]
        new = outputs_of(own, **reads)
    if what in ("q", "k", "v"):
        return new
    z = target.z[layer].clone()
    z[:, at] = new[:, at]
    return z


def _reads(attention: FromQK) -> dict[str, Float[Tensor, "batch pos ..."]]:
    assert attention.v is not None  # A stream gives them.
    return {"q": attention.q, "k": attention.k, "v": attention.v.transpose(1, 2)}


def _units(heads: Sequence[Head], group: Group, what: str) -> list[Row]:
    """What is replaced at once in a layer."""
    layer = heads[0].layer
    shared = group.attention[layer].k.shape[2] if what in ("k", "v") else len(heads)
    rows = [row_of(Head(layer, index)) for index in range(shared)]
    if (size := len(heads) // shared) > 1:
        rows = [row | {"name": f"L{layer}KV{row['head']}"} for row in rows]
    return [Row(row, heads[i * size : (i + 1) * size]) for i, row in enumerate(rows)]


def _positions(
    tokens: Int[Tensor, "batch pos"], position: int | str | None
) -> list[int] | list[None]:
    if position is None:
        return [None]
    lengths = (tokens != NONE).sum(-1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if isinstance(position, str):
        if shortest < longest:
            raise InputError(
                f"position must be a number for prompts of {shortest} to {longest} tokens, got"
                " each: give prompts of one length, or count from the end"
            )
        return [*range(longest)]
    if not -shortest <= position < shortest:
        raise InputError(
            f"position must be from {-shortest} to {shortest - 1}, as the shortest prompt has"
            f" {shortest} tokens, got {position}"
        )
    return [position]


def _check_whole(whole: Float[Tensor, " batch"], seed: int) -> None:
    """Refuse or warn about a difference that effects cannot be divided by."""
    if not whole.mean():
        raise InputError(
            "metric must differ between clean and corrupted prompts on average, got no difference"
        )
    low, high = interval(whole[:, None], seed) if len(whole) > 1 else (1.0, 1.0)
    if low <= 0 <= high:
        LOG.warning(
            "the metric differs between clean and corrupted prompts by %.2g only, 95 %% interval"
            " %.2g to %.2g: effects are divided by this difference and mean little",
            *(whole.mean(), low, high),
        )
