"""The least of something among what attains a floor, and the front that a rising floor makes.

The ε-constraint method: a floor of the attainable rate, and the least time or price above it. What is least at
one floor has some rate; the next floor is just above it.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import replace

from pipelab.engine.answers import Result
from pipelab.engine.curve import Curve
from pipelab.engine.deadline import Deadline, Ended, made_in_time
from pipelab.engine.in_flight import InFlightSearch, LeastUse
from pipelab.engine.methods.aggregated import solve_aggregated
from pipelab.engine.methods.attainable_rate import solve_for_attainable
from pipelab.engine.methods.first_placements import best_of, incumbents
from pipelab.engine.objective_and_bound import Objective
from pipelab.engine.prices import usd_per_million_tokens
from pipelab.engine.rate_search import BY_TOLERANCE, SETS
from pipelab.engine.solvers import choice
from pipelab.engine.tolerances import ATTAINED
from pipelab.errors import TooLarge
from pipelab.evaluation import Evaluation
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

_TIME_RATIO = 1_000.0  # to the bound: placements that take longer are searched later
# Of an objective: its name and its unit.
_NAMES = {
    "latency": ("seconds_per_pass", "seconds per pass"),
    "cost": ("usd_per_million_tokens", "$ per million tokens"),
}
_NARROW_RANGE_RATIO = 1.3  # a range of rates is not halved below this ratio of its ends


def least_of(
    pairs: InFlightSearch,
    objective: str,
    floor: float,
    known: Mapping[Placement, Evaluation],
    bound: float = 0.0,
) -> Result:
    """Find the least of "latency" or "cost" among placements that attain a floor.

    Parameters
    ----------
    pairs : InFlightSearch
    floor : float
        Tokens/s.
    known : mapping of Placement to Evaluation
        The best of these that attains the floor is where the search begins.
    bound : float
        Nothing has less.
    """

    def known_value(placement: Placement, evaluation: Evaluation) -> float:
        if objective == "latency":
            return evaluation.seconds_per_pass
        return value_of(pairs, objective, placement)

    incumbent = best_of(known, floor, known_value, pairs.counted)
    if incumbent is not None and value_of(pairs, objective, incumbent) <= bound * (1 + ATTAINED):
        answer = LeastUse(incumbent, bound)
    elif objective == "latency":
        answer = _least_time(pairs, floor, incumbent)
    else:
        answer = _LeastRatio(pairs).run(floor, incumbent)
    placement, least, stopped, number, reason = answer
    least = max(least, bound)
    proven = None if least in (0.0, math.inf) else least
    if number is not None:
        pairs = replace(pairs, problem=pairs.problem.with_in_flight(number))
    problem = pairs.problem
    status, value, throughput = "unknown", None, None
    if placement is None and least == math.inf and stopped is None:
        status = "infeasible"
    elif placement is not None:
        value, throughput = value_of(pairs, objective, placement), pairs.yields(placement)
        # of a price and of a rate
        if least >= value * (1 - 2 * ATTAINED):
            status, proven = "optimal", value
        else:
            status = "feasible"
    if status in ("optimal", "infeasible"):
        stopped = None
    elif stopped is None:
        stopped = BY_TOLERANCE
    name, unit = _NAMES[objective]
    return Result(
        problem=problem,
        method=objective,
        status=status,
        placement=placement,
        throughput=throughput,
        seconds=pairs.deadline.spent,
        solver=choice.solver_version(),
        reason=pairs.deadline.remark(reason),
        stopped_by=stopped,
        objective=Objective(name=name, unit=unit, value=value, bound=proven, at_least=floor),
    )


def value_of(pairs: InFlightSearch, objective: str, placement: Placement) -> float:
    """Return seconds of a traversal, or dollars per million tokens."""
    if objective == "latency":
        return pairs.uses(placement, "seconds")
    return usd_per_million_tokens(pairs.uses(placement, "price"), pairs.yields(placement))


def _least_time(pairs: InFlightSearch, floor: float, incumbent: Placement | None) -> LeastUse:
    """Find the least time of a traversal, at first without placements that take far longer than the bound.

    No solver compares milliseconds with years.
    """
    most = math.inf if incumbent is None else pairs.uses(incumbent, "seconds")
    try:
        bound, longest = made_in_time(
            lambda until: replace(pairs, deadline=until).shortest_and_longest(floor),
            pairs.deadline,
        )
    except Ended as end:
        return LeastUse(placement=incumbent, bound=0.0, stopped_by=end.reason)
    except TooLarge as refusal:
        if incumbent is None:
            raise
        return LeastUse(incumbent, 0.0)._replace(stopped_by=SETS, reason=str(refusal))
    while bound < most * (1 - ATTAINED):
        wanted = min(most, bound * _TIME_RATIO) if longest > bound * _TIME_RATIO else most
        try:
            least = pairs.least("seconds", floor, wanted, bound)
        except TooLarge as refusal:
            return LeastUse(incumbent, bound)._replace(stopped_by=SETS, reason=str(refusal))
        if least.placement is not None or least.stopped_by is not None or wanted == most:
            return least if least.placement is not None else least._replace(placement=incumbent)
        bound = wanted
    return LeastUse(incumbent, min(bound, most))


class _LeastRatio:
    """The least price per attainable rate: ranges of rates, that of the least possible ratio first.

    The least price P of what attains t never falls as t rises. So once it is known at t, and the placement that has it
    attains a, nothing that attains from t to a has a lower ratio than P / a; and whatever attains more costs P at
    least, and so has to attain more than P over the best ratio known to be better.
    """

    def __init__(self, pairs: InFlightSearch) -> None:
        self.pairs = pairs
        self.best: Placement | None = None
        self.ratio = math.inf

    def run(self, floor: float, incumbent: Placement | None) -> LeastUse:
        """Return the placement, and a bound in dollars per million tokens."""
        if incumbent is not None:
            self._keep(incumbent)
        least, stopped = math.inf, None
        cheapest = min(given(gpu.usd_per_hour) for gpu in self.pairs.problem.cluster.kinds)
        ranges: list[tuple[float, float, float, float]] = []  # ratio, rates from and to, price
        here = 0.0
        try:
            top = self.pairs.ceiling * (1 + ATTAINED)
            ranges = [(cheapest / top, floor, top, cheapest)] if top else []
            while ranges and stopped is None:
                here, first, last, price = heapq.heappop(ranges)
                if here >= self.ratio * (1 - ATTAINED / 2):
                    least = min(least, here)
                    break
                first = max(first, price / self.ratio)
                halve = self.best is not None and 0 < _NARROW_RANGE_RATIO * first < last
                at = math.sqrt(first) * math.sqrt(last) if halve else first
                answer, attained = self.pairs.least("price", at, self.ratio * last, price), at
                stopped = answer.stopped_by
                if answer.placement is not None:
                    self._keep(answer.placement)
                    attained = self.pairs.yields(answer.placement)
                self._ask(min(here, self.ratio))
                attained = max(attained, at) * (1 + ATTAINED / 2)
                if halve:
                    heapq.heappush(ranges, (price / at, first, at, price))
                if answer.placement is None and stopped is None and answer.bound < math.inf:
                    least = min(least, answer.bound / last)  # left open by the solver's tolerance
                    continue
                if answer.bound < math.inf and attained < last:
                    heapq.heappush(ranges, (answer.bound / last, attained, last, answer.bound))
                if attained:
                    least = min(least, answer.bound / attained)
        except (Ended, TooLarge) as end:
            stopped = end.reason if isinstance(end, Ended) else SETS
            least = min(least, here)
        least = min([least, self.ratio, *(entry[0] for entry in ranges)])
        if self.best is None and least == math.inf:
            return LeastUse(None, math.inf)
        bound = usd_per_million_tokens(least, 1.0)
        return LeastUse(placement=self.best, bound=bound, stopped_by=stopped)

    def _ask(self, bound: float) -> None:
        known = None if self.best is None else usd_per_million_tokens(self.ratio, 1.0)
        least = usd_per_million_tokens(bound, 1.0)
        self.pairs.deadline.tell(incumbent=known, bound=least, placement=self.best)

    def _keep(self, placement: Placement) -> None:
        ratio = self.pairs.uses(placement, "price") / self.pairs.yields(placement)
        if ratio < self.ratio:
            self.best, self.ratio = placement, ratio


def why_none_attains(
    problem: Problem, floor: float, deadline: Deadline, budget: float | None = None
) -> str:
    """Return the reason why no placement attains a floor: the greatest attainable rate, or why nothing fits."""
    options = {"budget": budget, **deadline.part()}
    most = solve_for_attainable(problem, "aggregated", solve_aggregated, options)
    if not floor or most.placement is None or most.throughput is None:
        return most.reason
    text = f"none attains {floor:,.7g} tokens/s"
    if (most.bound or math.inf) <= most.throughput * (1 + ATTAINED):
        return f"{text}, the greatest attainable rate being {most.throughput:,.7g} tokens/s"
    return f"{text}; the best found attains {most.throughput:,.7g} tokens/s"


def raise_floor(pairs: InFlightSearch, objective: str, curve: Curve) -> None:
    """Add every placement that nothing beats in both throughput and "latency" or "cost"; slowest first.

    The least at one floor has some throughput; nothing of a rate between the two is any lower. So
    the next subproblem is about the next higher rate there is, and one of finitely many. A point that
    the next one equals is dropped: the next is faster. A point is told when that is settled.

    A least that is proven to a solver's tolerance only does not end the front. Such a point, one that
    the next may equal, and what was found when time ran out are kept, with status "feasible"; what was left
    open when the search ended is not told.
    """
    first = incumbents(pairs.problem)
    pending: Result | None = None
    floor = 0.0
    while True:
        answer = least_of(pairs, objective, floor, first)
        infeasible = answer.status == "infeasible"
        claimed = answer.status == "feasible" and answer.stopped_by == BY_TOLERANCE
        goes_on = infeasible or answer.status == "optimal" or claimed
        value = None if answer.objective is None else answer.objective.value
        if pending is not None:
            most = given(given(pending.objective).value) * (1 + 2 * ATTAINED)
            known = math.inf if infeasible else given(answer.objective).bound or 0.0
            if known > most:
                curve.add(pending)
            elif value is None or value > most:
                curve.add(_open(pending), told=goes_on)
        if infeasible:
            return
        if not goes_on or pairs.deadline.reason is not None:
            curve.complete = False
            if value is not None:
                curve.add(_open(answer), told=False)
            return
        pending = answer
        floor = given(answer.throughput) * (1 + 2 * ATTAINED)


def _open(answer: Result) -> Result:
    """Return a point of which it is not settled whether a faster placement costs no more."""
    reason = answer.reason or "it is not settled whether a faster placement costs no more"
    return replace(answer, status="feasible", reason=reason)
