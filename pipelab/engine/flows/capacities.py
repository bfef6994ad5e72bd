"""What each composition of GPUs lets pass with so many layers: the only numbers that bound and search are about.

With memory for n microbatches in flight a stage yields its rate r_n. Where memory counts, each token keeps its
place on the stage for as long as its way takes, T seconds at least: no more than n w / T tokens/s then pass.
So the capacity at T is the greatest min(r_n, n w / T) over all n.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import Instance, instance_of, with_memory_for
from pipelab.problem import Problem

_LONGEST = 4  # times the least time: how long ways are allowed for
_NUMBERS = 400  # in flight that are compiled; of more, every second, third, …


@dataclass(frozen=True, eq=False)
class Capacities:
    """Tokens/s of stages at one time T of a way.

    Attributes
    ----------
    usage : int array, shape (I, K)
        GPUs of each of the instance's types in each of I compositions.
    most : float array, shape (I, L)
        Greatest capacity of each with 1 … L layers, whichever these are; 0 where there is none.
    inside : float array, shape (sorts, largest, L)
        The same of 1, 2, … GPUs of one node.
    type_of : int array, shape (sorts,)
        The type of these GPUs.
    count : int array, shape (K,)
    """

    usage: np.ndarray
    most: np.ndarray
    inside: np.ndarray
    type_of: np.ndarray
    count: np.ndarray


@dataclass(frozen=True, eq=False)
class Stages:
    """A problem's tables for each number in flight that can be of use.

    Attributes
    ----------
    problem : Problem
    instances : tuple of Instance
        With memory for `numbers`, one each.
    numbers : tuple of int
    full : bool
        True: stages count with their rates, whatever is in flight.
    """

    problem: Problem
    instances: tuple[Instance, ...]
    numbers: tuple[int, ...]
    full: bool

    @property
    def instance(self) -> Instance:
        """With memory for the fewest."""
        return self.instances[0]

    @cached_property
    def least_seconds(self) -> float:
        """No way takes less: the shortest path through all stages, any of which may be used again.

        A stage that is used in part takes its whole time.
        """
        instance, layers = self.instance, self.problem.model.layers
        kind = instance.spans.kind
        tables = [t for own in self.instances for t in (own.seconds, *own.inside.seconds)]
        least = np.min([t.min(axis=0) for t in tables], axis=0)
        hop = float(instance.hop.min())
        span = np.full(
            (layers + 1, layers + 1), np.inf
        )  # [a, e]: enters after a layers, leaves at e
        for e in range(1, layers + 1):
            starts = np.arange(e)
            span[:e, e] = np.minimum.accumulate(least[kind[starts, e - starts - 1]])
        reached = np.full(layers + 1, np.inf)
        reached[0] = -hop
        for e in range(1, layers + 1):
            reached[e] = (reached[:e] + span[:e, e]).min() + hop
        return float(reached[layers])

    def at(self, seconds: float) -> Capacities:
        """Capacities where every way takes so long, or longer."""
        tokens, instance = self.problem.workload.tokens, self.instance
        layers = instance.spans.layers
        plain, inside = (
            np.max(
                [
                    np.minimum(
                        table(own), math.inf if self.full or not seconds else n * tokens / seconds
                    )
                    for own, n in zip(self.instances, self.numbers, strict=True)
                ],
                axis=0,
            )
            for table in (lambda own: own.rate, lambda own: own.inside.rate)
        )
        total = self.problem.model.layers

        def by_number(rates: np.ndarray) -> np.ndarray:
            out = np.zeros((*rates.shape[:-1], total))
            for n in range(1, total + 1) if len(rates) else ():
                out[..., n - 1] = rates[..., layers == n].max(axis=-1, initial=0.0)
            return out

        return Capacities(
            instance.composition,
            by_number(plain),
            by_number(inside),
            instance.inside.type_of,
            instance.count,
        )


def stages_of(problem: Problem, full: bool, deadline: Deadline) -> Stages:
    """Compile a problem for every number in flight that can be of use, or for its own.

    What all GPUs together let pass, times `_LONGEST` times the least time of a way: more are of no use.
    """
    given = problem.workload.in_flight
    first = instance_of(problem.with_in_flight(problem.workload.in_memory), deadline)
    one = Stages(problem, (first,), (problem.workload.in_memory,), full)
    if full or given is not None or not math.isfinite(one.least_seconds):
        return one
    together = by_area(one.at(0.0))
    most = math.ceil(together * one.least_seconds * _LONGEST / problem.workload.tokens)
    step = max(1, most // _NUMBERS)
    instances, numbers = [], []
    for number in range(1, most + 1, step):
        deadline.check()
        own = instance_of(with_memory_for(problem, number, or_more=True), deadline, like=first)
        if not own.rate.any() and not own.inside.rate.any():
            break
        instances.append(own)
        numbers.append(number + step - 1)
    return Stages(problem, tuple(instances), tuple(numbers), full)


def by_area(of: Capacities) -> float:
    """Tokens/s that no flow exceeds: each GPU in the stage in which it does most, layers times tokens/s."""
    layers = np.arange(1, of.most.shape[1] + 1)
    work = (of.most * layers).max(axis=1) / of.usage.sum(axis=1)
    best = np.where(of.usage > 0, work[:, None], 0.0).max(axis=0)
    sizes = np.arange(1, of.inside.shape[1] + 1)
    own = (of.inside * layers).max(axis=2, initial=0.0) / sizes
    np.maximum.at(best, of.type_of, own.max(axis=1, initial=0.0))
    return float(best @ of.count / len(layers))
