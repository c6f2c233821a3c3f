import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import InputError
from interp.kinds.kind import Kind
from interp.kinds.meaning import OF_MEANING, lists, passages
from interp.kinds.names import OF_NAMES, prompts
from interp.kinds.targets import NONE, latest
from interp.kinds.vocabulary import (
    SEVERAL,
    bracket_partner,
    class_of,
    digits,
    is_punctuation,
    last_delimiter,
    last_punctuation,
    ngram_induction,
    offset,
    quotation_partner,
    recent,
    same_class,
    start_of_sentence,
    start_of_word,
    word_form,
)

KINDS_OF = {kind.name: kind.rule for kind in OF_NAMES}
MEANING = {kind.name: kind for kind in OF_MEANING}

RULES = {
    "offset 2": offset(2),
    "offset 5": offset(5),
    **{
        rule.__name__: rule
        for rule in (
            *(ngram_induction, last_punctuation, last_delimiter, start_of_sentence, start_of_word),
            *(recent, same_class, digits, bracket_partner, quotation_partner),
        )
    },
}
PIECES = [
    " a",
    " word",
    "ing",
    "ly",
    ".",
    ",",
    "\n",
    " 1",
    "2",
    "(",
    ")",
    ' "',
    '"',
    "<0xF0>",
    "  ",
]
every_rule = pytest.mark.parametrize("name", RULES)


def called(rule, tokens, texts):
    return Kind("tried", rule)(tokens, texts)


def answers(name, rows, left=0, right=0):
    """The keys of each query of each row of pieces, sorted, with padding around the rows."""
    width = max(map(len, rows))
    body = torch.tensor([row + [NONE] * (width - len(row)) for row in rows])
    tokens = torch.nn.functional.pad(body, (left, right), value=NONE)
    texts = [["" if token == NONE else PIECES[token] for token in row] for row in tokens.tolist()]
    keys = called(RULES[name], tokens, texts)
    return [
        [sorted(k - left for k in query if k != NONE) for query in row[left : left + len(ids)]]
        for row, ids in zip(keys.tolist(), rows, strict=True)
    ]


def keys_of(rule, texts):
    """The keys of each query of one row of texts; equal texts have equal ids."""
    ids = [*dict.fromkeys(texts)]
    keys = called(rule, torch.tensor([[*map(ids.index, texts)]]), [texts])[0].tolist()
    return [[k for k in query if k != NONE] for query in keys]


row_of_pieces = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=40)


@every_rule
@settings(deadline=None, derandomize=True, max_examples=30)
@given(row=row_of_pieces, other=row_of_pieces, left=st.integers(0, 3), cut=st.integers(1, 40))
def test_targets_depend_on_the_earlier_tokens_of_the_row_alone(name, row, other, left, cut):
    (alone,) = answers(name, [row])
    assert answers(name, [row[:cut]])[0] == alone[:cut]
    assert answers(name, [other, row], left=left, right=1)[1] == alone


@every_rule
@settings(deadline=None, derandomize=True, max_examples=30)
@given(row=row_of_pieces)
def test_targets_are_before_their_query_and_neither_a_neighbour_nor_first(name, row):
    for query, keys in enumerate(answers(name, [row])[0]):
        assert all(0 < key <= query - 2 for key in keys)
        assert len(set(keys)) == len(keys) <= max(1, (query + 1) // 10) or name == "ngram_induction"


@settings(deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 3))
def test_the_latest_flags_are_the_nearest_first(flags, most, back):
    found = latest(torch.tensor([flags]), most, back=back)[0].tolist()
    for query, keys in enumerate(found):
        flagged = [at for at in range(query - back + 1) if flags[at]][::-1][:most]
        assert keys == flagged + [NONE] * (most - len(flagged))


def test_a_fixed_distance_is_two_or_more():
    assert keys_of(offset(3), ["A", *"bcdef"]) == [[], [], [], [], [1], [2]]
    with pytest.raises(InputError, match="distance must be at least 2, got 1"):
        offset(1)


def test_the_recent_tokens_are_right_before_the_window():
    found = keys_of(recent, [str(number) for number in range(300)])
    assert found[16:21] == [[8], [9], [10], [11, 10], [12, 11]]
    assert found[299] == [*range(291, 267, -1)]
    assert recent(torch.arange(20)[None], width=2)[0, 19, :3].tolist() == [17, 16, NONE]


def test_two_tokens_must_match_where_one_also_matches_elsewhere():
    def matched(text):
        return keys_of(ngram_induction, text.split())

    assert matched("_ a b c d b e a b f")[8] == [3]
    # Where plain induction would look at the same place only, the two kinds are the same.
    assert matched("_ a b c d e a b f")[7] == []
    assert matched("_ a b c a b d b e a b")[10] == []
    # A pair that the first token opens is no match.
    assert matched("a b c d b e a b f")[7] == []


def test_marks_and_line_ends_are_found_by_their_texts():
    texts = ["<s>", ",", ").", " y", "z", " z", "\n", "w", "v", "\t", "u", "t"]
    assert keys_of(last_punctuation, texts)[4:6] == [[2], [2]]
    assert keys_of(last_delimiter, texts)[8] == [6]
    assert keys_of(last_delimiter, texts)[11] == [9]
    # A mark right before the query is the previous token; an older one is not the last.
    assert keys_of(last_punctuation, texts)[3] == []
    assert not is_punctuation("<|end|>")


