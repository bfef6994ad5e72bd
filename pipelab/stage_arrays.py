"""Many candidate stages at once: what `CostModel.stage` says of one, as arrays over all.

A cost model may bring its own `stage_tables`, as the roofline and the write-up's model do; of any other
`stage` is asked once per entry. Tests hold each equal to `stage`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue
from pipelab.problem import ModelLike, Problem, Workload, answered, fits_in
from pipelab.spans import spans_of


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
    """`costs.stage` for every composition and every kind of run of layers (`spans_of(model)`).

    Parameters
    ----------
    kinds : sequence of GPU
        The K different GPUs.
    composition : array of int, shape (C, K)
        How many GPUs of each kind a candidate stage has; every row has at least one.
    """
    if hasattr(costs, "stage_tables"):
        return costs.stage_tables(model, workload, kinds, composition, batch_split)
    return tables_one_by_one(costs, model, workload, kinds, composition, batch_split)


def problem_tables(problem: Problem, kinds: Sequence[GPU], composition: np.ndarray) -> StageTables:
    """Return `stage_tables` of a problem."""
    load, split = problem.workload, problem.batch_split
    return stage_tables(problem.costs, problem.model, load, kinds, composition, split)


def mixes_as_slowest(problem: Problem) -> bool:
    """Whether a mixed stage of s GPUs is exactly as fast as the slowest stage of s GPUs of one of its kinds.

    And fits where all of those fit. Then mixtures need not be listed to know their rates.
    """
    return hasattr(problem.costs, "mixes_as_slowest") and problem.costs.mixes_as_slowest(problem)


def nodes_matter_alone(costs: Any) -> bool:
    """Whether nodes matter at most to stages of identical GPUs of one node, and only through `node_gb_per_s`.

    Then identical nodes are interchangeable. A cost model of your own says so by an attribute
    `nodes_matter_alone` that is true; without it every node may be different.
    """
    return bool(getattr(costs, "nodes_matter_alone", False))


def in_one_node(costs: Any) -> bool:
    """Whether all GPUs of a stage are in one node; a cost model says so by an attribute `in_one_node` that is true."""
    return bool(getattr(costs, "in_one_node", False))


def most_gpus(costs: Any) -> float:
    """More GPUs than this no pipeline may have; a cost model says so by an attribute `most_gpus`."""
    most = getattr(costs, "most_gpus", None)
    return math.inf if most is None else most


def memory_parts(problem: Problem, gpu: GPU, layers: range) -> dict[str, float]:
    """GB that these layers need on one GPU that works on the whole batch, by what it is for."""
    costs = problem.costs
    if hasattr(costs, "memory_parts"):
        return costs.memory_parts(problem, gpu, layers)
    cost = problem.stage_cost([gpu], layers)
    weights = problem.model.weight_gb(layers)
    return {"weights": weights, "all else": cost.memory_gb[0] - weights}


def tables_one_by_one(
    costs: Any,
    model: ModelLike,
    workload: Workload,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    batch_split: str,
) -> StageTables:
    """Of a model that has `stage` alone."""
    runs = spans_of(model)
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
    runs, last = spans_of(model), model.layers
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
