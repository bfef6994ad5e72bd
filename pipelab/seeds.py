"""Earlier names of the published partition functions; they are in `pipelab.course`."""

from pipelab.course.published_layer_assignment import assign_layers_bandwidth_aware as seed_bandwidth_aware
from pipelab.course.published_layer_assignment import assign_layers_proportional as seed_proportional
from pipelab.course.published_orders import Failure, seed_by_flops, seed_even, smallest_failure
from pipelab.course.rust_numbers import Panic

__all__ = [
    "Failure",
    "Panic",
    "seed_bandwidth_aware",
    "seed_by_flops",
    "seed_even",
    "seed_proportional",
    "smallest_failure",
]
