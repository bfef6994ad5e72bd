"""pipelab: which GPUs should hold which layers of a large language model?

    import pipelab as pl

    problem = pl.load_case("tiny", max_gpus_per_stage=2)
    result = pl.solve(problem, method="joint")

Names are listed below in the order in which a reader meets them. What draws and what
solves is imported when it is first used, so that `import pipelab` stays quick.
"""

from importlib import import_module
from typing import Any

from pipelab.cluster import GPU, Cluster
from pipelab.compare import Comparison, compare
from pipelab.costs import Coefficients, LinearThroughput
from pipelab.data import cases, load_case, load_coefficients, save_case
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
from pipelab.evaluate import Evaluation, evaluate
from pipelab.placement import Placement, Stage
from pipelab.problem import Model, Problem, Workload
from pipelab.result import Result
from pipelab.solve import Solving, solve, solve_in_background

__version__ = "0.1.0"

# Public name → module; imported when first used.
_LATER = {
    "enumerate_candidates": "pipelab.formulations.candidates",
    "count_candidates": "pipelab.formulations.count",
    "joint_size": "pipelab.methods.joint",
    "joint_capacity": "pipelab.methods.joint",
    "joint_lp_bound": "pipelab.methods.joint",
    "joint_program": "pipelab.methods.joint",
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
    "sweep": "pipelab.sweeps",
    "Sweep": "pipelab.sweeps",
    "grid": "pipelab.sweeps",
    "mixes": "pipelab.sweeps",
    "plot_sweep": "pipelab.plots",
    "cheapest": "pipelab.methods.cheapest",
    "quickest": "pipelab.methods.quickest",
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
    "schedule": "pipelab.schedules",
    "StageCosts": "pipelab.timeline",
    "Timeline": "pipelab.timeline",
    "simulate": "pipelab.timeline",
    "save_chrome_trace": "pipelab.timeline",
    "closed_forms": "pipelab.formulas",
    "lower_bound": "pipelab.bounds",
    "PipelineBubbleStats": "pipelab.formulas",
    "published_bubbles": "pipelab.published",
    "gantt": "pipelab.plots",
    "gantt_widget": "pipelab.plots",
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
}

__all__ = [
    "GPU",
    "Cluster",
    "Coefficients",
    "Comparison",
    "Evaluation",
    "InvalidData",
    "InvalidPlacement",
    "InvalidSchedule",
    "InvalidValue",
    "LinearThroughput",
    "Model",
    "NotApplicable",
    "PipelabError",
    "Placement",
    "Problem",
    "Result",
    "Solving",
    "Stage",
    "SweepFailed",
    "SweepInterrupted",
    "TooLarge",
    "UnknownName",
    "Workload",
    "cases",
    "compare",
    "evaluate",
    "load_case",
    "load_coefficients",
    "save_case",
    "solve",
    "solve_in_background",
    *_LATER,
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'pipelab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
