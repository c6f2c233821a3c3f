"""The default format of weights rounded to a few bits: read right, or refused in one line."""

from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tiny_models import tiny

import interp
from interp.models.gguf_header import ARCHITECTURES

IDS = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 9, 5, 6]])


def interleaved(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """The two halves of each head's rows, taken in turns: how Llama's rotary rows are stored."""
    halves = weight.reshape(n_heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def stored(architecture: str, name: str, weight: torch.Tensor, config) -> torch.Tensor:
    """A weight as the format has it."""
    if architecture == "llama" and "attn_q.weight" in name:
        return interleaved(weight, config.num_attention_heads)
    if architecture == "llama" and "attn_k.weight" in name:
        return interleaved(weight, config.num_key_value_heads)
    transposed = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    if architecture == "gpt2" and name.endswith(transposed):
        return weight.T
    return weight


def write(path: Path, model, *, kind: Kind = Kind.F32, called: str = "", **settings) -> Path:
    """A tiny model as a GGUF file, with a tokenizer of single words; `settings` are added."""
    config, family = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, called or family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if family != "gpt2":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, value in settings.items():
        writer.add_string(name.replace("__", "."), value)
    writer.add_tokenizer_model("gpt2")
    words = [f"w{i}" for i in range(6, config.vocab_size)]
    writer.add_token_list(["<unk>", "<s>", "</s>", "x", "y", "xy", *words])
    writer.add_token_merges(["x y"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), 2)
    for name, weight in model.state_dict().items():
        told = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if told == "output.weight" and config.tie_word_embeddings:
            continue
        data = stored(family, told, weight, config).contiguous().numpy()
        if kind != Kind.F32 and data.ndim == 2:
            writer.add_tensor(told, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(told, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# What the format does not tell is as transformers has it by default.
UNTOLD = {"gpt2": {"n_positions": 1024}, "qwen3": {"head_dim": 128}}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_family_in_this_format_attends_as_it_does_in_safetensors(tmp_path, family):
    model = tiny(family, **UNTOLD.get(family, {}))
    path = write(tmp_path / "model.gguf", model)
    ours = interp.attention_patterns(path, IDS)
    assert torch.allclose(ours, interp.attention_patterns(model, IDS), atol=1e-5)
