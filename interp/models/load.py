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

from interp.errors import InputError, checked, quoted, told
from interp.files import staged
from interp.memory import refuse_beyond
from interp.models import families, fetch
from interp.models.families import check_settings, text_config, windows
from interp.models.model import Model
from interp.models.off_cpu import off_cpu
from interp.models.switches import quiet
from interp.models.weight_files import check_folder, check_gguf
from interp.models.wrapped import twin, unwrapped

DEFAULT = "SmolLM2-135M"
"""Name of the model that needs no hub: see `interp.models.fetch`."""

FULL_NAME = "SmolLM2-135M-Instruct (Q4_1)"
"""Full name of the default model: tuned for chat, quantized to four bits."""

CONVERTED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

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
            model (also compiled, spread over devices or with PEFT adapters), or a
            `TransformerBridge`. A loaded model is not changed: its weights are shared (those
            that an adapter changes are copied), its settings are not.
        tokenizer: A tokenizer of transformers, for a loaded model; without one it takes token
            ids only.
        dtype: Type of weights and arithmetic, for a model loaded here. Patterns, and everything
            computed from them, are float32 in any case.
        device: Device of a model loaded here: `auto` is the CUDA device if there is one, else
            the CPU. Name `mps` to use it: its numbers have been wrong without an error. A
            loaded model stays where it is.
        revision: Revision of a hub id.
        compare_with_cpu: Whether to compare attention on a few tokens with the CPU. A warning
            reports a difference, and records hold the largest as `off_cpu`. None: on `mps` only.

    Raises:
        InputError: If the model cannot be loaded. Weights are read from safetensors or GGUF
            only, never unpickled, and code that comes with a model is never run.
    """
    options = {"dtype": _as_dtype(dtype), "device": _as_device(device)}
    if tokenizer is not None and not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        raise InputError(f"tokenizer must be one of transformers, got {quoted(tokenizer)}")
    if tokenizer is not None and isinstance(model, Model | str | os.PathLike):
        raise InputError(f"tokenizer must be left out for a model with its own, got {tokenizer!r}")
    if device != "auto" and not isinstance(model, str | os.PathLike):
        check_there(model, options["device"])
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
    if name == DEFAULT:
        loaded, tokenizer = _load(_default_folder(), local=True, **options)
        name, revision = FULL_NAME, f"sha256:{fetch.SHA256}"
    elif path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"model file must be a .gguf file, got {name}")
        loaded, tokenizer = _load(path.parent, local=True, gguf_file=path.name, **options)
        name, revision = path.name, f"sha256:{fetch.sha256(path)}"
    elif path.is_dir():
        loaded, tokenizer = _load(path, local=True, **options)
        name, revision = path.resolve().name, None
    elif path.is_absolute() or name[0] in "~." or name.count("/") > 1 or path.suffix == ".gguf":
        raise InputError(
            "model must be a hub id, a folder or a .gguf file,"
            f" got {name!r}: no such file or folder"
        )
    else:
        loaded, tokenizer = _load(name, local=False, revision=revision, **options)
        revision = getattr(loaded.config, "_commit_hash", None)
    return opened(loaded, tokenizer, name, revision, compare_with_cpu=compare_with_cpu)


def _default_folder() -> Path:
    """The default model as safetensors, converted from its GGUF file the first time."""
    folder = fetch.cache_folder() / f"{DEFAULT}-{fetch.SHA256[:12]}"
    if all((folder / name).is_file() for name in CONVERTED):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    gguf = fetch.default_gguf()
    fetch.LOG.info("converting the default model to safetensors (once)")
    fetch.check_sha256(gguf)
    cpu = torch.device("cpu")
    model, tokenizer = _load(
        gguf.parent, local=True, gguf_file=gguf.name, dtype=torch.float32, device=cpu
    )
    # The weights are plain float32 now, but transformers saves no model marked as quantized.
    del model.hf_quantizer
    delattr(model.config, "quantization_config")
    setattr(model, "is_quantized", False)  # noqa: B010  # Not a submodule, whatever types say.
    with staged(folder.parent) as scratch, quiet():
        model.save_pretrained(scratch / folder.name)
        tokenizer.save_pretrained(scratch / folder.name)
    return folder


def _load(
    source: str | Path,
    *,
    local: bool,
    dtype: torch.dtype,
    device: torch.device,
    gguf_file: str | None = None,
    revision: str | None = None,
) -> tuple[transformers.PreTrainedModel, Any]:
    """Model and tokenizer as transformers loads them; any failure is one line."""
    where = {"local_files_only": local, "trust_remote_code": False}
    where |= {"gguf_file": gguf_file} if gguf_file else {}
    where |= {"revision": revision} if revision else {}
    path = Path(source) / gguf_file if gguf_file else source
    what = f"model {str(path)!r}"
    try:
        numbers = None
        if local:
            numbers = check_gguf(Path(path)) if gguf_file else check_folder(Path(source))
        with quiet():
            config = transformers.AutoConfig.from_pretrained(source, **where)
            kind = families.class_for(config)
            _check_room(what, numbers, kind, config, dtype)
            loaded: Any = kind.from_pretrained(
                source,
                dtype=dtype,
                attn_implementation="eager",
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # They are refused below, by name.
                output_loading_info=True,
                **where,
            )
            model, info = loaded
            tokenizer = None
            names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
            if gguf_file or not local or any((Path(source) / name).exists() for name in names):
                tokenizer = transformers.AutoTokenizer.from_pretrained(source, **where)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} could not be loaded: {_reason(error)}") from error
    _check_loaded(what, model, info)
    used = sum(weight.numel() for weight in model.parameters())
    if gguf_file and used != numbers:  # transformers ignores weights that it does not expect.
        raise InputError(
            f"{what} must use all {numbers} numbers of its file, got settings for {used}"
        )
    return model.to(device).eval(), tokenizer


def _check_loaded(what: str, model: Any, info: dict[str, Any]) -> None:
    """Refuse weights that are missing, of another shape, or of layers beyond the settings."""
    if missing := sorted(info["missing_keys"]):
        raise InputError(f"{what} must have all weights, got none for {', '.join(missing)[:200]}")
    if wrong := sorted(info["mismatched_keys"]):
        name, got, expected = wrong[0]
        raise InputError(
            f"{what} must have {name} of shape {list(expected)} as its settings say,"
            f" got {list(got)}"
        )
    layers = int(getattr(text_config(model), "num_hidden_layers", 0) or 0)
    for name in sorted(info["unexpected_keys"]) if layers else ():
        numbers = re.findall(r"\.(?:layers|h|blocks)\.(\d+)\.", name)
        if any(int(number) >= layers for number in numbers):
            raise InputError(
                f"{what} must use all layers of its file, got {layers} layers in its settings"
                f" and weights of {name}"
            )


def _check_room(what: str, numbers: int | None, kind: Any, config: Any, dtype: torch.dtype) -> None:
    """Refuse, by its settings alone, a model too large for memory or for its files."""
    check_settings(config.to_dict())
    outlined = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    try:
        with torch.device("meta"):
            outline = outlined(config, dtype=dtype)
    except Exception as error:
        text = config.get_text_config()
        beyond = families.beyond_vocabulary(text, getattr(text, "vocab_size", None) or sys.maxsize)
        also = f"; there is no id for {', '.join(beyond)}" if beyond else ""
        raise InputError(
            f"{what} must have settings that describe a model: {told(error)}{also}"
        ) from error
    needed = sum(t.nbytes for t in (*outline.parameters(), *outline.buffers()))
    refuse_beyond(f"the weights of {what}", needed, "name a smaller model, or a dtype of 16 bits")
    asked = sum(weight.numel() for weight in outline.parameters())
    # Only where far too few: `_check_loaded` names single weights that are missing.
    if numbers is not None and asked > 2 * numbers:
        raise InputError(
            f"{what} must have the {asked} numbers that its settings ask for,"
            f" got files with {numbers}"
        )


_REASONS = {
    "trust_remote_code": "it needs code of its own, and such code is never run",
    "couldn't connect|offline mode|LocalEntryNotFound": (
        "it is not on this machine and the hub cannot be reached;"
        " check the network, or name a local folder"
    ),
    "not a valid model identifier|404": "there is no such model on the hub, or it needs a login",
    "no file named model.safetensors|does not appear to have a file named": (
        "it has no safetensors weights; pickled weights are never loaded,"
        " convert them to safetensors first"
    ),
}
"""What to report where a message of transformers matches."""


def _reason(error: Exception) -> str:
    """What transformers raised, in one line, and what to do."""
    known = (reason for words, reason in _REASONS.items() if re.search(words, str(error)))
    return next(known, told(error))


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
    model.eval()
    model.set_attn_implementation("eager")
    model.config.architectures = [architecture]
    for part in model.modules():
        if isinstance(own := getattr(part, "config", None), transformers.PreTrainedConfig):
            own.return_dict = True  # Parts find each other's outputs by name.
    way = families.direction(model.config, architecture)
    inputs = inspect.signature(type(model).forward).parameters
    if way == "encoder-decoder" and "decoder_input_ids" not in inputs:
        if "encoder_hidden_states" in inputs and getattr(model, "is_decoder", True):
            raise InputError(
                f"model must be whole, or an encoder, got {name}, a decoder alone: give the whole"
                " model, and read its stack 'decoder'"
            )
        way = "both ways"
    config = text_config(model)
    needed = ("num_hidden_layers", "num_attention_heads", "vocab_size")
    if absent := [each for each in needed if not isinstance(getattr(config, each, None), int)]:
        raise InputError(f"model must have {absent[0]} in its settings, got {name}: {architecture}")
    if model.config.model_type == "falcon" and model.config.alibi:
        # Its eager code adds the bias to the mask and to the scores; its fused code once.
        raise InputError(
            f"model must have the same attention in eager and fused code, got {name}:"
            " transformers adds ALiBi's bias twice in Falcon's eager code"
        )
    if tokenizer is not None:
        try:
            tokenizer.encode("a")
        except Exception as error:  # Libraries raise errors of many kinds.
            raise InputError(
                f"tokenizer of {name} must read text, got one that fails: {told(error)}"
            ) from error
    if compare_with_cpu is None:
        compare_with_cpu = model.device.type == "mps"
    if way == "causal":
        families.open_empty_windows(config, name)
    n_layers = int(config.num_hidden_layers)
    made = Model(
        model,
        tokenizer,
        name,
        revision,
        windows(config, n_layers, causal=way == "causal"),
        direction=way,
        off_cpu=off_cpu(model, name) if compare_with_cpu else None,
        spare=twin(model) if way == "causal" else None,
    )
    if way == "causal" and not families.all_attend(model, n_layers):
        made.bridge  # noqa: B018  # Refuses a model without attention.
    return made


def _of_bridge(bridge: Any, tokenizer: Any) -> Model:
    """A `Model` around a bridge made elsewhere; its weights are not known to transformers."""
    name = str(getattr(bridge.cfg, "model_name", None) or "bridge")
    config = text_config(bridge.original_model)
    if families.direction(config, type(bridge.original_model).__name__) != "causal":
        raise InputError(
            f"model must be causal where it comes as a bridge, got {name}: give the model of"
            " transformers itself"
        )
    tokenizer = bridge.tokenizer if tokenizer is None else tokenizer
    widths = windows(config, int(bridge.cfg.n_layers))
    return Model(None, tokenizer, name, None, widths, given=bridge)


def as_path(model: str | os.PathLike[str]) -> Path:
    """The path that a model's name would have as a file or folder; the name must be possible."""
    try:
        path = Path(model).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"model must be a name or a path, got {quoted(os.fspath(model))}: {told(error)}"
        ) from None
    return path


def check_there(model: Any, device: torch.device) -> None:
    """Refuse a device other than the one that a loaded model is on."""
    weights = getattr(model, "inner", model)
    if not isinstance(weights, torch.nn.Module):
        return  # Refused elsewhere.
    there = next((each.device for each in weights.parameters() if not each.is_meta), device)
    if there.type != device.type or device.index not in (None, there.index):
        raise InputError(
            f"device must be left out for a loaded model, got {device} for one on {there}:"
            " move the model there first"
        )


def _as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {quoted(dtype)}")
    return getattr(torch, name)


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
