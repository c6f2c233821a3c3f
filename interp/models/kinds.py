"""In what way each layer of a model attends, from the model's own settings."""

import logging
from collections.abc import Collection
from typing import Any

import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as alibi_of_bloom
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor as alibi_of_mpt

from interp.errors import InputError
from interp.kinds.targets import Blocks

LOG = logging.getLogger("interp")

_LOCAL = ("sliding_attention", "local")
"""What layers with a window are called in the settings."""

_CHUNKED = "chunked_attention"


def _listed(config: Any, n_layers: int) -> list[str]:
    """What the settings call each layer; nothing where they tell no layer from another."""
    listed = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    return list(listed)[:n_layers] if listed and len(listed) >= n_layers else []


def _width(config: Any) -> int | None:
    """How wide the settings make a window; None is no window."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    width = getattr(config, "sliding_window", None)
    return getattr(config, "window_size", None) if width is None else width


def windows(config: Any, n_layers: int, *, causal: bool = True) -> tuple[int | None, ...]:
    """How far back each layer may look at most, the query included; None: no limit.

    A width of None or 0 is no limit; of a model that is not causal it is how far a query sees
    either way, itself not counted, and 0 is a window of itself alone. That of a layer
    that attends within blocks of fixed places is their length, as `interp.kinds.targets.Blocks`.
    """
    width, listed = _width(config), _listed(config, n_layers)
    if not causal and width is not None:
        width += 1
    if not listed:
        return (width or None,) * n_layers
    chunk = getattr(config, "attention_chunk_size", None)
    widths: dict[str, int | None] = dict.fromkeys(_LOCAL, width or None)
    widths |= {_CHUNKED: Blocks(chunk) if chunk else None}
    return tuple(widths.get(name) for name in listed)


def open_empty_windows(config: Any, name: str) -> None:
    """Let layers whose window has no width, or width 0, attend to all: in `config` itself.

    Transformers would show the queries of such a layer no key at all, or refuse to run.

    Args:
        config: The settings of the model, which are changed.
        name: Of the model, for the warning that its settings are not taken as they stand.

    Raises:
        InputError: If a window of width 0 is in the weights' own tables (GPT-Neo).
    """
    if getattr(config, "window_size", None) == 0 and "local" in getattr(
        config, "attention_layers", ()
    ):
        raise InputError(
            f"window_size must be at least 1 where layers are local, got 0 in {name}:"
            " their queries would see no key"
        )
    width = getattr(config, "sliding_window", "no such setting")
    if width not in (None, 0):
        return
    listed = getattr(config, "layer_types", None) or ()
    if width == 0 or not set(_LOCAL).isdisjoint(listed):
        LOG.warning(
            "sliding_window is %s in the settings of %s: its layers are run, and read, without"
            " a window, where transformers alone would show queries no key or fail",
            width,
            name,
        )
    if not listed:
        config.sliding_window = None
        return
    config.layer_types = ["full_attention" if kind in _LOCAL else kind for kind in listed]
    # Masks of both kinds may be made whether or not a layer needs them, and want a width.
    config.sliding_window = config.max_position_embeddings


_SOFTMAX = (
    *("camembert", "canine", "data2vec-text", "deberta", "deberta-v2", "flaubert", "ibert"),
    *("luke", "markuplm", "megatron-bert", "mpnet", "mvp", "nezha", "prophetnet", "rembert"),
    *("roformer", "splinter", "squeezebert", "switch_transformers", "tapas", "xlm", "convbert"),
)
"""Families with a row of shares of all tokens for each query, whose code has one form only."""


def is_softmax(model: Any) -> bool:
    """Whether a model that is not causal is known to let each query share itself out over all.

    Known are those whose attention the usual kernels can compute too, and those listed.
    """
    by_kernels = getattr(model, "_supports_sdpa", False)
    return bool(by_kernels) or model.config.model_type in _SOFTMAX


def kinds(
    config: Any,
    widths: tuple[int | None, ...],
    *,
    attending: Collection[int],
    own_way: bool,
    alibi: bool,
    learned_sinks: bool,
) -> tuple[str, ...]:
    """In a few words how each layer attends: see `interp.models.Model.kinds`."""
    listed = _listed(config, len(widths)) or ["full_attention"] * len(widths)
    also = [word for word, so in (("ALiBi", alibi), ("learned sinks", learned_sinks)) if so]

    def kind(layer: int) -> str:
        if layer not in attending:
            own = listed[layer].replace("_", " ")
            return "none" if own == "full attention" else f"none ({own})"
        if isinstance(widths[layer], Blocks):
            base = f"chunked {widths[layer]}"
        elif widths[layer] is not None:
            base = f"window {widths[layer]}"
        elif own_way:
            base = "other"
        else:
            base = "latent" if getattr(config, "kv_lora_rank", None) else "full"
        return ", ".join([base, *also])

    return tuple(kind(layer) for layer in range(len(widths)))


def alibi_slopes(config: Any, n_heads: int) -> tuple[float, ...] | None:
    """What each head's scores lose per token of distance, as the model's own code has it.

    None for a family whose slopes are not known here.
    """
    made = {
        "bloom": lambda: alibi_of_bloom(torch.ones(1, 2), n_heads, torch.float32),
        "mpt": lambda: alibi_of_mpt(n_heads, 2, config.attn_config.alibi_bias_max),
    }
    if config.model_type not in made:
        return None
    first, second = made[config.model_type]().reshape(n_heads, 2).unbind(1)
    return tuple((second - first).tolist())
