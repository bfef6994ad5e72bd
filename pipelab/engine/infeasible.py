"""Why nothing fits, in numbers: an infeasible problem is an answer, and has a reason."""

from collections.abc import Mapping

from pipelab.display import listed
from pipelab.engine.answers import Result
from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import Instance
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.problem import Problem


def infeasible_result(
    problem: Problem,
    method: str,
    reason: str,
    size: Mapping[str, int],
    deadline: Deadline,
    solver: str = "",
) -> Result:
    """Return the result that no placement exists."""
    return Result(
        problem=problem,
        method=method,
        status="infeasible",
        seconds=deadline.spent,
        size=size,
        solver=solver,
        reason=reason,
    )


def why_no_layer_fits(problem: Problem) -> str:
    """Say why not even one layer fits any allowed set of GPUs.

    Names the layer, the memory it needs on one GPU, and what the largest GPU offers.
    """
    gpus = problem.cluster.gpus
    order = sorted(range(len(gpus)), key=lambda g: (-gpus[g].memory_gb, g))
    largest = gpus[order[0]]
    model = problem.model
    # Where layers differ, the lightest: if that one does not fit, none does.
    layer = min(range(model.layers), key=lambda i: model.weight_gb(range(i, i + 1)))
    layers = range(layer, layer + 1)
    parts = problem.costs.memory_parts(problem, largest, layers)
    if sum(parts.values()) <= largest.memory_gb:
        return "no stage that fits in memory has a rate in this cost model"
    named = [f"{value:.4g} GB of {name}" for name, value in parts.items()]
    text = (
        f"layer {layer + 1} alone needs {sum(parts.values()):.4g} GB on one GPU "
        f"({listed(named)}), "
        f"and the largest, GPU {order[0]} ({largest.type}), offers {largest.memory_gb:g} GB"
    )
    most = min(problem.max_gpus_per_stage, len(gpus))
    if most == 1:
        return text
    return f"{text}; no allowed set of up to {most} GPUs that share the batch holds it"


def why_infeasible(instance: Instance, solver: str) -> str:
    """Say why no placement holds all layers; `solver` proved that none does."""
    if not len(instance.thresholds):
        return why_no_layer_fits(instance.problem)
    holdable = instance.holdable(instance.thresholds[0])
    return why_too_few(instance.problem, holdable, solver)


def why_too_few(problem: Problem, holdable: float, solver: str) -> str:
    """Say why no placement holds all layers, if it is known that all GPUs together hold at most `holdable` layers."""
    total, need = int(holdable + ONE_ANSWER), problem.model.layers
    if total < need:
        return f"all GPUs together can hold at most {total} of the {need} layers"
    most = problem.costs.most_gpus
    within = f" and at most {most:g} GPUs in a pipeline" if most < len(problem.cluster) else ""
    stages = f"no choice of stages covers all {need} layers with each GPU used once{within}"
    return f"{stages} (proven by {solver})"
