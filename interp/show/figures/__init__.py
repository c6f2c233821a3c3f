"""The one door to matplotlib: from results to a `Figure`, and from a `Figure` to a file.

Figures are made without pyplot, so that no display is needed, and with settings of their
own, which the caller's do not reach. Every scale is fixed to [0, 1], so that any two figures
can be compared. Layers, heads and positions count from 0.
"""

from interp.show.about import zoo_heads
from interp.show.figures.arcs import attention_arcs
from interp.show.figures.circuits import circuit_diagram, circuit_patterns, comparison_figures
from interp.show.figures.curves import (
    accuracy_curve,
    cost_curves,
    distance_curves,
    sensitivity_chart,
)
from interp.show.figures.head import head_page
from interp.show.figures.layers import score_by_layer
from interp.show.figures.mosaic import score_mosaic
from interp.show.figures.patterns import pattern_page
from interp.show.figures.sink_experiment import sink_losses
from interp.show.figures.style import save_figure
from interp.show.figures.texts import legible
from interp.show.figures.training import phase_change
from interp.show.figures.zoo import head_zoo

__all__ = [
    "accuracy_curve",
    "attention_arcs",
    "circuit_diagram",
    "circuit_patterns",
    "comparison_figures",
    "cost_curves",
    "distance_curves",
    "head_page",
    "head_zoo",
    "legible",
    "pattern_page",
    "phase_change",
    "save_figure",
    "score_by_layer",
    "score_mosaic",
    "sensitivity_chart",
    "sink_losses",
    "zoo_heads",
]
