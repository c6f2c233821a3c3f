"""The accuracy on planted heads, and that a classifier with a fault fails the test."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from places import ROOT

from interp import HeadScan, InputError, Thresholds
from interp.heads import Head
from interp.kinds import builtin as kinds
from interp.kinds.builtin import LABELS
from interp.kinds.labels import HeadLabel
from interp.kinds.targets import duplicate_token
from interp.trust import accuracy
from interp.trust.accuracy import Accuracy, Judged
from interp.trust.planted import KINDS, NEAR_MISSES, ROLES, STRIPES

TABLE = ROOT / "figures" / "heads.csv"
THRESHOLDS = Thresholds()


@pytest.fixture(scope="module")
def strengths():
    return accuracy.real_strengths(HeadScan.load(TABLE).frame.to_dict("records"))


def judged(strengths, heads, seed=0):
    luck = torch.Generator().manual_seed(seed)
    planned = accuracy.plan(strengths, heads)
    return [
        head
        for start in range(0, heads, 20)
        for head in accuracy.judge(planned[start : start + 20], luck, THRESHOLDS)
    ]


@pytest.fixture(scope="module")
def some(strengths):
    return judged(strengths, 168)


def made_up(role, truth, stripe):
    """A head that scores `stripe` on induction and nothing else."""
    scores = dict.fromkeys(LABELS, 0.0) | {"induction": stripe}
    label = "induction" if stripe >= THRESHOLDS.induction else "mixed"
    verdict = HeadLabel(Head(0, 0), label, (label,), scores, dict.fromkeys(LABELS, 0.0))
    return Judged(role, stripe, truth, truth, verdict)


def test_real_strengths_are_those_of_the_labelled_heads(strengths):
    frame = HeadScan.load(TABLE).frame
    for kind, label in LABELS.items():
        assert len(strengths[kind]) == (frame["label"] == label).sum()
        assert min(strengths[kind]) >= getattr(THRESHOLDS, kind)
    assert max(strengths["induction"]) == pytest.approx(0.894, abs=0.001)


def test_a_table_without_heads_of_a_kind_is_refused():
    records = HeadScan.load(TABLE).frame.to_dict("records")
    with pytest.raises(InputError, match="one of every kind, got none labelled 'duplicate token'"):
        accuracy.real_strengths(head for head in records if head["label"] != "duplicate token")


def test_half_of_the_plan_are_kinds_and_every_role_comes_as_often(strengths):
    planned = accuracy.plan(strengths, 2 * len(KINDS) * len(NEAR_MISSES))
    roles = Counter(role for role, _ in planned)
    assert {roles[role] for role in KINDS} == {len(NEAR_MISSES)}
    assert {roles[role] for role in NEAR_MISSES} == {len(KINDS)}
    any_stripe = [strength for kind in STRIPES for strength in strengths[kind]]
    for role, strength in planned:
        like = ROLES[role].kind or ROLES[role].nearly
        assert strength in (strengths[like] if like else any_stripe)


def test_labels_are_right_at_the_strength_of_real_heads(some):
    wrong = [
        (h.role, h.strength, h.truth, h.verdict.label) for h in some if h.verdict.label != h.truth
    ]
    # 99 % in the long run: more than 4 wrong of 168 would then be one case in thirty.
    assert len(wrong) <= 4, wrong
    assert {head.truth for head in some} == {*LABELS.values(), "mixed"}


def test_no_near_miss_is_taken_for_what_it_nearly_is(some):
    records = accuracy.by_role(some, NEAR_MISSES)
    assert [record["role"] for record in records] == list(NEAR_MISSES)
    assert all(record["heads"] for record in records)
    assert sum(record.get("fooled", 0) for record in records) == 0


@pytest.mark.parametrize(
    "fault", ["induction looks at the copy", "no threshold", "a fifth too low"]
)
def test_a_classifier_with_a_fault_is_found_out(fault, strengths, monkeypatch):
    if fault == "induction looks at the copy":
        wrong = replace(kinds.KINDS["induction"], rule=duplicate_token)
        monkeypatch.setitem(kinds.KINDS, "induction", wrong)
    elif fault == "no threshold":
        monkeypatch.setattr("interp.kinds.labels.excess", lambda score, chance: 1.0)
    else:
        monkeypatch.setattr("interp.kinds.labels.excess", lambda score, chance: score * 0.8)
    wrong = [head for head in judged(strengths, 60) if head.verdict.label != head.truth]
    assert len(wrong) >= 3


def test_the_label_at_the_same_thresholds_is_the_label(some):
    assert all(head.label_at(THRESHOLDS) == head.verdict.label for head in some)
    everything = Thresholds(**dict.fromkeys(LABELS, 1.0))  # pyright: ignore[reportArgumentType]
    assert {head.label_at(everything) for head in some} == {"mixed"}


def test_every_head_is_counted_once(some):
    table = accuracy.confusion(some)
    assert sum(sum(row.values()) for row in table.values()) == len(some)
    right = sum(table[label][label] for label in table)
    assert right == sum(head.verdict.label == head.truth for head in some)
    assert set(table) == {*LABELS.values(), "mixed"} == set(table["mixed"])


def test_a_confusion_is_put_where_it_belongs():
    table = accuracy.confusion([made_up("induction", "induction", 0.3)])
    assert table["induction"]["mixed"] == 1
    assert table["mixed"]["induction"] == 0


def test_the_threshold_is_chosen_between_near_misses_and_heads():
    near = [made_up("two after the copy", "mixed", stripe) for stripe in (0.1, 0.25)]
    heads = [made_up("induction", "induction", stripe) for stripe in (0.335, 0.8)]
    found = accuracy.choose(near + heads, heads, THRESHOLDS)
    assert found["equally_good"] == [0.26, 0.33]
    assert 0.26 <= found["stripe_threshold"] <= 0.33
    assert (found["accuracy_where_chosen"], found["accuracy"]) == (1.0, 1.0)
    assert found["accuracy_shipped"] == 0.5


def test_the_curve_says_from_which_strength_on_a_label_is_sure():
    heads = [made_up("induction", "induction", stripe) for stripe in (0.2, 0.5, 0.6)]
    records = accuracy.curve([*heads, made_up("sink", "mixed", 0.2)])
    assert [record["strength"] for record in records] == [0.2, 0.5, 0.6]
    assert [record["labelled"] for record in records] == [0, 1, 1]
    assert records[0]["accuracy"] == 0.5
    assert records[0]["labelled_by_kind"] == {"induction": 0, "sink": 0}
    assert accuracy.sure_from(heads)["induction"] == 0.5
    assert accuracy.sure_from(heads[:1])["induction"] is None


def test_the_same_luck_gives_the_same_heads_and_other_luck_does_not(strengths):
    one, two, other = (judged(strengths, 20, seed) for seed in (0, 0, 1))
    assert one == two
    assert [head.verdict.scores for head in one] != [head.verdict.scores for head in other]


def test_the_result_survives_its_file_and_is_a_table(tmp_path, some):
    with pytest.raises(InputError, match=r"^heads must"):
        accuracy.measure_accuracy({}, heads=accuracy.FEWEST - 1, seed=0)
    sizes = {"report": len(some)}
    table = accuracy.confusion(some)
    result = Accuracy({"accuracy": 0.99, "interval": [0.9, 1], "confusion": table, "sizes": sizes})
    result.save(tmp_path / "accuracy.json")
    again = Accuracy.load(tmp_path / "accuracy.json")
    assert again.to_json() == result.to_json()
    assert again.to_frame().loc["mixed", "induction"] == table["mixed"]["induction"]
    assert "0.9900 [0.9000, 1.0000] of 168" in repr(again)
