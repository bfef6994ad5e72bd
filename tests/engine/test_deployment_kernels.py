"""Kernels of deployments against their definitions: labels that are kept, the best rate of every mix, prices."""

import dataclasses

import numpy as np
import pytest
from small_problems import every_pair, every_placement, late, small, three_types

import oracle
import pipelab as pl
from pipelab.engine.deadline import NEVER
from pipelab.engine.deployments import pricing
from pipelab.engine.deployments.column_generation import Generation
from pipelab.engine.deployments.listing import Listing, _Labels, _undominated
from pipelab.engine.deployments.master_program import DeploymentGoal
from pipelab.engine.deployments.mix_bounds import most_rates
from pipelab.engine.deployments.mix_tables import MixTables
from pipelab.engine.deployments.offers import first_offers, halves


def random_labels(rng, number):
    """Few numbers, so that there are ties of every kind."""
    rate, seconds = rng.integers(1, 5, (2, number)).astype(float)
    none = np.zeros(number, dtype=int)
    return _Labels(
        gpus=rng.integers(0, 2, (number, 2)),
        price=0.0 * rate,
        rate=rate,
        seconds=seconds,
        late=rng.integers(0, 1 + 2 * rng.integers(2), number).astype(float),
        reached=none,
        entered=rng.integers(0, 2, number),
        left=none,
        stages=none,
        row=none,
        rest=none,
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_label_is_dropped_where_one_that_is_kept_is_no_worse(seed):
    """No worse: of the same GPUs and ways, at least as fast, and as soon in both its times."""
    rng = np.random.default_rng(seed)
    labels = random_labels(rng, int(rng.integers(10, 40)))
    kept = _undominated(labels).tolist()

    def no_worse(a, b):
        same = (labels.gpus[a] == labels.gpus[b]).all() and labels.entered[a] == labels.entered[b]
        times = (getattr(labels, name) for name in ("seconds", "late"))
        return same and labels.rate[a] >= labels.rate[b] and all(t[a] <= t[b] for t in times)

    assert len(set(kept)) == len(kept)
    for label in range(len(labels.rate)):
        others = [one for one in kept if one != label and no_worse(one, label)]
        assert bool(others) == (label not in kept)


def only_offer(problem):
    """The offer of a problem in which some pipeline fits."""
    offers = first_offers([problem], NEVER, keep_nodes_apart=True)
    if not offers or not len(offers[0].stage_rates):
        pytest.skip("no pipeline fits")
    return offers[0], offers[0].table.classes


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_the_table_of_mixes_has_the_best_rate_of_each(seed):
    problem = small(seed, link_units="tokens")
    offer, classes = only_offer(problem)
    tables = MixTables(offer, NEVER)
    best = np.zeros(tables.shape)
    for rate, gpus, _ in oracle.placements(problem):
        mix = np.bincount(classes.of[list(gpus)], minlength=len(classes))
        enough = tuple(slice(n, None) for n in mix)  # with more GPUs it is possible, too
        best[enough] = np.maximum(best[enough], rate)
    nothing = np.zeros(tables.shape)
    assert tables.best(nothing, nothing).rate == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_yields_more_than_the_bound_of_its_mix(seed):
    """Of numbers in flight together, and of one; with latencies between groups of GPUs, and without."""
    problem = small(seed, link_units="tokens")
    problem = late(problem, seed) if seed % 2 else problem
    for one in (problem, problem.with_in_flight(1), problem.with_in_flight(1 + seed % 3)):
        offer, classes = only_offer(one)
        for part in (offer, *halves(offer, NEVER)):
            most = most_rates(part)
            for rate, number, used, _ in every_pair(one):
                mix = tuple(np.bincount(classes.of[list(used)], minlength=len(classes)))
                if part.numbers.first <= number <= part.numbers.last:
                    assert rate <= most[mix] * (1 + 1e-9)


@pytest.mark.parametrize("mix", [(1, 1, 0), (1, 2, 1), (0, 2, 2)])
def test_nor_the_soonest_pipeline_of_gpus_with_different_speeds(mix):
    """With one in flight, the fastest GPUs are full, and the slowest have what is left."""
    problem = three_types(phase="decode").with_in_flight(1)
    offer, classes = only_offer(problem)
    gpus = [g for ids, n in zip(classes.members, mix, strict=True) for g in ids[:n].tolist()]
    best = pl.solve(dataclasses.replace(problem, cluster=problem.cluster.only(gpus)))
    assert best.throughput <= most_rates(offer)[mix] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(16))
