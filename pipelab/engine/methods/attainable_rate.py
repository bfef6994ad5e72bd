"""From the greatest rate to the greatest attainable rate: `solve`'s default objective.

A method answers for the rate of a full pipeline, with memory for one microbatch in flight (or for the
workload's number). No placement attains more than that bound. Where the answer attains its rate, it is the
answer here, too; otherwise `engine.in_flight` searches placements and numbers in flight together.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

from pipelab.engine.answers import Result, rated_result
from pipelab.engine.deadline import Criterion, Deadline, Ended, apart, deadline_of, stop_of
from pipelab.engine.in_flight import MORE_BY, InFlightSearch, numbers_of, within
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import ATTAINED, LAST_BITS
from pipelab.errors import TooLarge
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.problem import Problem

_SEARCHED = ("auto", "aggregated")
NOT_CHOSEN = (
    "this method maximises the rate of a full pipeline with memory for one microbatch in flight, "
    "so nothing is proven of attainable rates but the bound"
)


def solve_for_attainable(
    problem: Problem,
    method: str,
    function: Callable[..., Result],
    options: Mapping[str, Any],
    to_beat: float = 0.0,
) -> Result:
    """Run a method for the rate, and search on where its placement does not attain it.

    Parameters
    ----------
    problem : Problem
    method : str
        Its name, as `solve` was given it.
    function : function of a problem and options
        Answers for the rate.
    options : mapping
        Of `solve`.
    to_beat : float
        Tokens/s that another batch size attains: whatever attains less is of no interest, and not proven.

    Returns
    -------
    Result
    """
    options = dict(options)
    deadline = Deadline(options.get("time_limit"))
    report, stop = options.get("on_progress"), stop_of(options.get("stop"))
    if method in _SEARCHED:
        read = partial(_attained, problem)
        if report is not None:
            options["on_progress"] = lambda moment: report(read(moment))
        if isinstance(stop, Criterion):
            options["stop"] = stop.part(read)
    until = Deadline(options.get("time_limit"), apart(stop))
    if to_beat and method in _SEARCHED and _is_beaten(problem, until, to_beat):
        reason = f"no placement attains more than the {to_beat:.7g} tokens/s of another batch"
        unknown = rated_result(problem, "aggregated", None, to_beat, seconds=until.spent)
        return replace(unknown, reason=reason)
    result = function(problem.with_in_flight(numbers_of(problem).first), **options)
    result = replace(result, problem=problem)
    if result.placement is None:
        return result
    evaluation = given(result.evaluation)
    attains = evaluation.attainable >= given(result.throughput) * (1 - LAST_BITS)
    result = replace(result, throughput=evaluation.attainable)
    if attains or evaluation.in_flight is None:
        bound = evaluation.attainable if result.status == "optimal" else result.bound
        return replace(result, bound=bound)
    if method not in _SEARCHED:
        reason = f"{result.reason}; {NOT_CHOSEN}" if result.reason else NOT_CHOSEN
        return replace(result, status="feasible", reason=reason)
    if result.stopped_by in ("stop", "interrupt", "time limit") or result.method == "joint":
        return replace(result, status="feasible")
    if (result.bound or math.inf) <= to_beat:
        return replace(result, status="feasible")
    return _searched(result, evaluation, deadline, options, stop, report, to_beat)


def _is_beaten(problem: Problem, deadline: Deadline, to_beat: float) -> bool:
    """Return whether no placement attains more than `to_beat`, by the shortest traversal alone."""
    pairs = InFlightSearch(problem=problem, deadline=deadline, to_beat=to_beat)
    with suppress(Ended, TooLarge):  # the method says so
        return pairs.narrowed(pairs.numbers, to_beat * MORE_BY) is None
    return False


def _searched(
    result: Result,
    evaluation: Evaluation,
    whole: Deadline,
    options: Mapping[str, Any],
    stop: Event | None,
    report: Callable | None,
    to_beat: float,
) -> Result:
    """Find the pair that attains most, from the placement of the greatest rate."""
    problem, progress = result.problem, [*result.details.get("progress", ())]
    bound = result.bound

    def moment() -> None:
        attained = given(pairs.evaluation).attainable
        now = Progress(seconds=whole.spent, incumbent=attained, bound=bound, placement=pairs.best)
        progress.append(now)
        if report is not None:
            report(now)
        deadline.ask(now)

    with deadline_of(whole.share(), stop) as deadline:
        budget = within(options.get("budget"))
        pairs = InFlightSearch(
            problem=problem, deadline=deadline, budget=budget, on_best=moment, to_beat=to_beat
        )
        pairs.best, pairs.evaluation = result.placement, evaluation
        moment()
        if bound is not None:
            pairs.knows(bound)
        most, stopped = pairs.greatest(options.get("gap", 0.0))
    throughput = given(pairs.evaluation).attainable
    proven = most <= throughput * (1 + ATTAINED)
    bound = throughput if proven else min(most, bound or most)
    moment()
    return replace(
        result,
        status="optimal" if proven else "feasible",
        placement=pairs.best,
        throughput=throughput,
        bound=bound,
        seconds=whole.spent,
        solver=result.solver or choice.solver_version(),
        reason="" if proven else result.reason,
        stopped_by=None if proven else stopped,
        details={**result.details, "progress": tuple(progress), "rounds": tuple(pairs.rounds)},
    )


def _attained(problem: Problem, moment: Progress) -> Progress:
    """Return the progress with what the incumbent attains, in place of its rate."""
    if moment.placement is None:
        return moment
    return replace(moment, incumbent=evaluate(problem, moment.placement).attainable)
