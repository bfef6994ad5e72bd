"""Every stage a placement can have, and every pair of stages that can follow one another.

The write-up calls them *allocations* and *connections*. An allocation is a run of consecutive
layers on a set of GPUs, each of which has the memory for them. A connection leads from one
allocation to another that starts where the first ends and shares no GPU with it. The rates of both
are known in advance. To place a model is to choose from these lists; `joint_ilp` does.

Domain: problems of at most 20,000 allocations and 2,000,000 connections. Both numbers grow fast;
`count_candidates` computes them without listing anything.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from heapq import merge
from itertools import combinations
from math import comb
from typing import NamedTuple

from pipelab.errors import TooLarge
from pipelab.fields import instance
from pipelab.problem import Problem

__all__ = ["Allocation", "Connection", "list_allocations", "list_connections", "stage_gpus"]

MOST_ALLOCATIONS, MOST_CONNECTIONS = 20_000, 2_000_000


class Allocation(NamedTuple):
    """A stage that fits in memory."""

    layers: range  # numbered from 0
    gpus: tuple[int, ...]  # ids, ascending
    rate: float  # θ, tokens/s


class Connection(NamedTuple):
    """A pair of allocations that can be neighbours, by their index in the list of allocations."""

    sender: int
    receiver: int
    rate: float  # ν, in the problem's link units per second


def stage_gpus(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield every set of GPUs that may hold a stage, by size and then by id.

    Parameters
    ----------
    problem : Problem
        Whose `max_gpus_per_stage` and `same_type_stages` count.

    Yields
    ------
    tuple of int
        GPU ids, ascending.

    Examples
    --------
    >>> import pipelab as pl
    >>> list(stage_gpus(pl.load_case("tiny", max_gpus_per_stage=2)))[3:6]
    [(3,), (0, 1), (0, 2)]
    """
    types = [gpu.type if problem.same_type_stages else "any" for gpu in problem.cluster.gpus]
    pools = [[g for g, t in enumerate(types) if t == one] for one in dict.fromkeys(types)]
    for size in range(1, min(problem.max_gpus_per_stage, len(types)) + 1):
        yield from merge(*(combinations(pool, size) for pool in pools))


def list_allocations(problem: Problem) -> list[Allocation]:
    """List every run of layers on every set of GPUs that has a rate, and the memory on every GPU.

    Parameters
    ----------
    problem : Problem
        With at most 20,000 allocations, memory aside.

    Returns
    -------
    list of Allocation
        By first layer, then by number of layers, then by GPUs as `stage_gpus` has them.

    Raises
    ------
    InvalidValue
        `problem` is not a Problem.
    TooLarge
        There are more; the message has both numbers.

    Examples
    --------
    >>> import pipelab as pl
    >>> allocations = list_allocations(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> len(allocations), allocations[-1].layers, allocations[-1].gpus
    (100, range(3, 4), (2, 3))
    """
    instance("list_allocations", "problem", problem, Problem, "a Problem")
    model, gpus = problem.model, problem.cluster.gpus
    runs = comb(model.layers + 1, 2)  # two of the L + 1 boundaries enclose a run of layers
    sizes = range(1, min(problem.max_gpus_per_stage, len(gpus)) + 1)
    _refuse(problem, "allocations", runs * sum(comb(len(gpus), size) for size in sizes))
    allocations = []
    for first in range(model.layers):
        for stop in range(first + 1, model.layers + 1):
            for ids in stage_gpus(problem):
                layers, used = range(first, stop), [gpus[g] for g in ids]
                cost = problem.stage_cost(used, layers)
                if cost.fits(used):
                    allocations.append(Allocation(layers, ids, float(cost.throughput)))
    return allocations


def list_connections(problem: Problem, allocations: Sequence[Allocation]) -> list[Connection]:
    """List every pair of allocations that share a boundary and no GPU.

    Parameters
    ----------
    problem : Problem
        With at most 2,000,000 connections, shared GPUs aside.
    allocations : sequence of Allocation
        Of `list_allocations`.

    Returns
    -------
    list of Connection
        By sender, then by receiver. A connection is as fast as the slowest link from a GPU of the
        sender to a GPU of the receiver.

    Raises
    ------
    TooLarge
        There are more; the message has both numbers.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    >>> connections = list_connections(tiny, list_allocations(tiny))
    >>> len(connections), connections[0].sender, connections[0].receiver
    (420, 0, 41)
    """
    ends = Counter(a.layers.stop for a in allocations)
    starts = Counter(a.layers.start for a in allocations)
    _refuse(problem, "connections", sum(ends[layer] * starts[layer] for layer in starts))

    @cache  # a pair of GPU sets meets at many boundaries
    def rate(senders: tuple[int, ...], receivers: tuple[int, ...]) -> float:
        links = [problem.cluster.bandwidth_between(i, j) for i in senders for j in receivers]
        return float(problem.link_throughput(min(links)))

    starting_at: dict[int, list[int]] = {layer: [] for layer in range(problem.model.layers + 1)}
    for number, allocation in enumerate(allocations):
        starting_at[allocation.layers.start].append(number)
    connections = []
    for a, sender in enumerate(allocations):
        for b in starting_at[sender.layers.stop]:
            receiver = allocations[b]
            if set(sender.gpus).isdisjoint(receiver.gpus):
                connections.append(Connection(a, b, rate(sender.gpus, receiver.gpus)))
    return connections


def _refuse(problem: Problem, what: str, number: int) -> None:
    most = MOST_ALLOCATIONS if what == "allocations" else MOST_CONNECTIONS
    if number > most:
        advice = "a smaller max_gpus_per_stage has fewer, and pl.solve needs no list"
        raise TooLarge(f"{problem.name} has up to {number:,} {what}, more than {most:,}; {advice}")
