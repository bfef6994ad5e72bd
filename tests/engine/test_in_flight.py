"""Attainable rates: what memory holds in flight, chosen with the placement, against all pairs of the two."""

import dataclasses
import math
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from small_problems import every_pair, free, hourly, per_million, random_placement

import oracle
import pipelab as pl
import roofline_oracle

# Sums of times come from a solver: as close as `tolerances.ATTAINED`, and half as much again.
CLOSE = 3e-6


# Of the first three, each takes more than solving again for what the last answer needs; nothing fits the fourth.
SEEDS = (54, 119, 2, 1, 90, 103, 140, 207, 345, 0, *range(3, 40))


@cache  # asked by several tests
def answered(seed):
    problem = free(seed)
    return problem, every_pair(problem), pl.solve(problem, "aggregated")


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_most_of_all_pairs(seed):
    problem, pairs, answer = answered(seed)
    if not pairs:
        assert (answer.status, answer.placement, answer.throughput) == ("infeasible", None, None)
        assert answer.reason
        return
    most = max(pair[0] for pair in pairs)
    assert answer.status == "optimal"
    assert answer.throughput == pl.evaluate(problem, answer.placement).attainable
    assert answer.throughput == pytest.approx(most, rel=CLOSE)
    assert answer.throughput <= most * (1 + 1e-9)
    assert answer.bound >= most * (1 - CLOSE)
    assert answer.to_frame()["in_flight"][0] == answer.to_dict()["in_flight"] == answer.in_flight


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_within_a_budget_it_is_the_most_of_all_pairs_that_cost_no_more(seed):
    problem, pairs, _ = answered(seed)
    prices = sorted({hourly(problem, gpus) for _, _, gpus, _ in pairs})
    for budget in prices[:: max(1, len(prices) // 4)]:
        answer = pl.solve(problem, budget=budget)
        most = max(
            rate for rate, _, gpus, _ in pairs if hourly(problem, gpus) <= budget * (1 + 1e-9)
        )
        assert answer.status == "optimal"
        assert answer.throughput == pytest.approx(most, rel=CLOSE)
        assert hourly(problem, answer.placement.gpus) <= budget * (1 + 1e-9)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", [54, 3, 1, *range(4, 10), 0, 2, 103, 207])
def test_of_several_batches_it_is_the_most_of_all(seed):
    """What one batch attains is what the others have to beat, and what is ruled out by it is less."""
    problem = free(seed)
    own = problem.workload.batch_size
    sizes = sorted({max(1, own // 3), own, 2 * own, 3 * own})
    loads = [dataclasses.replace(problem.workload, batch_size=size) for size in sizes]
    each = [every_pair(dataclasses.replace(problem, workload=load)) for load in loads]
    most = max((pair[0] for pairs in each for pair in pairs), default=None)
    answer = pl.solve(problem, "aggregated", batches=sizes)
    assert answer.status == ("infeasible" if most is None else "optimal")
    if most is not None:
        assert answer.throughput == pytest.approx(most, rel=CLOSE)
        assert answer.throughput == pl.evaluate(answer.problem, answer.placement).attainable


@pytest.mark.slow
def test_the_random_problems_ask_for_something():
    """Memory keeps the best placement from its rate, and the answer takes more than the greatest rate."""
    for seed in SEEDS[:3]:
        problem, _, answer = answered(seed)
        rate = pl.solve(problem, "aggregated", "rate")
        assert answer.throughput < rate.throughput * (1 - 1e-6)
        assert answer.throughput < answer.evaluation.rate * (1 - 1e-6)
        assert any(r.solved_for != "rate" for r in answer.details["rounds"])


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulator_attains_it_and_no_more_with_memory_counted_at_every_moment(seed):
    problem, _, answer = answered(seed)
    if answer.placement is None:
        return
    n, tokens, rate = answer.in_flight, problem.workload.tokens, answer.throughput
    passes = 40 * n
    placed = pl.timeline_of(problem, answer.placement, microbatches=passes, in_flight=n)
    assert placed.steady_rate == pytest.approx(rate, rel=1e-9)
    start, end = (t.reshape(-1, passes) for t in (placed.timeline.start, placed.timeline.end))
    entered, left = start[0], end[-1] + placed.leaving
    # n later ones have left, once it is full, in the time that the rate says; never have more.
    assert n * tokens / (left[-1] - left[-1 - n]) == pytest.approx(rate, rel=1e-9)
    assert passes * tokens / left[-1] <= rate * (1 + 1e-9)
    there = [int((entered <= t).sum() - (left <= t * (1 + 1e-12)).sum()) for t in entered]
    assert max(there) <= n
    for stage in answer.placement.stages:  # each holds the cache of all that are there
        loaded = problem.with_in_flight(max(there))
        assert oracle.stage(loaded, stage.gpus, stage.layers) is not None


def scanned(problem, placement, numbers):
    """(attainable rate, fewest in flight that have it) by trying one number after the other."""
    best, tokens = (0.0, 0), problem.workload.tokens
    for n in numbers:
        own, rates, seconds = problem.with_in_flight(n), [], []
        for stage in placement.stages:
            rates.append(oracle.stage(own, stage.gpus, stage.layers))
            if rates[-1] is None:
                return best
            seconds.append(oracle.pass_seconds(own, stage.gpus, stage.layers))
        for a, b in pairwise(placement.stages):
            rates.append(oracle.link(own, a.gpus, b.gpus))
            seconds.append(oracle.message_seconds(own, a.gpus, b.gpus))
        found = min(*rates, n * tokens / math.fsum(seconds))
        if found > best[0] * (1 + 1e-12):
            best = found, n
    return best


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(40))
def test_the_evaluator_finds_the_number_that_yields_most(seed):
    problem, rng = free(seed, prefer="time" if seed % 2 else "rate"), np.random.default_rng(seed)
    for _ in range(6):
        placement = random_placement(problem, rng)
        try:
            found = pl.evaluate(problem, placement)
        except pl.errors.InvalidPlacement:
            continue
        rate, n = scanned(problem, placement, range(1, 100))
        assert found.attainable == found.throughput == pytest.approx(rate, rel=1e-9)
        assert found.in_flight == n
        own = problem.with_in_flight(n)  # what is given stays
        assert pl.evaluate(own, placement).attainable == found.attainable
        assert found.in_flight_needed >= 1


def test_by_time_a_later_mode_may_have_the_higher_rate():
    """With memory for two in flight two GPUs cut the layers; with more they share the batch, and yield more."""
    problem = roofline_oracle.random_problem(2, layers=3, gpus=2)
    model = dataclasses.replace(
        problem.model, latent=None, kv_heads=1, precision="int4", kv_precision="bf16", vocab=100, window=None,
        full_layers=(),
    )  # fmt: skip
    gpu = dataclasses.replace(problem.cluster.gpus[0], node="n", node_gb_per_s=900.0)
    costs = dataclasses.replace(problem.costs, prefer="time", tensor_parallel=True)
    problem = dataclasses.replace(
        problem, model=model, max_gpus_per_stage=2, batch_split="even", costs=costs,
        workload=pl.Workload(8192, 3, "prefill", in_flight=2), cluster=pl.Cluster((gpu, gpu), [[50.0]], [0, 0]),
    )  # fmt: skip
    need = roofline_oracle.memory_gb(problem, gpu, range(model.layers), 3, 2)
    need -= (1 - costs.memory_share) * gpu.memory_gb
    sized = dataclasses.replace(gpu, memory_gb=1.001 * need / costs.memory_share)
    cluster = pl.Cluster((sized, sized), [[50.0]], [0, 0])
    problem = dataclasses.replace(problem, cluster=cluster).with_in_flight(None)
    placement = pl.Placement.of([(model.layers, (0, 1))])
    rate, n = scanned(problem, placement, range(1, 20))
    first = pl.evaluate(problem.with_in_flight(1), placement)
    found = pl.evaluate(problem, placement)
    assert (n, first.in_flight_needed) == (3, 1)
    assert (found.attainable, found.in_flight) == (pytest.approx(rate, rel=1e-9), n)
    assert found.attainable > first.rate * 1.01
    assert pl.solve(problem).throughput >= rate


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", [54, 1, 90, *range(2, 12), 0, 119, 122, 208, 400751])
def test_the_quickest_and_the_cheapest_that_attain_a_floor(seed):
    """Memory for one microbatch in 400751: in steps of a tolerance, the least cost would be 300,000 steps away."""
    problem, pairs, _ = answered(seed)
    worth = {
        "latency": lambda pair: pair[3],
        "cost": lambda pair: per_million(problem, pair[2], pair[0]),
    }
    for share, objective in product((0.0, 0.5, 0.99, 1.2), worth if pairs else ()):
        floor, value = share * max(pair[0] for pair in pairs), worth[objective]
        answer = pl.solve(problem, objective=objective, at_least=floor)
        reached = [value(pair) for pair in pairs if pair[0] >= floor]
        if not reached:
            assert answer.status == "infeasible"
            assert answer.reason
            continue
        lowest = min(value(pair) for pair in pairs if pair[0] >= floor * (1 - CLOSE))
        assert answer.status == "optimal"
        assert lowest * (1 - 2 * CLOSE) <= answer.objective.value <= min(reached) * (1 + 2 * CLOSE)
        assert answer.throughput >= floor * (1 - CLOSE)
        assert answer.throughput == pl.evaluate(answer.problem, answer.placement).attainable
        if objective == "latency":
            assert answer.evaluation.seconds_per_pass == answer.objective.value


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("units", ["tokens", "transfers"])
def test_where_memory_does_not_depend_on_it_the_rate_is_attained(units, seed):
    """Cost models without memory for a cache lose nothing; of links in transfers no number is told."""
    more = {"twins": seed % 2 == 0, "unlike": seed % 3 == 0, "link_units": units}
    problem = oracle.random_problem(seed, layers=4, **more)
    best, answer = oracle.best(problem), pl.solve(problem, "aggregated")
    assert answer.status == ("infeasible" if best is None else "optimal")
    if best is None:
        return
    assert answer.throughput == pytest.approx(best, rel=1e-9)
    assert answer.bound == pytest.approx(best, rel=1e-9)
    if units == "tokens":
        assert answer.in_flight == pl.timeline_of(problem, answer.placement).in_flight_needed
    elif len(answer.placement) > 1:
        assert answer.in_flight is None
    else:
        assert answer.in_flight == answer.evaluation.in_flight_needed


def test_the_objective_rate_is_that_of_a_full_pipeline():
    for seed in (54, 119, 2):
        problem = free(seed)
        answer = pl.solve(problem, objective="rate")
        most = max(row[0] for row in oracle.passes(problem.with_in_flight(1)))
        assert (answer.status, answer.throughput) == ("optimal", pytest.approx(most, rel=1e-9))
        assert (answer.memory_for, answer.in_flight) == (1, None)
        assert pl.evaluate(problem, answer.placement).attainable < answer.throughput


@pytest.mark.parametrize(("seed", "method"), [(2, "joint"), (119, "exhaustive"), (9, "even")])
def test_methods_that_cannot_choose_it_say_so(seed, method):
    problem, pairs, _ = answered(seed)
    answer = pl.solve(problem, method)
    found = pl.evaluate(problem, answer.placement)
    most = max(pair[0] for pair in pairs)
    assert answer.throughput == found.attainable <= most * (1 + CLOSE)
    assert answer.bound is None or answer.bound >= most * (1 - CLOSE)
    assert found.attainable < found.rate * (1 - 1e-6)
    assert answer.status == "feasible"
