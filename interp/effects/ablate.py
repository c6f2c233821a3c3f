"""Ablation: heads taken out of a running model, and the losses of the model without them.

The output of a head is its `z [batch, pos, d_head]`: the values that it gathered, before W_O
turns them into a part of the residual stream. The z of all heads of a layer, side by side,
are the input of the layer's output projection, so a head is ablated by overwriting its
columns there. This needs no pattern and leaves the model's fast attention alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.losses import copy_queries, late_and_early, next_token_losses
from interp.errors import InputError, quoted
from interp.heads import AnyHead, Head
from interp.kinds.probes import Probe
from interp.models import Model, alone, cheap_forward, evaluating
from interp.models.families import (
    SUBTRACTED,
    Stack,
    attention_modules,
    direction,
    output_projections,
    text_config,
)
from interp.models.finite import refuse_not_finite
from interp.models.model import check_causal, check_heads
from interp.models.wrapped import PreTrainedModel

METHODS = ("zero", "mean")
"""Replacements of a head's output: zero, or the head's own mean (see `mean_outputs`)."""

Edit = Callable[[int, Float[Tensor, "batch pos head d_head"]], None]
"""Called with a layer and its z, which it may overwrite."""

_TOKENS = 1024
"""Tokens that are run at once, if a row is not longer: their logits take the memory."""


@contextmanager
def ablated(
    model: Any,
    heads: AnyHead | Collection[AnyHead],
    method: str = "zero",
    means: Mapping[Head, Float[Tensor, " d_head"]] | None = None,
    *,
    stack: str | None = None,
) -> Iterator[None]:
    """Ablate `heads` in `model` while the block runs, however the model is run there.

    The output of each head is overwritten at every position, in all layers at once, so that
    later heads react to the change. Biases of the output projections stay. Nothing else of the
    model is touched, and the hooks are removed when the block ends, also after an exception or
    an interrupt. Blocks can be nested.

    Args:
        model: A `Model`, whose `plain`, and `bridge` if it was used before, both run without
            the heads; or a model of transformers.
        heads: A head, such as `L5H1`, `5.1` or `(5, 1)`, or several; no heads change nothing.
        method: `zero`; or `mean`, as if the head always put out its mean: later layers get
            what they usually get from it, but nothing about the tokens of this prompt.
        means: Output of each of `heads` for `mean`, from `mean_outputs`.
        stack: Where the heads of an encoder-decoder are: `encoder`; `decoder`, its attention to
            itself, if left out; or `cross`, the decoder's attention to the encoder.

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
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    stack, known, n_heads, name = heads_in(model, stack)
    chosen = parsed_heads("heads", heads, known, name)
    outputs = {Head.parse(head): mean for head, mean in (means or {}).items()}
    if method == "mean" and (absent := sorted(set(chosen) - set(outputs))):
        raise InputError(f"means must hold every head that is ablated, got no mean of {absent}")

    def overwrite(layer: int, z: Float[Tensor, "batch pos head d_head"]) -> None:
        for head in chosen:
            if head.layer == layer:
                z[:, :, head.head] = outputs[head].to(z) if method == "mean" else 0

    with editing(model, stack, n_heads, {head.layer for head in chosen}, overwrite):
        yield


def parsed_heads(argument: str, heads: Any, known: Sequence[Head], name: str) -> list[Head]:
    """Each of `heads` once, in order: one head or several, in any spelling, all `known`."""
    several = not isinstance(heads, tuple) or all(isinstance(head, str | tuple) for head in heads)
    if isinstance(heads, str) or not several:
        heads = [heads]
    if not isinstance(heads, Iterable):
        raise InputError(f"{argument} must be heads such as L5H1, got {quoted(heads)}")
    chosen = list(dict.fromkeys(map(Head.parse, heads)))
    if unknown := sorted(set(chosen) - set(known)):
        raise InputError(f"{argument} must be heads of {name}, got {unknown[0]}")
    return chosen


def chosen_heads(model: Model, heads: Any) -> tuple[list[Head], list[Head]]:
    """All heads of the layers that some of `heads` are in, and those of `heads`, by layer."""
    _, known, _, name = heads_in(model)
    chosen = known if heads is None else sorted(parsed_heads("heads", heads, known, name))
    if not chosen:
        raise InputError("heads must be at least one, got none")
    layers = {head.layer for head in chosen}
    return [head for head in known if head.layer in layers], chosen


def all_heads(model: Model) -> list[Head]:
    """Every head of the model, by layer."""
    return [Head(layer, head) for layer in model.attending for head in range(model.n_heads)]


