"""Lowest latency: the shortest traversal among placements that attain a floor."""

from dataclasses import replace

from pipelab.costs import refuse_transfers
from pipelab.engine import arguments
from pipelab.engine.answers import Result
from pipelab.engine.deadline import deadline_of
from pipelab.engine.in_flight import InFlightSearch, within
from pipelab.engine.methods.first_placements import incumbents
from pipelab.engine.methods.fronts import least_of, why_none_attains
from pipelab.engine.prices import refuse_unpriced
from pipelab.fields import checked_arguments


@checked_arguments
def solve_for_latency(
    problem: arguments.AskedProblem,
    at_least: arguments.LeastThroughput = 0.0,
    *,
    budget: arguments.MostPrice = None,
    time_limit: arguments.TimeLimit = None,
    stop: arguments.Stop = None,
) -> Result:
    """Find the placement with the lowest time of a traversal among those that attain a rate in tokens/s.

    A traversal takes a microbatch through all stages and links, one after another. In decode that is
    the time per output token of every stream, in prefill the time to the first token, if nothing
    waits. No sequence is split (`pipelab.costs`), so more GPUs that each hold a stage's layers whole
    than there are sequences save no time. Each stage runs in the mode its cost model chooses
    everywhere: with `Roofline` the one of the greatest rate, whose traversal need not be the shortest;
    `Roofline(prefer="time")` takes the shortest.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is only one GPU.
    at_least : float
        Floor of the attainable rate in tokens/s.
    budget : float, optional
        The most that the GPUs may cost together, in $ per hour.
    time_limit : float, optional
        Seconds. Ended early, the answer is the best placement so far, with a proven lower
        bound.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True, with the same effect.

    Returns
    -------
    Result
        `objective` has the value and its bound, also as `details["seconds_per_pass"]` and
        `details["bound_seconds"]`. If no placement attains the floor, the status is "infeasible"
        and `reason` has the greatest attainable rate. Where a stage is quicker with fewer in flight than
        yield most, `problem` has that number.

    Raises
    ------
    InvalidValue
        Links counted in transfers/s, a floor or limit that is not a number, a budget where a GPU has
        no price, or not a problem.
    TooLarge
        Too many compositions of a stage from too many classes of GPU.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    >>> result = solve_for_latency(tiny)
    >>> result.status, round(result.objective.value, 4), result.placement.gpus
    ('optimal', 108.581, (0, 1))
    """
    if len(problem.cluster) > 1:
        refuse_transfers("solve", problem.costs.link_units)
    if budget is not None:
        refuse_unpriced(problem, "solve")
    with deadline_of(time_limit, stop) as deadline:
        pairs = InFlightSearch(problem=problem, deadline=deadline, budget=within(budget))
        first = incumbents(problem, budget)
        answer = least_of(pairs, "latency", at_least, first)
        if answer.status == "infeasible":
            answer = replace(answer, reason=why_none_attains(problem, at_least, deadline, budget))
        return replace(answer, seconds=deadline.spent)
