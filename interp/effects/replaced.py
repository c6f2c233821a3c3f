"""A metric with the outputs of heads replaced, for many such changes in few passes.

Nothing changes below the first layer of a replaced head: the layers there hand on the stream that
they computed once. Nothing changes before the first position where a head puts out anything else:
only the positions from there on run, with the model's own keys and values of those before. Several
changes with the same first layer run next to each other in the batch,
and the model computes the logits after the last token alone if the metric needs no others.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from interp.effects.ablate import Edit, editing
from interp.effects.metrics import Metric
from interp.errors import InputError
from interp.heads import Head
from interp.kinds.mass import FromQK
from interp.models import Model, alone, cheap_forward, evaluating
from interp.models.families import layer_modules
from interp.models.model import check_causal
from interp.models.reading import Call
from interp.models.rows import rows_by_length
from interp.models.stream import Visit, streaming

Outputs = dict[int, Tensor]
"""The output z of all heads `[batch, pos, head, d_head]`, by layer."""

Change = Mapping[Head, Sequence[Tensor]]
"""Other outputs `[batch, pos, d_head]` of the heads that change together: one for each group."""

_TOKENS = 2048
"""Tokens that run at once, if a prompt is not longer."""

_GRADED = 512
"""Tokens that run at once with gradients, which keep what every layer computed."""

_LOGITS = 2**26
"""Logits that are kept at once, unless a single head needs more."""


@dataclass(frozen=True, eq=False)
class Group:
    """Prompts of equal length, which run together, and what they computed.

    Attributes:
        rows: Numbers of the prompts.
        tokens: Their token ids.
        z: Output of the heads, by layer.
        attention: Queries, keys and values, by layer, if the prompts are streamed.
        left: What each layer returned.
        logits: Logits after the last token.
        entered: Stream that entered the first layer.
    """

    rows: list[int]
    tokens: Int[Tensor, "batch pos"]
    z: Outputs
    attention: dict[int, FromQK]
    left: dict[int, Any]
    logits: Float[Tensor, "batch 1 id"]
    entered: Float[Tensor, "*batch pos d_model"] | None = None


def change_to(outputs: Sequence[Outputs], heads: Iterable[Head]) -> Change:
    """The change of `heads` to what they put out in `outputs`, one for each group."""
    return {head: [each[head.layer][:, :, head.head] for each in outputs] for head in heads}


class Prompts:
    """Prompts with a metric, measured with and without other outputs of heads.

    Attributes:
        tokens: Token ids, padded with -1 on the right.
        groups: The prompts by length, each group small enough to run at once.
        streamed: Whether outputs are those of attention, before any gate, and attention is kept.
    """

    def __init__(
        self,
        model: Model,
        tokens: Int[Tensor, "batch pos"],
        metric: Metric,
        *,
        streamed: bool = False,
        measures: int | None = None,
    ) -> None:
        """With `measures` the metric returns so many numbers for each prompt."""
        self.tokens, self.streamed = tokens, streamed
        self._model, self._metric = model, metric
        self._shape = (len(tokens),) if measures is None else (len(tokens), measures)
        self._only_last = bool(getattr(metric, "last_only", False))
        self._reads = getattr(metric, "reads", None)
        self.groups = [
            _group(model, rows, tokens[rows, :n], streamed) for rows, n in _batches(tokens)
        ]
        self._skippable: dict[int, _Skips] = {}
        self._before: dict[int, tuple[int, Any]] = {}

    @cached_property
    def before(self) -> Float[Tensor, " batch *measure"]:
        """The metric of each prompt, with no output replaced."""
        return self._measured([{}])[0]

    def replaced(
        self,
        changes: Sequence[Change],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Float[Tensor, "change batch *measure"]:
        """The metric of each prompt under each of `changes`, one at a time.

        Args:
            changes: Other outputs of one head or of several together.
            progress: Callback, called with (changes done, changes in all).
        """
        batch, length = self.tokens.shape
        logits = batch * (1 if self._only_last else length) * self._model.n_embeddings
        largest = max(group.tokens.numel() for group in self.groups)
        at_once = max(1, min(_TOKENS // largest, _LOGITS // logits))
        by_layer: dict[int, list[int]] = {}
        for index, change in enumerate(changes):
            by_layer.setdefault(min(change).layer, []).append(index)
        values: dict[int, Tensor] = {}
        for indices in by_layer.values():
            for start in range(0, len(indices), at_once):
                some = indices[start : start + at_once]
                values |= zip(some, self._measured([changes[index] for index in some]))
                if progress is not None:
                    progress(len(values), len(changes))
        if not changes:
            return self.before[None][:0]
        return torch.stack([values[index] for index in range(len(changes))])

    def gradients(self, source: "Prompts", shares: Sequence[float]) -> list[Outputs]:
        """The gradient of each prompt's metric at the outputs of its heads: one for each group.

        The mean over runs whose stream enters the first layer with a share of that of `source`, of
        the same lengths, and the rest of its own. A share of 0 is the prompts as they are.
        """
        if self._reads is not None:
            raise InputError("metric must be of logits to have gradients, got one of attention")
        model, every = self._model, self._ran([{}])[0]
        sums = [{i: torch.zeros_like(z) for i, z in group.z.items()} for group in self.groups]
        for total, theirs, group in zip(sums, source.groups, self.groups, strict=True):
            if group.entered is None or theirs.entered is None or group.entered.dim() != 3:
                raise InputError(
                    f"model must have layers that read one residual stream, got {model.name}"
                )
            own, away = group.entered, theirs.entered - group.entered
            on_way = torch.tensor(shares)[:, None, None, None].to(own)
            size = max(1, _GRADED // (len(shares) * own.shape[1]))
            for some in torch.arange(len(own)).split(size):
                rows, z = [group.rows[index] for index in some], Outputs()
                values = torch.zeros((), device=model.device)
                stream = (own[some] + on_way * away[some]).flatten(0, 1).requires_grad_()
                with ExitStack() as changed:
                    changed.enter_context(_entering(model, stream))
                    edits = _editing(model, {*group.z}, z.__setitem__, self.streamed)
                    changed.enter_context(edits)
                    tokens = group.tokens[some].repeat(len(shares), 1)
                    logits = _run(model, tokens, self._only_last, grad=True)
                with torch.enable_grad():
                    for part in logits.chunk(len(shares)):
                        of_rows = every.clone()
                        of_rows[rows, : part.shape[1]] = part
                        measured = _checked(self._metric(of_rows, self.tokens), self._shape)
                        values = values + measured[rows].sum() / len(shares)
                if not values.requires_grad:
                    raise InputError("metric must be differentiable, got one without gradient")
                options: Any = {"allow_unused": True, "materialize_grads": True}
                found = torch.autograd.grad(values, [*z.values()], **options)
                for layer, gradient in zip(z, found):
                    total[layer][some] += gradient.unflatten(0, (len(shares), -1)).sum(0)
        return sums

    def _measured(self, changes: Sequence[Change]) -> Float[Tensor, "change batch *measure"]:
        """The metric under each of `changes`, which start in the same layer; `{}` is none."""
        every: Any = self._ran(changes)
        if self._reads is None:
            every = [self._metric(each, self.tokens) for each in every]
        return torch.stack([_checked(each, self._shape) for each in every]).double().cpu()

    def _can_skip(self, layer: int) -> "_Skips":
        if layer not in self._skippable:
            group, cache = self._probe
            self._skippable[layer] = _skippable(self._model, group, layer, cache)
        return self._skippable[layer]

    @cached_property
    def _probe(self) -> tuple[Group, Any]:
        """A group of the longest prompts, and what the model keeps of the first one's first half.

        The second is None if it keeps nothing.
        """
        group = max(self.groups, key=lambda group: group.tokens.shape[1])
        half = group.tokens[:1, : group.tokens.shape[1] // 2]
        try:
            return group, _cached(self._model, half) if half.numel() else None
        except Exception:  # Not all models keep keys and values.
            return group, None

    def _start(self, index: int, changes: Sequence[Change]) -> int:
        """The first position at which a group's heads put out anything else."""
        group = self.groups[index]
        starts = [group.tokens.shape[1] - 1]
        for head, new in ((head, new[index]) for change in changes for head, new in change.items()):
            old = group.z[head.layer][:, :, head.head]
            starts += (new.to(old) != old).any(-1).any(0).nonzero()[:1, 0].tolist()
        return min(starts)

    def _cache(self, index: int, start: int, copies: int) -> Any:
        """The model's keys and values before position `start`, for each copy of a group."""
        if self._before.get(index, (0, None))[0] != start:
            self._before[index] = start, _cached(self._model, self.groups[index].tokens[:, :start])
        rows = torch.arange(len(self.groups[index].rows), device=self._model.device)
        return _rows_of(self._before[index][1], rows.repeat(copies))

    def _ran(self, changes: Sequence[Change]) -> Float[Tensor, "change batch ..."]:
        """The logits `[..., pos, id]` under each of `changes`; if the metric reads, the metric."""
        model, copies = self._model, len(changes)
        layers = {head.layer for change in changes for head in change}
        if not layers and self._only_last:
            logits = torch.cat([group.logits for group in self.groups])
            order = torch.tensor([row for group in self.groups for row in group.rows]).argsort()
            return logits[order.to(logits.device)][None]
        first = min(layers, default=model.attending[-1])
        seen = list[FromQK]()

        def look(layer: int, attention: FromQK) -> None:
            if layer == self._reads:
                seen.append(attention)

        visit = None if self._reads is None else look
        if self._reads is not None:
            first = min(first, self._reads)
        every: Tensor | None = None
        for index, group in enumerate(self.groups):
            size, skips, start, cache = len(group.rows), self._can_skip(first), 0, None
            if layers and skips.positions and self._only_last and not self.streamed:
                start = self._start(index, changes)
                cache = self._cache(index, start, copies) if start else None

            def replace(
                layer: int, z: Tensor, index: int = index, size: int = size, start: int = start
            ) -> None:
                for place, change in enumerate(changes):
                    for head, new in change.items():
                        if head.layer == layer:
                            rows = z[place * size : (place + 1) * size]
                            rows[:, :, head.head] = new[index][:, start:].to(z)

            with ExitStack() as changed:
                if skips.layers:
                    changed.enter_context(_skipping(model, first, group.left, copies, start))
                changed.enter_context(_editing(model, layers, replace, self.streamed, visit))
                tokens = group.tokens[:, start:].repeat(copies, 1)
                found = _run(model, tokens, self._only_last, cache=cache)
            if self._reads is None:
                length = 1 if self._only_last else self.tokens.shape[1]
                found = pad(found, (0, 0, 0, length - found.shape[1]), value=torch.nan)
            else:
                found = self._metric(seen.pop(), tokens.to(model.device))
            if every is None:
                every = found.new_full((copies, len(self.tokens), *found.shape[1:]), torch.nan)
            every[:, group.rows] = found.unflatten(0, (copies, size))
        assert every is not None
        return every


