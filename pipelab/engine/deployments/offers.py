"""What can be offered to the GPUs: the problem with each workload, and its table of rates over common classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.families import by_family
from pipelab.engine.formulations.aggregated.rates import StageRates
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
    """

    problem: Problem
    rates: StageRates


def offers_of(problem: Problem, workloads: Sequence[Workload], deadline: Deadline) -> list[Offer]:
    """One for each workload with which some stage fits; all have the same classes.

    Raises
    ------
    Ended
        The deadline was first.
    """
    problems = [replace(problem, workload=load) for load in workloads]
    tables = [rates_in_time(p, deadline) for p in problems]
    offers = [
        Offer(p, rates) for p, rates in zip(problems, tables, strict=True) if len(rates.thresholds)
    ]
    counted = [Offer(o.problem, by_family(o.rates, deadline)) for o in offers]
    number = {len(offer.rates.classes) for offer in counted}
    # Where links bind for one workload only, all are kept apart.
    same = len(number) == 1 and all(
        (o.rates.classes.of == counted[0].rates.classes.of).all() for o in counted
    )
    return counted if same else offers
