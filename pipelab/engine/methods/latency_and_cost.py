"""The shortest traversal, and the least $ per million tokens, among placements that attain a floor."""

from dataclasses import replace
from typing import Literal

from pipelab.costs import refuse_transfers
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
def solve_for_least(
    objective: Literal["latency", "cost"],
    problem: arguments.AskedProblem,
    at_least: arguments.LeastThroughput = 0.0,
    *,
    budget: arguments.MostPrice = None,
    time_limit: arguments.TimeLimit = None,
    stop: arguments.Stop = None,
) -> Result:
    """Find the shortest traversal, or the least $ per million tokens, among placements that attain a rate in tokens/s.

    A traversal takes a microbatch through all stages and links, one after another. In decode that is
    the time per output token of every stream, in prefill the time to the first token, if nothing
    waits. No sequence is split (`pipelab.costs`), so more GPUs that each hold a stage's layers whole
    than there are sequences save no time. Each stage runs in the mode its cost model chooses
    everywhere: with `Roofline` the one of the greatest rate, whose traversal need not be the shortest;
    `Roofline(prefer="time")` takes the shortest.

    What a million tokens cost is the price per hour of the GPUs in use over the tokens of an hour, at the
    attainable rate. It is sought first among full pipelines.

    Parameters
    ----------
    objective : {"latency", "cost"}
    problem : Problem
        For latency with `link_units="tokens"`, unless there is only one GPU; for cost with
        `GPU.usd_per_hour` for every GPU.
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
        "infeasible" and `reason` has the greatest attainable rate. Where a stage is quicker with fewer in
        flight than yield most, `problem` has that number.

    Raises
    ------
    InvalidValue
        Links counted in transfers/s, a floor or limit that is not a number, a GPU without a price where
        it counts, or not a problem.
    TooLarge
        Too many compositions of a stage from too many classes of GPU.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    >>> result = solve_for_least("latency", tiny)
    >>> result.status, round(result.objective.value, 4), result.placement.gpus
    ('optimal', 108.581, (0, 1))
    >>> rented = pl.Cluster.from_counts({"A100": 2, "V100": 2}, {"A100": 80, "V100": 32}, 400,
    ...                                 usd_per_hour={"A100": 1.8, "V100": 0.6})
    >>> problem = dataclasses.replace(pl.load_case("tiny", max_gpus_per_stage=2), cluster=rented)
    >>> result = solve_for_least("cost", problem)
    >>> result.status, round(result.objective.value, 4), result.placement.gpus
    ('optimal', 1.2111, (2,))
    >>> solve_for_least("cost", problem, at_least=300).placement.gpus
    (0, 1)
    """
    if objective == "latency" and len(problem.cluster) > 1:
        refuse_transfers("solve", problem.costs.link_units)
    if objective == "cost" or budget is not None:
        refuse_unpriced(problem, "solve")
    with deadline_of(time_limit, stop) as deadline:
        pairs = InFlightSearch(problem=problem, deadline=deadline, budget=within(budget))
        first, answer, bound = incumbents(problem, budget), None, 0.0
        if objective == "cost":
            full = replace(pairs.full_pipelines(), deadline=deadline.apart())  # another question
            answer = replace(least_of(full, objective, at_least, first), problem=problem)
            bound = given(answer.objective).bound or 0.0
        if answer is None or (answer.placement and not _attains(pairs, answer, at_least)):
            answer = least_of(pairs, objective, at_least, first, bound)
        if answer.status == "infeasible":
            answer = replace(answer, reason=why_none_attains(problem, at_least, deadline, budget))
        return replace(answer, seconds=deadline.spent)


def _attains(pairs: InFlightSearch, full: Result, at_least: float) -> bool:
    """Return whether what is least for full pipelines attains its rate, and so is least of all."""
    placement, rate = given(full.placement), given(full.throughput)
    return pairs.yields(placement) >= max(rate * (1 - ONE_ANSWER), at_least * (1 - ATTAINED))
