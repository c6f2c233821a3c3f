"""Chat messages and other forms of prompts, the chat template's positions, and special tokens."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from tiny_models import CHAT, chat_model, tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import interp

ONE = [{"role": "user", "content": "w5 w6 w100 w7"}, {"role": "w100", "content": "w8 w9"}]
OTHER = [{"role": "user", "content": "w5"}]
CONTENT = [4, 5, 6, 7, 13, 14]
"""Positions of the content of `ONE`."""


@pytest.fixture(scope="module")
def model():
    return chat_model()


def byte_tokenizer():
    """One token a byte, and two special tokens, as GPT-2 writes them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, **{letter: 1 + i for i, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )


@pytest.fixture(scope="module")
def by_bytes():
    return interp.load_model(tiny("gpt2", vocab_size=257, bos_token_id=0), byte_tokenizer())


@pytest.mark.fault("C27")
@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        (ONE, [ONE]),
        ({"messages": ONE}, [ONE]),
        ([ONE, OTHER], [ONE, OTHER]),
        ([{"messages": ONE}, OTHER], [ONE, OTHER]),
        (pd.Series([ONE, OTHER]), [ONE, OTHER]),
    ],
)
def test_messages_run_as_the_chat_template_writes_them(model, inputs, rows):
    tokens = model.to_tokens(inputs)
    for row, messages in zip(tokens, rows, strict=True):
        ids = model.tokenizer.apply_chat_template(messages)["input_ids"]
        assert row[row != -1].tolist() == ids


@pytest.mark.fault("C27")
@pytest.mark.parametrize("part", [str, lambda text: [{"type": "text", "text": text}]])
def test_what_the_messages_do_not_say_is_the_templates(part):
    # The trimmed text and the role are the same word: only the place tells them apart.
    asked = "m.content if m.content is string else m.content[0].text"
    model = chat_model(CHAT.replace("m.content", f"({asked}) | trim"))
    messages = [{**one, "content": part(f" {one['content']}\n")} for one in ONE]
    patterns = interp.attention_patterns(model, [messages, OTHER])
    assert patterns.tokens.tolist() == model.to_tokens([ONE, OTHER]).tolist()
    assert patterns.template[0].logical_not().nonzero()[:, 0].tolist() == CONTENT
    assert patterns.template[1].tolist() == [True] * 4 + [False, True] + [False] * 10
    assert interp.attention_patterns(model, "w5 w6").template is None


@pytest.mark.fault("C27")
@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (None, ONE, "messages must be given to a tokenizer with a chat template"),
        (CHAT.replace("m.content", "m.content | upper"), ONE, "give the ids of apply_chat"),
        (CHAT.replace("m.content", "raise_exception('no')"), ONE, "reads, got .*: .*no"),
    ],
)
def test_messages_that_no_template_reads_as_they_are_are_refused(template, messages, message):
    with pytest.raises(interp.InputError, match=message):
        chat_model(template).to_tokens(messages)


@pytest.mark.fault("C27")
def test_the_template_is_no_part_of_scores_unless_it_is_chosen(model):
    def kinds(**options):
        return interp.score_prompts(model, [ONE], min_queries=1, **options)

    assert kinds().made_by["prompts"]["counted"] == [len(CONTENT)]
    # Its words repeat (w100, w101), also as w100 of the content: the text itself does not.
    assert not {"induction", "duplicate_token"} & {*kinds().frame["score"]}
    every = kinds(positions="all").frame
    assert {"induction", "duplicate_token"} <= {*every["score"]}
    assert set(every[every["score"] == "duplicate_token"]["queries"]) == {4}
    labels = interp.classify_heads(interp.attention_patterns(model, ONE))
    assert {head.not_measured.get("induction") for head in labels} == {
        "no token is repeated at the positions that count"
    }
    again = [{"role": "user", "content": "w5 w6 w7 w5 w6 w7"}]
    frame = interp.score_prompts(model, [again], min_queries=1).frame
    assert set(frame[frame["score"] == "induction"]["queries"]) == {3}


