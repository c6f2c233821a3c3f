"""Which model is loaded: its digest, revision, name, tokenizer, and what its files may decide."""

import json
import shutil

import peft
import pytest
import torch
from tiny_models import tiny, words_tokenizer
from transformer_lens.model_bridge.sources import build_bridge_from_module

import interp
from interp.models.identity import digest
from interp.scan.record import Record


@pytest.mark.fault("C07")
@pytest.mark.parametrize("number", [1, 4095, 4096, 4097, 300_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
def test_one_changed_number_anywhere_gives_another_digest(number, dtype):
    weights = torch.randn(number, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = digest({"a": weights})
    for place in {0, number // 2, number - 1}:
        changed = weights.clone()
        changed.view(torch.uint8)[place * weights.element_size()] ^= 1  # The last bit.
        assert digest({"a": changed}) != before
    assert digest({"b": weights}) != before
    assert digest({"a": weights[None]}) != before


def test_weights_that_are_not_in_memory_have_no_digest():
    assert digest({"a": torch.ones(3, device="meta")}) is None


@pytest.mark.fault("C07")
def test_the_same_weights_have_one_digest_wherever_they_come_from(folder):
    model = interp.load_model(tiny("llama"))
    assert interp.load_model(folder).digest == model.digest
    assert interp.load_model(tiny("llama").bfloat16()).digest != model.digest
    inner = tiny("llama")
    inner.config.architectures = ["LlamaForCausalLM"]
    bridge = build_bridge_from_module(inner, "LlamaForCausalLM", hf_config=inner.config)
    assert interp.load_model(bridge).digest == model.digest


def test_other_rotary_angles_give_another_digest():
    one, other = (
        interp.load_model(
            tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": base})
        )
        for base in (1e4, 5e5)
    )
    assert one.digest != other.digest


@pytest.mark.fault("C07")
def test_a_step_of_training_gives_another_digest_also_to_a_model_that_is_open():
    own = tiny("gpt2")
    model = interp.load_model(own)
    before = model.digest
    own(torch.arange(9)[None], labels=torch.arange(9)[None]).loss.backward()
    torch.optim.SGD(own.parameters(), lr=1e-6).step()
    assert model.digest != before


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")  # PEFT's own.
@pytest.mark.fault("C07")
def test_the_record_names_the_adapter_that_is_merged():
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(tiny("llama"), config, adapter_name="mine")
    record = Record.identity(interp.load_model(adapted))
    plain = Record.identity(interp.load_model(tiny("llama")))
    assert record["adapters"]["mine"]["type"] == "LORA"
    assert len(record["adapters"]["mine"]["digest"]) == 16
    assert record["digest"] != plain["digest"]
    with adapted.disable_adapter():
        assert Record.identity(interp.load_model(adapted)) == {**plain, "model": record["model"]}
    merged = interp.load_model(adapted.merge_and_unload())
    assert merged.digest == record["digest"]


@pytest.mark.fault("C06")
def test_a_revision_is_refused_where_it_cannot_apply(folder):
    for given in (folder, tiny("gpt2"), interp.load_model(tiny("gpt2"))):
        with pytest.raises(interp.InputError, match="revision must come with a hub id, got 'v1'"):
            interp.load_model(given, revision="v1")


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A cache of the hub with two commits of the model `me/tiny`; the hub cannot be reached."""
    home = tmp_path / "hub" / "models--me--tiny"
    for commit, name in (("1" * 40, "main"), ("2" * 40, "later")):
        shutil.copytree(folder, home / "snapshots" / commit)
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / name).write_text(commit)
    for module in ("huggingface_hub.constants", "transformers.utils.hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    return home


@pytest.mark.fault("C06", "C07")
@pytest.mark.parametrize(("revision", "commit"), [(None, "1"), ("later", "2"), ("2" * 40, "2")])
def test_the_commit_of_a_hub_id_is_recorded(hub, revision, commit):
    model = interp.load_model("me/tiny", revision=revision)
    assert (model.name, model.revision) == ("me/tiny", commit * 40)


@pytest.mark.fault("C42")
def test_a_model_has_the_name_that_is_given(folder, tmp_path):
    for given in (folder, tiny("gpt2"), interp.load_model(tiny("gpt2"))):
        assert interp.load_model(given, name="after step 5").name == "after step 5"
    with pytest.raises(interp.InputError, match="name must be"):
        interp.load_model(folder, name=" ")
    scans = [
        interp.scan_heads(interp.load_model(tiny("gpt2"), name=name), rows=1, quick=True)
        for name in ("one", "two")
    ]
    assert [scan.made_by["model"] for scan in scans] == ["one", "two"]


@pytest.mark.fault("C07")
def test_checkpoints_are_named_after_their_run(folder):
    for run in ("runA", "runB"):
        place = folder.parent / run / "checkpoint-500"
        shutil.copytree(folder, place)
        assert interp.load_model(place).name == f"{run}/checkpoint-500"


@pytest.mark.fault("C08")
def test_a_checkpoint_takes_the_tokenizer_that_is_given(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "ckpt")
    words_tokenizer().save_pretrained(tmp_path / "words")
    for given in (words_tokenizer(), tmp_path / "words", str(tmp_path / "words")):
        model = interp.load_model(tmp_path / "ckpt", given)
        assert model.to_tokens("w5 w6").tolist() == [[1, 5, 6]]
    for given in (7, "", tmp_path / "ckpt"):
        with pytest.raises(interp.InputError, match="tokenizer"):
            interp.load_model(tmp_path / "ckpt", given)


@pytest.mark.fault("C08")
def test_a_folder_with_a_list_of_words_alone_has_a_tokenizer(tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "word"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    model = interp.load_model(tmp_path)
    assert model.to_tokens("a word").tolist() == [[2, 5, 6, 3]]


@pytest.mark.fault("C14")
@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"_attn_implementation_internal": "someone/kernel"},
        {"experts_implementation": "sonicmoe"},
        {"auto_map": {"AutoConfig": "someone/code--config.Config", "AutoModel": "x.Y"}},
    ],
)
def test_settings_never_decide_which_code_is_run_or_fetched(folder, settings, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("code was to be fetched")

    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", refuse)
    monkeypatch.setattr("transformers.integrations.hub_kernels.is_kernels_available", lambda: True)
    monkeypatch.setattr("transformers.dynamic_module_utils.get_cached_module_file", refuse)
    ids = [1, 5, 6, 7, 5]
    expected = interp.attention_patterns(interp.load_model(folder), ids)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    model = interp.load_model(folder)
    assert model.plain.config._attn_implementation == "eager"
    assert torch.equal(interp.attention_patterns(model, ids), expected)


@pytest.mark.fault("C14")
def test_settings_of_a_part_of_a_model_never_decide_it_either(tmp_path):
    tiny("gemma3").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    nested = {**config, "attn_implementation": {"": "someone/kernel"}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert interp.load_model(tmp_path).plain.config._attn_implementation == "eager"


@pytest.mark.fault("C15")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", "a web page"),
    ],
)
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_what_stands_in_for_a_file_is_named(folder, file, content, reason):
    (folder / file).write_bytes(content)
    with pytest.raises(interp.InputError, match=rf"{file} must be the file itself.*{reason}"):
        interp.load_model(folder)
    path = folder / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(interp.InputError, match=rf"gguf must be the file itself.*{reason}"):
        interp.load_model(path)
