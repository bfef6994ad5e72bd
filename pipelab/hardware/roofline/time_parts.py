"""Where the time of one layer goes, part by part."""

from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.errors import UnknownName, nearest
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, moved_bytes, slower
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pipelab.hardware.roofline.constants import RooflineConstants


def layer_times(
    costs: "RooflineConstants", model: Transformer, workload: Workload, gpu: GPU
) -> dict[str, float]:
    """The answer of `Roofline.layer_times`."""
    if gpu.type not in costs.gpus:
        raise UnknownName(f"no facts of GPU type {gpu.type!r}; {nearest(gpu.type, costs.gpus)}")
    demand, engine, b = Demand(model, workload), costs.constants, np.array([workload.batch_size])
    hardware = hardware_of(costs, demand, [gpu])
    names = ("weights", "keys and values", "activations")
    moved = dict(zip(names, moved_bytes(engine, demand, "ordinary", b, 1), strict=True))
    matrices = demand.layer_flops("ordinary", b) / hardware.flops
    computing = matrices + b * demand.attention_flops() / hardware.head_flops
    both = slower(costs, demand, computing, sum(moved.values()) / hardware.bandwidth)
    scores = demand.score_bytes(engine.score_bytes, b) / hardware.bandwidth
    overhead = engine.layer_overhead_us * 1e-6 + scores
    seconds = {"computing": computing}
    seconds |= {name: size / hardware.bandwidth for name, size in moved.items()}
    seconds |= {"overhead": overhead, "layer": both + overhead}
    return {name: float(np.ravel(value)[0]) for name, value in seconds.items()}
