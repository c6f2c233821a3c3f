"""Path patching: which earlier heads a head reads, and by which of its inputs: Q, K or V.

A head t reads the residual stream x three times: for its queries, its keys and its values.
What an earlier head s wrote is one term of that sum, `z_s W_O` (without the bias that all heads
share; where a norm follows, with the scale of the clean pass). It is subtracted from what one of
the three reads; the other two stay as they were. For the path K, where `read_Q`, `read_K`,
`read_V` turn the normed stream into queries, keys and values (weights, biases, query and key
norms, rotary positions):

    q_i = read_Q(norm(x_i))    k_j = read_K(norm(x_j - z_sj W_O))    v_j = read_V(norm(x_j))
    pattern = softmax of scale * q_i . k_j over the visible keys

The result is the remaining attention of t on its induction targets, and its remaining effect
through them on the logit of the right next token. An induction circuit takes two heads, joined by
K-composition (Elhage et al. 2021): without the previous-token head in its keys, the induction
head loses its stripe.

- The change reaches t directly from s: heads and MLPs in between, which s also changes, stay as
  they were (path patching: Wang et al. 2022, arXiv 2211.00593). `interp.ablated` removes all that
  s does at once.
- The norm before the attention is computed again on the changed stream, so removing a large part
  also changes the scale of the rest. The scales of norms after heads and of the final norm are
  held fixed.
- Query heads of a group share their keys and values: a part that is removed from t's keys is
  removed from its group's. Only t is measured.
- On the path V the pattern, and so the stripe, does not change: use the effect there.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any

import pandas as pd
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from interp.effects.ablate import AnyHead, all_heads, parsed_heads
from interp.effects.saved import Saved
from interp.errors import Count, InputError, Seed, Whole, checked, quoted
from interp.heads import Head
from interp.kinds import evidence
from interp.kinds.builtin import as_kinds
from interp.kinds.mass import FromQK, Tally, by_tiles, norms, score_bound
from interp.kinds.probes import Probe, repeated
from interp.kinds.scores import Questions, Thresholds, ask
from interp.kinds.targets import NONE
from interp.models import Model, load_model
from interp.models.reading import Reading, rereading
from interp.models.stream import streams, told_apart
from interp.scan.plan import row_length
from interp.scan.record import Record
from interp.weights.direct import Readout
from interp.weights.linear import Linear, linear_pass

_TOKENS = 4096
"""Tokens that are run at once, if a row is not longer."""

PATHS = ("Q", "K", "V")
"""The inputs of a head: what its queries, its keys and its values are made of."""

MEASURES = ("stripe", "effect")
"""Attention mass on the induction targets, and the head's effect through them on the answer."""


