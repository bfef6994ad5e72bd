"""Attainable rates: what memory holds in flight, chosen with the placement, against all pairs of the two."""

import dataclasses
import math
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle

# Sums of times come from a solver: as close as `tolerances.ATTAINED`, and half as much again.
CLOSE = 3e-6


def every_pair(problem):
    """(attainable rate, in flight, GPUs used, seconds of a pass) of all placements with all numbers that help.

    By rate, a way to run a stage that is left with less memory is no faster: once as many are in flight as every
    placement needs, more are of no use.
    """
    own, tokens, found, n = problem.workload.in_flight, problem.workload.tokens, [], 0
    while True:
        n = own or n + 1
        rows = list(oracle.passes(problem.with_in_flight(n)))
        found += [(min(rate, n * tokens / s), n, used, s) for rate, used, s in rows]
        if own or all(n * tokens / s >= rate for rate, _, s in rows):
            return found


def tight(seed, late=False, prefer="rate"):
    """Random problems in which many microbatches do not fit: memory for a few of them on some span of layers."""
    problem = roofline_oracle.random_problem(seed, layers=5, gpus=4, max_gpus_per_stage=2)
    problem = dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, prefer=prefer))
    rng, m = np.random.default_rng(seed), problem.model.layers
    sized = {}
    for gpu in problem.cluster.kinds:
        span, n = range(int(rng.integers(1, max(2, m)))), int(rng.integers(1, 5))
        need = roofline_oracle.memory_gb(
            problem.with_in_flight(n), gpu, span, problem.workload.batch_size, 1
        )
        need -= (1 - problem.costs.memory_share) * gpu.memory_gb
        sized[gpu] = dataclasses.replace(
            gpu,
            memory_gb=1.001 * need / problem.costs.memory_share,
            usd_per_hour=float(rng.integers(20, 400)) / 100,
        )
    pool = tuple(sized[gpu] for gpu in problem.cluster.gpus)
    matrix = problem.cluster.bandwidth_matrix()
    sent = 1000 * float(np.median(problem.message_seconds(matrix, 0.0)))
    latency = sent * rng.choice([0.0, 2.0], matrix.shape) if late else 0.0
    return dataclasses.replace(problem, cluster=pl.Cluster(pool, matrix, None, latency))


