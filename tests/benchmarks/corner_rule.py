"""Search for speeds worse than all T + 1 corners: `python tests/benchmarks/corner_rule.py [SECONDS] [even | balanced]`.

Draws small problems of three cost models, and speeds within their bands: every corner, and random ones, often at
an end of the band. The share that each placement keeps there is compared with its least share at the corners that the
rule names (`docs/within_the_error.md`). Where batches are split in proportion the rule is not claimed, and fails.
"""

import sys
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, count, pairwise, permutations, product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.costs import WrappedCosts
from pipelab.engine.methods.least_regret import (
    is_worst_with_one_slow,
    slow_one_by_one,
    tokens_per_s,
)
from pipelab.engine.speed_costs import with_speeds

RANDOM_SPEEDS = 48  # of each problem, beside its corners
TOLERANCE = 1e-9  # of a share


class EvenTimes(pl.LayerTimes):
    """With the promise that stages of several types are as fast as their slowest."""

    def mixes_as_slowest(self, problem):
        return problem.batch_split == "even"


@dataclass(frozen=True, eq=False, kw_only=True)
class RememberedTables(WrappedCosts):
    """A cost model that computes each of its tables once."""

    known: dict = field(default_factory=dict)

    def stage_tables(self, *asked):
        _, _, kinds, composition, _ = asked
        key = tuple(kinds), composition.tobytes()
        if key not in self.known:
            self.known[key] = self.costs.stage_tables(*asked)
        return self.known[key]


def drawn(seed, split):
    """A problem with links that bind at times, and the bands of its types."""
    rng = np.random.default_rng([seed, len(split)])
    problem = (roofline_oracle if seed % 3 == 2 else oracle).random_problem(seed, layers=5, gpus=4)
    if seed % 3 == 1:
        times = {name: float(rng.uniform(1, 20)) for name in "ABC"}
        problem = replace(problem, costs=EvenTimes(times))
    n, by = len(problem.cluster), 10 ** rng.uniform(-2, 1)
    bandwidth = by * problem.cluster.bandwidth_matrix() * rng.uniform(0.3, 1, (n, n))
    cluster = pl.Cluster(problem.cluster.gpus, bandwidth)
    problem = replace(problem, cluster=cluster, batch_split=split)
    types = dict.fromkeys(gpu.type for gpu in cluster.gpus)
    return problem, {name: float(rng.choice([0.05, 0.1, 0.2, 0.4, 0.7])) for name in types}


@lru_cache
def placements(gpus, layers, most):
    """All groups of GPUs, and of every placement the groups and spans of its stages, -1 where there are fewer."""
    groups = [g for size in range(1, most + 1) for g in combinations(range(gpus), size)]
    rows = []
    for number in range(1, min(gpus, layers) + 1):
        for chosen in permutations(range(len(groups)), number):
            members = [gpu for at in chosen for gpu in groups[at]]
            if len(members) == len(set(members)):
                for cuts in combinations(range(1, layers), number - 1):
                    rest = [(-1, 0, 0)] * (min(gpus, layers) - number)
                    spans = pairwise((0, *cuts, layers))
                    rows.append(
                        [(at, *span) for at, span in zip(chosen, spans, strict=True)] + rest
                    )
    return groups, np.array(rows)


def shares_kept(problem, bands, rng):
    """Shares of each placement at all speeds tried, shape (speeds, placements), those of the rule's corners first."""
    gpus, kinds = problem.cluster.gpus, problem.cluster.kinds
    most = min(problem.max_gpus_per_stage, len(gpus))
    groups, rows = placements(len(gpus), problem.model.layers, most)
    held = np.array([[[gpus[g] for g in group].count(kind) for kind in kinds] for group in groups])
    at, used = rows[..., 0], rows[..., 0] >= 0
    span = problem.model.spans.kind[rows[..., 1], np.maximum(rows[..., 2] - rows[..., 1] - 1, 0)]
    # Links between groups by their slowest pair.
    matrix = problem.cluster.bandwidth_matrix()
    slowest = np.array([[matrix[np.ix_(a, b)].min() for b in groups] for a in groups])
    link = np.where(np.isinf(slowest), np.inf, problem.link_throughput(slowest))
    of_links = np.where(used[:, 1:], link[at[:, :-1], at[:, 1:]], np.inf).min(
        axis=1, initial=np.inf
    )

    costs = RememberedTables(costs=problem.costs)
    asked = problem.model, problem.workload, kinds, held, problem.batch_split
    fits = costs.stage_tables(*asked).fits(kinds)
    if problem.same_type_stages:
        one = [len({gpus[g].type for g in group}) == 1 for group in groups]
        fits &= np.array(one)[:, None]
    able = np.where(used, fits[at, span], True).all(axis=1)
    if not able.any():
        return None
    ends = [(1 - share, 1 + share) for share in bands.values()]
    speeds = slow_one_by_one(bands) + [
        dict(zip(bands, corner, strict=True)) for corner in product(*ends)
    ]
    for _ in range(RANDOM_SPEEDS):
        inside = [rng.choice([low, high, rng.uniform(low, high)]) for low, high in ends]
        speeds.append(dict(zip(bands, map(float, inside), strict=True)))
    rates = []
    for one in speeds:
        table = with_speeds(costs, one).stage_tables(*asked).throughput
        stages = np.where(used, table[at, span], np.inf).min(axis=1)
        rates.append(np.minimum(stages, of_links)[able])
    changed = replace(problem, costs=with_speeds(problem.costs, one))
    _hold_against_evaluator(changed, groups, rows[able], rates[-1], int(rng.integers(able.sum())))
    return np.array(rates) / np.max(rates, axis=1)[:, None]


def _hold_against_evaluator(problem, groups, rows, rates, number):
    """Compare one of the rates with that of `pl.evaluate`."""
    stages = [(stop - start, groups[at]) for at, start, stop in rows[number] if at >= 0]
    evaluated = tokens_per_s(problem, pl.Placement.of(stages), full=True)
    assert abs(evaluated / rates[number] - 1) < TOLERANCE, (problem.name, stages)


def main(seconds=240, split="even"):
    begin, tried, worse, compared = time.monotonic(), 0, 0, 0
    for seed in count():
        if time.monotonic() - begin > float(seconds):
            break
        problem, bands = drawn(seed, split)
        problem = problem.with_in_flight(problem.workload.in_memory)
        if is_worst_with_one_slow(problem) != (split == "even"):
            continue
        shares = shares_kept(problem, bands, np.random.default_rng(seed))
        if shares is None:
            continue
        least = shares[: len(bands) + 1].min(axis=0)
        others = shares[len(bands) + 1 :]
        tried, compared = tried + 1, compared + others.size
        if (others < least * (1 - TOLERANCE)).any():
            worse += 1
            if split == "even":
                print(f"worse speeds elsewhere: problem {seed}, bands {bands}", flush=True)
    print(
        f"{tried:,} problems, {compared:,} shares of placements: {worse:,} problems have worse speeds elsewhere"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
