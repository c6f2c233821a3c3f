"""GGUF files of quantized weights: read right, or refused."""

import contextlib
import os
import random
import struct
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_written import interleaved, write
from tiny_models import ENDS, GROUPED, HYBRID, made, named, tiny

import interp
from interp.models import fetch
from interp.models.gguf_files import ARCHITECTURES, GgufFile

IDS = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 9, 5, 6]])


LATE: dict[str, Any] = {name: value for name, value in GROUPED.items() if name != "head_dim"}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FULL, PART = ({"rope_type": "default", "rope_theta": base} for base in (5e4, 1e4))
PART["partial_rotary_factor"] = 0.5
OTHERS = {
    "gemma2": named(
        "Gemma2",
        **GROUPED,
        **{"sliding_window": 4, "query_pre_attn_scalar": 8},
        **{"attn_logit_softcapping": 20.0, "final_logit_softcapping": 11.0},
    ),
    "gemma3": named(
        "Gemma3Text",
        **{**GROUPED, "num_hidden_layers": 7, "num_key_value_heads": 1},
        **{"sliding_window": 4, "query_pre_attn_scalar": 8},
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "phi3": named("Phi3", **LATE, **ENDS, sliding_window=4),
    "starcoder2": named("Starcoder2", **LATE, rope_parameters=FULL),
    "stablelm": named(
        "StableLm", **LATE, rope_parameters=PART, use_parallel_residual=True, use_qkv_bias=True
    ),
    "nemotron": named("Nemotron", **GROUPED, rope_parameters=FULL | {"partial_rotary_factor": 0.5}),
    "qwen2moe": named("Qwen2Moe", **LATE, **MOE, shared_expert_intermediate_size=32),
    "qwen3moe": named("Qwen3Moe", **GROUPED, **MOE, norm_topk_prob=True),
    "lfm2": named(
        "Lfm2",
        **HYBRID,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention"] * 2,
        rope_parameters=FULL,
    ),
}
"""Families whose settings here are none of transformers' defaults."""


def model_of(architecture: str):
    """A tiny model whose norms and biases are none of the usual."""
    if architecture in OTHERS:
        model = made(OTHERS[architecture](), **ENDS)
    else:
        model = tiny(architecture)
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (w for w in model.parameters() if w.dim() == 1):
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


def same(ours, model):
    ids = torch.randint(3, 190, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, expected = ours.plain(ids).logits, model(ids).logits
    return (logits - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.fault("B85", "B112", "C05")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_family_in_this_format_gives_the_logits_that_it_gives_in_safetensors(
    tmp_path, architecture
):
    model = model_of(architecture)
    ours = interp.load_model(write(tmp_path / "model.gguf", model))
    assert type(ours.plain) is type(model)
    assert same(ours, model)
    assert ours.quantization == {"quant_method": "gguf", "types": ["F32"]}
    assert ours.to_tokens("xy").tolist() == [[1, 5]]


@pytest.mark.fault("B112")
def test_rotary_positions_of_llama_3_are_those_of_its_settings(tmp_path):
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = tiny("llama", rope_parameters=rope)
    usual = tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    tables = [m.get_submodule("model.rotary_emb").get_buffer("inv_freq") for m in (usual, model)]
    path = write(tmp_path / "model.gguf", model, rope_freqs=tables[0] / tables[1])
    assert same(interp.load_model(path), model)
    assert not same(interp.load_model(usual), model)


@pytest.mark.fault("C05")
@pytest.mark.parametrize(
    "kind", [{"new_decoder_architecture": True, "num_kv_heads": 2}, {"multi_query": False}]
)
def test_a_layout_that_transformers_does_not_undo_is_refused(tmp_path, kind):
    path = write(tmp_path / "model.gguf", tiny("falcon", **kind))
    with pytest.raises(interp.InputError, match="must have the weights that its settings"):
        interp.load_model(path)


@pytest.mark.fault("B112")
def test_rotary_settings_of_the_file_are_those_of_the_model(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 5e6}
    model = tiny("llama", rope_parameters=rope)
    ids = torch.arange(3, 63)[None]
    ours = interp.attention_patterns(write(tmp_path / "model.gguf", model), ids)
    assert torch.allclose(ours, interp.attention_patterns(model, ids), atol=1e-5)
    usual = interp.attention_patterns(tiny("llama"), ids)
    assert not torch.allclose(ours, usual, atol=0.1)


@pytest.mark.fault("B85")
def test_rounded_weights_attend_as_their_rounded_numbers_do(tmp_path):
    model = tiny("llama")
    path = write(tmp_path / "model.gguf", model, kind=Kind.Q8_0)
    rounded = tiny("llama")
    with torch.no_grad():
        for name, weight in rounded.named_parameters():
            told = name.replace("self_attn.", "attn_").replace("_proj", "")
            if weight.dim() < 2:
                continue
            heads = 4 if "attn_q" in told else 2
            turned = "attn_q" in told or "attn_k" in told
            data = interleaved(weight, heads) if turned else weight
            data = gguf.dequantize(gguf.quantize(data.numpy(), Kind.Q8_0), Kind.Q8_0)
            halves = torch.from_numpy(data).reshape(heads, -1, 2, weight.shape[1])
            back = halves.transpose(1, 2).reshape(weight.shape) if turned else torch.tensor(data)
            weight.copy_(back)
    ours, expected = (interp.attention_patterns(m, IDS) for m in (path, rounded))
    assert torch.allclose(ours, expected, atol=1e-5)
    assert not torch.equal(ours, interp.attention_patterns(model, IDS))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of a small file that loads, and where the numbers in it begin."""
    path = write(
        tmp_path_factory.mktemp("sound") / "model.gguf",
        tiny("llama", vocab_size=8, num_hidden_layers=1),
    )
    return path.read_bytes(), gguf.GGUFReader(path).data_offset


@pytest.mark.fault("B86")
def test_a_file_that_is_cut_anywhere_is_refused(tmp_path, sound):
    content, data = sound
    path = tmp_path / "cut.gguf"
    path.write_bytes(content)
    assert GgufFile.read(path).numbers > 0
    last = len(content) - 1
    for end in [last, *range(last, data, -4999), *range(data, -1, -37), 0]:
        os.truncate(path, end)
        with pytest.raises(interp.InputError, match=r"cut\.gguf"):
            GgufFile.read(path)


def test_a_flipped_bit_in_a_header_is_refused_or_leaves_a_model(tmp_path, sound):
    content, data = sound
    generator = random.Random(0)
    path = tmp_path / "flipped.gguf"
    for turn in range(200):
        damaged = bytearray(content)
        damaged[generator.randrange(data)] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(interp.InputError):
            GgufFile.read(path)
            if turn % 40 == 0:
                interp.load_model(path)


def test_a_model_of_no_heads_is_refused_by_name(tmp_path, sound):
    content, name = sound[0], b"llama.attention.head_count_kv"
    at = content.index(name) + len(name) + 4
    path = tmp_path / "headless.gguf"
    path.write_bytes(content[:at] + bytes(4) + content[at + 4 :])
    with pytest.raises(interp.InputError, match="num_key_value_heads must"):
        interp.load_model(path)


@pytest.mark.fault("B86")
@pytest.mark.parametrize("tied", [True, False])
def test_a_file_of_more_numbers_than_its_settings_use_is_refused(tmp_path, tied):
    path = write(tmp_path / "model.gguf", tiny("llama", tie_word_embeddings=tied))
    content, name = path.read_bytes(), b"llama.block_count"
    at = content.index(name) + len(name) + 4
    assert content[at : at + 4] == struct.pack("<I", 2)
    path.write_bytes(content[:at] + struct.pack("<I", 1) + content[at + 4 :])
    with pytest.raises(interp.InputError, match=r"must use all \d+ numbers of its file"):
        interp.load_model(path)


@pytest.mark.fault("B85", "B112")
@pytest.mark.parametrize(
    ("called", "settings", "message"),
    [
        ("mamba", {}, "architecture must .*got 'mamba'"),
        ("../../x\x00", {}, r"got '../../x\\x00'"),
        ("llama", {"llama__rope.scaling.type": "yarn"}, "not read: 'llama.rope.scaling.type'"),
        ("llama", {"llama__\x1b[31m": "4"}, r"not read: 'llama\.\\x1b\[31m'"),
    ],
)
def test_an_unknown_layout_or_setting_is_refused_before_a_weight_is_read(
    tmp_path, called, settings, message
):
    path = write(tmp_path / "model.gguf", tiny("llama"), called=called, **settings)
    with pytest.raises(interp.InputError, match=message):
        interp.load_model(path)


def tensor(name: bytes, *, shape=(8,), kind=0, start=0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + axes + struct.pack("<IQ", kind, start)


def header(*tensors: bytes, n_tensors: int | None = None) -> bytes:
    """A file of 8 numbers, after an architecture, a number of layers and these tensors."""
    count = len(tensors) if n_tensors is None else n_tensors
    content = struct.pack("<4sIQQ", b"GGUF", 3, count, 2)
    for name, value in (
        (b"general.architecture", struct.pack("<IQ", 8, 5) + b"llama"),
        (b"llama.block_count", struct.pack("<II", 4, 1)),
    ):
        content += struct.pack("<Q", len(name)) + name + value
    content += b"".join(tensors)
    return content + bytes(-len(content) % 32 + 32)


@pytest.mark.fault("B86")
@pytest.mark.parametrize(
    "content",
    [
        header(tensor(b"a", kind=999)),
        header(tensor(b"a"), tensor(b"b", start=16)) + bytes(32),
        header(tensor(b"a"), tensor(b"b", start=64)) + bytes(64),
        header(tensor(b"a"), tensor(b"b", start=32)),  # Cut.
        header(tensor(b"a")) + bytes(32),  # More bytes than tensors.
        header(tensor(b"a"), tensor(b"b", start=32), n_tensors=1) + bytes(32),
        header(tensor(b"a", start=32)) + bytes(32),
        header(tensor(b"rope_factors_long.weight")),
        b"PK" + bytes(99),
    ],
)
def test_a_header_that_contradicts_its_file_is_refused(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(header(tensor(b"a")))
    assert GgufFile.read(path).numbers == 8
    path.write_bytes(content)
    with pytest.raises(interp.InputError, match=r"model\.gguf") as caught:
        GgufFile.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.fault("B86")
def test_a_model_that_would_not_fit_is_refused_before_its_weights_are_read(tmp_path, monkeypatch):
    path = write(tmp_path / "model.gguf", tiny("llama"))
    monkeypatch.setattr("interp.memory.available", lambda: 1000)
    monkeypatch.setattr("gguf.dequantize", None)
    with pytest.raises(interp.InputError, match="must fit in memory"):
        interp.load_model(path)


@pytest.mark.fault("B80")
def test_the_default_model_is_converted_once_and_again_if_a_file_is_missing(tmp_path, monkeypatch):
    path = write(tmp_path / "model.gguf", tiny("llama"))
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "default_gguf", lambda: path)
    monkeypatch.setattr(fetch, "SHA256", fetch.sha256(path))
    expected = interp.attention_patterns(interp.load_model(), IDS)
    (folder,) = (tmp_path / "cache").iterdir()
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert torch.equal(interp.attention_patterns(interp.load_model(), IDS), expected)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (folder / "config.json").unlink()
    assert torch.equal(interp.attention_patterns(interp.load_model(), IDS), expected)
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(interp.InputError, match=r"model\.safetensors"):
        interp.load_model()
