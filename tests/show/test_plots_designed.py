"""The figure of the heads designed by hand shows what their weights compute."""

import subprocess
import sys

import numpy as np
import pytest
from places import SCRIPTS

from interp.course.designed import EXAMPLE, NAMES, patterns
from interp.errors import InputError
from interp.show.figures.designed import designed_heads

SCRIPT = SCRIPTS / "attention_numbers.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, check=False
    )


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


def test_the_script_draws_it_when_asked(tmp_path):
    done = run("--out", tmp_path, "--figure", tmp_path / "heads.png")
    assert done.returncode == 0, done.stdout + done.stderr
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["attention_numbers.json", "heads.png"]


def test_a_figure_of_another_kind_is_one_line_and_nothing_is_written(tmp_path):
    out = tmp_path / "out"
    done = run("--out", out, "--figure", "heads.gif")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "error: --figure must end in .png, .svg or .pdf, got 'heads.gif'"
    ]
    assert not out.exists()