def free(seed, prefer="rate"):
    """One of them, with the number in flight to be chosen."""
    return tight(seed, late=seed % 3 == 0, prefer=prefer).with_in_flight(None)


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
    assert f"with {answer.in_flight} in flight" in answer.sentence
    assert answer.to_frame()["in_flight"][0] == answer.to_dict()["in_flight"] == answer.in_flight


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_within_a_budget_it_is_the_most_of_all_pairs_that_cost_no_more(seed):
    problem, pairs, _ = answered(seed)

    def price(gpus):
        return sum(problem.cluster.gpus[g].usd_per_hour for g in gpus)

    prices = sorted({price(gpus) for _, _, gpus, _ in pairs})
    for budget in prices[:: max(1, len(prices) // 4)]:
        answer = pl.solve(problem, budget=budget)
        most = max(rate for rate, _, gpus, _ in pairs if price(gpus) <= budget * (1 + 1e-9))
        assert answer.status == "optimal"
        assert answer.under_limit == f"at most {budget:,.7g} $ per hour"
        assert answer.throughput == pytest.approx(most, rel=CLOSE)
        assert price(answer.placement.gpus) <= budget * (1 + 1e-9)


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


def some_placement(problem, rng):
    """Random cuts, one or two random GPUs per stage."""
    m, gpus = problem.model.layers, rng.permutation(len(problem.cluster)).tolist()
    number = int(rng.integers(1, min(len(gpus), m) + 1))
    cuts = [0, *sorted(rng.choice(np.arange(1, m), number - 1, replace=False).tolist()), m]
    sizes = [int(rng.integers(1, 3)) for _ in range(number)]
    ends = np.cumsum([0, *sizes])
    parts = [tuple(sorted(gpus[a:b])) for a, b in pairwise(ends)]
    if not all(parts):
        return None
    return pl.Placement.of((b - a, part) for a, b, part in zip(cuts, cuts[1:], parts, strict=False))


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(40))
def test_the_evaluator_finds_the_number_that_yields_most(seed):
    problem, rng = free(seed, prefer="time" if seed % 2 else "rate"), np.random.default_rng(seed)
    for _ in range(6):
        placement = some_placement(problem, rng)
        try:
            found = placement and pl.evaluate(problem, placement)
        except pl.errors.InvalidPlacement:
            continue
        if found is None:
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


def dollars(problem, pair):
    """What a million tokens cost."""
    return sum(problem.cluster.gpus[g].usd_per_hour for g in pair[2]) / pair[0] / 3600 * 1e6


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", [54, 1, 90, 208, *range(2, 12), 0, 119, 122])
def test_the_quickest_and_the_cheapest_that_attain_a_floor(seed):
    problem, pairs, _ = answered(seed)
    worth = {"latency": lambda pair: pair[3], "cost": lambda pair: dollars(problem, pair)}
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


@pytest.mark.slow
def test_the_least_cost_is_not_sought_in_steps_of_a_tolerance():
    """Memory for one microbatch: 300,000 steps of a millionth would follow."""
    problem = free(400751)
    floor = 0.99 * pl.solve(problem).throughput
    found = pl.solve(problem, objective="cost", at_least=floor, time_limit=60)
    assert found.status == "optimal"
    least = min(dollars(problem, pair) for pair in every_pair(problem) if pair[0] >= floor)
    assert found.objective.value == pytest.approx(least, rel=CLOSE)


@pytest.mark.quick(3)
@pytest.mark.parametrize(("seed", "number"), [(54, 5), (90, 2), (1, 1), (3, 5), (16, 2), (90, 1)])
def test_a_number_that_is_given_stays(seed, number):
    problem = free(seed).with_in_flight(number)
    pairs, answer = every_pair(problem), pl.solve(problem)
    if not pairs:
        assert answer.status == "infeasible"
        return
    most = max(pair[0] for pair in pairs)
    assert (answer.status, answer.in_flight) == ("optimal", number)
    assert answer.throughput == pytest.approx(most, rel=CLOSE)
    quickest = pl.solve(problem, objective="latency", at_least=0.9 * most)
    assert quickest.in_flight == quickest.problem.workload.in_flight == number
    assert quickest.objective.value <= min(p[3] for p in pairs if p[0] >= 0.9 * most) * (1 + CLOSE)


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
        assert "rate of a full pipeline with memory for 1 microbatch in flight" in answer.sentence
        assert pl.evaluate(problem, answer.placement).attainable < answer.throughput
    several = pl.solve(free(54).with_in_flight(2), objective="rate")
    assert "with memory for 2 microbatches in flight" in several.sentence


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
    assert "nothing is proven of attainable rates but the bound" in answer.reason
    assert "proven optimal in" not in answer.sentence


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "latency", "cost"])
@pytest.mark.parametrize("limit", [0.0, 0.05])
def test_ended_early_the_bound_holds(limit, objective):
    for seed in (54, 90):
        problem, _, whole = answered(seed)
        if objective == "throughput":
            answer = pl.solve(problem, time_limit=limit)
            assert answer.bound is None or answer.bound >= whole.throughput * (1 - CLOSE)
            if answer.placement:
                assert answer.throughput <= whole.throughput * (1 + CLOSE)
        else:
            floor = {"objective": objective, "at_least": 0.9 * whole.throughput}
            least, answer = pl.solve(problem, **floor), pl.solve(problem, **floor, time_limit=limit)
            bound, value = answer.objective.bound, answer.objective.value
            assert bound is None or bound <= least.objective.value * (1 + 2 * CLOSE)
            if answer.placement:
                assert value >= least.objective.value * (1 - 2 * CLOSE)
                assert answer.throughput >= 0.9 * whole.throughput * (1 - CLOSE)
        if answer.status not in ("optimal", "infeasible"):
            assert answer.stopped_by == "time limit"
            assert "; proven" not in answer.sentence
            assert ", proven" not in answer.sentence


def on_l4(number, context):
    """Llama-3-8B on so many L4."""
    cluster = pl.Cluster.from_counts({"L4": number}, 24, 1.0)
    load = pl.Workload(context, 8, "decode")
    return pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())


def test_the_simplest_case_by_hand():
    """Two L4: a cut where the one with the head has two layers less; rate, time and number by hand."""
    problem = on_l4(2, 4096)
    answer = pl.solve(problem)
    halves = pl.Placement.of([(17, (0,)), (15, (1,))])
    found = pl.evaluate(problem, halves)
    needs = math.ceil(found.rate * found.seconds_per_pass / 8 - 1e-9)
    assert found.in_flight == found.in_flight_needed == needs
    assert found.in_flight == pl.timeline_of(problem, halves).in_flight_needed
    assert answer.throughput == pytest.approx(found.rate)
    assert f"tokens/s with {needs} in flight, proven optimal" in answer.sentence
    none = pl.solve(on_l4(2, 400_000))
    assert none.status == "infeasible"
    assert "can hold at most 2 of the 32 layers" in none.sentence


def test_a_placement_that_memory_keeps_from_its_rate_says_what_would_reach_it():
    problem = on_l4(4, 16_384)
    answer = pl.solve(problem)
    found = answer.evaluation
    assert answer.status == "optimal"
    assert found.attainable < found.rate * (1 - 1e-6)
    assert f"of its rate, which {found.in_flight_needed} would reach" in answer.sentence
    rate = pl.solve(problem, objective="rate")
    held = pl.evaluate(problem, rate.placement)
    assert held.attainable <= answer.throughput * (1 + CLOSE)
    with pytest.raises(pl.errors.InvalidPlacement, match="needs"):
        pl.evaluate(problem.with_in_flight(10 * held.in_flight_needed), rate.placement)
