# The public names. `pipelab/__init__.py` imports each when it is first used (lazy_loader).
# ruff: noqa: I001

# The problem, and what a stage costs
from .cluster import Cluster as Cluster, GPU as GPU
from .problem import Model as Model, Problem as Problem, Workload as Workload
from .costs import CostModel as CostModel, LayerTimes as LayerTimes
from .hardware.linear_rates import (
    Coefficients as Coefficients,
    LinearThroughput as LinearThroughput,
)

# A placement, and what it yields
from .placement import Placement as Placement, Stage as Stage
from .evaluation import evaluate as evaluate
from .engine.scoring import score as score
from .engine.speed_scenarios import sensitivity as sensitivity

# Splits of layers over stages
from .splits import (
    bottleneck as bottleneck,
    split_bandwidth_aware as split_bandwidth_aware,
    split_by_flops as split_by_flops,
    split_even as split_even,
    split_exhaustive as split_exhaustive,
    split_minmax as split_minmax,
    split_proportional as split_proportional,
)

# Find the best placement, and prove it
from .solving import Result as Result, solve as solve
from .engine.deployments.deploying import deploy as deploy
from .engine.deployments.result import Deployment as Deployment
from .engine.background import solve_in_background as solve_in_background
from .engine.methods.certificates import certificate as certificate
from .engine.methods.trade_offs import trade_off as trade_off
from .engine.comparison import compare as compare
from .engine.sweeps.points import grid as grid, mixes as mixes
from .engine.sweeps.run import sweep as sweep

# Pipeline schedules, and when each action runs
from .schedules import Action as Action, Schedule as Schedule
from .engine.best_schedules import best_schedule as best_schedule
from .engine.schedules.rules import schedule as schedule
from .engine.timeline.formulas import closed_forms as closed_forms, lower_bound as lower_bound
from .engine.timeline.costs import StageCosts as StageCosts
from .engine.timeline.timeline import simulate as simulate
from .engine.timeline.placed import inference_costs as inference_costs
from .engine.timeline.placed import timeline_of as timeline_of
from .engine.timeline.timeline import Timeline as Timeline

# Figures and widgets
from .plotting import plot as plot
from .figures.gantts import gantt as gantt
from .widgets.mix_explorer import explore_mix as explore_mix
from .widgets.pipeline_explorer import explore_pipeline as explore_pipeline
from .widgets.schedule_explorer import explore_schedules as explore_schedules
from .widgets.watch import watch_solve as watch_solve

# Real GPUs, models and clusters
from .hardware.known_clusters import clusters as clusters, load_cluster as load_cluster
from .hardware.known_gpus import gpus as gpus, load_gpus as load_gpus
from .hardware.known_models import load_model as load_model, models as models
from .hardware.measured_times import Measured as Measured, load_measured as load_measured
from .hardware.roofline import Roofline as Roofline
from .hardware.measurements import against_measured as against_measured
from .hardware.transformer import Transformer as Transformer

# Files
from .io.cases_csv import (
    cases as cases,
    load_case as load_case,
    load_coefficients as load_coefficients,
    save_case as save_case,
)
from .io.engines.launch import settings as settings
from .io.plans import load_placement as load_placement, save as save

# The course
from .course.checks import check as check
from .course.exercises import guess as guess
from .course.ledger.book import reproduce as reproduce

# Errors
from .errors import (
    InvalidData as InvalidData,
    InvalidPlacement as InvalidPlacement,
    InvalidSchedule as InvalidSchedule,
    InvalidValue as InvalidValue,
    NotApplicable as NotApplicable,
    PipelabError as PipelabError,
    SweepFailed as SweepFailed,
    SweepInterrupted as SweepInterrupted,
    TooLarge as TooLarge,
    UnknownName as UnknownName,
)
