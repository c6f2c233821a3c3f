"""From a name, a folder, a file or a loaded model to a `Model`: `load_model`."""

import inspect
import json
import logging
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import (
    build_bridge_from_module,
    detect_tokenizer_bos_eos,
)

from interp.errors import InputError, quoted, told
from interp.files import staged
from interp.memory import refuse_beyond
from interp.models import fetch
from interp.models.beside_cpu import off_cpu
from interp.models.direction import Direction, class_for, direction
from interp.models.gguf_header import check_gguf
from interp.models.kinds import open_empty_windows, windows
from interp.models.model import Model, text_config
from interp.models.settings import beyond_vocabulary, check_settings
from interp.models.switches import quiet
from interp.models.weight_files import check_folder, own_code
from interp.models.wrapped import twin, unwrapped

LOG = logging.getLogger("interp")

DEFAULT = "SmolLM2-135M"
"""What to ask for to get the model that needs no hub: see `interp.models.fetch`."""

FULL_NAME = "SmolLM2-135M-Instruct (Q4_1)"
"""What that model is: tuned for chat, its weights rounded to four bits."""

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    model: Any = DEFAULT,
    tokenizer: Any = None,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "auto",
    revision: str | None = None,
) -> Model:
    """Load a language model and open it to hooks.

    Args:
        model: The default model's name (from the package index, no hub needed), a hub id
            such as `gpt2`, a Hugging Face folder, a `.gguf` file, a loaded Hugging Face
            model, also one that is compiled, spread over devices or adapted by PEFT, or a
            `TransformerBridge`. A loaded model is not changed: its weights are shared (those
            that an adapter changes are copied), its settings are not.
        tokenizer: Of transformers, for a loaded model; without one it takes token ids only.
        dtype: Of weights and arithmetic, for a model loaded here: 16 bits are taken on the CPU
            too. Patterns, and all that is computed from them, are float32 in any case.
        device: For a model loaded here: `auto` is the CUDA device if there is one, else the CPU.
            `mps` is taken only if it is named: its numbers have been wrong without an error. A
            loaded model stays where it is, and no other device may be named. On any but the CPU,
            attention on a few tokens is held against the CPU's, a warning tells of a difference,
            and records have the largest as `off_cpu`.
        revision: Of a hub id.

    Raises:
        InputError: If the model cannot be had; the message says what to do. Weights are
            read from safetensors or GGUF only, never unpickled, and no code that comes
            with a model is run.
    """
    options = {"dtype": _as_dtype(dtype), "device": _as_device(device)}
    _check_tokenizer(tokenizer, model)
    if device != "auto" and not isinstance(model, str | os.PathLike):
        check_there(model, options["device"])
    if isinstance(model, Model):
        return model
    if isinstance(model, TransformerBridge):
        name = str(getattr(model.cfg, "model_name", None) or "bridge")
        own = model.original_model
        if direction(text_config(own), type(own).__name__) != "causal":
            raise InputError(
                f"model must be causal where it comes as a bridge, got {name}: give the model of"
                " transformers itself"
            )
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        return _opened(model, None, tokenizer, name, None)
    if isinstance(model, torch.nn.Module):
        own = unwrapped(model)
        return bridged(own, tokenizer, own.name_or_path or type(own).__name__, None)
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise InputError(f"model must be a name, a path or a loaded model, got {quoted(model)}")

    name = os.fspath(model)
    path = as_path(name)
    if name == DEFAULT:
        loaded, tokenizer = _load(_default_folder(), local=True, **options)
        return bridged(loaded, tokenizer, FULL_NAME, f"sha256:{fetch.SHA256}")
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"model file must be a .gguf file, got {name}")
        loaded, tokenizer = _load(path.parent, local=True, gguf_file=path.name, **options)
        return bridged(loaded, tokenizer, path.name, f"sha256:{fetch.sha256(path)}")
    if path.is_dir():
        loaded, tokenizer = _load(path, local=True, **options)
        return bridged(loaded, tokenizer, path.resolve().name, None)
    if path.is_absolute() or name[0] in "~." or name.count("/") > 1 or path.suffix == ".gguf":
        raise InputError(
            "model must be a hub id, a folder or a .gguf file,"
            f" got {name!r}: no such file or folder"
        )
    loaded, tokenizer = _load(name, local=False, revision=revision, **options)
    return bridged(loaded, tokenizer, name, getattr(loaded.config, "_commit_hash", None))


