"""The small placement problems behind the exercises of notebook 05, with every placement of each."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.candidates import Allocation, Connection
from pipelab.display import counted

if TYPE_CHECKING:
    from pipelab.problem import Problem


class Case(NamedTuple):
    """A small placement problem: a stage takes layers × the slowest GPU's ms, over its GPUs."""

    layers: int
    ms: tuple[int, ...]  # per layer, of each GPU
    link_ms: tuple[int, ...]  # of every pair of GPUs: 0–1, 0–2, …, 1–2, …
    price: tuple[int, ...] = ()
    most: int = 0

    def __repr__(self) -> str:
        gpus = range(len(self.ms))
        links = ", ".join(
            f"{a}–{b} {ms}" for (a, b), ms in zip(combinations(gpus, 2), self.link_ms, strict=True)
        )
        said = f"{counted(self.layers, 'layer')}, GPUs with {list(self.ms)} ms per layer"
        said += f", links of {links} ms" if links else ""
        return said + (f", prices {list(self.price)}, most={self.most}" if self.price else "")


def allocations_of(case: Case) -> list[Allocation]:
    """Every run of layers on every set of one or two GPUs; rates in microbatches per second."""
    gpus = range(len(case.ms))
    sets = [ids for size in (1, 2) for ids in combinations(gpus, size)]
    runs = [range(a, b) for a, b in combinations(range(case.layers + 1), 2)]
    return [
        Allocation(run, ids, 1000 * len(ids) / (len(run) * max(case.ms[g] for g in ids)))
        for run in runs
        for ids in sets
    ]


def connections_of(case: Case, allocations: Sequence[Allocation]) -> list[Connection]:
    pairs = combinations(range(len(case.ms)), 2)
    link = {frozenset(pair): ms for pair, ms in zip(pairs, case.link_ms, strict=True)}
    return [
        Connection(i, j, 1000 / max(link[frozenset((g, h))] for g in a.gpus for h in b.gpus))
        for i, a in enumerate(allocations)
        for j, b in enumerate(allocations)
        if a.layers.stop == b.layers.start and not {*a.gpus} & {*b.gpus}
    ]


def placements_of(case: Case) -> list[tuple[float, tuple[Allocation, ...]]]:
    """Rate and stages of every placement, by trying all."""
    allocations = allocations_of(case)
    rate_of = {
        (allocations[c.sender], allocations[c.receiver]): c.rate
        for c in connections_of(case, allocations)
    }

    def extend(stages: tuple[Allocation, ...], rate: float) -> list[Any]:
        at = stages[-1].layers.stop if stages else 0
        if at == case.layers:
            return [(rate, stages)]
        used = {g for stage in stages for g in stage.gpus}
        found = []
        for a in allocations:
            if a.layers.start == at and not used & {*a.gpus}:
                link = rate_of[stages[-1], a] if stages else math.inf
                found += extend((*stages, a), min(rate, a.rate, link))
        return found

    return extend((), math.inf)


def cost_of(case: Case, stages: Sequence[Allocation]) -> int:
    return sum(case.price[g] for stage in stages for g in stage.gpus)


def allowed(case: Case) -> list[tuple[float, tuple[Allocation, ...]]]:
    return [p for p in placements_of(case) if not case.price or cost_of(case, p[1]) <= case.most]


def best_rate(case: Case) -> float:
    return max(rate for rate, _ in allowed(case))


def problem_of(case: Case) -> "Problem":
    """With links of these times; a microbatch is one token, so that rates are per second."""
    import numpy as np

    from pipelab.cluster import GPU, Cluster
    from pipelab.costs import LayerTimes
    from pipelab.problem import Model, Problem, Workload

    gpus = [GPU(f"{ms} ms", 1.0) for ms in case.ms]
    times = LayerTimes({gpu.type: ms for gpu, ms in zip(gpus, case.ms, strict=True)})
    model, workload = Model("a model", case.layers, 1024, 1024, 1e-3), Workload(1, 1)
    gb_per_s = np.ones((len(gpus), len(gpus)))
    for (a, b), ms in zip(combinations(range(len(gpus)), 2), case.link_ms, strict=True):
        gb_per_s[a, b] = gb_per_s[b, a] = 1000 * 1024 * 2 / 1e9 / ms
    return Problem(
        Cluster(tuple(gpus), gb_per_s), model, workload, times, 2, same_type_stages=False
    )
