"""What a layer's attention does with its input, read from its own modules as they run.

How a family stores its weights does not matter. A layer's attention runs on each direction of its
input as a prompt of one token, and stops at its queries, keys and values. At position 0 rotary
positions turn nothing, so the results are the rows of W_Q, W_K and W_V in any layout: fused,
grouped, compressed, quantized or adapted. The output projection gives W_O in the same way.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from interp.errors import InputError
from interp.kinds.mass import FromQK
from interp.models import Model, alone
from interp.models.families import attention_modules, layer_modules, output_projections
from interp.models.model import check_causal
from interp.models.reading import Call, Stopped
from interp.models.stream import around, stream
from interp.weights.norms import Held, Norm, held, norms_in


@dataclass(frozen=True, eq=False)
class Layer:
    """The attention of one layer in one pass of the model.

    Attributes:
        where: The layer and the model, for messages.
        module: The attention module.
        call: Its call.
        heads: Queries, keys and values in that call.
        z: The heads' outputs.
        stream: The residual stream that enters the layer.
        before: The norm whose output the attention reads; the identity if there is none.
        after: The norm that reads the attention's output; the identity if there is none.
        inner: The norms inside the attention, with what they read and gave.
        W_O: The output projection.
        joined: What it read: the outputs of all heads next to each other.
        given: The attention's output; before its last norm, if that reads the stream too (BERT).
    """

    where: str
    module: nn.Module
    call: Call
    heads: FromQK
    z: Float[Tensor, "batch head pos d_value"]
    stream: Float[Tensor, "batch pos d_model"]
    before: Norm
    after: Norm
    inner: dict[nn.Module, list[tuple[Tensor, Tensor]]]
    W_O: nn.Module
    joined: Float[Tensor, "batch pos joined"]
    given: Float[Tensor, "batch pos d_model"]

    def sigma(self) -> Float[Tensor, "batch pos"]:
        """The scale of the norm before the attention."""
        return self.before.scale(self.stream.float(), self.call.read.float())

    def maps(self, norms: Held) -> dict[str, Tensor]:
        """Queries, keys and values as affine maps of what the attention reads, in float32.

        By their names in `interp.weights.heads.HeadWeights`; norms inside the attention are held.
        Call it inside `rereading`.
        """
        width = self.stream.shape[-1]
        basis = torch.eye(width + 1, width, dtype=self.call.read.dtype, device=self.stream.device)
        linear = self._parts(basis, norms, biases=False)
        constant = self._parts(basis[-1:], norms, biases=True)
        weights = [rearrange(part[:-1] - part[-1], "row h e -> h row e") for part in linear]
        biases = [part[0] for part in constant]
        names = (f"{kind}_{part}" for kind in "Wb" for part in "QKV")
        return dict(zip(names, [*weights, *biases], strict=True))

    def _parts(
        self, x: Float[Tensor, "row d_model"], norms: Held, *, biases: bool
    ) -> list[Float[Tensor, "row head d_head"]]:
        args, options = self.call.on(x[:, None])
        with held(norms, biases=biases):
            try:
                called(self.module, args, options, biases=biases)
            except Stopped as stopped:
                parts = stopped.args
                if all(len(part) == len(x) for part in parts):
                    return [rearrange(part, "row h 1 e -> row h e").float() for part in parts]
                raise InputError(
                    f"keys and values must be of {self.where}, got another's"
                ) from None
        raise InputError(f"attention must be computed by softmax in {self.where}")

    def gate(self) -> Float[Tensor, "head d_value"]:
        """By what the heads' outputs are multiplied before W_O, on average over the positions."""
        z = self.z.float()
        joined = rearrange(self.joined.float(), "b q (h e) -> b h q e", h=z.shape[1])
        least = z.abs().max() * (1e-3 if self.joined.dtype == torch.float32 else 5e-2)
        if (joined - z).abs().max() <= least:
            return torch.ones_like(z[0, :, 0])
        if ((joined * z < 0) & (z.abs() > least)).any():
            raise InputError(
                "W_O must read the heads' outputs, each times a positive number,"
                f" got others in {self.where}"
            )
        gate = (joined * z).sum((0, 2)) / z.square().sum((0, 2))
        return gate.nan_to_num(1.0)

    def written(self) -> Float[Tensor, "head d_value d_model"]:
        """W_O as the output projection applies it."""
        width, values = self.joined.shape[-1], self.heads.v
        if values is None or width != self.heads.n_heads * values.shape[-1]:
            raise InputError(
                f"W_O must read each head's output by itself, got a mix of them in {self.where}"
            )
        basis = torch.eye(width + 1, width, dtype=self.joined.dtype, device=self.joined.device)
        with torch.no_grad():
            rows = called(self.W_O, (basis[:, None],), {}, biases=False)[:, 0].float()
        return rearrange(rows[:-1] - rows[-1], "(h e) d -> h e d", h=self.heads.n_heads)


