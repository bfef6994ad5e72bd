"""What can be offered to the GPUs: the problem with each workload, and its table of rates over common classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipelab.engine.deadline import Deadline, made_in_time
from pipelab.engine.deployments.families import by_family
from pipelab.engine.formulations.aggregated.rates import StageRates, stage_rates
from pipelab.engine.methods.aggregated import rates_in_time
from pipelab.problem import Problem, Workload


@dataclass(frozen=True, eq=False)
class Offer:
    """One workload that a pipeline can have.

    Attributes
    ----------
    problem : Problem
        As the user has it, with this workload.
    rates : StageRates
        The table of its rates; over families of GPUs where these are fewer.
    steady : bool
        A pipeline counts with what its microbatches in flight yield.
    """

    problem: Problem
    rates: StageRates
    steady: bool = False


def offers_of(
    problem: Problem,
    workloads: Sequence[Workload],
    deadline: Deadline,
    steady: bool = False,
    apart: bool = False,
) -> list[Offer]:
    """One for each workload with which some stage fits; all have the same classes.

    GPUs of different nodes are kept apart if `apart`; always where only so many microbatches are in
    flight (`steady`), as the time of each hop counts, and where links bind for one workload only.

    Raises
    ------
    Ended
        The deadline was first.
    """
    problems = [replace(problem, workload=load) for load in workloads]
    apart = apart or steady
    if apart:
        tables = [made_in_time(partial(stage_rates, p), deadline) for p in problems]
    else:
        tables = [rates_in_time(p, deadline) for p in problems]
    offers = [
        Offer(p, rates, steady)
        for p, rates in zip(problems, tables, strict=True)
        if len(rates.thresholds)
    ]
    if apart:
        return offers
    counted = [Offer(o.problem, by_family(o.rates, deadline)) for o in offers]
    number = {len(offer.rates.classes) for offer in counted}
    same = len(number) == 1 and all(
        (o.rates.classes.of == counted[0].rates.classes.of).all() for o in counted
    )
    return counted if same or not counted else offers_of(problem, workloads, deadline, apart=True)
