"""Objectives besides throughput: least cost, least latency and their fronts, against brute force."""

import dataclasses
import math
import signal
import threading

import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine.cheapest_walk import Found, Walk
from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.instance import instance_of
from pipelab.engine.methods import first_placements, fronts
from pipelab.engine.methods.first_placements import best_of, incumbents
from pipelab.engine.methods.fronts import raise_floor
from pipelab.engine.objective_and_bound import Objective, status_and_least
from pipelab.engine.rate_search import walks
from pipelab.engine.reach import Reach
from pipelab.engine.solvers import highs
from pipelab.engine.solvers.choice import run_program
from pipelab.hardware.known_clusters import cluster_of_counts
from pipelab.writeup.linear_rates import with_link_units

PRICES = [0.35, 0.5, 1.25, 2.99]


def priced(problem, seed=0, prices=PRICES):
    rng = np.random.default_rng(seed)
    price = {kind: float(rng.choice(prices)) for kind in problem.cluster.kinds}
    pool = tuple(dataclasses.replace(g, usd_per_hour=price[g]) for g in problem.cluster.gpus)
    return dataclasses.replace(
        problem, cluster=pl.Cluster(pool, problem.cluster.bandwidth_matrix())
    )


def small(seed, **fixed):
    """A random problem: unequal links, twins, different layers, mixed stages; every fifth a table with gaps."""
    problem = oracle.random_problem(
        seed, layers=4, twins=seed % 2 == 0, unlike=seed % 3 == 0, **fixed
    )
    if seed % 5 == 0:
        problem = dataclasses.replace(
            problem,
            costs=oracle.TableCosts(
                seed, slowest=seed % 10 == 0, link_units=problem.costs.link_units
            ),
        )
    return problem


def late(problem, seed):
    """The same with latencies about as long as a message takes, of few kinds, so that some GPUs stay alike."""
    rng, n = np.random.default_rng(seed), len(problem.cluster)
    matrix = problem.cluster.bandwidth_matrix()
    sent = 1000 * float(np.median(problem.message_seconds(matrix, 0.0)))
    node = rng.integers(0, 2, n)
    if seed % 3:
        latency = rng.choice([0.0, 0.3, 2.0], (2, 2))[np.ix_(node, node)]
    else:
        latency = rng.choice([0.0, 1.0], (n, n))
    return dataclasses.replace(
        problem, cluster=pl.Cluster(problem.cluster.gpus, matrix, None, sent * latency)
    )


def floors(rates, seed):
    """Floors that bind: none, a rate of some placement, the greatest there is, and more than that."""
    top = max(rates, default=1.0)
    some = float(np.random.default_rng(seed).choice(sorted(rates))) if rates else 0.5
    return [0.0, some, top, 1.01 * top]


def hourly(problem, gpus):
    return sum(problem.cluster.gpus[g].usd_per_hour for g in gpus)


def unbeaten(pairs):
    """Of pairs of cost and rate those for whose cost no other has as much, by cost."""
    return sorted(
        p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in pairs)
    )


def dollars(problem, gpus, rate):
    return hourly(problem, gpus) / (rate * 3600) * 1e6


def check_against(every, result, floor):
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


def budgets(prices, seed):
    """Budgets that bind: the price of some placement, the least there is, and less than that."""
    some = float(np.random.default_rng(seed).choice(sorted(prices))) if prices else 1.0
    least = min(prices, default=1.0)
    return [some, least, 0.99 * least, sum(prices) + 1.0]


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_the_best_within_a_budget_is_the_best_of_all_within_it(seed):
    problem = priced(small(seed), seed)
    every = list(oracle.placements(problem))
    timed = priced(oracle.random_problem(seed, layers=4), seed)
    timed = with_link_units(timed, "tokens")
    traversals = [(gpus, seconds) for _, gpus, seconds in oracle.passes(timed)]

    for budget in budgets([hourly(problem, gpus) for _, gpus, _ in every], seed):
        rates = [rate for rate, gpus, _ in every if hourly(problem, gpus) <= budget * (1 + 1e-9)]
        result = pl.solve(problem, budget=budget)
        if not rates:
            assert (result.status, result.placement) == ("infeasible", None)
            assert "more than the budget" in result.reason or not every
            continue
        assert result.status == "optimal", result
        assert result.throughput == result.bound == pytest.approx(max(rates), rel=1e-9)
        assert hourly(problem, result.placement.gpus) <= budget * (1 + 1e-9)
        assert f" among placements of at most {budget:,.7g} $ per hour in " in result.sentence
        cheapest = pl.solve(problem, objective="cost", budget=budget)
        each = [
            dollars(problem, g, r) for r, g, _ in every if hourly(problem, g) <= budget * (1 + 1e-9)
        ]
        assert cheapest.objective.value == pytest.approx(min(each), rel=1e-9)
        assert cheapest.status == "optimal"
        quickest = pl.solve(timed, objective="latency", budget=budget)
        paid = [hourly(timed, own) for own, _ in traversals]
        seconds = [
            s for p, (_, s) in zip(paid, traversals, strict=True) if p <= budget * (1 + 1e-9)
        ]
        assert quickest.status == ("optimal" if seconds else "infeasible")
        if seconds:
            assert quickest.objective.value == pytest.approx(min(seconds), rel=1e-9)