def mean_outputs(
    model: Model, probe: Probe, *, stack: str | None = None
) -> dict[Head, Float[Tensor, " d_head"]]:
    """The mean z of every head over the queries of a probe, in float32.

    The mean is over all rows and all positions but the first, where a head's output is
    unusual: a causal one has only one token to attend to. `stack` is that of `ablated`; both
    stacks of an encoder-decoder read the probe.
    """
    sums: dict[int, Tensor] = {}

    def gather(layer: int, z: Float[Tensor, "batch pos head d_head"]) -> None:
        sums[layer] = sums.get(layer, 0) + z[:, 1:].float().sum((0, 1))

    stack, heads, n_heads, _ = heads_in(model, stack)
    with editing(model, stack, n_heads, {head.layer for head in heads}, gather):
        for batch in _batches(probe):
            _outputs(model, batch.tokens)
    number = probe.tokens[:, 1:].numel()
    return {head: sums[head.layer][head.head] / number for head in heads}


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
    """
    by_query = torch.cat(
        [next_token_losses(logits(model, b.tokens), b.tokens).cpu() for b in _batches(probe)]
    )
    refuse_not_finite(by_query, model)
    return measures_of(by_query, probe)


def measures_of(
    by_query: Float[Tensor, "row query"], probe: Probe
) -> dict[str, Float[Tensor, " row"]]:
    """The measures of `losses` from the loss of each next token."""
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
    """The model's logits, by transformers or by a bridge made elsewhere."""
    check_causal(model)
    output = _outputs(model, tokens)
    return output.logits if model.given is None else output


def _outputs(model: Model, tokens: Int[Tensor, "batch pos"]) -> Any:
    ids = tokens.to(model.device)
    options = cheap_forward(model.inner)
    options.pop("logits_to_keep", None)
    if model.direction == "encoder-decoder":
        options["decoder_input_ids"] = ids
    with torch.no_grad(), evaluating(model.plain if model.given is None else model.given):
        if model.given is None:
            return model.plain(ids, **options)
        return model.given(ids, return_type="logits", **options)


def heads_in(model: Any, stack: Any = None) -> tuple[Stack, list[Head], int, str]:
    """The stack, the heads that can be ablated there, their number in a layer, the model's name."""
    if isinstance(model, PreTrainedModel):
        model = Model(model, None, name=type(model).__name__, revision=None, windows=())
    if not isinstance(model, Model):
        got = type(model).__name__
        raise InputError(f"model must be of transformers or of interp.load_model, got {got}")
    plain, name = model.plain, model.name
    if plain is None:
        return None, all_heads(model), model.n_heads, name
    if text_config(plain).model_type in SUBTRACTED:
        raise InputError(f"model must give W_O heads alone, got {name}, which gives differences")
    if getattr(text_config(plain), "head_ratio", 1) != 1:
        raise InputError(f"model must give W_O heads alone, got {name}, which adds convolutions")
    stacks: tuple[Stack, ...] = (None,)
    if direction(plain.config, type(plain).__name__) == "encoder-decoder":
        stacks, stack = ("decoder", "encoder", "cross"), stack or "decoder"
    if stack not in stacks:
        known = " or ".join(map(str, stacks))
        raise InputError(f"stack must be {known} for {name}, got {quoted(stack)}")
    layers = attention_modules(plain, stack)
    n_heads = model.heads_of(stack)
    for layer, module in layers.items():
        check_heads(model, layer, getattr(module, "num_heads", n_heads), stack)
    return stack, [Head(layer, i) for layer in layers for i in range(n_heads)], n_heads, name


@contextmanager
def editing(
    model: Any, stack: Stack, n_heads: int, layers: Collection[int], edit: Edit
) -> Iterator[None]:
    """Pass the heads' outputs of `layers` through `edit`, in every view of the model."""

    def edited(layer: int, z: Tensor, hook: Any = None) -> Tensor:
        # Split by heads, or side by side.
        by_head = z.flatten(2).unflatten(-1, (n_heads, -1)).clone()
        edit(layer, by_head)
        return by_head.view_as(z)

    def before_projection(layer: int, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (edited(layer, inputs[0]), *inputs[1:])

    plain = model.plain if isinstance(model, Model) else model
    projections = output_projections(plain, stack)
    with ExitStack() as hooks:
        if plain is not None:
            hooks.enter_context(alone(plain))
        for layer in layers if plain is not None else ():
            if sum(each is projections.get(layer) for each in projections.values()) != 1:
                raise InputError(
                    "model must have an output projection of a known name for each layer alone,"
                    f" got none in layer {layer} of {type(plain).__name__}"
                )
            before = partial(before_projection, layer)
            hooks.callback(projections[layer].register_forward_pre_hook(before).remove)
        # A bridge that is not built yet is built from `plain`.
        if (bridge := vars(model).get("bridge") or getattr(model, "given", None)) is not None:
            points = [(f"blocks.{i}.attn.hook_z", partial(edited, i)) for i in layers]
            hooks.enter_context(alone(bridge))
            hooks.enter_context(bridge.hooks(fwd_hooks=points))
        yield


def _batches(probe: Probe) -> list[Probe]:
    return probe.split(max(1, _TOKENS // probe.tokens.shape[1]))
