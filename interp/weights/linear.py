"""A pass of a model in which its logits are linear in what heads and layers add to the stream.

The model runs with its own modules and gives its own values, but autograd follows the residual
stream alone. Whatever reads the stream (attention, MLP, experts, a mixer without heads) is cut off
from it, and each norm that the stream passes keeps the scale that it has in this pass. The output
of every head, the output of every other branch, and the stream that enters the first layer are
then separate variables, and the input of the unembedding is linear in them. One backward pass
gives its gradient at all of them; the effect of a part is its product with the gradient.

So nothing between a head and the logits depends on the family: W_O in any storage, norms after the
heads, gates, multipliers of residual branches, parallel blocks, projections. Positions are
separate, since only attention moves information between them.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import InputError
from interp.models import Model, alone, attention_layers, evaluating
from interp.models.families import (
    Stack,
    attention_modules,
    layer_modules,
    output_projections,
)
from interp.models.reading import Call
from interp.models.stream import Visit, stream
from interp.weights.norms import Norm, norms_in

Norms = dict[nn.Module, Norm]
"""Norms that have been probed."""

_ADDS_RESIDUAL = {"residual", "input_tensor"}
"""Arguments by which a module gets the stream and adds its own part to it (Bloom, MPT, BERT)."""


@dataclass
class Linear:
    """The parts of the stream in one pass, and their gradients.

    `others`, `written` and `normed` are kept only with `parts` (see `linear_pass`).
    """

    norms: Norms
    streams: dict[int, Float[Tensor, "batch pos d_model"]] = field(default_factory=dict)
    """What each layer reads; that of the first layer is itself a part, the embedding."""
    heads: dict[int, Float[Tensor, "batch pos head d_value"]] = field(default_factory=dict)
    """What the heads of a layer put out: their weighted values."""
    cross: dict[int, Float[Tensor, "batch pos head d_value"]] = field(default_factory=dict)
    """What the heads of a decoder put out that attend to the encoder."""
    others: list[tuple[int, Float[Tensor, "batch pos d_model"]]] = field(default_factory=list)
    """What other branches of a layer put out, with the layer's number."""
    written: list[tuple[nn.Module, int, Tensor, Float[Tensor, "batch pos d_model"]]] = field(
        default_factory=list
    )
    """What W_O of a layer puts out, after its module, the layer and what it reads."""
    normed: list[tuple[nn.Module, Tensor]] = field(default_factory=list)
    """What each norm puts out that reads the stream."""
    last: Float[Tensor, "batch pos d_read"] = field(default_factory=lambda: torch.empty(0))
    """What the unembedding reads."""

    def gradients(
        self,
        direction: Float[Tensor, "batch pos d_read"],
        at: Sequence[Tensor],
        *,
        unused: bool = False,
    ) -> Sequence[Tensor]:
        """Gradients of `last . direction` at each of `at`.

        Where nothing of `at` reaches `last` the gradient is 0 with `unused`, else refused.
        """
        direction = direction.to(self.last.dtype)
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": unused}
        found = torch.autograd.grad(self.last, at, direction, **options) if at else ()
        if any(gradient is None for gradient in found):
            raise InputError("the residual stream does not reach the logits")
        return found

    def carried(
        self, layer: int, at: Sequence[Tensor]
    ) -> list[Callable[[Tensor], Float[Tensor, "batch pos d_model"]]]:
        """The linear map from each of `at`, parts of the stream, to what `layer` reads.

        A map takes one part, or several with an axis more in front.
        """
        x = self.streams[layer]
        towards = torch.zeros_like(x, requires_grad=True)
        options = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(x, at, towards, **options)

        def forward(gradient: Tensor, part: Tensor) -> Tensor:
            if not gradient.requires_grad:  # `layer` does not read it.
                return towards.detach().expand(
                    *part.shape[: part.dim() - gradient.dim()], -1, -1, -1
                )
            # The gradient is linear in `towards`, so its own gradient is the map itself.
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            several = part.dim() > gradient.dim()
            return torch.autograd.grad(
                gradient, towards, part, **options, is_grads_batched=several
            )[0]

        return [partial(forward, each) for each in gradients]