def test_a_budget_needs_prices_and_is_kept_to_whatever_ends_the_search():
    problem = priced(oracle.random_problem(2))
    for method in ("auto", "aggregated"):
        for objective in ("throughput", "rate", "cost", "latency"):
            own = with_link_units(problem, "tokens")
            for limit in (None, 0.0):
                found = pl.solve(own, method, objective, budget=2.0, time_limit=limit)
                if found.placement:
                    paid = hourly(own, found.placement.gpus)
                    assert paid <= 2.0 + 1e-9
                if limit is None:
                    assert " placements of at most 2 $ per hour" in found.sentence
                    with pytest.raises(pl.errors.InvalidValue, match="without limits"):
                        pl.certificate(found)
    for bad in (0, -1.0, math.inf, "2", True):
        for objective in ("throughput", "latency"):
            with pytest.raises(pl.errors.InvalidValue, match=r"\$ per hour, a number above 0"):
                pl.solve(with_link_units(problem, "tokens"), objective=objective, budget=bad)
    free = with_link_units(oracle.random_problem(2), "tokens")
    for objective in ("throughput", "latency"):
        with pytest.raises(pl.errors.InvalidValue, match=r"GPU\.usd_per_hour for every GPU"):
            pl.solve(free, objective=objective, budget=1.0)
    with pytest.raises(pl.errors.UnknownName, match="has no option 'budget'"):
        pl.solve(problem, "even", budget=1.0)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_is_the_cheapest_of_all(seed):
    problem = priced(small(seed), seed)
    every = [(rate, dollars(problem, gpus, rate)) for rate, gpus, _ in oracle.placements(problem)]
    for floor in floors([r for r, _ in every], seed):
        result = pl.solve(problem, objective="cost", at_least=floor)
        check_against(every, result, floor)
        if result.placement:
            paid = dollars(problem, result.placement.gpus, result.throughput)
            assert result.objective.value == pytest.approx(paid, rel=1e-12)


FINE = [0.350001, 0.500003, 1.250007, 2.990011]


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(36))
def test_prices_further_apart_than_a_solver_tells_apart_are_told_apart(seed):
    """Few prices that differ by a few parts in 10,000, so that near ties are common; budgets of every size."""
    near = [0.5, 0.5001, 0.5002, 0.9998] if seed % 2 else FINE
    problem = priced(small(seed, link_units="tokens"), seed, near)
    every = [
        (rate, dollars(problem, gpus, rate), gpus) for rate, gpus, _ in oracle.placements(problem)
    ]
    for floor in floors([r for r, *_ in every], seed):
        check_against(
            [e[:2] for e in every], pl.solve(problem, objective="cost", at_least=floor), floor
        )
    curve = pl.trade_off(problem, "usd_per_hour")
    assert curve.complete
    found = [(hourly(problem, p.placement.gpus), p.throughput) for p in curve.points]
    paid = {(round(hourly(problem, gpus), 6), round(rate, 6)) for rate, _, gpus in every}
    assert sorted(found) == [
        (pytest.approx(d, abs=1e-9), pytest.approx(r, rel=1e-6)) for d, r in unbeaten(paid)
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize("limit", [None, 60])
def test_mixtures_too_many_to_list_are_not_blamed_on_the_time(limit, monkeypatch):
    monkeypatch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 1)
    problem = priced(oracle.random_problem(67, gpus=5, layers=4, max_gpus_per_stage=3), 67)
    result = pl.solve(problem, objective="cost", time_limit=limit)
    assert (result.status, result.stopped_by) == ("feasible", "list limit")
    assert "stopped by list limit" in result.sentence


