"""Encoder-decoders: three kinds of attention, apart by name."""

import math

import pytest
import torch
import transformers
from encoders import bert_tokenizer
from tiny_models import GROUPED, MIXED, SIZES, scaled, tiny

import interp
from interp import memory

CONFIGS = {
    "T5ForConditionalGeneration": lambda: transformers.T5Config(
        vocab_size=200,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    ),
    "BartForConditionalGeneration": lambda: transformers.BartConfig(
        vocab_size=200,
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
    ),
}
FSMT = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings"), 64),
}
IDS = torch.stack([torch.arange(10, 22), torch.arange(60, 48, -1)])
DECODED = torch.stack([torch.arange(100, 109), torch.arange(150, 141, -1)])
SHAPES = {"encoder": (2, 2, 4, 12, 12), "decoder": (3, 2, 4, 9, 9), "cross": (3, 2, 4, 9, 12)}


def random_model(name: str = "T5ForConditionalGeneration") -> transformers.PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, name)(CONFIGS[name]())
    # T5 is made with large weights, and no scale holds its scores small.
    return model.eval() if name.startswith("T5") else scaled(model)


def decoder_for(stack: str, rows: object = DECODED) -> dict[str, object]:
    return {} if stack == "encoder" else {"decoder_inputs": rows}


@pytest.fixture(scope="module")
def t5():
    return interp.load_model(random_model(), bert_tokenizer())


@pytest.mark.fault("B58")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_three_kinds_of_attention_are_the_models_own_by_name(name, tmp_path):
    own = random_model(name)
    own.save_pretrained(tmp_path)
    own.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = own(input_ids=IDS, decoder_input_ids=DECODED, output_attentions=True)
    for model in (interp.load_model(own), interp.load_model(tmp_path)):
        assert model.direction == "encoder-decoder"
        for stack, shape in SHAPES.items():
            found = interp.attention_patterns(model, IDS, stack=stack, **decoder_for(stack))
            expected = torch.stack(getattr(theirs, f"{stack}_attentions"))
            assert found.shape == shape
            assert (found - expected).abs().max() < 1e-6
            assert (found.stack, found.causal) == (stack, stack == "decoder")
            assert bool(found.triu(1).any()) == (stack != "decoder")
            assert torch.equal(found.tokens, IDS if stack == "encoder" else DECODED)
            last = interp.attention_patterns(
                model, IDS, [shape[0] - 1], stack=stack, **decoder_for(stack)
            )
            assert (last[0] - expected[-1]).abs().max() < 1e-6


@pytest.mark.fault("B58")
def test_a_decoder_that_looks_ahead_is_refused_and_one_that_does_only_for_its_cache_is_not(
    t5, monkeypatch
):
    config = transformers.FSMTConfig(
        src_vocab_size=200, tgt_vocab_size=200, langs=["en", "de"], d_model=32, **FSMT
    )
    own = scaled(transformers.FSMTForConditionalGeneration(config))
    own.set_attn_implementation("eager")
    with torch.no_grad():
        cached = own(input_ids=IDS, decoder_input_ids=DECODED, output_attentions=True)
    assert cached.decoder_attentions[0].triu(1).any()
    found = interp.attention_patterns(own, IDS, stack="decoder", decoder_inputs=DECODED)
    assert found.causal
    assert not found.triu(1).any()

    ahead = torch.full((2, 4, 9, 9), 1 / 9)
    returned = transformers.utils.ModelOutput(decoder_attentions=(ahead,) * 3)
    monkeypatch.setattr(t5.inner, "forward", lambda **_: returned)
    with pytest.raises(interp.InputError, match=r"must be causal, got .* looks ahead in layer 0"):
        interp.attention_patterns(t5, IDS, stack="decoder", decoder_inputs=DECODED)


