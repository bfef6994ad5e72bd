# The public names. `pipelab/__init__.py` imports each when it is first used (`pipelab/lazy_names.py`).
# ruff: noqa: I001

# The problem, and what a stage costs
from .cluster import Cluster as Cluster, GPU as GPU
from .problem import Model as Model, Problem as Problem, Workload as Workload
from .costs import LayerTimes as LayerTimes
from .writeup.cases_csv import load_case as load_case
from .hardware.known_clusters import load_cluster as load_cluster
from .hardware.known_models import load_model as load_model
from .hardware.roofline import Roofline as Roofline

# A placement, and what it yields
from .placement import Placement as Placement
from .evaluation import evaluate as evaluate
from .engine.scoring import score as score
from .engine.speed_scenarios import sensitivity as sensitivity

# Find the best placement, and prove it
from .engine.solving import solve as solve
from .engine.deployments.deploying import deploy as deploy
from .engine.deployments.result import Deployment as Deployment
from .engine.flows.flowing import flow as flow
from .engine.serving.served import serve as serve
from .engine.background import solve_in_background as solve_in_background
from .engine.methods.certificates import certificate as certificate
from .engine.methods.trade_offs import trade_off as trade_off
from .engine.comparison import compare as compare
from .engine.sweeps.grids_and_mixes import grid as grid, mixes as mixes
from .engine.sweeps.run import sweep as sweep

# Pipeline schedules, and when each action runs
from .schedules import Schedule as Schedule
from .engine.best_schedules import best_schedule as best_schedule
from .engine.schedules.named_schedules import schedule as schedule
from .engine.timeline.formulas import closed_forms as closed_forms, lower_bound as lower_bound
from .engine.timeline.costs import StageCosts as StageCosts
from .engine.timeline.timeline import simulate as simulate
from .engine.timeline.placement_timelines import timeline_of as timeline_of

# Figures and widgets
from .figures.plotting import plot as plot
from .figures.gantts import gantt as gantt
from .widgets.mix_explorer import explore_mix as explore_mix
from .widgets.pipeline_explorer import explore_pipeline as explore_pipeline
from .widgets.schedule_explorer import explore_schedules as explore_schedules
from .widgets.watch import watch_solve as watch_solve

# Plans: files, and settings of inference engines
from .io.plans import load_placement as load_placement, save as save
from .io.serving.engine_settings import settings as settings

# Names of one subject, each in a module of its own; and the error that all are
from . import course as course
from . import errors as errors
from . import hardware as hardware
from . import splits as splits
from . import writeup as writeup
from .errors import PipelabError as PipelabError
