"""Objectives besides throughput: least cost, least latency and their fronts, against brute force."""

import dataclasses
import signal
import threading

import numpy as np
import pytest
from small_problems import PRICES, every_pair, free, hourly, late, per_million, priced, small

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine import deadline
from pipelab.engine.objective_and_bound import status_and_least
from pipelab.hardware.known_clusters import cluster_of_counts

CLOSE = 3e-6  # a solver's tolerance, and half as much again
# Some that differ by a few parts in 10,000, so that near ties are common; and some in no whole cents.
TABLES = [PRICES, [0.5, 0.5001, 0.5002, 0.9998], [0.350001, 0.500003, 1.250007, 2.990011]]


def floors(rates, seed):
    """Floors that bind: none, a rate of some placement, the greatest there is, and more than that."""
    top = max(rates, default=1.0)
    some = float(np.random.default_rng(seed).choice(sorted(rates))) if rates else 0.5
    return [0.0, some, top, 1.01 * top]


def budgets(prices, seed):
    """Budgets that bind: the price of some placement, the least there is, and less than that."""
    some = float(np.random.default_rng(seed).choice(sorted(prices))) if prices else 1.0
    least = min(prices, default=1.0)
    return [some, least, 0.99 * least, sum(prices) + 1.0]


def unbeaten(pairs):
    """Of pairs of cost and rate those for whose cost no other has as much, by cost."""
    return sorted(
        p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in pairs)
    )


def check_against(every, result, floor=0.0):
    """`every`: (throughput, value) of all placements."""
    values = [value for rate, value in every if rate >= floor * (1 - 1e-10)]
    if not values:
        assert result.status == "infeasible", (floor, result)
        assert result.placement is None
        assert result.objective.value is None
        return
    assert result.status == "optimal", (floor, min(values), result)
    assert result.objective.value == result.objective.bound == pytest.approx(min(values), rel=1e-9)
    assert result.gap == 0
    assert result.evaluation.throughput == result.throughput >= floor * (1 - 1e-9)


# Against brute force


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_the_best_within_a_budget_is_the_best_of_all_within_it(seed):
    problem = priced(small(seed, link_units="tokens"), seed)
    every = [(hourly(problem, gpus), gpus, rate, s) for rate, gpus, s in oracle.passes(problem)]
    for budget in budgets([paid for paid, *_ in every], seed):
        within = [each for each in every if each[0] <= budget * (1 + 1e-9)]
        result = pl.solve(problem, budget=budget)
        if within:
            assert result.status == "optimal", result
            best = max(rate for _, _, rate, _ in within)
            assert result.throughput == result.bound == pytest.approx(best, rel=1e-9)
            assert hourly(problem, result.placement.gpus) <= budget * (1 + 1e-9)
        else:
            assert (result.status, result.placement) == ("infeasible", None)
        cheapest = pl.solve(problem, objective="cost", budget=budget)
        check_against([(r, per_million(problem, g, r)) for _, g, r, _ in within], cheapest)
        quickest = pl.solve(problem, objective="latency", budget=budget)
        check_against([(rate, seconds) for *_, rate, seconds in within], quickest)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(90))
def test_the_cheapest_is_the_cheapest_of_all(seed):
    problem = priced(small(seed), seed, TABLES[seed % 3])
    every = [
        (rate, per_million(problem, gpus, rate)) for rate, gpus, _ in oracle.placements(problem)
    ]
    for floor in floors([r for r, _ in every], seed):
        result = pl.solve(problem, objective="cost", at_least=floor)
        check_against(every, result, floor)
        if result.placement:
            paid = per_million(problem, result.placement.gpus, result.throughput)
            assert result.objective.value == pytest.approx(paid, rel=1e-12)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", [31, *range(31), *range(32, 90)])  # 31: what is in flight binds
