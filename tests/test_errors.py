import math
from inspect import unwrap

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError, is_number, truth, whole, whole_seed
from interp.kinds.probes import repeated
from interp.trust.accuracy import measure_accuracy


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_whole_number_of_any_library_becomes_pythons(value):
    assert type(whole("rows", value, least=1)) is int
    assert whole("rows", value, least=3, most=3) == 3


@pytest.mark.parametrize(
    "value", [2.0, np.float64(2), True, np.True_, "2", None, torch.tensor(2.0), np.array([1, 2])]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InputError, match=r"^rows must be a whole number, got .+$"):
        whole("rows", value)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"^rows must be at least 1, got 0$"):
        whole("rows", np.int64(0), least=1)
    for seed in (-1, 2**63 + 1):
        with pytest.raises(InputError, match=f"^seed must be from 0 to {2**63}, got {seed}$"):
            whole_seed(seed)
    assert whole_seed(2**63) == 2**63


def test_a_number_is_finite_and_no_bool():
    assert all(map(is_number, (0, -2.5, 10**300, np.float64(1))))
    assert not any(map(is_number, (True, None, "1", math.nan, math.inf, 10**400)))


CALLS = {
    name: (unwrap(function), arguments, names)
    for name, function, arguments, names in [
        ("scan_heads", interp.scan_heads, ["./none"], ["rows", "seed", "length", "bos"]),
        ("verify", interp.verify, ["./none", None], ["top", "draws", "rows", "length", "seed"]),
        ("measure_accuracy", measure_accuracy, [{}], ["heads", "seed"]),
        ("repeated", repeated, [torch.arange(50)], ["rows", "length", "seed"]),
    ]
}
"""Functions as users have them: under test their argument types are checked on the way in."""
NEEDED = {
    "measure_accuracy": {"heads": 336, "seed": 0},
    "repeated": {"rows": 2, "length": 20, "seed": 0, "bos": None},
}


@pytest.mark.parametrize("value", [2.5, 20.0, True])
@pytest.mark.parametrize("call", CALLS)
def test_each_function_that_takes_a_number_refuses_what_is_none_before_any_work(call, value):
    function, arguments, names = CALLS[call]
    for name in names:
        with pytest.raises(InputError, match=f"^{name} must be a whole number, got {value}$"):
            function(*arguments, **(NEEDED.get(call, {}) | {name: value}))


def test_a_truth_of_numpy_is_one_and_comes_back_as_pythons():
    assert truth("causal", np.True_) is True
    assert truth("causal", np.False_) is False
    for other in (1, "no", None, np.int64(1), np.array([True])):
        with pytest.raises(InputError, match="causal must be True or False, got"):
            truth("causal", other)
