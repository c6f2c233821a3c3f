"""How a layer's attention reads the residual stream, so that it can read another one.

In one pass of the model the norm before the attention and the call of the attention are noted.
Afterwards both can be repeated on a changed stream, up to the queries, keys and values that the
attention would go on with: by the model's own modules, so that weights and biases, norms of
queries and keys, and rotary positions are what they are in the model.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.models import Model, attend_with

_REREAD = "interp_reread"
"""Name of our attention function among those that transformers knows."""


class QKV(NamedTuple):
    """What attention goes on with, after rotary positions; heads may share keys and values."""

    q: Float[Tensor, "batch head pos d_head"]
    k: Float[Tensor, "batch kv_head pos d_head"]
    v: Float[Tensor, "batch kv_head pos d_v"]


class Reading:
    """One layer of a model: what its attention read in one pass, and would read of another stream.

    Attributes:
        stream: The residual stream that the norm before the attention saw, once there was a pass
            under `watching`.

    Raises:
        InputError: If the layer has no norm before its attention.
    """

    stream: Float[Tensor, "batch pos d_model"]

    def __init__(self, model: Model, layer: int) -> None:
        block = model.bridge.blocks[layer]
        if "ln1" not in block._modules:
            raise InputError(f"model must have a norm before attention, got {model.name}")
        self._where = f"layer {layer} of {model.name}"
        self._norm, self._attention = (
            model.plain.get_submodule(f"{block.name}.{part.name}")
            for part in (block.ln1, block.attn)
        )
        self._normed: Tensor | None = None
        self._call: tuple[tuple[Any, ...], dict[str, Any]]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what a pass of `model.plain` brings here.

        Raises:
            InputError: In that pass, if the attention reads something else than the norm.
        """

        def at_norm(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.stream, self._normed = inputs[0], output

        def at_attention(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if sum(value is self._normed for value in (*args, *options.values())) != 1:
                raise InputError(
                    f"attention must read the norm before it, got another input in {self._where}"
                )
            self._call = args, options

        with ExitStack() as hooks:
            hooks.callback(self._norm.register_forward_hook(at_norm).remove)
            handle = self._attention.register_forward_pre_hook(at_attention, with_kwargs=True)
            hooks.callback(handle.remove)
            yield

    def of(self, stream: Float[Tensor, "batch pos d_model"]) -> QKV:
        """What the attention would read of `stream`, inside `rereading`."""
        normed = self._norm(stream.to(self.stream.dtype))
        args, options = self._call
        args = [normed if value is self._normed else value for value in args]
        options = {n: normed if value is self._normed else value for n, value in options.items()}
        try:
            self._attention(*args, **options)
        except _Read as read:
            return read.args[0]
        raise AssertionError(f"no attention was computed in {self._where}")


@contextmanager
def rereading(model: Model) -> Iterator[None]:
    """Let attention modules stop where their queries, keys and values are there."""
    with attend_with(model.plain, _REREAD, _hand_back), torch.no_grad():
        yield


class _Read(Exception):
    """Queries, keys and values are there, and nothing after them is wanted."""


def _hand_back(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> NoReturn:
    raise _Read(QKV(query, key, value))
