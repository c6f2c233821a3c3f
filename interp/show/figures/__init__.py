"""Figures of results, for print: functions that return a matplotlib `Figure`, and `save_figure`.

Figures need no display and ignore the caller's settings. Scores and weights are drawn on a scale
from 0 to 1, so that figures can be compared. Layers, heads and positions count from 0.

Every figure takes `title=`, `notes=`, `width=` and `context=` (see `Print`): `width=3.3,
context="paper"` fits a column of a paper, with the text at 7 to 9 points.
"""

from interp.printing import Print as Print
from interp.printing import printed as printed
from interp.show.about import zoo_heads as zoo_heads
from interp.show.figures.circuits import circuit_diagram as circuit_diagram
from interp.show.figures.circuits import circuit_patterns as circuit_patterns
from interp.show.figures.circuits import comparison_figures as comparison_figures
from interp.show.figures.circuits import phase_change as phase_change
from interp.show.figures.curves import accuracy_curve as accuracy_curve
from interp.show.figures.curves import cost_curves as cost_curves
from interp.show.figures.curves import distance_curves as distance_curves
from interp.show.figures.curves import exam_scores as exam_scores
from interp.show.figures.curves import sensitivity_chart as sensitivity_chart
from interp.show.figures.curves import sink_losses as sink_losses
from interp.show.figures.effects import head_map as head_map
from interp.show.figures.effects import path_map as path_map
from interp.show.figures.effects import position_map as position_map
from interp.show.figures.effects import why_bars as why_bars
from interp.show.figures.explained import explained_map as explained_map
from interp.show.figures.graph import circuit_graph as circuit_graph
from interp.show.figures.graph import faithfulness_curve as faithfulness_curve
from interp.show.figures.head import attention_arcs as attention_arcs
from interp.show.figures.head import head_card as head_card
from interp.show.figures.head import head_page as head_page
from interp.show.figures.patterns import head_zoo as head_zoo
from interp.show.figures.patterns import heads_row as heads_row
from interp.show.figures.patterns import pattern_page as pattern_page
from interp.show.figures.scores import score_by_layer as score_by_layer
from interp.show.figures.scores import score_mosaic as score_mosaic
from interp.show.figures.style import save_figure as save_figure
from interp.show.figures.style import save_figures as save_figures
from interp.show.figures.sweeps import emergence_curves as emergence_curves
from interp.show.figures.sweeps import layer_map as layer_map
from interp.show.figures.sweeps import model_comparison as model_comparison
from interp.show.figures.words import legible as legible
