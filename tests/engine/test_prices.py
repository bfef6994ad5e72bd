"""Dollars are exact, whatever the prices: deployments, budgets, cost and trade-offs against sums of fractions."""

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp
from small_problems import check_deployment, every_division, every_pair, of_mask, small, with_prices
from test_deployments import asked

import pipelab as pl
from pipelab.engine.solvers import highs
from pipelab.engine.solvers.linear_program import LinearProgram, VariableGroups


def odd_prices(rng, number):
    """Prices of many digits, of few, of a month's hours, of one unit, nearly equal, and from 1e-7 to 1e4."""
    one = float(10 ** rng.uniform(-4, 3))
    few = [0.8, 0.1, 0.7, 0.3, 2.4]
    return [
        [float(int(k) / 3) for k in rng.integers(1, 9, number)],
        [float(round(x) / 730) for x in rng.uniform(20, 2000, number)],
        [float(int(k) * 100 / 730) for k in rng.integers(1, 4, number)],
        [float(round(one * x, 10)) for x in rng.uniform(0.5, 2, number)],
        [one * (1 + float(k) * 1e-5) for k in rng.integers(0, 5, number)],
        [float(10 ** (rng.choice([-7.0, -2.0]) + x)) for x in rng.uniform(0, 6, number)],
        [float(x) for x in rng.choice(few, number)],
    ][int(rng.integers(7))]


def oddly_priced(problem, seed):
    def prices(number):
        drawn = odd_prices(np.random.default_rng(seed), number)
        return drawn if max(drawn) <= 1e6 * min(drawn) else [min(drawn)] * number

    return with_prices(problem, prices)


def exactly(problem, gpus):
    """What GPUs cost, as a fraction."""
    return sum((Fraction(problem.cluster.gpus[g].usd_per_hour) for g in gpus), Fraction(0))


def equal(value, truth):
    return abs(Fraction(value) - truth) <= truth / 10**12


@pytest.mark.parametrize("whole", [False, True])
def test_a_program_is_solved_in_any_unit_of_money(whole):
    """The simplex of HiGHS gives up on about one in fifty of these, if their costs are large numbers."""
    rng = np.random.default_rng(572)
    names = VariableGroups({"x": 8})
    holds = np.array([[1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 3, 3, 2, 0, 0], [1, 0, 1, 1, 0, 0, 3, 3]])
    prices = np.array([1.0, 1000.0, 450_855_380.0])
    for _ in range(300):
        rates = rng.uniform(0.8, 1.3, (1, 8))
        program = LinearProgram(
            names,
            np.zeros(8),
            np.full(8, 1.0 if whole else np.inf),
            np.full(8, whole),
            -(prices @ holds),
            {
                "GPUs": names.rows({"x": sp.csr_array(holds * 1.0)}, upper=3.0 if whole else 1.0),
                "load": names.rows({"x": sp.csr_array(rates)}, lower=1.0),
            },
        )
        unit = 2.0 ** int(rng.integers(-9, 20))
        run = highs.run(replace(program, objective=program.objective * unit))
        small = highs.run(replace(program, objective=program.objective * 2.0**-9))
        assert run.status == small.status == "optimal"
        assert run.objective == pytest.approx(small.objective * 2.0**9 * unit, rel=1e-9)
        assert run.bound == pytest.approx(small.bound * 2.0**9 * unit, rel=1e-9)
        if not whole:
            assert run.row_duals == pytest.approx(small.row_duals * 2.0**9 * unit, rel=1e-6)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(2000))
@pytest.mark.parametrize("kind", ["unequal links, twins, tables with gaps", "memory for a few"])
def test_the_cheapest_deployment_for_a_load_costs_what_fractions_say(kind, seed):
    problem, batches = asked(kind, seed)
    problem = oddly_priced(problem, seed)
    most = every_division(problem, batches)
    if not most[-1]:
        assert pl.deploy(problem, 1.0, batches=batches).status == "infeasible"
        return
    share = float(np.random.default_rng(seed).choice([0.2, 0.5, 0.9, 1.0]))
    load = share * most[-1]
    enough = [of_mask(m) for m, rate in enumerate(most) if rate >= load * (1 - 1e-12)]
    truth = min(exactly(problem, gpus) for gpus in enough)
    found = pl.deploy(problem, load, batches=batches)
    assert (found.status, found.stopped_by) == ("optimal", None), found
    assert equal(found.usd_per_hour, truth), (found.usd_per_hour, float(truth))
    assert found.bound == found.usd_per_hour
    assert found.throughput >= load * (1 - 1e-9)
    check_deployment(problem, found)
    assert pl.deploy(problem, 1.01 * most[-1], batches=batches).status == "infeasible"