@dataclass(frozen=True)
class Edge:
    """The change of a head when one of its inputs no longer contains an earlier head's output.

    Attributes:
        source: The earlier head.
        to: The head that is measured.
        path: The input of `to`: Q, K or V.
        stripe_before: Mean attention mass on the induction targets, in [0, 1], in the clean run.
        stripe_after: The same without the source.
        stripe_change_low, stripe_change_high: 95 % interval over rows of after minus before.
        effect_before: Effect of the head through those targets on the logit of the right next
            token, minus its mean effect over the vocabulary, in logits.
        effect_after: The same without the source.
        effect_change_low, effect_change_high: As for the stripe.
    """

    source: Head
    to: Head
    path: str
    stripe_before: float
    stripe_after: float
    stripe_change_low: float
    stripe_change_high: float
    effect_before: float
    effect_after: float
    effect_change_low: float
    effect_change_high: float

    def __repr__(self) -> str:
        stripe = f"stripe {self.stripe_before:.2f} to {self.stripe_after:.2f}"
        effect = f"effect {self.effect_before:.2f} to {self.effect_after:.2f}"
        return f"Edge({self.source} to {self.to} by {self.path}: {stripe}, {effect})"

    def change(self, measure: str = "stripe") -> float:
        """After minus before."""
        return getattr(self, f"{measure}_after") - getattr(self, f"{measure}_before")

    def record(self) -> dict[str, Any]:
        """The edge as plain values: `from`, `to`, `path`, and the numbers by name."""
        numbers = {name: value for name, value in vars(self).items() if name != "source"}
        return {"from": str(self.source), **numbers, "to": str(self.to)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Edge":
        """The edge that `record` wrote."""
        numbers = {name: value for name, value in record.items() if name not in ("from", "to")}
        return cls(Head.parse(record["from"]), Head.parse(record["to"]), **numbers)


@dataclass(frozen=True, eq=False, repr=False)
class PathEffects(Saved):
    """The edges from earlier heads to some heads, and how they were measured.

    Attributes:
        edges: One for each head, path and source, in that order.
        made_by: Model, probe with the token ids that were run, seed and versions.
    """

    edges: tuple[Edge, ...] = ()
    made_by: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        sources = {edge.source for edge in self.edges}
        heads = f"from {len(sources)} heads to {', '.join(map(str, self.to))}"
        largest = max(self.edges, key=lambda edge: abs(edge.change()), default=None)
        name = self.made_by.get("model", "a model")
        return f"PathEffects({name}: {len(self.edges)} edges {heads}; largest: {largest})"

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    @property
    def to(self) -> list[Head]:
        """The heads that were measured, in the order asked for."""
        return list(dict.fromkeys(edge.to for edge in self.edges))

    @checked
    def strongest(
        self, to: AnyHead, path: str = "K", *, measure: str = "stripe", top: Count = 1
    ) -> list[Edge]:
        """The `top` edges to one head, the largest fall first; on the path V only of the effect."""
        head = Head.parse(to)
        measures = ("effect",) if path == "V" else MEASURES
        names = {"path": (path, PATHS), "measure": (measure, measures), "to": (head, self.to)}
        for name, (value, known) in names.items():
            if value not in known:
                raise InputError(f"{name} must be one of {quoted(known)}, got {quoted(value)}")
        edges = [edge for edge in self.edges if (edge.to, edge.path) == (head, path)]
        return sorted(edges, key=lambda edge: edge.change(measure))[:top]

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per edge."""
        return pd.DataFrame([edge.record() for edge in self.edges])

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        return {"made_by": self.made_by, "edges": [edge.record() for edge in self.edges]}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "PathEffects":
        """The result that `to_json` wrote."""
        return cls(tuple(map(Edge.of_record, content["edges"])), content["made_by"])


@checked
def path_effects(
    model: Any,
    to: AnyHead | Sequence[AnyHead],
    *,
    sources: AnyHead | Sequence[AnyHead] | None = None,
    rows: Annotated[Whole, Field(ge=2)] = 16,
    seed: Seed = 0,
    length: Whole | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PathEffects:
    """Take earlier heads out of the queries, the keys or the values of the heads `to`.

    The probe is the scan's: rows of random tokens, each with a different period, and
    the same queries count.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        to: Heads to measure, such as the induction heads of a scan.
        sources: Heads to take out, each for the heads of `to` in later layers; every head if
            left out.
        rows: Number of rows of random tokens, at least 2.
        seed: Seed of the random tokens.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
        progress: Callback, called with (removals done, removals in all).

    Returns:
        An edge for each head of `to`, each path and each source in an earlier layer: attention on
        the induction targets (`stripe`) and the effect on the right token's logit, before and
        after, with intervals of the change.

    Raises:
        InputError: If the model's attention cannot be streamed, its parts do not sum to the
            logits, or its attention does not read the norm of the residual stream.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> edges = interp.path_effects(toy, "L1H5", rows=2)
        >>> edges.strongest("L1H5", "K")[0].source  # The previous-token head.
        L0H3
    """
    model = load_model(model)
    known = all_heads(model)
    receivers = parsed_heads("to", to, known, model.name)
    senders = known if sources is None else parsed_heads("sources", sources, known, model.name)
    if not receivers:
        raise InputError("to must name at least one head, got none")
    by_layer = {
        number: [head for head in receivers if head.layer == number]
        for number in sorted({head.layer for head in receivers})
    }
    earlier = {number: sorted(h for h in senders if h.layer < number) for number in by_layer}
    if early := [heads[0] for number, heads in by_layer.items() if not earlier[number]]:
        raise InputError(f"to must come in a later layer than a source, got {early[0]}")
    length = row_length(model, length)
    probe = repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=seed)
    readout = _readout(model)
    for number, heads in by_layer.items():
        asked = ask_of_stripe(model, probe, number)
        if not ((asked.keys["induction"] != NONE).any(-1) & asked.fit).any():
            raise InputError(
                f"to must have visible induction targets, got {heads[0]}, whose layer sees"
                f" {model.windows[number]} tokens"
            )

    batches = probe.split(max(1, _TOKENS // length))
    total = len(batches) * sum(map(len, earlier.values()))
    done = itertools.count(1)

    def outputs(
        run: Linear, layer: int, sources: list[Head]
    ) -> Iterator[Float[Tensor, "batch pos d_model"]]:
        moved = run.moved(layer, sorted({head.layer for head in sources}))
        for source, head in sources:
            alone = torch.zeros_like(run.heads[source])
            alone[:, :, head] = run.heads[source].detach()[:, :, head]
            yield moved[source](alone).float()
            if progress is not None:
                progress(next(done), total)

    sums: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {number: [] for number in by_layer}
    for batch in batches:
        layers = {i: _Layer(model, batch, i, heads) for i, heads in by_layer.items()}
        run = _clean_pass(model, readout, batch, layers)
        with rereading(model):
            for number, layer in layers.items():
                parts = outputs(run, number, earlier[number])
                sums[number].append(layer.sums(parts, len(earlier[number])))
    edges = []
    for number, heads in by_layer.items():
        joined = (torch.cat(parts, 1) for parts in zip(*sums[number], strict=True))
        edges += _edges(heads, earlier[number], *joined)
    edges.sort(key=lambda edge: receivers.index(edge.to))
    made_by = Record.of_model(
        model,
        seed=seed,
        removed="the source's own output, put to zero, without biases",
        norm="before attention: computed anew; after heads and final: scale held",
        interval="95 % of resamples of the rows, after minus before",
        probes=[probe.record()],
    )
    return PathEffects(tuple(edges), made_by)


class _Layer:
    """One layer in one clean pass: how it reads the stream, and what its heads do."""

    clean: FromQK
    directions: Float[Tensor, "batch head pos d_value"]
    """Gradient of the right next token's logit at the output of each head."""

    def __init__(self, model: Model, batch: Probe, number: int, heads: Sequence[Head]) -> None:
        self.number, self.reading = number, Reading(model, number)
        self.index = torch.tensor([head.head for head in heads], device=model.device)
        asked = ask_of_stripe(model, batch, number)
        self.keys = asked.keys["induction"]
        counted = (self.keys != NONE).any(-1) & asked.fit
        has_next = torch.arange(counted.shape[1], device=model.device) < counted.shape[1] - 1
        self.counted = torch.stack([counted, counted & has_next])

    def sums(
        self, parts: Iterable[Float[Tensor, "batch pos d_model"]], number: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The number of counted queries, and each measure summed over them, before and after.

        After: one input is read without one of `number` parts. Shapes as in `_edges`.
        """
        clean = self.clean
        assert clean.v is not None  # A stream gives them.
        q = rearrange(clean.q, "b q kv g d -> b (kv g) q d")
        whole = self._chosen(q, clean.k.transpose(1, 2), clean.v)
        before = self._summed(*whole)
        # One block for all: small results among large temporary ones fragment memory.
        after = before.new_zeros(*before.shape[:2], number, len(PATHS) * len(self.index))
        for index, part in enumerate(parts):
            read = self._chosen(*self.reading.of(self.reading.stream.float() - part))
            swapped = ([*whole[:i], read[i], *whole[i + 1 :]] for i in range(3))
            without = (torch.cat(some, 1) for some in zip(*swapped, strict=True))
            after[:, :, index] = self._summed(*without)
        return self.counted.sum(-1).cpu(), before, after.unflatten(-1, (len(PATHS), -1))

    def _chosen(self, q: Tensor, k: Tensor, v: Tensor) -> list[Float[Tensor, "batch head pos _"]]:
        """The queries, keys and values of the heads that are measured, one of each a head."""
        shared = self.index // (q.shape[1] // k.shape[1])
        return [q[:, self.index].float(), k[:, shared].float(), v[:, shared].float()]

    def _summed(self, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "measure row head"]:
        """Both measures over the counted queries; the heads may be repeated several times."""
        times = q.shape[1] // len(self.index)
        heads, scale = self.index.repeat(times), self.clean.scale
        options = self.clean.options(heads)
        bound = score_bound(norms(q), norms(k), scale, options["sinks"])
        q, k = told_apart(q, k, bound, layer=self.number, heads=heads) or (q, k)
        lse = by_tiles(q, k, v, scale, **options).lse
        attention = FromQK(q, k, lse, scale, v=v, **options)
        directions = repeat(self.directions, "b h q d -> b (t h) q d", t=times)
        effect = (attention.brought(self.keys) * directions).sum(-1)
        measures = zip(self.counted[:, :, None], (attention.mass(self.keys), effect), strict=True)
        return torch.stack([torch.where(at, x, 0).sum(-1).cpu().double() for at, x in measures])


def _clean_pass(model: Model, readout: Readout, batch: Probe, layers: dict[int, _Layer]) -> Linear:
    """Let `layers` see one clean pass."""

    def look(number: int, attention: FromQK) -> None:
        if number in layers:
            layers[number].clean = attention

    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(layer.reading.watching())
        run = linear_pass(model, batch.tokens, look, readout.norms, layers=layers)
    towards = readout.towards(batch.tokens.roll(-1, dims=1))
    gradients = run.gradients(towards, [run.heads[number] for number in layers])
    for layer, gradient in zip(layers.values(), gradients, strict=True):
        layer.directions = gradient[:, :, layer.index].float().transpose(1, 2)
    return run


def _edges(
    to: list[Head],
    sources: list[Head],
    queries: Int[Tensor, "measure row"],
    before: Float[Tensor, "measure row to"],
    after: Float[Tensor, "measure row source path to"],
) -> Iterator[Edge]:
    """Means and intervals of the edges to heads of one layer.

    The interval is of the change, row by row: rows differ from each other by far more than one
    row with a head differs from the same row without it.
    """
    numbers = []
    for number, clean, without in zip(queries, before, after, strict=True):
        change = (without - clean[:, None, None]).flatten(1)
        ends = evidence.interval(Tally(change, torch.zeros_like(change), number))
        means = without.sum(0) / number.sum()
        numbers += [(clean.sum(0) / number.sum()).expand_as(means), means]
        numbers += [end.view_as(means) for end in ends]
    table = rearrange(torch.stack(numbers), "n source path to -> to path source n").tolist()
    for head, of_head in zip(to, table, strict=True):
        for path, of_path in zip(PATHS, of_head, strict=True):
            yield from (Edge(source, head, path, *row) for source, row in zip(sources, of_path))


def ask_of_stripe(model: Model, probe: Probe, layer: int) -> Questions:
    """The induction targets and queries of a layer on a probe of repeats, as in a scan."""
    return ask(
        probe.tokens.to(model.device),
        counted=probe.parts["repeated"].to(model.device),
        special=model.special,
        window=model.windows[layer],
        thresholds=Thresholds(),
        kinds=as_kinds("induction"),
        statistics=False,
    )


def _readout(model: Model) -> Readout:
    """The way from the stream to the logits, after checking that its parts sum to them."""
    if model.plain is None:
        raise InputError(
            f"model must be one that transformers runs, got a TransformerBridge of {model.name}:"
            " give the model that the bridge was built from"
        )
    if not streams(model):
        raise InputError(f"model must be one whose attention can be streamed, got {model.name}")
    try:
        readout = Readout(model)
        readout.check()
    except InputError as error:
        refused = f"model must add its heads' outputs up to the logits, got {model.name}: {error}"
        raise InputError(refused) from error
    return readout
