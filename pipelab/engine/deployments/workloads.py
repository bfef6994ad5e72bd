"""What can be offered to the GPUs: the problem with each workload, and its table of rates over common classes.

Where attainable rates count, an offer is a workload with a range of numbers in flight. Its table has memory for
the first of them, and its pipelines count with what the last of them would yield: no pipeline with a number of
the range attains more (`engine.attainable`). Ranges that matter are halved until one number is left.

GPUs of identical nodes are counted together: a *family* holds the GPUs that are equal but for the name of their
node. GPUs of two nodes are of two kinds, since a stage may cut its layers within a node only, but in a
deployment such nodes are interchangeable where no link binds. A stage of so many GPUs of a family is taken to
be as fast as it is on the best choice of nodes. That leaves out whether the nodes can be filled just so, so
what is found over families is a bound, and an answer if its stages can be packed into nodes: always where
stages have 1, 2, 4, … GPUs and nodes a multiple of these. `deploying` finds out, and the evaluator has the
last word.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from pipelab.cluster import Cluster
from pipelab.engine.attainable import Range
from pipelab.engine.classes import find_classes
from pipelab.engine.deadline import Deadline, made_in_time
from pipelab.engine.instance import Instance, at_best, instance_of
from pipelab.engine.methods.aggregated import rates_in_time
from pipelab.engine.nodes import NodeRates
from pipelab.engine.rates import (
    StageRates,
    _attained,
    _fastest,
    _mixtures,
    _pure,
    _without_one,
    distinct,
    stage_rates,
)
from pipelab.engine.search import Subproblems
from pipelab.problem import Problem, Workload

_POWERS = 12  # ranges of numbers in flight to begin with: from 1, 2, 4, … on


@dataclass(frozen=True, eq=False)
class Offer:
    """One workload that a pipeline can have.

    Attributes
    ----------
    problem : Problem
        As the user has it, with this workload.
    rates : StageRates
        The table of its rates; over families of GPUs where these are fewer.
    numbers : Range or None
        Microbatches in flight of its pipelines, which count with what they attain; None: with
        their rates.
    """

    problem: Problem
    rates: StageRates
    numbers: Range | None = None

    @property
    def last(self) -> float:
        """The most in flight; infinite where rates count."""
        return math.inf if self.numbers is None else self.numbers.last

    @cached_property
    def instance(self) -> Instance:
        """The arrays of the same problem, with memory for the first of its numbers in flight."""
        return instance_of(self.rates.problem)

    def halves(self, deadline: Deadline) -> list["Offer"]:
        """The offers of the two halves of its numbers, without those with which nothing fits."""
        if self.numbers is None or self.numbers.single:
            return []
        both = self.numbers.halves(2 * self.numbers.first)
        return [o for half in both for o in offers_attaining(self.problem, [half], deadline)]


def offers_attaining(problem: Problem, numbers: Sequence[Range], deadline: Deadline) -> list[Offer]:
    """One for each range of numbers in flight with which some stage fits.

    Raises
    ------
    Ended
        The deadline was first.
    """
    found = []
    for own in numbers:
        counted = problem.with_in_flight(own.first)
        counted = counted if own.single else at_best(counted)
        rates = made_in_time(partial(stage_rates, counted), deadline)
        if len(rates.thresholds) and Subproblems(rates).highest() >= 0:
            found.append(Offer(problem, rates, own))
    return found


def first_ranges(problem: Problem) -> list[Range]:
    """The workload's own number in flight, or all numbers: 1, 2 to 3, 4 to 7, … and the last without end."""
    own = problem.workload.in_flight
    if own is not None:
        return [Range(own, own)]
    powers = [2**i for i in range(_POWERS)]
    ends = [*(p - 1 for p in powers[1:]), math.inf]
    return [Range(first, last) for first, last in zip(powers, ends, strict=True)]


def offers_of(
    problem: Problem,
    workloads: Sequence[Workload],
    deadline: Deadline,
    apart: bool = False,
) -> list[Offer]:
    """One for each workload with which some stage fits; all have the same classes, and rates count.

    GPUs of different nodes are kept apart if `apart`, and where links bind for one workload only.

    Raises
    ------
    Ended
        The deadline was first.
    """
    problems = [replace(problem, workload=load) for load in workloads]
    if apart:
        tables = [made_in_time(partial(stage_rates, p), deadline) for p in problems]
    else:
        tables = [rates_in_time(p, deadline) for p in problems]
    offers = [
        Offer(p, rates) for p, rates in zip(problems, tables, strict=True) if len(rates.thresholds)
    ]
    if apart:
        return offers
    counted = [Offer(o.problem, by_family(o.rates, deadline)) for o in offers]
    number = {len(offer.rates.classes) for offer in counted}
    same = len(number) == 1 and all(
        (o.rates.classes.of == counted[0].rates.classes.of).all() for o in counted
    )
    return counted if same or not counted else offers_of(problem, workloads, deadline, apart=True)


def fastest_pipeline(rates: StageRates) -> float:
    """No pipeline is faster: at a higher rate the GPUs cannot hold all layers, links aside."""
    possible = rates.stages[rates.holdable(rates.stages) >= rates.problem.model.layers * (1 - 1e-9)]
    return float(possible[-1]) if len(possible) else 0.0


