# The public names of `pl.hardware`; see `pipelab/lazy_names.py`.
# ruff: noqa: I001

# What is known
from .known_gpus import gpus as gpus, load_gpus as load_gpus
from .known_models import load_model as load_model, models as models
from .known_clusters import cluster_of_counts as cluster_of_counts
from .known_clusters import clusters as clusters, load_cluster as load_cluster

# Cost models
from ..problem import CostModel as CostModel
from .roofline import Roofline as Roofline
from .measured_times import Measured as Measured, load_measured as load_measured
from .transformer import Transformer as Transformer
from .training_memory import activation_bytes as activation_bytes

# What fits in memory
from .what_fits import capacity as capacity, node_mixes as node_mixes

# Against measurements
from .measurements import against_measured as against_measured
from .measurements import against_served as against_served
from .measurements import against_pipelines as against_pipelines
from .measurements import held_out_errors as held_out_errors
from .measurements import error_bands as error_bands, expected_rate as expected_rate
from .benchmark_files import calibrate as calibrate