@pytest.mark.fault("B58")
def test_relative_positions_beyond_the_exact_ones_are_right(t5):
    """A second opinion on the first encoder layer: T5's formula, for 40 tokens."""
    ids = torch.arange(10, 50)
    block = t5.inner.encoder.block[0].layer[0]
    attention = block.SelfAttention
    with torch.no_grad():
        x = block.layer_norm(t5.inner.shared.weight[ids])
        q, k = (part(x).view(40, 4, 8) for part in (attention.q, attention.k))
        scores = torch.einsum("qhd,khd->hqk", q, k)
        for query in range(40):
            for key in range(40):
                away = abs(key - query)
                bucket = away
                if away >= 8:  # Of 16 for each side; the last reaches from 128 on.
                    bucket = min(15, 8 + int(math.log(away / 8) / math.log(128 / 8) * 8))
                bucket += 16 * (key > query)
                scores[:, query, key] += attention.relative_attention_bias.weight[bucket]
    found = interp.attention_patterns(t5, ids, stack="encoder")
    assert (found[0, 0] - scores.softmax(-1)).abs().max() < 1e-4
    assert scores.softmax(-1).max() > 0.5


def test_rows_of_a_padded_batch_are_as_if_run_alone(t5):
    rows, decoded = [IDS[0].tolist(), IDS[1, :7].tolist()], [[5, 6, 7, 8], [9, 9, 3, 4, 5]]
    for stack in SHAPES:
        given = decoder_for(stack, decoded)
        together = interp.attention_patterns(t5, rows, stack=stack, **given)
        for index, row in enumerate(rows):
            one = decoder_for(stack, decoded[index])
            alone = interp.attention_patterns(t5, row, stack=stack, **one)[:, 0]
            queries, keys = alone.shape[-2:]
            assert (together[:, index, :, :queries, :keys] - alone).abs().max() < 1e-5
            assert not together[:, index, :, queries:].any()
            assert not together[:, index, ..., keys:].any()


def test_texts_are_opened_as_each_stack_wants_them(t5):
    found = interp.attention_patterns(t5, "w4 w5 w6", stack="cross", decoder_inputs="w7 w8")
    assert found.key_texts == [["[CLS]", "w4", "w5", "w6", "[SEP]"]]
    assert found.texts == [["[PAD]", "w7", "w8"]]
    assert found.key_tokens.shape == (1, 5)


def test_stacks_are_asked_for_by_name(t5):
    with pytest.raises(interp.InputError, match="stack must be None"):
        interp.attention_patterns(tiny("gpt2"), IDS, stack="decoder")
    for options in (
        {},
        {"stack": "self"},
        {"stack": "cross"},
        {"stack": "encoder", "decoder_inputs": DECODED},
    ):
        with pytest.raises(interp.InputError, match="stack must be"):
            interp.attention_patterns(t5, IDS, **options)
    with pytest.raises(interp.InputError, match="decoder_inputs must"):
        interp.attention_patterns(t5, IDS, stack="decoder", decoder_inputs=DECODED[0])
    with pytest.raises(interp.InputError, match="layers must be"):
        interp.attention_patterns(t5, IDS, [2], stack="encoder")


@pytest.mark.fault("B16")
def test_every_stack_counts_where_memory_is_estimated(t5, monkeypatch):
    """All are returned, whichever is asked for: 2 encoder layers, 3 decoder layers, 3 of both."""
    both = 3 * 4 * 2 * 4 * (2 * 12**2 + 3 * 9**2 + 3 * 9 * 12)
    for stack in ("decoder", "cross"):
        monkeypatch.setattr(memory, "available", lambda: both - 1)
        with pytest.raises(interp.InputError, match="patterns must fit in memory"):
            interp.attention_patterns(t5, IDS, [0], stack=stack, **decoder_for(stack))
        monkeypatch.setattr(memory, "available", lambda: both)
        interp.attention_patterns(t5, IDS, [0], stack=stack, **decoder_for(stack))


@pytest.mark.fault("B58")
def test_cross_attention_is_never_scored(t5):
    square = interp.attention_patterns(t5, IDS[:, :9], stack="cross", decoder_inputs=DECODED)
    assert square.shape[-2] == square.shape[-1]
    for patterns in (
        square,
        interp.attention_patterns(t5, IDS, **decoder_for("cross"), stack="cross"),
    ):
        with pytest.raises(
            interp.InputError, match="must be a text's attention to itself, got cross"
        ):
            interp.classify_heads(patterns)


def test_each_stacks_own_attention_is_judged_by_its_direction(t5):
    ids = torch.cat([torch.arange(10, 30), torch.arange(10, 30)])
    encoder = interp.classify_heads(interp.attention_patterns(t5, ids, stack="encoder"))
    decoder = interp.classify_heads(
        interp.attention_patterns(t5, ids, stack="decoder", decoder_inputs=ids)
    )
    assert {head.not_measured.get("induction") for head in encoder} == {"the model looks both ways"}
    assert all("next_token" in head.scores for head in encoder)
    assert all("induction" in head.scores and "next_token" not in head.scores for head in decoder)


