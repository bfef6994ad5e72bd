"""Figures: results in, a plotly figure out; nothing is shown, printed or set globally."""

from pipelab.plots.aggregated import plot_classes, plot_proof, plot_run_times, plot_search
from pipelab.plots.comparing import plot_comparison, plot_shares, plot_split_costs
from pipelab.plots.course import plot_course
from pipelab.plots.gantt import gantt
from pipelab.plots.gantt_widget import gantt_widget
from pipelab.plots.layers import plot_layer_times, plot_stage_rates
from pipelab.plots.ledger import plot_verdicts
from pipelab.plots.measured import plot_against_measured
from pipelab.plots.placed import placed_gantt, plot_in_flight
from pipelab.plots.placement import plot_placement
from pipelab.plots.schedules import plot_makespans, plot_timelines
from pipelab.plots.searching import plot_search_growth
from pipelab.plots.solving import plot_claims, plot_growth, plot_progress
from pipelab.plots.sweeps import plot_sweep
from pipelab.plots.trade_off import plot_trade_off
from pipelab.plots.training import training_gantt

__all__ = [
    "gantt",
    "gantt_widget",
    "placed_gantt",
    "plot_against_measured",
    "plot_claims",
    "plot_classes",
    "plot_comparison",
    "plot_course",
    "plot_growth",
    "plot_in_flight",
    "plot_layer_times",
    "plot_makespans",
    "plot_placement",
    "plot_progress",
    "plot_proof",
    "plot_run_times",
    "plot_search",
    "plot_search_growth",
    "plot_shares",
    "plot_split_costs",
    "plot_stage_rates",
    "plot_sweep",
    "plot_timelines",
    "plot_trade_off",
    "plot_verdicts",
    "training_gantt",
]
