import pytest
import torch
from jaxtyping import TypeCheckError
from typed import CALLS

from interp.kinds.targets import previous_token


def test_the_first_calls_in_a_file_of_tests_are_checked():
    row = torch.arange(4)
    for _ in range(CALLS):
        with pytest.raises(TypeCheckError, match="previous_token"):
            previous_token(row)
