"""What each composition of GPUs lets pass with so many layers: the only numbers that bound and search are about.

With memory for n microbatches in flight a stage yields its rate r_n. Where memory counts, each token keeps its
place on the stage for as long as its way takes, T seconds at least: no more than n w / T tokens/s then pass.
So the capacity at T is the greatest min(r_n, n w / T) over all n.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import Instance, instance_of, with_memory_for
from pipelab.engine.stage_table import holdable, least_seconds
from pipelab.evaluation import MOST_IN_FLIGHT
from pipelab.problem import Problem

_ALL_NUMBERS_UP_TO = 30  # numbers in flight up to this are all compiled


@dataclass(frozen=True, eq=False)
class Capacities:
    """Tokens/s of stages at one time T of a way.

    Attributes
    ----------
    usage : int array, shape (I, K)
        GPUs of each of the instance's types in each of I stages: its compositions, and 1, 2, … GPUs of one node.
    most : float array, shape (I, L)
        Greatest capacity of each with 1 … L layers, whichever these are; 0 where there is none.
    places, seconds : float arrays, shape (I, L)
        For how many microbatches each has memory at most, and the least time of one on it.
    count : int array, shape (K,)
    """

    usage: np.ndarray
    most: np.ndarray
    places: np.ndarray
    seconds: np.ndarray
    count: np.ndarray


@dataclass(frozen=True, eq=False)
class StagesByInFlight:
    """A problem's tables for each number in flight that can be of use.

    Attributes
    ----------
    problem : Problem
    instances : tuple of Instance
        With memory for `numbers`, one each.
    numbers : tuple of int
    full : bool
        True: stages count with their rates, whatever is in flight.
    more : bool
        Whether there is memory for any number.
    """

    problem: Problem
    instances: tuple[Instance, ...]
    numbers: tuple[int, ...]
    full: bool
    more: bool = False

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
        tables = [_rows(instance.seconds, instance.inside.seconds) for instance in self.instances]
        least = np.min([seconds.min(axis=0) for seconds in tables], axis=0)
        number = np.arange(layers)

        def ending_at(end: int) -> np.ndarray:
            """Seconds of a stage that is entered after 0, 1, … layers, and may hold more of them."""
            return np.minimum.accumulate(least[kind[number[:end], number[:end][::-1]]])

        return float(least_seconds(layers, float(instance.hop.min()), ending_at)[-1])

    @cached_property
    def _usage(self) -> np.ndarray:
        """GPUs of each type in each stage, as `Capacities.usage` has them."""
        # Where nodes are no faster inside than outside an instance leaves them out, which may depend on the number.
        inside = max((i.inside for i in self.instances), key=lambda inside: inside.rate.size)
        unit = np.eye(len(self.instance.types), dtype=int)
        sizes = np.arange(1, inside.rate.shape[1] + 1)[:, None]
        return _rows(self.instance.composition, unit[inside.type_of][:, None] * sizes)

    @cached_property
    def _by_layers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of all stages: rates by number in flight and layers, places, least seconds."""
        layers, total = self.instance.spans.layers, self.problem.model.layers
        places = np.array([math.inf] if self.more else self.numbers)
        shape = len(places), len(self._usage), total
        rates, seconds = np.zeros(shape), np.full(shape, np.inf)
        for i, instance in enumerate(self.instances[: len(places)]):
            rate = _rows(instance.rate, instance.inside.rate)
            took = _rows(instance.seconds, instance.inside.seconds)
            for n in range(1, total + 1):
                of = layers == n
                rates[i, : len(rate), n - 1] = rate[:, of].max(axis=1, initial=0.0)
                seconds[i, : len(took), n - 1] = took[:, of].min(axis=1, initial=np.inf)
        number = np.where(rates > 0, places[:, None, None], 0.0).max(axis=0)
        return rates, number, seconds.min(axis=0)

    def at(self, seconds: float) -> Capacities:
        """Capacities where every way takes so long, or longer."""
        tokens, (rates, places, least) = self.problem.workload.tokens, self._by_layers
        free = self.full or self.more or not seconds
        limit = np.array([math.inf if free else n * tokens / seconds for n in self.numbers])
        most = np.minimum(rates, limit[: len(rates), None, None]).max(axis=0)
        usage, count = self._usage, self.instance.count
        return Capacities(usage=usage, most=most, places=places, seconds=least, count=count)


def _rows(listed: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Put the rows of stages inside one node, shape (sorts, largest, …), below those of all compositions."""
    return np.concatenate([listed, inside.reshape(-1, listed.shape[1])])


def stages_of(problem: Problem, full: bool, deadline: Deadline) -> StagesByInFlight:
    """Compile a problem for every number in flight that fits somewhere, or for its own.

    Of numbers above `_ALL_NUMBERS_UP_TO` every second, third, … is compiled, and counts for those up to the next: so
    capacities are never too small, and a few percent too great at most.
    """
    number = problem.workload.in_memory
    first = instance_of(problem.with_in_flight(number), deadline)
    one = StagesByInFlight(problem=problem, instances=(first,), numbers=(number,), full=full)
    if full or problem.workload.in_flight is not None:
        return one

    def with_memory(number: int) -> Instance:
        deadline.check()
        return instance_of(with_memory_for(problem, number, or_more=True), deadline, like=first)

    instances, numbers, number = [with_memory(1)], [1], 2
    more = with_memory(MOST_IN_FLIGHT).same_times(instances[0])  # memory does not count
    while not more:
        instance, step = with_memory(number), max(1, number // _ALL_NUMBERS_UP_TO)
        if not instance.rate.any() and not instance.inside.rate.any():
            break
        instances.append(instance)
        numbers.append(number + step - 1)
        number += step
    return replace(one, instances=tuple(instances), numbers=tuple(numbers), more=more)


def by_work(of: Capacities) -> float:
    """Tokens/s that no flow exceeds: what passes a stage, times its layers, is its part of the work of all layers.

    So with every GPU in the stage in which it does most, all of them do the work. A deployment is a flow: this is
    its work bound (`deployments.master_program`), too.
    """
    layers = np.arange(1, of.most.shape[1] + 1)
    work = (of.most * layers).max(axis=1)
    return holdable(work, of.usage.sum(axis=1), of.usage > 0, of.count) / len(layers)
