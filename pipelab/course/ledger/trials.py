"""General sentences put to the test: the joint ILP on random small problems, and its rows on pairs of allocations.

Random problems are seeded and need two stages or more; brute force says what is true of each.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING, cast

import numpy as np

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.comparisons import Trial, tried
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.engine.formulations.candidates import Candidates
    from pipelab.problem import Problem

NEEDED = 16  # random problems
TYPES = ("A100", "V100", "H100", "RTX4090", "L20", "A10", "A40", "T4")


def _random(shared: "SharedResults", number: int) -> "Problem":
    """Two to four GPUs, two to four layers, every link with a speed of its own; GPUs hold one to five layers."""
    rng = np.random.default_rng(number)
    gpus, weight = int(rng.integers(2, 5)), float(rng.uniform(5, 20))
    # four layers on four GPUs take SCIP as long as all others
    layers = int(rng.integers(2, 4 if gpus == 4 else 5))
    memory = 2 + weight * rng.choice([1, 2, 3, 5], gpus)
    pool = tuple(pl.GPU(str(rng.choice(TYPES)), float(gb)) for gb in memory)
    model = replace(cast(pl.Model, shared.tiny.model), layers=layers, layer_weight_gb=weight)
    cluster = pl.Cluster(pool, rng.uniform(10, 100, (gpus, gpus)))
    return replace(shared.tiny, cluster=cluster, model=model, name=f"random problem {number}")


def _problems(shared: "SharedResults") -> list["Problem"]:
    """The first that have a placement, and whose best one has several stages."""
    found: list[Problem] = []
    number = 0
    while len(found) < NEEDED:
        problem = _random(shared, number)
        best = shared.once(pl.solve, problem, "exhaustive").placement
        if best is not None and len(best) > 1:
            found.append(problem)
        number += 1
        if number > 9 * NEEDED:
            raise pl.InvalidValue(
                "trials",
                [("random problems", len(found), f"expected {NEEDED} with several stages")],
            )
    return found


def _same(one: float | None, other: float | None, within: float = 1e-9) -> bool:
    return one is not None and other is not None and abs(one - other) <= within * abs(other)


def global_optimum(shared: "SharedResults") -> Trial:
    """Random problems on which the joint ILP's optimum is that of trying every placement."""
    return tried(
        (p.name, _same(shared.joint(p).throughput, shared.tried(p)))
        for p in shared.once(_problems, shared)
    )


def exact_bottleneck(shared: "SharedResults") -> Trial:
    """Random problems on which the program's own t is the rate of its placement, recomputed from the raw data."""
    found = []
    for problem in shared.once(_problems, shared):
        answer = shared.joint(problem)
        rate = pl.evaluate(problem, given(answer.placement)).throughput
        # SCIP's tolerance
        found.append((problem.name, _same(answer.details["solver_objective"], rate, within=1e-5)))
    return tried(found)


def _pairs(candidates: "Candidates") -> Iterator[tuple[int, int]]:
    """Pairs of allocations in layer order."""
    for a, b in combinations(range(len(candidates.start)), 2):
        yield (a, b) if candidates.start[a] <= candidates.start[b] else (b, a)


def _accepted(problem: "Problem", candidates: "Candidates", pair: tuple[int, int]) -> bool:
    """Whether the evaluator takes the two for a placement."""
    try:
        pl.evaluate(problem, candidates.placement(np.array(pair)))
    except pl.InvalidPlacement:
        return False
    return True


def _rows(shared: "SharedResults", by_layers: bool) -> Trial:
    """Where the other demand is met: pairs of tiny's allocations that a row allows exactly if the evaluator does."""
    problem = shared.tiny
    candidates = shared.once(course.enumerate_candidates, problem)
    sets = [set(candidates.sets[s]) for s in candidates.set_of]
    every = list(range(candidates.layers))
    found = []
    for a, b in _pairs(candidates):
        apart = not sets[a] & sets[b]
        covered = sorted(
            [
                *range(candidates.start[a], candidates.stop[a]),
                *range(candidates.start[b], candidates.stop[b]),
            ]
        )
        allowed, others = (covered == every, apart) if by_layers else (apart, covered == every)
        if others:
            found.append(
                (f"allocations {a} and {b}", allowed == _accepted(problem, candidates, (a, b)))
            )
    return tried(found)


def rows_cover_layers(shared: "SharedResults") -> Trial:
    """Pairs of allocations without a common GPU: a placement exactly if every layer is covered once."""
    return shared.once(_rows, shared, True)


def rows_separate_gpus(shared: "SharedResults") -> Trial:
    """Pairs of allocations that cover every layer once: a placement exactly if they share no GPU."""
    return shared.once(_rows, shared, False)


