"""Least $ per million tokens above a floor of throughput: halve the rates, rule out what is too slow for its price.

Dollars per million tokens are price per hour / (3600 · throughput) · 10^6. The least price of a
placement of at least t tokens/s never falls as t rises. So once the least price P at some rate
is known, no rate t ≥ that one can have less than P / t: all rates up to P / (best ratio so far) are
settled without a subproblem; and if no placement reaches t for less than best ratio × the highest
rate left, everything above t is settled.
"""

import heapq
import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from pipelab.engine.attainable import Pairs
from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.methods.aggregated import first_search, rates_in_time, stand_in
from pipelab.engine.methods.first_placements import Value, best_of, incumbents
from pipelab.engine.methods.fronts import least_of, value_of, why_none_attains
from pipelab.engine.objective import Objective, status_and_least
from pipelab.engine.prices import (
    price_per_hour,
    prices_of,
    refuse_unpriced,
    usd_per_million_tokens,
)
from pipelab.engine.rates import StageRates
from pipelab.engine.search import Limits, Subproblems, least_use
from pipelab.engine.solvers import choice
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER, ONE_RATIO, REACHED
from pipelab.evaluation import evaluate
from pipelab.fields import checked_arguments, given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result


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
    began = time.perf_counter()
    with deadline_of(time_limit, stop) as deadline:
        found = _by_rates(problem.with_in_flight(problem.workload.in_memory), at_least, deadline)
        found = replace(found, problem=problem)
        goal, evaluation = given(found.objective), found.evaluation
        if evaluation is None:
            if found.status == "infeasible":
                found = replace(found, reason=why_none_attains(problem, at_least, deadline))
            return found
        value = value_of(problem, "cost", given(found.placement))
        reached = evaluation.attainable >= at_least * (1 - ATTAINED)
        if reached and value <= given(goal.value) * (1 + ONE_ANSWER):
            return replace(found, throughput=evaluation.attainable)
        pairs = Pairs(problem, deadline)
        answer = least_of(pairs, "cost", at_least, found.placement if reached else None)
        bounds = [x for x in (given(answer.objective).bound, goal.bound) if x is not None]
        if answer.status == "feasible" and bounds:
            answer = replace(answer, objective=replace(given(answer.objective), bound=max(bounds)))
        if answer.status == "infeasible":
            answer = replace(answer, reason=why_none_attains(problem, at_least, deadline))
        ended = answer.stopped_by or (found.stopped_by if answer.status == "unknown" else None)
        return replace(
            answer,
            seconds=time.perf_counter() - began,
            size={**found.size, **answer.size},
            stopped_by=ended,
            solver=found.solver,
            details={**found.details, **answer.details},
        )


def _by_rates(problem: Problem, at_least: float, deadline: Deadline) -> Result:
    """The same by the rates of full pipelines: a lower bound, and the answer where its placement attains its rate."""
    first = first_search(problem, deadline)
    found = incumbents(problem)
    if first is not None and first.best is not None:
        found[first.best] = evaluate(problem, first.best)
    best = best_of(found, at_least, _ratio_in(problem))
    try:
        rates = rates_in_time(problem, deadline)
    except Ended as end:
        best = best or stand_in(problem, at_least)
        return _unfinished(problem, "cost", deadline, end, _found(problem, best, at_least), best)
    return cost_of_rates(rates, at_least, deadline, best=best)


def cost_of_rates(
    rates: StageRates,
    at_least: float,
    deadline: Deadline,
    best: Placement | None = None,
) -> Result:
    """The same where the rates are known.

    `best`: a placement that reaches the floor, if one is known.
    """
    search = _LeastRatio(Subproblems(rates, deadline), _floor_index(rates, at_least))
    if best is not None:
        search.keep(best)
    search.run()
    return _result(search, at_least)


def _floor_index(rates: StageRates, at_least: float) -> int:
    """Index of the lowest possible rate that reaches the floor; the number of rates where none does."""
    return int(np.searchsorted(rates.thresholds, at_least * (1 - REACHED)))


def _unfinished(
    problem: Problem,
    method: str,
    deadline: Deadline,
    end: Ended,
    objective: Objective,
    best: Placement | None,
) -> Result:
    """What is known where the tables of stages and links were not finished: a placement at most."""
    reason = "the rates of stages were still being listed"
    throughput = evaluate(problem, best).rate if best else None
    return Result(
        problem,
        method,
        "feasible" if best else "unknown",
        best,
        throughput,
        None,
        deadline.spent,
        {},
        "",
        reason,
        end.reason,
        {},
        objective,
    )


