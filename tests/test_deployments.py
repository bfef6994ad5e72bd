"""Several pipelines on one cluster: `deploy` against every division of small clusters, its bounds, stops and errors."""

import dataclasses

import numpy as np
import pytest
from test_objectives import priced, small

import oracle
import pipelab as pl
from pipelab.deployment import solve_by_every_division
from pipelab.engine.deadline import NEVER
from pipelab.engine.deployments import listing
from pipelab.engine.deployments.offers import offers_of
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.formulations.aggregated.rates import stage_rates


def best_by_gpus(problem, batches):
    """The rate of the best pipeline on every set of GPUs, as a list by bit mask; 0 where none fits."""
    best = [0.0] * (1 << len(problem.cluster))
    for batch in batches:
        load = dataclasses.replace(problem.workload, batch_size=batch)
        for rate, used, _ in oracle.placements(dataclasses.replace(problem, workload=load)):
            mask = sum(1 << g for g in used)
            best[mask] = max(best[mask], rate)
    return best


def every_division(problem, batches=None):
    """For every set of GPUs the greatest sum of rates over all its divisions into pipelines."""
    best = best_by_gpus(problem, batches or [problem.workload.batch_size])
    total = [0.0] * len(best)
    for mask in range(1, len(best)):
        lowest, part = mask & -mask, mask
        total[mask] = total[mask ^ lowest]  # its lowest GPU is in no pipeline
        while part:
            if part & lowest and best[part]:
                total[mask] = max(total[mask], best[part] + total[mask ^ part])
            part = (part - 1) & mask
    return total


def check(problem, deployment, truth):
    """Proven, as good as the truth, and valid."""
    if not truth:
        assert deployment.status == "infeasible", deployment
        assert deployment.reason
        assert deployment.pipelines == ()
        return
    assert deployment.status == "optimal", deployment
    assert deployment.throughput == deployment.bound == pytest.approx(truth, rel=1e-9)
    check_valid(problem, deployment)


def check_valid(problem, deployment):
    found = pl.evaluate(problem, deployment)
    assert found.throughput == pytest.approx(deployment.throughput, rel=1e-12)
    gpus = [g for p in deployment.pipelines for r in p.replicas for g in r.gpus]
    assert len(gpus) == len(set(gpus))
    rates = [p.throughput for p in deployment.pipelines]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("seed", range(120))
def test_equal_to_every_division(seed):
    """Unequal links, twins, unlike layers, mixed stages, tables with gaps."""
    problem = small(seed, gpus=5) if seed % 4 == 3 else small(seed)
    check(problem, pl.deploy(problem), every_division(problem)[-1])


@pytest.mark.parametrize("seed", range(40))
def test_equal_to_every_division_by_a_solver(seed, monkeypatch):
    """The same where the last step is an integer program."""
    monkeypatch.setattr(listing, "MOST_STEPS", 0)
    problem = small(1000 + seed)
    check(problem, pl.deploy(problem), every_division(problem)[-1])


@pytest.mark.parametrize("seed", range(30))
def test_every_pipeline_has_the_batch_that_suits_it(seed):
    problem = small(2000 + seed, batch_split="even")
    batches = [1, 4, 16]
    found = pl.deploy(problem, batches=batches)
    truth = every_division(problem, batches)[-1]
    if truth:
        assert {p.workload.batch_size for p in found.pipelines} <= set(batches)
    check(problem, found, truth)


def dollars(problem, mask):
    return sum(g.usd_per_hour for i, g in enumerate(problem.cluster.gpus) if mask >> i & 1)


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_deployment_for_a_load(seed):
    problem = priced(small(seed), seed)
    total = every_division(problem)
    if not total[-1]:
        assert pl.deploy(problem, 1.0).status == "infeasible"
        return
    for share in (0.3, 0.8, 1.0):
        load = share * total[-1]
        truth = min(dollars(problem, m) for m, t in enumerate(total) if t >= load * (1 - 1e-12))
        found = pl.deploy(problem, load)
        assert found.status == "optimal", (found, truth)
        assert found.usd_per_hour == pytest.approx(truth, rel=1e-9)
        assert found.bound == pytest.approx(truth, rel=1e-9)
        assert found.throughput >= load * (1 - 1e-9)
        check_valid(problem, found)
    above = pl.deploy(problem, 1.01 * total[-1])
    assert above.status == "infeasible"
    assert f"{total[-1]:.7g}" in above.reason
    assert "2 such clusters would serve it" in above.reason


@pytest.mark.parametrize("seed", range(60))
def test_dual_prices_bound_every_pipeline(seed):
    """At any prices, zero and tiny ones included, no placement of a rate costs less than `Pricing.least` says."""
    problem = small(3000 + seed)
    (offer,) = offers_of(problem, [problem.workload], NEVER) or [None]
    if offer is None:
        return
    pricing, classes = Pricing(offer.rates), stage_rates(problem).classes
    rng = np.random.default_rng(seed)
    price = rng.choice([0.0, 1e-9, 0.3, 1 / 3, 7.0], len(classes))
    asked, least = pricing.asked[0], None
    if len(offer.rates.classes) == len(classes):
        least = pricing.least(price)
    for rate, used, _ in oracle.placements(problem) if least is not None else ():
        paid = sum(price[classes.of[g]] for g in used)
        reached = least[asked <= rate * (1 + 1e-9)]
        assert paid >= reached.max(initial=0.0) - 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_no_round_has_a_bound_below_the_truth(seed):
    problem = small(4000 + seed)
    truth = every_division(problem)[-1]
    seen = []
    found = pl.deploy(problem, on_progress=seen.append)
    assert len(seen) >= (truth > 0)
    for moment in seen:
        assert moment.bound >= truth * (1 - 1e-9)
        assert (moment.incumbent or 0.0) <= truth * (1 + 1e-9)
    assert found.details["progress"] == tuple(seen)


@pytest.mark.parametrize("seed", range(12))
def test_equal_to_the_definition(seed):
    """Identical GPUs type by type, mixed stages, links that bind in some."""
    rng = np.random.default_rng(seed)
    counts = {"A100": int(rng.integers(1, 3)), "T4": int(rng.integers(1, 4))}
    memory = {"A100": float(rng.choice([6, 14])), "T4": float(rng.choice([4, 8]))}
    cluster = pl.Cluster.from_counts(counts, memory, float(rng.choice([0.5, 50])))
    tiny = pl.load_case("tiny", max_gpus_per_stage=int(rng.integers(1, 3)))
    problem = dataclasses.replace(tiny, cluster=cluster, link_units="tokens")
    defined = solve_by_every_division(problem)
    gpus = [g for placement in defined for g in placement.gpus]
    assert len(gpus) == len(set(gpus))
    total = sum(pl.evaluate(problem, placement).throughput for placement in defined)
    check(problem, pl.deploy(problem), total)
