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
from contextlib import suppress
from dataclasses import replace

import numpy as np

from pipelab.cluster import Cluster
from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.deployments.timing import timed
from pipelab.engine.in_flight import Range, compiled, numbers_of
from pipelab.engine.instance import (
    Groups,
    Instance,
    apart,
    by_class,
    instance_of,
    with_memory_for,
    without_node,
)
from pipelab.errors import TooLarge
from pipelab.evaluation import MOST_IN_FLIGHT
from pipelab.problem import Problem
from pipelab.requests import Limits

ALL_NUMBERS = Range(1, math.inf)
_FIRST_RANGES = 12  # of numbers in flight where all are split: from 1, 2, 4, … on


def first_offers(
    problems: Sequence[Problem],
    deadline: Deadline,
    keep_nodes_apart: bool = False,
    limits: Limits | None = None,
) -> list[Offer]:
    """Make an offer of each workload with which some stage fits, over all numbers in flight.

    Parameters
    ----------
    problems : sequence of Problem
        One problem with different workloads.
    keep_nodes_apart : bool
        False: identical nodes are taken together unless a link may bind.
    limits : Limits, optional
        Where requests are served.

    Raises
    ------
    Ended
        The deadline was first.
    TooLarge
        There are too many compositions of a stage.
    """
    numbers = numbers_of(problems[0])
    if not keep_nodes_apart:
        with suppress(TooLarge):
            merged = _offers(problems, numbers, deadline, True, limits)
            if merged and not any(map(_link_binds, merged)):
                return merged
    return _offers(problems, numbers, deadline, False, limits)


def halves(offer: Offer, deadline: Deadline) -> list[Offer]:
    """Split an offer by its numbers in flight: in two halves, or all numbers into 1, 2 to 3, 4 to 7, …

    Parts with which nothing fits are left out; an offer of a single number has none.

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
        powers = [2**i for i in range(_FIRST_RANGES)]
        ends = [*(p - 1 for p in powers[1:]), MOST_IN_FLIGHT]
        parts = [Range(first, last) for first, last in zip(powers, ends, strict=True)]
    made = (_offers([offer.problem], part, deadline, offer.merged, offer.limits) for part in parts)
    able = (half for offers in made for half in offers if len(half.stage_rates))
    return [replace(half, most_rate=offer.most_rate) for half in able]


def _offers(
    problems: Sequence[Problem],
    numbers: Range,
    deadline: Deadline,
    merged: bool,
    limits: Limits | None,
) -> list[Offer]:
    offers = []

    def table_of(problem: Problem) -> Instance:
        def made(number: int, exact: bool) -> Instance:
            counted = with_memory_for(problem, number, or_more=not exact)
            return instance_of(counted, deadline)

        # limits are missed by little: there a range is not relaxed where it need not be
        instance = (
            made(numbers.first, numbers.single) if limits is None else compiled(numbers, made)
        )
        return _table(instance, merged, deadline)

    for problem in problems:
        merged &= _nodes_repeat(problem.cluster)
        table, timing = table_of(problem), None
        if limits is not None:
            table, timing = timed(problem, numbers, table, limits, table_of)
        offer = Offer(
            problem=problem,
            numbers=numbers,
            table=table,
            merged=merged,
            mixed_as_slowest=table.problem.costs.mixes_as_slowest(table.problem),
            timing=timing,
        )
        if len(table.composition):
            offers.append(offer)
    return offers


def _link_binds(offer: Offer) -> bool:
    """Return whether a link may be slower than the fastest pipeline."""
    problem = offer.problem
    links = problem.link_throughput(problem.cluster.bandwidth_gb_per_s)
    return bool(np.min(links) < offer.stage_rates.max(initial=0.0))


def _table(instance: Instance, merged: bool, deadline: Deadline) -> Instance:
    """Group an instance by classes, each of which has its price; `merged`: identical nodes count as one.

    Where mixed stages are too many to list and no faster than their slowest GPUs, they are left out: bounds hold, as
    stages of one class are listed whether it has so many GPUs or not, and no list is complete.
    """
    groups = _merged(instance) if merged else apart(instance)
    try:
        return by_class(instance, groups, deadline)
    except TooLarge:
        if not instance.pure:
            raise
        return by_class(instance, groups, deadline, mixed=False)


def _nodes_repeat(cluster: Cluster) -> bool:
    """Return whether two nodes have the same contents."""
    return len(set(_nodes_of(cluster, True))) < len(set(_nodes_of(cluster, False)))


def _nodes_of(cluster: Cluster, merged: bool) -> np.ndarray:
    """Number the node of each GPU, -1 where it is in none; `merged`: nodes with the same contents have one number."""
    contents: dict[str, Counter] = {}
    for gpu in cluster.gpus:
        contents.setdefault(gpu.node, Counter())[
            replace(gpu, node=gpu.node and "node", machine="")
        ] += 1
    names = list(contents)
    first: dict[frozenset, int] = {}
    number = {
        name: first.setdefault(frozenset(content.items()), names.index(name))
        for name, content in contents.items()
    }
    numbers = number if merged else {name: i for i, name in enumerate(names)}
    return np.array([numbers[gpu.node] if gpu.node else -1 for gpu in cluster.gpus])


def _merged(instance: Instance) -> Groups:
    """Make one class of the GPUs of a type in nodes with the same contents; all links count as fast as the fastest."""
    classes, problem = instance.classes, instance.problem
    label = _nodes_of(problem.cluster, True)
    keys: dict[tuple, list[int]] = {}
    for a, members in enumerate(classes.members):
        keys.setdefault((int(instance.type_of[a]), int(label[members[0]])), []).append(a)
    kinds = problem.cluster.kinds
    bare = {
        (without_node(kinds[k]), label[gpus[0]])
        for k, gpus in zip(classes.kind, classes.members, strict=True)
    }
    if len(keys) > len(bare):
        # with another number in flight, or of another workload, they may be fewer classes
        raise TooLarge(
            "some stage is slower inside a node than across: each node is of a class of its own"
        )
    first = [classes_of_key[0] for classes_of_key in keys.values()]
    shape = len(keys), len(keys)
    bandwidth, latency = problem.cluster.bandwidth_gb_per_s, problem.cluster.latency_ms
    there = np.isfinite(bandwidth)
    fast, soon = bandwidth[there].max(), latency[there].min()
    hop = problem.message_seconds(fast, soon) if problem.costs.link_units == "tokens" else 0.0
    merged = classes.merged([*keys.values()], np.full(shape, fast), np.full(shape, soon))
    link = np.full(shape, problem.link_throughput(fast))
    return Groups(
        classes=merged,
        type_of=instance.type_of[first],
        link=link,
        hop=np.full(shape, hop),
        node=label,
    )
