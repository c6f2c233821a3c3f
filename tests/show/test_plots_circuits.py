"""Attention and its differences, side by side on scales that do not move."""

import numpy as np
import pytest

from interp.show.figures import circuit_patterns
from interp.show.figures.circuits import ROLES


def circuit(stripe):
    """Both heads spread evenly but for what goes to the first token."""
    pattern = np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]
    pattern = (1 - stripe) * pattern + stripe * np.eye(5)[[0] * 5]
    heads = dict.fromkeys(ROLES, "L0H0")
    return {"heads": heads, "patterns": dict.fromkeys(ROLES, pattern.tolist())}


@pytest.mark.fault("B92")
def test_differences_run_from_less_over_white_to_more_however_small_they_are():
    figure = circuit_patterns({"one": circuit(0.5), "alike": circuit(0.505), "other": circuit(1)})
    limits = [(image.get_cmap().name, *image.get_clim()) for a in figure.axes for image in a.images]
    assert limits.count(("Blues", 0, 1)) == 6
    assert limits.count(("PuOr_r", -1, 1)) == 4
    bars = {axes.get_xlabel(): axes.get_xlim() for axes in figure.axes if not axes.images}
    assert bars == {"attention from query to key": (0, 1), "difference from the first": (-1, 1)}
    small = next(a.images[0] for a in figure.axes if a.images and a.images[0].get_clim()[0] < 0)
    drawn = small.to_rgba(small.get_array())[1:, 0]
    assert abs(small.get_array()[1:, 0]).max() < 0.01
    assert drawn[:, :3].min() > 0.93
