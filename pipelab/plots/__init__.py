"""Figures: results in, a plotly figure out; nothing is shown, printed or set globally."""

from pipelab.plots.placement import plot_placement
from pipelab.plots.solving import plot_claims, plot_growth, plot_progress

__all__ = ["plot_claims", "plot_growth", "plot_placement", "plot_progress"]
