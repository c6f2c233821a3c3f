"""Tiny models as GGUF files, stored as llama.cpp's converter stores them."""

from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType as Kind

NAMES = {"gemma3_text": "gemma3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
"""The format's name of an architecture, where it is not that of transformers."""

END = (".weight", ".bias")

TRANSPOSED = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def interleaved(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """The two halves of each head's rows, taken in turns: how Llama's rotary rows are stored."""
    halves = weight.reshape(n_heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def by_part(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Bloom's rows, which are q, k and v of each head in turn, as all of q, all of k, all of v."""
    parts = weight.reshape(n_heads, 3, -1, *weight.shape[1:])
    return parts.transpose(0, 1).reshape(weight.shape)


def stored(architecture: str, name: str, weight: torch.Tensor, config) -> torch.Tensor:
    """A weight as the format has it."""
    heads = config.num_attention_heads
    match architecture:
        case "llama" if "attn_q.weight" in name:
            return interleaved(weight, heads)
        case "llama" if "attn_k.weight" in name:
            return interleaved(weight, config.num_key_value_heads)
        case "gpt2" if name.endswith(TRANSPOSED):
            return weight.T
        case "bloom" if "attn_qkv" in name:
            return by_part(weight, heads)
        case "gemma2" | "gemma3" | "nemotron" if "norm" in name and name.endswith("weight"):
            return weight + 1
    return weight.squeeze()


def described(writer: gguf.GGUFWriter, architecture: str, config) -> None:
    """Write the settings that the converter writes for this architecture."""
    kv = getattr(config, "num_key_value_heads", None)
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(getattr(config, "max_position_embeddings", 64))
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if width := getattr(config, "intermediate_size", None):
        writer.add_feed_forward_length(width)
    if kv:
        layers = getattr(config, "layer_types", None) if architecture == "lfm2" else None
        writer.add_head_count_kv([kv * (kind != "conv") for kind in layers] if layers else kv)
    if rope and architecture != "stablelm":
        writer.add_rope_freq_base(rope["rope_theta"])
    if (part := rope.get("partial_rotary_factor", 1)) != 1 or architecture in ("phi3", "llama"):
        writer.add_rope_dimension_count(int(part * size))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if architecture in ("gemma2", "gemma3", "qwen3", "qwen3moe"):
        writer.add_key_length(size)
        writer.add_value_length(size)
    for ours in (
        "rms_norm_eps",
        "layer_norm_epsilon",
        "layer_norm_eps",
        "norm_epsilon",
        "norm_eps",
    ):
        if (epsilon := getattr(config, ours, None)) is not None:
            is_rms = ours == "rms_norm_eps" or architecture == "lfm2"
            add = writer.add_layer_norm_rms_eps if is_rms else writer.add_layer_norm_eps
            add(epsilon)
            break
    if architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture.endswith("moe"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "stablelm":
        writer.add_parallel_residual(config.use_parallel_residual)
    if architecture == "lfm2":
        writer.add_shortconv_l_cache(config.conv_L_cache)


def split(state):
    """The weights by their names in the format's tables: fused experts as gates and up."""
    for name, weight in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = weight.chunk(2, 1)
            base = name.removesuffix("gate_up_proj")
            yield f"{base}gate_proj.weight", gate
            yield f"{base}up_proj.weight", up
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", weight
        else:
            yield name, weight


def write(
    path: Path, model, *, kind: Kind = Kind.F32, called: str = "", rope_freqs=None, **settings
) -> Path:
    """A tiny model as a GGUF file, with a tokenizer of single words; `settings` are added."""
    config = model.config
    architecture = NAMES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, called or architecture)
    described(writer, architecture, config)
    for name, value in settings.items():
        writer.add_string(name.replace("__", "."), value)
    writer.add_tokenizer_model("gpt2")
    words = [f"w{i}" for i in range(6, config.vocab_size)]
    writer.add_token_list(["<unk>", "<s>", "</s>", "x", "y", "xy", *words])
    writer.add_token_merges(["x y"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    arch = next(key for key, word in gguf.MODEL_ARCH_NAMES.items() if word == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, weight in split(model.state_dict()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        short = name.removeprefix("transformer.")
        told = names.get_name(name, END) or names.get_name(short, END)
        assert told, name
        data = stored(architecture, told, weight, config).contiguous().numpy()
        if kind != Kind.F32 and data.ndim == 2:
            writer.add_tensor(told, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(told, data)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
