"""Models that look both ways: their patterns, the kinds of their heads, and a scan of them."""

import pytest
import torch
import transformers
from encoders import (
    APART,
    CLS,
    ENCODERS,
    NO_SHARES,
    SEP,
    bert_tokenizer,
    encoder,
    planted,
    two_sentences,
)
from tiny_models import tiny
from transformer_lens.model_bridge.sources import build_bridge_from_module

import interp
from interp import memory
from interp.kinds.scores import Thresholds, ask, score_layer
from interp.models import hooks
from interp.models.families import direction
from interp.patterns.tensor import AttentionPatterns
from interp.scan.report import report


def own_attention(model: transformers.PreTrainedModel, **inputs: torch.Tensor) -> torch.Tensor:
    """What transformers itself returns."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return torch.stack(model(**inputs, output_attentions=True).attentions)


@pytest.mark.fault("B57")
@pytest.mark.parametrize("name", ENCODERS)
def test_patterns_of_an_encoder_are_its_own_loaded_or_from_a_folder(name, tmp_path):
    own = encoder(name)
    own.save_pretrained(tmp_path)
    ids = torch.tensor([[CLS, *range(10, 20), SEP]])
    expected = own_attention(own, input_ids=ids)
    assert expected.triu(1).max() > 0.1
    for model in (interp.load_model(own), interp.load_model(tmp_path)):
        assert (model.direction, type(model.inner).__name__) == ("both ways", name)
        found = interp.attention_patterns(model, ids)
        assert torch.equal(found, expected)
        assert not found.causal


@pytest.mark.fault("B02")
@pytest.mark.parametrize("name", [*ENCODERS, *APART])
def test_each_row_of_a_padded_batch_is_as_if_run_alone(name):
    model = interp.load_model(encoder(name))
    rows = [[CLS, *range(10, 20), SEP], [CLS, 7, 8, SEP], [CLS, *range(50, 57), SEP]]
    together = interp.attention_patterns(model, rows)
    for index, row in enumerate(rows):
        size = len(row)
        alone = interp.attention_patterns(model, [row])[:, 0]
        assert (together[:, index, :, :size, :size] - alone).abs().max() < 1e-5
        assert not together[:, index, :, :size, size:].any()
        assert not together[:, index, :, size:].any()


@pytest.mark.fault("B01")
@pytest.mark.parametrize("name", NO_SHARES)
def test_what_is_no_share_of_all_attention_is_refused_with_its_layer(name):
    ids = [list(range(10, 26))]
    returned = own_attention(encoder(name), input_ids=torch.tensor(ids))
    assert (returned.sum(-1) - 1).abs().max() > 0.1
    with pytest.raises(interp.InputError, match=f"probabilities, got {name}"):
        interp.attention_patterns(encoder(name), ids)


@pytest.mark.fault("B57")
@pytest.mark.parametrize("config", [transformers.XLMConfig, transformers.FlaubertConfig])
def test_a_model_that_its_settings_keep_from_looking_ahead_is_causal(config):
    assert direction(config(), None) == "both ways"
    assert direction(config(causal=True), None) == "causal"


def test_a_window_reaches_as_far_either_way_as_is_said():
    model = interp.load_model(encoder("ModernBertForMaskedLM"))
    found = interp.attention_patterns(model, [list(range(10, 40))])
    assert model.windows == (None, 5)
    away = (torch.arange(30)[:, None] - torch.arange(30)).abs()
    assert (found[1, 0] > 0).any(0).equal(away < 5)
    assert found.windows == (None, 5)
    assert [v.window for v in interp.classify_heads(found)[:: model.n_heads]] == [None, 5]


def test_a_text_is_run_with_what_its_tokenizer_adds_and_a_pair_with_its_segments():
    own, tokenizer = encoder(), bert_tokenizer()
    model = interp.load_model(own, tokenizer)
    found = interp.attention_patterns(model, "w4 w5 w6")
    assert found.texts == [["[CLS]", "w4", "w5", "w6", "[SEP]"]]
    assert interp.attention_patterns(model, "w4 w5 w6", bos=False).texts == [["w4", "w5", "w6"]]
    pairs = tokenizer(["w4 w5", "w9"], ["w6", "w7 w8 w4 w4"], padding=True, padding_side="left")
    assert any(map(any, pairs["token_type_ids"]))
    found = interp.attention_patterns(model, pairs)
    for index, pair in enumerate([("w4 w5", "w6"), ("w9", "w7 w8 w4 w4")]):
        alone = own_attention(own, **tokenizer(*pair, return_tensors="pt"))
        size = alone.shape[-1]
        assert (found[:, index, :, :size, :size] - alone[:, 0]).abs().max() < 1e-5


@pytest.mark.fault("B57")
def test_planted_heads_that_look_both_ways_get_their_labels():
    patterns, tokens = planted()
    stack = torch.stack([*patterns.values()])
    found = interp.classify_heads(stack, tokens, special=[CLS, SEP], causal=False)
    assert [head.label for head in found] == list(patterns)
    for head in found:
        assert head.not_measured == {"induction": "the model looks both ways"}
        assert head.scores.get(head.label.replace(" ", "_"), 1) > 0.999


def test_chance_is_the_score_of_even_attention_both_ways():
    patterns, tokens = planted()
    even = interp.classify_heads(patterns["mixed"][None], tokens, special=[CLS, SEP], causal=False)[
        0
    ]
    assert even.scores == pytest.approx(even.chance, abs=1e-6)
    place = torch.arange(len(tokens))
    away = (place[:, None] - place).abs().float()
    counted = [q for q in range(len(tokens)) if tokens[q] not in (CLS, SEP)]
    assert even.mean_distance == pytest.approx(away[counted].mean().item(), abs=1e-5)
    asked = ask(tokens[None], special=[CLS, SEP], thresholds=Thresholds(), causal=False)
    tally = score_layer(patterns["mixed"][None, None], asked, Thresholds()).tallies["mean_distance"]
    assert tally.uniform_mean == pytest.approx(tally.mean, abs=1e-5)


@pytest.mark.fault("B57")
def test_a_sink_is_told_by_its_token_where_texts_are_known():
    model = interp.load_model(encoder(), bert_tokenizer())
    tokens = two_sentences()
    found = interp.attention_patterns(model, tokens)
    patterns = torch.zeros_like(torch.as_tensor(found))
    for head, column in enumerate((7, 27, 0, 12)):
        patterns[0, 0, head, :, column] = 1
    patterns[1] = patterns[0]
    planted = patterns.as_subclass(AttentionPatterns)
    planted.__dict__.update(vars(found))
    labels = interp.classify_heads(planted)[:4]
    assert [head.label for head in labels] == ["sink"] * 4
    assert [head.sink_at for head in labels] == [
        "[SEP] at 7",
        "[SEP] at 27",
        "[CLS] at 0",
        "an ordinary token at 12",
    ]


def test_patterns_that_look_ahead_are_refused_until_their_direction_is_given():
    patterns, tokens = planted()
    with pytest.raises(interp.InputError, match="give causal=False"):
        interp.classify_heads(patterns["next token"][None], tokens)
    assert interp.classify_heads(patterns["next token"][None], tokens, causal=False)
    padded = torch.cat([tokens[:-1], torch.tensor([-1])])
    with pytest.raises(interp.InputError, match="leave padding alone"):
        interp.classify_heads(patterns["next token"][None], padded, causal=False)


@pytest.mark.parametrize("text", ["", " ", ["w4 w5", ""]])
@pytest.mark.parametrize("bos", [True, False])
def test_an_empty_text_is_refused_although_its_tokenizer_adds_tokens_to_it(text, bos):
    model = interp.load_model(encoder(), bert_tokenizer())
    assert bert_tokenizer()("")["input_ids"] == [CLS, SEP]
    with pytest.raises(interp.InputError, match="at least one token, got an empty text"):
        interp.attention_patterns(model, text, bos=bos)
    assert model.to_tokens([CLS, SEP]).tolist() == [[CLS, SEP]]  # Ids are run as they are.


def positional_bert() -> transformers.PreTrainedModel:
    """One layer whose four heads look at the next token, the previous one, [SEP] and themselves.

    Positions are one-hot codes in the first 32 directions; [SEP] adds one of its own.
    """
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=200,
            max_position_embeddings=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            hidden_size=128,
            intermediate_size=16,
        )
    )
    code = torch.eye(32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "LayerNorm" not in name:
                weight.zero_()
        embeddings = model.bert.embeddings
        embeddings.position_embeddings.weight[:, :32] = code
        embeddings.word_embeddings.weight[SEP, 64] = 1
        attention = model.bert.encoder.layer[0].attention.self
        query, key = (part.weight.view(4, 32, 128) for part in (attention.query, attention.key))
        query[[0, 1, 3], :, :32] = code
        attention.query.bias[2 * 32] = 10
        key[0, :31, :32] = code[1:]
        key[1, 1:, :32] = code[:-1]
        key[2, 0, 64] = 1
        key[3, :, :32] = code
    return model.eval()


@pytest.mark.fault("B57")
def test_heads_planted_in_the_weights_of_a_bert_are_found_by_a_scan(tmp_path):
    model = interp.load_model(positional_bert(), bert_tokenizer())
    scan = interp.scan_heads(model, rows=6)
    frame = scan.to_frame()
    assert frame["label"].tolist() == ["next token", "previous token", "sink", "current token"]
    assert frame["sink_at"].tolist() == ["", "", "[SEP] at 31", ""]
    assert frame["induction"].isna().all()
    assert frame["next_token"].tolist() == pytest.approx([1, 0, 0, 0], abs=0.01)
    assert scan.heads("next token") == [interp.Head(0, 0)]
    assert scan.made_by["direction"] == "both ways"
    first = scan.made_by["probes"][0]["tokens"][0].split()
    assert (first[0], first[-1], len(first)) == (str(CLS), str(SEP), 32)
    told = " ".join(line for line in report(scan, top=3) if isinstance(line, str))
    assert "induction: the model looks both ways" in told
    assert "sinks on [SEP] at 31 in 1 head" in told
    scan.save(tmp_path / "heads.json")
    again = interp.HeadScan.load(tmp_path / "heads.json")
    assert again.frame["sink_at"].tolist() == frame["sink_at"].tolist()
    assert again.heads("next token") == scan.heads("next token")


def test_what_needs_a_causal_model_says_so():
    model = interp.load_model(encoder())
    message = "must be causal, got BertForMaskedLM, which looks both ways"
    with pytest.raises(interp.InputError, match=message):
        interp.verify(model, interp.scan_heads(model, rows=2, quick=True))
    with pytest.raises(interp.InputError, match="definitions must be of causal heads"):
        interp.scan_heads(model, definitions=["stripe"])
    own = encoder()
    bridge = build_bridge_from_module(own, "BertForMaskedLM", hf_config=own.config, model_name="b")
    with pytest.raises(interp.InputError, match="model must be causal where it comes as a bridge"):
        interp.load_model(bridge)


@pytest.mark.fault("B16")
def test_what_memory_has_no_room_for_is_refused_before_an_encoder_is_run(monkeypatch):
    model = interp.load_model(encoder())
    ids = [[CLS, *range(10, 40), SEP]] * 50
    monkeypatch.setattr(model.inner, "forward", lambda *_, **__: pytest.fail("it was run"))
    room = 3 * 4 * 2 * 50 * 4 * 32**2
    monkeypatch.setattr(memory, "available", lambda: room - 1)
    with pytest.raises(interp.InputError, match="patterns must fit in memory, got 0"):
        interp.attention_patterns(model, ids)
    with pytest.raises(interp.InputError, match="patterns must fit in memory, got 0"):
        hooks.run(model, torch.tensor(ids), lambda *_: None)
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available", lambda: room)
    assert interp.attention_patterns(model, ids).shape == (2, 50, 4, 32, 32)


@pytest.mark.fault("B113")
def test_the_nearest_special_token_of_joined_texts_is_a_sink_found_by_its_id():
    cuts, size = [0, 20, 40], 60
    tokens = torch.arange(100, 100 + size)
    tokens[cuts] = 1
    nearest = [max(cut for cut in cuts if cut <= query) for query in range(size)]
    pattern = torch.nn.functional.one_hot(torch.tensor(nearest), size).float()
    head = interp.classify_heads(pattern[None], tokens, special=[1])[0]
    assert (head.label, head.scores["sink"]) == ("sink", pytest.approx(1))
    assert head.sinks == {40: 1}  # The only one that queries attend to up to the end.
    assert interp.classify_heads(pattern[None], tokens)[0].sinks == {40: 1}


@pytest.mark.fault("B05")
def test_without_bos_the_report_says_that_the_first_position_is_an_ordinary_token():
    model = interp.load_model(tiny("qwen2", bos_token_id=None))
    scan = interp.scan_heads(model, rows=2, quick=True)
    assert scan.made_by["bos"] is None
    told = " ".join(line for line in report(scan, top=3) if isinstance(line, str))
    assert "no BOS: each row starts with an ordinary token" in told
    ids = torch.arange(5, 45)
    found = interp.attention_patterns(model, ids)
    resting = torch.zeros_like(torch.as_tensor(found))
    resting[..., 0] = 1
    planted = resting.as_subclass(AttentionPatterns)
    planted.__dict__.update(vars(found))
    head = interp.classify_heads(planted)[0]
    assert (head.label, head.sink_at) == ("sink", "an ordinary token at 0")


def test_a_decoder_whose_settings_open_it_both_ways_is_read_so():
    loaded = tiny("llama", is_causal=False)
    loaded.set_attn_implementation("eager")
    ids = torch.tensor([[5, 6, 7, 8, 9, 5]])
    own = torch.stack(loaded.eval()(ids, output_attentions=True).attentions)
    assert own.triu(1).any()
    model = interp.load_model(loaded)
    assert model.direction == "both ways"
    assert torch.allclose(interp.attention_patterns(model, ids), own, atol=1e-6)
    assert "next_token" in interp.scan_heads(model, rows=2, length=24).frame
