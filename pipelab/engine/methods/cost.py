"""Least $ per million tokens among placements that attain a floor."""

from dataclasses import replace

from pipelab.engine import arguments
from pipelab.engine.answers import Result
from pipelab.engine.deadline import deadline_of
from pipelab.engine.in_flight import InFlightSearch, within
from pipelab.engine.methods.first_placements import incumbents
from pipelab.engine.methods.fronts import least_of, why_none_attains
from pipelab.engine.prices import refuse_unpriced
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.fields import checked_arguments, given


@checked_arguments
def solve_for_cost(
    problem: arguments.AskedProblem,
    at_least: arguments.LeastThroughput = 0.0,
    *,
    budget: arguments.MostPrice = None,
    time_limit: arguments.TimeLimit = None,
    stop: arguments.Stop = None,
) -> Result:
    """Find the placement with the least $ per million tokens among those that attain a rate in tokens/s.

    What counts is the price per hour of the GPUs in use over the tokens of an hour, at the attainable rate.

    Parameters
    ----------
    problem : Problem
        With `GPU.usd_per_hour` for every GPU.
    at_least : float
        Floor of the attainable rate in tokens/s.
    budget : float, optional
        The most that the GPUs may cost together, in $ per hour.
    time_limit : float, optional
        Seconds. Ended early, the answer is the best placement so far, with a proven lower bound.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True, with the same effect.

    Returns
    -------
    Result
        `objective` has the value and its bound. If no placement attains the floor, the status is
        "infeasible" and `reason` has the greatest attainable rate.

    Raises
    ------
    InvalidValue
        A GPU without a price, a floor or limit that is not a number, or an argument that is not a
        problem.
    TooLarge
        Too many mixtures of too many kinds of GPU, where mixtures must be listed.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> rented = pl.Cluster.from_counts({"A100": 2, "V100": 2}, {"A100": 80, "V100": 32}, 400,
    ...                                 usd_per_hour={"A100": 1.8, "V100": 0.6})
    >>> problem = dataclasses.replace(pl.load_case("tiny", max_gpus_per_stage=2), cluster=rented)
    >>> result = solve_for_cost(problem)
    >>> result.status, round(result.objective.value, 4), result.placement.gpus
    ('optimal', 1.2111, (2,))
    >>> solve_for_cost(problem, at_least=300).placement.gpus
    (0, 1)
    """
    refuse_unpriced(problem, "solve")
    with deadline_of(time_limit, stop) as deadline:
        pairs = InFlightSearch(problem=problem, deadline=deadline, budget=within(budget))
        first = incumbents(problem, budget)
        full = replace(pairs.full_pipelines(), deadline=deadline.apart())  # another question
        answer = least_of(full, "cost", at_least, first)
        answer = replace(answer, problem=problem)
        if answer.placement is not None and not _attains(pairs, answer, at_least):
            bound = given(answer.objective).bound
            answer = least_of(pairs, "cost", at_least, first, bound or 0.0)
        if answer.status == "infeasible":
            answer = replace(answer, reason=why_none_attains(problem, at_least, deadline, budget))
        return replace(answer, seconds=deadline.spent)


def _attains(pairs: InFlightSearch, full: Result, at_least: float) -> bool:
    """Return whether what is least for full pipelines attains its rate, and so is least of all."""
    placement, rate = given(full.placement), given(full.throughput)
    return pairs.yields(placement) >= max(rate * (1 - ONE_ANSWER), at_least * (1 - ATTAINED))
