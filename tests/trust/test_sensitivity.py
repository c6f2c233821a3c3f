import pandas as pd
import pytest

import interp
from interp.trust.sensitivity import compare_scans


def scan_of(previous: float, label: str) -> interp.HeadScan:
    verdicts = [
        interp.HeadLabel(
            interp.Head(0, 0),
            label,
            (label,),
            {"previous_token": previous, "sink": 0.9},
            {"previous_token": 0.01, "sink": 0.1},
        ),
        interp.HeadLabel(interp.Head(0, 1), "mixed", ("mixed",), {"sink": 0.1}, {"sink": 0.1}),
    ]
    return interp.HeadScan.of(verdicts)


def test_a_label_that_flips_is_named_with_its_conditions():
    table = compare_scans(
        {
            "usual": scan_of(0.5, "previous token"),
            "other": scan_of(0.3, "mixed"),
            "third": scan_of(0.7, "previous token"),
        }
    )
    (row,) = table.to_dict("records")
    assert (row["name"], row["kind"], row["flips"]) == ("L0H0", "previous_token", "other")
    assert [row[c] for c in ("usual", "other", "third")] == [0.5, 0.3, 0.7]
    assert (row["lowest"], row["highest"]) == (0.3, 0.7)
    assert row["spread"] == pytest.approx(0.2)


def test_a_label_that_holds_only_elsewhere_is_there_too():
    table = compare_scans({"usual": scan_of(0.3, "mixed"), "other": scan_of(0.5, "previous token")})
    assert table["flips"].tolist() == ["other"]


def test_what_cannot_be_compared_is_refused():
    one = scan_of(0.5, "previous token")
    with pytest.raises(interp.InputError, match="at least two conditions, got 1"):
        compare_scans({"usual": one})
    fewer = interp.HeadScan(one.frame.head(1), {})
    with pytest.raises(interp.InputError, match="the same heads"):
        compare_scans({"usual": one, "other": fewer})


def test_without_labels_the_table_is_empty_and_has_its_columns():
    table = compare_scans({"a": scan_of(0.1, "mixed"), "b": scan_of(0.1, "mixed")})
    assert isinstance(table, pd.DataFrame)
    assert table.empty
    assert list(table.columns)[:4] == ["name", "kind", "a", "b"]
