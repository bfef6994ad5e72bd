"""Deployments whose pipelines have only so many microbatches in flight, against every division of small clusters."""

import dataclasses
import threading

import node_oracle
import numpy as np
import pytest
from test_deployments import check, check_valid, divided, dollars, heterogeneous
from test_attainable import tight
from test_objectives import late, priced, small

import oracle
import pipelab as pl
from pipelab.engine.deadline import NEVER
from pipelab.engine.deployments import steady_pricing
from pipelab.engine.deployments.offers import offers_of
from pipelab.engine.deployments.steady_pricing import SteadyPricing

RANDOM = {
    "memory for a few": lambda seed: tight(seed, late=seed % 2 == 0),
    "late links": lambda seed: late(small(seed, link_units="tokens"), seed),
    "nodes": lambda seed: node_oracle.random_problem(seed, gpus=4, layers=4),
}


def with_load(problem, in_flight, batch):
    load = dataclasses.replace(problem.workload, in_flight=in_flight, batch_size=batch)
    return dataclasses.replace(problem, workload=load)


def every_pipeline(problem, numbers, batches):
    """(steady rate, GPUs) of every placement with every number and batch."""
    for batch in batches:
        for n in numbers:
            own = with_load(problem, n, batch)
            tokens = oracle.tokens_of(own.workload)
            for rate, used, seconds in oracle.passes(own):
                yield min(rate, n * tokens / seconds), used


def every_division(problem, numbers, batches):
    best = [0.0] * (1 << len(problem.cluster))
    for rate, used in every_pipeline(problem, numbers, batches):
        mask = sum(1 << g for g in used)
        best[mask] = max(best[mask], rate)
    return divided(best)


def asked(problem, seed):
    return [1, 2, 3] if seed % 2 else [4, 1], [problem.workload.batch_size] if seed % 3 else [1, 4]


@pytest.mark.parametrize(
    ("sort", "seed"),
    [
        *(("memory for a few", seed) for seed in (0, 1, 2, 3)),
        *(("late links", seed) for seed in range(8)),
        *(("nodes", seed) for seed in (0, 1, 3, 4, 6)),
    ],
)
def test_equal_to_every_division(sort, seed):
    """Throughput, every bound on the way, and that no pipeline counts with more than it yields."""
    problem, seen = RANDOM[sort](seed), []
    numbers, batches = asked(problem, seed)
    truth = every_division(problem, numbers, batches)[-1]
    found = pl.deploy(problem, batches=batches, in_flight=numbers, on_progress=seen.append)
    check(problem, found, truth)
    assert all(moment.bound is None or moment.bound >= truth * (1 - 1e-9) for moment in seen)
    assert {p.workload.in_flight for p in found.pipelines} <= set(numbers)


@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_for_a_load(seed):
    problem = priced(small(seed, link_units="tokens"), seed)
    numbers, batches = asked(problem, seed)
    total = every_division(problem, numbers, batches)
    if not total[-1]:
        assert pl.deploy(problem, 1.0, batches=batches, in_flight=numbers).status == "infeasible"
        return
    load = 0.7 * total[-1]
    truth = min(dollars(problem, m) for m, t in enumerate(total) if t >= load * (1 - 1e-12))
    found = pl.deploy(problem, load, batches=batches, in_flight=numbers)
    assert found.status == "optimal"
    assert found.usd_per_hour == pytest.approx(truth, rel=1e-9)
    check_valid(problem, found)


@pytest.mark.parametrize("seed", range(16))
def test_no_pipeline_yields_more_per_price_than_pricing_says(seed, monkeypatch):
    """With few steps of rates, so that each stands for a wide range."""
    monkeypatch.setattr(steady_pricing, "_RATES", 3)
    problem = with_load(late(small(seed, link_units="tokens"), seed), 2, 4)
    offers = offers_of(problem, [problem.workload], NEVER, steady=True)
    if not offers:
        return
    pricing, classes = SteadyPricing(offers[0].rates), offers[0].rates.classes
    price = np.random.default_rng(seed).choice([1e-6, 0.3, 1 / 3, 7.0], len(classes))
    least, (low, high) = pricing.least(price), pricing.asked
    for rate, used in every_pipeline(problem, [2], [4]):
        paid = sum(price[classes.of[g]] for g in used)
        ranges = (low <= rate * (1 + 1e-9)) & (rate <= high * (1 + 1e-9))
        assert ranges.any()
        assert rate / paid <= (high / least)[ranges].max() * (1 + 1e-9)


def test_one_pipeline_is_as_fast_as_the_best_placement_in_flight():
    problem = heterogeneous((3, 2, 2), "Llama-3-70B", batch_size=1, phase="decode")
    one = pl.solve(problem, objective="throughput_in_flight")
    found = pl.deploy(problem, in_flight=[1, one.in_flight])
    assert (found.status, found.count) == ("optimal", 1)
    assert found.throughput == pytest.approx(one.steady_rate, rel=1e-9)


def test_what_is_in_flight_is_shown_and_saved(tmp_path):
    problem = heterogeneous(phase="decode")
    found = pl.deploy(problem, in_flight=[1, 2])
    alone = pl.deploy(problem, in_flight=[1])
    assert alone.throughput <= found.throughput <= pl.deploy(problem).throughput
    assert set(found.to_frame()["in_flight"]) <= {1, 2}
    assert found.evaluation.throughput == pytest.approx(found.throughput, rel=1e-12)
    assert '"in_flight": ' in pl.save(found, tmp_path / "plan.json").read_text(encoding="utf-8")


def test_an_early_end_keeps_what_is_valid():
    problem, stop = heterogeneous((4, 8, 12), phase="decode"), threading.Event()
    stop.set()
    for limit in ({"time_limit": 0.3}, {"time_limit": 0.0}, {"stop": stop}):
        found = pl.deploy(problem, in_flight=[1, 2, 4], **limit)
        assert found.status in ("feasible", "unknown", "optimal")
        assert (found.stopped_by is None) == (found.status == "optimal")
        if found.pipelines:
            check_valid(problem, found)


@pytest.mark.parametrize("numbers", [[], [0], 3, [1.5]])
def test_what_is_no_number_of_microbatches_is_refused(numbers):
    with pytest.raises(pl.InvalidValue, match="in_flight"):
        pl.deploy(heterogeneous(), in_flight=numbers)


def test_links_in_transfers_have_no_time():
    with pytest.raises(pl.InvalidValue, match="link_units"):
        pl.deploy(pl.load_case("tiny"), in_flight=[1, 2])