def recorded(model: Model, tokens: Int[Tensor, "batch pos"], layers: Sequence[int]) -> list[Layer]:
    """Run `tokens` once and record the attention of some layers."""
    plain = model.plain
    if model.direction != "both ways":
        check_causal(model)
    if plain is None:
        raise InputError(
            f"weights must be read from a model of transformers, got {model.name}, a bridge:"
            " give the model that it wraps"
        )
    blocks, attention = layer_modules(plain), attention_modules(plain)
    projections = output_projections(plain)
    calls: dict[nn.Module, list[Call]] = {}
    heads: dict[int, list[FromQK]] = {layer: [] for layer in range(model.n_layers)}
    outputs: dict[int, Tensor] = {}
    run = stream if model.direction == "causal" else around

    def keep(layer: int, out: Tensor) -> Tensor:
        return outputs.setdefault(layer, out)

    def record(module: nn.Module, args: Any, options: dict[str, Any], output: Any) -> None:
        calls.setdefault(module, []).append(Call(args, options, output))

    with alone(plain), ExitStack() as hooks:
        for layer in layers:
            if layer not in projections:
                raise InputError(f"layer {layer} of {model.name} must have one output projection")
            parts = (blocks[layer], attention[layer], projections[layer], *norms_in(blocks[layer]))
            for part in parts:
                hooks.enter_context(part.register_forward_hook(record, with_kwargs=True))
        run(model, tokens, lambda layer, seen: heads[layer].append(seen), keep)
    found = []
    for layer in layers:
        where = f"layer {layer} of {model.name}"
        modules = blocks[layer], attention[layer], projections[layer]
        times = [len(heads[layer]), *(len(calls.get(part, ())) for part in modules)]
        if times != [1] * 4:  # DiffLlama takes one attention from another.
            raise InputError(
                "attention must be computed once in a layer,"
                f" got {next(n for n in times if n != 1)} times in {where}"
            )
        found.append(_layer(where, modules, calls, heads[layer][0], outputs[layer]))
    return found


def _layer(
    where: str,
    modules: tuple[nn.Module, nn.Module, nn.Module],
    calls: dict[nn.Module, list[Call]],
    heads: FromQK,
    z: Float[Tensor, "batch pos head d_value"],
) -> Layer:
    """A layer, with the norms around its attention found by the very tensors that they pass on."""
    block, attention, W_O = modules
    whole, call, last = (calls[part][0] for part in modules)
    inside = norms_in(attention)
    around = [
        (norm, calls[norm][0]) for norm in norms_in(block) if norm in calls and norm not in inside
    ]
    before = [(norm, each.read) for norm, each in around if each.gave is call.read]
    before, stream = (before or [(nn.Identity(), call.read)])[0]
    if stream.shape != whole.read.shape or not torch.equal(stream, whole.read):
        raise InputError(
            "attention must read the residual stream, or a norm of it,"
            f" got another input in {where}"
        )
    within = {norm: calls[norm] for norm in inside if norm in calls}
    last_norm = [norm for norm, (each, *_) in within.items() if each.gave is call.gave]
    if any(each.read is call.read for each, *_ in within.values()):  # ESM
        raise InputError(f"norms of the stream must be before the attention, got others in {where}")
    # What follows an attention that adds the stream itself (Bloom) is no norm of the heads alone.
    is_alone = torch.equal(call.gave, last.gave)
    after = [norm for norm, each in around if is_alone and each.read is call.gave]
    like = torch.ones_like(stream[0, 0])
    return Layer(
        where=where,
        module=attention,
        call=call,
        heads=heads,
        z=z.transpose(1, 2),
        stream=stream,
        before=Norm(before, like),
        after=Norm((after or [nn.Identity()])[0], like),
        inner={
            norm: [(each.read, each.gave) for each in seen]
            for norm, seen in within.items()
            if norm not in last_norm
        },
        W_O=W_O,
        joined=last.read,
        given=calls[last_norm[0]][0].read if last_norm else call.gave,
    )


def called(
    module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], *, biases: bool
) -> Any:
    """What a module gives, with or without its biases."""
    absent = {}
    if not biases:  # A bias that is added and subtracted again takes digits from small weights.
        absent = {
            name: torch.zeros_like(bias)
            for name, bias in module.named_parameters()
            if name.rpartition(".")[2] == "bias" and not bias.is_meta
        }
    return functional_call(module, absent, args, options)
