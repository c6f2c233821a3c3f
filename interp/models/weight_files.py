"""Model files, checked before a weight is read: what could give wrong numbers is refused.

The libraries themselves report most damage. Here are the cases that they accept.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from interp.errors import InputError, quoted, reading
from interp.files import without_twins
from interp.models.families import check_settings

_SETTINGS = ("config.json", "tokenizer.json", "tokenizer_config.json")

_FLOATS = ("F16", "BF16", "F32", "F64")

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_COUNTS += ("num_decoder_layers", "encoder_layers", "decoder_layers", "num_labels")


def check_folder(folder: Path) -> None:
    """Check the files of a model's folder.

    Refuses adapters, pickled, incomplete or contradicting weights, and integers without settings
    that say how they were quantized.
    """
    with reading(folder, "a folder"):
        files = sorted(path for path in folder.iterdir() if not path.is_dir())
    for path in files:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} must be a file, got a device, a pipe or the like")
        if path.is_file() and path.suffix in (".safetensors", ".json", ".model", ".txt"):
            refuse_stand_in(path)
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder} must be a whole model, got an adapter: merge it into its model")
    config, *_ = (_settings(folder / name) for name in _SETTINGS)
    with reading(folder / "config.json"):
        check_settings(config)
    index = folder / "model.safetensors.index.json"
    with reading(index, "an index of weights"):
        parts = set(_settings(index)["weight_map"].values()) if index.exists() else set()
    if absent := sorted(parts - {path.name for path in files}):
        raise InputError(
            f"{folder} must have all parts of its weights, {quoted(absent[0])} is missing"
        )
    weights = [path for path in files if path.suffix == ".safetensors"]
    if not weights:
        others = ", ".join(path.name for path in files if path.suffix in _PICKLED)
        raise InputError(
            f"{folder} must have weights in a .safetensors file, got {others or 'none'}: pickled"
            " weights are never loaded, convert them to safetensors first"
        )
    is_packed = "quantization_config" in config
    tensors = sum(_n_tensors(path, is_packed) for path in weights)
    if (most := max(_counts(config), default=0)) > tensors:
        raise InputError(
            f"{folder / 'config.json'} must not ask for more layers than there are tensors,"
            f" got {most} for {tensors}"
        )


def refuse_stand_in(path: Path) -> None:
    """Refuse a Git-LFS pointer or a web page where a file should be."""
    with reading(path), path.open("rb") as file:
        beginning = file.read(100).lstrip().lower()
    if beginning.startswith(b"version https://git-lfs"):
        raise InputError(
            f"{path} must be the file itself, got a Git-LFS pointer: run git lfs pull where it"
            " comes from"
        )
    if beginning.startswith((b"<!doctype", b"<html")):
        raise InputError(f"{path} must be the file itself, got a web page: download it again")


def _counts(config: Any) -> Iterator[int]:
    """Numbers in the settings of things that are built one by one."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and type(value) is int:
            yield value
        yield from _counts(value)


def _settings(path: Path) -> dict[str, Any]:
    with reading(path, "a JSON file of settings"):
        return dict(json.loads(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def _n_tensors(path: Path, is_packed: bool) -> int:
    """Number of tensors in a safetensors file."""
    with (
        reading(path, "a whole safetensors file"),
        safe_open(path, "pt"),  # It compares the header with the file.
        path.open("rb") as file,
    ):
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size), object_pairs_hook=without_twins)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if name.endswith(".weight") and entry["dtype"] not in _FLOATS and not is_packed:
            raise InputError(
                f"{path} must have weights that are floating point, got {entry['dtype']} in"
                f" {quoted(name)}, and config.json does not say how they were quantized"
            )
    return len(header)
