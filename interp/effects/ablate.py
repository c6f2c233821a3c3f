"""Ablation: heads taken out of a running model, and the losses of the model without them.

The output of a head is its `z [batch, pos, d_head]`: the values that it gathered, before W_O
turns them into a part of the residual stream. The z of all heads of a layer, side by side,
are the input of the layer's output projection, so a head is ablated by overwriting its
columns there. This needs no pattern and leaves the model's fast attention alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.losses import copy_queries, late_and_early, next_token_losses
from interp.errors import InputError, quoted
from interp.heads import Head
from interp.kinds.probes import Probe
from interp.models import Model, attention_layers, cheap_forward, evaluating
from interp.models.families import output_projections, text_config
from interp.models.finite import refuse_not_finite
from interp.models.wrapped import PreTrainedModel

Method = Literal["zero", "mean"]
"""The replacement of a head's output: zero, or the head's own mean (see `mean_outputs`)."""

_Edit = Callable[[Float[Tensor, "batch pos width"]], Float[Tensor, "batch pos width"]]

_TOKENS = 1024
"""Tokens that are run at once, if a row is not longer: their logits take the memory."""


@contextmanager
def ablated(
    model: Any,
    heads: Collection[Head | str | tuple[int, int]] | Head | str,
    method: str = "zero",
    means: Mapping[Head, Float[Tensor, " d_head"]] | None = None,
) -> Iterator[None]:
    """Ablate `heads` in `model` while the block runs, however the model is run there.

    The output of each head is overwritten at every position, in all layers at once, so that
    later heads react to the change. Biases of the output projections stay. Nothing else of the
    model is touched, and the hooks are removed when the block ends, also after an exception or
    an interrupt. Blocks can be nested.

    Args:
        model: A `Model`, whose `plain` and `bridge` both run without the heads; or a causal
            model of transformers.
        heads: Heads such as `L5H1`, `5.1` or `(5, 1)`; an empty list changes nothing.
        method: `zero`; or `mean`, as if the head always put out its mean: later layers get
            what they usually get from it, but nothing about the tokens of this prompt.
        means: Output of each of `heads` for `mean`, from `mean_outputs`.

    Raises:
        InputError: If the model does not have a head, or `means` does not.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> tokens = torch.tensor([[0, 5, 6, 7, 5]])
        >>> toy.plain(tokens).logits[0, -1].argmax().item()  # After 5 came 6.
        6
        >>> with interp.ablated(toy, ["L0H3"]):  # The previous-token head.
        ...     bool(toy.plain(tokens).logits[0, -1].abs().max() < 1e-3)
        True
    """
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    chosen = parsed_heads("heads", heads)
    outputs = {Head.parse(head): mean for head, mean in (means or {}).items()}
    if method == "mean" and (absent := sorted(set(chosen) - set(outputs))):
        raise InputError(f"means must hold every head that is ablated, got no mean of {absent}")
    layers, n_heads, name = _shape(model)
    by_layer: dict[int, list[Head]] = {}
    for head in chosen:
        if head.layer not in layers or head.head >= n_heads:
            raise InputError(f"heads must be in {name}, got {head}")
        by_layer.setdefault(head.layer, []).append(head)

    def overwrite(layer: int) -> _Edit:
        def edit(z: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos width"]:
            by_head = _by_head(z, n_heads).clone()
            for head in by_layer[layer]:
                by_head[:, :, head.head] = outputs[head].to(z) if method == "mean" else 0
            return rearrange(by_head, "batch pos head d_head -> batch pos (head d_head)")

        return edit

    with _editing(model, {layer: overwrite(layer) for layer in by_layer}):
        yield


def parsed_heads(argument: str, heads: Any) -> list[Head]:
    """Each of `heads` once, in order: one head, or several, in any spelling."""
    if isinstance(heads, str | Head):
        heads = [heads]
    if not isinstance(heads, Iterable):
        raise InputError(f"{argument} must be heads such as L5H1, got {quoted(heads)}")
    return list(dict.fromkeys(Head.parse(head) for head in heads))


def mean_outputs(model: Model, probe: Probe) -> dict[Head, Float[Tensor, " d_head"]]:
    """The mean z of every head over the queries of a probe, in float32.

    The mean is over all rows and all positions but the first, where a head's output is
    unusual: there is only one token to attend to.
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
    """The losses of the model, as it is now, on a probe: nats per token, for each row.

    On tokens that repeat (`interp.kinds.probes.repeated`): `second_copy` and `first_copy`,
    over the queries of `interp.effects.losses.copy_queries`.

    On text (`interp.kinds.probes.text`):
    - `text`: over all queries.
    - `in_context_score`: the mean loss late in the row minus the mean loss early (Olsson et al.
      2022, arXiv 2209.11895: the 500th token against the 50th). A row here is shorter, and the
      means are over the queries of `interp.effects.losses.late_and_early`. It is below 0, and
      the further the more the context helps.

    Raises:
        InputError: If a loss is not finite.
    """
    batches = _batches(probe)
    by_query = torch.cat(
        [next_token_losses(logits(model, b.tokens), b.tokens).cpu() for b in batches]
    )
    refuse_not_finite(by_query, model)
    measures = {}
    if "repeated" in probe.parts:
        for name, counted in copy_queries(probe).items():
            measures[name] = torch.where(counted, by_query, 0).sum(1) / counted.sum(1)
    if "text" in probe.parts:
        measures["text"] = by_query.mean(1)
        late, early = late_and_early(by_query.shape[1])
        measures["in_context_score"] = by_query[:, late].mean(1) - by_query[:, early].mean(1)
    return measures


