"""The least of something among what attains a floor, and the front that a rising floor makes.

The ε-constraint method: a floor of the attainable rate, and the least time or price above it. What is least at
one floor has some rate; the next floor is just above it.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipelab.engine.attainable import Least, Pairs, Range
from pipelab.engine.deadline import Deadline, Ended, made_in_time
from pipelab.engine.instance import at_best
from pipelab.engine.methods.aggregated import solve_aggregated
from pipelab.engine.methods.attained import solve_for_attainable
from pipelab.engine.nodes import fewer_nodes
from pipelab.engine.objective import Objective
from pipelab.engine.prices import price_per_hour, usd_per_million_tokens
from pipelab.engine.rates import rates_of_kinds
from pipelab.engine.solvers import choice
from pipelab.engine.stage_arrays import mixes_as_slowest, nodes_matter_alone
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER, PROVEN_WITHIN
from pipelab.errors import InvalidValue, TooLarge
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

BY_TOLERANCE = "the solver's tolerance"  # what ended it if the last program stayed open
_SPREAD = 1_000.0  # times the bound: what takes longer waits
_NARROW = 1.3  # ranges of rates up to this ratio are not halved


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
    placement, least, stopped, number, reason = search(pairs, floor, known)
    problem = pairs.problem if number is None else pairs.problem.with_in_flight(number)
    status, value, throughput = "unknown", None, None
    bound = None if least == math.inf else least
    if placement is None and bound is None and stopped is None:
        status = "infeasible"
    elif placement is not None:
        value = value_of(problem, objective, placement)
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
        problem,
        objective,
        status,
        placement,
        throughput,
        None,
        pairs.deadline.spent,
        {},
        choice.solver_version(),
        reason,
        stopped,
        _named(objective, value, bound),
        Objective(name, unit, value, bound, floor),
    )


UNITS = {
    "latency": ("seconds_per_pass", "seconds per pass"),
    "cost": ("usd_per_million_tokens", "$ per million tokens"),
}


def _named(objective: str, value: float | None, bound: float | None) -> dict[str, float | None]:
    if objective == "latency":
        return {"seconds_per_pass": value, "bound_seconds": bound}
    return {"usd_per_million_tokens": value, "bound_usd_per_million_tokens": bound}


def value_of(problem: Problem, objective: str, placement: Placement) -> float:
    """Seconds of a traversal, or dollars per million tokens."""
    found = evaluate(problem, placement)
    if objective == "latency":
        return found.seconds_per_pass
    return usd_per_million_tokens(given(price_per_hour(problem, placement)), found.attainable)


def _least_time(pairs: Pairs, floor: float, known: Placement | None) -> Least:
    """Without what takes far longer than the bound, if that is enough: no solver compares milliseconds with years."""
    most = math.inf if known is None else pairs.uses(known, "seconds")
    try:
        bound, longest = made_in_time(lambda u: _shortest(pairs, floor, u), pairs.deadline)
    except Ended as end:
        return Least(known, 0.0, end.reason)
    except TooLarge as refusal:
        known, bound = _least_time_of_one_type(pairs, floor, known)
        return _least_time_on_fewer_nodes(pairs, floor, known, bound, refusal)
    while bound < min(most * (1 - ATTAINED), math.inf):
        wanted = min(most, bound * _SPREAD) if longest > bound * _SPREAD else most
        try:
            least = pairs.least("seconds", floor, wanted, bound)
        except TooLarge as refusal:
            return Least(known, bound, "list limit", None, str(refusal))
        if least.placement is not None or least.stopped_by is not None or wanted == most:
            return least if least.placement is not None else least._replace(placement=known)
        bound = wanted
    return Least(known, min(bound, most))


def _shortest(pairs: Pairs, floor: float, deadline: Deadline) -> tuple[float, float]:
    """The least time with GPUs without number; and the longest of any stage or hop."""
    walk = replace(pairs, deadline=deadline).walk(
        Range(pairs.numbers.first, math.inf), floor, "seconds"
    )
    stages = walk.stages
    times = stages.seconds[stages.possible], stages.links.seconds[np.isfinite(stages.links.seconds)]
    return walk.shortest, float(max(t.max(initial=0.0) for t in times))


def _least_time_of_one_type(
    pairs: Pairs, floor: float, known: Placement | None
) -> tuple[Placement | None, float]:
    """Where mixed stages are too many to list: the best with stages of one type, and a bound for all.

    Shared evenly, a mixed stage takes as long as one of its kinds would with as many GPUs, outside nodes. So
    nothing is shorter than what GPUs without number would make of such stages, and of the stages of one type.
    """
    problem, deadline, bound = pairs.problem, pairs.deadline, 0.0
    of_one_type = replace(problem, same_type_stages=True)
    gpus = tuple(replace(gpu, node="", node_gb_per_s=None) for gpu in problem.cluster.gpus)
    outside = replace(problem, cluster=replace(problem.cluster, gpus=gpus))
    if problem.same_type_stages:
        return known, bound
    try:
        known = _least_time(Pairs(of_one_type, deadline), floor, known).placement
        if nodes_matter_alone(problem.costs) and mixes_as_slowest(outside):
            few = Pairs((fewer_nodes(of_one_type, 2) or (of_one_type,))[0], deadline)
            first = at_best(outside.with_in_flight(pairs.numbers.first))
            largest = min(problem.max_gpus_per_stage, len(gpus))
            mixed = np.concatenate(rates_of_kinds(first, first.cluster.kinds, largest))
            bound = _with_gpus_without_number(few, problem, floor, mixed)
    except (Ended, TooLarge):
        pass
    return known, bound


def _least_time_on_fewer_nodes(
    pairs: Pairs, floor: float, known: Placement | None, bound: float, refusal: TooLarge
) -> Least:
    """Where nodes repeat: the least time on two of each, on four, …, until it is proven for all of them.

    What it is on fewer nodes is no bound for all, but what it would be with GPUs without number is.

    Raises
    ------
    TooLarge
        No nodes repeat, or too few, and no placement is known.
    """
    best, number = known, 2
    value = math.inf if best is None else pairs.uses(best, "seconds")
    ended: str | None = "list limit"
    try:
        while value > bound * (1 + ATTAINED):
            fewer = fewer_nodes(pairs.problem, number)
            if fewer is None:
                break
            problem, ids = fewer
            few = Pairs(problem, pairs.deadline)
            bound = max(bound, _with_gpus_without_number(few, pairs.problem, floor))
            found = few.least("seconds", floor, value).placement
            if found is not None:
                stages = (replace(s, gpus=tuple(ids[list(s.gpus)].tolist())) for s in found.stages)
                best = Placement(tuple(stages))
                value = pairs.uses(best, "seconds")
            number *= 2
    except Ended as end:
        ended = end.reason
    except TooLarge:
        pass
    if best is None and not bound:
        raise refusal
    proven = value <= bound * (1 + ATTAINED)
    return Least(best, bound, None if proven else ended, None, "" if proven else str(refusal))


def _with_gpus_without_number(
    few: Pairs, problem: Problem, floor: float, mixed: np.ndarray | None = None
) -> float:
    """The least time on a cluster whose stages are those of `few` and of the rates `mixed`, with hops as short."""
    walk = few.walk(Range(few.numbers.first, math.inf), floor, "seconds")
    bandwidth, latency = problem.cluster.bandwidth_gb_per_s, problem.cluster.latency_ms
    seconds = problem.message_seconds(bandwidth, latency)
    fast = problem.link_throughput(bandwidth) >= floor * (1 - ONE_ANSWER)
    stages = walk.stages
    hop = np.minimum(stages.links.seconds, np.where(fast, seconds, np.inf).min(initial=np.inf))
    stages = stages._replace(links=stages.links._replace(seconds=hop))
    if mixed is not None:
        reach = (mixed > 0) & (mixed >= floor * (1 - ONE_ANSWER))
        seconds = problem.workload.tokens / np.where(mixed > 0, mixed, np.nan)
        stages = stages._replace(
            possible=np.concatenate([stages.possible, reach]),
            seconds=np.concatenate([stages.seconds, seconds]),
        )
    return replace(walk, stages=stages).shortest


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
        cheapest = min(given(gpu.usd_per_hour) for gpu in self.pairs.problem.cluster.kinds)
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
        return Least(self.best, usd_per_million_tokens(least, 1.0), stopped)

    def _keep(self, placement: Placement) -> None:
        used = self.pairs.uses(placement, "price")
        ratio = used / evaluate(self.pairs.problem, placement).attainable
        if ratio < self.ratio:
            self.best, self.ratio = placement, ratio


def why_none_attains(problem: Problem, floor: float, deadline: Deadline) -> str:
    """The reason why no placement attains a floor: the greatest attainable rate, or why nothing fits."""
    left = deadline.left if deadline.limited else None
    most = solve_for_attainable(problem, "aggregated", solve_aggregated, {"time_limit": left})
    if not floor or most.placement is None or most.throughput is None:
        return most.reason
    text = f"none attains {floor:,.7g} tokens/s"
    if (most.bound or math.inf) <= most.throughput * (1 + ATTAINED):
        return f"{text}, the greatest attainable rate being {most.throughput:,.7g} tokens/s"
    return f"{text}; the best found attains {most.throughput:,.7g} tokens/s"


def refuse_transfers(problem: Problem, what: str) -> None:
    """Raise `InvalidValue` where links are counted in transfers/s: those say nothing about tokens."""
    if problem.link_units != "tokens" and len(problem.cluster) > 1:
        expected = "expected 'tokens', so that links have a time: dataclasses.replace(problem, link_units='tokens')"
        raise InvalidValue(what, [("problem.link_units", problem.link_units, expected)])


def raise_floor(
    least: Callable[[float], Result],
    above: Callable[[float], float],
    deadline: Deadline,
    on_point: Callable[[Result], None] | None,
    within: float = PROVEN_WITHIN,
) -> tuple[tuple[Result, ...], bool]:
    """Every placement that nothing beats in both throughput and what `least` makes least; slowest first.

    The least at one floor has some throughput; nothing of a rate between the two is any lower. So
    the next subproblem is about the next higher rate there is, and one of finitely many. A point that
    the next one equals is dropped: the next is faster. A point is given out when that is settled.

    A least that is proven to a solver's tolerance only does not end the front. Such a point, one that
    the next may equal, and what was found when time ran out are kept, with status "feasible".

    Parameters
    ----------
    least : function of a floor
        The answer at that floor of throughput.
    above : function of a throughput
        The next floor to ask for; infinite if nothing is faster.
    within : float
        Values this close, as a share, are one value.
    on_point : function of Result, or None
        Not called with a point that was left open when the search ended.

    Returns
    -------
    points : tuple of Result
    complete : bool
        False where it was ended early, or a point is not proven.
    """
    points: list[Result] = []
    pending: Result | None = None
    floor, proven = 0.0, True

    def settle(answer: Result) -> None:
        """The pending point, now that the least above it is known, is one of the front or is not."""
        nonlocal proven
        if pending is None:
            return
        most = _value(pending) * (1 + within)
        infeasible = answer.status == "infeasible"
        known = np.inf if infeasible else given(answer.objective).bound or 0.0
        if known <= most and _found(answer) and _value(answer) <= most:
            return
        point = pending if known > most else _open(pending)
        proven &= point.status == "optimal"
        points.append(point)
        if on_point is not None and (known > most or _goes_on(answer)):
            on_point(point)

    while True:
        answer = least(floor)
        settle(answer)
        if answer.status == "infeasible":
            return tuple(points), proven
        if not _goes_on(answer) or deadline.reason is not None:
            return (*points, *([_open(answer)] if _found(answer) else [])), False
        pending = answer
        floor = above(given(answer.throughput))


def _goes_on(answer: Result) -> bool:
    """Whether it is the least, if only to a solver's tolerance."""
    claimed = answer.status == "feasible" and answer.stopped_by == BY_TOLERANCE
    return answer.status in ("optimal", "infeasible") or claimed


def _found(answer: Result) -> bool:
    return answer.objective is not None and answer.objective.value is not None


def _value(answer: Result) -> float:
    return given(given(answer.objective).value)


def _open(answer: Result) -> Result:
    """A point of which it is not settled whether a faster placement costs no more."""
    reason = answer.reason or "it is not settled whether a faster placement costs no more"
    return replace(answer, status="feasible", reason=reason)
