"""What can be offered to the GPUs: the problem with each workload, and its table of rates over common classes.

Where attainable rates count, an offer is a workload with a range of numbers in flight. Its table has memory for
the first of them, and its pipelines count with what the last of them would yield: no pipeline with a number of
the range attains more (`engine.attainable`). Ranges that matter are halved until one number is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pipelab.engine.attainable import Range
from pipelab.engine.deadline import Deadline, made_in_time
from pipelab.engine.deployments.families import by_family
from pipelab.engine.formulations.aggregated.rates import StageRates, stage_rates
from pipelab.engine.instance import Instance, at_best, instance_of
from pipelab.engine.methods.aggregated import rates_in_time
from pipelab.engine.methods.subproblems import Subproblems
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