def test_a_scan_wants_one_stack_and_takes_an_encoder_alone(tmp_path):
    own = random_model()
    with pytest.raises(interp.InputError, match="an encoder-decoder: give its encoder alone"):
        interp.scan_heads(own)
    own.save_pretrained(tmp_path)
    alone = transformers.T5EncoderModel.from_pretrained(tmp_path)
    scan = interp.scan_heads(alone, rows=2, quick=True)
    assert len(scan.frame) == 8
    assert scan.made_by["direction"] == "both ways"


@pytest.mark.parametrize(("stack", "window"), [("encoder", 5), ("decoder", 4)])
def test_each_stack_has_windows_of_its_own(stack, window):
    own = {**SIZES, **GROUPED, "sliding_window": 4, "layer_types": MIXED}
    config = transformers.T5GemmaConfig(encoder=own, decoder=own, vocab_size=200)
    inner = scaled(transformers.T5GemmaForConditionalGeneration(config))
    read = {} if stack == "encoder" else {"decoder_inputs": list(range(5, 25))}
    found = interp.attention_patterns(inner, list(range(5, 25)), stack=stack, **read)
    assert found.windows == (window, None)
    reach = (found[0] > 0).any(0).any(0)
    assert torch.equal(reach[10, :11].flip(0), torch.arange(11) < window)
    assert [v.window for v in interp.classify_heads(found)[::4]] == [window, None]


@pytest.mark.fault("C12")
def test_each_stack_of_an_encoder_decoder_is_read_with_its_own_settings():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    first = transformers.BertConfig(
        vocab_size=200, num_hidden_layers=2, num_attention_heads=4, **sizes
    )
    second = transformers.BertConfig(
        vocab_size=100, num_hidden_layers=3, num_attention_heads=2, is_decoder=True, **sizes
    )
    second.add_cross_attention = True
    own = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(first), decoder=transformers.BertLMHeadModel(second)
    ).eval()
    model, ids = interp.load_model(own), [1, 150, 6]
    assert (model.n_layers, model.n_heads) == (2, 4)
    found = interp.attention_patterns(model, ids, stack="encoder")
    assert torch.equal(found, interp.attention_patterns(own.encoder, ids))
    for stack, keys in (("decoder", 2), ("cross", 3)):
        across = interp.attention_patterns(model, ids, stack=stack, decoder_inputs=[1, 50])
        assert across.shape == (3, 1, 2, 2, keys)
    with pytest.raises(interp.InputError, match="from 0 to 99, got 150"):
        interp.attention_patterns(model, ids, stack="decoder", decoder_inputs=[1, 150])


@pytest.mark.fault("C11", "C35")
def test_layers_that_return_more_or_other_attention_than_the_settings_say_are_refused():
    sizes = {"vocab_size": 200, "hidden_size": 32, "num_attention_heads": 4, "embedding_size": 16}
    config = transformers.AlbertConfig(
        **sizes, intermediate_size=64, num_hidden_layers=2, inner_group_num=2
    )
    with pytest.raises(interp.InputError, match="from each of 2 layers, got"):
        interp.attention_patterns(transformers.AlbertForMaskedLM(config), [1, 5, 6])
    config.inner_group_num = 1
    read = interp.attention_patterns(transformers.AlbertForMaskedLM(config), [1, 5, 6])
    assert read.shape == (2, 1, 4, 3, 3)


@pytest.mark.fault("C35")
@pytest.mark.parametrize(
    "change",
    [torch.stack, lambda found: [each.mean(1) for each in found], lambda found: [found[0][:, :2]]],
)
def test_attention_of_an_encoder_that_is_not_of_every_head_is_refused(change):
    class Changed(transformers.BertForMaskedLM):
        def forward(self, *args, **options):
            output = super().forward(*args, **options)
            if output.attentions is not None:
                output.attentions = change(output.attentions)
            return output

    own = Changed(tiny("bert").config)
    with pytest.raises(interp.InputError, match=r"\(1, 4, 3, 3\) from each of 2 layers, got"):
        interp.attention_patterns(own, [1, 5, 6])