def as_written(price):
    """The decimal that somebody wrote, where a float has few digits."""
    few = len(Decimal(str(price)).normalize().as_tuple().digits) <= 12
    return Fraction(str(price)) if few else Fraction(price)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "seed", [43, *range(43), *range(44, 500)]
)  # 43: orders have different sums
def test_a_budget_is_kept_to_its_last_bits(seed):
    """What costs just as much is allowed, in whatever order floats were added up; for a billionth less, it is not."""
    problem = oddly_priced(small(seed, link_units="tokens"), seed)
    price = [gpu.usd_per_hour for gpu in problem.cluster.gpus]
    every = []
    for rate, _, gpus, _ in every_pair(problem):
        written = sum((as_written(price[g]) for g in gpus), Fraction(0))
        every.append((min(float(exactly(problem, gpus)), float(written)), rate, sorted(gpus)))
    if not every:
        return
    some, _, gpus = every[int(np.random.default_rng(seed).integers(len(every)))]
    added = {sum(price[g] for g in order) for order in permutations(gpus)}
    for budget in (min(added), max(added), some * (1 - 1e-9), Fraction(some)):
        best = max((rate for paid, rate, _ in every if paid <= budget * (1 + 1e-12)), default=None)
        found = pl.solve(problem, budget=budget)
        assert found.status == ("infeasible" if best is None else "optimal")
        assert found.throughput == (best and pytest.approx(best, rel=1e-9))


def test_a_sum_of_decimals_is_within_a_budget_by_either_reading():
    for price in (0.8, 0.1, 0.7, 1.1):
        cluster = pl.Cluster.from_counts({"A": 3}, {"A": 3}, 1.0, usd_per_hour=price)
        model, costs = pl.Model("m", 3, 8, 8, 3.0), pl.LayerTimes({"A": 1})
        problem = pl.Problem(cluster, model, pl.Workload(1, 1), costs)
        written = float(3 * Fraction(str(price)))
        for budget in (written, math.fsum([price] * 3), price + price + price):
            assert pl.solve(problem, budget=budget).status == "optimal"
            assert pl.mixes({"A": 3}, usd_per_hour={"A": price}, budget=budget)[-1] == {"A": 3}
        below = written * (1 - 1e-9)
        assert pl.solve(problem, budget=below).status == "infeasible"
        assert pl.mixes({"A": 3}, usd_per_hour={"A": price}, budget=below)[-1] == {"A": 2}


@pytest.mark.quick(6)
@pytest.mark.parametrize("deployments", [False, True])
@pytest.mark.parametrize("against", ["usd_per_hour", "gpus"])
@pytest.mark.parametrize("seed", range(300))
def test_every_point_of_a_trade_off_costs_what_fractions_say(seed, against, deployments):
    problem, seen = oddly_priced(small(seed, link_units="tokens"), seed), []
    if deployments:
        sets = [(of_mask(m), rate) for m, rate in enumerate(every_division(problem)) if rate]
    else:
        sets = [(gpus, rate) for rate, _, gpus, _ in every_pair(problem)]
    cost_of = exactly if against == "usd_per_hour" else lambda _, gpus: Fraction(len(gpus))
    truth, least = [], math.inf
    for cost, rate in sorted(
        ((cost_of(problem, gpus), rate) for gpus, rate in sets), key=lambda one: (-one[1], one[0])
    ):
        if cost < least * (1 - 1e-9):  # prices this close are one price, and so are rates
            same = truth and rate >= truth[-1][1] * (1 - 2e-6)
            truth[len(truth) - bool(same) :] = [(cost, rate)]
            least = cost
    curve = pl.trade_off(problem, against, deployments=deployments, on_point=seen.append)
    assert curve.complete
    assert sorted(map(id, seen)) == sorted(map(id, curve.points))
    frame = curve.to_frame()
    rows = frame[[against, "throughput_tokens_per_s"]].to_numpy() if truth else []
    assert len(rows) == len(truth)
    for (cost, rate), (spent, throughput) in zip(truth, rows, strict=True):
        assert equal(spent, cost)
        assert throughput == pytest.approx(rate, rel=2e-6)
    for point in curve.points if deployments else ():
        assert point.status == "optimal"
        check_deployment(problem, point)
