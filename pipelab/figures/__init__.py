"""Figures: results in, a plotly figure out; nothing is shown, printed or set globally."""

from pipelab.course.figures.course import plot_course
from pipelab.course.figures.ledger import plot_verdicts
from pipelab.figures.aggregated import plot_classes, plot_proof, plot_run_times, plot_search
from pipelab.figures.comparing import plot_comparison, plot_shares, plot_split_costs
from pipelab.figures.gantt_chart import gantt
from pipelab.figures.gantt_resample import gantt_widget
from pipelab.figures.layers import plot_layer_times, plot_stage_rates
from pipelab.figures.makespans import plot_makespans, plot_timelines
from pipelab.figures.placed import placed_gantt, plot_in_flight
from pipelab.figures.placements import plot_placement
from pipelab.figures.predictions import plot_against_measured
from pipelab.figures.search_growth import plot_search_growth
from pipelab.figures.solves import plot_claims, plot_growth, plot_progress
from pipelab.figures.sweep_charts import plot_sweep
from pipelab.figures.trade_off_chart import plot_trade_off
from pipelab.figures.training_charts import training_gantt

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
