"""Flows: equal to brute force with an independent maximum flow, never above the bound, and Helix's three instances."""

import dataclasses
import itertools
import math
import threading

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

import pipelab as pl
from pipelab import course
from pipelab.flows import exhaustive_flow

LEAST_MBYTE = 1e-3  # GB


def random_problem(seed, gpus=4, layers=5):
    """Types of different speed and memory, links of which some bind and are slow one way only."""
    rng = np.random.default_rng(seed)
    number, layers = int(rng.integers(2, gpus + 1)), int(rng.integers(2, layers + 1))
    types = rng.integers(0, 3, number)
    ms = {f"T{k}": float(rng.choice([1, 2, 3, 5, 8])) for k in range(3)}
    model = pl.Model("random", layers, 1000, 4000, 1.0, bytes_per_element=2)
    memory = rng.integers(1, layers + 1, 3)
    nodes = [pl.GPU(f"T{k}", float(memory[k])) for k in types]
    fast = rng.random((number, number)) < rng.choice([0.0, 0.5, 1.0])
    messages = np.where(fast, 10_000.0, rng.choice([60.0, 150.0, 300.0, 700.0], (number, number)))
    latency = np.where(rng.random((number, number)) < 0.3, rng.choice([0.0, 1.0, 4.0]), 0.0)
    np.fill_diagonal(messages, 0)
    np.fill_diagonal(latency, 0)
    cluster = pl.Cluster(nodes, messages * LEAST_MBYTE * 0.2, latency_ms=latency)
    return pl.Problem(cluster, model, pl.Workload(100, 1), pl.LayerTimes(ms), name=f"random {seed}")


def brute_force(problem):
    """The greatest flow over all spans, by scipy's maximum flow, from the raw numbers."""
    number, layers = len(problem.cluster), problem.model.layers
    gpus, tokens = problem.cluster.gpus, 100
    message = 100 * 1000 * 2 / 1e9
    link = problem.cluster.bandwidth_matrix() / message * tokens
    spans = [
        [None]
        + [
            (a, e)
            for a, e in itertools.combinations(range(layers + 1), 2)
            if e - a <= gpu.memory_gb
        ]
        for gpu in gpus
    ]
    rate = [
        [0.0] + [1000 * tokens / (problem.costs.ms_per_layer[g.type] * (e - a)) for a, e in own[1:]]
        for g, own in zip(gpus, spans, strict=True)
    ]
    passed = [
        np.array(
            [
                [r * (s is not None and s[0] <= i < s[1]) for i in range(layers)]
                for s, r in zip(*both, strict=True)
            ]
        )
        for both in zip(spans, rate, strict=True)
    ]
    total = passed[0]
    for own in passed[1:]:
        total = (total[:, None] + own[None]).reshape(-1, layers)
    least = total.min(axis=1)
    best = 0.0
    shape = [len(own) for own in spans]
    for index in np.argsort(-least):
        if least[index] <= best * (1 + 1e-9):
            break
        chosen = np.unravel_index(index, shape)
        placed = [own[i] for own, i in zip(spans, chosen, strict=True)]
        rates = [own[i] for own, i in zip(rate, chosen, strict=True)]
        best = max(best, max_flow(placed, rates, link, layers))
    return best


def max_flow(placed, rates, link, layers):
    """In whole hundredths of a token per second."""
    n = len(placed)
    capacity = np.zeros((2 * n + 2, 2 * n + 2))
    for v, span in enumerate(placed):
        if span is None:
            continue
        capacity[v, n + v] = rates[v]
        capacity[2 * n, v] = 1e6 * (span[0] == 0)
        capacity[n + v, 2 * n + 1] = 1e6 * (span[1] == layers)
        for w, other in enumerate(placed):
            if other is not None and other[0] <= span[1] < other[1]:
                capacity[n + v, w] = link[v, w]
    whole = csr_array(np.rint(100 * capacity).astype(np.int32))
    return maximum_flow(whole, 2 * n, 2 * n + 1).flow_value / 100


@pytest.mark.parametrize("seed", range(40))
def test_rates_equal_brute_force(seed):
    problem = random_problem(seed)
    found, best = pl.flow(problem, "rate"), brute_force(problem)
    if not best:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal", found.sentence
    assert found.throughput == pytest.approx(best, rel=1e-5)
    assert pl.evaluate(problem, found).throughput == pytest.approx(found.throughput, rel=1e-9)
