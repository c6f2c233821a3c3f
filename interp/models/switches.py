"""Settings of a model and of the libraries that change for a while and are then restored."""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import transformers

_Held = TypeVar("_Held")


@contextmanager
def attend_with(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let `function` be the model's attention, in evaluation mode; restore both afterwards."""
    transformers.AttentionInterface.register(name, function)
    own = model.config._attn_implementation
    with evaluating(model):
        try:
            model.set_attn_implementation(name)
            yield
        finally:
            model.set_attn_implementation(own)


def cheap_forward(model: Any) -> dict[str, Any]:
    """Options that skip the logits and the key-value cache, where the model has them."""
    known = inspect.signature(type(model).forward).parameters
    # An index, not a number: given a number, Gemma 4 runs its last layers on so many tokens only.
    options = {"logits_to_keep": torch.tensor([-1]), "use_cache": False}
    return {name: value for name, value in options.items() if name in known}


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, without dropout; restore the mode of each part afterwards."""
    # The model that a bridge wraps is not among its modules, but its mode follows the bridge's.
    wrapped = getattr(module, "original_model", module)
    modes = {part: part.training for part in (*module.modules(), *wrapped.modules())}
    try:
        module.eval()
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def holding(variable: ContextVar[_Held], value: _Held) -> Iterator[None]:
    """Let `variable` hold `value`, for functions of `attend_with`."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or advice from the libraries; restore their settings afterwards."""
    names = ("transformers", "transformer_lens", "huggingface_hub")
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        # The GGUF reader shows a progress bar whatever transformers' setting.
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
