"""Heads taken out of a running model, and the losses of the model without them.

What a head puts out is its `z [batch, pos, d_head]`: the values that it gathered, before W_O
turns them into a part of the residual stream. The z of all heads of a layer, side by side,
are the input of the layer's output projection, so a head is taken out by overwriting its
columns there. This needs no pattern and leaves the fast attention of the model alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.probes import Probe
from interp.models import Model, cheap_forward, evaluating
from interp.models.finite import refuse_losses_not_finite
from interp.models.layers import attention_layers

Method = Literal["zero", "mean"]
"""What stands in for a head's output: nothing, or its own mean (see `mean_outputs`)."""

Means = Mapping[Head, Float[Tensor, " d_head"]]

_Edit = Callable[[Float[Tensor, "batch pos width"]], Float[Tensor, "batch pos width"]]

_PROJECTIONS = ("o_proj", "c_proj", "dense", "out_proj")
"""What W_O is called in the models of transformers."""

_TOKENS = 1024
"""Tokens that are run at once, if a row is not longer: their logits are what takes memory."""


@contextmanager
def ablated(
    model: Model, heads: Collection[Head], method: str = "zero", means: Means | None = None
) -> Iterator[None]:
    """Take `heads` out of `model` while the block runs, however the model is run there.

    Their output is overwritten at every position, in all layers at once, so that later heads
    answer to what is left. The hooks are gone when the block ends, whether well, by an
    exception or by an interrupt.

    Args:
        model: Both `model.plain` and `model.bridge` run without the heads.
        heads: Which heads; none changes nothing.
        method: `zero`, or `mean`: as if the head always put out its mean, which leaves what
            later layers are used to getting from it and takes away what it says about the
            tokens at hand.
        means: For `mean`: the output of each of `heads`, from `mean_outputs`.

    Raises:
        InputError: If a head is not there, or has no mean.
    """
    chosen = _by_layer(model, heads)
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    means = (means or {}) if method == "mean" else {}
    lacking = sorted(set(heads) - set(means)) if method == "mean" else []
    if lacking:
        raise InputError(f"means must hold every head to be replaced, got none of {lacking}")

    def overwrite(layer: int) -> _Edit:
        def edit(z: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos width"]:
            by_head = _by_head(z, model.n_heads).clone()
            for head in chosen[layer]:
                mean = means.get(head)
                by_head[:, :, head.head] = 0 if mean is None else mean.to(z)
            return rearrange(by_head, "batch pos head d_head -> batch pos (head d_head)")

        return edit

    with _editing(model, {layer: overwrite(layer) for layer in chosen}):
        yield


def mean_outputs(model: Model, probe: Probe) -> dict[Head, Float[Tensor, " d_head"]]:
    """The mean z of every head over the probe's own queries, in float32.

    The mean is over all rows and all positions but the first, where a head's output is like
    nowhere else: there is only one token to attend to.
    """
    layers = attention_layers(model, None)
    sums: dict[int, Tensor] = {}

    def gather(layer: int) -> _Edit:
        def edit(z: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos width"]:
            by_head = _by_head(z, model.n_heads)[:, 1:].float()
            sums[layer] = sums.get(layer, 0) + by_head.sum((0, 1))
            return z

        return edit

    with _editing(model, {layer: gather(layer) for layer in layers}):
        for batch in _batches(probe):
            logits(model, batch.tokens)
    number = probe.tokens[:, 1:].numel()
    return {
        Head(layer, head): sums[layer][head] / number
        for layer in layers
        for head in range(model.n_heads)
    }


def losses(model: Model, probe: Probe) -> dict[str, Float[Tensor, " row"]]:
    """What the model, as it is now, loses on a probe: nats per token, for each row.

    On tokens that repeat (`interp.kinds.probes.repeated`):
    - `second_copy`: over the queries that are repeats and whose next token is one too. Looking
      up what came next last time predicts these. The last query of the first copy is left out:
      its next token repeats, but nothing in sight says so.
    - `first_copy`: over the queries before that whose next token is new. Nothing predicts
      these, and a head that only finds repeats does not matter here.

    On text (`interp.kinds.probes.text`):
    - `text`: over all queries.
    - `in_context_score`: the mean loss late in the row minus the mean loss early (Olsson et al.
      2022, arXiv 2209.11895: the 500th token against the 50th). A row here is shorter, and the
      means are over the queries of `late_and_early`. Below 0, the more so the more the
      context helps.

    Raises:
        InputError: If a loss is not finite.
    """
    rows = torch.cat([_next_token_losses(model, batch.tokens) for batch in _batches(probe)])
    refuse_losses_not_finite(rows, model.name, model.dtype_name)
    found = {}
    if "repeated" in probe.parts:
        for name, part in (("second_copy", "repeated"), ("first_copy", "random")):
            queries = probe.parts[part]
            found[name] = _mean(rows, queries[:, :-1] & queries[:, 1:])
    if "text" in probe.parts:
        found["text"] = rows.mean(1)
        late, early = late_and_early(rows.shape[1])
        found["in_context_score"] = rows[:, late].mean(1) - rows[:, early].mean(1)
    return found


def late_and_early(queries: int) -> tuple[slice, slice]:
    """Where `losses` calls a query late (the last quarter) and early (the second eighth).

    Example:
        >>> late_and_early(128)
        (slice(96, 128, None), slice(16, 32, None))
    """
    return slice(queries * 3 // 4, queries), slice(queries // 8, queries // 4)


def logits(model: Model, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos id"]:
    """The model's logits, by transformers where its heads can be taken out there."""
    ids = tokens.to(model.device)
    plain = _runs_plain(model)
    with torch.no_grad(), evaluating(model.plain if plain else model.bridge):
        if plain:
            return model.plain(ids, **_options(model.plain)).logits
        return model.bridge(ids, return_type="logits", **_options(model.inner))


def output_projections(plain: Any) -> dict[int, torch.nn.Module]:
    """Where each layer of a transformers model turns the heads' outputs into one: its W_O.

    By the usual names: it stands directly in a module whose name speaks of attention, in the
    layer whose number is the only one on the way there. A layer where this fits nothing, or
    more than one module, is absent.
    """
    found: dict[int, list[torch.nn.Module]] = {}
    for name, module in [] if plain is None else plain.named_modules():
        *path, own = name.split(".")
        numbers = [int(part) for part in path if part.isdecimal()]
        if own in _PROJECTIONS and len(numbers) == 1 and "att" in path[-1].lower():
            found.setdefault(numbers[0], []).append(module)
    return {layer: modules[0] for layer, modules in found.items() if len(modules) == 1}


def _runs_plain(model: Model) -> bool:
    return set(attention_layers(model, None)) <= set(output_projections(model.plain))


@contextmanager
def _editing(model: Model, edits: Mapping[int, _Edit]) -> Iterator[None]:
    """Pass the heads' outputs of each layer through its edit, in both views of the model."""

    def before_projection(edit: _Edit) -> Callable[..., Any]:
        return lambda module, inputs: (edit(inputs[0]), *inputs[1:])

    def at_z(edit: _Edit) -> Callable[..., Tensor]:
        # Split by heads in most models, side by side in some.
        return lambda z, hook: edit(z.flatten(2)).view_as(z)

    with ExitStack() as hooks:
        if _runs_plain(model):
            projections = output_projections(model.plain)
            for layer, edit in edits.items():
                handle = projections[layer].register_forward_pre_hook(before_projection(edit))
                hooks.callback(handle.remove)
        elif model.plain is not None:
            hooks.callback(model.plain.register_forward_pre_hook(_refuse).remove)
        at_layers = [(f"blocks.{layer}.attn.hook_z", at_z(edit)) for layer, edit in edits.items()]
        hooks.enter_context(model.bridge.hooks(fwd_hooks=at_layers))
        yield


def _refuse(module: torch.nn.Module, inputs: Any) -> None:
    raise InputError(
        "heads must be taken out of model.bridge, got a run of model.plain:"
        f" the output projections of {type(module).__name__} were not found"
    )


def _options(model: Any) -> dict[str, Any]:
    return {name: value for name, value in cheap_forward(model).items() if name == "use_cache"}


def _by_layer(model: Model, heads: Collection[Head]) -> dict[int, list[Head]]:
    with_attention = attention_layers(model, None)
    chosen: dict[int, list[Head]] = {}
    for head in heads:
        if head.layer not in with_attention or head.head >= model.n_heads:
            raise InputError(f"heads must be in {model.name}, got {head}")
        chosen.setdefault(head.layer, []).append(head)
    return chosen


def _by_head(
    z: Float[Tensor, "batch pos width"], n_heads: int
) -> Float[Tensor, "batch pos head d_head"]:
    if z.shape[-1] % n_heads:
        raise InputError(f"model must have {n_heads} heads in every layer, got width {z.shape[-1]}")
    return rearrange(z, "batch pos (head d_head) -> batch pos head d_head", head=n_heads)


def _batches(probe: Probe) -> list[Probe]:
    return probe.split(max(1, _TOKENS // probe.tokens.shape[1]))


def _next_token_losses(
    model: Model, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch query"]:
    """The loss of each next token, in nats; the last position has none."""
    made = rearrange(logits(model, tokens)[:, :-1], "batch query id -> (batch query) id").float()
    wanted = rearrange(tokens[:, 1:], "batch query -> (batch query)").to(made.device)
    lost = cross_entropy(made, wanted, reduction="none").cpu()
    return rearrange(lost, "(batch query) -> batch query", batch=len(tokens))


def _mean(
    values: Float[Tensor, "row query"], counted: Bool[Tensor, "row query"]
) -> Float[Tensor, " row"]:
    return torch.where(counted, values, 0).sum(1) / counted.sum(1)