def test_a_price_that_is_missing_is_refused_before_anything_is_computed(monkeypatch):
    """However early the end: what is stopped while rates are listed has a placement, and no price to give it."""

    def too_late(*args, **options):
        raise Ended("time limit")

    medium = pl.load_case("medium")
    monkeypatch.setattr("pipelab.engine.in_flight.instance_of", too_late)
    for call in (
        lambda p: pl.solve(p, objective="cost"),
        lambda p: pl.trade_off(p, "usd_per_million_tokens"),
    ):
        with pytest.raises(
            pl.errors.InvalidValue,
            match=r"expected GPU\.usd_per_hour for every GPU; A10, A100, .* have none",
        ):
            call(medium)
    known = pl.solve(priced(medium), objective="cost")
    assert (known.status, known.stopped_by) == ("feasible", "time limit")
    assert known.objective.value > 0


@pytest.mark.slow
def test_cents_over_a_thousand_gpus_are_no_obstacle():
    """1,200 GPUs at up to 299 cents are 3.6 million cents; and a millionth of a dollar changes no answer."""

    def rented(prices, each):
        kinds = {"A100": (80, 300), "V100": (32, 300), "T4": (16, 300)}
        links = pl.Cluster.from_counts(
            dict.fromkeys(kinds, each), {t: m for t, (m, _) in kinds.items()}, 300, prices
        )
        model = dataclasses.replace(
            pl.load_case("tiny").model, layers=each * 3, layer_weight_gb=4.0
        )
        case = pl.load_case("demo", max_gpus_per_stage=2, link_units="tokens")
        costs = pl.writeup.load_coefficients()
        return dataclasses.replace(
            case, cluster=links, costs=costs, model=model, name=f"{3 * each} GPUs"
        )

    prices = {"A100": 2.99, "V100": 1.27, "T4": 0.41}
    problem = rented(prices, 400)
    result = pl.solve(problem, objective="cost", at_least=50)
    assert result.status == "optimal"
    assert result.objective.bound == result.objective.value
    few = rented(prices, 100)
    # the same but for a millionth
    cents = rented({t: p + 1e-6 * (t == "T4") for t, p in prices.items()}, 100)
    plain, split = (
        pl.solve(few, objective="cost", at_least=50),
        pl.solve(cents, objective="cost", at_least=50),
    )
    assert split.status == plain.status == "optimal"
    assert split.objective.value == pytest.approx(plain.objective.value, rel=1e-5)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_the_quickest_is_the_quickest_of_all(seed):
    problem = small(seed, link_units="tokens")
    every = [(rate, seconds) for rate, _, seconds in oracle.passes(problem)]
    for floor in floors([r for r, _ in every], seed):
        result = pl.solve(problem, objective="latency", at_least=floor)
        check_against(every, result, floor)
        if result.placement:
            assert (
                result.objective.value
                == result.evaluation.seconds_per_pass
                == result.details["seconds_per_pass"]
            )


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(36))
def test_the_quickest_knows_the_latency_of_every_link(seed):
    if seed % 2:
        problem = late(small(seed, link_units="tokens"), seed)
    else:
        problem = late(roofline_oracle.random_problem(seed, layers=4, gpus=4), seed)
    every = [(rate, seconds) for rate, _, seconds in oracle.passes(problem)]
    for floor in floors([r for r, _ in every], seed)[:2]:
        result = pl.solve(problem, objective="latency", at_least=floor)
        check_against(every, result, floor)
        if result.placement:
            placed = pl.timeline_of(problem, result)
            assert placed.latency_s == pytest.approx(result.objective.value, rel=1e-9)
            assert placed.steady_rate == pytest.approx(result.throughput, rel=1e-6)
    best = pl.solve(problem, "aggregated")  # latencies delay, and take nothing from any rate
    assert (
        best.throughput == pytest.approx(max(r for r, _ in every), rel=1e-9)
        if every
        else best.placement is None
    )


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    "against", ["gpus", "usd_per_hour", "usd_per_million_tokens", "seconds_per_pass"]
)
def test_the_fronts_are_the_pareto_fronts(against, seed):
    problem = priced(small(seed, link_units="tokens"), seed)
    worth = {
        "gpus": lambda rate, gpus, seconds: len(gpus),
        "usd_per_hour": lambda rate, gpus, seconds: hourly(problem, gpus),
        "usd_per_million_tokens": lambda rate, gpus, seconds: dollars(problem, gpus, rate),
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


def test_a_point_that_the_next_one_equals_is_dropped():
    """Answers made by hand: the second floor costs no more than none at all, the third does."""
    values = {0.0: (5.0, 10.0), 20.0: (5.0, 20.0), 30.0: (7.0, 30.0)}

    def least(floor):
        value, rate = values.get(floor, (None, None))
        status = "infeasible" if value is None else "optimal"
        return pl.Result(
            None,
            "",
            status,
            None,
            rate,
            None,
            0.0,
            objective=Objective("x", "x", value, value, floor),
        )

    following = {10.0: 20.0, 20.0: 30.0, 30.0: np.inf}
    points, complete = raise_floor(least, following.__getitem__, NEVER, None)
    assert [(p.objective.value, p.throughput) for p in points] == [(5.0, 20.0), (7.0, 30.0)]
    assert complete


# The program of the quickest


def walk_of(problem):
    """The walk of least time without a floor."""
    reach = Reach(instance_of(problem.with_in_flight(1)), 0.0, timed=True)
    (walk,) = walks(reach, {"seconds": 1.0}, {})
    return walk


def islands(seed, gpus=9, layers=9):
    """Islands of twins, fast inside and slow between: cheating with circuits apart would pay."""
    rng = np.random.default_rng(seed)
    island = np.sort(rng.integers(0, 3, gpus))
    speed = rng.uniform(0.001, 0.01, (3, 3))
    np.fill_diagonal(speed, 500)
    kind = rng.integers(0, 2, 3)
    costs = pl.writeup.LinearThroughput(
        {"A": pl.writeup.Coefficients(0, 1, -2, 100), "B": pl.writeup.Coefficients(0, 2, -4, 120)}
    )
    pool = tuple(pl.GPU("AB"[kind[i]], float(rng.choice([2.6, 3.6]))) for i in island)
    model = pl.Model("islands", layers, 1024, 2048, 1.0)
    return pl.Problem(
        pl.Cluster(pool, speed[np.ix_(island, island)]), model, pl.Workload(512, 4), costs,
        max_gpus_per_stage=2, same_type_stages=False, name=f"islands {seed}",
    )  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "seed", [seed for seed in range(22) if seed not in (10, 12, 15, 16, 17, 18)]
)
def test_three_positions_and_all_of_them_agree_beyond_brute_force(seed):
    """Where every boundary is a position, the walk knows where a stage stands, so that no circuits can occur."""
    problem = islands(seed)
    result = pl.solve(problem, objective="latency")
    weights = (1.0,) * (problem.model.layers - 2) + (1.0 + 1e-12, 1.0)
    other = dataclasses.replace(problem.model, weight_factors=weights)
    every = pl.solve(dataclasses.replace(problem, model=other), objective="latency")
    assert every.status == result.status
    if result.status != "infeasible":
        assert every.objective.value == pytest.approx(result.objective.value, rel=1e-9)