_SUMS = "crc32.json"

CONVERTED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def _default_folder() -> Path:
    """The default model as safetensors, converted from its GGUF file the first time.

    It is converted again where a file is not as it was written, byte for byte.
    """
    folder = fetch.cache_folder() / f"{DEFAULT}-{fetch.SHA256[:12]}"
    if folder.exists():
        with suppress(OSError, ValueError):
            if json.loads((folder / _SUMS).read_text(encoding="utf-8")) == _sums(folder):
                return folder
        LOG.warning("%s is not as it was written: the model is converted again", folder)
    shutil.rmtree(folder, ignore_errors=True)
    gguf = fetch.default_gguf()
    fetch.LOG.info("converting the default model to safetensors (once)")
    fetch.check_sha256(gguf)
    model, tokenizer = _load(
        gguf.parent,
        local=True,
        gguf_file=gguf.name,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    # The weights are plain float32 by now, but transformers refuses to save what it still
    # takes for quantised.
    del model.hf_quantizer
    delattr(model.config, "quantization_config")
    setattr(model, "is_quantized", False)  # noqa: B010  # Not a submodule, whatever types say.
    with staged(folder.parent) as scratch, quiet():
        made = scratch / folder.name
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        (made / _SUMS).write_text(json.dumps(_sums(made)), encoding="utf-8")
    return folder


def _sums(folder: Path) -> dict[str, int]:
    return {name: fetch.crc32(folder / name) for name in CONVERTED}


def _load(
    source: str | Path,
    *,
    local: bool,
    dtype: torch.dtype,
    device: torch.device,
    gguf_file: str | None = None,
    revision: str | None = None,
) -> tuple[transformers.PreTrainedModel, Any]:
    """Model and tokenizer as transformers loads them, or one line that says why not."""
    where = {"local_files_only": local, "trust_remote_code": False}
    where |= {"gguf_file": gguf_file} if gguf_file else {}
    where |= {"revision": revision} if revision else {}
    shown = Path(source) / gguf_file if gguf_file else source
    try:
        numbers = None
        if local:
            numbers = check_gguf(Path(shown)) if gguf_file else check_folder(Path(source))
        with quiet():
            config = transformers.AutoConfig.from_pretrained(source, **where)
            kind = class_for(config)
            _check_room(f"model {str(shown)!r}", numbers, kind, config, dtype)
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
            tokenizer = _load_tokenizer(source, where)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"model {str(shown)!r} could not be loaded: {_reason(error, source)}"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"model {str(shown)!r} lacks {len(missing)} weights, {missing[0]} among them:"
            " it is incomplete"
        )
    layers = int(getattr(text_config(model), "num_hidden_layers", 0) or 0)
    beyond = [
        name
        for name in sorted(info["unexpected_keys"])
        if any(
            layers <= int(number) for number in re.findall(r"\.(?:layers|h|blocks)\.(\d+)\.", name)
        )
    ]
    if layers and beyond:
        raise InputError(
            f"model {str(shown)!r} must use all layers of its file, got {layers} layers in its"
            f" settings and {beyond[0]} beside them"
        )
    if wrong := sorted(info["mismatched_keys"]):
        name, got, expected = wrong[0]
        raise InputError(
            f"model {str(shown)!r} must have {name} of shape {list(expected)} as its settings say,"
            f" got {list(got)}"
        )
    used = sum(weight.numel() for weight in model.parameters())
    if gguf_file and used != numbers:  # transformers passes over what it has no place for.
        raise InputError(
            f"model {str(shown)!r} must use all {numbers} numbers of its file, got settings for"
            f" {used}"
        )
    return model.to(device).eval(), tokenizer


_NO_MODELS = "no model can be made of its settings"


