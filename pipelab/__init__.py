"""pipelab: which GPUs should hold which layers of a large language model?

    import pipelab as pl

    problem = pl.load_case("tiny", max_gpus_per_stage=2)
    result = pl.solve(problem)

Names are listed below in the order in which a reader meets them. What draws and what
solves is imported when it is first used, so that `import pipelab` stays quick.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pipelab.errors import (
    InvalidData,
    InvalidPlacement,
    InvalidSchedule,
    InvalidValue,
    NotApplicable,
    PipelabError,
    SweepFailed,
    SweepInterrupted,
    TooLarge,
    UnknownName,
)

if TYPE_CHECKING:  # the same names for editors and type checkers
    from pipelab.cluster import GPU, Cluster
    from pipelab.course.exercises import check, guess
    from pipelab.course.figures.course import plot_course
    from pipelab.course.figures.ledger import plot_verdicts
    from pipelab.course.ledger import Ledger, reproduce
    from pipelab.course.papers import published_bubbles
    from pipelab.display import duration, show_table
    from pipelab.engine.background import Solving, solve_in_background
    from pipelab.engine.comparison import Comparison, compare
    from pipelab.engine.formulations.ablation import leave_out
    from pipelab.engine.formulations.aggregated.classes import gpu_classes
    from pipelab.engine.formulations.candidates import enumerate_candidates
    from pipelab.engine.formulations.count import count_candidates
    from pipelab.engine.formulations.joint_cvxpy import state_joint
    from pipelab.engine.formulations.readable import joint_formulation, single_gpu_formulation
    from pipelab.engine.in_flight_result import SteadyResult
    from pipelab.engine.methods.certificates import certificate
    from pipelab.engine.methods.cost import cheapest
    from pipelab.engine.methods.exhaustive import count_placements
    from pipelab.engine.methods.in_flight import solve_in_flight
    from pipelab.engine.methods.joint_model import (
        joint_capacity,
        joint_lp_bound,
        joint_program,
        joint_size,
    )
    from pipelab.engine.methods.latency import quickest
    from pipelab.engine.methods.single_gpu import single_gpu_size
    from pipelab.engine.methods.trade_offs import trade_off
    from pipelab.engine.schedules import Action, Schedule
    from pipelab.engine.schedules.by_name import schedule
    from pipelab.engine.schedules.closed_forms import PipelineBubbleStats, closed_forms
    from pipelab.engine.schedules.lower_bounds import lower_bound
    from pipelab.engine.scoring import Score, score
    from pipelab.engine.sweeps import grid, mixes
    from pipelab.engine.sweeps.run import Sweep, sweep
    from pipelab.engine.timeline import (
        PlacedTimeline,
        StageCosts,
        Timeline,
        TrainingTimeline,
        inference_costs,
        save_chrome_trace,
        timeline_of,
    )
    from pipelab.engine.timeline.event_times import simulate
    from pipelab.evaluation import Evaluation, evaluate
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
    from pipelab.hardware import (
        GPUFacts,
        LatentAttention,
        Transformer,
        clusters,
        gpus,
        load_cluster,
        load_gpus,
        load_model,
        models,
    )
    from pipelab.hardware.measured_times import Measured, load_measured
    from pipelab.hardware.roofline import Roofline, against_measured
    from pipelab.io.cases_csv import cases, load_case, load_coefficients, save_case
    from pipelab.io.csv_cells import saved_run
    from pipelab.io.placements import load_placement, save_placement, vllm_settings
    from pipelab.linear_rates import Coefficients, LinearThroughput
    from pipelab.placement import Placement, Stage
    from pipelab.problem import Model, Problem, Workload
    from pipelab.solving import Result, solve
    from pipelab.splits import (
        bottleneck,
        count_splits,
        split_bandwidth_aware,
        split_by_flops,
        split_even,
        split_exhaustive,
        split_minmax,
        split_proportional,
    )
    from pipelab.widgets import explore_mix, explore_pipeline, explore_schedules, watch_solve

__version__ = "0.1.0"

# Public name → module; imported when first used.
_LATER = {
    "GPU": "pipelab.cluster",
    "Cluster": "pipelab.cluster",
    "Comparison": "pipelab.engine.comparison",
    "compare": "pipelab.engine.comparison",
    "Coefficients": "pipelab.linear_rates",
    "LinearThroughput": "pipelab.linear_rates",
    "cases": "pipelab.io.cases_csv",
    "load_case": "pipelab.io.cases_csv",
    "load_coefficients": "pipelab.io.cases_csv",
    "save_case": "pipelab.io.cases_csv",
    "Evaluation": "pipelab.evaluation",
    "evaluate": "pipelab.evaluation",
    "Placement": "pipelab.placement",
    "Stage": "pipelab.placement",
    "Model": "pipelab.problem",
    "Problem": "pipelab.problem",
    "Workload": "pipelab.problem",
    "Result": "pipelab.solving",
    "Solving": "pipelab.engine.background",
    "solve": "pipelab.solving",
    "solve_in_background": "pipelab.engine.background",
    "enumerate_candidates": "pipelab.engine.formulations.candidates",
    "count_candidates": "pipelab.engine.formulations.count",
    "joint_size": "pipelab.engine.methods.joint_model",
    "joint_capacity": "pipelab.engine.methods.joint_model",
    "joint_lp_bound": "pipelab.engine.methods.joint_model",
    "joint_program": "pipelab.engine.methods.joint_model",
    "gpu_classes": "pipelab.engine.formulations.aggregated.classes",
    "Transformer": "pipelab.hardware",
    "LatentAttention": "pipelab.hardware",
    "GPUFacts": "pipelab.hardware",
    "gpus": "pipelab.hardware",
    "models": "pipelab.hardware",
    "clusters": "pipelab.hardware",
    "load_gpus": "pipelab.hardware",
    "load_model": "pipelab.hardware",
    "load_cluster": "pipelab.hardware",
    "Roofline": "pipelab.hardware.roofline",
    "against_measured": "pipelab.hardware.roofline",
    "plot_against_measured": "pipelab.figures.predictions",
    "plot_layer_times": "pipelab.figures.layers",
    "plot_stage_rates": "pipelab.figures.layers",
    "Measured": "pipelab.hardware.measured_times",
    "load_measured": "pipelab.hardware.measured_times",
    "certificate": "pipelab.engine.methods.certificates",
    "trade_off": "pipelab.engine.methods.trade_offs",
    "sweep": "pipelab.engine.sweeps.run",
    "Sweep": "pipelab.engine.sweeps.run",
    "grid": "pipelab.engine.sweeps",
    "mixes": "pipelab.engine.sweeps",
    "plot_sweep": "pipelab.figures.sweep_charts",
    "cheapest": "pipelab.engine.methods.cost",
    "quickest": "pipelab.engine.methods.latency",
    "solve_in_flight": "pipelab.engine.methods.in_flight",
    "SteadyResult": "pipelab.engine.in_flight_result",
    "saved_run": "pipelab.io.csv_cells",
    "plot_classes": "pipelab.figures.aggregated",
    "plot_proof": "pipelab.figures.aggregated",
    "plot_run_times": "pipelab.figures.aggregated",
    "plot_search": "pipelab.figures.aggregated",
    "plot_trade_off": "pipelab.figures.trade_off_chart",
    "state_joint": "pipelab.engine.formulations.joint_cvxpy",
    "plot_placement": "pipelab.figures.placements",
    "plot_progress": "pipelab.figures.solves",
    "plot_growth": "pipelab.figures.solves",
    "plot_claims": "pipelab.figures.solves",
    "joint_formulation": "pipelab.engine.formulations.readable",
    "leave_out": "pipelab.engine.formulations.ablation",
    "plot_comparison": "pipelab.figures.comparing",
    "plot_search_growth": "pipelab.figures.search_growth",
    "plot_shares": "pipelab.figures.comparing",
    "plot_split_costs": "pipelab.figures.comparing",
    "single_gpu_size": "pipelab.engine.methods.single_gpu",
    "single_gpu_formulation": "pipelab.engine.formulations.readable",
    "count_placements": "pipelab.engine.methods.exhaustive",
    "bottleneck": "pipelab.splits",
    "count_splits": "pipelab.splits",
    "split_bandwidth_aware": "pipelab.splits",
    "split_by_flops": "pipelab.splits",
    "split_even": "pipelab.splits",
    "split_exhaustive": "pipelab.splits",
    "split_minmax": "pipelab.splits",
    "split_proportional": "pipelab.splits",
    "Action": "pipelab.engine.schedules",
    "Schedule": "pipelab.engine.schedules",
    "schedule": "pipelab.engine.schedules.by_name",
    "StageCosts": "pipelab.engine.timeline",
    "Timeline": "pipelab.engine.timeline",
    "simulate": "pipelab.engine.timeline.event_times",
    "save_chrome_trace": "pipelab.engine.timeline",
    "closed_forms": "pipelab.engine.schedules.closed_forms",
    "lower_bound": "pipelab.engine.schedules.lower_bounds",
    "PipelineBubbleStats": "pipelab.engine.schedules.closed_forms",
    "published_bubbles": "pipelab.course.papers",
    "gantt": "pipelab.figures.gantt_chart",
    "gantt_widget": "pipelab.figures.gantt_resample",
    "plot_makespans": "pipelab.figures.makespans",
    "plot_timelines": "pipelab.figures.makespans",
    "explore_schedules": "pipelab.widgets",
    "explore_mix": "pipelab.widgets",
    "watch_solve": "pipelab.widgets",
    "explore_pipeline": "pipelab.widgets",
    "inference_costs": "pipelab.engine.timeline",
    "timeline_of": "pipelab.engine.timeline",
    "PlacedTimeline": "pipelab.engine.timeline",
    "TrainingTimeline": "pipelab.engine.timeline",
    "placed_gantt": "pipelab.figures.placed",
    "plot_in_flight": "pipelab.figures.placed",
    "training_gantt": "pipelab.figures.training_charts",
    "score": "pipelab.engine.scoring",
    "Score": "pipelab.engine.scoring",
    "load_placement": "pipelab.io.placements",
    "save_placement": "pipelab.io.placements",
    "vllm_settings": "pipelab.io.placements",
    "reproduce": "pipelab.course.ledger",
    "Ledger": "pipelab.course.ledger",
    "plot_verdicts": "pipelab.course.figures.ledger",
    "plot_course": "pipelab.course.figures.course",
    "guess": "pipelab.course.exercises",
    "show_table": "pipelab.display",
    "check": "pipelab.course.exercises",
    "duration": "pipelab.display",
}

__all__ = [
    "InvalidData",
    "InvalidPlacement",
    "InvalidSchedule",
    "InvalidValue",
    "NotApplicable",
    "PipelabError",
    "SweepFailed",
    "SweepInterrupted",
    "TooLarge",
    "UnknownName",
    *_LATER,
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return globals().setdefault(name, getattr(import_module(_LATER[name]), name))
    raise AttributeError(f"module 'pipelab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Where a module has the name of a function in it (`solve`), the package's attribute is the function."""

    def __setattr__(self, name: str, value: object) -> None:
        # importing a module would put it there
        if not (name in _LATER and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple:
        """By name: what is sent to another process (a sweep's `make` that says `pl.`) takes along no module."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