def test_a_sentence_starts_after_a_full_stop_and_a_blank_or_on_a_new_line():
    texts = ["<s>", " A", ".", "5", " b", ".", '"', " C", " d", " e", "\n", "f", " g", " h", " i"]
    found = keys_of(start_of_sentence, texts)
    assert found[3:5] == [[], []]
    assert found[9] == [7]
    assert found[11:] == [[], [], [11], [11]]


def test_a_word_starts_after_a_blank_or_a_mark():
    texts = ["<s>", " un", "believ", "able", ",", "<0xF0>", "<0x9F>", "<0x98>", " x", "y"]
    assert keys_of(start_of_word, texts) == [[], [], [], [1], [], [], [], [5], [], []]


def test_classes_of_texts():
    names = [" The", "of", " dog", "3.14", "1st", "...", ").\n", "\n\n", "  ", "<0xF0>"]
    assert [*map(class_of, names)] == [3, 3, 4, 2, 4, 1, 0, 0, NONE, 4]


def test_the_same_class_is_the_nearest_few_of_it_two_back():
    texts = ["<s>", *[" the", " cat", ",", " 7"] * 30]
    found = keys_of(same_class, texts)
    assert found[120] == [116 - 4 * back for back in range(SEVERAL)]
    assert found[44] == [40, 36, 32, 28]  # A tenth of 45.
    assert keys_of(digits, texts)[120] == found[120]
    assert keys_of(digits, texts)[119] == []


def test_brackets_and_quotation_marks_meet_their_partners():
    texts = [*["<s>", " f", "(", "[", "x", "]", ",", ' "', "a", ' "', ")"], "])"]
    assert keys_of(bracket_partner, texts)[5] == [3]
    assert keys_of(bracket_partner, texts)[10:] == [[2], []]
    # A straight mark after a blank opens; the nearest open one is closed.
    assert keys_of(quotation_partner, [*texts, "b", '"'])[9] == []
    assert keys_of(quotation_partner, [*texts, "b", '"'])[13] == [9]
    assert keys_of(quotation_partner, ["<s>", "«", "a", "b", "»"])[4] == [1]
    assert keys_of(bracket_partner, ["<s>", "((", "a", "b", "))"])[4] == [1]


@pytest.mark.parametrize("texts", [None, [["a", "b"]], [["a"] * 5]])
def test_texts_must_be_those_of_every_token(texts):
    with pytest.raises(InputError, match="texts must"):
        called(last_punctuation, torch.tensor([[1, 2, 3, NONE]]), texts)


def test_forms_of_a_word_are_other_tokens_of_the_same_beginning():
    texts = ["x", " rose", " is", " a", "Rose", " roses", ",", " rose"]
    found = keys_of(word_form, texts)
    assert [sorted(keys) for keys in found] == [
        [],
        [],
        [],
        [],
        [1],
        [],
        [],
        [4, 5],
    ]


def test_pairs_of_names_have_one_query_each_and_other_texts_none():
    text = [" Mary", " and", " John", " went", ";", " John", " gave", " it", " to"]
    row = ["<s>", *text]
    assert [k[0] if k else None for k in keys_of(KINDS_OF["name_mover"], row)][-1] == 1
    assert [k[0] if k else None for k in keys_of(KINDS_OF["s_inhibition"], row)][-1] == 6
    assert [k for k in keys_of(KINDS_OF["duplicate_name"], row) if k] == [[3]]
    assert not any(keys_of(KINDS_OF["name_mover"], ["<s>", *text[:4]]))
    assert {prompt.count(" John") for prompt in prompts(2)} == {2}


def pieces_of(text):
    return ["<s>", *re.findall(r" ?\w+|\W", text)]


def targets_in(kind, text):
    """The text of each target by that of the token before its query, in order."""
    texts = pieces_of(text)
    return [(texts[q - 1] + texts[q], texts[k[0]]) for q, k in enumerate(keys_of(kind, texts)) if k]


def test_a_list_of_partners_looks_at_the_word_that_is_due():
    text = "English: house, cat, dog, sun\nFrench: maison, chat, chien"
    assert targets_in(MEANING["concept_induction"].rule, text) == [
        ("French:", " house"),
        (" maison,", " cat"),
        (" chat,", " dog"),
    ]
    others = targets_in(MEANING["concept_induction"].null, text)
    assert [key for _, key in others] == [" cat", " house", " house"]
    assert not targets_in(MEANING["concept_induction"].rule, "English: house, cat. French: maison")


def test_an_answer_looks_at_the_fact_that_the_question_is_about():
    for text in passages(4):
        ((query, key),) = targets_in(MEANING["retrieval"].rule, text)
        ((_, other),) = targets_in(MEANING["retrieval"].null, text)
        asked = text.split("Where is the ")[1].split("?")[0]
        assert query == " in the"
        assert f"The {asked} is in the{key}." in text
        assert other != key
        assert f"is in the{other}." in text

    assert not targets_in(MEANING["retrieval"].rule, "The red stone is in the museum.")


def test_lists_have_no_fixed_distance_and_passages_ask_about_every_fact():
    assert len({text.split("\n")[0].count(",") for text in lists()}) == 4
    asked = {text.index(text.split("Where is the ")[1].split("?")[0]) > 200 for text in passages()}
    assert asked == {True, False}
