"""What differs between families of models: tables, and functions that read settings and modules.

To add a family, start here. `tests/models/test_families.py` measures every family in
`docs/families.md`; add a row there.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
import transformers
from pydantic import Field, TypeAdapter
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from interp.errors import InputError, Whole, validated
from interp.kinds.targets import Blocks

LOG = logging.getLogger("interp")

Direction = Literal["causal", "both ways", "encoder-decoder"]
"""Which way attention looks: back only (GPT-2), both ways (BERT), or two stacks (T5)."""

Stack = Literal["encoder", "decoder", "cross"] | None
"""A stack of an encoder-decoder, or the decoder's attention to the encoder; None: the only one."""

_MOST = 2**31 - 1
"""Upper bound of every size: products of larger ones overflow."""

_SIZE, _WIDTH, _ID = (
    TypeAdapter(Annotated[Whole, Field(ge=least, le=_MOST)]) for least in (1, 0, -_MOST)
)
_FACTOR = TypeAdapter(Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)])
_EPSILON = TypeAdapter(Annotated[float, Field(ge=0, le=_MOST, strict=True)])

_RULES: dict[str, TypeAdapter[Any]] = {
    name: rule
    for rule, names in {
        _SIZE: """hidden_size n_embd d_model d_kv vocab_size word_embed_proj_dim head_dim
            intermediate_size n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff
            num_attention_heads n_head n_heads num_heads attention_heads
            encoder_attention_heads decoder_attention_heads num_key_value_heads num_kv_heads
            num_hidden_layers num_layers n_layer n_layers
            num_decoder_layers encoder_layers decoder_layers
            max_position_embeddings n_positions n_ctx max_seq_len attention_chunk_size""",
        _WIDTH: "sliding_window window_size local_attention",
        _FACTOR: """rope_theta rotary_emb_base rotary_embedding_base query_pre_attn_scalar
            attn_logit_softcapping final_logit_softcapping factor""",
        _EPSILON: "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps norm_epsilon",
    }.items()
    for name in names.split()
}
"""Settings that are read here or that give weights their shape. A window of 0 means no window."""

_CONTEXT = ("n_positions", "max_position_embeddings", "max_context_length", "max_length")
_CONTEXT += ("seq_length", "max_seq_len", "max_sequence_length")
"""Settings that name the longest prompt: the first one counts."""

_LOCAL = ("sliding_attention", "local")
"""Names of layers with a window in the settings."""

_ROTARY_IN_WINDOWS = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe")
"""Families whose layers without a window, next to those with one, have no rotary positions."""

_SOFTMAX = (
    *("camembert", "canine", "data2vec-text", "deberta", "deberta-v2", "flaubert", "ibert"),
    *("luke", "markuplm", "megatron-bert", "mpnet", "mvp", "nezha", "prophetnet", "rembert"),
    *("roformer", "splinter", "squeezebert", "switch_transformers", "tapas", "xlm", "convbert"),
)
"""Bidirectional families whose only attention code gives each query a softmax over all tokens."""

_PROJECTIONS = ("o_proj", "c_proj", "dense", "out_proj", "out_lin", "Wo", "o")
"""Names of W_O."""

_POSITIONS = re.compile("wpe|embed_positions|positions?_embed(ding|dings)?")
"""Names of tables of learned positions."""

SUBTRACTED = ("diffllama",)
"""Families in which W_O reads differences of heads' outputs."""

_CROSS = re.compile("cross|encdec|encoder_att", re.IGNORECASE)
"""In names of attention to another stack, or to images."""


def text_config(model: Any, stack: Stack = None) -> Any:
    """Settings of the language model, also where it is one part of a larger model.

    Of an encoder-decoder whose stacks have settings of their own, those of `stack`; None: encoder.
    """
    config: Any = getattr(model, "config", None)
    own = getattr(config, "decoder" if stack in ("decoder", "cross") else "encoder", None)
    if isinstance(own, transformers.PreTrainedConfig) and config.is_encoder_decoder:
        return own
    return getattr(config, "get_text_config", lambda: config)()


def direction(config: Any, architecture: str | None) -> Direction:
    """Which way a model looks, by its settings and the name of its class."""
    encoder = (architecture or "").endswith("EncoderModel")
    if getattr(config, "is_encoder_decoder", False) and not encoder:
        return "encoder-decoder"
    # XLM and Flaubert have a setting `causal`.
    if getattr(config, "is_decoder", False) or getattr(config, "causal", False):
        return "causal"
    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # Decoders too run without a causal mask where their settings say so (embedding models).
    bidirectional = getattr(config, "is_causal", True) is False
    return "both ways" if masked or encoder or bidirectional else "causal"


def class_for(config: Any) -> Any:
    """The class of transformers that loads the weights for these settings."""
    listed = getattr(config, "architectures", None)
    named = listed[0] if listed and isinstance(listed, list) else None
    own = getattr(transformers, str(named), None)
    if getattr(own, "config_class", None) is type(config):
        return own
    way = direction(config, named)
    if way == "causal":
        return transformers.AutoModelForCausalLM
    both_ways = way == "both ways"
    return transformers.AutoModelForMaskedLM if both_ways else transformers.AutoModelForSeq2SeqLM