def logits(model: Model, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos id"]:
    """The model's logits, by transformers if its heads can be ablated there, else by the bridge."""
    ids = tokens.to(model.device)
    plain = _runs_plain(model)
    with torch.no_grad(), evaluating(model.plain if plain else model.bridge):
        if plain:
            return model.plain(ids, **_options(model.plain)).logits
        return model.bridge(ids, return_type="logits", **_options(model.bridge.original_model))


def _shape(model: Any) -> tuple[Collection[int], int, str]:
    """The layers whose heads can be ablated, the heads in each, and the model's name."""
    if isinstance(model, Model):
        return attention_layers(model, None), model.n_heads, model.name
    if not isinstance(model, PreTrainedModel):
        raise InputError(
            f"model must be an interp.Model or a transformers model, got {type(model).__name__}"
        )
    layers = output_projections(model)
    if not layers:
        raise InputError(
            f"model must have output projections of a known name, got {type(model).__name__}:"
            " ablate its heads in interp.load_model(model)"
        )
    return layers, int(text_config(model).num_attention_heads), type(model).__name__


def _runs_plain(model: Model) -> bool:
    return set(attention_layers(model, None)) <= set(output_projections(model.plain))


@contextmanager
def _editing(model: Any, edits: Mapping[int, _Edit]) -> Iterator[None]:
    """Pass the heads' outputs of each layer through its edit, in every view of the model."""

    def before_projection(edit: _Edit) -> Callable[..., Any]:
        return lambda module, inputs: (edit(inputs[0]), *inputs[1:])

    def at_z(edit: _Edit) -> Callable[..., Tensor]:
        # Split by heads in most models, side by side in some.
        return lambda z, hook: edit(z.flatten(2)).view_as(z)

    with ExitStack() as hooks:
        plain = model.plain if isinstance(model, Model) else model
        if not isinstance(model, Model) or _runs_plain(model):
            projections = output_projections(plain)
            for layer, edit in edits.items():
                handle = projections[layer].register_forward_pre_hook(before_projection(edit))
                hooks.callback(handle.remove)
        elif plain is not None:
            hooks.callback(plain.register_forward_pre_hook(_refuse).remove)
        if isinstance(model, Model):
            points = [(f"blocks.{layer}.attn.hook_z", at_z(edit)) for layer, edit in edits.items()]
            hooks.enter_context(model.bridge.hooks(fwd_hooks=points))
        yield


def _refuse(module: torch.nn.Module, inputs: Any) -> None:
    raise InputError(
        "heads must be ablated in model.bridge, got a run of model.plain: the output projections"
        f" of {type(module).__name__} were not found"
    )


def _options(model: Any) -> dict[str, Any]:
    return {name: value for name, value in cheap_forward(model).items() if name == "use_cache"}


def _by_head(
    z: Float[Tensor, "batch pos width"], n_heads: int
) -> Float[Tensor, "batch pos head d_head"]:
    if z.shape[-1] % n_heads:
        raise InputError(f"model must have {n_heads} heads in every layer, got width {z.shape[-1]}")
    return rearrange(z, "batch pos (head d_head) -> batch pos head d_head", head=n_heads)


def _batches(probe: Probe) -> list[Probe]:
    return probe.split(max(1, _TOKENS // probe.tokens.shape[1]))
