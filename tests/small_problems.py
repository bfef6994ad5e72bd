"""Small random problems of every sort for many tests, and by trying everything what each of them can yield."""

import dataclasses
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle

PRICES = [0.35, 0.5, 1.25, 2.99]


# Problems


def with_prices(problem, of):
    """Give every GPU the price of its type and memory, which `of` returns for a list of these pairs."""
    kinds = list(dict.fromkeys((gpu.type, gpu.memory_gb) for gpu in problem.cluster.gpus))
    price = dict(zip(kinds, of(len(kinds)), strict=True))
    gpus = [
        dataclasses.replace(gpu, usd_per_hour=price[gpu.type, gpu.memory_gb])
        for gpu in problem.cluster.gpus
    ]
    return dataclasses.replace(
        problem, cluster=dataclasses.replace(problem.cluster, gpus=tuple(gpus))
    )


def priced(problem, seed=0, prices=PRICES):
    """Give every GPU one of a few prices."""
    rng = np.random.default_rng(seed)
    return with_prices(problem, lambda number: rng.choice(prices, number).tolist())


def small(seed, **fixed):
    """Draw a problem: unequal links, twins, different layers, mixed stages; every fifth a table with gaps."""
    problem = oracle.random_problem(
        seed, layers=4, twins=seed % 2 == 0, unlike=seed % 3 == 0, **fixed
    )
    return with_table(problem, seed, slowest=seed % 10 == 0) if seed % 5 == 0 else problem


def with_table(problem, seed, slowest):
    """Put a table of rates without any formula into a problem's place of costs."""
    costs = oracle.TableCosts(seed, slowest, link_units=problem.costs.link_units)
    return dataclasses.replace(problem, costs=costs)


def late(problem, seed):
    """Add latencies about as long as a message takes, of few kinds, so that some GPUs stay interchangeable."""
    rng, n = np.random.default_rng(seed), len(problem.cluster)
    matrix = problem.cluster.bandwidth_matrix()
    sent = 1000 * float(np.median(problem.message_seconds(matrix, 0.0)))
    node = rng.integers(0, 2, n)
    if seed % 3:
        latency = rng.choice([0.0, 0.3, 2.0], (2, 2))[np.ix_(node, node)]
    else:
        latency = rng.choice([0.0, 1.0], (n, n))
    cluster = pl.Cluster(problem.cluster.gpus, matrix, None, sent * latency)
    return dataclasses.replace(problem, cluster=cluster)


def tight(seed, late=False, prefer="rate"):
    """Draw a problem in which memory holds a few microbatches on some span of layers, and not many."""
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
    """Draw one of `tight`, with the number in flight to be chosen."""
    return tight(seed, late=seed % 3 == 0, prefer=prefer).with_in_flight(None)


def three_types(counts=(2, 4, 4), model="Llama-3-8B", **workload):
    """Build a cluster of three types of GPU with prices, on the roofline."""
    memory = {"A100-SXM-40": 40.0, "L4": 24.0, "T4": 16.0}
    price = {"A100-SXM-40": 1.5, "L4": 0.7, "T4": 0.35}
    cluster = pl.Cluster.from_counts(
        dict(zip(memory, counts, strict=True)), memory, 12.5, usd_per_hour=price
    )
    load = pl.Workload(**({"sequence_length": 2048, "batch_size": 16} | workload))
    return pl.Problem(cluster, pl.load_model(model), load, pl.Roofline(), name="mix")


# Placements


def every_placement(problem):
    """List every placement: groups of GPUs in every order, with every cut; valid or not."""
    layers, everyone = problem.model.layers, range(len(problem.cluster))
    sizes = range(1, problem.max_gpus_per_stage + 1)
    groups = [group for size in sizes for group in combinations(everyone, size)]
    for number in range(1, min(len(everyone), layers) + 1):
        for chosen in permutations(groups, number):
            if len({gpu for group in chosen for gpu in group}) == sum(map(len, chosen)):
                for cuts in combinations(range(1, layers), number - 1):
                    held = [b - a for a, b in pairwise((0, *cuts, layers))]
                    yield pl.Placement.of(list(zip(held, chosen, strict=True)))