def check_settings(settings: Mapping[Any, Any]) -> None:
    """Refuse a number that no model has, at any depth of the settings.

    Values that are null or lists are left to the family.

    Example:
        >>> check_settings({"text_config": {"num_attention_heads": 0}})
        Traceback (most recent call last):
        interp.errors.InputError: num_attention_heads must be greater than or equal to 1, got 0
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            check_settings(value)
        elif str(name).endswith("_token_id"):
            for i in value if isinstance(value, list) else [value]:
                if i is not None:
                    validated(name, i, _ID)
        elif name == "head_dim" and value == 0 and settings.get("kv_lora_rank"):
            continue  # Latent attention does not use it.
        elif name in _RULES and not isinstance(value, list | tuple | None):
            is_whole = isinstance(value, float) and value.is_integer()
            validated(name, int(value) if is_whole else value, _RULES[name])


def special_ids(named: Any) -> Iterator[tuple[str, int]]:
    """Special tokens that settings or a tokenizer name: the setting, and the id."""
    for end in ("bos", "eos", "pad", "cls", "sep"):
        ids = getattr(named, setting := f"{end}_token_id", None)
        for i in ids if isinstance(ids, list) else [ids]:
            if i is not None:
                yield setting, i


def context(model: nn.Module, way: Direction, stack: Stack = None) -> int | None:
    """How many tokens a prompt may have; None: no limit.

    It is what the settings say, or the number of learned positions, if that is less.
    """
    config = text_config(model, stack)
    names = _CONTEXT if way == "causal" else ("max_position_embeddings",)
    sizes = [getattr(config, name) for name in names if hasattr(config, name)][:1]
    for name, module in text_model(model, stack).named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.fullmatch(name.split(".")[-1]):
            # RoBERTa and its relatives count positions from after the id of padding, OPT from 2.
            before = getattr(
                module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1
            )
            sizes.append(len(module.weight) - before)
    return min((size for size in sizes if size is not None), default=None)


def body(plain: Any) -> Any:
    """The part of a model to run where no logits are needed: classifiers need to know padding."""
    return plain.base_model if hasattr(plain, "score") else plain


def listed(config: Any, n_layers: int) -> list[str]:
    """The settings' name of each layer; empty where they name none."""
    names = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    return list(names)[:n_layers] if names and len(names) >= n_layers else []


def windows(config: Any, n_layers: int, *, causal: bool = True) -> tuple[int | None, ...]:
    """How many positions back each layer sees, the query's own included; None: no limit.

    A width of None or 0 is no limit. In a model that is not causal the width counts the
    positions on either side of the query, without its own; 0 shows a query only itself. A layer
    that attends within chunks of fixed length has `interp.kinds.targets.Blocks` of that length.
    """
    width = getattr(config, "sliding_window", None)
    width = getattr(config, "window_size", None) if width is None else width
    if getattr(config, "use_sliding_window", True) is False:
        width = None
    if not causal and width is not None:
        width += 1
    names = listed(config, n_layers)
    if not names:
        return (width or None,) * n_layers
    chunk = getattr(config, "attention_chunk_size", None)
    widths: dict[str, int | None] = dict.fromkeys(_LOCAL, width or None)
    widths["chunked_attention"] = Blocks(chunk) if chunk else None
    return tuple(widths.get(name) for name in names)


def without_rotary(config: Any, windows: Sequence[int | None]) -> frozenset[int]:
    """Layers without rotary positions in a model whose other layers have them."""
    uses = getattr(config, "no_rope_layers", None)  # 1 where they are used, against its name.
    if not uses and config.model_type in _ROTARY_IN_WINDOWS:
        uses = windows
    found = frozenset(i for i, used in enumerate(uses or ()) if not used)
    return found if len(found) < len(windows) else frozenset()


def open_empty_windows(config: Any, name: str) -> None:
    """Let layers whose window has no width, or width 0, attend to everything: changes `config`.

    transformers would show the queries of such a layer no key at all, or fail. GPT-Neo has the
    window in tables of its weights, so that a width of 0 is refused.
    """
    local = "local" in getattr(config, "attention_layers", ())
    if local and getattr(config, "window_size", None) == 0:
        raise InputError(f"window_size must be at least 1 where layers are local, got 0 in {name}")
    width = getattr(config, "sliding_window", "no such setting")
    if width not in (None, 0):
        return
    names = getattr(config, "layer_types", None) or ()
    is_used = getattr(config, "use_sliding_window", True)  # Qwen2-MoE has 0 where it is not.
    if is_used and (width == 0 or not set(_LOCAL).isdisjoint(names)):
        message = "sliding_window is %s in the settings of %s: its layers run without a window"
        LOG.warning(message, width, name)
    if not names:
        config.sliding_window = None
        return
    config.layer_types = ["full_attention" if kind in _LOCAL else kind for kind in names]
    # transformers may build masks of both kinds whether or not a layer uses them.
    config.sliding_window = config.max_position_embeddings


