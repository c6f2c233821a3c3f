"""From a name, a folder, a file or a loaded model to a `Model`: `load_model`."""

import copy
import inspect
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from interp.errors import InputError, checked, quoted, reading, told
from interp.files import refuse_of_another, staged
from interp.memory import refuse_beyond
from interp.models import families, fetch
from interp.models.families import check_settings, text_config, windows
from interp.models.gguf_files import GgufFile
from interp.models.identity import adapters, quantization_of
from interp.models.masks import checked_windows
from interp.models.model import Model
from interp.models.off_cpu import off_cpu
from interp.models.switches import quiet
from interp.models.weight_files import check_folder
from interp.models.wrapped import module_of, unwrapped

DEFAULT, FULL_NAME = "SmolLM2-135M", "SmolLM2-135M-Instruct (Q4_1)"
"""Short and full name of the model that needs no hub: see `interp.models.fetch`."""

CONVERTED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

_CHECKPOINT = re.compile(r"checkpoint-\d+")
"""Folders that a trainer names alike in every run."""

_DTYPES = ("float32", "bfloat16", "float16")


@checked
def load_model(
    model: Any = DEFAULT,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "auto",
    revision: str | None = None,
    compare_with_cpu: bool | None = None,
) -> Model:
    """Load a language model. Hooks are added when they are first needed.

    Args:
        model: The default model's name (from the package index, no hub needed), a hub id
            such as `gpt2`, a Hugging Face folder, a `.gguf` file, a loaded Hugging Face
            model (also compiled, quantized, spread over devices or with PEFT adapters), one of
            nnsight, a pipeline, or a `TransformerBridge`. A loaded model is not changed: its
            weights are shared (those that an adapter changes are copied), its settings are not.
        tokenizer: Tokenizer of transformers, or the folder or hub id of one; by default the one
            next to the model's weights. Without one the model takes token ids only.
        name: Name of the model in tables and figures; by default the hub id, or the name of the
            folder (`run/checkpoint-500` for a checkpoint of a run), the file or the class.
        dtype: Type of weights and arithmetic, for a model loaded here. Patterns, and everything
            computed from them, are float32 in any case.
        device: Device of a model loaded here: `auto` is the CUDA device if there is one, else
            the CPU. Name `mps` to use it: its numbers have been wrong without an error.
        revision: Revision of a hub id.
        compare_with_cpu: Whether to compare attention on a few tokens with the CPU. A warning
            reports a difference, and records hold the largest as `off_cpu`. None: on `mps` only.

    Raises:
        InputError: If the model cannot be loaded. Weights are read from safetensors or GGUF
            only, never unpickled, and code that comes with a model is never run.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> model = load_model(toy.plain, name="toy")  # Or "gpt2", a folder, a .gguf file.
        >>> model.name, model.n_layers, model.n_heads
        ('toy', 2, 8)
    """
    number_type = str(dtype).removeprefix("torch.")
    if number_type not in _DTYPES:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {quoted(dtype)}")
    module = module_of(model)
    if module is not model:
        tokenizer = tokenizer or getattr(model, "tokenizer", None)
        model = module
    options = {"dtype": getattr(torch, number_type), "device": _as_device(device)}
    if isinstance(model, Model) and tokenizer is not None:
        raise InputError(f"tokenizer must be left out with a Model, got {quoted(tokenizer)}")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InputError(f"name must be a text with letters, got {quoted(name)}")
    is_open = isinstance(model, Model | torch.nn.Module)
    source = None if is_open else _source(model)
    if revision is not None and not isinstance(source, str):
        given = type(model).__name__ if is_open else repr(os.fspath(model))
        raise InputError(f"revision must come with a hub id, got {quoted(revision)} with {given}")
    if device != "auto" and is_open:
        weights = model.inner if isinstance(model, Model) else model
        wanted: torch.device = options["device"]
        there = next((each.device for each in weights.parameters() if not each.is_meta), wanted)
        if there.type != wanted.type or wanted.index not in (None, there.index):
            raise InputError(f"device must be that of a loaded model, {there}, got {wanted}")
    if isinstance(model, Model):
        return model if name is None else replace(model, name=name)
    tokenizer = _tokenizer(tokenizer)
    if isinstance(model, torch.nn.Module) or source is None:
        if hasattr(model, "hook_dict"):
            return _of_bridge(model, tokenizer, name)
        known: dict[str, Any] = {"adapters": adapters(model)}
        loaded = unwrapped(model)
        name = name or loaded.name_or_path or type(loaded).__name__
    else:
        loaded, tokenizer, quantization = _load(source, tokenizer, revision=revision, **options)
        name = name or name_of(model)
        known = {"revision": _revision(source, revision), "quantization": quantization}
        if os.fspath(model) == DEFAULT:
            known = {"revision": f"sha256:{fetch.SHA256}", "quantization": fetch.QUANTIZATION}
    return opened(loaded, tokenizer, name, compare_with_cpu=compare_with_cpu, **known)


