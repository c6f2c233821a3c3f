"""Scores of one layer in a single call."""

from typing import Any

from interp.kinds.scores import LayerScores, Thresholds, ask, score_layer


def scored(attention: Any, tokens: Any, *, thresholds: Thresholds, **asked: Any) -> LayerScores:
    return score_layer(attention, ask(tokens, thresholds=thresholds, **asked), thresholds)