@pytest.mark.slow
def test_circuits_apart_from_the_pipeline_are_no_placement():
    """Many of these problems have them in the first answer; each is then forbidden, at a price."""
    apart = 0
    for seed in range(12):
        if apart == 2:
            break
        walk = walk_of(islands(seed))
        first, found = run_program(walk.program), walk.least()
        if found.placement is None or not len(walk._order(first.x)[1]):
            continue
        apart += 1
        whole = pl.evaluate(walk.stages.problem, found.placement).seconds_per_pass
        assert whole > -first.objective * walk._unit
        assert whole == pytest.approx(found.bound, rel=1e-6)
    assert apart == 2


def test_gpus_that_make_no_stage_quicker_are_left_out():
    """The first two GPUs are alike, and a stage of both is slower than a stage of one."""
    problem = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    slow = dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, efficiency=0.3))
    for given, most in ((slow, 1), (problem, 2)):
        walk = walk_of(given)
        assert walk.stages.gpus[walk.arcs.recipe].sum(axis=1).max() == most


def test_alike_single_gpus_meet_alike():
    """One GPU of each of three types, all links equal: nobody hops to itself, so all are one link kind."""
    cluster = pl.Cluster.from_counts({"A100": 1, "V100": 1, "T4": 1}, 40, 100)
    problem = dataclasses.replace(pl.load_case("tiny", link_units="tokens"), cluster=cluster)
    assert walk_of(problem).stages.links.seconds.shape == (1, 1)