def links_of_neighbours(shared: "SharedResults") -> Trial:
    """Placements of tiny with two stages: the one connection between chosen allocations is the link of the two."""
    problem = shared.tiny
    candidates = shared.once(course.enumerate_candidates, problem)
    found = []
    for a, b in _pairs(candidates):
        if _accepted(problem, candidates, (a, b)):
            chosen = np.isin(candidates.tail, (a, b)) & np.isin(candidates.head, (a, b))
            between = [
                (int(t), int(h))
                for t, h in zip(candidates.tail[chosen], candidates.head[chosen], strict=True)
            ]
            found.append((f"allocations {a} and {b}", between == [(a, b)]))
    return tried(found)


def exact_pairs(shared: "SharedResults", per_stage: int) -> Trial:
    """Connections of small's first layers, each as fast as the slowest pair of its GPUs."""
    problem = shared.case("small", per_stage)
    problem = replace(problem, model=replace(cast(pl.Model, problem.model), layers=2))
    candidates, matrix = (
        shared.once(course.enumerate_candidates, problem),
        problem.cluster.bandwidth_matrix(),
    )
    tensor_gib = problem.tensor_gb() * 1e9 / 2**30  # as the write-up has it
    found = []
    for tail, head, rate in zip(
        candidates.tail, candidates.head, candidates.link_throughput, strict=True
    ):
        senders, receivers = (candidates.sets[candidates.set_of[a]] for a in (tail, head))
        slowest = min(float(matrix[i, j]) for i, j in product(senders, receivers))
        found.append((f"GPUs {senders} to {receivers}", _same(float(rate), slowest / tensor_gib)))
    return tried(found)


def sizes_agree(shared: "SharedResults") -> tuple[Trial, Trial]:
    """Over published cases: variables are 2(A + E) + 1, and A is at most segments times GPU sets."""
    variables, allocations = [], []
    for name, most in product(pl.cases(), (1, 2, 3)):
        size, gpus = shared.size(name, most), len(shared.case(name).cluster)
        sets = sum(len(list(combinations(range(gpus), k))) for k in range(1, most + 1))
        where = f"{name} with {most} GPUs per stage"
        pairs = size["allocations"] + size["connections"]
        variables.append((where, size["variables"] == 2 * pairs + 1))
        allocations.append((where, size["allocations"] <= size["segments"] * sets))
    return tried(variables), tried(allocations)


def slowest_type_counts(shared: "SharedResults") -> Trial:
    """Stages of two GPUs of any types: as fast as two of the slower type."""
    tiny, found = shared.tiny, []
    for one, other, layers in product(TYPES, TYPES, range(1, tiny.model.layers + 1)):
        rates = {
            types: tiny.costs.stage(
                tiny.model, tiny.workload, [pl.GPU(t, 80) for t in types], layers, "even"
            ).throughput
            for types in ((one, other), (one, one), (other, other))
        }
        slower = min(rates[one, one], rates[other, other])
        found.append((f"{one} and {other}, {layers} layers", _same(rates[one, other], slower)))
    return tried(found)


def straight_in_the_batch(shared: "SharedResults") -> Trial:
    """Every GPU type: ten sequences more bring as much at 10, 20 and 30 sequences."""
    tiny, found = shared.case("tiny"), []
    for kind, layers in product(TYPES, range(1, tiny.model.layers + 1)):
        rate = [
            float(tiny.costs.gpu_throughput(kind, tiny.workload, batch, layers))
            for batch in (10, 20, 30, 40)
        ]
        steps = np.diff(rate)
        found.append((f"{kind}, {layers} layers", bool(np.allclose(steps, steps[0]))))
    return tried(found)


def each_gpu_by_itself(shared: "SharedResults") -> Trial:
    """A stage of two of tiny's GPUs, layers of 2 to 20 GB: it fits exactly if it fits on two of each type."""
    tiny, found = shared.tiny, []
    pool = {kind.type: kind for kind in tiny.cluster.kinds}

    def fits(types: tuple[str, str], layers: int, weight: int) -> bool:
        cluster = pl.Cluster(tuple(pool[t] for t in types), np.full((2, 2), 400.0))
        model = replace(cast(pl.Model, tiny.model), layers=layers, layer_weight_gb=weight)
        try:
            pl.evaluate(
                replace(tiny, cluster=cluster, model=model), pl.Placement.of([(layers, (0, 1))])
            )
        except pl.InvalidPlacement:
            return False
        return True

    for layers, weight, (one, other) in product(
        range(1, tiny.model.layers + 1), range(2, 21, 2), product(pool, pool)
    ):
        each = fits((one, one), layers, weight) and fits((other, other), layers, weight)
        found.append(
            (
                f"{one} and {other}, {layers} layers of {weight} GB",
                fits((one, other), layers, weight) == each,
            )
        )
    return tried(found)
