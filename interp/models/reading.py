"""How a layer's attention reads the residual stream, so that it can read another one.

One pass of the model records the norm before the attention and the call of the attention. Both can
then run again on a changed stream, up to the queries, keys and values, by the model's own modules:
weights and biases, norms of queries and keys, and rotary positions are those of the model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.models import Model, alone, attend_with


class QKV(NamedTuple):
    """Queries, keys and values after rotary positions; heads may share keys and values."""

    q: Float[Tensor, "batch head pos d_head"]
    k: Float[Tensor, "batch kv_head pos d_head"]
    v: Float[Tensor, "batch kv_head pos d_v"]


class Reading:
    """One layer of a model: what its attention read in one pass and would read in another."""

    stream: Float[Tensor, "batch pos d_model"]
    """Residual stream before the norm of the attention, after a pass under `watching`."""

    _normed: Tensor | None = None
    _call: tuple[tuple[Any, ...], dict[str, Any]]

    def __init__(self, model: Model, layer: int) -> None:
        block = model.bridge.blocks[layer]
        if "ln1" not in block._modules:
            raise InputError(f"model must have a norm before attention, got {model.name}")
        self._where, self._model = f"layer {layer} of {model.name}", model.plain
        self._norm = model.plain.get_submodule(f"{block.name}.{block.ln1.name}")
        self._attention = model.plain.get_submodule(f"{block.name}.{block.attn.name}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what a pass of `model.plain` reads here; refuse an attention without a norm."""

        def at_norm(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.stream, self._normed = inputs[0], output

        def at_attention(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if sum(value is self._normed for value in (*args, *options.values())) != 1:
                raise InputError(
                    f"attention must read the norm before it, got another input in {self._where}"
                )
            self._call = args, options

        with (  # A handle of a hook removes it at the end.
            alone(self._model),
            self._norm.register_forward_hook(at_norm),
            self._attention.register_forward_pre_hook(at_attention, with_kwargs=True),
        ):
            yield

    def of(self, stream: Float[Tensor, "batch pos d_model"]) -> QKV:
        """Queries, keys and values that the attention reads from `stream`, inside `rereading`."""
        normed = self._norm(stream.to(self.stream.dtype))
        args, options = self._call
        args = [normed if value is self._normed else value for value in args]
        options = {n: normed if value is self._normed else value for n, value in options.items()}
        try:
            self._attention(*args, **options)
        except _Read as read:
            return read.args[0]
        raise AssertionError(f"no attention was computed in {self._where}")


class _Read(Exception):
    """Stops an attention module that has its queries, keys and values."""


@contextmanager
def rereading(model: Model) -> Iterator[None]:
    """Let attention modules stop as soon as they have queries, keys and values."""

    def stop(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> NoReturn:
        raise _Read(QKV(query, key, value))

    with attend_with(model.plain, stop), torch.no_grad():
        yield
