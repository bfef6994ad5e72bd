"""The segments of the original MILP as its author ran it.

Source: the rows counted in gangmuk/LLM_placement_solver, `solver_constrained.py` at commit 2efc2c6.
"""

from dataclasses import replace

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.methods.single_gpu import SegmentRules, rules
from pipelab.errors import NotApplicable
from pipelab.problem import MEMORY_SLACK, Problem, require_identical_layers
from pipelab.writeup.linear_rates import LinearThroughput

_WHO = "single_gpu, segments='as_run'"


def segments_as_run(problem: Problem, deadline: Deadline = NEVER) -> SegmentRules:
    """List the segments of that run, which differ from all that fit by three habits.

    First layers lie on a grid of max(1, M // 20) where M > 40; a segment has at least min(half of the
    memory's worth, a third of the most) layers; and every GPU may hold one layer, whether it fits or not.

    Raises
    ------
    NotApplicable
        Layers differ, or the cost model is another than the write-up's.
    """
    require_identical_layers(problem, _WHO)
    if not isinstance(problem.costs, LinearThroughput):
        expected = (
            "expected LinearThroughput: the author's sizes rest on its memory; take segments='all'"
        )
        raise NotApplicable(_WHO, [("costs", type(problem.costs).__name__, expected)])
    layers = problem.model.layers
    step = max(1, layers // 20) if layers > 40 else 1
    sizes = np.arange(1, layers + 1)
    limits = [_sizes_as_run(problem, gpu.memory_gb) for gpu in problem.cluster.gpus]
    allowed = np.array([(least <= sizes) & (sizes <= most) for least, most in limits])
    every = rules(problem, deadline=deadline)
    return replace(every, allowed=allowed, starts=np.arange(0, layers, step))


def _sizes_as_run(problem: Problem, memory_gb: float) -> tuple[int, int]:
    """Compute the least and the most layers of a segment on a GPU of this memory."""
    weight = problem.model.layer_weight_gb
    activations = problem.costs.activation_gb(problem.model, problem.workload)
    most = max(1, min(problem.model.layers, int((memory_gb * MEMORY_SLACK - activations) / weight)))
    half = max(1, int((memory_gb / 2 - activations) / weight))
    return min(half, most, max(1, most // 3)), most