def is_softmax(model: Any) -> bool:
    """Whether each query of a bidirectional model is known to have a softmax over all tokens."""
    # The usual kernels compute nothing else.
    return getattr(model, "_supports_sdpa", False) or model.config.model_type in _SOFTMAX


def is_alibi(config: Any) -> bool:
    """Whether ALiBi takes `slope * distance` from each score."""
    return config.model_type in ("bloom", "mpt") or bool(getattr(config, "alibi", False))


def alibi_slopes(config: Any, n_heads: int) -> tuple[float, ...] | None:
    """What each head's scores lose per token of distance, by the model's own code; else None."""
    if config.model_type == "bloom":
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor

        bias = build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)
    elif config.model_type == "mpt":
        from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

        bias = build_mpt_alibi_tensor(n_heads, 2, config.attn_config.alibi_bias_max)
    else:
        return None
    first, second = bias.reshape(n_heads, 2).unbind(1)
    return tuple((second - first).tolist())


def text_model(plain: Any, stack: Stack = None) -> Any:
    """The module that holds the layers, of a vision-language model only those of its text."""
    if stack is not None:
        return plain.get_encoder() if stack == "encoder" else plain.get_decoder()
    if direction(plain.config, type(plain).__name__) != "causal":
        return plain
    decoder = plain.get_decoder()
    return decoder if any(isinstance(m, nn.ModuleList) for m in decoder.modules()) else plain


def layer_modules(plain: Any, stack: Stack = None) -> dict[int, nn.Module]:
    """Each layer (block) of a model of transformers, with or without attention, by its number.

    They are the elements of the outermost list of modules that has attention inside; of several
    such lists, of the one that is as long as the settings say.
    """
    plain = text_model(plain, stack)
    lists: dict[str, nn.ModuleList] = {}
    for name, module in plain.named_modules():
        is_inside = name.startswith(tuple(f"{outer}." for outer in lists))
        if isinstance(module, nn.ModuleList) and not is_inside and any(map(_attention_in, module)):
            lists[name] = module
    number = getattr(text_config(plain), "num_hidden_layers", None)
    layers = max(lists.values(), key=lambda each: (len(each) == number, len(each)), default=())
    return dict(enumerate(layers))


def attention_modules(plain: Any, stack: Stack = None) -> dict[int, nn.Module]:
    """The attention of each layer that attends by softmax: from its input to after W_O.

    Layers whose settings name linear attention are absent, and layers without one clear
    attention module.
    """
    layers = layer_modules(plain, stack)
    names = dict(enumerate(listed(text_config(plain), len(layers))))
    found = {i: _attention_in(layer, cross=stack == "cross") for i, layer in layers.items()}
    return {i: each for i, each in found.items() if each and names.get(i) != "linear_attention"}


def attention_parts(plain: Any) -> dict[nn.Module, int]:
    """The layer of each module inside the attention of `attention_modules`, and of these."""
    return {part: i for i, at in attention_modules(plain).items() for part in at.modules()}


def output_projections(plain: Any, stack: Stack = None) -> dict[int, nn.Module]:
    """Each layer's output projection (W_O), whose input is the output of all heads side by side.

    A layer where no module has the name of one, or several do, is absent.
    """
    attention = {} if plain is None else attention_modules(plain, stack)
    found = {layer: _projection_in(module) for layer, module in attention.items()}
    return {layer: module for layer, module in found.items() if module is not None}


def _attention_in(layer: nn.Module, *, cross: bool = False) -> nn.Module | None:
    """The one module of a layer that is its attention: by the name of its class, or its own name.

    It is the innermost that contains W_O; if no W_O has a known name, the innermost by class.
    """
    by_class: dict[str, nn.Module] = {}
    by_name: dict[str, nn.Module] = {}
    for name, module in layer.named_modules():
        classes = " ".join(kind.__name__ for kind in type(module).__mro__)
        own = name.rpartition(".")[2].lower()
        if bool(_CROSS.search(f"{name} {classes}")) != cross:
            continue
        if "Attention" in classes:
            by_class[name] = module
        elif "att" in own and "linear" not in own:
            by_name[name] = module
    named = _whole(by_class) or _whole(by_name) or by_class
    inner = [
        module
        for name, module in named.items()
        if not any(other.startswith(f"{name}.".lstrip(".")) for other in named if other != name)
    ]
    return inner[0] if len(inner) == 1 else None


def _whole(attention: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: module for name, module in attention.items() if _projection_in(module)}


def _projection_in(attention: nn.Module) -> nn.Module | None:
    named = [
        part for name, part in attention.named_modules() if name.split(".")[-1] in _PROJECTIONS
    ]
    return named[0] if len(named) == 1 else None


def rotary_tables(model: nn.Module) -> Iterator[Tensor]:
    """Every table of rotary positions: `[pair]` radians per step."""
    for path, table in model.named_buffers():
        name = path.rpartition(".")[2]
        if name.endswith("inv_freq") and "original" not in name:
            yield table.detach().clone()  # The model may change its table later.
        elif name == "embed_positions" and table.dim() == 2 and len(table) > 1:  # GPT-J
            sin, cos = table[1].detach().float().chunk(2)
            yield torch.atan2(sin, cos)