class _Frozen(torch.autograd.Function):
    """The output of a norm, whose gradient takes the scale as constant.

    The scale is computed in the backward pass, which most norms are no part of: they only serve
    branches.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, norm: Callable[[Tensor], Norm]) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.norm = norm
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, y = (saved.detach() for saved in ctx.saved_tensors)
        norm = ctx.norm(x)
        scale = norm.scale(x.float(), y.float())
        return (norm.fold(gradients[0].float()) / scale[..., None]).to(x.dtype), None, None


def linear_pass(
    model: Model,
    tokens: Tensor,
    visit: Visit,
    norms: Norms,
    *,
    parts: bool = False,
    layers: Collection[int] = (),
    decoder_tokens: Tensor | None = None,
) -> Linear:
    """Stream `tokens` through the model (`interp.models.stream`), linear in its parts.

    Args:
        model: A model that can be streamed.
        tokens: Token ids, without padding.
        visit: Called with each layer's attention.
        norms: Norms that have been probed; new ones are added.
        parts: Whether to keep all parts, not only the heads.
        layers: Layers whose `streams` are kept, next to that of the first.
        decoder_tokens: Input of an encoder-decoder's decoder, whose residual stream it is then.

    A model that is not causal is run, not streamed: `visit` is not called.
    """
    run = Linear(norms)

    def cut(layer: int, out: Tensor) -> Tensor:
        if layer in run.heads:
            raise InputError(f"the heads of layer {layer} attend more than once")
        run.heads[layer] = out.detach().requires_grad_()
        torch.set_grad_enabled(True)
        return run.heads[layer]

    with _watching(model, run, parts, layers):
        if model.direction == "causal":
            stream(model, tokens, visit, cut)
        else:
            with evaluating(model.plain), torch.no_grad():
                model.plain(**both_inputs(tokens, decoder_tokens))
    if without := sorted({*attention_layers(model, None, stack_of(model))} - {*run.heads}):
        raise InputError(f"the attention of layer {without[0]} cannot be streamed")
    if model.plain.get_output_embeddings() is not None and not run.last.requires_grad:
        raise InputError("the unembedding does not read the residual stream")
    return run


def stack_of(model: Model) -> Stack:
    """The stack whose stream ends in the logits."""
    return "decoder" if model.direction == "encoder-decoder" else None


def both_inputs(tokens: Tensor, decoder_tokens: Tensor | None) -> dict[str, Any]:
    """Arguments with which a model runs its tokens, without a cache."""
    decoded = {} if decoder_tokens is None else {"decoder_input_ids": decoder_tokens}
    return {"input_ids": tokens, **decoded, "use_cache": False}


@contextmanager
def _watching(model: Model, run: Linear, parts: bool, layers: Collection[int]) -> Iterator[None]:
    """Hooks that let autograd follow the stream alone: on between branches, off inside them."""
    plain, stack, is_streamed = model.plain, stack_of(model), model.direction == "causal"
    attention, projections = attention_modules(plain, stack), output_projections(plain, stack)
    attention_2, projections_2 = {}, {}
    if stack is not None:
        attention_2 = attention_modules(plain, "cross")
        projections_2 = output_projections(plain, "cross")
    maps = (attention, projections, attention_2, projections_2)

    def entered(layer: int, module: Any, args: Any, options: Any) -> Any:
        torch.set_grad_enabled(True)
        call = Call(args, options)
        if (x := call.read).dim() != 3:
            raise InputError(
                "the layers read several streams, mixed by factors that depend on them"
            )
        if not run.streams:
            run.streams[layer] = x.detach().requires_grad_()
            return call.on(run.streams[layer])
        if layer in layers:
            run.streams[layer] = x
        return None

    def left(layer: int, module: Any, inputs: Any, output: Any) -> None:
        if layer + 1 in layers:
            run.streams[layer + 1] = Call((), {}, output).gave

    def attends(module: Any, args: Any, options: Any) -> tuple[Any, dict[str, Any]]:
        torch.set_grad_enabled(False)
        names = [*_arguments(module), *map(str, range(len(args)))]
        # What follows the heads may read the stream too: gates.
        cut = tuple(_cut(name, value) for name, value in zip(names, args))
        return cut, {name: _cut(name, value) for name, value in options.items()}

    def split(found: dict[int, Tensor], layer: int, module: Any, inputs: Any) -> Any:
        heads = inputs[0].detach().unflatten(-1, (model.heads_of(stack), -1)).requires_grad_()
        found[layer] = heads
        return heads.flatten(2), *inputs[1:]

    def off(*_: Any) -> None:
        torch.set_grad_enabled(False)

    def on(*_: Any) -> None:
        torch.set_grad_enabled(True)

    def part(layer: int, module: Any, inputs: Any, output: Any) -> Any:
        torch.set_grad_enabled(True)
        if not parts:
            return None
        first, *others = output if isinstance(output, tuple) else (output,)
        first = first.detach().requires_grad_()
        run.others.append((layer, first))
        first = first.clone()  # Falcon adds to it in place.
        return (first, *others) if isinstance(output, tuple) else first

    def freeze(module: nn.Module, args: Any, options: Any, y: Tensor) -> Tensor | None:
        x = args[0] if args else next(iter(options.values()))
        if not (torch.is_grad_enabled() and x.requires_grad):
            return None
        y = _Frozen.apply(x, y.detach(), partial(_probed, run.norms, module))
        # After the layers of a model that is not causal comes what is not linear.
        if parts and (is_streamed or len(layer_by_number) not in run.streams):
            run.normed.append((module, y))
        return y

    def wrote(layer: int, module: Any, inputs: Any, output: Tensor) -> None:
        if parts and output.requires_grad:
            run.written.append((module, layer, inputs[0].detach(), output))

    def read(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        run.last = inputs[0]
        torch.set_grad_enabled(False)
        return inputs[0][:, -1:].detach(), *inputs[1:]  # Logits of all positions are large.

    def whole(module: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: one for name, one in options.items() if name != "logits_to_keep"}

    layer_by_number = layer_modules(plain, stack)
    with ExitStack() as hooks:
        enter = hooks.enter_context
        enter(alone(plain))
        enter(plain.register_forward_pre_hook(whole, with_kwargs=True))
        for i, layer in layer_by_number.items():
            enter(layer.register_forward_pre_hook(partial(entered, i), with_kwargs=True))
            enter(layer.register_forward_hook(partial(left, i)))
            for branch in _branches(layer, *(each.get(i) for each in maps)):
                enter(branch.register_forward_pre_hook(off))
                enter(branch.register_forward_hook(partial(part, i)))
        for module in attention.values() if is_streamed else ():
            enter(module.register_forward_pre_hook(attends, with_kwargs=True))
            enter(module.register_forward_hook(on))
        for found, named in ((run.heads, projections), (run.cross, projections_2)):
            for i, module in named.items():
                enter(module.register_forward_hook(partial(wrote, i)))
                if not is_streamed:
                    enter(module.register_forward_pre_hook(partial(split, found, i)))
        for module in norms_in(plain):
            enter(module.register_forward_hook(freeze, with_kwargs=True))
        if (unembedding := plain.get_output_embeddings()) is not None:
            enter(unembedding.register_forward_pre_hook(read))
        yield


def _probed(norms: Norms, module: nn.Module, x: Tensor) -> Norm:
    if module not in norms:
        norms[module] = Norm(module, x.flatten(0, -2)[0])
    return norms[module]


def _arguments(module: nn.Module) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)[1:]


def _cut(name: str, value: Any) -> Any:
    is_read = isinstance(value, Tensor) and name not in _ADDS_RESIDUAL
    return value.detach() if is_read else value


def _branches(layer: nn.Module, *kept: nn.Module | None) -> Iterator[nn.Module]:
    """The modules of a layer that read the stream and add to it, other than its attention.

    A module that adds its part to the stream itself (T5's LayerFF too), or has the attention or
    W_O inside, is not cut off as a whole, but its own modules are.
    """
    for module in layer.children():
        if (
            module in kept
            or norms_in(module)[:1] == [module]
            or "dropout" in type(module).__name__.lower()
        ):
            continue
        inside = any(one in kept for one in module.modules()) or "LayerFF" in type(module).__name__
        if inside or not _ADDS_RESIDUAL.isdisjoint(_arguments(module)):
            yield from _branches(module, *kept)
        else:
            yield module