def _check_room(what: str, numbers: int | None, kind: Any, config: Any, dtype: torch.dtype) -> None:
    """Refuse, by its settings alone, a model that memory or the files have no room for."""
    check_settings(config.to_dict())
    outlined = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    try:
        with torch.device("meta"):
            outline = outlined(config, dtype=dtype)
    except Exception as error:
        own = config.get_text_config()
        beyond = beyond_vocabulary(own, getattr(own, "vocab_size", None) or sys.maxsize)
        also = f"; there is no id for {', '.join(beyond)}" if beyond else ""
        raise InputError(
            f"{what} could not be loaded: {_NO_MODELS}: {told(error)}{also}"
        ) from error
    needed = sum(t.nbytes for t in (*outline.parameters(), *outline.buffers()))
    refuse_beyond(f"the weights of {what}", needed, "name a smaller model, or a dtype of 16 bits")
    asked = sum(weight.numel() for weight in outline.parameters())
    # Far more only: which weights are missing is told by name once the others are read.
    if numbers is not None and asked > 2 * numbers:
        raise InputError(
            f"{what} must have the {asked} numbers that its settings ask for,"
            f" got files with {numbers}"
        )


def _load_tokenizer(source: str | Path, where: dict[str, Any]) -> Any:
    if Path(source).is_dir() and "gguf_file" not in where:
        names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
        if not any((Path(source) / name).exists() for name in names):
            return None
    return transformers.AutoTokenizer.from_pretrained(source, **where)


def _reason(error: Exception, source: str | Path = "") -> str:
    """The first telling line of what transformers raised, and what to do about it."""
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(error))
    if "trust_remote_code" in text:
        own = own_code(Path(source)) or "a Python file"
        return f"it needs code of its own ({own[:200]}), and such code is never run"
    if "couldn't connect" in text or "offline mode" in text or "LocalEntryNotFound" in text:
        return (
            "it is not on this machine and the hub cannot be reached;"
            " check the network, or name a local folder"
        )
    if "not a valid model identifier" in text or "404" in text:
        return "there is no such model on the hub, or it needs a login"
    if "no file named model.safetensors" in text or "does not appear to have a file named" in text:
        return (
            "it has no safetensors weights; pickled weights are never loaded,"
            " convert them to safetensors first"
        )
    if type(error).__name__.startswith("StrictDataclass"):
        return f"{_NO_MODELS}: {text.splitlines()[-1].partition(': ')[2][:200]}"
    why = told(error)
    if isinstance(error, OSError | ValueError | KeyError | NotImplementedError | ImportError):
        return why.removeprefix("OSError: ").removeprefix("ValueError: ")
    return f"the file is damaged or of an unknown kind ({why})"


def bridged(
    model: transformers.PreTrainedModel, tokenizer: Any, name: str, revision: str | None
) -> Model:
    """A model of transformers, wrapped for its hooks; the weights are shared with a plain twin.

    One that is not causal is left as it is.
    """
    architecture = type(model).__name__
    check_settings(model.config.to_dict())
    model.eval()
    model.set_attn_implementation("eager")
    model.config.architectures = [architecture]
    for part in model.modules():
        if isinstance(own := getattr(part, "config", None), transformers.PreTrainedConfig):
            own.return_dict = True  # What a part gives the next is asked for by name.
    way = direction(model.config, architecture)
    if way == "encoder-decoder" and not _takes(model, "decoder_input_ids"):
        way = _of_one_stack(model, name)
    config = text_config(model)
    needed = _NEEDED if way != "causal" else ("vocab_size",)  # Hooks tell of the rest.
    if absent := [each for each in needed if not isinstance(getattr(config, each, None), int)]:
        raise InputError(
            f"model must have {absent[0]} in its settings, got {name}, a {architecture},"
            " which has none"
        )
    if way != "causal":
        widths = windows(config, int(config.num_hidden_layers), causal=False)
        off = off_cpu(model, name)
        return Model(None, model, tokenizer, name, revision, widths, way, off)
    if model.config.model_type == "falcon" and model.config.alibi:
        # Its eager form adds the bias to the mask and to the scores; its fused form once.
        raise InputError(
            f"model must attend alike in all its forms, got {name}: transformers adds ALiBi's bias"
            " twice where Falcon's attention can be seen, and once where it cannot"
        )
    open_empty_windows(text_config(model), name)
    plain = twin(model)
    try:
        # Some adapters draw random numbers while they build.
        with quiet(), torch.random.fork_rng(devices=[]):
            bridge = build_bridge_from_module(
                model,
                architecture,
                hf_config=model.config,
                model_name=name,
            )
    except Exception as error:
        raise InputError(
            f"{name} could not be opened by TransformerLens, as a {architecture}: {told(error)}"
        ) from error
    if tokenizer is not None:
        # Given at once, the bridge would load another one by name, perhaps from the hub.
        bridge.tokenizer = tokenizer
        try:
            ends = detect_tokenizer_bos_eos(tokenizer)
        except Exception as error:  # Of a library that has a kind of its own for each fault.
            raise InputError(
                f"{name} must have a tokenizer that reads text, got one that fails: {told(error)}"
            ) from error
        bridge.cfg.tokenizer_prepends_bos, bridge.cfg.tokenizer_appends_eos = ends
    return _opened(bridge, plain, tokenizer, name, revision)


