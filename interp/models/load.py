"""From a name, a folder, a file or a loaded model to a `Model`: `load_model`."""

import inspect
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from interp.errors import InputError, checked, quoted, reading, told
from interp.files import staged
from interp.memory import refuse_beyond
from interp.models import families, fetch
from interp.models.families import check_settings, text_config, windows
from interp.models.model import Model
from interp.models.off_cpu import off_cpu
from interp.models.switches import quiet
from interp.models.weight_files import check_folder, check_gguf
from interp.models.wrapped import module_of, unwrapped

DEFAULT, FULL_NAME = "SmolLM2-135M", "SmolLM2-135M-Instruct (Q4_1)"
"""Short and full name of the model that needs no hub: see `interp.models.fetch`."""

CONVERTED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

_OF_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")

_DTYPES = ("float32", "bfloat16", "float16")


@checked
def load_model(
    model: Any = DEFAULT,
    tokenizer: Any = None,
    *,
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
        tokenizer: Tokenizer of a loaded model; without one it takes token ids only.
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
    """
    number_type = str(dtype).removeprefix("torch.")
    if number_type not in _DTYPES:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {quoted(dtype)}")
    module = module_of(model)
    if module is not model:
        tokenizer = tokenizer or getattr(model, "tokenizer", None)
        model = module
    options = {"dtype": getattr(torch, number_type), "device": _as_device(device)}
    is_known = isinstance(tokenizer, transformers.PreTrainedTokenizerBase)
    if tokenizer is not None and (not is_known or isinstance(model, Model | str | os.PathLike)):
        raise InputError(
            "tokenizer must be one of transformers, for a model without one,"
            f" got {quoted(tokenizer)}"
        )
    if device != "auto" and isinstance(model, Model | torch.nn.Module):
        weights = model.inner if isinstance(model, Model) else model
        wanted: torch.device = options["device"]
        there = next((each.device for each in weights.parameters() if not each.is_meta), wanted)
        if there.type != wanted.type or wanted.index not in (None, there.index):
            raise InputError(f"device must be that of a loaded model, {there}, got {wanted}")
    if isinstance(model, Model):
        return model
    if isinstance(model, torch.nn.Module):
        if hasattr(model, "hook_dict"):
            return _of_bridge(model, tokenizer)
        own = unwrapped(model)
        name = own.name_or_path or type(own).__name__
        return opened(own, tokenizer, name, compare_with_cpu=compare_with_cpu)
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise InputError(f"model must be a name, a path or a loaded model, got {quoted(model)}")

    name, path = os.fspath(model), as_path(model)
    source: str | Path = path
    if name == DEFAULT:
        source, revision = _default_folder(), f"sha256:{fetch.SHA256}"
    elif path.is_file():
        revision = f"sha256:{fetch.sha256(path)}"
    elif path.is_dir():
        revision = None
    elif path.is_absolute() or name[0] in "~." or name.count("/") > 1 or path.suffix == ".gguf":
        raise InputError(f"model must be a hub id, or a folder or file that exists, got {name!r}")
    else:
        source = name
    loaded, tokenizer = _load(source, revision=revision, **options)
    if isinstance(source, str):
        revision = getattr(loaded.config, "_commit_hash", None)
    return opened(loaded, tokenizer, name_of(model), revision, compare_with_cpu=compare_with_cpu)


def name_of(model: str | os.PathLike[str]) -> str:
    """Name of the model that `load_model` opens for this argument."""
    name, path = os.fspath(model), as_path(model)
    if name == DEFAULT:
        return FULL_NAME
    return path.name if path.is_file() else path.resolve().name if path.is_dir() else name


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
    model, tokenizer = _load(gguf, dtype=torch.float32, device=torch.device("cpu"))
    # The weights are plain float32 now, but transformers saves no model marked as quantized.
    del model.hf_quantizer
    delattr(model.config, "quantization_config")
    setattr(model, "is_quantized", False)  # noqa: B010  # Not a submodule, whatever types say.
    with staged(folder.parent) as scratch, quiet():
        model.save_pretrained(scratch / folder.name)
        tokenizer.save_pretrained(scratch / folder.name)
    return folder


def _load(
    source: str | Path, *, dtype: torch.dtype, device: torch.device, revision: str | None = None
) -> tuple[transformers.PreTrainedModel, Any]:
    """Model and tokenizer from a hub id, a folder or a file; any failure is one line."""
    what = f"model {str(source)!r}"
    is_local = isinstance(source, Path)
    where: dict[str, Any] = {"local_files_only": is_local, "trust_remote_code": False}
    place, numbers, has_tokenizer = source, None, True
    try:
        if not is_local:
            where |= {"revision": revision} if revision else {}
        elif source.is_file():
            where["gguf_file"] = source.name
            place, numbers = source.parent, check_gguf(source)
        else:
            check_folder(source)
            has_tokenizer = any((source / name).exists() for name in _OF_TOKENIZERS)
        with quiet():
            config = transformers.AutoConfig.from_pretrained(place, **where)
            check_settings(config.to_dict())
            kind = families.class_for(config)
            build = kind.from_config if hasattr(kind, "from_config") else kind._from_config
            with torch.device("meta"):
                outline = build(config, dtype=dtype)
            needed = sum(t.nbytes for t in (*outline.parameters(), *outline.buffers()))
            advice = "name a smaller model, or a dtype of 16 bits"
            refuse_beyond(f"the weights of {what}", needed, advice)
            model, info = kind.from_pretrained(
                place,
                dtype=dtype,
                attn_implementation="eager",
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # They are refused below, by name.
                output_loading_info=True,
                **where,
            )
            opener = transformers.AutoTokenizer.from_pretrained
            tokenizer = opener(place, **where) if has_tokenizer else None
    except InputError:
        raise
    except Exception as error:
        known = (reason for words, reason in _REASONS.items() if re.search(words, str(error)))
        raise InputError(f"{what} could not be loaded: {next(known, told(error))}") from error
    _check_loaded(what, model, info)
    used = sum(weight.numel() for weight in model.parameters())
    if numbers not in (None, used):  # transformers ignores weights that it does not expect.
        raise InputError(f"{what} must use all {numbers} numbers of its file, got {used}")
    return model.to(device).eval(), tokenizer


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
    if way == "causal":
        families.open_empty_windows(config, name)
    made = Model(
        model,
        tokenizer,
        name,
        revision,
        windows(config, config.num_hidden_layers, causal=way == "causal"),
        direction=way,
        off_cpu=off_cpu(model, name) if compared else None,
    )
    made.attending  # noqa: B018  # Refuses a model without attention.
    return made


def _of_bridge(bridge: Any, tokenizer: Any) -> Model:
    """A `Model` around a bridge made elsewhere; its weights are not known to transformers."""
    name = str(getattr(bridge.cfg, "model_name", None) or "bridge")
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
