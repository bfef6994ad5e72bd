"""Deployments of pipelines that attain their rates, against every division of small clusters."""

import dataclasses
import threading

import node_oracle
import numpy as np
import pytest
from test_deployments import check, check_valid, divided, dollars, heterogeneous
from test_in_flight import every_pair, tight
from test_objectives import late, priced, small

import pipelab as pl
from pipelab.engine.deadline import NEVER
from pipelab.engine.deployments import pricing
from pipelab.engine.deployments.column_generation import Demand, Generation, Prices
from pipelab.engine.deployments.listing import Listing
from pipelab.engine.deployments.offers import first_offers

RANDOM = {
    "memory for a few": lambda seed: tight(seed, late=seed % 2 == 0),
    "late links": lambda seed: late(small(seed, link_units="tokens"), seed),
    "nodes": lambda seed: node_oracle.random_problem(seed, gpus=4, layers=4),
}


def with_load(problem, in_flight, batch):
    load = dataclasses.replace(problem.workload, in_flight=in_flight, batch_size=batch)
    return dataclasses.replace(problem, workload=load)


def every_pipeline(problem, batches, in_flight=None):
    """(attained rate, GPUs) of every placement with every number in flight and batch."""
    for batch in batches:
        for rate, _, used, _ in every_pair(with_load(problem, in_flight, batch)):
            yield rate, used


def every_division(problem, batches, in_flight=None):
    best = [0.0] * (1 << len(problem.cluster))
    for rate, used in every_pipeline(problem, batches, in_flight):
        mask = sum(1 << g for g in used)
        best[mask] = max(best[mask], rate)
    return divided(best)


def asked(problem, seed):
    """Batches, and a number in flight if it is given."""
    batches = [problem.workload.batch_size] if seed % 3 else [1, 4]
    return batches, (None, None, 2)[seed % 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sort", "seed"),
    [
        *(("memory for a few", seed) for seed in (0, 1, 2, 3)),
        *(("late links", seed) for seed in range(8)),
        *(("nodes", seed) for seed in (0, 1, 3, 4, 6)),
    ],
)
def test_equal_to_every_division(sort, seed):
    """Throughput, every bound on the way, and that no pipeline counts with more than it attains."""
    problem, seen = RANDOM[sort](seed), []
    batches, number = asked(problem, seed)
    truth = every_division(problem, batches, number)[-1]
    problem = with_load(problem, number, problem.workload.batch_size)
    found = pl.deploy(problem, batches=batches, on_progress=seen.append)
    check(problem, found, truth)
    assert all(moment.bound is None or moment.bound >= truth * (1 - 1e-9) for moment in seen)
    for pipeline in found.pipelines:  # the simulator attains it, and memory holds what is in flight
        own = dataclasses.replace(problem, workload=pipeline.workload)
        placed = pl.timeline_of(own, pipeline.placement, in_flight=pipeline.workload.in_flight)
        assert placed.steady_rate == pytest.approx(pipeline.throughput, rel=1e-9)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(8))
def test_the_cheapest_for_a_load(seed):
    problem = priced(tight(seed) if seed % 2 else small(seed, link_units="tokens"), seed)
    batches, number = asked(problem, seed)
    total = every_division(problem, batches, number)
    problem = with_load(problem, number, problem.workload.batch_size)
    if not total[-1]:
        assert pl.deploy(problem, 1.0, batches=batches).status == "infeasible"
        return
    load = 0.7 * total[-1]
    truth = min(dollars(problem, m) for m, t in enumerate(total) if t >= load * (1 - 1e-12))
    found = pl.deploy(problem, load, batches=batches)
    assert found.status == "optimal"
    assert found.usd_per_hour == pytest.approx(truth, rel=1e-9)
    check_valid(problem, found)


@pytest.mark.parametrize("seed", range(16))
def test_no_pipeline_yields_more_for_its_price_than_pricing_says(seed, monkeypatch):
    """With few steps of rates, so that each stands for a wide range."""
    monkeypatch.setattr(pricing, "_RATES", 3)
    problem = with_load(late(small(seed, link_units="tokens"), seed), 2, 4)
    offers = first_offers([problem], NEVER, apart=True)
    if not offers or not len(offers[0].stage_rates):
        return
    classes = offers[0].table.classes
    price = np.random.default_rng(seed).choice([1e-6, 0.3, 1 / 3, 7.0], len(classes))
    (low, high), every = offers[0].asked, list(every_pipeline(problem, [4], 2))
    fastest = max((rate for rate, _ in every), default=1.0)
    for scaled in (price, price * fastest):  # what pipelines yield, and what leaves them a loss
        least = offers[0].least(scaled).price
        for rate, used in every:
            paid = sum(scaled[classes.of[g]] for g in used)
            ranges = (low <= rate * (1 + 1e-9)) & (rate <= high * (1 + 1e-9))
            assert ranges.any()
            assert rate / paid <= (high / least)[ranges].max() * (1 + 1e-9)
            assert rate - paid <= (high - least)[ranges].max() + 1e-9 * (rate + paid)


