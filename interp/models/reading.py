"""How a layer's attention reads the residual stream, so that it can read another one.

One pass of the model records the call of the layer. The layer can then run again on a changed
stream, up to the queries, keys and values of its attention, by the model's own modules: norms,
weights and biases, norms of queries and keys, and rotary positions are those of the model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
import transformers
from jaxtyping import Float
from torch import Tensor

from interp.models import Model, alone, attend_with
from interp.models.families import layer_modules


class QKV(NamedTuple):
    """Queries, keys and values after rotary positions; heads may share keys and values."""

    q: Float[Tensor, "batch head pos d_head"]
    k: Float[Tensor, "batch kv_head pos d_head"]
    v: Float[Tensor, "batch kv_head pos d_v"]


class Call(NamedTuple):
    """One call of a module."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    output: Any = None

    @property
    def read(self) -> Any:
        """What the module read: its first argument, or `hidden_states`."""
        return self.args[0] if self.args else self.options.get("hidden_states")

    @property
    def gave(self) -> Any:
        """What the module gave: its output, or the first of several."""
        return self.output[0] if isinstance(self.output, tuple | list) else self.output

    def on(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the same call on another input, also where it is given twice (CTRL)."""
        args = tuple(x if each is self.read else each for each in self.args)
        return args, {n: x if each is self.read else each for n, each in self.options.items()}


class Reading:
    """One layer of a model: what its attention read in one pass and would read in another."""

    stream: Float[Tensor, "*batch pos d_model"]
    """Residual stream that enters the layer, after a pass under `watching`."""

    _call: Call

    def __init__(self, model: Model, layer: int) -> None:
        self._where, self._model = f"layer {layer} of {model.name}", model.plain
        self._layer = layer_modules(model.plain)[layer]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the call of the layer in a pass of `model.plain`."""

        def look(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            # A cache would grow from one call to the next.
            args = tuple(None if _is_cache(value) else value for value in args)
            options = {n: None if _is_cache(value) else value for n, value in options.items()}
            self._call = Call(args, options)
            self.stream = self._call.read.detach()

        with alone(self._model), self._layer.register_forward_pre_hook(look, with_kwargs=True):
            yield

    def of(self, stream: Float[Tensor, "*batch pos d_model"]) -> QKV:
        """Queries, keys and values that the attention reads from `stream`, inside `rereading`."""
        args, options = self._call.on(stream.to(self.stream.dtype))
        try:
            self._layer(*args, **options)
        except Stopped as stopped:
            return QKV(*stopped.args)
        raise AssertionError(f"no attention was computed in {self._where}")


class Stopped(Exception):
    """Stops a module; of an attention module, its arguments are queries, keys and values."""


@contextmanager
def rereading(model: Model) -> Iterator[None]:
    """Let attention modules stop as soon as they have queries, keys and values."""

    def stop(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> NoReturn:
        raise Stopped(query, key, value)

    with attend_with(model.plain, stop), torch.no_grad():
        yield


def _is_cache(value: Any) -> bool:
    return isinstance(value, transformers.Cache)
