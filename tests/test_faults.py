"""Each fault that users of other tools met has a line here, and the tests that rule it out."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CASES = TESTS.parent.parent / "shared" / "cases" / "faults.md"
ROW = re.compile(r"^\| (B\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows():
    return ROW.findall((TESTS / "FAULTS.md").read_text(encoding="utf-8"))


@cache
def functions_in(name):
    tree = ast.parse((TESTS / name).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_line_of_the_table_is_read():
    lines = (TESTS / "FAULTS.md").read_text(encoding="utf-8").splitlines()
    assert len(rows()) == sum(line.startswith("| B") for line in lines)
    numbers = [int(case[1:]) for case, _, _ in rows()]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(("case", "fault", "proof"), rows())
def test_what_is_said_to_rule_a_fault_out_is_there(case, fault, proof):
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", proof)
    assert named or len(proof.split()) > 5, f"{case} has neither a test nor a reason: {fault}"
    assert not {name for file, name in named if name not in functions_in(file)}


def test_no_case_is_missing():
    if not CASES.exists():
        pytest.skip("the list of cases is not beside this checkout")
    listed = re.findall(r"^### (B\d+)", CASES.read_text(encoding="utf-8"), re.MULTILINE)
    assert [case for case, _, _ in rows()] == listed
