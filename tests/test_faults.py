"""Every fault in FAULTS.md has a test that is marked with its number, or a reason why not."""

import ast
import re

import pytest
from places import ROOT, TESTS

CASES = ROOT.parent / "shared" / "cases" / "faults.md"
ROWS = re.findall(
    r"^\| (B\d+) \| ([^|]+) \| ([^|]*) \|$",
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
    assert cases == sorted(set(cases), key=lambda case: int(case[1:]))
    untested = {case for case, _, note in ROWS if not note.strip()} - marked()
    assert untested == set()
    assert marked() <= set(cases)


def test_no_case_is_missing():
    if not CASES.exists():
        pytest.skip("the list of cases is not beside this checkout")
    listed = re.findall(r"^### (B\d+)", CASES.read_text(encoding="utf-8"), re.MULTILINE)
    assert [case for case, _, _ in ROWS] == listed