def test_the_quickest_is_the_quickest_of_all(seed):
    """Without latencies of links, with them, and with the roofline's costs."""
    if seed % 3 == 1:
        problem = late(roofline_oracle.random_problem(seed, layers=4, gpus=4), seed)
    else:
        problem = small(seed, link_units="tokens")
        problem = late(problem, seed) if seed % 3 else problem
    every = [(rate, seconds) for rate, _, seconds in oracle.attained(problem)]
    for floor in floors([r for r, _ in every], seed):
        result = pl.solve(problem, objective="latency", at_least=floor)
        check_against(every, result, floor)
        if result.placement:
            assert result.objective.value == result.evaluation.seconds_per_pass
            placed = pl.timeline_of(problem, result)
            assert placed.latency_s == pytest.approx(result.objective.value, rel=1e-9)
            assert placed.steady_rate == pytest.approx(result.throughput, rel=1e-6)
    best = pl.solve(problem, "aggregated")  # latencies delay, and take nothing from any rate
    if every:
        assert best.throughput == pytest.approx(max(r for r, _ in every), rel=1e-9)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", [32, *range(32), *range(33, 60)])  # 32: two points of one time
@pytest.mark.parametrize(
    "against", ["gpus", "usd_per_hour", "usd_per_million_tokens", "seconds_per_pass"]
)
def test_the_fronts_are_the_pareto_fronts(against, seed):
    problem = priced(small(seed, link_units="tokens"), seed, TABLES[seed % 3])
    worth = {
        "gpus": lambda rate, gpus, seconds: len(gpus),
        "usd_per_hour": lambda rate, gpus, seconds: hourly(problem, gpus),
        "usd_per_million_tokens": lambda rate, gpus, seconds: per_million(problem, gpus, rate),
        "seconds_per_pass": lambda rate, gpus, seconds: seconds,
    }[against]
    every = {(round(worth(*one), 7), round(one[0], 6)) for one in oracle.passes(problem)}
    curve = pl.trade_off(problem, against)
    assert curve.complete
    assert all(p.status == "optimal" for p in curve.points)
    frame = curve.to_frame() if curve.points else {against: [], "throughput_tokens_per_s": []}
    found = zip(frame[against], frame["throughput_tokens_per_s"], strict=True)
    assert sorted(found) == [
        (pytest.approx(x, rel=1e-6), pytest.approx(y, rel=1e-6)) for x, y in unbeaten(every)
    ]


def far_apart(seed):
    """Links that spread over up to 40 orders of magnitude, or half of them practically absent."""
    rng, problem = np.random.default_rng(seed + 10**6), small(seed, link_units="tokens")
    shape = (len(problem.cluster),) * 2
    slower = 10.0 ** rng.uniform(-rng.choice([3, 8, 14, 20, 40]), 0, shape)
    if rng.random() < 0.5:
        slower = np.where(rng.random(shape) < 0.5, 1.0, 10.0 ** -rng.uniform(10, 40))
    links = problem.cluster.bandwidth_matrix() * slower
    return dataclasses.replace(problem, cluster=pl.Cluster(problem.cluster.gpus, links))


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", [40, 26, 29, 43, 73, 86, 159])
def test_links_that_are_practically_absent_are_not_taken(seed):
    """A message of years beside stages of milliseconds: no solver carries both in one sum."""
    problem = far_apart(seed)
    every = [(rate, seconds) for rate, _, seconds in oracle.passes(problem)]
    for floor in floors([r for r, _ in every], seed)[:3]:
        check_against(every, pl.solve(problem, objective="latency", at_least=floor), floor)
    curve = pl.trade_off(problem, "seconds_per_pass")
    found = [(p.throughput, p.objective.value) for p in curve.points]
    for rate, seconds in every:  # each is reached by a point
        assert any(r >= rate * (1 - 1e-9) and s <= seconds * (1 + 1e-8) for r, s in found)


# What has no answer


