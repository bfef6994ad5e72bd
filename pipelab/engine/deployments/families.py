"""GPUs of identical nodes as one class: counts instead of one class for each node.

GPUs of two nodes are of two kinds, since a stage may cut its layers within a node only. In a
deployment such nodes are interchangeable where no link binds, and mostly it is enough to count
their GPUs: a *family* holds the GPUs that are equal but for the name of their node.

A stage of so many GPUs of a family is taken to be as fast as it is on the best choice of nodes. That
leaves out whether the nodes can be filled just so. So what is found over families is a bound, and an
answer if its stages can be packed into nodes: always where stages have 1, 2, 4, … GPUs and nodes a
multiple of these. Whether they can be, `read_back` finds out, and the evaluator has the last word.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from pipelab.cluster import Cluster
from pipelab.engine.deadline import Deadline
from pipelab.engine.formulations.aggregated.classes import find_classes
from pipelab.engine.formulations.aggregated.rates import (
    StageRates,
    _attained,
    _fastest,
    _pure,
    _without_one,
    distinct,
)


def fastest_pipeline(rates: StageRates) -> float:
    """No pipeline is faster: at a higher rate the GPUs cannot hold all layers, links aside."""
    possible = rates.stages[rates.holdable(rates.stages) >= rates.problem.model.layers * (1 - 1e-9)]
    return float(possible[-1]) if len(possible) else 0.0


def by_family(rates: StageRates, deadline: Deadline) -> StageRates:
    """The same table over families; the table itself where that would not make classes fewer, or links may bind."""
    cluster = rates.problem.cluster
    if rates.link.min(initial=np.inf) < fastest_pipeline(rates):
        return rates
    family_of = _families(rates)
    families = max(family_of) + 1
    if families == len(rates.classes):
        return rates
    first = [family_of.index(f) for f in range(families)]
    names = [f"family {f}" if cluster.kinds[k].node else "" for f, k in enumerate(first)]
    kinds = [replace(cluster.kinds[k], node=names[f]) for f, k in enumerate(first)]
    gpus = tuple(kinds[family_of[k]] for k in cluster.kind_of.tolist())
    links = cluster.bandwidth_gb_per_s
    fast = np.array([[float(links[np.isfinite(links)].max())]])  # none binds
    plain = Cluster(gpus, fast, np.zeros(len(gpus), dtype=int))
    problem = replace(rates.problem, cluster=plain)
    belongs = np.zeros((len(family_of), families), dtype=int)
    belongs[np.arange(len(family_of)), family_of] = 1
    if rates.pure:
        mixtures = _pure(problem)
        spans = rates.rate.shape[1]
        table = rates.rate.reshape(len(family_of), -1, spans)
        by_size = np.zeros((families, *table.shape[1:]))
        np.maximum.at(by_size, np.array(family_of), table)
        rate = by_size.reshape(-1, spans)
        stages = np.unique(rate[(rate > 0) & _attained(problem, rate, deadline)])
        fastest, parents = rate.reshape(families, -1, spans), mixtures[:0]
    else:
        mixtures, which = np.unique(rates.composition @ belongs, axis=0, return_inverse=True)
        rate = np.zeros((len(mixtures), rates.rate.shape[1]))
        np.maximum.at(rate, which.reshape(-1), rates.rate)
        order = np.argsort(mixtures.sum(axis=1), kind="stable")
        mixtures, rate = mixtures[order], rate[order]
        stages = distinct(rate, deadline)
        fastest = _fastest(mixtures, rate, rates.largest, deadline)
        parents = _without_one(mixtures, deadline)
    classes = find_classes(plain, deadline)
    link = problem.link_throughput(classes.bandwidth_gb_per_s)
    return StageRates(problem, classes, mixtures, rate, link, rates.pure, stages, fastest, parents)


def _families(rates: StageRates) -> list[int]:
    """The family of each kind of GPU, numbered from 0 in the order of kinds."""
    cluster, sizes = rates.problem.cluster, Counter(gpu.node for gpu in rates.problem.cluster.gpus)
    numbers: dict[tuple, int] = {}
    family_of = []
    single = rates.size == 1
    for k, kind in enumerate(cluster.kinds):
        alone = rates.rate[single & (rates.composition[:, k] == 1)].tobytes()
        size = sizes[kind.node] if kind.node and rates.largest > 1 else 1
        speed = kind.node_gb_per_s if rates.largest > 1 else None
        key = (kind.type, kind.memory_gb, kind.usd_per_hour, speed, size, alone)
        family_of.append(numbers.setdefault(key, len(numbers)))
    return family_of
