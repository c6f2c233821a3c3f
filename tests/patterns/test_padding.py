"""Padding of either side, however it is told, changes nothing for the tokens."""

import numpy as np
import pytest
import torch
import transformers
from scored import scored
from tiny_models import GROUPED, SIZES, scaled, tiny, words_tokenizer

import interp
from interp.models.hooks import run
from interp.models.stream import stream

BOS, EOS = 1, 2
SHORT, LONG = [1, 5, 6, 2, 1], [1, 9, 8, 7, 6, 5, 4, 9, 8]
"""The short row holds BOS and EOS among its tokens, since padding often has one of their ids."""

POSITIONS = {"learned": "gpt2", "learned, from 2 on": "opt", "rotary": "llama", "ALiBi": "bloom"}


def padded(side: str, pad: int) -> list[list[int]]:
    fill = [pad] * (len(LONG) - len(SHORT))
    return [fill + SHORT if side == "left" else SHORT + fill, LONG]


def mask(side: str) -> list[list[int]]:
    return [[int(i >= 0) for i in row] for row in padded(side, -1)]


def encoding(side: str, pad: int) -> dict[str, torch.Tensor]:
    ids = torch.tensor(padded(side, pad))
    return {"input_ids": ids, "attention_mask": torch.tensor(mask(side))}


@pytest.mark.fault("B02")
@pytest.mark.parametrize("pad", [EOS, 0])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_padded_batch_gives_what_each_prompt_gives_alone(positions, side, pad):
    tokenizer = words_tokenizer()
    tokenizer.pad_token_id, tokenizer.padding_side = pad, side
    model = interp.load_model(tiny(POSITIONS[positions], pad_token_id=pad), tokenizer)
    both = interp.attention_patterns(model, encoding(side, pad))
    assert both.tokens.tolist() == [SHORT + [-1] * 4, LONG]
    for index, prompt in enumerate((SHORT, LONG)):
        n = len(prompt)
        alone = interp.attention_patterns(model, prompt)[:, 0]
        # The same sums over rows of other lengths.
        assert torch.allclose(both[:, index, :, :n, :n], alone, atol=1e-5)
        assert not both[:, index, :, n:].any()
        assert not both[:, index, :, :, n:].any()
    assert torch.equal(interp.attention_patterns(model, padded(side, -1)), both)


@pytest.mark.fault("B02")
def test_a_long_row_does_not_turn_the_queries_and_keys_of_a_short_one():
    """Beyond 6 tokens this model takes other angles, for all rows that are run together."""
    turned = {"rope_type": "longrope", "rope_theta": 10000.0}
    turned |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 10.0}
    config = transformers.Phi3Config(
        **SIZES,
        **GROUPED,
        rope_parameters=turned,
        original_max_position_embeddings=6,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    own = scaled(transformers.Phi3ForCausalLM(config))
    model = interp.load_model(own)
    both = interp.attention_patterns(model, [SHORT, LONG])
    own.set_attn_implementation("eager")
    for index, prompt in enumerate((SHORT, LONG)):
        n = len(prompt)
        with torch.no_grad():
            alone = own(torch.tensor([prompt]), output_attentions=True).attentions
        assert (both[:, index, :, :n, :n] - torch.stack(alone)[:, 0]).abs().max() < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [None, "pt", "np"])
def test_what_a_tokenizer_returns_is_taken_as_it_is(kind, side):
    tokenizer = words_tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, side
    model = interp.load_model(tiny("llama"), tokenizer)
    made = tokenizer(["w5 w6", "w7 w8 w9"], padding=True, return_tensors=kind)
    assert isinstance(made, transformers.BatchEncoding)
    assert model.to_tokens(made).tolist() == [[5, 6, -1], [7, 8, 9]]
    assert model.to_tokens(tokenizer("w5 w6")).tolist() == [[5, 6]]


ROWS = {
    "lists": [[-1, 5, 6], [7, 8, 9]],
    "a tuple of lists": ([5, 6, -1], [7, 8, 9]),
    "padding at both ends": [[-1, 5, 6, -1], [-1, 7, 8, 9]],
    "tensors": [torch.tensor([-1, 5, 6]), torch.tensor([7, 8, 9])],
    "an array": np.array([[-1, 5, 6], [7, 8, 9]], dtype=np.int16),
    "a boolean mask": {
        "input_ids": torch.tensor([[2, 5, 6], [7, 8, 9]]),
        "attention_mask": torch.tensor([[False, True, True], [True, True, True]]),
    },
    "the positions that they are run at": {
        "input_ids": torch.tensor([[2, 5, 6], [7, 8, 9]]),
        "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "position_ids": torch.tensor([[1, 0, 1], [0, 1, 2]]),
    },
    "positions for all rows": {
        "input_ids": [[5, 6, -1], [7, 8, 9]],
        "position_ids": torch.arange(3),
    },
    "rows without padding": {
        "input_ids": [[5, 6], [7, 8, 9]],
        "attention_mask": [[1, 1], [1, 1, 1]],
        "token_type_ids": [[0, 0], [0, 0, 0]],
    },
}


