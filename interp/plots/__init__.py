"""The one door to matplotlib: from results to a `Figure`, and from a `Figure` to a file.

Figures are made without pyplot, so that no display is needed, and with settings of their
own, which the caller's do not reach. Every scale is fixed to [0, 1], so that any two figures
can be compared. Layers, heads and positions count from 0.
"""

from interp.plots.arcs import attention_arcs
from interp.plots.circuits import circuit_diagram, circuit_patterns, comparison_figures
from interp.plots.curves import accuracy_curve, cost_curves, distance_curves, sensitivity_chart
from interp.plots.head import head_page
from interp.plots.layers import score_by_layer
from interp.plots.mosaic import score_mosaic
from interp.plots.patterns import pattern_page
from interp.plots.sink_experiment import sink_losses
from interp.plots.style import save_figure
from interp.plots.texts import legible
from interp.plots.training import phase_change
from interp.plots.zoo import head_zoo, zoo_heads

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
