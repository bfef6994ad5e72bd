"""From the greatest rate to the greatest attainable rate: `solve`'s default objective.

A method answers for the rate of a full pipeline, with memory for one microbatch in flight (or for the
workload's number). No placement attains more than that bound. Where the answer attains its rate, it is the
answer here, too; otherwise `engine.attainable` searches placements and numbers in flight together.
"""

import heapq
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipelab.engine.attainable import Least, Pairs, price_units
from pipelab.engine.deadline import Ended, deadline_of
from pipelab.engine.methods import cost, latency
from pipelab.engine.methods.aggregated import solve_aggregated
from pipelab.engine.methods.latency import BY_TOLERANCE, refuse_transfers
from pipelab.engine.methods.prices import price_per_hour, usd_per_million_tokens
from pipelab.engine.objective import Objective
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import ATTAINED, LAST_BITS, ONE_ANSWER
from pipelab.errors import InvalidPlacement, TooLarge
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import checked_arguments, given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

_SEARCHED = ("auto", "aggregated")
_NARROW = 1.3  # ranges of rates up to this ratio are not halved
NOT_CHOSEN = (
    "this method maximises the rate of a full pipeline with memory for one microbatch in flight, "
    "so nothing is proven of attainable rates but the bound"
)


def solve_for_attainable(
    problem: Problem, method: str, function: Callable[..., Result], options: Mapping[str, Any]
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

    Returns
    -------
    Result
    """
    began, options = time.perf_counter(), dict(options)
    report = options.get("on_progress")
    if report is not None and method in _SEARCHED:
        options["on_progress"] = _attained(problem, report)
    found = function(problem.with_in_flight(problem.workload.in_memory), **options)
    found = replace(found, problem=problem)
    if found.placement is None:
        return found
    evaluation = given(found.evaluation)
    attains = evaluation.attainable >= given(found.throughput) * (1 - LAST_BITS)
    found = replace(found, throughput=evaluation.attainable)
    if attains or evaluation.in_flight is None:
        bound = evaluation.attainable if found.status == "optimal" else found.bound
        return replace(found, bound=bound)
    if method not in _SEARCHED:
        reason = f"{found.reason}; {NOT_CHOSEN}" if found.reason else NOT_CHOSEN
        return replace(found, status="feasible", reason=reason)
    if found.stopped_by in ("stop", "interrupt", "time limit") or found.method == "joint":
        return replace(found, status="feasible")
    left = None
    if options.get("time_limit") is not None:
        left = max(0.0, options["time_limit"] - (time.perf_counter() - began))
    return _searched(found, left, options, report, began)


def _searched(
    found: Result,
    left: float | None,
    options: Mapping[str, Any],
    report: Callable | None,
    began: float,
) -> Result:
    """The pair that attains most, from the placement of the greatest rate."""
    problem, progress = found.problem, [*found.details.get("progress", ())]
    bound = found.bound

    def moment() -> None:
        spent = time.perf_counter() - began
        progress.append(Progress(spent, pairs.attained, bound, 0, pairs.best))
        if report is not None:
            report(progress[-1])

    with deadline_of(left, options.get("stop")) as deadline:
        pairs = Pairs(problem, deadline, on_best=moment)
        pairs.keep(given(found.placement))
        if bound is not None:
            pairs.knows(bound)
        most, stopped = pairs.greatest(options.get("gap", 0.0))
    proven = most <= pairs.attained * (1 + ATTAINED)
    bound = pairs.attained if proven else min(most, bound or most)
    moment()
    return replace(
        found,
        status="optimal" if proven else "feasible",
        placement=pairs.best,
        throughput=pairs.attained,
        bound=bound,
        seconds=time.perf_counter() - began,
        solver=found.solver or choice.solver_version(),
        reason="" if proven else found.reason,
        stopped_by=None if proven else stopped,
        details={**found.details, "progress": tuple(progress), "rounds": tuple(pairs.rounds)},
    )


def _attained(problem: Problem, report: Callable) -> Callable[[Progress], None]:
    """Report what incumbents attain, in place of their rates."""

    def reported(moment: Progress) -> None:
        if moment.placement is not None:
            attained = evaluate(problem, moment.placement).attainable
            moment = replace(moment, incumbent=attained)
        report(moment)

    return reported


@checked_arguments
def solve_for_latency(
    problem: choice.AskedProblem,
    at_least: choice.Floor = 0.0,
    *,
    time_limit: choice.TimeLimit = None,
    stop: choice.Stop = None,
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
    time_limit : float, optional
        Seconds. Ended early, the answer is the best placement so far, with a proven lower
        bound.
    stop : threading.Event, optional
        Set it to end the search, with the same effect.

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
        Links counted in transfers/s, a floor or limit that is not a number, or not a problem.
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
    refuse_transfers(problem, "solve")
    began = time.perf_counter()
    try:
        with deadline_of(time_limit, stop) as deadline:
            pairs = Pairs(problem, deadline)
            return _explained(pairs, least_of(pairs, "latency", at_least), at_least)
    except TooLarge:  # identical nodes may be merged
        left = None if time_limit is None else max(0.0, time_limit - time.perf_counter() + began)
        options = {"at_least": at_least, "time_limit": left, "stop": stop}
        return _from_rates(problem, "latency", latency.solve_for_latency, options)


@checked_arguments
def solve_for_cost(
    problem: choice.AskedProblem,
    at_least: choice.Floor = 0.0,
    *,
    time_limit: choice.TimeLimit = None,
    stop: choice.Stop = None,
) -> Result:
    """Find the placement with the least $ per million tokens among those that attain a rate in tokens/s.

    What counts is the price per hour of the GPUs in use over the tokens of an hour, at the attainable rate.

    Parameters
    ----------
    problem : Problem
        With `GPU.usd_per_hour` for every GPU.
    at_least : float
        Floor of the attainable rate in tokens/s.
    time_limit : float, optional
        Seconds. Ended early, the answer is the best placement so far, with a proven lower bound.
    stop : threading.Event, optional
        Set it to end the search, with the same effect.

    Returns
    -------
    Result
        `objective` has the value and its bound. If no placement attains the floor, the status is
        "infeasible" and `reason` has the greatest attainable rate.

    Raises
    ------
    InvalidValue
        A GPU without a price, prices too fine to be distinguished, a floor or limit that is not a
        number, or an argument that is not a problem.
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
    options = {"at_least": at_least, "time_limit": time_limit, "stop": stop}
    return _from_rates(problem, "cost", cost.solve_for_cost, options)


def _explained(pairs: Pairs, answer: Result, floor: float) -> Result:
    """An infeasible answer with its reason: nothing fits, or nothing attains the floor."""
    if answer.status != "infeasible":
        return answer
    most = solve_for_attainable(
        pairs.problem, "aggregated", solve_aggregated, {"time_limit": _left(pairs)}
    )
    reason = _out_of_reach(most, floor) if floor else most.reason
    return replace(answer, reason=reason, seconds=pairs.deadline.spent)


def _left(pairs: Pairs) -> float | None:
    return pairs.deadline.left if pairs.deadline.limited else None


def _from_rates(
    problem: Problem,
    objective: str,
    function: Callable[..., Result],
    options: Mapping[str, Any],
) -> Result:
    """The least of "latency" or "cost" among placements that attain the floor `at_least`.

    As above: first as if every placement attained its rate, which proves a lower bound; and where the answer
    does not, over placements and numbers in flight together.
    """
    began, options = time.perf_counter(), dict(options)
    found = function(problem.with_in_flight(problem.workload.in_memory), **options)
    found = replace(found, problem=problem)
    goal, evaluation = given(found.objective), found.evaluation
    left = None
    if options.get("time_limit") is not None:
        left = max(0.0, options["time_limit"] - (time.perf_counter() - began))
    if evaluation is None:
        if found.status == "infeasible" and goal.at_least:
            most = solve_for_attainable(
                problem, "aggregated", solve_aggregated, {"time_limit": left}
            )
            found = replace(found, reason=_out_of_reach(most, goal.at_least))
        return found
    value = _value(problem, objective, given(found.placement))
    reached = evaluation.attainable >= goal.at_least * (1 - ATTAINED)
    if reached and value <= given(goal.value) * (1 + ONE_ANSWER):
        return replace(found, throughput=evaluation.attainable)
    if objective == "latency" and found.status == "optimal" and problem.workload.in_flight is None:
        fewer = max(1, math.ceil(goal.at_least * given(goal.value) / problem.workload.tokens))
        own = _with_number(problem, given(found.placement), fewer)
        if (
            own is not None
            and own.attainable >= goal.at_least * (1 - ATTAINED)
            and own.seconds_per_pass <= given(goal.value) * (1 + ONE_ANSWER)
        ):
            other = problem.with_in_flight(fewer)
            return replace(found, problem=other, throughput=own.attainable)
    with deadline_of(left, options.get("stop")) as deadline:
        pairs = Pairs(problem, deadline)
        answer = least_of(pairs, objective, goal.at_least, found.placement if reached else None)
        bounds = [x for x in (given(answer.objective).bound, goal.bound) if x is not None]
        if answer.status == "feasible" and bounds:
            answer = replace(answer, objective=replace(given(answer.objective), bound=max(bounds)))
        if answer.status == "infeasible":
            greatest, _ = pairs.greatest()
            answer = replace(answer, reason=_why_none(goal.at_least, pairs.attained, greatest))
    ended = answer.stopped_by or (found.stopped_by if answer.status == "unknown" else None)
    size = {**found.size, **answer.size}
    return replace(
        answer, seconds=time.perf_counter() - began, size=size, stopped_by=ended, solver=found.solver,
        details={**found.details, **answer.details},
    )  # fmt: skip


def least_of(pairs: Pairs, objective: str, floor: float, known: Placement | None = None) -> Result:
    """The least of "latency" or "cost" among placements that attain a floor.

    Parameters
    ----------
    pairs : Pairs
    floor : float
        Tokens/s.
    known : Placement, optional
        One that attains it.
    """
    search = _least_time if objective == "latency" else _least_ratio
    placement, least, stopped, number = search(pairs, floor, known)
    problem = pairs.problem if number is None else pairs.problem.with_in_flight(number)
    status, value, throughput = "unknown", None, None
    bound = None if least == math.inf else least
    if placement is None and bound is None and stopped is None:
        status = "infeasible"
    elif placement is not None:
        value = _value(problem, objective, placement)
        throughput = evaluate(problem, placement).attainable
        # of a price and of a rate
        proven = least >= value * (1 - 2 * ATTAINED)
        status, bound = ("optimal", value) if proven else ("feasible", bound)
    if status in ("optimal", "infeasible"):
        stopped = None
    elif stopped is None:
        stopped = BY_TOLERANCE
    name, unit = UNITS[objective]
    return Result(
        problem, objective, status, placement, throughput, None, pairs.deadline.spent,
        {}, choice.solver_version(), "", stopped, _named(objective, value, bound),
        Objective(name, unit, value, bound, floor),
    )  # fmt: skip


UNITS = {
    "latency": ("seconds_per_pass", "seconds per pass"),
    "cost": ("usd_per_million_tokens", "$ per million tokens"),
}


def _named(objective: str, value: float | None, bound: float | None) -> dict[str, float | None]:
    if objective == "latency":
        return {"seconds_per_pass": value, "bound_seconds": bound}
    return {"usd_per_million_tokens": value, "bound_usd_per_million_tokens": bound}


def _value(problem: Problem, objective: str, placement: Placement) -> float:
    """Seconds of a traversal, or dollars per million tokens."""
    found = evaluate(problem, placement)
    if objective == "latency":
        return found.seconds_per_pass
    return usd_per_million_tokens(given(price_per_hour(problem, placement)), found.attainable)


def _with_number(problem: Problem, placement: Placement, number: int) -> Evaluation | None:
    try:
        return evaluate(problem.with_in_flight(number), placement)
    except InvalidPlacement:
        return None


def _least_time(pairs: Pairs, floor: float, known: Placement | None) -> Least:
    most = math.inf if known is None else pairs.uses(known, "seconds")
    least = pairs.least("seconds", floor, most)
    return least if least.placement is not None else least._replace(placement=known)


def _least_ratio(pairs: Pairs, floor: float, known: Placement | None) -> Least:
    return _LeastRatio(pairs).run(floor, known)


class _LeastRatio:
    """The least price per attainable rate: ranges of rates, that of the least possible ratio first.

    The least price P of what attains t never falls as t rises. So once it is known at t, and the placement that has it
    attains a, nothing that attains from t to a has a lower ratio than P / a; and whatever attains more costs P at
    least, and so has to attain more than P over the best ratio known to be better.
    """

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.best: Placement | None = None
        self.ratio = math.inf

    def run(self, floor: float, known: Placement | None) -> Least:
        """The placement, and a bound in dollars per million tokens."""
        if known is not None:
            self._keep(known)
        least, stopped = math.inf, None
        cheapest = float(min(price_units(self.pairs.problem).values()))
        ranges: list[tuple[float, float, float, float]] = []  # ratio, rates from and to, price
        here = 0.0
        try:
            top = self.pairs.most_rate(self.pairs.numbers.first) * (1 + ATTAINED)
            ranges = [(cheapest / top, floor, top, cheapest)] if top else []
            while ranges and stopped is None:
                here, first, last, price = heapq.heappop(ranges)
                if here >= self.ratio * (1 - ATTAINED / 2):
                    least = min(least, here)
                    break
                first = max(first, price / self.ratio)
                halve = self.best is not None and 0 < _NARROW * first < last
                at = math.sqrt(first * last) if halve else first
                found, attained = self.pairs.least("price", at, self.ratio * last), at
                stopped = found.stopped_by
                if found.placement is not None:
                    self._keep(found.placement)
                    attained = evaluate(self.pairs.problem, found.placement).attainable
                attained = max(attained, at) * (1 + ATTAINED / 2)
                if halve:
                    heapq.heappush(ranges, (price / at, first, at, price))
                if found.bound < math.inf and attained < last:
                    heapq.heappush(ranges, (found.bound / last, attained, last, found.bound))
                least = min(least, found.bound / attained)
        except (Ended, TooLarge) as end:
            stopped = end.reason if isinstance(end, Ended) else "list limit"
            least = min(least, here)
        least = min([least, self.ratio, *(entry[0] for entry in ranges)])
        if self.best is None and least == math.inf:
            return Least(None, math.inf)
        return Least(self.best, self._dollars(least), stopped)

    def _keep(self, placement: Placement) -> None:
        used = self.pairs.uses(placement, "price")
        ratio = used / evaluate(self.pairs.problem, placement).attainable
        if ratio < self.ratio:
            self.best, self.ratio = placement, ratio

    def _dollars(self, ratio: float) -> float:
        """Dollars per million tokens of a price in units over tokens/s."""
        price, units = next(iter(price_units(self.pairs.problem).items()))
        return usd_per_million_tokens(given(price) / units * ratio, 1.0)


def _out_of_reach(most: Result, floor: float) -> str:
    if most.placement is None or most.throughput is None:
        return most.reason
    return _why_none(floor, most.throughput, most.bound or math.inf)


def _why_none(floor: float, attained: float, most: float) -> str:
    """Why no placement attains a floor."""
    text = f"none attains {floor:,.7g} tokens/s"
    if most <= attained * (1 + ATTAINED):
        return f"{text}, the greatest attainable rate being {attained:,.7g} tokens/s"
    return f"{text}; the best found attains {attained:,.7g} tokens/s"
