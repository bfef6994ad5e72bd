"""The stage-flow program against all pipelines, for seconds, GPUs and price, with limits and circuits."""

import dataclasses
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from small_problems import hourly, priced

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine.deadline import NEVER
from pipelab.engine.instance import instance_of
from pipelab.engine.rate_search import least
from pipelab.engine.reach import AtRate
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.linear_program import LinearProgram, RowBlock, VariableGroups

CLOSE = 3e-6  # the solver's tolerance, and half as much again
KINDS = {
    "plain": {"twins": True},
    "each link its own": {},
    "layers that differ": {"unlike": True},
    "one GPU": {"gpus": 1},
}


def small(seed, kind):
    problem = oracle.random_problem(seed, layers=4, **KINDS[kind] | {"link_units": "tokens"})
    problem = priced(problem, seed)
    rng = np.random.default_rng([seed, 1])
    pool, matrix = problem.cluster.gpus, problem.cluster.bandwidth_matrix()
    if kind == "plain":  # many of one type in two nodes: stages of one kind can close to a circuit
        node = np.sort(rng.integers(0, 2, len(pool)))
        pool = tuple(dataclasses.replace(pool[0], memory_gb=20.0) for _ in pool)
        speeds = rng.uniform(0.1, 3, (2, 2)) * matrix.max()
        matrix = speeds[np.ix_(node, node)]
    late = 1000 * float(np.median(problem.message_seconds(matrix, 0.0)))
    late = late * rng.choice([0.0, 2.0]) if seed % 2 else 0.0
    return dataclasses.replace(problem, cluster=pl.Cluster(pool, matrix, None, late))


def ends_differ(seed):
    """An embedding and a head: layers alike but for the ends."""
    problem = roofline_oracle.random_problem(seed, layers=5, gpus=4, max_gpus_per_stage=2)
    return priced(problem, seed).with_in_flight(1)


def check(problem, rng):
    """The least of everything, alone and under a limit on something else."""
    instance, whats = instance_of(problem), ("seconds", "gpus", "price")
    every = [
        (rate, {"seconds": seconds, "gpus": len(used), "price": hourly(problem, used)})
        for rate, used, seconds in oracle.passes(problem)
    ]
    floors = [0.0, *(rng.choice([r for r, _ in every], 2) if every else [])]
    for floor, what in product(floors, whats):
        reach = [uses for rate, uses in every if rate >= floor * (1 - 1e-9)]
        other = str(rng.choice([w for w in whats if w != what]))
        for most in (np.inf, float(np.median([u[other] for u in reach])) if reach else 1.0):
            allowed = [u for u in reach if u[other] <= most * (1 + 1e-7)]
            limits = {other: most} if most < np.inf else {}
            timed = "seconds" in (what, other if limits else what)
            found = least(AtRate(instance, floor * (1 - 1e-9), timed), {what: 1.0}, limits)
            assert found.stopped_by is None
            if not allowed:
                assert (found.placement, found.bound) == (None, np.inf)
                continue
            truth = min(u[what] for u in allowed)
            assert truth * (1 - CLOSE) <= found.bound <= truth * (1 + 1e-9)
            evaluated, gpus = pl.evaluate(problem, found.placement), found.placement.gpus
            assert evaluated.rate >= floor * (1 - 1e-8)
            seconds, price = evaluated.seconds_per_pass, hourly(problem, gpus)
            own = {"seconds": seconds, "gpus": len(gpus), "price": price}
            assert own[what] == pytest.approx(truth, rel=CLOSE)
            assert own[other] <= most * (1 + CLOSE)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_the_least_of_all_pipelines(seed, kind):
    check(small(seed, kind), np.random.default_rng(seed))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "seed", [26, *range(26), *range(27, 30)]
)  # 26: hops close apart from the walk
def test_the_least_where_the_ends_differ(seed):
    check(ends_differ(seed), np.random.default_rng(seed))


def test_a_feasible_program_stays_feasible_without_presolve():
    """HiGHS 1.14's presolve calls this program infeasible; SCIP solves it."""
    stored = json.loads((Path(__file__).parents[1] / "data" / "called_infeasible.json").read_text())
    columns = VariableGroups(stored["groups"])
    infinite = {"inf": np.inf, "-inf": -np.inf}

    def numbers(values):
        return np.array([infinite.get(x, x) for x in values], dtype=float)

    rows = {
        name: RowBlock(
            sp.csr_array((numbers(b["values"]), (b["rows"], b["columns"])), shape=(len(b["lower"]), columns.total)),
            numbers(b["lower"]), numbers(b["upper"]),
        )
        for name, b in stored["blocks"].items()
    }  # fmt: skip
    program = LinearProgram(
        columns, np.zeros(columns.total), numbers(stored["upper"]), np.array(stored["integer"]),
        numbers(stored["objective"]), rows,
    )  # fmt: skip
    scip, highs = (
        choice.run_program(program, solver, deadline=NEVER) for solver in ("scip", "highs")
    )
    assert scip.status == highs.status == "optimal"
    assert highs.objective == pytest.approx(scip.objective, rel=1e-6)
