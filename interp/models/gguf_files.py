"""GGUF files: checked before a weight is read, and their settings completed.

transformers reads the weights, and of the settings those in its own table; it ignores the others,
and its defaults may not be those of the file. Here every setting is carried over or refused.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from gguf import GGUFReader

from interp.errors import InputError, quoted, reading
from interp.models.weight_files import refuse_stand_in

ARCHITECTURES = (
    *("gpt2", "llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "phi3"),
    *("falcon", "bloom", "stablelm", "starcoder2", "nemotron", "lfm2"),
)
"""Architectures that are tested against the same weights in safetensors."""

_NAMES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_epsilon": "layer_norm_epsilon layer_norm_eps norm_epsilon norm_eps",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "use_parallel_residual": "use_parallel_residual",
    "shortconv.l_cache": "conv_L_cache",
}
"""A file's setting, and its name in transformers: the first that the family has."""

_OPTIONAL = {"feed_forward_length", "vocab_size", "attention.key_length", "attention.value_length"}
_OPTIONAL.add("context_length")
"""Settings that a family need not have: shapes of weights, and a context that has no limit."""

_ROPE = {"rope.freq_base": "rope_theta", "rope.dimension_count": "partial_rotary_factor"}
_ROPE |= {"rope.scaling.type": "rope_type", "rope.scaling.factor": "factor"}

_STRETCHED = "rope_freqs.weight"
"""A tensor that is no weight: see `GgufFile.stretched`."""

_SCALINGS = {"none": "default", "linear": "linear"}
"""Kinds of rotary scaling, and their names in transformers."""

_LARGEST_GEMMAS = {("gemma2", 46), ("gemma3", 62)}
"""Architecture and number of layers of the models of 27 billion weights."""


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file says about itself.

    Attributes:
        settings: Settings of the architecture, without its name.
        stretched: For each pair of rotary dimensions the factor by which it turns more slowly
            (Llama 3), or none.
        numbers: How many numbers its weights have.
        types: How many of them are stored in which type, the commonest first.
    """

    path: Path
    architecture: str
    settings: dict[str, Any]
    stretched: list[float]
    numbers: int
    types: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> "GgufFile":
        """Read the header.

        Refuses a damaged file, an architecture whose layout is unknown here, and settings that
        would be ignored.
        """
        refuse_stand_in(path)
        with reading(path, "a GGUF file"):
            file, size = GGUFReader(path), path.stat().st_size
            architecture = file.fields["general.architecture"].contents()
            if architecture not in ARCHITECTURES:
                raise InputError(
                    "architecture must be one whose GGUF files are read as safetensors are"
                    f" ({', '.join(ARCHITECTURES)}), got {quoted(architecture)}"
                )
            settings = {}
            for name, field in file.fields.items():
                if name.startswith(prefix := f"{architecture}."):
                    settings[name.removeprefix(prefix)] = field.contents()
            known = {*_NAMES, *_ROPE, _STRETCHED}
            if settings.get("rope.scaling.type", "none") not in _SCALINGS:
                known.remove("rope.scaling.type")
            for name in (*settings, *(tensor.name for tensor in file.tensors)):
                if (name in settings or name.startswith("rope_")) and name not in known:
                    name = f"{architecture}.{name}" if name in settings else name
                    raise InputError(
                        f"file must not have settings that are not read: {quoted(name)}"
                    )
            if (layers := settings["block_count"]) > len(file.tensors):
                raise InputError(f"layers must be at most the number of tensors, got {layers}")
            # With a wrong count or place the library would read other bytes as numbers.
            last = end = file.data_offset
            for tensor in sorted(file.tensors, key=lambda each: each.data_offset):
                if tensor.data_offset != end:
                    raise InputError(f"tensors must have no gaps, got one at {quoted(tensor.name)}")
                last = end + tensor.n_bytes
                end = -(-last // int(file.alignment)) * int(file.alignment)
            if not last <= size <= end:
                raise InputError(f"tensors must fill the file of {size} bytes, got {end} bytes")
            stretched, types = [], Counter[str]()
            for tensor in file.tensors:
                if tensor.name == _STRETCHED:
                    stretched = tensor.data.tolist()
                else:
                    types[tensor.tensor_type.name] += math.prod(tensor.shape.tolist())
            kinds = dict(types.most_common())
            return cls(path, architecture, settings, stretched, types.total(), kinds)

    @property
    def quantization(self) -> dict[str, Any]:
        """How the weights were quantized, for records."""
        return {"quant_method": "gguf", "types": [*self.types]}

    def complete(self, config: Any) -> None:
        """Give `config`, as transformers read it, every setting of the file."""
        for name, value in self.settings.items():
            if name in _ROPE:
                continue
            if isinstance(value, list):  # For each layer, 0 where it does not attend.
                value = max(value)
            ours = next((each for each in _NAMES[name].split() if hasattr(config, each)), None)
            if ours is not None:
                if not _same(getattr(config, ours), value):
                    setattr(config, ours, _shortest(value))
            elif name not in _OPTIONAL:
                raise InputError(f"file must not have settings that are not read: {quoted(name)}")
        if not self.settings.get("attention.sliding_window") and "gemma" not in self.architecture:
            config.sliding_window = None
        if hasattr(config, "query_pre_attn_scalar"):  # Not in the file, but known to its readers.
            layers, width = config.num_hidden_layers, config.hidden_size
            is_largest = (self.architecture, layers) in _LARGEST_GEMMAS
            scale = width // config.num_attention_heads if is_largest else config.head_dim
            config.query_pre_attn_scalar = scale
        self._complete_rope(config)

    def _complete_rope(self, config: Any) -> None:
        """Give `config` the file's rotary positions; Gemma 3 has others in layers with a window."""
        rope = getattr(config, "rope_parameters", None)
        if not rope:
            return
        rope = rope.get("full_attention", rope)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        for name, ours in _ROPE.items():
            value = self.settings.get(name)
            if value is None:
                continue
            if name == "rope.dimension_count":
                value = value / size
                if value == rope.get(ours, 1.0):
                    continue
            rope[ours] = _SCALINGS[value] if ours == "rope_type" else _shortest(value)
        if self.stretched:
            rope |= {"rope_type": "longrope", "attention_factor": 1.0}
            rope |= dict.fromkeys(("short_factor", "long_factor"), self.stretched)
            rope["original_max_position_embeddings"] = config.max_position_embeddings

    @staticmethod
    def unpacked() -> Any:
        """Options with which transformers turns all weights into ordinary numbers."""
        kind = getattr(transformers, "GgufConfig", None)
        return None if kind is None else kind(dequantize=True)

    def check_used(self, what: str, model: Any) -> None:
        """Refuse a model that has more or fewer numbers than the file.

        The model's weights are ordinary numbers now, and it is no longer marked as quantized:
        transformers would not save it.
        """
        used = sum(weight.numel() for weight in model.parameters())
        if self.numbers != used:  # transformers ignores weights that it does not expect.
            raise InputError(f"{what} must use all {self.numbers} numbers of its file, got {used}")
        if hasattr(model, "hf_quantizer"):
            del model.hf_quantizer
            delattr(model.config, "quantization_config")
            setattr(model, "is_quantized", False)  # noqa: B010  # Not a submodule, whatever types say.


def _same(ours: Any, value: Any) -> bool:
    return ours is not None and ours == _shortest(value)


def _shortest(value: Any) -> Any:
    """The shortest decimal number that a file's 32 bits stand for: 1e-06, not 9.99999997e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
