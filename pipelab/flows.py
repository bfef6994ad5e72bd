"""A flow: stages may overlap, and every microbatch takes its own way through them.

In a pipeline each layer is on one stage, and all microbatches take the same way. In a *flow* several stages
may hold the same layers. A microbatch that has passed the layers before a goes on to any stage that holds
layer a, and leaves it behind that stage's last layer: its *way* is a list of stages, of which each holds the
layer that follows the last one of the stage before. It may use a stage in part, and then takes as much of
its time as if it used the whole.

With f_p tokens/s on way p, stage v yields q_v, link vw carries l_vw, and a microbatch has w tokens::

    max Σ f_p      Σ_{p through v} f_p ≤ q_v        Σ_{p from v to w} f_p ≤ l_vw        f_p ≥ 0

All microbatches in flight need memory. A way takes T_p seconds, so f_p T_p / w of its microbatches are in
flight (Little's law), and each is kept on all of its stages. A stage with memory for n_v of them has::

    Σ_{p through v} f_p T_p ≤ n_v w

One way alone is a pipeline: min(q_v, l_vw, n w / T) is its attainable rate. Ways through stages of their own
are several pipelines. This module tries all sets of stages, and for each solves this linear program.

Domain: problems of some GPUs and some layers; the number of sets grows as (L² / 2)^N. This is a definition
to read. `pl.flow` runs `engine/flows` instead; `tests/engine/test_flows.py` holds it to this one.

The model is Helix's (Y. Mei et al., ASPLOS 2025), with the memory in flight added.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from pipelab.candidates import list_allocations
from pipelab.deployment_and_flow import Way
from pipelab.fields import MOST_COUNTED
from pipelab.placement import Stage
from pipelab.problem import Problem

__all__ = ["Held", "Way", "exhaustive_flow", "goes_on", "greatest_flow", "list_ways", "numbers"]


class Held(NamedTuple):
    """A stage, and the number of microbatches in flight that it has memory for."""

    stage: Stage
    in_flight: int


def goes_on(before: Stage, after: Stage) -> bool:
    """Tell whether a microbatch that leaves one stage can go on to another, which may be used in part.

    >>> goes_on(Stage(range(0, 3), (0,)), Stage(range(2, 5), (1,)))
    True
    """
    return after.layers.start <= before.layers.stop < after.layers.stop


def list_ways(stages: Sequence[Stage], layers: int) -> Iterator[tuple[int, ...]]:
    """Yield every way through the model, as indices of stages.

    Parameters
    ----------
    stages : sequence of Stage
        Those that share a GPU are never on one way.
    layers : int
        Of the model.

    Yields
    ------
    tuple of int

    Examples
    --------
    >>> stages = [Stage(range(0, 2), (0,)), Stage(range(1, 3), (1,)), Stage(range(2, 3), (2,))]
    >>> list(list_ways(stages, 3))
    [(0, 1), (0, 2)]
    """
    return (way for way in begun_ways(stages, layers) if stages[way[-1]].layers.stop == layers)


def begun_ways(stages: Sequence[Stage], layers: int) -> Iterator[tuple[int, ...]]:
    """Yield every way and every beginning of one, which may lead nowhere: the steps of `list_ways`."""
    begun: list[tuple[int, ...]] = [
        (v,) for v in reversed(range(len(stages))) if stages[v].layers.start == 0
    ]
    while begun:
        way = begun.pop()
        yield way
        last = stages[way[-1]]
        if last.layers.stop == layers:
            continue
        for v in reversed(range(len(stages))):
            if goes_on(last, stages[v]) and all(_apart(stages[u], stages[v]) for u in way):
                begun.append((*way, v))


def _apart(a: Stage, b: Stage) -> bool:
    return set(a.gpus).isdisjoint(b.gpus)


def stage_times(problem: Problem, held: Held) -> tuple[float, float]:
    """Compute tokens/s of a stage, and the seconds of one microbatch in it."""
    gpus = [problem.cluster.gpus[g] for g in held.stage.gpus]
    cost = problem.with_in_flight(held.in_flight).stage_cost(gpus, held.stage.layers)
    return cost.throughput, cost.seconds(problem.workload.tokens)


def link_between(problem: Problem, sender: Stage, receiver: Stage) -> tuple[float, float]:
    """Compute tokens/s of the slowest link between the GPUs of two stages, and the seconds of a message."""
    pairs = [(i, j) for i in sender.gpus for j in receiver.gpus]
    bandwidth = np.array([problem.cluster.bandwidth_between(*pair) for pair in pairs])
    latency = np.array([problem.cluster.latency_between(*pair) for pair in pairs])
    seconds = problem.message_seconds(bandwidth, latency)
    return float(problem.link_throughput(bandwidth.min())), float(np.max(seconds))


def greatest_flow(problem: Problem, held: Sequence[Held], full: bool = False) -> list[Way]:
    """Find the best ways through stages that are given, by a linear program over all of them.

    Parameters
    ----------
    problem : Problem
    held : sequence of Held
        Stages that share no GPU.
    full : bool
        True: any number may be in flight, as if all stages were always busy (objective "rate").

    Returns
    -------
    list of Way
        Those that carry something.
    """
    stages = [stage for stage, _ in held]
    ways = list(list_ways(stages, problem.model.layers))
    if not ways:
        return []
    rates, seconds = zip(*(stage_times(problem, option) for option in held), strict=True)
    hops = sorted({hop for way in ways for hop in pairwise(way)})
    links = {(v, w): link_between(problem, stages[v], stages[w]) for v, w in hops}
    through = np.array([[float(v in way) for way in ways] for v in range(len(stages))])
    across = [[float(hop in pairwise(way)) for way in ways] for hop in hops]
    rows, limits = [*through, *across], [*rates, *(links[hop][0] for hop in hops)]
    if not full:
        traversal = [
            sum(seconds[v] for v in way) + sum(links[h][1] for h in pairwise(way)) for way in ways
        ]
        rows += [*(through * traversal)]
        limits += [in_flight * problem.workload.tokens for _, in_flight in held]
    carried = linprog(-np.ones(len(ways)), np.array(rows), limits).x.tolist()
    return [Way(way, rate) for way, rate in zip(ways, carried, strict=True) if rate > 0]


def numbers(problem: Problem, stage: Stage, most: int) -> Iterator[int]:
    """Yield numbers in flight to have memory for: of those with one rate and time, the largest.

    With more in flight a stage may run in another execution mode, and does not return to the one before. So the
    numbers fall into runs with one rate and time, and the end of each is found by bisection.

    Parameters
    ----------
    problem : Problem
        Where its workload has a number in flight, that is the only one.
    stage : Stage
    most : int
        More are of no use.

    Yields
    ------
    int
        None at all where not even one fits.
    """
    gpus = [problem.cluster.gpus[g] for g in stage.gpus]

    def rate_and_time(number: int) -> tuple[float, float | None] | None:
        cost = problem.with_in_flight(number).stage_cost(gpus, stage.layers)
        return (cost.throughput, cost.pass_seconds) if cost.fits(gpus) else None

    given = problem.workload.in_flight
    begin, most = (1, most) if given is None else (given, given)
    while begin <= most and (here := rate_and_time(begin)) is not None:
        rest = range(begin, most + 1)
        begin += bisect_left(rest, True, key=lambda number: rate_and_time(number) != here)
        yield begin - 1


def most_in_flight(problem: Problem, stages: Sequence[Stage]) -> int:
    """Bound the number in flight that a stage can use: its rate times the longest that a way may take."""
    rates, longest = [0.0], dict.fromkeys(range(len(problem.cluster)), 0.0)
    for stage in stages:
        rate, seconds = stage_times(problem, Held(stage, problem.workload.in_memory))
        rates.append(rate)
        longest |= {g: max(longest[g], seconds) for g in stage.gpus}
    of_gpus = {stage.gpus: stage for stage in stages}
    pairs = [pair for pair in permutations(of_gpus.values(), 2) if _apart(*pair)]
    hops = [link_between(problem, *pair)[1] for pair in pairs]
    slowest = sum(longest.values()) + len(longest) * max(hops, default=0.0)
    return max(1, math.ceil(min(MOST_COUNTED, max(rates) * slowest / problem.workload.tokens)))


def exhaustive_flow(problem: Problem, full: bool = False) -> tuple[list[Held], list[Way]]:
    """Find the best flow of a small problem, by trying all sets of stages that share no GPU.

    Parameters
    ----------
    problem : Problem
        Of a few GPUs and layers.
    full : bool
        True: the rate as if all stages were always busy, with memory for `Workload.in_memory`.

    Returns
    -------
    held : list of Held
        Empty if there is no way through the model.
    ways : list of Way
        Indices into `held`, and tokens/s.

    Examples
    --------
    >>> import pipelab as pl
    >>> model = pl.Model("four layers", 4, 1000, 4000, 1.0)
    >>> cluster = pl.Cluster.from_counts({"A": 1, "B": 2}, 80, 100)
    >>> costs = pl.LayerTimes({"A": 1.0, "B": 3.0})
    >>> problem = pl.Problem(cluster, model, pl.Workload(100, 1), costs)
    >>> held, ways = exhaustive_flow(problem)
    >>> round(sum(way.rate for way in ways)), round(pl.solve(problem).throughput)
    (41667, 33333)
    """
    allocations = list_allocations(problem.with_in_flight(problem.workload.in_memory))
    stages = [Stage(a.layers, a.gpus) for a in allocations]
    if full:
        options = [Held(stage, problem.workload.in_memory) for stage in stages]
    else:
        most = most_in_flight(problem, stages)
        options = [Held(s, n) for s in stages for n in numbers(problem, s, most)]
    rate_of = {option: stage_times(problem, option)[0] for option in options}
    best: tuple[list[Held], list[Way]] = [], []
    value = 0.0
    for held in _disjoint(options, range(len(problem.cluster))):
        passed = np.zeros(problem.model.layers)
        for option in held:
            layers = option.stage.layers
            passed[layers.start : layers.stop] += rate_of[option]
        if passed.min() <= value * (1 + 1e-9):
            continue  # some layer lets no more pass than is known
        ways = greatest_flow(problem, held, full)
        total = math.fsum(way.rate for way in ways)
        if total > value:
            best, value = (list(held), ways), total
    return best


def _disjoint(options: Sequence[Held], gpus: Sequence[int]) -> Iterator[tuple[Held, ...]]:
    """Yield every set of options that share no GPU."""
    if not gpus:
        yield ()
        return
    first, *rest = gpus
    yield from _disjoint(options, rest)
    for option in options:
        used = option.stage.gpus
        if used[0] == first and set(used) <= set(gpus):
            left = [gpu for gpu in rest if gpu not in used]
            for others in _disjoint(options, left):
                yield (option, *others)
