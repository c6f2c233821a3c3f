"""Model files, checked before a weight is read: what could give wrong numbers is refused.

The libraries themselves report most damage. Here are the cases that they accept.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors import safe_open

from interp.errors import InputError, quoted, reading
from interp.files import without_twins
from interp.models.families import GGUF_ARCHITECTURES, GGUF_SETTINGS, check_settings

_FLOATS = ("F16", "BF16", "F32", "F64")

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_COUNTS += ("num_decoder_layers", "encoder_layers", "decoder_layers", "num_labels")


def check_folder(folder: Path) -> int:
    """How many numbers the weights in a model's folder have.

    Weights that are packed, several in a number, count as if each took a quarter of a byte.

    Raises:
        InputError: If the folder holds an adapter, pickled weights or no regular files; if weights
            are integers without settings that say how they were quantized; or if a part of the
            weights is missing, or settings ask for more layers than there are tensors.
    """
    with reading(folder, "a folder"):
        files = sorted(path for path in folder.iterdir() if not path.is_dir())
    for path in files:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} must be a file, got a device, a pipe or the like")
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder} must be a whole model, got an adapter: merge it into its model")
    config = _read_json(folder / "config.json")
    with reading(folder / "config.json"):
        check_settings(config if isinstance(config, dict) else {})
    is_packed = isinstance(config, dict) and "quantization_config" in config
    for name in ("tokenizer.json", "tokenizer_config.json"):
        _read_json(folder / name)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        with reading(index, "an index of weights"):
            parts = set(_read_json(index)["weight_map"].values())
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
    tensors = [tensor for path in weights for tensor in _tensors(path, is_packed)]
    if (most := max(_counts(config), default=0)) > len(tensors):
        raise InputError(
            f"{folder / 'config.json'} must not ask for more layers than there are tensors,"
            f" got {most} for {len(tensors)}"
        )
    if is_packed:
        return sum(4 * (stop - start) for start, stop in (t["data_offsets"] for t in tensors))
    return sum(math.prod(tensor["shape"]) for tensor in tensors)


def _counts(config: Any) -> Iterator[int]:
    """Numbers in the settings of things that are built one by one."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _COUNTS and type(value) is int:
            yield value
        yield from _counts(value)


def _read_json(path: Path) -> Any:
    if not path.exists():
        return None
    with reading(path, "a JSON file"):
        return json.loads(path.read_text(encoding="utf-8"))


def _tensors(path: Path, is_packed: bool) -> list[dict[str, Any]]:
    """The header's entry of each tensor in a safetensors file."""
    with reading(path, "a whole safetensors file"):
        with safe_open(path, "pt"):
            pass  # It compares the header with the file.
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size), object_pairs_hook=without_twins)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if name.endswith(".weight") and entry["dtype"] not in _FLOATS and not is_packed:
            raise InputError(
                f"{path} must have weights that are floating point, got {entry['dtype']} in"
                f" {quoted(name)}, and config.json does not say how they were quantized"
            )
    return list(header.values())


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS |= {12: "d"}
_STRING, _ARRAY = 8, 9
"""Types of values in a GGUF file."""


def check_gguf(path: Path) -> int:
    """How many numbers the weights in the GGUF file at `path` have.

    Raises:
        InputError: If the file is damaged, the layout of its architecture is unknown here, or it
            has a setting that transformers would ignore.
    """
    with (
        reading(path, "a GGUF file"),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return _check_header(_Header(data), len(data))


class _Header:
    """Reads the header of a GGUF file; beyond the end of the file `struct` raises an error."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def number(self, kind: str, count: int = 1) -> Any:
        found = struct.unpack_from(f"<{kind}", self.data, self.at)[0] if count else None
        self.at += struct.calcsize(f"<{kind}") * count
        return found

    def text(self) -> bytes:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> Any:
        """A value of the metadata; None for an array, which is skipped."""
        if kind == _STRING:
            return self.text().decode()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner == _STRING:
            for _ in range(count):
                self.text()
        else:
            self.number(_SCALARS[inner], count)
        return None


def _check_header(header: _Header, size: int) -> int:
    if (magic := header.number("4s")) != b"GGUF":
        raise InputError(f"file must begin with GGUF, got {quoted(magic)}")
    _version, n_tensors, n_values = (header.number(kind) for kind in "IQQ")
    values = {}
    for _ in range(n_values):
        name = header.text().decode()
        values[name] = header.value(header.number("I"))
    architecture = values.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise InputError(
            "architecture must be one whose order of weights in GGUF files is known"
            f" ({', '.join(GGUF_ARCHITECTURES)}), got {quoted(architecture)}"
        )
    for name in values:
        family, _, setting = name.partition(".")
        if family == architecture and setting not in GGUF_SETTINGS:
            raise InputError(f"file must not have settings that are not read: {quoted(name)}")
    tensors = [_tensor(header) for _ in range(n_tensors)]
    if scaled := [name for _, _, name, _ in tensors if name.startswith("rope_")]:
        raise InputError(f"file must not have rotary scaling, which is not read: {scaled[0]!r}")
    layers = values[f"{architecture}.block_count"]
    if layers > n_tensors:
        raise InputError(f"layers must be at most the {n_tensors} tensors, got {layers}")
    # With a wrong count or place the library would read other bytes as numbers.
    alignment = values.get("general.alignment", 32)
    data = last = end = -(-header.at // alignment) * alignment
    for start, length, name, _ in sorted(tensors):
        if data + start != end:
            raise InputError(f"tensors must follow one another, got {quoted(name)} at {start}")
        last = end + length
        end = -(-last // alignment) * alignment
    if not last <= size <= end:
        raise InputError(f"tensors must fill the file of {size} bytes, got {end} bytes")
    return sum(numbers for *_, numbers in tensors)


def _tensor(header: _Header) -> tuple[int, int, str, int]:
    """Where a tensor begins, its length in bytes, its name, and how many numbers it has."""
    name = header.text().decode()
    shape = [header.number("Q") for _ in range(header.number("I"))]
    kind, start = GGMLQuantizationType(header.number("I")), header.number("Q")
    block, size = GGML_QUANT_SIZES[kind]
    return start, math.prod(shape) // block * size, name, math.prod(shape)