@pytest.mark.parametrize("rows", ROWS)
def test_every_way_to_write_the_rows_gives_the_same_tokens(rows):
    assert interp.load_model(tiny("gpt2")).to_tokens(ROWS[rows]).tolist() == [[5, 6, -1], [7, 8, 9]]


@pytest.mark.fault("B18")
def test_padding_does_not_count_towards_the_context():
    model = interp.load_model(tiny("gpt2"))
    row = [-1] * 10 + [5] * 64
    assert model.to_tokens(row).tolist() == [[5] * 64]
    with pytest.raises(interp.InputError, match="context of 64 tokens, got 65 in row 0"):
        model.to_tokens([-1, *[5] * 65])


@pytest.mark.fault("B02")
@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_of_a_padded_batch_are_those_of_the_prompts_alone(side):
    model = interp.load_model(tiny("llama"))
    prompt = [1, *range(5, 20), *range(5, 20)]
    fill = [EOS] * 9
    ids = fill + prompt if side == "left" else prompt + fill
    real = [0] * 9 + [1] * 31 if side == "left" else [1] * 31 + [0] * 9
    both = interp.attention_patterns(model, {"input_ids": ids, "attention_mask": real})
    alone = interp.attention_patterns(model, prompt)
    for ours, theirs in zip(interp.classify_heads(both), interp.classify_heads(alone), strict=True):
        assert ours.labels == theirs.labels
        assert ours.scores == pytest.approx(theirs.scores, abs=1e-5)


@pytest.mark.fault("B36")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_padding_is_never_scored_by_hooks_and_by_stream(family):
    """What pads a row is run as some id: whichever it is, the tokens' rows are the same."""
    model = interp.load_model(tiny(family))
    tokens = model.to_tokens(padded("left", -1))
    hooked, streamed = {}, {}
    run(model, tokens, lambda layer, pattern: hooked.update({layer: pattern}))
    stream(model, tokens, lambda layer, attention: streamed.update({layer: attention}))
    n = len(SHORT)
    queries = torch.arange(n).expand(2, n)
    for layer, attention in streamed.items():
        rows = attention.rows(queries)[0]
        assert torch.allclose(rows[..., :n], hooked[layer][0, :, :n, :n], atol=1e-5)
        assert not rows[..., n:].any()


@pytest.mark.fault("B91")
def test_statistics_of_a_padded_row_are_those_of_the_row_alone():
    """Entropy and distance are over the keys that a query may see, not over all that are there."""
    model = interp.load_model(tiny("llama"))
    prompt = [1, *range(5, 13), *range(5, 13)]
    ids = [[-1] * 30 + prompt, list(range(3, 50))]
    tokens = model.to_tokens(ids)
    assert tokens[0, len(prompt) :].eq(-1).all()
    for read in (run, stream):
        found = []
        for rows in (tokens[:1], model.to_tokens(prompt)):
            tallies = {}

            def score(layer, attention, tallies=tallies, rows=rows):
                tallies[layer] = scored(attention, rows, thresholds=interp.Thresholds()).tallies

            read(model, rows, score)
            found.append(tallies)
        for layer in (0, 1):
            for name in ("entropy", "mean_distance"):
                ours, theirs = (tallies[layer][name] for tallies in found)
                assert torch.allclose(ours.mean, theirs.mean, atol=1e-5)
                assert torch.equal(ours.queries, theirs.queries)


@pytest.mark.fault("B36")
def test_padding_is_run_as_no_token_that_is_in_no_row():
    inner = tiny("llama")
    with torch.no_grad():
        inner.model.embed_tokens.weight[0] = float("nan")
    model = interp.load_model(inner)
    ids = torch.tensor([[5, 6, -1, -1], [5, 6, 7, 8]])
    found = interp.attention_patterns(model, ids)
    assert torch.allclose(found[:, 0, :, :2, :2], found[:, 1, :, :2, :2], atol=1e-6)
    seen = []
    stream(model, ids, lambda layer, attention: seen.append(layer))
    assert seen == [0, 1]


@pytest.mark.parametrize(
    "inputs",
    [
        [[5, -1, 6]],
        {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 0, 1]]},
        {"input_ids": [[5, 6], [7, 8]], "attention_mask": [[1, 1], [0, 0]]},
        {"input_ids": [[5, 6, 7]], "attention_mask": [1, 1]},
        {"input_ids": [[5, 6]], "attention_mask": [[0.0, -1e9]]},
        {"input_ids": [[5, 6]], "token_type_ids": [[0, 1]]},
        {"input_ids": [[5, 6]], "position_ids": [[3, 4]]},
        {"input_ids": [[2, 5]], "attention_mask": [[0, 1]], "position_ids": torch.arange(2)},
        {"input_ids": [[1, 5]], "inputs_embeds": [[0.0]]},
    ],
)
def test_inputs_that_would_not_be_run_as_they_are_meant_are_refused(inputs):
    with pytest.raises(interp.InputError):
        interp.load_model(tiny("gpt2")).to_tokens(inputs)
