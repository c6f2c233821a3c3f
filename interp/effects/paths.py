"""Which earlier heads an induction head listens to, and by which of its inputs: Q, K or V.

A head t reads the residual stream x three times: for its queries, its keys and its values.
What an earlier head s wrote is one term of that sum, `z_s W_O`, the heads' common bias left
out. Take it away from what one of the three sees, and leave the other two as they were. For
the path K, with `read_Q`, `read_K`, `read_V` for all that turns the normed stream into queries,
keys and values (weights, biases, query and key norms, rotary positions):

    q_i = read_Q(norm(x_i))    k_j = read_K(norm(x_j - z_sj W_O))    v_j = read_V(norm(x_j))
    pattern = softmax of scale * q_i . k_j over the keys in sight

and see what is left of t's attention on its induction targets, and of what it adds through them
to the logit of the right next token. An induction head is two heads joined by K-composition
(Elhage et al. 2021): without the previous-token head in its keys, its stripe is gone.

- The change reaches t straight from s: heads and MLPs between, which s moves too, stay as they
  were (path patching: Wang et al. 2022, arXiv 2211.00593). For everything that s does at once
  there is `interp.effects.ablate.ablated`.
- The norm before the attention is computed anew on the changed stream, so a large part also
  changes the size of what is left. The final norm's scale is held at what it was.
- Query heads of a group share their keys and values: what is taken from t's keys is taken from
  its group's. Only t is measured.
- On the path V the pattern, and so the stripe, stays what it was: there, look at the effect.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.tiles import tiled_attention
from interp.effects.edges import Edge, PathEffects, edges_of
from interp.errors import InputError, said, whole, whole_seed
from interp.heads import Head
from interp.kinds.mass import FromQK, Tally
from interp.kinds.probes import Probe, repeated
from interp.kinds.scores import Questions, Thresholds, ask
from interp.kinds.targets import NONE
from interp.models import Model, evaluating, load_model
from interp.models.hooks import attention_layers, run_with
from interp.models.reading import Reading, rereading
from interp.models.stream import stream, streams, told_apart
from interp.scan.plan import row_length
from interp.scan.record import Record
from interp.weights.direct import Readout, through

_TOKENS = 4096
"""Tokens that are run at once, if a row is not longer."""


def path_effects(
    model: Any,
    to: Head | str | Sequence[Head | str],
    *,
    sources: Head | str | Sequence[Head | str] | None = None,
    rows: int = 16,
    seed: int = 0,
    length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PathEffects:
    """Take earlier heads out of the queries, the keys or the values of the heads `to`.

    The probe is the scan's: rows of random tokens, each repeated with a period of its own, and
    the queries that count are the same ones.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        to: The heads to measure, such as the induction heads of a scan.
        sources: The heads to take out, each for the heads of `to` in later layers; if left out,
            every head.
        rows: Rows of random tokens, at least 2.
        seed: Of the random tokens.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
        progress: Called with (removals done, removals in all).

    Returns:
        An edge for each head of `to`, each path and each source in an earlier layer: attention on
        the induction targets (`stripe`) and the effect on the right token's logit, before and
        after, with intervals of the change.

    Raises:
        InputError: If a head is not there, or is no later than any source, or has no induction
            targets in sight; if the model's logits are not finite, its attention cannot be
            streamed, its parts do not sum to the logits, or its attention does not read the
            norm of the residual stream.
    """
    model = load_model(model)
    receivers = _in_model(model, "to", to)
    senders = _in_model(model, "sources", _all_heads(model) if sources is None else sources)
    for head in receivers:
        if not any(sender.layer < head.layer for sender in senders):
            raise InputError(f"to must come in a later layer than a source, got {head}")
    rows, seed = whole("rows", rows, least=2), whole_seed(seed)
    length = row_length(model, None if length is None else whole("length", length))
    probe = repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=seed)
    readout = _readout(model)
    by_layer = {
        number: [head for head in receivers if head.layer == number]
        for number in sorted({head.layer for head in receivers})
    }
    senders = _before(senders, max(by_layer))
    for number, heads in by_layer.items():
        if not _stripe(model, probe, number)[1].any():
            raise InputError(
                f"to must have induction targets in sight, got {heads[0]}, whose layer sees"
                f" {model.windows[number]} tokens"
            )

    batches = probe.split(max(1, _TOKENS // length))
    total = len(batches) * sum(len(_before(senders, number)) for number in by_layer)
    done = itertools.count(1)

    def outputs(
        z: dict[int, Float[Tensor, "batch pos head d_head"]], earlier: Sequence[Head]
    ) -> Iterator[Float[Tensor, "batch pos d_model"]]:
        for layer, heads in itertools.groupby(earlier, key=lambda head: head.layer):
            W_O = readout.W_O(layer)
            for _, head in heads:
                yield z[layer][:, :, head] @ W_O[head]
                if progress is not None:
                    progress(next(done), total)

    before: dict[int, list[dict[str, Tally]]] = {number: [] for number in by_layer}
    after: dict[int, list[dict[str, Tally]]] = {number: [] for number in by_layer}
    for batch in batches:
        layers, z = _clean_pass(model, readout, batch, by_layer, senders)
        with rereading(model):
            for number, layer in layers.items():
                earlier = _before(senders, number)
                before[number].append(layer.before())
                after[number].append(layer.without(outputs(z, earlier), len(earlier)))
    edges: list[Edge] = []
    for number, heads in by_layer.items():
        own, without = _joined(before[number]), _joined(after[number])
        edges += edges_of(heads, _before(senders, number), own, without)
    edges.sort(key=lambda edge: receivers.index(edge.to))
    return PathEffects(tuple(edges), _made_by(model, probe, seed))


class _Layer:
    """One layer in one clean pass: how it reads the stream, and what its heads do then."""

    def __init__(
        self, model: Model, readout: Readout, batch: Probe, number: int, heads: Sequence[Head]
    ) -> None:
        self.number = number
        self.reading = Reading(model, number)
        self.index = torch.tensor([head.head for head in heads], device=model.device)

        tokens = batch.tokens.to(model.device)
        self.keys, self.counted = _stripe(model, batch, number)
        self.has_next = torch.arange(tokens.shape[1], device=model.device) < tokens.shape[1] - 1
        directions = readout.head_directions(number, readout.towards(tokens.roll(-1, dims=1)))
        self.directions = directions[:, self.index]

        self.scale: Float[Tensor, "batch pos"]
        self.clean: FromQK

    def before(self) -> dict[str, Tally]:
        """Both measures as they are, by head."""
        return self._measured(*self._own())

    def without(
        self, parts: Iterable[Float[Tensor, "batch pos d_model"]], number: int
    ) -> dict[str, Tally]:
        """Both measures when one input sees the stream without one of `number` parts.

        The columns are (part, path, head).
        """
        own = self._own()
        totals: dict[str, Float[Tensor, "row part end"]] = {}
        queries = {}
        for index, part in enumerate(parts):
            read = self._chosen(*self.reading.of(self.reading.stream.float() - part))
            swapped = ([*own[:i], read[i], *own[i + 1 :]] for i in range(3))
            found = self._measured(*(torch.cat(some, 1) for some in zip(*swapped, strict=True)))
            for name, tally in found.items():
                # One block for all: small results among large passing ones scatter memory.
                if name not in totals:
                    rows, ends = tally.total.shape
                    totals[name] = tally.total.new_zeros(rows, number, ends)
                    queries[name] = tally.queries
                totals[name][:, index] = tally.total
        zero = {name: torch.zeros_like(total) for name, total in totals.items()}
        return {
            name: Tally(total.flatten(1), zero[name].flatten(1), queries[name])
            for name, total in totals.items()
        }

    def _own(self) -> list[Float[Tensor, "batch head pos _"]]:
        clean = self.clean
        q = rearrange(clean.q, "b q kv g d -> b (kv g) q d")
        k = rearrange(clean.k, "b k kv d -> b kv k d")
        assert clean.v is not None  # A stream gives them.
        return self._chosen(q, k, clean.v)

    def _chosen(self, q: Tensor, k: Tensor, v: Tensor) -> list[Float[Tensor, "batch head pos _"]]:
        """Those of the heads that are measured; keys and values one for each of them."""
        shared = self.index // (q.shape[1] // k.shape[1])
        return [q[:, self.index].float(), k[:, shared].float(), v[:, shared].float()]

    def _measured(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tally]:
        """Both measures; the heads may come several times over."""
        times = q.shape[1] // len(self.index)
        sinks = self.clean.sinks
        scale = self.clean.scale
        heads = self.index.repeat(times)
        sinks = None if sinks is None else sinks[heads]
        q, k = told_apart(q, k, scale, sinks, layer=self.number, heads=heads) or (q, k)
        options = {"softcap": self.clean.softcap, "window": self.clean.window, "sinks": sinks}
        lse = tiled_attention(q, k, v, scale=scale, **options).lse
        attention = FromQK(q, k, lse, scale, v=v, **options)
        directions = repeat(self.directions, "b h q d -> b (t h) q d", t=times)
        stripe = attention.mass(self.keys)
        effect = through(attention, self.keys, directions) / self.scale[:, None]
        zero = torch.zeros_like(stripe)
        return {
            "stripe": Tally.of(stripe, zero, self.counted),
            "effect": Tally.of(effect, zero, self.counted & self.has_next),
        }


def _clean_pass(
    model: Model,
    readout: Readout,
    batch: Probe,
    by_layer: dict[int, list[Head]],
    senders: Sequence[Head],
) -> tuple[dict[int, _Layer], dict[int, Float[Tensor, "batch pos head d_head"]]]:
    """The layers of the receivers as they were in one pass, and what each sender put out."""
    layers = {i: _Layer(model, readout, batch, i, heads) for i, heads in by_layer.items()}

    def look(number: int, attention: FromQK) -> None:
        if number in layers:
            layers[number].clean = attention

    with ExitStack() as hooks:
        scales = hooks.enter_context(readout.watching())
        for layer in layers.values():
            hooks.enter_context(layer.reading.watching())
        stream(model, batch.tokens, look)
    for layer in layers.values():
        layer.scale = scales[0]

    numbers = sorted({sender.layer for sender in senders})
    seen = run_with(model, batch.tokens, [f"blocks.{i}.attn.hook_z" for i in numbers])
    z = [value.float().flatten(2) for value in seen.values()]
    z = [rearrange(value, "b q (h d) -> b q h d", h=model.n_heads) for value in z]
    return layers, dict(zip(numbers, z, strict=True))


def ask_of_stripe(model: Model, probe: Probe, layer: int) -> Questions:
    """What to ask of a layer for its induction scores on a probe of repeats, as a scan does."""
    return ask(
        probe.tokens.to(model.device),
        counted=probe.parts["repeated"].to(model.device),
        special=model.special,
        window=model.windows[layer],
        thresholds=Thresholds(),
        kinds=["induction"],
        statistics=False,
    )


def _stripe(
    model: Model, probe: Probe, layer: int
) -> tuple[Int[Tensor, "batch query m"], Bool[Tensor, "batch query"]]:
    """The induction targets that a layer sees, and the queries that a scan would count."""
    asked = ask_of_stripe(model, probe, layer)
    keys = asked.keys["induction"]
    return keys, (keys != NONE).any(-1) & asked.fit


def _before(heads: Sequence[Head], layer: int) -> list[Head]:
    return sorted(head for head in heads if head.layer < layer)


def _joined(batches: list[dict[str, Tally]]) -> dict[str, Tally]:
    return {name: Tally.join([tallies[name] for tallies in batches]) for name in batches[0]}


def _readout(model: Model) -> Readout:
    """The way to the logits, once it is sure that the stream is a plain sum of parts.

    Raises:
        InputError: If it is not, or the attention cannot be streamed.
    """
    alone = model.plain is not None and model.direction == "causal"
    if alone and not _logits(model).isfinite().all():
        raise InputError(
            f"model must give finite logits, got {model.name}: weights or activations are not"
            f" finite in {model.dtype_name}"
        )
    if not streams(model):
        raise InputError(f"model must be one whose attention can be streamed, got {model.name}")
    refused = f"model must add its heads' outputs up to the logits, got {model.name}: "
    without = sorted(set(range(model.n_layers)) - set(attention_layers(model, None)))
    if without:
        raise InputError(f"{refused}layer {without[0]} has no attention, and so no heads")
    try:
        readout = Readout(model)
        readout.check()
    except InputError as error:
        raise InputError(f"{refused}{error}") from error
    except Exception as error:
        # An architecture may differ in any way; the caller's mistake is always the model.
        told = said(error)
        why = f"its way to the logits is not known ({type(error).__name__}: {told})"
        raise InputError(refused + why) from error
    return readout


def _logits(model: Model) -> Float[Tensor, "batch pos vocab"]:
    with torch.no_grad(), evaluating(model.plain):
        return model.plain(model.vocabulary[:8][None].to(model.device)).logits


def _all_heads(model: Model) -> list[Head]:
    layers = attention_layers(model, None)
    return [Head(layer, head) for layer in layers for head in range(model.n_heads)]


def _in_model(model: Model, argument: str, heads: Any) -> list[Head]:
    """Each of `heads` once."""
    known = set(_all_heads(model))
    heads = [heads] if isinstance(heads, str | Head) else heads
    if not isinstance(heads, Iterable):
        raise InputError(f"{argument} must be heads such as L5H1, got {heads!r}")
    chosen = list(dict.fromkeys(Head.parse(head) for head in heads))
    if not chosen:
        raise InputError(f"{argument} must name at least one head, got none")
    for head in chosen:
        if head not in known:
            raise InputError(f"{argument} must name heads of {model.name}, got {head}")
    return chosen


def _made_by(model: Model, probe: Probe, seed: int) -> dict[str, Any]:
    return Record.of_model(
        model,
        seed=seed,
        removed="the source's own output, put to zero, without biases",
        norm="before attention: computed anew; final: scale held",
        interval="95 % of resamples of the rows, after minus before",
        probes=[probe.record()],
    )