_NEEDED = ("num_hidden_layers", "num_attention_heads", "vocab_size")
"""Settings without which there is no saying what heads a model has."""


def _of_one_stack(model: transformers.PreTrainedModel, name: str) -> Direction:
    """Which way a stack taken out of an encoder-decoder looks.

    Raises:
        InputError: If it is the decoder.
    """
    if _takes(model, "encoder_hidden_states") and getattr(model, "is_decoder", True):
        raise InputError(
            f"model must be whole, or an encoder, got {name}, a decoder alone: give the whole"
            " model, and read its stack 'decoder'"
        )
    return "both ways"


def _takes(model: transformers.PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(type(model).forward).parameters


def _opened(
    bridge: TransformerBridge, plain: Any, tokenizer: Any, name: str, revision: str | None
) -> Model:
    layers = range(int(bridge.cfg.n_layers))
    if not any(f"blocks.{layer}.attn.hook_pattern" in bridge.hook_dict for layer in layers):
        raise InputError(
            f"model must have attention that TransformerLens' hooks know, got {name}, a"
            f" {type(bridge.original_model).__name__}, in which they find none"
        )
    widths = windows(text_config(bridge.original_model), len(layers))
    off = None if plain is None else off_cpu(plain, name)
    return Model(bridge, plain, tokenizer, name, revision, widths, off_cpu=off)


def as_path(model: str | os.PathLike[str]) -> Path:
    """Where a model would be, if its name is that of a file or a folder.

    Raises:
        InputError: If no file can have that name.
    """
    name = os.fspath(model)
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"model must be a name or a path, got {name[:80]!r}: {why}") from None
    return path


def _check_tokenizer(tokenizer: Any, model: Any) -> None:
    """Refuse what is no tokenizer, and one for a model that brings its own."""
    if tokenizer is None:
        return
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        raise InputError(f"tokenizer must be one of transformers, got {quoted(tokenizer)}")
    if isinstance(model, Model | str | os.PathLike):
        raise InputError(
            "tokenizer must be left out where a model comes with its own, got one for"
            f" {model.name if isinstance(model, Model) else quoted(model)}"
        )


def check_there(model: Any, device: torch.device) -> None:
    """Refuse another device than that on which a loaded model is."""
    weights = getattr(model, "inner", model)
    if not isinstance(weights, torch.nn.Module):
        return  # What is no model is told so.
    there = next((each.device for each in weights.parameters() if not each.is_meta), device)
    if there.type != device.type or device.index not in (None, there.index):
        raise InputError(
            f"device must be left out for a loaded model, got {device} for one on {there}:"
            " move the model there first"
        )


def _as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    known = {**_DTYPES, **{str(value): value for value in _DTYPES.values()}}
    if str(dtype) not in known:
        raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {str(dtype)[:80]}")
    return known[str(dtype)]


def _as_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.ones(1, device=device).item()  # The device "meta" has no numbers, and fails here.
        return torch.device(device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"device must be one that is here, got {str(device)[:80]}: {told(error)}"
        ) from None
