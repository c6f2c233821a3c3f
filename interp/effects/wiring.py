"""A model as a graph: what writes to the residual stream, and what reads it, each by itself.

Sources are the embedding, each head, and what else each layer adds (its MLP, experts or mixer,
with the output bias of its attention). Targets are the queries of each head, the keys and the
values of each key-value head, each MLP, and the logits. A target reads the sum of all earlier
sources, so each pair of a source and a target is an edge. `Wiring.run` runs the model with a
stream of its own for each target v, in which some sources u have another output:

    x_v = sum over u of  other_u + kept[u, v] * (output_u - other_u)

All numbers are computed by the model's own layers: once up to the queries, keys and values of
their attention, for each stream that differs, and once without attention, on what the MLP reads.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.errors import InputError
from interp.heads import Head
from interp.models import Model, alone, attend_with, cheap_forward
from interp.models.families import layer_modules
from interp.models.model import check_causal
from interp.models.reading import Call, Stopped
from interp.models.stream import attended
from interp.weights.norms import Norm
from interp.weights.probed import recorded

_TRIED_ON = 8
"""Tokens on which the parts of each layer must give what the layer gives."""

_LARGE = 1000
"""Factor of a stream that a layer hands on if it adds to it, and loses in a norm."""


@dataclass(frozen=True, eq=False)
class _Writer:
    """How the heads of a layer write to the stream."""

    W_O: Float[Tensor, "head d_value d_model"]
    bias: Float[Tensor, " d_model"]
    after: Norm

    def images(
        self, z: Float[Tensor, "batch pos head d_value"]
    ) -> Float[Tensor, "head batch pos d_model"]:
        """What each head adds to the stream; a norm after the heads has the scale of their sum."""
        images = einsum(z.float(), self.W_O, "b q h e, h e d -> h b q d")
        if isinstance(self.after.module, nn.Identity):
            return images
        whole = images.sum(0) + self.bias
        scale = self.after.scale(whole, self.after.module(whole).float())
        return self.after.fold_written(images) / scale[..., None]


@dataclass(frozen=True, eq=False)
class _Layer:
    """One layer, and its place among sources and targets.

    Attributes:
        block: The layer.
        left: What it returned once.
        writer: How its heads write; None without attention.
        heads: Its heads, among the sources.
        reads: Its queries, keys and values, among the targets.
        mlp: What else it adds, among the sources.
        target: What that reads, among the targets.
        is_parallel: Whether that reads the stream without this layer's heads.
    """

    number: int
    block: nn.Module
    left: Any
    writer: _Writer | None
    heads: slice
    reads: tuple[slice, ...]
    mlp: int
    target: int
    is_parallel: bool

    def returned(self, x: Tensor) -> Any:
        """`x` in the form in which the layer returns a stream."""
        return (x, *self.left[1:]) if isinstance(self.left, tuple) else x


@dataclass(eq=False)
class Ran:
    """One run of a `Wiring`.

    Attributes:
        logits: Logits.
        outputs: Output of each source, of a run with all edges and without gradients.
        inputs: Streams that targets read, of a run with gradients: some targets and theirs.
    """

    logits: Float[Tensor, "batch _ id"]
    outputs: Float[Tensor, "source batch pos d_model"] | None
    inputs: list[tuple[slice, Float[Tensor, "_ batch pos d_model"]]]


class Wiring:
    """The sources and targets of a model, and runs in which each target reads its own stream.

    Attributes:
        sources: Names of the sources: `embedding`, `L0H0`, ..., `L0 MLP`, ...
        targets: Names of the targets, each with the path `q`, `k` or `v` of a head, or none.
        edges: Whether a target reads a source.
        group: Heads that share keys and values.
        feeds: Whether a source's output is made of what a target reads.
        layers: Layers of the model.
    """

    def __init__(self, model: Model) -> None:
        check_causal(model)
        if model.plain is None:
            raise InputError(f"model must be run by transformers, got {model.name}, a bridge")
        self.model, self._silent, self.group = model, False, 1
        self.sources, self.targets = ["embedding"], list[tuple[str, str]]()
        self.layers: list[_Layer] = []
        tokens = model.vocabulary[:_TRIED_ON][None].to(model.device)
        calls: dict[int, Call] = {}

        def keep(number: int, _: Any, args: Any, options: Any, output: Any) -> None:
            calls[number] = Call(args, options, output)

        blocks, attending = layer_modules(model.plain), list(model.attending)
        with ExitStack() as hooks:
            for number, block in blocks.items():
                look = partial(keep, number)
                hooks.enter_context(block.register_forward_hook(look, with_kwargs=True))
            parts = dict(zip(attending, recorded(model, tokens, attending), strict=True))
        seen: list[int] = []
        for number, block in blocks.items():
            call, before, reads = calls[number], len(self.sources), []
            writer, images = None, torch.zeros_like(call.read)[None]
            if (part := parts.get(number)) is not None:
                with torch.no_grad():
                    times = getattr(block, "residual_multiplier", 1.0)  # Granite.
                    bias = part.W_O(torch.zeros_like(part.joined[0, 0])).float() * times
                    writer = _Writer(part.written() * times, bias, part.after)
                    images = writer.images(part.z.transpose(1, 2))
                n, kv = part.heads.n_heads, part.heads.k.shape[2]
                self.group = n // kv
                self.sources += [str(Head(number, i)) for i in range(n)]
                shared = f"L{number}{'H' if n == kv else 'KV'}"
                for path, names in zip("qkv", [f"L{number}H", shared, shared]):
                    count = n if path == "q" else kv
                    reads.append(slice(len(self.targets), len(self.targets) + count))
                    self.targets += [(f"{names}{i}", path) for i in range(count)]
                    seen += [before] * count
            heads = slice(before, len(self.sources))
            is_parallel = self._is_parallel(number, block, call, images)
            seen.append(before if is_parallel else heads.stop)
            places = len(self.sources), len(self.targets), is_parallel
            layer = _Layer(number, block, call.output, writer, heads, tuple(reads), *places)
            self.layers.append(layer)
            self.sources.append(f"L{number} MLP")
            self.targets.append((f"L{number} MLP", ""))
        self.targets.append(("logits", ""))
        seen.append(len(self.sources))
        self.edges: Bool[Tensor, "source target"]
        self.edges = torch.arange(len(self.sources))[:, None] < torch.tensor(seen)
        self.feeds: Bool[Tensor, "target source"] = torch.zeros_like(self.edges.mT)
        for layer in self.layers:
            self.feeds[layer.target, layer.mlp] = True
            heads = torch.arange(layer.heads.start, layer.heads.stop)
            for at in layer.reads:  # Heads of a group share keys and values.
                size = at.stop - at.start
                self.feeds[at] |= (
                    heads.view(size, -1)[..., None].eq(torch.arange(len(self.sources))).any(1)
                )

    def connected(self, kept: Bool[Tensor, "source target"]) -> Bool[Tensor, "source target"]:
        """The edges that are on a way from the embedding to the logits."""
        reached, needed = torch.zeros(2, len(self.sources), dtype=torch.bool)
        reached[0] = True
        for source in range(1, len(self.sources)):
            reached[source] = kept[:source, self.feeds[:, source]][reached[:source]].any()
        asked = torch.zeros(len(self.targets), dtype=torch.bool)
        asked[-1] = True
        for source in reversed(range(len(self.sources))):
            needed[source] = kept[source, asked].any()
            if needed[source]:
                asked |= self.feeds[:, source]
        return kept & reached[:, None] & asked

    def _is_parallel(self, number: int, block: nn.Module, call: Call, images: Tensor) -> bool:
        x, added, given = call.read, images.sum(0).to(call.read.dtype), call.gave
        with attend_with(self.model.plain, self._attend), torch.no_grad():
            after, apart, large = (
                self.without_heads(block.forward, call, y) for y in (x + added, x, _LARGE * x)
            )
        if (large - apart).abs().max() < 0.01 * _LARGE * x.abs().max():
            raise InputError(
                f"layers must add to the stream, but layer {number} of {self.model.name} puts a"
                " norm on it"
            )
        least = 1e-3 * (given - x).abs().max()
        if (after - given).abs().max() <= least:
            return False
        if (apart + added - given).abs().max() <= least:
            return True
        raise InputError(
            "layers must add the outputs of their heads, times W_O, to the stream, but layer"
            f" {number} of {self.model.name} does not"
        )

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        """Stop where attention is computed, or let it put out 0."""
        if not self._silent:
            raise Stopped(module, query, key, value, mask, options)
        batch, heads, length, _ = query.shape
        return value.new_zeros(batch, length, heads, value.shape[-1]), None

    def without_heads(self, forward: Callable[..., Any], call: Call, x: Tensor) -> Tensor:
        """What a layer returns for another stream if its heads put out 0."""
        args, options = call.on(x.to(call.read.dtype))
        self._silent = True
        try:
            return Call((), {}, forward(*args, **options)).gave
        finally:
            self._silent = False

    def read(self, forward: Callable[..., Any], call: Call, x: Tensor) -> tuple[Any, ...]:
        """What the attention of a layer reads from another stream: its arguments."""
        args, options = call.on(x.to(call.read.dtype))
        try:
            forward(*args, **options)
        except Stopped as stopped:
            return stopped.args
        raise InputError(f"attention must be computed by softmax in {self.model.name}")

    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        kept: Bool[Tensor, "source target"] | None = None,
        others: Float[Tensor, "source batch pos d_model"] | None = None,
        embedding: Float[Tensor, "batch pos d_model"] | None = None,
        gradients: bool = False,
        only_last: bool = True,
    ) -> Ran:
        """Run the model.

        Args:
            tokens: Token ids without padding.
            kept: Edges through which a target reads the source of this run; all if left out.
            others: Outputs of the sources for the other edges; must come with `kept`.
            embedding: What enters the first layer in place of the embedding.
            gradients: Whether to follow gradients, and to keep the stream of each target.
            only_last: Whether to compute the logits after the last token alone.
        """
        running = _Running(self, kept, others, embedding, gradients)
        options = cheap_forward(self.model.plain)
        if not only_last:
            options.pop("logits_to_keep", None)
        with ExitStack() as back, torch.set_grad_enabled(gradients):
            back.enter_context(alone(self.model.plain))
            back.enter_context(attend_with(self.model.plain, self._attend))
            for layer in self.layers:
                own = vars(layer.block).get("forward")
                back.callback(_restore, layer.block, own)
                layer.block.forward = partial(running.layer, layer, layer.block.forward)
            logits = self.model.plain(tokens.to(self.model.device), **options).logits
        outputs = running.values if kept is None and not gradients else None
        return Ran(logits, outputs, running.inputs)


def _restore(module: nn.Module, forward: Any) -> None:
    if forward is None:
        vars(module).pop("forward", None)
    else:
        module.forward = forward


class _Running:
    """The streams of one run, as its layers compute them.

    Attributes:
        values: Outputs of the sources so far, minus the `others`; 0 for what is not computed.
        total: The sum of what every target reads: the outputs or, with `kept`, the `others`.
        inputs: As in `Ran`.
    """

    values: Tensor
    total: Tensor

    def __init__(
        self,
        wiring: Wiring,
        kept: Tensor | None,
        others: Tensor | None,
        embedding: Tensor | None,
        gradients: bool,
    ) -> None:
        self.wiring, self.kept, self.others = wiring, kept, others
        self.embedding, self.gradients = embedding, gradients
        self.inputs: list[tuple[slice, Tensor]] = []

    def layer(self, layer: _Layer, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Compute what a layer adds; the last one returns the stream that the logits read."""
        call, wiring = Call(args, options), self.wiring
        if layer is wiring.layers[0]:
            x = call.read if self.embedding is None else self.embedding
            self.total = torch.zeros_like(x)
            if not self.gradients:
                self.values = x.new_zeros(len(wiring.sources), *x.shape)
            self._add(slice(0, 1), x[None])
        mlp = slice(layer.target, layer.target + 1)
        seen = layer.heads.start if layer.is_parallel else layer.heads.stop
        images = self._heads(layer, forward, call) if layer.writer is not None else None
        before = self._streams(mlp, seen)[0] if layer.is_parallel else None
        self._add(layer.heads, images)
        at = slice(layer.mlp, layer.mlp + 1)
        if self._is_live(at).any():
            x = self._streams(mlp, seen)[0] if before is None else before
            self._add(at, wiring.without_heads(forward, call, x[0])[None] - x)
        else:
            self._add(at, None)
        if layer is not wiring.layers[-1]:
            return layer.returned(call.read)
        last = len(wiring.targets) - 1
        return layer.returned(self._streams(slice(last, last + 1), len(wiring.sources))[0][0])

    def _heads(self, layer: _Layer, forward: Callable[..., Any], call: Call) -> Tensor | None:
        """What the heads of a layer add to the stream; None if nothing reads it."""
        live, (q_at, k_at, v_at) = self._is_live(layer.heads), layer.reads
        if not live.any():
            return None
        shared = live.unflatten(0, (k_at.stop - k_at.start, -1)).any(-1)
        x, index = self._streams(
            slice(q_at.start, v_at.stop), layer.heads.start, torch.cat([live, shared, shared])
        )
        module, *read, mask, options = self.wiring.read(forward, call, x.flatten(0, 1))
        sizes = [at.stop - at.start for at in layer.reads]
        q, k, v = (
            part.unflatten(0, (len(x), -1))[at, :, torch.arange(len(at))].transpose(0, 1)
            for part, at in zip(read, index.split(sizes), strict=True)
        )
        window = self.wiring.model.windows[layer.number]
        out, _ = attended(module, layer.number, window, q, k, v, mask, **options)
        assert layer.writer is not None
        return layer.writer.images(out)

    def _is_live(self, sources: slice) -> Bool[Tensor, " source"]:
        """Whether something reads the output of each source."""
        kept = self.wiring.edges if self.kept is None else self.kept
        return kept[sources].any(-1)

    def _add(self, sources: slice, images: Tensor | None) -> None:
        """Note the outputs of some sources; None where nothing reads them."""
        if self.kept is None:
            if images is not None:
                self.total = self.total + images.sum(0)
                if not self.gradients:
                    self.values[sources] = images
            return
        assert self.others is not None
        others = self.others[sources]
        if images is not None:
            self.values[sources] = images - others
        self.total = self.total + others.sum(0)

    def _others(self, sources: slice) -> Tensor:
        return (
            torch.zeros_like(self.values[sources]) if self.others is None else self.others[sources]
        )

    def _streams(
        self, targets: slice, seen: int, live: Tensor | None = None
    ) -> tuple[Float[Tensor, "stream batch pos d_model"], Int[Tensor, " target"]]:
        """What some targets read from the first `seen` sources: each stream once, and whose it is.

        Targets that are not `live` read any.
        """
        number = targets.stop - targets.start
        if self.kept is None:
            if not self.gradients:
                return self.total[None], torch.zeros(number, dtype=torch.long)
            x = self.total.expand(number, *self.total.shape).clone()
            x = x if x.requires_grad else x.requires_grad_()
            self.inputs.append((targets, x))
            return x, torch.arange(number)
        columns = self.kept[:seen, targets].mT
        columns = columns if live is None else columns & live[:, None]
        columns, index = columns.unique(dim=0, return_inverse=True)
        weights = columns.to(self.values)
        return self.total + torch.einsum("us,sbpd->ubpd", weights, self.values[:seen]), index
