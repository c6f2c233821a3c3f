"""The exam: its truth, its measures, and that a poor method gets a poor grade."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from interp.show.figures import exam_scores
from interp.trust import exam
from interp.trust.exam import METHODS, Draft, ranked


def draft(**settings):
    return Draft("rotary", vocabulary=20, **settings)


DRAFTS = {
    "noise": lambda: draft().noise(0.1),
    "broken": lambda: draft().again(match=False),
    "shared": lambda: draft(kv_heads=2),
}


@pytest.fixture(scope="module")
def questions():
    return {name: made().question(name, "built") for name, made in DRAFTS.items()}


@pytest.fixture(scope="module")
def table(questions):
    return exam.exam([questions["noise"], questions["broken"]])


@pytest.mark.parametrize("name", ["noise", "shared"])
def test_true_edges_are_those_that_matter_by_exact_patching(questions, name):
    known = questions[name]
    some = {part: getattr(known, part)[:2] for part in ("clean", "corrupted", "right", "wrong")}
    assert replace(known, truth=None, **some).is_true.equal(known.is_true)


def test_methods_get_the_grade_that_they_deserve(table):
    auroc = table.pivot(index="method", columns="model", values="auroc")
    assert set(auroc.index) == set(METHODS)
    assert (auroc.loc["chance"] == 0.5).all()
    assert auroc.loc["find_circuit"].min() > 0.95
    assert auroc.loc["one gradient", "noise"] < 0.9
    chance = table[table["method"] == "chance"]
    assert (chance["average_precision"] == chance["true"] / chance["number"]).all()


def test_ranks_equal_those_by_pairs():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(5, (40,), generator=generator) * torch.tensor([1.0, -1.0]).repeat(20)
    is_true = torch.rand(40, generator=generator) < 0.3
    true, other = scores.abs()[is_true][:, None], scores.abs()[~is_true]
    by_pair = (true > other).double().mean() + (true == other).double().mean() / 2
    assert ranked(scores, is_true)[0] == pytest.approx(float(by_pair))


def test_a_method_that_does_not_take_a_model_has_no_grade(questions):
    methods = {"none": lambda question: torch.full((len(question.edges),), torch.nan)}
    assert exam.exam([questions["noise"]], methods)["auroc"].isna().all()


def test_the_figure_has_a_dot_for_each_model_and_the_median(table):
    figure = exam_scores(table)
    left = figure.axes[0]
    assert [len(dots.get_offsets()) for dots in left.collections] == [2] * len(METHODS)
    medians = table.groupby("method")["auroc"].median()
    names = [label.get_text() for label in left.get_yticklabels()]
    assert [text.get_text() for text in left.texts] == [f"{medians[name]:.2f}" for name in names]
    assert np.all(np.diff([float(text.get_text()) for text in left.texts]) <= 0)
