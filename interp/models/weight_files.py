"""A model's folder, checked before anything in it is opened: what its safetensors files claim."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from interp.contents import without_twins
from interp.errors import InputError
from interp.models.settings import check_settings

_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2}
_BYTES |= {"U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8}
_BYTES |= {"U64": 8, "C64": 8}
"""Bytes of a number, by the names that safetensors has for its kinds."""

_FLOATS = ("F16", "BF16", "F32", "F64")

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_COUNTS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    *("num_decoder_layers", "encoder_layers", "decoder_layers", "num_labels"),
)

_LONGEST = 100_000_000
"""Bytes of the longest header, as safetensors itself has it."""


def check_folder(folder: Path) -> int:
    """How many numbers the weights in a model's folder are, if they are what they claim to be.

    Weights that are packed, several in a number, are counted as if each took a quarter of a byte.

    Raises:
        InputError: In one line with the file's name: what is no file, is cut, lies about itself,
            has integers for weights without saying how they were rounded, names a part of the
            weights that is not in the folder, asks for more layers than there are tensors, or has
            settings that no model has.
    """
    try:
        there = sorted(folder.iterdir())
        for path in there:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InputError(f"{path} must be a file, got a device, a pipe or the like")
    except OSError as error:
        raise InputError(f"{folder} must be a folder that can be read: {error.strerror}") from None
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder} must be a whole model, got an adapter: merge it into its model")
    config = _read_json(folder / "config.json")
    try:
        check_settings(config if isinstance(config, dict) else {})
    except InputError as error:
        raise InputError(
            f"{folder / 'config.json'} could not be loaded: {str(error)[:200]}"
        ) from None
    rounded = isinstance(config, dict) and "quantization_config" in config
    for name in ("tokenizer.json", "tokenizer_config.json"):
        _read_json(folder / name)
    index_file = folder / "model.safetensors.index.json"
    index = _read_json(index_file)
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(parts, dict):
        if index_file.exists():
            raise InputError(f"{index_file} must have a weight_map from weights to files, got none")
        parts = {}
    for part in sorted({str(part) for part in parts.values()}):
        if part not in {path.name for path in there if path.is_file()}:
            raise InputError(f"{folder} must have all parts of its weights, {part[:80]!r} is none")
    weights = [path for path in there if path.suffix == ".safetensors" and path.is_file()]
    if not weights:
        others = ", ".join(path.name for path in there if path.suffix in _PICKLED)
        raise InputError(
            f"{folder} must have weights in a .safetensors file, got {others or 'none'}: pickled"
            " weights are never loaded, convert them to safetensors first"
        )
    entries = [entry for path in weights for entry in _tensors(path, rounded)]
    n_tensors = len(entries)
    if (most := max(_counts(config), default=0)) > n_tensors:
        raise InputError(
            f"{folder / 'config.json'} must not ask for more layers than there are tensors,"
            f" got {most} for {n_tensors}"
        )
    if rounded:
        return sum(4 * (stop - start) for start, stop in (e["data_offsets"] for e in entries))
    return sum(math.prod(entry["shape"]) for entry in entries)


def own_code(folder: Path) -> str:
    """What a model's settings would have run of the code beside them, as they name it."""
    told = [_read_json(folder / name) for name in ("config.json", "tokenizer_config.json")]
    maps = [settings.get("auto_map") for settings in told if isinstance(settings, dict)]
    named = [name for own in maps if isinstance(own, dict) for name in own.values()]
    return ascii(", ".join(dict.fromkeys(str(name) for name in named)))[1:-1]


def _counts(config: Any) -> Iterator[int]:
    """What the settings say of how many there are of something that is built one by one."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and type(value) is int:
            yield value
        yield from _counts(value)


def _read_json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} must be a JSON file: {str(error)[:120]}") from None


def _tensors(path: Path, rounded: bool) -> list[dict[str, Any]]:
    """What the header of a safetensors file says of each tensor."""
    actual = path.stat().st_size
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(
                file.read(min(size, actual, _LONGEST)), object_pairs_hook=without_twins
            )
            header.pop("__metadata__", None)
            places = sorted(_place(entry) for entry in header.values())
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            told = f": {error}" if isinstance(error, InputError) else ""
            raise InputError(
                f"{path} must be a safetensors file, got {actual} bytes of something else{told}"
            ) from None
    end = 0
    for start, stop in places:
        if start != end:
            raise InputError(f"{path} must have its tensors one after the other: it is damaged")
        end = stop
    if actual != (expected := 8 + size + end):
        raise InputError(
            f"{path} must be {expected} bytes long, got {actual}: it is damaged,"
            " delete it and fetch it again"
        )
    for name, entry in header.items():
        if name.endswith(".weight") and entry["dtype"] not in _FLOATS and not rounded:
            raise InputError(
                f"{path} must have weights that are plain numbers, got {entry['dtype']} in"
                f" {name[:80]!r}, and config.json does not say how they were rounded"
            )
    return list(header.values())


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    """Where a tensor begins and ends, if its shape and its kind say the same."""
    start, stop = entry["data_offsets"]
    shape = entry["shape"]
    if not all(type(number) is int and number >= 0 for number in (start, stop, *shape)):
        raise InputError("shapes and places must be whole numbers")
    if stop - start != math.prod(shape) * _BYTES[entry["dtype"]]:
        raise InputError("a shape does not fit its place")
    return start, stop
