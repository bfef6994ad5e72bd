"""Figures: results in, a plotly figure out; nothing is shown, printed or set globally."""

from pipelab.plots.aggregated import plot_classes, plot_proof, plot_run_times, plot_search, plot_trade_off
from pipelab.plots.comparing import plot_comparison, plot_shares, plot_split_costs
from pipelab.plots.placement import plot_placement
from pipelab.plots.searching import plot_search_growth
from pipelab.plots.solving import plot_claims, plot_growth, plot_progress

__all__ = [
    "plot_claims",
    "plot_classes",
    "plot_comparison",
    "plot_growth",
    "plot_placement",
    "plot_progress",
    "plot_proof",
    "plot_run_times",
    "plot_search",
    "plot_search_growth",
    "plot_shares",
    "plot_split_costs",
    "plot_trade_off",
]
