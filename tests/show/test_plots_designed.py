"""The figure of the heads designed by hand shows what their weights compute."""

import numpy as np
import pytest

from interp.course.designed import EXAMPLE, NAMES, patterns
from interp.errors import InputError
from interp.show.figures.designed import designed_heads


def test_each_head_is_drawn_where_it_looks_and_nothing_later_is():
    figure = designed_heads(EXAMPLE.words, patterns(), window=4)
    panels = {panel.get_title(): panel for panel in figure.axes if panel.get_title()}
    assert tuple(panels) == NAMES
    later = np.triu(np.ones((8, 8), dtype=bool), 1)
    looks = {}
    for name, panel in panels.items():
        drawn = np.ma.filled(np.ma.asarray(panel.images[0].get_array(), dtype=float), np.nan)
        assert (np.isnan(drawn) == later).all()
        looks[name] = np.nan_to_num(drawn)
        assert [label.get_text() for label in panel.get_xticklabels()] == list(EXAMPLE.words)
    assert looks["previous token"].argmax(1).tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    assert looks["noun to pronoun"][5].argmax() == 2
    assert (looks["sink"][:, 0] > 0.99).all()


def test_a_window_wider_than_the_sentence_is_refused():
    with pytest.raises(InputError, match="window must be from 1 to the number of words, 8, got 9"):
        patterns(window=9)