def random_placement(problem, rng):
    """Draw cuts and the GPUs of every stage; valid or not."""
    layers, gpus = problem.model.layers, rng.permutation(len(problem.cluster)).tolist()
    number = int(rng.integers(1, min(layers, len(gpus)) + 1))
    cuts = [0, *sorted((rng.permutation(layers - 1)[: number - 1] + 1).tolist()), layers]
    most = max(1, min(problem.max_gpus_per_stage, len(gpus) // number))
    ends = [0, *np.cumsum(rng.integers(1, most + 1, number)).tolist()]
    stages = zip(pairwise(cuts), pairwise(ends), strict=True)
    return pl.Placement.of([(b - a, gpus[first:last]) for (a, b), (first, last) in stages])


# What can be had


def hourly(problem, gpus):
    """Return what GPUs cost per hour."""
    return sum(problem.cluster.gpus[g].usd_per_hour for g in gpus)


def per_million(problem, gpus, rate):
    """Return what a million tokens cost."""
    return hourly(problem, gpus) / (rate * 3600) * 1e6


def mask_of(gpus):
    """Return a set of GPUs as bits."""
    return sum(1 << g for g in gpus)


def of_mask(mask):
    """Return the GPUs whose bits are set."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def every_pair(problem):
    """List (attainable rate, in flight, GPUs used, seconds of a pass) of all placements with all numbers that help.

    By rate, a way to run a stage that is left with less memory is no faster: once as many are in flight as every
    placement needs, more are of no use.
    """
    given, tokens, pairs, n = problem.workload.in_flight, problem.workload.tokens, [], 0
    while True:
        n = given or n + 1
        rows = list(oracle.passes(problem.with_in_flight(n)))
        pairs += [(min(rate, n * tokens / s), n, used, s) for rate, used, s in rows]
        if given or all(n * tokens / s >= rate for rate, _, s in rows):
            return pairs


def timed(problem):
    """Return whether links take time, so that what is in flight matters."""
    return problem.costs.link_units != "transfers"


def best_by_gpus(problem, batches):
    """Return the rate of the best pipeline on every set of GPUs, by bit mask; 0 where none fits."""
    best = [0.0] * (1 << len(problem.cluster))
    for batch in batches:
        load = dataclasses.replace(problem.workload, batch_size=batch)
        loaded = dataclasses.replace(problem, workload=load)
        every = every_pair(loaded) if timed(problem) else oracle.placements(loaded)
        for row in every:
            mask = mask_of(row[2] if timed(problem) else row[1])
            best[mask] = max(best[mask], row[0])
    return best


def divided(best):
    """Return for every set of GPUs the greatest sum over all its divisions into sets, by bit mask."""
    total = [0.0] * len(best)
    for mask in range(1, len(best)):
        lowest, part = mask & -mask, mask
        total[mask] = total[mask ^ lowest]  # its lowest GPU is in no pipeline
        while part:
            if part & lowest and best[part]:
                total[mask] = max(total[mask], best[part] + total[mask ^ part])
            part = (part - 1) & mask
    return total


def every_division(problem, batches=None):
    """Return for every set of GPUs the greatest sum of rates over all its divisions into pipelines."""
    return divided(best_by_gpus(problem, batches or [problem.workload.batch_size]))


def check_deployment(problem, deployment):
    """Assert that no GPU is shared, and that rates and memory are as the evaluator and the simulator have them."""
    evaluation = pl.evaluate(problem, deployment)
    assert evaluation.throughput == pytest.approx(deployment.throughput, rel=1e-12)
    gpus = [g for p in deployment.pipelines for r in p.replicas for g in r.gpus]
    assert len(gpus) == len(set(gpus))
    rates = [p.throughput for p in deployment.pipelines]
    assert rates == sorted(rates, reverse=True)
    for pipeline in deployment.pipelines if timed(problem) else ():
        loaded = dataclasses.replace(problem, workload=pipeline.workload)
        placed = pl.timeline_of(loaded, pipeline.placement, in_flight=pipeline.workload.in_flight)
        assert placed.steady_rate == pytest.approx(pipeline.throughput, rel=1e-9)