def test_no_pipeline_yields_more_for_its_price_than_pricing_says(seed, monkeypatch):
    """With few steps of rates, so that each stands for a wide range."""
    monkeypatch.setattr(pricing, "_RATE_STEPS", 3)
    problem = late(small(seed, link_units="tokens"), seed).with_in_flight(2)
    offer, classes = only_offer(problem)
    price = np.random.default_rng(seed).choice([1e-6, 0.3, 1 / 3, 7.0], len(classes))
    every = [(rate, used) for rate, _, used, _ in every_pair(problem)]
    fastest = max((rate for rate, _ in every), default=1.0)
    if seed % 2:  # all that is known of the best
        offer = dataclasses.replace(offer, most_rate=fastest * (1 + 1e-12))
    low, high = offer.asked
    for scaled in (price, price * fastest):  # what pipelines yield, and what leaves them a loss
        least = offer.least(scaled).price
        for rate, used in every:
            paid = sum(scaled[classes.of[g]] for g in used)
            ranges = (low <= rate * (1 + 1e-9)) & (rate <= high * (1 + 1e-9))
            assert ranges.any()
            assert rate / paid <= (high / least)[ranges].max() * (1 + 1e-9)
            assert rate - paid <= (high - least)[ranges].max() + 1e-9 * (rate + paid)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_pricing_that_counts_gpus_finds_the_greatest_ratio(seed, monkeypatch):
    """Where pipelines are full exactly; with few in flight no less, and no more than if GPUs were not counted."""
    monkeypatch.setattr(pricing, "_RATE_STEPS", 3)
    problem = small(seed, link_units="tokens")
    full = seed % 2 == 0
    if not full:
        problem = late(problem, seed).with_in_flight(2)
    offer, classes = only_offer(problem)
    price = np.random.default_rng(seed).choice([0.1, 0.3, 1 / 3, 7.0], len(classes))
    goal = DeploymentGoal(counts=classes.count, load=0.0, price=0.0 * price)
    generation = Generation(offers=[offer], goal=goal, deadline=NEVER)
    found = generation._exact_ratio(offer, price, NEVER)
    ratios = (rate / price[classes.of[[*used]]].sum() for rate, _, used, _ in every_pair(problem))
    truth = max(ratios, default=0.0)
    relaxed = (offer.asked[1] / offer.least(price).price).max()
    assert truth * (1 - 1e-9) <= found <= relaxed * (1 + 1e-8)
    best = max((c.rate / (price @ c.gpus) for c in generation.pipelines), default=0.0)
    assert not full or [found, best] == pytest.approx([truth, truth], rel=1e-5)


def of_equal_stages():
    """Make a problem in which the work of layers is all that costs: pipelines of equal stages yield what it says."""
    cluster = pl.Cluster.from_counts({"A": 4}, 8.0, 1e9)
    model, costs = pl.Model("equal", 4, 8, 8, 1.0), pl.LayerTimes({"A": 1.0})
    return pl.Problem(cluster, model, pl.Workload(1, 1), costs, max_gpus_per_stage=1)


@pytest.mark.parametrize("seed", range(-3, 24))
def test_a_list_with_few_labels_misses_no_pipeline_that_it_covers(seed, monkeypatch):
    """With few steps of rates; nor one that is slower than another with the same GPUs or fewer.

    At prices at which work is as dear as what it yields, twice and three times as dear.
    """
    monkeypatch.setattr(pricing, "_RATE_STEPS", max(3, 3 + seed))
    if seed < 0:
        problem = of_equal_stages().with_in_flight(8)
        placements = every_placement(problem)
        every = [(pl.evaluate(problem, p).attainable, p.gpus) for p in placements]
    else:
        problem = late(small(seed, link_units="tokens"), seed).with_in_flight(2)
        every = [(rate, used) for rate, _, used, _ in every_pair(problem)]
    offer, classes = only_offer(problem)
    price = np.random.default_rng(abs(seed)).uniform(0.1, 1, len(classes))
    price *= (1 + seed % 3) / offer.most_work(price)
    kappas = np.unique(offer.least(price).per_second)
    for most in (1, 2, 3, 10):
        slack = 0.3 * most * price.sum()
        listing = Listing(offer, price, slack, NEVER, most, kappas)
        listed = [(pipeline.rate, np.array(pipeline.gpus)) for pipeline in listing.pipelines()]
        for rate, used in every:
            mix = np.bincount(classes.of[list(used)], minlength=len(classes))
            if price @ mix - rate < listing.covered - 1e-9:
                assert any(r >= rate * (1 - 1e-9) and (n <= mix).all() for r, n in listed)
