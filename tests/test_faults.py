"""Every fault in FAULTS.md has a test that is marked with its number, or a reason why not."""

import ast
import re

import pytest
from places import ROOT, TESTS

CASES = {"faults.md": r"^### (B\d+)", "faults2.md": r"^\| (C\d+) \|"}
ROWS = re.findall(
    r"^\| ([BC]\d+) \| ([^|]+) \| ([^|]*) \|$",
    (TESTS / "FAULTS.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def marked() -> set[str]:
    """The numbers in `@pytest.mark.fault(...)` over all tests."""
    return {
        case.value
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"
        for case in node.args
        if isinstance(case, ast.Constant)
    }


def test_every_fault_has_a_test_or_a_reason():
    cases = [case for case, _, _ in ROWS]
    assert cases == sorted(set(cases), key=lambda case: (case[0], int(case[1:])))
    untested = {case for case, _, note in ROWS if not note.strip()} - marked()
    assert untested == set()
    assert marked() <= set(cases)


@pytest.mark.parametrize("name", CASES)
def test_no_case_is_missing(name):
    path = ROOT.parent / "shared" / "cases" / name
    if not path.exists():
        pytest.skip("the list of cases is not next to this checkout")
    listed = re.findall(CASES[name], path.read_text(encoding="utf-8"), re.MULTILINE)
    assert [case for case, _, _ in ROWS if case[0] == listed[0][0]] == listed
