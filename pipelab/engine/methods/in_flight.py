"""The highest steady rate that memory allows for one batch size: every microbatch in flight keeps its KV cache.

A full pipeline with n microbatches in flight yields min(r, n·w / L) tokens/s, where r is the rate
of its slowest stage or link (what `solve` makes greatest), w the tokens of a pass and L the time of
a pass. And n of them must fit in memory. So the search is over pairs (placement, n), and it is
answered by halving ranges of n:

1. What fits with m in flight fits with fewer, and is as fast there. So no pair with m ≥ a has more
than U(a),
   the highest throughput with memory for a.
2. A pair with m ≤ b that yields t or more has r ≥ t and L ≤ m·w / t ≤ b·w / t. So if the least L of
all
   placements with r ≥ t and memory for a is longer than b·w / t, no pair with a ≤ m ≤ b yields
   t.
3. For one n both conditions together are exact: there is a pair that yields t if and only if the
   lowest-latency placement with r ≥ t has L ≤ n·w / t; and that placement then yields t or more.

Ranges that cannot hold more than the best pair known are closed by 1 or 2, single n by 3; others
are halved. When none is left, the best pair is proven.

In 1 and 2 placements of other n are spoken of. A stage that has several execution modes (`Roofline`:
batch shared or layers cut) may run otherwise with less memory to spare. So there every stage counts
with the greatest rate of its execution modes, and with no more time than that rate's interval
(`pipelab.costs`): both are no worse with fewer in flight, and no better than what any mode
really has.
"""

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pipelab.costs import StageCost
from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.nodes.rates import rates_by_nodes
from pipelab.engine.in_flight_result import InFlightResult, Round, enough_in_flight, steady_rate
from pipelab.engine.methods.aggregated import first_search, result_of, stand_in
from pipelab.engine.methods.latency import (
    BY_TOLERANCE,
    latency_of_rates,
    refuse_transfers,
)
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.engine.objective import Objective
from pipelab.engine.solvers import choice
from pipelab.engine.stage_arrays import StageTables, stage_tables
from pipelab.engine.tolerances import ONE_ANSWER, SOLVER
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import checked_arguments
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

_MORE = 1 + ONE_ANSWER  # times a rate: what is more
_MOST_IN_FLIGHT = 1_000_000
_BY_HAND = 6  # rounds of solving for what the last answer needs, before ranges are looked at


@checked_arguments
def solve_for_throughput_in_flight(
    problem: choice.AskedProblem,
    *,
    solver: choice.Solver = "scip",
    time_limit: choice.TimeLimit = None,
    stop: choice.Stop = None,
) -> InFlightResult:
    """The placement, and the number in flight, with the greatest steady rate among those that fit in memory.

    `solve` predicts the rate of a full pipeline, checks memory for `Workload.in_flight`
    microbatches, and does not check whether that many fill it. Here every placement is evaluated for as
    many as it has in flight; one that cannot have enough for its predicted rate counts with what it then
    yields.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is only one GPU. Its own `Workload.in_flight` is
        not read.
    solver : {"scip", "highs"}
        The solver for the small programs.
    time_limit : float, optional
        Seconds. Ended early, the answer is the best pair so far with a proven bound for all.
    stop : threading.Event, optional
        Set it to end the search, with the same effect.

    Returns
    -------
    InFlightResult
        `problem` is the given one with `Workload.in_flight` as found. "optimal" means proven to two
        parts in 10^9, over all placements and all numbers in flight with the given batch size;
        another batch size may yield more.

    Raises
    ------
    InvalidValue
        Links counted in transfers/s, a limit that is not valid, or `problem` is not a `Problem`.
    TooLarge
        As for `solve_for_latency`.
    UnknownName
        The solver is unknown.

    Notes
    -----
    The proof is in the docstring of `pipelab.engine.methods.in_flight`. Of a cost model of one's own
    it asks that more in flight make no stage faster and none fit that did not. (With
    `Roofline(prefer="time")` a stage may become faster where memory for more leaves it no other mode
    to run: such pairs count, and take many subproblems.)

    Examples
    --------
    >>> import pipelab as pl
    >>> cluster = pl.Cluster.from_counts({"L4": 4}, 24, 1.0)
    >>> load = pl.Workload(8192, 8, "decode")
    >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), link_units="tokens")
    >>> predicted, best = pl.solve(problem, "aggregated"), solve_for_throughput_in_flight(problem)
    >>> best.status, best.in_flight, round(best.steady_rate / predicted.throughput, 2)
    ('optimal', 4, 1.0)
    """
    refuse_transfers(problem, "solve")
    with deadline_of(time_limit, stop) as deadline:
        search = _PairSearch(problem, solver, deadline)
        search.run()
        return search.result()


