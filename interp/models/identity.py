"""Which model made this? A digest of all weights as they are run, adapters, and quantization."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_ROW = 4096
"""Numbers of a tensor that are summed into one, each times its own odd factor."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}
"""How a number of so many bytes is read for its sum."""


def digest(tensors: Mapping[str, Any]) -> str | None:
    """Digest of names, shapes, number types and every number of `tensors`: 16 hexadecimal digits.

    Each row of 4,096 numbers is read as integers and summed, times fixed odd factors, modulo 2^32;
    the digest is the beginning of the SHA-256 of all sums. A single changed number always changes
    its sum. Of changes of several numbers in one row, one in 2^32 is missed. The cost is that of
    reading the weights once: 0.1 s for 135 million float32 numbers, 4 s for 7 billion of 16 bits.

    Returns:
        The digest; None if some numbers are not in memory, or not readable as plain memory. It
        does not depend on the device, nor on whether the weights come from a folder or a file.
    """
    found = hashlib.sha256()
    try:
        for name, tensor in sorted(tensors.items()):
            if isinstance(tensor, Tensor):
                found.update(f"{name} {tensor.dtype} {[*tensor.shape]}\n".encode())
                found.update(_sums(tensor.detach()).cpu().numpy().tobytes())
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return found.hexdigest()[:16]


def _sums(tensor: Tensor) -> Tensor:
    """The sum of each row of numbers."""
    numbers = tensor.contiguous().flatten().view(_INTEGERS[tensor.element_size()])
    factors = hashlib.shake_128(b"interp").digest(4 * _ROW)
    odd = torch.frombuffer(bytearray(factors), dtype=torch.int32).to(tensor.device) | 1
    whole = len(numbers) // _ROW * _ROW
    rows, rest = numbers[:whole].view(-1, _ROW), numbers[whole:]
    sums = [(part * odd).sum(-1, dtype=torch.int32) for part in rows.split(64)]
    return torch.cat([*sums, (rest * odd[: len(rest)]).sum(dtype=torch.int32)[None]])


def of_bridge(model: Any) -> dict[str, Any]:
    """The weights of a model of transformers that a TransformerBridge wraps, by their own names.

    The bridge adds names for parts of them.
    """
    with torch.device("meta"):
        names = type(model)(model.config).state_dict()
    wrapped = model.state_dict().items()
    plain = {name.replace("._original_component", ""): weight for name, weight in wrapped}
    return {name: weight for name, weight in plain.items() if name in names}


def adapters(model: nn.Module) -> dict[str, Any] | None:
    """PEFT's adapters that change what `model` computes now: type and digest by name, or None."""
    layers: list[Any] = [part for part in model.modules() if hasattr(part, "active_adapters")]
    layers = [part for part in layers if not getattr(part, "disable_adapters", False)]
    names = {name for part in layers for name in part.active_adapters}
    if not names:
        return None
    state, configs = model.state_dict(), getattr(model, "peft_config", {})
    return {
        name: {
            "type": str(getattr(configs.get(name), "peft_type", "")).rpartition(".")[2],
            "digest": digest({key: w for key, w in state.items() if name in key.split(".")}),
        }
        for name in sorted(names)
    }


def quantization_of(config: Any) -> dict[str, Any] | None:
    """How weights are quantized, as the settings of a model of transformers say; None if not."""
    settings: Any = getattr(config, "quantization_config", None)
    settings = settings.to_dict() if hasattr(settings, "to_dict") else settings
    return json.loads(json.dumps(settings, default=str)) if settings else None
