"""Placement for training: equal to all placements through the simulator, anytime, and with reasons."""

from itertools import combinations, permutations

import numpy as np
import pytest

import pipelab as pl
from pipelab.costs import LayerTimes, TrainingCost

SCHEDULES = ("GPipe", "1F1B", "ZBH1", "ZBH2", "Interleaved1F1B", "ZBV")


class Trained:
    """Times per type of GPU, gradients and memory of their own: a cost model as a user may write one."""

    def __init__(self, rng, types, room=None):
        self.served = LayerTimes({t: float(rng.choice([1, 2, 3, 5, 7, 11])) for t in types})
        self.gpu_types, self.check = self.served.gpu_types, self.served.check
        self.link_throughput, self.stage = self.served.link_throughput, self.served.stage
        self.back = {t: float(rng.uniform(0.5, 2.5)) for t in types}
        self.weight = {t: float(rng.uniform(0.1, 1.5)) for t in types}
        self.step = float(rng.choice([0, 1e-3]))
        self.kept = float(rng.uniform(0.5, 2.0))

    def training_cost(self, problem, report, *, recompute="none", bytes_per_parameter=16):
        forward, first = report.seconds, report.gpu_types[0]
        n = problem.model.work(report.stage.layers)
        back = self.back[first] * forward + (forward if recompute == "full" else 0.0)
        kept = n * self.kept * (0.2 if recompute == "full" else 1.0)
        state = n * bytes_per_parameter / 16
        working = self.kept if recompute == "full" else 0.0
        step = self.step * n
        return TrainingCost(
            forward, back, self.weight[first] * forward, step, state, kept, 0.7 * kept, working
        )


def random_problem(rng, gpus=None, layers=None, most=1):
    """Few unlike GPUs, links that matter, memory that binds as often as not."""
    n, layers = gpus or int(rng.integers(2, 5)), layers or int(rng.integers(3, 6))
    types = [f"t{i}" for i in range(int(rng.integers(1, 4)))]
    tight = rng.random() < 0.6
    room = {t: float(rng.uniform(4, 14)) if tight else 1000.0 for t in types}
    each = [str(rng.choice(types)) for _ in range(n)]
    speeds = (
        rng.choice([0.02, 0.1, 1, 50], size=(n, n)) if rng.random() < 0.6 else np.full((n, n), 0.1)
    )
    latency = np.full((n, n), float(rng.choice([0, 2])))
    np.fill_diagonal(latency, 0)
    cluster = pl.Cluster(
        [pl.GPU(t, room[t]) for t in each], speeds.tolist(), latency_ms=latency.tolist()
    )
    factors = tuple(rng.choice([1.0, 1.5], size=layers)) if rng.random() < 0.3 else None
    model = pl.Model("random", layers, 256, 1024, 0.001, work_factors=factors)
    load = pl.Workload(
        64, int(rng.integers(1, 3)), "training", microbatches=int(rng.integers(1, 8))
    )
    return pl.Problem(
        cluster, model, load, Trained(rng, types), most, link_units="tokens", name="random"
    )


def placements(problem):
    """Every placement: groups of GPUs in every order, every cut."""
    n, layers, most = len(problem.cluster), problem.model.layers, problem.max_gpus_per_stage
    groups = [g for k in range(1, most + 1) for g in combinations(range(n), k)]
    for p in range(1, min(n, layers) + 1):
        for chosen in permutations(groups, p):
            if len({g for group in chosen for g in group}) < sum(map(len, chosen)):
                continue
            for cuts in combinations(range(1, layers), p - 1):
                ends = (0, *cuts, layers)
                sizes = [b - a for a, b in zip(ends, ends[1:], strict=False)]
                yield pl.Placement.of(list(zip(sizes, chosen, strict=True)))


def least(problem, schedule, recompute="none"):
    """The least step time of all placements that fit, by the simulator; infinite where none does."""
    best = np.inf
    for placement in placements(problem):
        try:
            step = pl.timeline_of(problem, placement, schedule=schedule, recompute=recompute)
        except pl.InvalidValue as error:
            assert "schedule" in str(error)  # the rule does not exist on so many ranks
            continue
        if not step.shortfall:
            best = min(best, step.timeline.iteration_time)
    return best


def compare(seed, schedule, recompute="none", **kind):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, **kind)
    expected = least(problem, schedule, recompute)
    result = pl.solve(problem, objective="step_time", schedule=schedule, recompute=recompute)
    if expected == np.inf:
        assert result.status == "infeasible", (seed, schedule, result.sentence)
        return "infeasible"
    assert result.status == "optimal", (seed, schedule, result.sentence)
    assert result.objective.value == pytest.approx(expected, rel=2e-9), (seed, schedule)
    assert not result.step.shortfall
    return "optimal"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_placement_is_faster(schedule):
    ended = [compare(seed, schedule, gpus=3, layers=4) for seed in range(4)]
    assert "optimal" in ended
