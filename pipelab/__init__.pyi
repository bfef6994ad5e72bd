# The public names: `pipelab/__init__.py` imports each when it is first used (lazy_loader).

# What is given
from .cluster import GPU as GPU
from .cluster import Cluster as Cluster
from .costs import CostModel as CostModel
from .costs import LayerTimes as LayerTimes

# The course
from .course.exercises.answer import guess as guess
from .course.exercises.book import check as check
from .course.ledger.book import reproduce as reproduce
from .engine.background import solve_in_background as solve_in_background
from .engine.comparison import compare as compare
from .engine.methods.certificates import certificate as certificate
from .engine.methods.trade_offs import trade_off as trade_off

# Pipeline schedules, and when each action runs
from .engine.schedules.action import Action as Action
from .engine.schedules.by_name import schedule as schedule
from .engine.schedules.closed_forms import closed_forms as closed_forms
from .engine.schedules.lower_bounds import lower_bound as lower_bound
from .engine.schedules.schedule import Schedule as Schedule
from .engine.scoring import score as score
from .engine.sweeps.points import grid as grid
from .engine.sweeps.points import mixes as mixes
from .engine.sweeps.run import sweep as sweep
from .engine.timeline.costs import StageCosts as StageCosts
from .engine.timeline.event_times import simulate as simulate
from .engine.timeline.of_placement import (
    inference_costs as inference_costs,
)
from .engine.timeline.of_placement import (
    timeline_of as timeline_of,
)
from .engine.timeline.timeline import Timeline as Timeline

# Errors
from .errors import (
    InvalidData as InvalidData,
)
from .errors import (
    InvalidPlacement as InvalidPlacement,
)
from .errors import (
    InvalidSchedule as InvalidSchedule,
)
from .errors import (
    InvalidValue as InvalidValue,
)
from .errors import (
    NotApplicable as NotApplicable,
)
from .errors import (
    PipelabError as PipelabError,
)
from .errors import (
    SweepFailed as SweepFailed,
)
from .errors import (
    SweepInterrupted as SweepInterrupted,
)
from .errors import (
    TooLarge as TooLarge,
)
from .errors import (
    UnknownName as UnknownName,
)
from .evaluation import evaluate as evaluate
from .figures.gantt_chart import gantt as gantt

# Real GPUs, models and clusters, and cost models of them
from .hardware.known_clusters import clusters as clusters
from .hardware.known_clusters import load_cluster as load_cluster
from .hardware.known_gpus import gpus as gpus
from .hardware.known_gpus import load_gpus as load_gpus
from .hardware.known_models import load_model as load_model
from .hardware.known_models import models as models
from .hardware.measured_times import Measured as Measured
from .hardware.measured_times import load_measured as load_measured
from .hardware.roofline.cost_model import Roofline as Roofline
from .hardware.roofline.measurements import against_measured as against_measured
from .hardware.transformer import Transformer as Transformer

# Files
from .io.cases_csv import (
    cases as cases,
)
from .io.cases_csv import (
    load_case as load_case,
)
from .io.cases_csv import (
    load_coefficients as load_coefficients,
)
from .io.cases_csv import (
    save_case as save_case,
)
from .io.placements import load_placement as load_placement
from .io.placements import vllm_settings as vllm_settings
from .io.saving import save as save
from .linear_rates import Coefficients as Coefficients
from .linear_rates import LinearThroughput as LinearThroughput

# A placement, and what it yields
from .placement import Placement as Placement
from .placement import Stage as Stage

# Figures and widgets
from .plotting import plot as plot
from .problem import Model as Model
from .problem import Problem as Problem
from .problem import Workload as Workload

# Find the best placement, and prove it
from .solving import Result as Result
from .solving import solve as solve

# Splits of layers over stages
from .splits import (
    bottleneck as bottleneck,
)
from .splits import (
    split_bandwidth_aware as split_bandwidth_aware,
)
from .splits import (
    split_by_flops as split_by_flops,
)
from .splits import (
    split_even as split_even,
)
from .splits import (
    split_exhaustive as split_exhaustive,
)
from .splits import (
    split_minmax as split_minmax,
)
from .splits import (
    split_proportional as split_proportional,
)
from .widgets.mix_explorer import explore_mix as explore_mix
from .widgets.pipeline_explorer import explore_pipeline as explore_pipeline
from .widgets.schedule_explorer import explore_schedules as explore_schedules
from .widgets.watch import watch_solve as watch_solve
