import ast
import re

import numpy as np
import pytest
import torch
from places import ROOT

from interp.errors import Count, InputError, Seed, Whole, checked, quoted, reading, told


@checked
def probe(rows: Count = 16, *, offset: Whole = 0, seed: Seed = 0, bos: bool | None = None) -> tuple:
    return rows, offset, seed, bos


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_whole_number_of_any_library_becomes_pythons(value):
    rows, *_ = probe(value)
    assert rows == 3
    assert type(rows) is int


@pytest.mark.parametrize(
    "value", [2.0, np.float64(2), True, np.True_, "2", torch.tensor(2.0), np.array([1, 2])]
)
def test_other_values_are_refused_with_the_arguments_name(value):
    for name in ("rows", "offset", "seed"):
        with pytest.raises(InputError, match=f"^{name} must be a whole number, got "):
            probe(**{name: value})


def test_numbers_out_of_range_are_refused():
    assert probe(1, offset=-5, seed=2**63) == (1, -5, 2**63, None)
    for name, value in (("rows", 0), ("rows", -1), ("seed", -1), ("seed", 2**63 + 1)):
        with pytest.raises(InputError, match=f"^{name} must be .* {value}$"):
            probe(**{name: value})


def test_flags_are_bools_and_nothing_that_only_looks_true():
    assert [probe(bos=value)[3] for value in (True, False, None)] == [True, False, None]
    for value in (2, "maybe", np.array([True]), [1]):
        with pytest.raises(InputError, match=r"^bos must "):
            probe(bos=value)


def test_whatever_a_library_raises_about_a_file_becomes_one_line_with_its_name():
    for error in (ValueError("two\nlines \x1b[31m"), KeyError("bias"), InputError("a must be b")):
        with pytest.raises(InputError, match=r"file\.bin") as caught, reading("file.bin", "whole"):
            raise error
        assert str(caught.value).isprintable()
    with pytest.raises(KeyboardInterrupt), reading("file.bin"):
        raise KeyboardInterrupt


def test_values_and_library_messages_are_cut_to_one_short_line():
    assert quoted("x" * 999 + "\n") == "'" + "x" * 79
    assert quoted(10**5000).isprintable()
    assert told(AssertionError()) == "AssertionError"
    assert told(ValueError("two\nlines \x1b[31m")) == "ValueError: two lines \\x1b[31m"
    assert len(told(ValueError("x" * 9999))) < 220


def messages() -> list[tuple[str, str]]:
    """Place and text of every `raise InputError(...)`, with … for what is filled in."""
    found = []
    for path in (*(ROOT / "interp").rglob("*.py"), *(ROOT / "scripts").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("InputError"):
                text = re.sub(r"\{[^{}]*\}", "…", ast.unparse(call.args[0]))
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return found


REASONS = r"^interp/(weights/|patterns/tensor|effects/paths)"
"""Where a message is a reason, which a caller puts after what must be."""


def test_every_message_says_what_must_be():
    odd = [
        f"{place}: {text}"
        for place, text in messages()
        if re.search(r"[a-z]{3,} [a-z]{2,}", text)  # Others only pass a message on.
        and not re.search(r"\bmust\b|could not be|has no ", text)
        and not re.search(REASONS, place)
    ]
    assert odd == []