def refusals():
    """What is missing or does not go together, by the message: links without times, GPUs without prices."""
    tiny, halves = pl.load_case("tiny"), pl.Placement.of([(2, (0,)), (2, (1,))])
    transfers = "'transfers'"
    return (
        (transfers, lambda: pl.solve(tiny, objective="latency")),
        (transfers, lambda: pl.trade_off(tiny, "seconds_per_pass")),
        ("'tokens'", lambda: pl.evaluate(tiny, halves).seconds_per_pass),
        ("A100, V100 have none", lambda: pl.solve(tiny, objective="cost")),
        ("A100, V100 have none", lambda: pl.trade_off(tiny, "usd_per_million_tokens")),
        ("usd_per_hour for every GPU", lambda: pl.solve(tiny, budget=1.0)),
        (r"budget = 0: .*\$ per hour", lambda: pl.solve(priced(tiny), budget=0)),
        ("no option 'budget'", lambda: pl.solve(priced(tiny), "even", budget=1.0)),
        ("without limits", lambda: pl.certificate(pl.solve(priced(tiny), budget=20.0))),
        ("greatest throughput", lambda: pl.certificate(pl.solve(priced(tiny), objective="cost"))),
    )


@pytest.mark.parametrize(("message", "ask"), refusals())
def test_what_is_missing_is_named(message, ask):
    with pytest.raises(pl.PipelabError, match=message):
        ask()


def test_links_that_carry_transfers_have_a_time_where_there_is_one_gpu():
    tiny = pl.load_case("tiny")
    alone = dataclasses.replace(tiny, cluster=pl.Cluster(tiny.cluster.gpus[:1], np.zeros((1, 1))))
    result = pl.solve(alone, objective="latency")
    assert result.objective.value == pytest.approx(2048 * 16 / result.throughput, rel=1e-12)


@pytest.mark.parametrize("goal", ["latency", "cost"])
def test_too_many_compositions_are_not_listed_and_a_first_placement_is_there(goal):
    """40 GPUs of 40 sizes of memory, whose mixed stages have to be listed."""
    pool = tuple(pl.GPU("A100", 80.0 + i, 1.5) for i in range(40))
    many = pl.Cluster(pool, np.random.default_rng(0).uniform(1, 2, (40, 40)))
    tiny = pl.load_case("tiny", max_gpus_per_stage=6, link_units="tokens")
    problem = dataclasses.replace(tiny, cluster=many, batch_split="balanced")
    for limit in (0, None):
        result = pl.solve(problem, objective=goal, time_limit=limit)
        assert (result.status, result.stopped_by) == ("feasible", "list limit")
        assert pl.evaluate(result.problem, result.placement).throughput == result.throughput


def test_mixtures_too_many_to_list_are_not_blamed_on_the_time(monkeypatch):
    """Nothing is proven where some are left out."""
    monkeypatch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 1)
    problem = priced(oracle.random_problem(67, gpus=5, layers=4, max_gpus_per_stage=3), 67)
    result = pl.solve(problem, objective="cost", time_limit=60)
    assert (result.status, result.stopped_by) == ("feasible", "list limit")


