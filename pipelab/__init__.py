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
    from pipelab.bounds import lower_bound
    from pipelab.cluster import GPU, Cluster
    from pipelab.compare import Comparison, compare
    from pipelab.data import cases, load_case, load_coefficients, save_case
    from pipelab.evaluate import Evaluation, evaluate
    from pipelab.exercises import check, guess
    from pipelab.explore import explore_mix, explore_pipeline, explore_schedules, watch_solve
    from pipelab.export import VLLMSettings, load_placement, save_placement, vllm_settings
    from pipelab.facts import (
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
    from pipelab.formulas import PipelineBubbleStats, closed_forms
    from pipelab.formulations.ablation import leave_out
    from pipelab.formulations.aggregated.classes import gpu_classes
    from pipelab.formulations.candidates import enumerate_candidates
    from pipelab.formulations.count import count_candidates
    from pipelab.formulations.joint_cvxpy import state_joint
    from pipelab.formulations.show import joint_formulation, single_gpu_formulation
    from pipelab.html import show_table
    from pipelab.ledger import Ledger, reproduce
    from pipelab.linear import Coefficients, LinearThroughput
    from pipelab.measured import Measured, load_measured
    from pipelab.methods.certificate import certificate
    from pipelab.methods.cheapest import cheapest
    from pipelab.methods.exhaustive import count_placements
    from pipelab.methods.in_flight import solve_in_flight
    from pipelab.methods.joint_model import joint_capacity, joint_lp_bound, joint_program, joint_size
    from pipelab.methods.quickest import quickest
    from pipelab.methods.single_gpu import single_gpu_size
    from pipelab.methods.trade_off import trade_off
    from pipelab.placement import Placement, Stage
    from pipelab.plots import (
        placed_gantt,
        plot_against_measured,
        plot_claims,
        plot_classes,
        plot_comparison,
        plot_course,
        plot_growth,
        plot_in_flight,
        plot_layer_times,
        plot_makespans,
        plot_placement,
        plot_progress,
        plot_proof,
        plot_run_times,
        plot_search,
        plot_search_growth,
        plot_shares,
        plot_split_costs,
        plot_stage_rates,
        plot_sweep,
        plot_timelines,
        plot_trade_off,
        plot_verdicts,
        training_gantt,
    )
    from pipelab.plots.gantt import gantt
    from pipelab.plots.gantt_widget import gantt_widget
    from pipelab.problem import Model, Problem, Workload
    from pipelab.published import published_bubbles
    from pipelab.result import Result
    from pipelab.roofline import Roofline, against_measured
    from pipelab.schedules import Action, Schedule
    from pipelab.schedules.make import schedule
    from pipelab.scoring import Score, score
    from pipelab.solve import Solving, solve, solve_in_background
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
    from pipelab.steady import SteadyResult
    from pipelab.sweeps import grid, mixes
    from pipelab.sweeps.sweep import Sweep, sweep
    from pipelab.tables import saved_run
    from pipelab.timeline import (
        PlacedTimeline,
        StageCosts,
        Timeline,
        TrainingTimeline,
        inference_costs,
        save_chrome_trace,
        timeline_of,
    )
    from pipelab.timeline.simulate import simulate
    from pipelab.words import duration

__version__ = "0.1.0"

# Public name → module; imported when first used.
_LATER = {
    "GPU": "pipelab.cluster",
    "Cluster": "pipelab.cluster",
    "Comparison": "pipelab.compare",
    "compare": "pipelab.compare",
    "Coefficients": "pipelab.linear",
    "LinearThroughput": "pipelab.linear",
    "cases": "pipelab.data",
    "load_case": "pipelab.data",
    "load_coefficients": "pipelab.data",
    "save_case": "pipelab.data",
    "Evaluation": "pipelab.evaluate",
    "evaluate": "pipelab.evaluate",
    "Placement": "pipelab.placement",
    "Stage": "pipelab.placement",
    "Model": "pipelab.problem",
    "Problem": "pipelab.problem",
    "Workload": "pipelab.problem",
    "Result": "pipelab.result",
    "Solving": "pipelab.solve",
    "solve": "pipelab.solve",
    "solve_in_background": "pipelab.solve",
    "enumerate_candidates": "pipelab.formulations.candidates",
    "count_candidates": "pipelab.formulations.count",
    "joint_size": "pipelab.methods.joint_model",
    "joint_capacity": "pipelab.methods.joint_model",
    "joint_lp_bound": "pipelab.methods.joint_model",
    "joint_program": "pipelab.methods.joint_model",
    "gpu_classes": "pipelab.formulations.aggregated.classes",
    "Transformer": "pipelab.facts",
    "LatentAttention": "pipelab.facts",
    "GPUFacts": "pipelab.facts",
    "gpus": "pipelab.facts",
    "models": "pipelab.facts",
    "clusters": "pipelab.facts",
    "load_gpus": "pipelab.facts",
    "load_model": "pipelab.facts",
    "load_cluster": "pipelab.facts",
    "Roofline": "pipelab.roofline",
    "against_measured": "pipelab.roofline",
    "plot_against_measured": "pipelab.plots",
    "plot_layer_times": "pipelab.plots",
    "plot_stage_rates": "pipelab.plots",
    "Measured": "pipelab.measured",
    "load_measured": "pipelab.measured",
    "certificate": "pipelab.methods.certificate",
    "trade_off": "pipelab.methods.trade_off",
    "sweep": "pipelab.sweeps.sweep",
    "Sweep": "pipelab.sweeps.sweep",
    "grid": "pipelab.sweeps",
    "mixes": "pipelab.sweeps",
    "plot_sweep": "pipelab.plots",
    "cheapest": "pipelab.methods.cheapest",
    "quickest": "pipelab.methods.quickest",
    "solve_in_flight": "pipelab.methods.in_flight",
    "SteadyResult": "pipelab.steady",
    "saved_run": "pipelab.tables",
    "plot_classes": "pipelab.plots",
    "plot_proof": "pipelab.plots",
    "plot_run_times": "pipelab.plots",
    "plot_search": "pipelab.plots",
    "plot_trade_off": "pipelab.plots",
    "state_joint": "pipelab.formulations.joint_cvxpy",
    "plot_placement": "pipelab.plots",
    "plot_progress": "pipelab.plots",
    "plot_growth": "pipelab.plots",
    "plot_claims": "pipelab.plots",
    "joint_formulation": "pipelab.formulations.show",
    "leave_out": "pipelab.formulations.ablation",
    "plot_comparison": "pipelab.plots",
    "plot_search_growth": "pipelab.plots",
    "plot_shares": "pipelab.plots",
    "plot_split_costs": "pipelab.plots",
    "single_gpu_size": "pipelab.methods.single_gpu",
    "single_gpu_formulation": "pipelab.formulations.show",
    "count_placements": "pipelab.methods.exhaustive",
    "bottleneck": "pipelab.splits",
    "count_splits": "pipelab.splits",
    "split_bandwidth_aware": "pipelab.splits",
    "split_by_flops": "pipelab.splits",
    "split_even": "pipelab.splits",
    "split_exhaustive": "pipelab.splits",
    "split_minmax": "pipelab.splits",
    "split_proportional": "pipelab.splits",
    "Action": "pipelab.schedules",
    "Schedule": "pipelab.schedules",
    "schedule": "pipelab.schedules.make",
    "StageCosts": "pipelab.timeline",
    "Timeline": "pipelab.timeline",
    "simulate": "pipelab.timeline.simulate",
    "save_chrome_trace": "pipelab.timeline",
    "closed_forms": "pipelab.formulas",
    "lower_bound": "pipelab.bounds",
    "PipelineBubbleStats": "pipelab.formulas",
    "published_bubbles": "pipelab.published",
    "gantt": "pipelab.plots.gantt",
    "gantt_widget": "pipelab.plots.gantt_widget",
    "plot_makespans": "pipelab.plots",
    "plot_timelines": "pipelab.plots",
    "explore_schedules": "pipelab.explore",
    "explore_mix": "pipelab.explore",
    "watch_solve": "pipelab.explore",
    "explore_pipeline": "pipelab.explore",
    "inference_costs": "pipelab.timeline",
    "timeline_of": "pipelab.timeline",
    "PlacedTimeline": "pipelab.timeline",
    "TrainingTimeline": "pipelab.timeline",
    "placed_gantt": "pipelab.plots",
    "plot_in_flight": "pipelab.plots",
    "training_gantt": "pipelab.plots",
    "score": "pipelab.scoring",
    "Score": "pipelab.scoring",
    "load_placement": "pipelab.export",
    "save_placement": "pipelab.export",
    "vllm_settings": "pipelab.export",
    "VLLMSettings": "pipelab.export",
    "reproduce": "pipelab.ledger",
    "Ledger": "pipelab.ledger",
    "plot_verdicts": "pipelab.plots",
    "plot_course": "pipelab.plots",
    "guess": "pipelab.exercises",
    "show_table": "pipelab.html",
    "check": "pipelab.exercises",
    "duration": "pipelab.words",
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
        if not (name in _LATER and isinstance(value, ModuleType)):  # importing a module would put it there
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple:
        """By name: what is sent to another process (a sweep's `make` that says `pl.`) takes along no module."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
