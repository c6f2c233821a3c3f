"""Path patching: which earlier parts a head reads, and by which of its inputs: Q, K or V.

A head t reads the residual stream x three times: for its queries, its keys and its values.
What an earlier head s wrote is one term of that sum, `z_s W_O` (without the bias that all heads
share; where a norm follows, with the scale of the clean pass). It is subtracted from what one of
the three reads; the other two stay as they were. For the path K, where `read_Q`, `read_K`,
`read_V` turn the normed stream into queries, keys and values (weights, biases, query and key
norms, rotary positions):

    q_i = read_Q(norm(x_i))    k_j = read_K(norm(x_j - z_sj W_O))    v_j = read_V(norm(x_j))
    pattern = softmax of scale * q_i . k_j over the visible keys

Where nothing else is given, tokens that repeat are run, and the result is the remaining attention
of t on its induction targets, and its remaining effect through them on the logit of the right next
token. An induction circuit takes two heads, joined by K-composition (Elhage et al. 2021): without
the previous-token head in its keys, the induction head loses its stripe.

On prompts of your own the output of t that follows is put into the model, whose later layers run
on it, and the result is your metric. What s wrote may be replaced by what it writes in corrupted
prompts, `z_s - z_s'` in place of `z_s` above (Goldowsky-Dill et al. 2023, arXiv 2304.05969).

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
from typing import Annotated, Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from interp.effects.ablate import all_heads, parsed_heads
from interp.effects.edges import MEASURES, METRIC, PATHS, Edge, Part, PathEffects
from interp.effects.head_effects import ids_as_text
from interp.effects.metrics import Metric, bound, name_of
from interp.effects.replaced import Prompts
from interp.effects.tasks import paired_tokens
from interp.errors import InputError, Seed, Whole, checked
from interp.heads import AnyHead, Head
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

_NUMBERS = 2**26
"""Numbers in the outputs of heads that are kept at once, unless a single source needs more."""
_ByLayer = dict[int, list[Head]]
"""Heads by the layer that they are in."""

_Sources = dict[int, list[Head | Part]]
"""Sources by the layer that reads them."""


@checked
def path_effects(
    model: Any,
    to: AnyHead | Sequence[AnyHead],
    *,
    sources: AnyHead | Sequence[AnyHead] | None = None,
    prompts: Any = None,
    corrupted: Any = None,
    metric: Metric | None = None,
    rows: Annotated[Whole, Field(ge=2)] = 16,
    seed: Seed = 0,
    length: Whole | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PathEffects:
    """Replace earlier heads in the queries, the keys or the values of the heads `to`.

    Without prompts the probe is the scan's: rows of random tokens, each with a different period,
    and the same queries count.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        to: Heads to measure, such as the induction heads of a scan.
        sources: Heads to take out, each for the heads of `to` in later layers; also `embedding`
            (with learned positions) and `L3 MLP`, what else layer 3 adds. Every head if left out.
        prompts: Prompts of your own, as for `Model.to_tokens`, such as the clean ones of a task.
        corrupted: Prompts with as many tokens each; the output of a source there takes the place of
            its own. Zero does if left out.
        metric: Metric of the prompts, as for `interp.patch`.
        rows: Number of rows of random tokens, at least 2.
        seed: Seed of the random tokens; on your prompts, of the intervals.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
        progress: Callback, called with (replacements done, replacements in all).

    Returns:
        An edge for each head of `to`, each path and each source in an earlier layer: attention on
        the induction targets (`stripe`) and the effect on the right token's logit, or on your
        prompts the `metric`, before and after, with intervals of the change.

    Raises:
        InputError: If the model's attention cannot be streamed, its parts do not sum to the
            logits, or its attention does not read the norm of the residual stream.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> edges = interp.path_effects(toy, "L1H5", rows=2)
        >>> edges.strongest("L1H5", "K")[0].source  # The previous-token head.
        L0H3
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> clean, corrupted = [0, 5, 6, 7, 5], [0, 5, 9, 7, 5]
        >>> own = {"prompts": [clean], "corrupted": [corrupted], "metric": metric}
        >>> interp.path_effects(toy, "L1H5", **own).strongest("L1H5", "V")[0].source
        L0H0
    """
    model = load_model(model)
    known = all_heads(model)
    receivers = parsed_heads("to", to, known, model.name)
    listed: Any = sources if isinstance(sources, list | tuple) else [sources]
    parts = [part for part in map(Part.named, listed) if part is not None]
    if unknown := [part for part in parts if part.layer >= model.n_layers]:
        raise InputError(f"sources must be in one of {model.n_layers} layers, got {unknown[0]}")
    if parts:
        sources = [each for each in listed if Part.named(each) is None]
    heads = known if sources is None else parsed_heads("sources", sources, known, model.name)
    senders = dict.fromkeys([*parts, *heads])
    if not receivers:
        raise InputError("to must name at least one head, got none")
    by_layer = {
        number: [head for head in receivers if head.layer == number]
        for number in sorted({head.layer for head in receivers})
    }
    earlier = {number: sorted(h for h in senders if h.layer < number) for number in by_layer}
    if early := [heads[0] for number, heads in by_layer.items() if not earlier[number]]:
        raise InputError(f"to must come in a later layer than a source, got {early[0]}")
    readout = _readout(model)
    if prompts is None and corrupted is None and metric is None:
        length = row_length(model, length)
        probe = repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=seed)
        edges = [*_on_repeats(model, readout, by_layer, earlier, probe, progress)]
        removed = "the source's own output, set to zero, without biases of heads"
        ran = {"interval": "95 % of resamples of the rows", "probes": [probe.record()]}
    elif prompts is None or metric is None:
        raise InputError("prompts must come with a metric, got one of them alone")
    else:
        both = [model.to_tokens(prompts)]
        if corrupted is not None:
            both = paired_tokens(model, prompts, corrupted)
        bound_metric = bound(metric, model)
        # Outputs before any gate, as the linear pass cuts them off.
        clean = Prompts(model, both[0], bound_metric, streamed=True)
        other = both[1] if corrupted is not None else None
        edges = [*_on_prompts(model, readout, by_layer, earlier, clean, other, seed, progress)]
        place = "zero" if other is None else "that in the corrupted prompts"
        removed = f"the source's own output, without biases of heads, replaced by {place}"
        texts = dict(zip(("prompts", "corrupted"), map(ids_as_text, both)))
        ran = {"metric": name_of(metric), "interval": "95 % of resamples of the prompts", **texts}
    edges.sort(key=lambda edge: receivers.index(edge.to))
    norm = "before attention: computed anew; after heads and final: scale held"
    ran["interval"] += ", after minus before"
    made_by = Record.of_model(model, seed=seed, removed=removed, norm=norm, **ran)
    return PathEffects(tuple(edges), made_by)


def _on_repeats(
    model: Model, readout: Readout, to: _ByLayer, earlier: _Sources, probe: Probe, progress: Any
) -> Iterator[Edge]:
    """The edges as changes of stripes and their effects, on rows of tokens that repeat."""
    length = probe.tokens.shape[1]
    for number, heads in to.items():
        asked = ask_of_stripe(model, probe, number)
        if not ((asked.keys["induction"] != NONE).any(-1) & asked.fit).any():
            raise InputError(
                f"to must have visible induction targets, got {heads[0]}, whose layer sees"
                f" {model.windows[number]} tokens"
            )

    batches = probe.split(max(1, _TOKENS // length))
    total = len(batches) * sum(map(len, earlier.values()))
    done = itertools.count(1)

    def reported(parts: Iterable[Tensor]) -> Iterator[Tensor]:
        for part in parts:
            yield part
            if progress is not None:
                progress(next(done), total)

    sums: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {number: [] for number in to}
    for batch in batches:
        layers = {i: _Stripe(model, batch, i, heads) for i, heads in to.items()}
        run = _clean_pass(model, readout, batch.tokens, layers, earlier)
        towards = readout.towards(batch.tokens.roll(-1, dims=1))
        gradients = run.gradients(towards, [run.heads[number] for number in layers])
        for layer, gradient in zip(layers.values(), gradients, strict=True):
            layer.directions = gradient[:, :, layer.index].float().transpose(1, 2)
        with rereading(model):
            for number, layer in layers.items():
                parts = reported(_parts(run, number, earlier[number]))
                sums[number].append(layer.sums(parts, len(earlier[number])))
    for number, heads in to.items():
        queries, before, after = (torch.cat(p, 1) for p in zip(*sums[number], strict=True))
        yield from _edges(heads, earlier[number], MEASURES, queries, before, after)


def _on_prompts(
    model: Model,
    readout: Readout,
    to: _ByLayer,
    earlier: _Sources,
    prompts: Prompts,
    others: Int[Tensor, "batch pos"] | None,
    seed: int,
    progress: Any,
) -> Iterator[Edge]:
    """The edges as changes of a metric; outputs in the prompts `others` replace the sources'."""
    before = prompts.before
    paths = {i: [(path, head) for path in PATHS for head in heads] for i, heads in to.items()}
    total = sum(len(paths[number]) * len(earlier[number]) for number in to)
    done = 0

    def report(part: int, _: int) -> None:
        if progress is not None:
            progress(done + part, total)

    for number, heads in to.items():
        size = prompts.tokens.numel() * prompts.groups[0].z[number].shape[-1]
        at_once = max(1, _NUMBERS // (size * len(paths[number])))
        after = []
        for start in range(0, len(earlier[number]), at_once):
            sources = earlier[number][start : start + at_once]
            outputs = []
            for group in prompts.groups:
                layer, other = _Layer(model, number, heads), None
                run = _clean_pass(model, readout, group.tokens, {number: layer}, earlier)
                if others is not None:
                    tokens = others[group.rows, : group.tokens.shape[1]]
                    other = _clean_pass(model, readout, tokens, {}, earlier)
                with rereading(model):
                    parts = _parts(run, number, sources, other)
                    outputs.append([layer.attend(*read)[1] for read in layer.reads(parts)])
            changes = [
                {head: [each[source][:, place] for each in outputs]}
                for source in range(len(sources))
                for place, (_, head) in enumerate(paths[number])
            ]
            after.append(prompts.replaced(changes, progress=report))
            done += len(changes)
        shape = -1, len(PATHS), len(heads)
        by_source = torch.cat(after).T.unflatten(1, shape)
        once = torch.ones(1, len(before), dtype=torch.long)
        each = before[None, :, None].expand(-1, -1, len(heads))
        yield from _edges(heads, earlier[number], (METRIC,), once, each, by_source[None], seed)


class _Layer:
    """One layer in one clean pass: how it reads the stream, and what some of its heads do."""

    clean: FromQK

    def __init__(self, model: Model, number: int, heads: Sequence[Head]) -> None:
        self.number, self.reading = number, Reading(model, number)
        self.index = torch.tensor([head.head for head in heads], device=model.device)

    def whole(self) -> list[Float[Tensor, "batch head pos _"]]:
        """Queries, keys and values of the heads, as they are."""
        assert self.clean.v is not None  # A stream gives them.
        q = rearrange(self.clean.q, "b q kv g d -> b (kv g) q d")
        return self._chosen(q, self.clean.k.transpose(1, 2), self.clean.v)

    def reads(
        self, parts: Iterable[Float[Tensor, "batch pos d_model"]]
    ) -> Iterator[list[Float[Tensor, "batch path_head pos _"]]]:
        """For each part, queries, keys and values of the heads with one of the three without it.

        The heads come once for each of `PATHS`.
        """
        whole = self.whole()
        for part in parts:
            read = self._chosen(*self.reading.of(self.reading.stream.float() - part))
            swapped = ([*whole[:i], read[i], *whole[i + 1 :]] for i in range(3))
            yield [torch.cat(some, 1) for some in zip(*swapped, strict=True)]

    def _chosen(self, q: Tensor, k: Tensor, v: Tensor) -> list[Float[Tensor, "batch head pos _"]]:
        """The queries, keys and values of the heads that are measured, one of each a head."""
        shared = self.index // (q.shape[1] // k.shape[1])
        return [q[:, self.index].float(), k[:, shared].float(), v[:, shared].float()]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[FromQK, Tensor]:
        """The attention of the heads, which may be repeated several times, and their outputs."""
        heads, scale = self.index.repeat(q.shape[1] // len(self.index)), self.clean.scale
        options = self.clean.options(heads)
        bound = score_bound(norms(q), norms(k), scale, options["sinks"])
        q, k = told_apart(q, k, bound, layer=self.number, heads=heads) or (q, k)
        tiled = by_tiles(q, k, v, scale, **options)
        return FromQK(q, k, tiled.lse, scale, v=v, **options), tiled.out


class _Stripe(_Layer):
    """A layer on a probe of repeats, measured by the attention on the induction targets."""

    directions: Float[Tensor, "batch head pos d_value"]
    """Gradient of the right next token's logit at the output of each head."""

    def __init__(self, model: Model, batch: Probe, number: int, heads: Sequence[Head]) -> None:
        super().__init__(model, number, heads)
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
        before = self._summed(*self.whole())
        # One block for all: small results among large temporary ones fragment memory.
        after = before.new_zeros(*before.shape[:2], number, len(PATHS) * len(self.index))
        for index, read in enumerate(self.reads(parts)):
            after[:, :, index] = self._summed(*read)
        return self.counted.sum(-1).cpu(), before, after.unflatten(-1, (len(PATHS), -1))

    def _summed(self, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "measure row head"]:
        """Both measures over the counted queries; the heads may be repeated several times."""
        attention, _ = self.attend(q, k, v)
        times = q.shape[1] // len(self.index)
        directions = repeat(self.directions, "b h q d -> b (t h) q d", t=times)
        effect = (attention.brought(self.keys) * directions).sum(-1)
        measures = zip(self.counted[:, :, None], (attention.mass(self.keys), effect), strict=True)
        return torch.stack([torch.where(at, x, 0).sum(-1).cpu().double() for at, x in measures])


def _clean_pass(
    model: Model,
    readout: Readout,
    tokens: Tensor,
    layers: Mapping[int, _Layer],
    sources: _Sources,
) -> Linear:
    """Let `layers` see one clean pass, which keeps all that `sources` write."""

    def look(number: int, attention: FromQK) -> None:
        if number in layers:
            layers[number].clean = attention

    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(layer.reading.watching())
        parts = any(isinstance(one, Part) for some in sources.values() for one in some)
        return linear_pass(model, tokens, look, readout.norms, parts=parts, layers=layers)


def _parts(
    run: Linear, layer: int, sources: Sequence[Head | Part], other: Linear | None = None
) -> Iterator[Float[Tensor, "batch pos d_model"]]:
    """What each source adds to what `layer` reads, beyond its output in the `other` run."""

    def written(run: Linear, source: Head | Part) -> list[Tensor]:
        if isinstance(source, Head):
            return [run.heads[source.layer]]
        if source.layer < 0:
            return [next(iter(run.streams.values()))]
        return [x for number, x in run.others if number == source.layer]

    at = {id(x): x for source in sources for x in written(run, source)}
    maps = dict(zip(at, run.carried(layer, [*at.values()]), strict=True))
    for source in sources:
        added = torch.zeros_like(run.streams[layer])
        for place, x in enumerate(written(run, source)):
            change = x.detach().clone()
            if other is not None:
                change -= written(other, source)[place].detach()
            if isinstance(source, Head):
                change[:, :, torch.arange(change.shape[2]) != source.head] = 0
            added = added + maps[id(x)](change)
        yield added.detach().float()


def _edges(
    to: list[Head],
    sources: list[Head | Part],
    measures: Sequence[str],
    queries: Int[Tensor, "measure row"],
    before: Float[Tensor, "measure row to"],
    after: Float[Tensor, "measure row source path to"],
    seed: int = 0,
) -> Iterator[Edge]:
    """Means and intervals of the edges to heads of one layer.

    The interval is of the change, row by row: rows differ from each other by far more than one
    row with a head differs from the same row without it.
    """
    numbers, names = [], []
    for measure, number, clean, without in zip(measures, queries, before, after, strict=True):
        change = (without - clean[:, None, None]).flatten(1)
        ends = evidence.interval(Tally(change, torch.zeros_like(change), number), seed=seed)
        means = without.sum(0) / number.sum()
        numbers += [(clean.sum(0) / number.sum()).expand_as(means), means]
        numbers += [end.view_as(means) for end in ends]
        names += [f"{measure}_{n}" for n in ("before", "after", "change_low", "change_high")]
    table = rearrange(torch.stack(numbers), "n source path to -> to path source n").tolist()
    for head, of_head in zip(to, table, strict=True):
        for path, of_path in zip(PATHS, of_head, strict=True):
            for source, row in zip(sources, of_path, strict=True):
                yield Edge(source, head, path, **dict(zip(names, row, strict=True)))


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
