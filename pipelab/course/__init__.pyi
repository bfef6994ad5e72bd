# The public names of `pl.course`; see `pipelab/lazy_names.py`.
# ruff: noqa: I001

# In every notebook
from .exercises import guess as guess
from .checks import check as check, hint as hint, lab_problems as lab_problems
from .controls import interact as interact
from .ledger.book import reproduce as reproduce
from .reading_tables import show_table as show_table

# Problems of the notebooks
from .n00 import three_sites as three_sites
from .n02 import five_gpus as five_gpus
from .n05 import seven_gpus as seven_gpus
from .n06 import one_network as one_network
from .n17 import helix_cluster as helix_cluster, helix_flow as helix_flow
from .n17 import helix_problem as helix_problem

# Figures and tables of one notebook
from .n00 import plot_cut as plot_cut, plot_moving as plot_moving
from .n01 import plot_split_table as plot_split_table, plot_splits as plot_splits
from .n02 import plot_rates as plot_rates
from .n03 import (
    ask_scip as ask_scip,
    plot_answer as plot_answer,
    plot_staircase as plot_staircase,
    rows_of_03 as rows_of_03,
)
from .n05 import (
    ask_joint as ask_joint,
    plot_choice as plot_choice,
    plot_tree as plot_tree,
)
from .n06 import plot_prices as plot_prices
from .n08 import published_bubbles as published_bubbles
from .n09 import measured_stages as measured_stages, plot_measured_stages as plot_measured_stages
from .n09 import plot_roofline as plot_roofline, plot_sensitivity as plot_sensitivity
from .n10 import plot_stage_groups as plot_stage_groups
from .n14 import layer_errors as layer_errors, plot_training_memory as plot_training_memory
from .n14 import training_errors as training_errors
from .n13 import author_results as author_results
from .n15 import plot_measured as plot_measured
from .n15 import plot_ring as plot_ring, plot_waits as plot_waits
from .n15 import run_ring as run_ring, run_stages as run_stages
from .pictures import plot_lines as plot_lines

# What the notebooks use of the engine and of its figures
from pipelab.display import duration as duration
from pipelab.engine.formulations.program_size import count_candidates as count_candidates
from pipelab.engine.formulations.joint_ilp_forms import joint_formulation as joint_formulation
from pipelab.engine.methods.exhaustive import count_placements as count_placements
from pipelab.engine.methods.joint import joint_size as joint_size
from pipelab.engine.methods.single_gpu import single_gpu_size as single_gpu_size
from pipelab.engine.training.result import schedules_for as schedules_for
from pipelab.figures.layer_times import plot_layer_times as plot_layer_times
from pipelab.figures.theme import template as template
from pipelab.files.csv_rows import saved_run as saved_run