@pytest.mark.slow
def test_one_pipeline_is_as_fast_as_the_best_placement():
    problem = heterogeneous((3, 2, 2), "Llama-3-70B", batch_size=1, phase="decode")
    one, found = pl.solve(problem), pl.deploy(problem)
    assert (found.status, found.count) == ("optimal", 1)
    assert found.throughput == pytest.approx(one.throughput, rel=1e-9)


@pytest.mark.slow
def test_what_is_in_flight_is_shown_and_saved(tmp_path):
    problem = heterogeneous(phase="decode")
    found = pl.deploy(problem)
    assert (found.to_frame()["in_flight"] >= 1).all()
    assert found.evaluation.throughput == pytest.approx(found.throughput, rel=1e-12)
    assert '"in_flight": ' in pl.save(found, tmp_path / "plan.json").read_text(encoding="utf-8")


def long_context(batch_size=16):
    """Three types of GPU and a KV cache that leaves room for few microbatches."""
    memory = {"A100-SXM-40": 40, "L4": 24, "T4": 16}
    gpus = pl.Cluster.from_counts({"A100-SXM-40": 1, "L4": 4, "T4": 6}, memory, 12.5)
    load = pl.Workload(16_384, batch_size, "decode")
    return pl.Problem(gpus, pl.load_model("Llama-3-8B"), load, pl.Roofline())


@pytest.mark.slow
def test_memory_for_everything_in_flight_is_counted():
    """Full pipelines would yield far more; a smaller batch is better where memory is short."""
    problem = long_context()
    found, free = pl.deploy(problem), pl.deploy(problem, batches=[8, 16])
    full = pl.deploy(dataclasses.replace(problem, workload=pl.Workload(64, 16, "decode")))
    assert found.status == free.status == "optimal"
    assert full.throughput > 3 * found.throughput
    assert free.throughput > 1.5 * found.throughput
    assert found.throughput >= pl.solve(problem).throughput * (1 - 1e-9)


@pytest.mark.slow
def test_the_load_that_a_deployment_is_asked_for_is_served():
    """By the simulator, pipeline by pipeline, with memory for everything in flight."""
    pool = tuple(
        pl.GPU(name, memory, price, node, 32.0)
        for name, memory, node, price in (("L40S", 48, "a", 0.8), ("A100-SXM-80", 80, "b", 1.4))
        for _ in range(4)
    )
    problem = pl.Problem(
        pl.Cluster(pool, np.full((8, 8), 12.5)), pl.load_model("Llama-3-70B"), pl.Workload(2048, 32, "decode"),
        pl.Roofline(), max_gpus_per_stage=4, same_type_stages=False,
    )  # fmt: skip
    found = pl.deploy(problem, at_least=450)
    assert found.status == "optimal"
    rate = 0.0
    for pipeline in found.pipelines:
        own = dataclasses.replace(problem, workload=pipeline.workload)
        for replica in pipeline.replicas:
            placed = pl.timeline_of(own, replica, in_flight=pipeline.workload.in_flight)
            rate += placed.steady_rate
    assert rate >= 450 * (1 - 1e-9)
    assert pl.evaluate(problem, found).throughput == pytest.approx(rate, rel=1e-9)


def test_an_early_end_keeps_what_is_valid():
    problem, stop = heterogeneous((4, 8, 12), phase="decode"), threading.Event()
    stop.set()
    for limit in ({"time_limit": 0.3}, {"time_limit": 0.0}, {"stop": stop}):
        found = pl.deploy(problem, batches=[4, 16], **limit)
        assert found.status in ("feasible", "unknown", "optimal")
        assert (found.stopped_by is None) == (found.status == "optimal")
        if found.pipelines:
            check_valid(problem, found)


@pytest.mark.parametrize(
    ("ms", "gb_per_s", "number", "prices"),
    [
        ((8.423707202296885, 24.73201682552745), 0.05, 1, (8523.623063553652, 4809.245333041876)),
        (
            (10.131085623258262, 29.54242149499392, 2.5229290064981917),
            0.5,
            2,
            (32348.463508762925, 49174.10014840516, 78251.26394178202),
        ),
    ],
)
def test_a_pipeline_that_costs_more_than_it_yields_is_listed_within_its_slack(
    ms, gb_per_s, number, prices
):
    """Pricing once said too little of what is lost: the list was called complete, and was empty."""
    types = "abc"[: len(ms)]
    gpus = tuple(pl.GPU(t, 3.5) for t in types)
    cluster = pl.Cluster(gpus, np.full((len(ms), len(ms)), gb_per_s))
    model = pl.Model("m", 4, 1000, 4000, 1.0, bytes_per_element=2)
    costs = pl.LayerTimes(dict(zip(types, ms, strict=True)))
    problem = pl.Problem(cluster, model, pl.Workload(1000, 1, in_flight=number), costs, 1)
    (offer,), price = first_offers([problem], NEVER), np.array(prices)
    every = Listing(offer, price, 2 * price.sum(), NEVER).pipelines()
    most = max(found.rate - price @ np.array(found.gpus) for found in every)
    assert most < 0
    generation = Generation(
        [offer], Demand(offer.table.classes.count, 0.0, np.ones(len(ms))), NEVER
    )
    prices = Prices(price, {"": 1.0}, np.inf, 1.0)
    listed, complete = generation.listed(prices, -most * (1 + 1e-4), False, NEVER)
    assert complete
    assert listed