class _AtBest:
    """A cost model in which every stage runs the mode of its greatest rate, in at most that rate's interval."""

    def __init__(self, costs: Any) -> None:
        self.costs = replace(costs, prefer="rate") if hasattr(costs, "prefer") else costs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.costs, name)

    def stage(self, *args: Any) -> StageCost:
        return self.costs.stage(*args)._replace(pass_seconds=None)

    def stage_tables(self, *args: Any) -> StageTables:
        return stage_tables(self.costs, *args)._replace(pass_seconds=None)


@dataclass
class _PairSearch:
    """The state of one search.

    Attributes
    ----------
    open : heap of (-bound, first, last)
        Ranges of n that may hold a better pair, and what none of theirs exceeds; `last` may be
        infinite.
    left : list of float
        Bounds of ranges whose subproblem stayed open.
    most : dict
        U(n) where it was computed, and how many its placement needs for its predicted rate.
    """

    problem: Problem
    solver: str
    deadline: Deadline
    open: list[tuple[float, int, float]] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    most: dict[int, tuple[float, int]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    best: Placement | None = None
    in_flight: int = 0
    rate: float = 0.0
    stopped: str | None = None
    reason: str = ""
    tables: tuple[int, StageRates] | None = None

    def run(self) -> None:
        """First as one would by hand: solve for as many as the last answer needs. Then halve what may hold more."""
        bound, n = math.inf, 1
        try:
            first = first_search(self._with(1), self.solver, self.deadline)
            if first is not None and first.best is not None:
                self._try(first.best, 1)
            while n not in self.most and len(self.most) < _BY_HAND and not self._ended():
                self._most(n)
                n = self.most[n][1]
            self._push(bound, 1, math.inf)
            while self.open and not self._ended():
                negative, low, high = heapq.heappop(self.open)
                bound = -negative
                if bound > self.rate * _MORE:
                    self._look_at(low, high, bound)
        except Ended as end:  # in the middle of a range, or before there was one
            self.stopped = end.reason
            self.left.append(bound)
        if self.best is None and self.deadline.reason is not None:
            some = stand_in(self._with(1))
            if some is not None:
                self._try(some, 1)

    def _look_at(self, first: int, last: float, bound: float) -> None:
        bound = min(bound, self._most(first))
        if bound > self.rate * _MORE and last < math.inf:
            _, bound = self._least_time(self._at_best(first), self.rate * _MORE, first, last, bound)
            self._note(first, last, "end-to-end latency", bound)
        if bound <= self.rate * _MORE:
            return
        if self._ended():
            self.left.append(bound)
        elif first == last:
            self._settle(first, bound)
        else:  # without end: in steps twice as long
            middle = (
                (first + int(last)) // 2 if last < math.inf else max(2 * first - 1, self.in_flight)
            )
            self._push(bound, first, middle)
            self._push(bound, middle + 1, last)

    def _push(self, bound: float, first: int, last: float) -> None:
        if first > _MOST_IN_FLIGHT:
            self.stopped = f"limit of {_MOST_IN_FLIGHT:,} in flight"
            self.left.append(bound)
        else:
            heapq.heappush(self.open, (-bound, first, last))

    def _most(self, n: int) -> float:
        """U(n); its placement is tried."""
        if n in self.most:
            return self.most[n][0]
        search = Search(Subproblems(self._at_best(n), self.solver, self.deadline))
        search.find_best_rate()
        answer, needs = self._noted(result_of(search)), n
        if answer.placement is not None:
            needs = self._try(answer.placement, n)
        if answer.status == "infeasible":
            self.reason = self.reason or answer.reason
        bound = (
            0.0
            if answer.status == "infeasible"
            else math.inf
            if answer.bound is None
            else answer.bound
        )
        self.most[n] = bound, needs
        self._note(n, math.inf, "throughput", bound)
        return bound

    def _settle(self, n: int, bound: float) -> None:
        """One n: look for the bound itself, then for slightly more than the best, until nothing reaches that."""
        rates, floor = rates_by_nodes(self._with(n), self.deadline), bound / _MORE
        while not self._ended():
            settled, bound = self._least_time(rates, floor, n, n, bound)
            more = self.rate * _MORE
            if bound <= more * _MORE:
                return self._note(n, n, "both", bound)
            if not settled:
                break
            # Rates slightly above the best known: next time, demand slightly more than last time.
            floor = more if floor > more * _MORE else max(more, floor * _MORE)
        self.left.append(bound)
        return None

    def _bound(self, answer: Result, last: float, bound: float) -> float:
        """What no pair with up to `last` in flight exceeds, from the least time of a pass above a floor."""
        goal = cast(Objective, answer.objective)  # `solve_for_latency` has one
        floor, least = goal.at_least, goal.bound
        if answer.status == "infeasible":
            return min(bound, floor)
        return (
            min(bound, max(floor, last * self.problem.workload.tokens / least)) if least else bound
        )

    def _least_time(
        self, rates: StageRates, floor: float, first: int, last: float, bound: float
    ) -> tuple[bool, float]:
        """Whether the least time above a floor is known, and what no pair with up to `last` in flight exceeds by it.

        To a solver's tolerance first, which mostly rules the range out; exactly where only that is
        in the way.
        """
        for exact in (False, True):
            answer = self._noted(
                latency_of_rates(
                    rates, floor, self.solver, self.deadline, explain=False, exact=exact
                )
            )
            if answer.placement is not None:
                self._try(answer.placement, first)
            bound = self._bound(answer, last, bound)
            claimed = answer.status == "feasible" and answer.stopped_by == BY_TOLERANCE
            more = self.rate * _MORE
            if not claimed or not more < bound <= more * (1 + 3 * SOLVER):
                break
        return answer.status in ("optimal", "infeasible") or (claimed and not exact), bound

    def _try(self, placement: Placement, n: int) -> int:
        """Keep a placement that fits with n in flight if it is the best; returns how many its predicted rate needs.

        It is tried with n, with as many as fit, and with as many as it needs.
        """
        evaluation = at_most = evaluate(self._with(n), placement)
        low, high = n, max(n, enough_in_flight(evaluation))
        while low < high:
            middle = (low + high + 1) // 2
            found = self._evaluated(placement, middle)
            low, high, at_most = (middle, high, found) if found else (low, middle - 1, at_most)
        for count in (n, low, min(low, enough_in_flight(at_most))):
            rate = steady_rate(evaluate(self._with(count), placement), count)
            if rate > self.rate * _MORE or (rate >= self.rate and count < self.in_flight):
                self.best, self.in_flight, self.rate = placement, count, rate
        return enough_in_flight(evaluation)

    def _noted(self, answer: Result) -> Result:
        """The answer, unchanged; a stop or Ctrl-C that ended it ends this search, too."""
        if answer.stopped_by in ("interrupt", "stop"):
            self.stopped = answer.stopped_by
        return answer

    def _evaluated(self, placement: Placement, n: int) -> Evaluation | None:
        """The evaluation with memory for n; None if that does not fit."""
        try:
            return evaluate(self._with(n), placement)
        except InvalidPlacement:
            return None

    def _with(self, n: int) -> Problem:
        return replace(self.problem, workload=replace(self.problem.workload, in_flight=n))

    def _at_best(self, n: int) -> StageRates:
        """Rates for subproblems about n and more; the last ones are kept, since two subproblems use them."""
        if self.tables is None or self.tables[0] != n:
            self.tables = (
                n,
                rates_by_nodes(
                    replace(self._with(n), costs=_AtBest(self.problem.costs)), self.deadline
                ),
            )
        return self.tables[1]

    def _ended(self) -> bool:
        self.stopped = self.deadline.reason or self.stopped
        return self.stopped in ("stop", "interrupt", "time limit")

    def _note(self, first: int, last: float, solved_for: str, bound: float) -> None:
        self.rounds.append(Round(first, last, solved_for, bound, self.rate))

    def result(self) -> InFlightResult:
        """What is known when the search has ended."""
        most = max([self.rate, *self.left, *(-run[0] for run in self.open)])
        status, bound = "feasible" if self.best else "unknown", None if most == math.inf else most
        if most <= self.rate * _MORE * _MORE:
            status, bound = ("optimal", self.rate) if self.best else ("infeasible", None)
        return InFlightResult(
            self._with(self.in_flight) if self.best else self.problem, status, self.best, self.in_flight or None,
            self.rate or None, bound, self.deadline.spent,
            tuple(self.rounds), self.deadline.remark(self.reason if status == "infeasible" else ""),
            None if status in ("optimal", "infeasible") else self.stopped or "the solver's tolerance",
        )  # fmt: skip