def last_logits(model: Model, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch id"]:
    """The logits after each prompt's last token, on the CPU."""
    batches = _batches(tokens)
    logits = torch.cat([_run(model, tokens[rows, :n], True)[:, 0].cpu() for rows, n in batches])
    return logits[torch.tensor([row for rows, _ in batches for row in rows]).argsort()]


def _batches(tokens: Int[Tensor, "batch pos"]) -> list[tuple[list[int], int]]:
    """Numbers of prompts that run together, as their length is the same, and that length."""
    return [
        (rows.tolist(), size)
        for (size,), group in rows_by_length(tokens).items()
        for rows in torch.tensor(group).split(max(1, _TOKENS // size))
    ]


def _group(
    model: Model, rows: list[int], tokens: Int[Tensor, "batch pos"], streamed: bool = False
) -> Group:
    """Run prompts of equal length, and keep what their layers computed."""

    def keep(layer: int, module: Any, inputs: Any, output: Any) -> None:
        left[layer] = output

    def enter(module: Any, args: Any, options: Any) -> None:
        entered.append(Call(args, options).read)

    left, entered = {}, []
    z, attention = {}, {}
    visit = attention.__setitem__ if streamed else None
    with ExitStack() as hooks:
        hooks.enter_context(_editing(model, {*model.attending}, z.__setitem__, streamed, visit))
        for layer, module in _layers(model).items():
            hooks.callback(module.register_forward_hook(partial(keep, layer)).remove)
            if not layer:
                hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        logits = _run(model, tokens, True)
    return Group(rows, tokens, z, attention, left, logits, *entered[:1])


@contextmanager
def _entering(model: Model, stream: Float[Tensor, "batch pos d_model"]) -> Iterator[None]:
    """Let `stream` enter the first layer."""

    def enter(module: Any, args: Any, options: Any) -> Any:
        return Call(args, options).on(stream)

    hook = _layers(model)[0].register_forward_pre_hook(enter, with_kwargs=True)
    with alone(model.plain):
        try:
            yield
        finally:
            hook.remove()


@contextmanager
def _editing(
    model: Model, layers: Collection[int], edit: Edit, streamed: bool, visit: Visit | None = None
) -> Iterator[None]:
    """Pass heads' outputs through `edit`: before W_O, or `streamed` as attention gives them."""
    if not streamed:
        reads = nullcontext() if visit is None else streaming(model, visit)
        with reads, editing(model, None, model.n_heads, layers, edit):
            yield
        return

    def edited(layer: int, out: Tensor) -> Tensor:
        if layer in layers:
            edit(layer, out := out.clone())
        return out

    with streaming(model, visit or (lambda layer, attention: None), edited):
        yield


def _checked(values: Any, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != shape:
        got = getattr(values, "shape", type(values).__name__)
        raise InputError(f"metric must return [batch], here {shape}, got {got}")
    if not values.isfinite().all():
        row = int((~values.isfinite()).nonzero()[0])
        raise InputError(
            f"metric must be finite, got {values[row]} for prompt {row}: logits of padding are NaN,"
            " and interp.effects.metrics.last gives those after the last token"
        )
    return values


def _run(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    only_last: bool,
    grad: bool = False,
    cache: Any = None,
) -> Float[Tensor, "batch _ id"]:
    check_causal(model)
    ids, runs = tokens.to(model.device), model.plain if model.given is None else model.given
    options = cheap_forward(model.inner)
    if not only_last:
        options.pop("logits_to_keep", None)
    if cache is not None:
        names = inspect.signature(type(model.plain).forward).parameters
        options |= {"cache" if "cache" in names else "past_key_values": cache, "use_cache": True}
    with torch.set_grad_enabled(grad), evaluating(runs):
        if model.given is None:
            logits = runs(ids, **options).logits
        else:
            options.pop("logits_to_keep", None)
            logits = runs(ids, return_type="logits", **options)
    return logits[:, -1:] if only_last else logits


def _layers(model: Model) -> dict[int, nn.Module]:
    return {} if model.plain is None else layer_modules(model.plain)


def _cached(model: Model, tokens: Int[Tensor, "batch pos"]) -> Any:
    """The keys and values that the model keeps of the tokens."""
    options = cheap_forward(model.plain) | {"use_cache": True}
    with torch.no_grad(), evaluating(model.plain):
        output = model.plain(tokens.to(model.device), **options)
        return output.cache if hasattr(output, "cache") else output.past_key_values


def _rows_of(cache: Any, rows: Int[Tensor, " row"]) -> Any:
    """A copy of a cache with some of its rows, which the model may add to."""
    cache = copy.deepcopy(cache)
    cache.batch_select_indices(rows)
    return cache


@contextmanager
def _skipping(
    model: Model, until: int, left: dict[int, Any], copies: int, start: int = 0
) -> Iterator[None]:
    """Let the layers below `until` compute nothing, and hand on what they did for each copy.

    From position `start` on.
    """

    def repeated(value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        return value[:, start:].repeat(copies, *[1] * (value.dim() - 1))

    entering = tree_map(repeated, left[until - 1]) if until else None
    with alone(model.plain), ExitStack() as back:
        for layer, module in _layers(model).items():
            if layer < until:
                back.callback(_forward_back, module, vars(module).get("forward"))
                module.forward = lambda *inputs, **options: entering
        yield


def _forward_back(module: nn.Module, forward: Any) -> None:
    if forward is None:
        vars(module).pop("forward", None)
    else:
        module.forward = forward


class _Skips(NamedTuple):
    """What need not run again: layers below a change, and positions before it."""

    layers: bool
    positions: bool


def _skippable(model: Model, group: Group, layer: int, cache: Any) -> _Skips:
    """What can be skipped for a change in `layer`: the first prompt gives the same logits then.

    `cache` has the first half of that prompt. They differ where a layer reads more of an earlier
    one than the stream, such as its keys, or more of earlier tokens than their keys and values.
    """
    tokens = group.tokens[:1]
    left = tree_map(lambda value: value[:1] if torch.is_tensor(value) else value, group.left)
    half = [] if cache is None else [tokens.shape[1] // 2]
    for start in [*half, 0] if model.plain is not None else ():
        try:
            with _skipping(model, layer, left, 1, start):
                kept = _rows_of(cache, torch.zeros(1, dtype=torch.long)) if start else None
                logits = _run(model, tokens[:, start:], True, cache=kept)
        except Exception:  # Whatever it is that is missing: the whole model runs instead.
            continue
        if torch.allclose(logits, group.logits[:1], rtol=1e-4, atol=1e-4):
            return _Skips(layers=True, positions=start > 0)
    return _Skips(layers=False, positions=False)
