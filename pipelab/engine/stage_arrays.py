"""Many candidate stages at once: what `CostModel.stage` says of one, as arrays over all.

A cost model may bring its own `stage_tables`, as the roofline does; here are those of the
write-up's model, and of any other by asking `stage` once per entry. Tests hold each equal to `stage`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import LayerTimes, answered, fits_in, pass_time
from pipelab.engine.layer_runs import runs_of
from pipelab.errors import InvalidValue
from pipelab.hardware.linear_rates import LinearThroughput, finished
from pipelab.problem import ModelLike, Problem, Workload


class StageTables(NamedTuple):
    """Many candidate stages: C compositions (how many GPUs of each kind) times U kinds of run of layers.

    Where all layers are identical, U is the number of layers and column n-1 is n of them.
    """

    throughput: np.ndarray  # (C, U) tokens/s
    memory_gb: np.ndarray  # (C, K, U) needed on a GPU of kind K; 0 where the composition has none
    pass_seconds: np.ndarray | None = None  # (C, U) as `StageCost.pass_seconds`

    def fits(self, kinds: Sequence[GPU]) -> np.ndarray:
        """Which candidates have a rate, and the memory on every GPU of theirs; bool, shape (C, U)."""
        memory = np.array([kind.memory_gb for kind in kinds])[None, :, None]
        return np.all(fits_in(self.memory_gb, memory), axis=1) & (self.throughput > 0)


def stage_tables(
    costs: Any,
    model: ModelLike,
    workload: Workload,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    batch_split: str,
) -> StageTables:
    """`costs.stage` for every composition and every kind of run of layers (`runs_of(model)`).

    Parameters
    ----------
    kinds : sequence of GPU
        The K different GPUs.
    composition : array of int, shape (C, K)
        How many GPUs of each kind a candidate stage has; every row has at least one.
    """
    if hasattr(costs, "stage_tables"):
        return costs.stage_tables(model, workload, kinds, composition, batch_split)
    rule = _linear if isinstance(costs, LinearThroughput) else _one_by_one
    return rule(costs, model, workload, kinds, composition, batch_split)


def mixes_as_slowest(problem: Problem) -> bool:
    """Whether a mixed stage of s GPUs is exactly as fast as the slowest stage of s GPUs of one of its kinds.

    And fits where all of those fit. Then mixtures need not be listed to know their rates.
    """
    if isinstance(problem.costs, LinearThroughput):
        return problem.batch_split == "even"
    return hasattr(problem.costs, "mixes_as_slowest") and problem.costs.mixes_as_slowest(problem)


def nodes_matter_alone(costs: Any) -> bool:
    """Whether nodes matter at most to stages of identical GPUs of one node, and only through `node_gb_per_s`.

    Then identical nodes are interchangeable. A cost model of your own says so by an attribute
    `nodes_matter_alone` that is true; without it every node may be different.
    """
    if isinstance(costs, LinearThroughput | LayerTimes):
        return True  # rates and memory depend on types
    return bool(getattr(costs, "nodes_matter_alone", False))


def memory_parts(problem: Problem, gpu: GPU, layers: range) -> dict[str, float]:
    """GB that these layers need on one GPU that works on the whole batch, by what it is for."""
    costs = problem.costs
    if hasattr(costs, "memory_parts"):
        return costs.memory_parts(problem, gpu, layers)
    cost = problem.stage_cost([gpu], layers)
    weights = problem.model.weight_gb(layers)
    return {"weights": weights, "all else": cost.memory_gb[0] - weights}


def _one_by_one(
    costs: Any,
    model: ModelLike,
    workload: Workload,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    batch_split: str,
) -> StageTables:
    """Of a model that has `stage` alone."""
    runs = runs_of(model)
    starts, sizes = runs.examples
    shape = len(composition), len(starts)
    throughput, memory = np.empty(shape), np.zeros((shape[0], len(kinds), shape[1]))
    passes = np.empty(shape)
    for c, counts in enumerate(composition):
        which = np.repeat(np.arange(len(kinds)), counts)
        gpus = [kinds[int(k)] for k in which]
        for u, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            layers = range(int(start), int(start + size))
            cost = answered(costs, model, workload, gpus, layers, batch_split)
            throughput[c, u] = cost.throughput
            memory[c, which, u] = cost.memory_gb
            seconds = workload.tokens / cost.throughput if cost.throughput > 0 else np.inf
            passes[c, u] = seconds if cost.pass_seconds is None else cost.pass_seconds
        if len(gpus) == 1:
            found = throughput[c], memory[c, which[0]]
            _refuse_positions(costs, model, workload, gpus, batch_split, *found)
    return StageTables(throughput, memory, passes)


def _refuse_positions(
    costs: Any,
    model: ModelLike,
    workload: Workload,
    gpus: Sequence[GPU],
    batch_split: str,
    throughput: np.ndarray,
    memory_gb: np.ndarray,
) -> None:
    """Refuse a model for which layers differ that the `model` calls identical.

    Each layer alone is looked at, and of every number of layers the last ones: where the head is.
    """
    runs, last = runs_of(model), model.layers
    spans = {(i, i + 1) for i in range(last)} | {(i, last) for i in range(last)}
    for start, stop in sorted(spans):
        kind = int(runs.kind[start, stop - start - 1])
        first = int(runs.examples[0][kind])
        if first == start:
            continue
        cost = answered(costs, model, workload, gpus, range(start, stop), batch_split)
        found, expected = (cost.throughput, cost.memory_gb[0]), (throughput[kind], memory_gb[kind])
        if not np.allclose(found, expected, rtol=1e-9, atol=0):
            like = f"as range({first}, {first + stop - start}): {expected[0]:g} and {expected[1]:g}"
            shown = f"{found[0]:g} tokens/s and {found[1]:g} GB"
            remedy = "where layers differ, give the model weight_factors or work_factors that do"
            problem = (f"range({start}, {stop})", shown, f"expected the same {like}; {remedy}")
            raise InvalidValue(f"{type(costs).__name__}.stage", [problem])


def _linear(
    costs: LinearThroughput,
    model: ModelLike,
    workload: Workload,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    batch_split: str,
) -> StageTables:
    runs = runs_of(model)
    work, weight = runs.work, runs.weight
    size = composition.sum(axis=1)
    present = (composition > 0)[:, :, None]
    if batch_split == "even":
        batch = np.broadcast_to((workload.batch_size / size)[:, None, None], present.shape)
    else:
        batch = _balanced(costs, workload, kinds, composition, work)
    rate = np.stack(
        [costs.gpu_throughput(k.type, workload, batch[:, i], work) for i, k in enumerate(kinds)],
        axis=1,
    )
    slowest = np.where(present, rate, np.inf).min(axis=1)
    if batch_split == "even":
        total = size[:, None] * slowest
    else:
        total = (rate * composition[:, :, None]).sum(axis=1)
    throughput = np.where(size[:, None] == 1, slowest, np.maximum(1.0, costs.efficiency * total))
    turns = np.stack(
        [costs._turn(k.type, workload, batch[:, i], work) for i, k in enumerate(kinds)], axis=1
    )
    longest = np.where(present, turns, 0.0).max(axis=1) * total / throughput
    activation = costs.activation_gb(model, workload)
    memory = weight * model.layer_weight_gb + activation * (batch / workload.batch_size)
    passes = pass_time(workload.tokens / throughput, longest)
    return StageTables(throughput, np.where(present, memory, 0.0), passes)


def _balanced(
    costs: LinearThroughput,
    workload: Workload,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    layers: np.ndarray,
) -> np.ndarray:
    """Balanced batch per GPU, shape (C, K, U), by bisection on the common time."""
    slope = np.array([costs.coefficients[k.type].per_sequence for k in kinds])[None, :, None]
    base = np.stack(
        [costs._without_batch(costs.coefficients[k.type], workload, layers) for k in kinds]
    )[None]
    count = composition[:, :, None]
    steepest = np.where(composition > 0, slope[:, :, 0], -np.inf).max(axis=1)[:, None, None]
    at_steepest = np.where((count > 0) & (slope == steepest), base, 0.0).max(axis=1, keepdims=True)
    low = at_steepest / workload.batch_size
    high = (count * np.maximum(base, 1.0)).sum(axis=1, keepdims=True) / workload.batch_size
    # halves the bracket (of the logarithms) until neighbouring floats are left
    for _ in range(200):
        middle = np.sqrt(low * high)
        too_much = (count * finished(middle, base, slope, steepest, count)).sum(
            axis=1, keepdims=True
        )
        enough = too_much >= workload.batch_size
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
        if np.all(high <= low * (1 + 4e-16)):
            break
    batch = finished(low, base, slope, steepest, count)
    return batch * (workload.batch_size / (count * batch).sum(axis=1, keepdims=True))