@dataclass
class _LeastRatio:
    """The state of one search for the least ratio of price to throughput.

    Rates count by their index in `StageRates.thresholds`; ratios are $ per hour over tokens/s.

    Attributes
    ----------
    open : heap of (least ratio possible, first rate, last rate, least price there)
        Runs of rates that may still hold something better.
    left : list of float
        Least ratios possible in runs whose subproblem stayed open.
    """

    subproblems: Subproblems
    floor: int
    open: list[tuple[float, int, int, float]] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    best: Placement | None = None
    ratio: float = math.inf

    def run(self) -> None:
        """Look at the floor first; then halve whichever run of rates could hold the least ratio."""
        cheapest_gpu = float(prices_of(self.subproblems.rates.classes).min())
        self._open(self.floor, self.subproblems.highest(), cheapest_gpu)
        at_floor = True
        while self.open and self.subproblems.stopped is None:
            _, first, last, price = heapq.heappop(self.open)
            first = self._first_that_could(first, price)
            if first <= last:
                self._look_at(first, first if at_floor else self._middle(first, last), last, price)
                at_floor = False

    @property
    def bound(self) -> float:
        """No placement has a lower ratio."""
        return min([self.ratio, *self.left, *(run[0] for run in self.open)])

    def _open(self, first: int, last: int, price: float) -> None:
        if first <= last:
            ratio = price / self.subproblems.rate(last)
            heapq.heappush(self.open, (ratio, first, last, price))

    def _first_that_could(self, first: int, price: float) -> int:
        """The first rate of a run at which such a price would be a lower ratio than the best."""
        if self.best is None:
            return first
        slowest = price / (self.ratio * (1 - ONE_RATIO))
        thresholds = self.subproblems.rates.thresholds
        return max(first, int(np.searchsorted(thresholds, slowest, side="right")))

    def _middle(self, first: int, last: int) -> int:
        """Halve by ratio, not by number: where rates lie dense, nothing much changes."""
        middle = math.sqrt(self.subproblems.rate(first) * self.subproblems.rate(last))
        index = int(np.searchsorted(self.subproblems.rates.thresholds, middle))
        return min(max(index, first), last)

    def _look_at(self, first: int, middle: int, last: int, price: float) -> None:
        """Least price at the middle rate, if it is low enough to beat the best ratio at the last rate."""
        sub, most = self.subproblems, None
        if self.best is not None:
            most = self.ratio * (1 - ONE_RATIO) * sub.rate(last)
        sub.limits = Limits(price=most)
        placement, proven = least_use(sub, "price", middle)
        if placement is not None:
            self.keep(placement)
        if not proven:
            self.left.append(price / sub.rate(last))
        self._open(first, middle - 1, price)
        if placement is not None and proven:  # whatever is faster costs at least as much
            self._open(sub.index_of(placement) + 1, last, sub.used("price", placement))

    def keep(self, placement: Placement) -> None:
        """Take a placement for the best if its ratio is lower."""
        sub = self.subproblems
        ratio = sub.used("price", placement) / sub.throughput(placement)
        if ratio < self.ratio:
            self.best, self.ratio = placement, ratio


def _found(problem: Problem, best: Placement | None, at_least: float) -> Objective:
    """Of a placement about which nothing is proven."""
    value = None
    if best is not None:
        value = _per_million(problem, best, evaluate(problem, best).rate)
    return _objective(value, None, at_least)


def _ratio_in(problem: Problem) -> Value:
    return lambda placement, evaluation: _per_million(problem, placement, evaluation.rate)


def _per_million(problem: Problem, placement: Placement, throughput: float) -> float:
    return usd_per_million_tokens(given(price_per_hour(problem, placement)), throughput)


def _objective(value: float | None, bound: float | None, at_least: float) -> Objective:
    return Objective("usd_per_million_tokens", "$ per million tokens", value, bound, at_least)


def _result(search: _LeastRatio, at_least: float) -> Result:
    sub = search.subproblems
    rates, problem = sub.rates, sub.rates.problem
    value = throughput = bound = None
    if not math.isinf(search.bound):
        bound = usd_per_million_tokens(search.bound, 1.0)
    if search.best is not None:
        throughput = sub.throughput(search.best)
        value = usd_per_million_tokens(given(price_per_hour(problem, search.best)), throughput)
    status, bound = status_and_least(value, bound)
    stopped = sub.stopped
    if status in ("feasible", "unknown") and stopped is None:
        stopped = "list limit" if sub.sets_left_out else "time limit"
    if search.best is None and math.isinf(search.bound):
        status, stopped = "infeasible", None
    objective = _objective(value, bound, at_least)
    size = {"classes": len(rates.classes), "rates": len(rates.thresholds), **sub.size}
    details = {
        "subproblems": tuple(sub.log),
        "nodes": sub.nodes,
        "rates": rates,
        "usd_per_million_tokens": value,
        "bound_usd_per_million_tokens": bound,
    }
    return Result(
        problem,
        "cost",
        status,
        search.best,
        throughput,
        None,
        sub.deadline.spent,
        size,
        choice.solver_version() if sub.log else "",
        sub.deadline.remark(""),
        stopped,
        details,
        objective,
    )
