import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import InputError
from interp.heads import Head

INDEX = st.integers(min_value=0, max_value=10**6)
HEADS = st.builds(Head, INDEX, INDEX)


@settings(deadline=None, derandomize=True)
@given(HEADS)
def test_a_printed_head_parses_to_itself(head: Head):
    assert Head.parse(str(head)) == head
    assert Head.parse(repr(head)) == head
    assert Head.parse(f"{head.layer}.{head.head}") == head
    assert Head.parse((head.layer, head.head)) == head


def test_layer_ten_sorts_after_layer_two():
    named = ["L10H0", "L2H11", "L2H3", "L0H9"]
    assert [str(h) for h in sorted(map(Head.parse, named))] == ["L0H9", "L2H3", "L2H11", "L10H0"]


def test_heads_are_counted_from_zero_and_layer_comes_first():
    head = Head.parse("L5H1")
    assert (head.layer, head.head) == head == (5, 1) != Head(1, 5)
    assert f"{Head(0, 0)}" == "L0H0"
    assert {head: "here"}[(5, 1)] == "here"


@pytest.mark.parametrize(
    "text", ["l5h1", " L5H1 ", "L5h1\n", "L05H1", "5.1", " 5.1", "(5, 1)", "(5,1) "]
)
def test_case_and_outer_blanks_do_not_matter(text: str):
    assert Head.parse(text) == Head(5, 1)


@pytest.mark.parametrize(
    "text",
    [
        *("", "L5", "H1", "5", "5.1.2", "L5H1x", "xL5H1", "L5 H1", "L-1H0", "-1.0", "L5.1", "5,1"),
        *("H1L5", "blocks.5.attn", "L5H1\nL5H2", f"L{'9' * 5000}H0"),
        *("L\u0665H\u0661", "L\u00b2H1"),  # Only ASCII digits.
        *((-1, 0), (0, -1), (True, 1), (1, False), (1, 2, 3), None),
    ],
)
def test_other_names_are_refused_and_shown(text):
    with pytest.raises(InputError, match="head must be named like") as refusal:
        Head.parse(text)
    assert repr(text)[:80] in str(refusal.value)


def test_a_pair_out_of_a_table_is_a_head():
    assert Head.parse(tuple(np.array([5, 1]))) == Head(5, 1)
