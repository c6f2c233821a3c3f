"""What a GGUF file says of itself, checked before a weight of it is read.

A file that is cut, damaged or lying about itself is refused here, from its header alone, and so
is a model whose layout has no known rule. What is listed in `ARCHITECTURES` has a test that
writes a tiny model in this format and finds the same attention patterns after loading.
"""

import math
import mmap
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from interp.errors import InputError

ARCHITECTURES = ("gpt2", "llama", "qwen2", "qwen3")
"""Families whose order of weights in a GGUF file is known, as `general.architecture` names them.

Llama's rotary rows are interleaved in the file and GPT-2's matrices are transposed; Qwen's are as
transformers has them.
"""

_READ = ("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size")
_READ += ("attention.head_count", "attention.head_count_kv", "attention.layer_norm_epsilon")
_READ += ("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count")
_READ += ("attention.key_length", "attention.value_length")
"""Settings of a family that are read, or that the shapes of the weights repeat.

transformers passes over any other without a word, such as a rotary scaling or a window, and the
model would then attend otherwise than it was made to.
"""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS |= {12: "d"}
_STRING, _ARRAY = 8, 9


def check_gguf(path: Path) -> int:
    """How many numbers the weights in the GGUF file at `path` are, if its header is sound.

    Raises:
        InputError: In one line: what is wrong with the file, or which architecture or kind of
            rounding has no rule here.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24 or file.read(4) != b"GGUF":
            raise InputError(
                f"{path} could not be loaded: it must be a GGUF file, got"
                f" {path.stat().st_size} bytes of something else"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _check(_Header(data))
            except InputError as error:
                raise InputError(f"{path} could not be loaded: {error}") from None


class _Header:
    """The bytes of a header, read from its beginning; never beyond the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4

    def skip(self, size: int) -> int:
        """Where the next `size` bytes begin; the reader moves past them."""
        start = self.at
        if size > len(self.data) - start:
            raise InputError(
                f"the file is cut or damaged: it must go on for {size} bytes from byte {start},"
                f" got {len(self.data)} bytes in all"
            )
        self.at += size
        return start

    def number(self, kind: str) -> Any:
        start = self.skip(struct.calcsize(f"<{kind}"))
        return struct.unpack_from(f"<{kind}", self.data, start)[0]

    def text(self) -> str:
        size = self.number("Q")
        start = self.skip(size)
        try:
            return self.data[start : start + size].decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"the file is damaged: no text at byte {start}") from None

    def value(self, kind: int) -> Any:
        """A value of the metadata; None for an array, which is only passed over."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        inner = self.number("I") if kind == _ARRAY else None
        if inner in _SCALARS:
            self.skip(self.number("Q") * struct.calcsize(f"<{_SCALARS[inner]}"))
        elif inner == _STRING:
            for _ in range(self.number("Q")):
                self.skip(self.number("Q"))
        else:
            raise InputError(f"the file is damaged: no value at byte {self.at}")
        return None


def _check(header: _Header) -> int:
    version, n_tensors, n_values = (header.number(kind) for kind in "IQQ")
    if version not in (2, 3):
        raise InputError(f"GGUF version must be 2 or 3, got {version}")
    told: dict[str, Any] = {}
    for _ in range(n_values):
        name = header.text()
        if name in told:
            raise InputError(f"the file is damaged: {name[:80]!r} is there twice")
        told[name] = header.value(header.number("I"))
    architecture = told.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"architecture must be one whose order of weights in GGUF files is known"
            f" ({', '.join(ARCHITECTURES)}), got {str(architecture)[:80]!r}"
        )
    alignment = told.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise InputError(f"general.alignment must be a power of 2, got {alignment!r}")
    for name in told:
        family, _, setting = name.partition(".")
        if family == architecture and setting not in _READ:
            raise InputError(f"it has a setting that is not read here: {name[:80]!r}")
    tensors = [_tensor(header) for _ in range(n_tensors)]
    if scaled := [name for _, _, name, _ in tensors if name.startswith("rope_")]:
        raise InputError(f"it has a rotary scaling, which is not read here: {scaled[0][:80]!r}")
    layers = told.get(f"{architecture}.block_count")
    if not isinstance(layers, int) or not 0 < layers <= n_tensors:
        raise InputError(f"layers must be from 1 to the {n_tensors} tensors, got {layers!r}")
    for setting in ("attention.head_count", "attention.head_count_kv", "embedding_length"):
        number = told.get(f"{architecture}.{setting}", 1)
        if not isinstance(number, int) or number < 1:
            raise InputError(f"{setting} must be a whole number from 1 up, got {number!r}")
    _check_places(tensors, header.at, len(header.data), alignment)
    return sum(numbers for *_, numbers in tensors)


def _tensor(header: _Header) -> tuple[int, int, str, int]:
    """Where a tensor begins, how long it is in bytes, its name, and how many numbers it has."""
    name = header.text()
    n_axes = header.number("I")
    if not 0 < n_axes <= 4:
        raise InputError(f"tensor {name[:80]!r} must have 1 to 4 axes, got {n_axes}")
    shape = [header.number("Q") for _ in range(n_axes)]
    kind, start = header.number("I"), header.number("Q")
    if not _can_be_read(kind):
        told = GGMLQuantizationType(kind).name if kind in set(GGMLQuantizationType) else kind
        raise InputError(f"tensor {name[:80]!r} is stored as {told}, which cannot be read here")
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if shape[0] % block:
        raise InputError(
            f"tensor {name[:80]!r} must have rows of a multiple of {block}, got {shape[0]}"
        )
    return start, math.prod(shape) // block * size, name, math.prod(shape)


@cache
def _can_be_read(kind: int) -> bool:
    """Whether tensors of that kind can be made numbers of, tried on one block of zeros."""
    try:
        known = GGMLQuantizationType(kind)
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[known][1]), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return True


def _check_places(
    tensors: list[tuple[int, int, str, int]], header: int, end: int, alignment: int
) -> None:
    """Raise unless each tensor has a name of its own, and together they fill the file.

    Where a header counts too few of them, what is left of it would be read as numbers.
    """
    if len({name for _, _, name, _ in tensors}) < len(tensors):
        raise InputError("the file is damaged: two tensors have the same name")

    def aligned(at: int) -> int:
        return -(-at // alignment) * alignment

    data, last = aligned(header), 0
    for start, size, name, _ in sorted(tensors):
        if start < last:
            raise InputError(f"the file is damaged: tensor {name[:80]!r} overlaps another")
        if start + size > end - data:
            raise InputError(
                f"the file is cut or damaged: it must be at least {data + start + size} bytes"
                f" long, got {end}"
            )
        if start != aligned(last):
            raise InputError(
                f"the file is damaged: tensor {name[:80]!r} must begin where the one before it"
                f" ends, at byte {data + aligned(last)}, got byte {data + start}"
            )
        last = start + size
    if end > aligned(data + last):
        raise InputError(
            f"the file is damaged: its tensors must fill it, got {end - data - last} bytes after"
            " the last of them"
        )