# Ended early


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("end", ["at once", "soon", "stop"])
def test_what_ends_a_search_leaves_a_valid_bound(seed, end):
    """Where memory keeps the best placement from its rate, and where nothing does."""
    if seed % 2:
        problem = priced(small(seed, link_units="tokens"), seed)
    else:
        problem = free({0: 54, 2: 90}.get(seed, seed))
    every = every_pair(problem)
    asked = {
        "throughput": [-rate for rate, *_ in every],
        "cost": [per_million(problem, used, rate) for rate, _, used, _ in every],
        "latency": [seconds for *_, seconds in every],
    }
    stop = threading.Event()
    stop.set()
    options = {"at once": {"time_limit": 0}, "soon": {"time_limit": 0.01}, "stop": {"stop": stop}}
    for objective, values in asked.items():
        result = pl.solve(problem, objective=objective, **options[end])
        if not values:
            assert result.status in ("infeasible", "unknown")
            continue
        assert result.status in ("optimal", "feasible", "unknown")
        bound, value = -(result.bound or 0.0), -(result.throughput or 0.0)
        if result.objective:
            bound, value = result.objective.bound, result.objective.value
        assert bound <= min(values) + CLOSE * abs(min(values))
        if result.placement:
            assert value >= min(values) - CLOSE * abs(min(values))
        if result.status != "optimal":
            assert result.stopped_by == ("stop" if end == "stop" else "time limit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("against", "how"),
    [("gpus", "stop"), ("usd_per_million_tokens", "interrupt"), ("seconds_per_pass", "stop")],
)
def test_a_front_that_is_ended_early_keeps_its_points(against, how):
    problem = priced(pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens"))
    whole, stop, points = pl.trade_off(problem, against), threading.Event(), []
    assert len(whole.points) > 1

    def end(point):
        points.append(point)
        stop.set() if how == "stop" else signal.raise_signal(signal.SIGINT)

    curve = pl.trade_off(problem, against, stop=stop, on_point=end)
    first = whole.points[0 if against == "gpus" else -1]
    assert not curve.complete
    assert [p.throughput for p in points] == [first.throughput]
    assert points[0] in curve.points
    for found in curve.points:  # what else was found when it ended is not called proven
        assert found is points[0] or found.status == "feasible"
        assert pl.evaluate(problem, found.placement).throughput == found.throughput
    ended = pl.trade_off(problem, against, time_limit=0.0)
    assert not ended.complete
    assert [p.status for p in ended.points] == ["feasible"] * (against != "gpus")


def test_a_bound_above_the_value_is_an_error():
    with pytest.raises(pl.PipelabError, match="one of them is wrong"):
        status_and_least(2.0, 2.1)


# What a result says of itself, and what it begins with


def of_eight_types(**rules):
    """116 GPUs, of which one node alone has the shortest pass."""
    counts = {"T4": 16, "L4": 16, "A10G": 12, "V100-SXM-32": 8, "L40S": 16}
    counts |= {"A100-SXM-40": 16, "A100-SXM-80": 16, "H100-SXM": 16}
    load, options = pl.Workload(2048, 8, "decode"), {"max_gpus_per_stage": 8} | rules
    model, cluster = pl.load_model("Llama-3-70B"), cluster_of_counts(counts, 8, 100.0)
    return pl.Problem(cluster, model, load, pl.Roofline(), **options)


@pytest.mark.parametrize("same_type", [True, False])
def test_the_first_placement_of_many_types_is_a_node_that_has_the_shortest_pass(
    same_type,
):
    problem = of_eight_types(same_type_stages=same_type)
    node = [g for g, gpu in enumerate(problem.cluster.gpus) if gpu.type == "H100-SXM"][:8]
    alone = pl.evaluate(problem, pl.Placement.of([(80, node)])).seconds_per_pass
    result = pl.solve(problem, objective="latency", time_limit=0)
    assert result.objective.value <= alone


@pytest.mark.slow
def test_the_first_deployment_for_a_load_is_not_the_whole_fleet(monkeypatch):
    monkeypatch.setattr(deadline, "clock", lambda: 0.0)  # of a machine that lists stages in no time
    problem = of_eight_types(same_type_stages=True)
    fleet = sum(gpu.usd_per_hour for gpu in problem.cluster.gpus)
    found = pl.deploy(problem, at_least=500, time_limit=0)
    assert found.throughput >= 500
    assert found.usd_per_hour < fleet / 10


@pytest.mark.slow
def test_more_gpus_per_stage_than_there_are_count_as_all_of_them():
    tiny = priced(pl.load_case("tiny", link_units="tokens"), 0)
    four, more = (dataclasses.replace(tiny, max_gpus_per_stage=most) for most in (4, 10**9))
    for goal in ("throughput", "latency", "cost"):
        one, other = (pl.solve(problem, objective=goal) for problem in (four, more))
        assert (one.status, one.throughput) == ("optimal", other.throughput)
    assert pl.deploy(four).throughput == pl.deploy(more).throughput