@pytest.mark.parametrize("step", [1e-8, 3e-8, 1e-7, 1e-6])
def test_near_ties_are_told_apart(step):
    """Three stages of one GPU each; four candidates, of which two are quicker by a hair."""
    names = "ABCD"
    rates = {n: pl.writeup.Coefficients(0, 0, 0, 100 * (1 + step * i)) for i, n in enumerate(names)}
    cluster = pl.Cluster.from_counts(dict.fromkeys(names, 1), 1.5, 1e6)
    problem = pl.Problem(
        cluster,
        pl.Model("m", 3, 64, 64, 1.0),
        pl.Workload(8, 1),
        pl.writeup.LinearThroughput(rates),
    )
    least = min(seconds for _, _, seconds in oracle.passes(problem))
    result = pl.solve(problem, objective="latency")
    assert result.status == "optimal"
    assert result.objective.value == pytest.approx(least, rel=1e-9)


# Floors, prices and units that cannot be


def test_a_floor_out_of_reach_names_the_greatest_throughput():
    problem = priced(pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens"))
    for answer in (
        pl.solve(problem, objective="cost", at_least=302),
        pl.solve(problem, objective="latency", at_least=302),
    ):
        assert (answer.status, answer.bound, answer.objective.bound, answer.stopped_by) == (
            "infeasible",
        ) + (None,) * 3
        assert answer.sentence == (
            "No placement exists: none attains 302 tokens/s, the greatest attainable rate being 301.784 tokens/s."
        )
    heavy = oracle.heavier(problem, 90)
    for answer in (
        pl.solve(heavy, objective="cost"),
        pl.solve(heavy, objective="latency", at_least=10),
    ):
        assert "layer 1 alone needs" in answer.reason


@pytest.mark.parametrize("goal", ["cost", "latency"])
def test_the_throughput_of_a_result_is_a_floor_that_it_reaches(goal):
    problem = priced(pl.load_case("small", max_gpus_per_stage=3, link_units="tokens"))
    top = pl.solve(problem, "aggregated").throughput
    assert pl.solve(problem, objective=goal, at_least=top).throughput == pytest.approx(
        top, rel=1e-9
    )


def test_transfers_are_refused_where_there_are_links():
    tiny = pl.load_case("tiny")
    with pytest.raises(pl.errors.InvalidValue, match=r"with_link_units\(problem, 'tokens'\)"):
        pl.solve(tiny, objective="latency")
    with pytest.raises(pl.errors.InvalidValue, match=r"trade_off: costs\.link_units = 'transfers'"):
        pl.trade_off(tiny, "seconds_per_pass")
    evaluated = pl.evaluate(tiny, pl.Placement.of([(2, (0,)), (2, (1,))]))
    with pytest.raises(pl.errors.InvalidValue, match="expected 'tokens'"):
        evaluated.seconds_per_pass  # noqa: B018
    alone = dataclasses.replace(tiny, cluster=pl.Cluster(tiny.cluster.gpus[:1], np.zeros((1, 1))))
    result = pl.solve(alone, objective="latency")
    assert result.objective.value == pytest.approx(2048 * 16 / result.throughput, rel=1e-12)


def test_bad_arguments_are_named():
    tiny = priced(pl.load_case("tiny", link_units="tokens"))
    for goal in ("cost", "latency"):
        for bad in (-1, math.nan, math.inf, "5", True):
            with pytest.raises(pl.errors.InvalidValue, match=r"at_least = .*expected tokens/s"):
                pl.solve(tiny, objective=goal, at_least=bad)
        with pytest.raises(pl.errors.InvalidValue, match="time_limit = -1"):
            pl.solve(tiny, objective=goal, time_limit=-1)
    with pytest.raises(pl.errors.InvalidValue, match="A100, V100 have none"):
        pl.solve(pl.load_case("tiny"), objective="cost")
    odd = pl.solve(
        priced(tiny, prices=[math.pi, math.e]), objective="cost"
    )  # prices need not be cents
    assert odd.status == "optimal"
    with pytest.raises(pl.errors.UnknownName, match="did you mean 'seconds_per_pass'"):
        pl.trade_off(tiny, "seconds_per_token")


def test_too_many_compositions_are_not_listed_and_a_first_placement_is_there():
    """40 GPUs of 40 sizes of memory, whose mixed stages have to be listed."""
    pool = tuple(pl.GPU("A100", 80.0 + i) for i in range(40))
    many = pl.Cluster(pool, np.random.default_rng(0).uniform(1, 2, (40, 40)))
    tiny = pl.load_case("tiny", max_gpus_per_stage=6, link_units="tokens")
    problem = dataclasses.replace(tiny, cluster=many, batch_split="balanced")
    result = pl.solve(problem, objective="latency", time_limit=0)
    assert (result.status, result.stopped_by) == ("feasible", "list limit")
    assert "9,366,818 mixtures of 40 types of GPU in stages of up to 6" in result.reason
    assert pl.evaluate(result.problem, result.placement).seconds_per_pass == result.objective.value


# Ended early


@pytest.mark.quick(9)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limit", [0.0, 0.01, 0.03])
def test_a_time_limit_leaves_a_valid_bound(seed, limit):
    problem = priced(small(seed, link_units="tokens"), seed)
    every = list(oracle.passes(problem))
    asked = {
        "throughput": [-rate for rate, _, _ in every],
        "cost": [dollars(problem, g, r) for r, g, _ in every],
        "latency": [s for _, _, s in every],
    }
    for goal, values in asked.items():
        result = pl.solve(problem, objective=goal, time_limit=limit)
        if not values:
            assert result.status in ("infeasible", "unknown")
            continue
        assert result.status in ("optimal", "feasible", "unknown")
        own = result.objective
        bound, value = (own.bound, own.value) if own else (-result.bound, -(result.throughput or 0))
        assert bound <= min(values) + 1e-9 * abs(min(values))
        if result.placement:
            assert value >= min(values) - 1e-6 * abs(min(values))
        if result.status != "optimal":
            assert result.stopped_by == "time limit"
            assert "proven least in" not in result.sentence


@pytest.mark.slow
def test_a_stop_keeps_what_was_found():
    problem = priced(pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens"))
    stop = threading.Event()
    stop.set()
    for goal in ("cost", "latency"):
        best = pl.solve(problem, objective=goal).objective.value
        stopped = pl.solve(problem, objective=goal, stop=stop)
        assert (stopped.status in ("unknown", "feasible"), stopped.stopped_by) == (True, "stop")
        assert stopped.objective.bound is None or 0 < stopped.objective.bound <= best


@pytest.mark.slow
def test_a_program_ended_by_time_says_how_far_off_it_may_be(monkeypatch):
    """The floor's question is answered, the program is not."""
    from pipelab.engine.solvers import choice as module

    problem = pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens")
    best = pl.solve(problem, objective="latency").objective.value
    real = module.run_program
    monkeypatch.setattr(
        module, "run_program", lambda program, **k: real(program, deadline=Deadline(0))
    )
    result = pl.solve(problem, objective="latency", time_limit=100)
    assert (result.status, result.stopped_by) == ("feasible", "time limit")
    assert result.objective.bound <= best <= result.objective.value
    assert result.gap == pytest.approx(1 - result.objective.bound / result.objective.value)
    assert (
        f"not proven least (stopped by time limit); the least may be up to {result.gap:.2%} lower"
        in result.sentence
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("against", "how"),
    [
        ("gpus", "stop"),
        ("gpus", "interrupt"),
        ("usd_per_million_tokens", "interrupt"),
        ("seconds_per_pass", "stop"),
    ],
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


# What a result says of itself


@pytest.mark.quick(2)
@pytest.mark.parametrize("goal", ["cost", "latency", "throughput"])
def test_an_interrupt_between_two_questions_loses_nothing(goal, monkeypatch):
    """Wherever it comes, the answer is a placement that the evaluator accepts, and never an exception."""
    problem, real = priced(small(7, link_units="tokens"), 7), highs.run
    for moment in range(1, 5):
        calls = []

        def pressed(program, calls=calls, moment=moment, **options):
            found = real(program, **options)
            calls.append(program)
            if len(calls) == moment:
                signal.raise_signal(signal.SIGINT)
            return found

        monkeypatch.setattr(highs, "run", pressed)
        result = pl.solve(problem, objective=goal)
        assert result.status in ("optimal", "feasible", "unknown")
        assert result.status == "optimal" or result.stopped_by == "interrupt"
        assert len(calls) <= moment + 2
        if result.placement:
            pl.evaluate(problem, result.placement)


def test_a_result_says_what_was_least():
    problem = priced(pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens"))
    result = pl.solve(problem, objective="latency", at_least=100)
    assert result.sentence.startswith(
        "108.6 seconds per pass at 301.8 tokens/s with 1 in flight, proven least among placements of "
    )
    assert result.to_dict()["objective"] == {
        "seconds_per_pass": result.objective.value, "bound_seconds_per_pass": result.objective.value,
        "at_least_tokens_per_s": 100,
    }  # fmt: skip
    assert result.bound is None  # nothing was proven about throughput
    assert result.to_frame()["seconds_per_pass"][0] == result.objective.value
    with pytest.raises(
        pl.errors.InvalidValue, match="expected a result for the greatest throughput"
    ):
        pl.certificate(result)


def test_a_bound_above_the_value_is_an_error():
    assert status_and_least(2.0, 2.0 * (1 - 1e-12)) == ("optimal", 2.0)
    assert status_and_least(2.0, None) == ("feasible", None)
    with pytest.raises(pl.PipelabError, match="one of them is wrong"):
        status_and_least(2.0, 2.1)
    assert Objective("x", "x", None, 1.0).gap is None


def test_no_program_is_built_where_no_time_is_left(monkeypatch):
    problem = pl.Problem(
        pl.load_cluster("helix-single24"), pl.load_model("Llama-3-8B"), pl.Workload(512, 8, "decode"), pl.Roofline(),
        max_gpus_per_stage=2, same_type_stages=False,
    )  # fmt: skip
    monkeypatch.setattr(first_placements, "_SECONDS", 60.0)  # however busy the machine is
    monkeypatch.setattr(Walk, "program", property(lambda form: pytest.fail("a program was built")))
    stopped = threading.Event()
    stopped.set()
    for options in ({"time_limit": 0}, {"stop": stopped}):
        result = pl.solve(problem, objective="latency", **options)
        assert result.status == "optimal"  # a first placement has no more than the bound
        assert (
            0
            < result.objective.bound
            <= pl.Roofline().pass_seconds(
                problem.model, problem.workload, problem.cluster.gpus[0], range(32)
            )
        )


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
@pytest.mark.parametrize("seed", [26, 29, 40, 43, 73, 86, 159])
def test_links_that_are_practically_absent_are_not_taken(seed):
    """A message of years beside stages of milliseconds: no solver carries both in one sum."""
    problem = far_apart(seed)
    every = [(rate, seconds) for rate, _, seconds in oracle.passes(problem)]
    for floor in floors([r for r, _ in every], seed)[:3]:
        check_against(every, pl.solve(problem, objective="latency", at_least=floor), floor)


def test_the_front_over_links_that_are_practically_absent():
    problem = far_apart(40)
    every = [(rate, seconds) for rate, _, seconds in oracle.passes(problem)]
    curve = pl.trade_off(problem, "seconds_per_pass")
    assert curve.complete
    found = [(p.throughput, p.objective.value) for p in curve.points]
    for rate, seconds in every:  # each is reached by a point
        assert any(r >= rate * (1 - 1e-9) and s <= seconds * (1 + 1e-8) for r, s in found)


def _ends(problem, **options):
    curve = pl.trade_off(problem, "seconds_per_pass", **options)
    return curve, [(p.throughput, p.objective.value) for p in curve.points]


@pytest.mark.slow
def test_a_front_whose_last_proofs_stay_open_has_all_its_points(monkeypatch):
    """Each least is then known to a solver's tolerance only: the same points, and none is called proven."""
    problem = pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens")
    whole, points = _ends(problem)
    assert whole.complete
    assert whole.to_frame()["proven"].all()
    real = fronts._least_time

    def nearly(*args):
        found = real(*args)
        return found if found.placement is None else found._replace(bound=found.bound * (1 - 1e-5))

    monkeypatch.setattr(fronts, "_least_time", nearly)
    seen = []
    open_, found = _ends(problem, on_point=seen.append)
    assert found == points
    assert not open_.complete
    assert not open_.to_frame()["proven"].any()
    assert seen[::-1] == list(open_.points)
    assert f"0 of {len(points)} points proven" in pl.plot(open_).layout.title.text


def test_a_front_without_time_keeps_the_placement_it_had(monkeypatch):
    problem = pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens")
    stopped = Found(None, -math.inf, "time limit")
    monkeypatch.setattr(Walk, "least", lambda walk: stopped)
    curve, points = _ends(problem, time_limit=60)
    assert len(points) == 1
    assert (curve.complete, curve.points[0].status) == (False, "feasible")
    assert pl.evaluate(problem, curve.points[0].placement).throughput == points[0][0]


def of_eight_types(**rules):
    """116 GPUs, of which one node alone has the shortest pass."""
    counts = {
        "T4": 16,
        "L4": 16,
        "A10G": 12,
        "V100-SXM-32": 8,
        "L40S": 16,
        "A100-SXM-40": 16,
        "A100-SXM-80": 16,
    }
    cluster = cluster_of_counts(counts | {"H100-SXM": 16}, 8, 100.0)
    load, options = pl.Workload(2048, 8, "decode"), {"max_gpus_per_stage": 8} | rules
    return pl.Problem(cluster, pl.load_model("Llama-3-70B"), load, pl.Roofline(), **options)


@pytest.mark.parametrize("same_type", [True, False])
def test_the_first_placement_of_many_types_is_a_node_that_has_the_shortest_pass(same_type):
    problem = of_eight_types(same_type_stages=same_type)
    node = [g for g, gpu in enumerate(problem.cluster.gpus) if gpu.type == "H100-SXM"][:8]
    alone = pl.evaluate(problem, pl.Placement.of([(80, node)])).seconds_per_pass
    result = pl.solve(problem, objective="latency", time_limit=20)
    assert result.objective.value <= alone
    assert result.status == "optimal"


@pytest.mark.slow
def test_the_first_deployment_for_a_load_is_not_the_whole_fleet(monkeypatch):
    monkeypatch.setattr(first_placements, "_SECONDS", 5.0)  # however busy the machine is
    problem = of_eight_types(same_type_stages=True)
    fleet = sum(gpu.usd_per_hour for gpu in problem.cluster.gpus)
    for seconds in (0, 3):
        found = pl.deploy(problem, at_least=500, time_limit=seconds)
        assert found.throughput >= 500
        assert found.usd_per_hour < fleet / 10
    # more pipelines attain their rates than can be listed: the bound is the one by rates
    assert found.usd_per_hour / 1.5 < found.bound <= found.usd_per_hour


def test_first_placements_are_single_stages_pipelines_and_rules():
    tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    found = incumbents(tiny)
    shapes = {tuple((len(s.layers), s.gpus) for s in placement.stages) for placement in found}
    assert {((4, (0,)),), ((4, (0, 1)),), ((4, (2, 3)),)} <= shapes
    assert ((2, (0,)), (2, (1,))) in shapes
    assert ((1, (0,)), (1, (1,)), (1, (2,)), (1, (3,))) in shapes
    assert all(pl.evaluate(tiny, p).throughput == e.throughput for p, e in found.items())
    best = best_of(found)
    assert found[best].throughput == max(e.throughput for e in found.values())
    assert best_of(found, at_least=1e9) is None


@pytest.mark.quick(8)
@pytest.mark.parametrize("split", ["even", "balanced"])
@pytest.mark.parametrize("goal", ["throughput", "latency", "cost", "deploy"])
def test_more_gpus_per_stage_than_there_are_count_as_all_of_them(goal, split):
    tiny = priced(pl.load_case("tiny", link_units="tokens"), 0)
    answers = []
    for most in (4, 10**9):
        problem = dataclasses.replace(tiny, max_gpus_per_stage=most, batch_split=split)
        if goal == "deploy":
            found = pl.deploy(problem, time_limit=20)
        else:
            found = pl.solve(problem, objective=goal, time_limit=20)
        answers.append((found.status, found.throughput))
    assert answers[0] == answers[1]
    assert answers[0][0] == "optimal"