@pytest.mark.fault("C27")
@pytest.mark.parametrize(
    ("positions", "counted"),
    [
        (None, range(1, 12)),
        ("all", range(1, 12)),
        (slice(4, None), range(4, 12)),
        ([3, 4, 7], [3, 4, 7]),
        (np.array([3, 4, 7]), [3, 4, 7]),
        (range(6), range(1, 6)),
        ([[3, 4, 7]], [3, 4, 7]),
        ([i in (3, 4, 7) for i in range(12)], [3, 4, 7]),
    ],
)
def test_scores_are_means_over_the_chosen_positions(model, positions, counted):
    ids = [1, *range(20, 31)]
    patterns = interp.attention_patterns(model, ids)
    (queries,) = [torch.tensor([q for q in counted if q > 1])]
    wanted = patterns[:, 0, :, queries, queries - 1].as_subclass(torch.Tensor).mean(-1).flatten()
    own = torch.nn.functional.pad(patterns, (2, 0, 2, 0)).as_subclass(torch.Tensor)
    padded = [-1, -1, *ids]
    if isinstance(positions, list) and positions[0] is False:  # A mask may have padding too.
        assert interp.classify_heads(
            own, padded, special=model.special, positions=[[False] * 2 + positions]
        ) == interp.classify_heads(own, padded, special=model.special, positions=positions)
    for labels in (
        interp.classify_heads(patterns, positions=positions),
        interp.classify_heads(own, padded, special=model.special, positions=positions),
    ):
        found = [head.scores.get("previous_token") for head in labels]
        assert (
            (found == [None] * 8) if len(queries) < 4 else found == pytest.approx(wanted.tolist())
        )
    frame = interp.score_prompts(model, [ids], positions=positions, min_queries=1).frame
    rows = frame[frame["score"] == "previous_token"]
    assert rows["value"].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    assert set(rows["queries"]) == {len(queries)}


@pytest.mark.parametrize(
    "positions", [[12], [-1], 3, "some", [True], [[1], [2]], [1.5], [slice(3), slice(4)]]
)
def test_positions_that_are_none_are_refused(model, positions):
    for read in (
        lambda: interp.classify_heads(torch.eye(12)[None], range(12), positions=positions),
        lambda: interp.score_prompts(model, [[1, *range(20, 31)]], positions=positions),
    ):
        with pytest.raises(interp.InputError, match=r"^(prompt 0: )?positions must"):
            read()


@pytest.mark.fault("C27")
def test_tables_and_batches_are_prompts_like_lists(model):
    rows = [[1, 5, 6, 7, 5], [1, 8, 9]]
    tokenizer = model.tokenizer
    tokenizer.pad_token = "</s>"
    batch = tokenizer(["<s> w5 w6 w7 w5", "<s> w8 w9"], padding=True, return_tensors="np")
    square = np.array([[1, 5, 6, 7], [1, 8, 9, 5]])
    texts = pd.Series(["w5 w6 w7 w5", "w8 w9"])
    for given, ids in ((batch, rows), (texts, rows), (square, square.tolist())):
        tokens = model.to_tokens(given)
        assert [row[row != -1].tolist() for row in tokens] == ids
        scores = interp.score_prompts(model, given)
        assert scores.made_by["prompts"]["tokens"] == list(map(len, ids))
        alone = interp.score_prompts(model, ids)
        pd.testing.assert_frame_equal(scores.frame, alone.frame, check_exact=True)


@pytest.mark.fault("C32")
def test_the_name_of_a_special_token_can_be_plain_text(by_bytes):
    text = "a <|endoftext|> b"
    assert by_bytes.to_tokens(text)[0].tolist().count(0) == 2  # BOS, and the token of that name.
    patterns = interp.attention_patterns(by_bytes, text, special_as_text=True)
    assert patterns.tokens[0].tolist().count(0) == 1
    assert "".join(patterns.texts[0]) == f"<|endoftext|>{text}"
    scores = interp.score_prompts(by_bytes, [text], special_as_text=True)
    assert scores.made_by["prompts"]["tokens"] == [1 + len(text)]
    assert by_bytes.to_tokens(text)[0].tolist().count(0) == 2  # The tokenizer is as it was.
    with pytest.raises(interp.InputError, match=r"special_as_text must be False for chat"):
        chat_model().to_tokens(ONE, special_as_text=True)


@pytest.mark.fault("C33")
def test_bytes_of_a_character_are_named_by_their_numbers(by_bytes):
    texts = by_bytes.texts_of(by_bytes.to_tokens(" 🙂é", bos=False)[0])
    assert texts == [" ", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0xC3>", "<0xA9>"]
    assert interp.text.joined(texts) == " 🙂é"
    assert interp.text.with_bytes("ĠðŁ") == " <0xF0><0x9F>"
    assert interp.text.with_bytes(b"\xef\xbf\xbd") == "\ufffd"  # A character of its own.


@pytest.mark.real_model
@pytest.mark.fault("C27")
def test_the_template_of_the_real_model_gives_no_head_induction(real_model):
    says = ["Which planets orbit close to our star?", "Mercury and Venus move nearest."]
    says += ["Thanks! How hot can they get", "Several hundred degrees, depending upon daylight"]
    chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(says)]
    patterns = interp.attention_patterns(real_model, chat, layers=[17])
    texts, template = patterns.texts[0], patterns.template[0].tolist()
    content = "".join(text for text, added in zip(texts, template, strict=True) if not added)
    assert content == "".join(says)
    head = interp.classify_heads(patterns)[5]
    assert "induction" not in head.scores
    assert re.match("no token is repeated|not enough", head.not_measured["induction"])
    assert interp.classify_heads(patterns, positions="all")[5].scores["induction"] > 0.5