def load_for(out: Path, *, model: str, name: str | None = None, **options: Any) -> Model:
    """`load_model`, for results in `out`: a folder or file that may be missing.

    Results of another model there are refused: by its name before loading, then by the digest.
    """
    refuse_of_another(out, name or name_of(model))
    opened_model = load_model(model, name=name, **options)
    refuse_of_another(out, opened_model.name, opened_model.digest)
    return opened_model


def _source(model: Any) -> str | Path:
    """The hub id or the path that a name means: for the default model, its folder."""
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise InputError(f"model must be a name, a path or a loaded model, got {quoted(model)}")
    name, path = os.fspath(model), as_path(model)
    if name == DEFAULT:
        return _default_folder()
    if path.is_file() or path.is_dir():
        return path
    if path.is_absolute() or name[0] in "~." or name.count("/") > 1 or path.suffix == ".gguf":
        raise InputError(f"model must be a hub id, or a folder or file that exists, got {name!r}")
    return name


def _revision(source: str | Path, revision: str | None) -> str | None:
    """The commit of a hub id's files in the cache, or a file's SHA-256."""
    if isinstance(source, Path):
        return f"sha256:{fetch.sha256(source)}" if source.is_file() else None
    cached = huggingface_hub.try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(cached).parent.name if isinstance(cached, str) else revision


def _tokenizer(tokenizer: Any) -> Any:
    """A given tokenizer: loaded, if it is named."""
    if tokenizer is None or isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        return tokenizer
    if not isinstance(tokenizer, str | os.PathLike) or not os.fspath(tokenizer):
        raise InputError(
            f"tokenizer must be one of transformers, a folder or a hub id, got {quoted(tokenizer)}"
        )
    path = as_path(tokenizer)
    with reading(path, "a tokenizer"), quiet():
        opened_tokenizer = transformers.AutoTokenizer.from_pretrained(
            path if path.exists() else os.fspath(tokenizer),
            local_files_only=path.exists(),
            trust_remote_code=False,
        )
        if {*opened_tokenizer.get_vocab()} <= {*opened_tokenizer.all_special_tokens}:
            raise InputError("tokenizer must have tokens, got none")
    return opened_tokenizer


def name_of(model: str | os.PathLike[str]) -> str:
    """Name of the model that `load_model` opens for this argument."""
    name, path = os.fspath(model), as_path(model)
    if name == DEFAULT:
        return FULL_NAME
    if path.is_dir():
        *_, run, last = ("", *path.resolve().parts)
        return f"{run}/{last}" if _CHECKPOINT.fullmatch(last) else last
    return path.name if path.is_file() else name


def context_of(model: str | os.PathLike[str]) -> int | None:
    """Longest prompt of a model in a folder, in tokens; None if only loading shows it."""
    if not (path := as_path(model)).is_dir():
        return None
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        check_settings(config.to_dict())
        return getattr(config.get_text_config(), "max_position_embeddings", None)
    except Exception:
        return None  # Loading refuses such settings, with the reason.


