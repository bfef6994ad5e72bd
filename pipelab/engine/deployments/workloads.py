"""Offers of a problem: a workload with a range of numbers in flight, over GPUs of identical nodes taken together.

GPUs of two nodes are of two classes, since a stage may cut its layers within a node only; but where no
link binds, identical nodes can be exchanged. There they count as one large node, as fast inside, whose stages have no
more GPUs than a node has. That leaves out whether the nodes can be filled just so: what is found is a bound, and an
answer if its stages can be packed into nodes, always where stages have 1, 2, 4, … GPUs and nodes a multiple of these.
`deploying` finds out, and the evaluator has the last word.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.engine.attainable import Range
from pipelab.engine.classes import find_classes
from pipelab.engine.deadline import Deadline, made_in_time
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.instance import Instance, at_best, instance_of
from pipelab.engine.stage_arrays import mixes_as_slowest, nodes_matter_alone
from pipelab.errors import TooLarge
from pipelab.evaluation import MOST_IN_FLIGHT
from pipelab.problem import Problem

ALL_NUMBERS = Range(1, math.inf)
_POWERS = 12  # ranges of numbers in flight to begin with: from 1, 2, 4, … on


def first_offers(
    problems: Sequence[Problem], deadline: Deadline, apart: bool = False
) -> list[Offer]:
    """One for each workload with which some stage fits, over all numbers in flight.

    Parameters
    ----------
    problems : sequence of Problem
        The same with different workloads.
    apart : bool
        Whether identical nodes are kept apart.

    Raises
    ------
    Ended
        The deadline was first.
    TooLarge
        There are too many compositions of a stage.
    """
    own = problems[0].workload.in_flight
    numbers = ALL_NUMBERS if own is None else Range(own, own)
    if not apart:
        merged = _offers(problems, numbers, deadline, True)
        if merged and not any(map(_link_binds, merged)):
            return merged
    return _offers(problems, numbers, deadline, False)


def halves(offer: Offer, deadline: Deadline) -> list[Offer]:
    """The same workload with each half of the numbers in flight; all numbers become 1, 2 to 3, 4 to 7, …

    Without those with which nothing fits; empty for a single number.

    Raises
    ------
    Ended
        The deadline was first.
    """
    numbers = offer.numbers
    if numbers.single:
        return []
    parts: Sequence[Range] = numbers.halves(2 * numbers.first)
    if numbers == ALL_NUMBERS:
        powers = [2**i for i in range(_POWERS)]
        ends = [*(p - 1 for p in powers[1:]), MOST_IN_FLIGHT]
        parts = [Range(first, last) for first, last in zip(powers, ends, strict=True)]
    made = [o for part in parts for o in _offers([offer.problem], part, deadline, offer.merged)]
    return [own for own in made if len(own.stage_rates)]


def _offers(
    problems: Sequence[Problem], numbers: Range, deadline: Deadline, merged: bool
) -> list[Offer]:
    offers = []
    for problem in problems:
        counted = problem.with_in_flight(numbers.first)
        counted = counted if numbers.single else at_best(counted)
        table = made_in_time(partial(_table, counted, merged), deadline)
        offer = Offer(problem, numbers, table)
        if len(table.composition):
            offers.append(offer)
    return offers


def _link_binds(offer: Offer) -> bool:
    """Whether a link may be slower than the fastest pipeline."""
    problem = offer.problem
    links = problem.link_throughput(problem.cluster.bandwidth_gb_per_s)
    return bool(np.min(links) < offer.stage_rates.max(initial=0.0))


def _table(problem: Problem, merged: bool, deadline: Deadline) -> Instance:
    """The arrays of a problem; over identical nodes taken together where that leaves fewer classes."""
    if merged and nodes_matter_alone(problem.costs):
        cluster = problem.cluster
        gpus = _of_merged_nodes(cluster)
        if len(set(gpus)) < len(cluster.kinds):
            return _of_large_nodes(problem, gpus, deadline)
    try:
        return instance_of(problem, deadline)
    except TooLarge:
        if not mixes_as_slowest(problem):
            raise
        return _of_one_class(problem, deadline)


def _of_merged_nodes(cluster: Cluster) -> tuple[GPU, ...]:
    """The GPUs of a cluster with one name for all identical nodes."""
    inside: dict[str, Counter] = {}
    for gpu in cluster.gpus:
        inside.setdefault(gpu.node, Counter())[replace(gpu, node=gpu.node and "node")] += 1
    names: dict[frozenset, str] = {}
    name = {node: names.setdefault(frozenset(own.items()), node) for node, own in inside.items()}
    return tuple(replace(gpu, node=name[gpu.node]) if gpu.node else gpu for gpu in cluster.gpus)


def _of_large_nodes(problem: Problem, gpus: tuple[GPU, ...], deadline: Deadline) -> Instance:
    """The instance of these GPUs; what does not fit into one node is as fast as over several."""
    cluster = problem.cluster
    fast, soon = cluster.bandwidth_gb_per_s, cluster.latency_ms
    there: np.ndarray = np.isfinite(fast)
    fast, soon = fast[there].max().reshape(1, 1), soon[there].min().reshape(1, 1)
    one = np.zeros(len(gpus), dtype=int)
    table = instance_of(replace(problem, cluster=Cluster(gpus, fast, one, soon)), deadline)
    bare = tuple(replace(gpu, node="", node_gb_per_s=None) for gpu in gpus)
    over = instance_of(replace(problem, cluster=Cluster(bare, fast, one, soon)), deadline)
    classes = table.classes
    sizes = Counter(gpu for gpu in cluster.gpus)  # of the kind in one node
    first = [members[0] for members in classes.members]
    inside = [sizes[cluster.gpus[g]] if gpus[g].node else len(gpus) for g in first]
    belongs = np.zeros((len(classes), len(over.classes)), dtype=int)
    belongs[np.arange(len(classes)), over.classes.of[first]] = 1
    row = {tuple(own): i for i, own in enumerate(over.composition.tolist())}
    rows = [row.get(tuple(own), -1) for own in (table.composition @ belongs).tolist()]
    none = ((0, 1), (0, 0))  # a last row for what does not fit
    rate = np.pad(over.rate, none)[rows]
    seconds = np.pad(over.seconds, none, constant_values=np.inf)[rows]
    fits = np.all(table.composition <= np.array(inside), axis=1, keepdims=True)
    better = fits & (table.rate >= rate)
    return replace(
        table,
        rate=np.where(better, table.rate, rate),
        seconds=np.where(better, table.seconds, seconds),
    )


def _of_one_class(problem: Problem, deadline: Deadline) -> Instance:
    """The instance of stages of one class each, where there are too many others."""
    classes = find_classes(problem.cluster, deadline)
    most = problem.max_gpus_per_stage
    parts = []
    for a in range(len(classes)):
        number = min(int(classes.count[a]), most)
        alone = Cluster((classes.gpu(a),) * number, np.ones((1, 1)), np.zeros(number, dtype=int))
        parts.append(instance_of(replace(problem, cluster=alone), deadline))
    rows = [len(part.composition) for part in parts]
    composition = np.zeros((sum(rows), len(classes)), dtype=int)
    at = np.repeat(np.arange(len(classes)), rows)
    composition[np.arange(len(at)), at] = np.concatenate([p.composition[:, 0] for p in parts])
    link = np.array(problem.link_throughput(classes.bandwidth_gb_per_s))
    hop = np.zeros_like(link)
    if problem.link_units == "tokens":
        hop[:] = problem.message_seconds(classes.bandwidth_gb_per_s, classes.latency_ms)
    rate, seconds = (np.concatenate([getattr(p, n) for p in parts]) for n in ("rate", "seconds"))
    return Instance(problem, classes, composition, rate, seconds, link, hop)