def by_family(rates: StageRates, deadline: Deadline) -> StageRates:
    """The same table over families; one over classes where that would not make them fewer, or links may bind.

    Raises
    ------
    TooLarge
        Too many mixtures of too many kinds, where mixtures must be listed.
    """
    nodes = rates if isinstance(rates, NodeRates) and rates.of_nodes.local else None
    if rates.link.min(initial=np.inf) < fastest_pipeline(rates):
        return stage_rates(rates.problem, deadline) if isinstance(rates, NodeRates) else rates
    family_of = _families_of_nodes(nodes) if nodes else _families(rates)
    families = max(family_of) + 1
    if families == len(rates.classes) and not nodes:
        return rates
    cluster = rates.problem.cluster
    first = [family_of.index(f) for f in range(families)]
    names = [f"family {f}" if cluster.kinds[k].node else "" for f, k in enumerate(first)]
    kinds = [replace(cluster.kinds[k], node=names[f]) for f, k in enumerate(first)]
    gpus = tuple(kinds[family_of[k]] for k in cluster.kind_of.tolist())
    links = cluster.bandwidth_gb_per_s
    fast = np.array([[float(links[np.isfinite(links)].max())]])  # none binds
    plain = Cluster(gpus, fast, np.zeros(len(gpus), dtype=int))
    problem = replace(rates.problem, cluster=plain)
    pure = rates.pure and not nodes
    if pure:
        rate = _best_of_sizes(rates, family_of)
        mixtures = _pure(problem)
        stages = np.unique(rate[(rate > 0) & _attained(problem, rate, deadline)])
        fastest, parents = rate.reshape(families, -1, rate.shape[1]), mixtures[:0]
    else:
        mixtures, rate = (
            _mixtures_of_nodes(nodes, problem, first, deadline)
            if nodes
            else _mixtures_of_families(rates, family_of)
        )
        stages = distinct(rate, deadline)
        fastest = _fastest(mixtures, rate, rates.largest, deadline)
        parents = _without_one(mixtures, deadline)
    classes = find_classes(plain, deadline)
    link = problem.link_throughput(classes.bandwidth_gb_per_s)
    return StageRates(problem, classes, mixtures, rate, link, pure, stages, fastest, parents)


def _best_of_sizes(rates: StageRates, family_of: list[int]) -> np.ndarray:
    """The best rate of so many GPUs of each family, where only pure mixtures have rows."""
    table = rates.rate.reshape(len(family_of), -1, rates.rate.shape[1])
    by_size = np.zeros((max(family_of) + 1, *table.shape[1:]))
    np.maximum.at(by_size, np.array(family_of), table)
    return by_size.reshape(-1, rates.rate.shape[1])


def _mixtures_of_families(rates: StageRates, family_of: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mixtures of families, and the best rate of the mixtures of kinds that each stands for."""
    belongs = np.zeros((len(family_of), max(family_of) + 1), dtype=int)
    belongs[np.arange(len(family_of)), family_of] = 1
    mixtures, which = np.unique(rates.composition @ belongs, axis=0, return_inverse=True)
    rate = np.zeros((len(mixtures), rates.rate.shape[1]))
    np.maximum.at(rate, which.reshape(-1), rates.rate)
    order = np.argsort(mixtures.sum(axis=1), kind="stable")
    return mixtures[order], rate[order]


def _mixtures_of_nodes(
    rates: NodeRates, problem: Problem, first: list[int], deadline: Deadline
) -> tuple[np.ndarray, np.ndarray]:
    """Mixtures of families, at the rate of their plain kinds; of one family also at that inside a node."""
    plain_of, local_of = rates.of_nodes.plain_of[first], rates.of_nodes.local_of[first]
    in_node = rates.problem.cluster.kind_count[first]
    mixtures = _mixtures(problem, deadline)
    size = mixtures.sum(axis=1)
    by_plain = np.zeros((len(mixtures), len(rates.of_nodes.plain)), dtype=int)
    np.add.at(by_plain.T, plain_of, mixtures.T)
    if rates.pure:  # as fast as the slowest of its kinds
        alone = np.where(
            (by_plain > 0)[:, :, None], rates.alone[:, size - 1].swapaxes(0, 1), np.inf
        )
        rate = alone.min(axis=1)
    else:
        row = {tuple(plain): i for i, plain in enumerate(rates.composition.tolist())}
        rate = rates.rate[[row[tuple(plain)] for plain in by_plain.tolist()]]
    for f, local in enumerate(local_of.tolist()):
        own = (mixtures[:, f] == size) & (size <= in_node[f])
        if local >= 0:
            rate[own] = np.maximum(rate[own], rates.local[local, size[own] - 1])
    return mixtures, rate


def _families_of_nodes(rates: NodeRates) -> list[int]:
    """The same where nodes repeat: GPUs of a plain and a local kind, as many of them in every node."""
    count, of = rates.problem.cluster.kind_count.tolist(), rates.of_nodes
    numbers: dict[tuple, int] = {}
    family_of = []
    for k, (plain, local) in enumerate(zip(of.plain_of, of.local_of, strict=True)):
        key = plain, local, count[k] if local >= 0 else 0
        family_of.append(numbers.setdefault(key, len(numbers)))
    return family_of


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