def _default_folder() -> Path:
    """The default model as safetensors, converted from its GGUF file the first time."""
    folder = fetch.cache_folder() / f"{DEFAULT}-{fetch.SHA256[:12]}"
    if all((folder / name).is_file() for name in CONVERTED):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    gguf = fetch.default_gguf()
    fetch.LOG.info("converting the default model to safetensors (once)")
    model, tokenizer, _ = _load(gguf, dtype=torch.float32, device=torch.device("cpu"))
    with staged(folder.parent) as scratch, quiet():
        model.save_pretrained(scratch / folder.name)
        tokenizer.save_pretrained(scratch / folder.name)
    return folder


def _load(
    source: str | Path,
    tokenizer: Any = None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    revision: str | None = None,
) -> tuple[transformers.PreTrainedModel, Any, dict[str, Any] | None]:
    """Model, tokenizer (the given one, if there is one) and quantization.

    From a hub id, a folder or a file; any failure is one line.
    """
    what = f"model {str(source)!r}"
    is_local = isinstance(source, Path)
    where: dict[str, Any] = {"local_files_only": is_local, "trust_remote_code": False}
    place, file = source, None
    try:
        if not is_local:
            where |= {"revision": revision} if revision else {}
        elif source.is_file():
            where["gguf_file"] = source.name
            place, file = source.parent, GgufFile.read(source)
        else:
            check_folder(source)
        with quiet():
            config = transformers.AutoConfig.from_pretrained(place, **where)
            check_settings(config.to_dict())
            if file is not None:
                file.complete(config)
            # A file never decides which code is run or fetched.
            config._attn_implementation, config._experts_implementation = "eager", None
            kind = families.class_for(config)
            build = kind.from_config if hasattr(kind, "from_config") else kind._from_config
            with torch.device("meta"):
                outline = build(copy.deepcopy(config), dtype=dtype)
            needed = sum(t.nbytes for t in (*outline.parameters(), *outline.buffers()))
            advice = "name a smaller model, or a dtype of 16 bits"
            refuse_beyond(f"the weights of {what}", needed, advice)
            model, info = kind.from_pretrained(
                place,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # They are refused below, by name.
                output_loading_info=True,
                **({} if file is None else {"quantization_config": file.unpacked()}),
                **where,
            )
            if tokenizer is None and (place != source or _has_tokenizer(place, config)):
                tokenizer = transformers.AutoTokenizer.from_pretrained(place, **where)
    except InputError:
        raise
    except Exception as error:
        known = (reason for words, reason in _REASONS.items() if re.search(words, str(error)))
        raise InputError(f"{what} could not be loaded: {next(known, told(error))}") from error
    _check_loaded(what, model, info)
    if file is not None:
        file.check_used(what, model)
    return model.to(device).eval(), tokenizer, file and file.quantization


