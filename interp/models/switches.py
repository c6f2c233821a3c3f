"""Settings of a model and of the libraries that change for a while and are then restored."""

import contextlib
import inspect
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from huggingface_hub import utils as hub
from transformers.masking_utils import sdpa_mask

from interp.errors import InputError
from interp.models.own_attention import own_forwards

_ATTENTION: ContextVar[Callable[..., Any]] = ContextVar("attention")
"""The function of `attend_with` in this thread."""

_LENGTH: ContextVar[int | None] = ContextVar("length", default=None)
"""Length of the prompt whose masks are made in this thread; None: of the one that runs."""

_LOCKS: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()
_NEW_LOCK, _SETTINGS = threading.Lock(), threading.RLock()


@contextmanager
def alone(model: torch.nn.Module) -> Iterator[None]:
    """Let no other thread use `model`, or a bridge around it, in such a block meanwhile.

    Everything that changes a model for a while must do so in such a block: its modes, hooks or
    attention. Blocks can be nested.
    """
    with _NEW_LOCK:
        lock = _LOCKS.setdefault(getattr(model, "original_model", model), threading.RLock())
    with lock:
        yield


@contextmanager
def attend_with(model: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Let `function` be the model's attention, in evaluation mode; restore both afterwards.

    Like a function of transformers' attention interface, it is called with the attention module,
    queries, keys, values, no mask, and options; also by families that do not use the interface.
    Two more options: `slopes` has what each head's scores lose per position (ALiBi), and `rows`
    what the layer's mask shows the queries `sampled_queries`, `[query, key]`.
    """
    with evaluating(model):
        own, config = model.config._attn_implementation, model.config
        forwards = own_forwards(model, function)
        token = _ATTENTION.set(function)
        try:
            if forwards:
                config._attn_implementation_internal = _OURS
            else:
                model.set_attn_implementation(_OURS)
            for module, forward in forwards.items():
                module.forward = forward
            yield
        finally:
            for module in forwards:
                vars(module).pop("forward", None)
            if forwards:
                config._attn_implementation_internal = own
            else:
                model.set_attn_implementation(own)
            _ATTENTION.reset(token)


def sampled_queries(length: int) -> list[int]:
    """The queries whose rows of the mask are made: enough to recognize a window or chunks."""
    return [length - 1, length // 2, length // 4]


def _attend(module: Any, q: Any, k: Any, v: Any, attention_mask: Any = None, **options: Any) -> Any:
    mask = attention_mask
    if (function := _ATTENTION.get(None)) is None:
        raise InputError("model must run in one thread at a time, got a run during another's")
    if mask is not None and mask.dtype == torch.bool and mask.shape[-2] == len(sampled_queries(0)):
        options["rows"], mask = mask[0, 0], None
    return function(module, q, k, v, mask, **options)


@contextmanager
def masks_for(length: int) -> Iterator[None]:
    """Let a run under `attend_with` make the masks of a prompt of `length` tokens."""
    token = _LENGTH.set(length)
    try:
        yield
    finally:
        _LENGTH.reset(token)


def _few_rows(*, q_length: int, q_offset: int = 0, **options: Any) -> torch.Tensor:
    """Stands in for the mask, which would be as large as a pattern."""
    few = {"batch_size": 1, "q_length": 1, "attention_mask": None}
    few |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if length := _LENGTH.get():
        q_length, few["kv_length"] = length, length
    at = (q_offset + query for query in sampled_queries(q_length))
    made = (sdpa_mask(**{**options, **few, "q_offset": query}) for query in at)
    return torch.cat([row for row in made if row is not None], dim=-2)


_OURS = "interp"
"""Name of our attention for transformers."""

transformers.AttentionInterface.register(_OURS, _attend)
transformers.AttentionMaskInterface.register(_OURS, _few_rows)


def cheap_forward(model: Any) -> dict[str, Any]:
    """Options that skip the logits and the key-value cache, where the model has them."""
    known = inspect.signature(type(model).forward).parameters
    # An index, not a number: given a number, Gemma 4 runs its last layers on so many tokens only.
    options = {"logits_to_keep": torch.tensor([-1]), "use_cache": False}
    takes_more = any(each.kind is each.VAR_KEYWORD for each in known.values())
    # Granite MoE passes it on to the part that it wraps.
    return {n: v for n, v in options.items() if n in known or (n == "use_cache" and takes_more)}


@contextmanager
def eager(model: torch.nn.Module) -> Iterator[None]:
    """Eager attention, which returns its weights; restore each setting afterwards."""
    settings = (getattr(part, "config", None) for part in model.modules())
    configs = {id(s): s for s in settings if isinstance(s, transformers.PreTrainedConfig)}
    before = [(each, each._attn_implementation) for each in configs.values()]
    try:
        # `set_attn_implementation` leaves some families as they are (Falcon).
        for each, _ in before:
            each._attn_implementation_internal = "eager"
        yield
    finally:
        for each, implementation in before:
            each._attn_implementation_internal = implementation


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, without dropout; restore the mode of each part afterwards."""
    # The model that a bridge wraps is not among its modules, but its mode follows the bridge's.
    wrapped = getattr(module, "original_model", module)
    with alone(module):
        modes = {part: part.training for part in (*module.modules(), *wrapped.modules())}
        try:
            module.eval()
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode


def is_ours(hook: Any) -> bool:
    """Whether a hook is one of this package."""
    module = getattr(getattr(hook, "func", hook), "__module__", None)
    return str(module).startswith("interp.")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or advice from the libraries, in one thread at a time; restore settings."""
    names = ("transformers", "transformer_lens", "huggingface_hub")
    # The GGUF reader shows a progress bar whatever transformers' setting.
    with (
        _SETTINGS,
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
        bars = transformers.utils.logging.is_progress_bar_enabled()
        has_hub_bars = not hub.are_progress_bars_disabled()
        try:
            transformers.utils.logging.disable_progress_bar()
            for logger in levels:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)
            if bars:
                transformers.utils.logging.enable_progress_bar()
            # Each of transformers' two functions does the same to the hub's bars.
            (hub.enable_progress_bars if has_hub_bars else hub.disable_progress_bars)()