def _has_tokenizer(place: str | Path, config: Any) -> bool:
    """Whether a folder has a file of a tokenizer; a hub id may have."""
    usual = getattr(TOKENIZER_MAPPING.get(type(config), None), "vocab_files_names", {})
    names = {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", *usual.values()}
    return isinstance(place, str) or any((place / name).exists() for name in names)


def _check_loaded(what: str, model: Any, info: dict[str, Any]) -> None:
    """Refuse weights that are missing, of another shape, or of layers beyond the settings."""
    wrong = [f"none for {name}" for name in sorted(info["missing_keys"])]
    mismatched = sorted(info["mismatched_keys"])
    wrong += [f"shape {list(got)} for {name}, not {list(due)}" for name, got, due in mismatched]
    layers = getattr(text_config(model), "num_hidden_layers", None) or sys.maxsize
    for name in sorted(info["unexpected_keys"]):
        numbers = re.findall(r"\.(?:layers|h|blocks)\.(\d+)\.", name)
        wrong += [f"{name} beyond {layers} layers" for n in numbers if int(n) >= layers]
    if wrong:
        raise InputError(
            f"{what} must have the weights that its settings describe, got {', '.join(wrong)[:200]}"
        )


_REASONS = {
    "trust_remote_code": "it needs code of its own, and such code is never run",
    "couldn't connect|offline mode|LocalEntryNotFound": "the hub cannot be reached",
    "not a valid model identifier|404": "there is no such model on the hub, or it needs a login",
    "no file named|have a file named": "it has no safetensors weights; pickles are never loaded",
}
"""What to report where a message of transformers matches."""


def opened(
    model: transformers.PreTrainedModel,
    tokenizer: Any,
    name: str,
    revision: str | None = None,
    *,
    adapters: Any = None,
    quantization: Any = None,
    compare_with_cpu: bool | None = None,
) -> Model:
    """A `Model` around a model of transformers, whose settings are changed to eager attention."""
    architecture = type(model).__name__
    check_settings(model.config.to_dict())
    model.set_attn_implementation("eager")
    model.config.architectures = [architecture]
    for part in model.modules():
        if isinstance(own := getattr(part, "config", None), transformers.PreTrainedConfig):
            own.return_dict = True  # Parts find each other's outputs by name.
    way = families.direction(model.config, architecture)
    inputs = inspect.signature(type(model).forward).parameters
    if way == "encoder-decoder" and "decoder_input_ids" not in inputs:
        if "encoder_hidden_states" in inputs and getattr(model, "is_decoder", True):
            raise InputError(f"model must be whole, or an encoder, got {name}, a decoder alone")
        way = "both ways"
    config = text_config(model)
    for setting in ("num_hidden_layers", "num_attention_heads", "vocab_size"):
        if not isinstance(getattr(config, setting, None), int):
            raise InputError(f"model must have {setting} in its settings, got {name}")
    if model.config.model_type == "falcon" and model.config.alibi:
        raise InputError(
            f"model must have the same attention in eager and fused code, got {name}:"
            " transformers adds ALiBi's bias twice in Falcon's eager code"
        )
    compared = model.device.type == "mps" if compare_with_cpu is None else compare_with_cpu
    number = config.num_hidden_layers
    if way == "causal":
        families.open_empty_windows(config, name)
        number = len(families.layer_modules(model)) or number  # BART's are those of its encoder.
    made = Model(
        model,
        tokenizer,
        name,
        revision,
        checked_windows(model, windows(config, number, causal=way == "causal"), way),
        direction=way,
        off_cpu=off_cpu(model, name) if compared else None,
        adapters=adapters,
        quantization=quantization or quantization_of(model.config),
    )
    made.attending  # noqa: B018  # Refuses a model without attention.
    return made


def _of_bridge(bridge: Any, tokenizer: Any, name: str | None) -> Model:
    """A `Model` around a bridge made elsewhere; its weights are not known to transformers."""
    name = name or str(getattr(bridge.cfg, "model_name", None) or "bridge")
    config = text_config(bridge.original_model)
    if families.direction(config, type(bridge.original_model).__name__) != "causal":
        raise InputError(f"model must be causal where it comes as a bridge, got {name}")
    tokenizer = bridge.tokenizer if tokenizer is None else tokenizer
    widths = windows(config, int(bridge.cfg.n_layers))
    return Model(None, tokenizer, name, None, widths, given=bridge)


def as_path(model: str | os.PathLike[str]) -> Path:
    """Path that a model's name would have as a file or folder."""
    with reading(model, "the name or path of a model"):
        path = Path(model).expanduser()
        path.exists()  # Fails where no file could have that name.
        return path


def _as_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.ones(1, device=device).item()  # The device "meta" has no numbers, and fails here.
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"device must be one of this machine, got {quoted(device)}: {told(error)}"
        ) from None
