"""The search for the best rate: one small program after the other, each about one rate.

A placement's rate is one of finitely many (`Instance.thresholds`), and what reaches a rate reaches every lower one: so
a search in the sorted list ends at the best. Each question is first asked without links, where programs are
small: what cannot be done then cannot be done at all.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pipelab.engine.cheapest_walk import Limit, Walk, WalkResult, Weight
from pipelab.engine.classes import Classes
from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.instance import Instance
from pipelab.engine.prices import (
    bill,
    comparable,
    price_per_hour,
    prices_of,
    row_limit,
    within_budget,
)
from pipelab.engine.reach import AtRate
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import LAST_BITS, NOT_SOLVED
from pipelab.errors import PipelabError, TooLarge
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

Verdict = Literal["yes", "no", "not answered"]
SETS = "list limit"  # sets of classes were too many to list
# What ended a search if nothing else did, and it stayed open.
BY_TOLERANCE = "the solver's tolerance"
# For the choice among equally fast placements: who draws an answer at once asks for that later.
seconds_to_choose: ContextVar[float] = ContextVar("seconds_to_choose", default=math.inf)
_TIME_SHARES = 1 / 3, 1 / 2, 1.0  # of the time left for one question, turn by turn


def weight_of(uses: Mapping[str, float], classes: Classes) -> Weight:
    """A sum of "gpus", "price", "seconds", "stages" and "fewest stages", which count negative, with these weights."""
    per_gpu = np.full(len(classes), uses.get("gpus", 0.0))
    if "price" in uses:
        per_gpu += uses["price"] * prices_of(classes)
    per_stage = uses.get("stages", 0.0) - uses.get("fewest stages", 0.0)
    return Weight(per_gpu=per_gpu, per_second=uses.get("seconds", 0.0), per_stage=per_stage)


def used(problem: Problem, what: str, placement: Placement) -> float:
    """How much a placement uses of what `weight_of` sums, in GPUs, stages, $ per hour, or seconds of a traversal."""
    if what == "seconds":
        return evaluate(problem, placement).seconds_per_pass
    if what == "price":
        return given(price_per_hour(problem, placement))
    if what == "fewest stages":
        return -float(len(placement))
    return float(len(placement.gpus) if what == "gpus" else len(placement))


def walks(
    reach: AtRate,
    uses: Mapping[str, float] | np.ndarray,
    most: Mapping[str, float],
    at_least: float = 0.0,
) -> Iterator[Walk]:
    """The programs of one question, one for each part of the cluster.

    Parameters
    ----------
    uses : mapping, or float array of shape (K,)
        What is to be least: "gpus", "price", "seconds", "stages"; or a price for a GPU of each type.
    most : mapping
        What must not be exceeded.
    at_least : float
        Nothing has less of what is to be least.

    Raises
    ------
    Ended, TooLarge
    """
    for part, stages in reach.components():
        mosts = {**most, "stages": min(1, most.get("stages", 1))} if part.one_stage else most
        number = stages.problem.costs.most_gpus
        if number < np.inf:
            mosts = {**mosts, "gpus": min(number, mosts.get("gpus", number))}
        if "price" in mosts:
            limit = row_limit(prices_of(stages.classes).tolist(), mosts["price"])
            mosts = {**mosts, "price": limit}
        limits = tuple(
            Limit(weight_of({what: 1.0}, stages.classes), value) for what, value in mosts.items()
        )
        if isinstance(uses, np.ndarray):
            cost = Weight(per_gpu=uses[part.type_of])
        else:
            cost = weight_of(uses, stages.classes)
        yield Walk(
            stages=stages, cost=cost, limits=limits, at_least=at_least, deadline=reach.deadline
        )


def possible(walk: Walk) -> bool:
    """Whether the GPUs of a part may hold all layers: a bound that takes no program."""
    stages = walk.stages
    layers = stages.problem.model.layers
    return stages.links.narrowed or stages.holdable(stages.problem.model.spans.layers) >= layers


def least(
    reach: AtRate, uses: Mapping[str, float], most: Mapping[str, float], at_least: float = 0.0
) -> WalkResult:
    """The pipeline that uses least among the stages and hops of `reach`; see `walks`.

    Where seconds do not count, what is least without links is the answer if its links reach the rate. Where sets of
    classes were left out, nothing is proven: `stopped_by` says so.
    """
    problem = reach.instance.problem
    if uses and reach.links and not reach.timed:
        relaxed = least(replace(reach, links=False), uses, most, at_least)
        placement = relaxed.placement
        if placement is None or evaluate(problem, placement).rate >= reach.rate * (1 - LAST_BITS):
            return relaxed
        at_least = max(at_least, relaxed.bound)
    best, value = WalkResult(placement=None, bound=np.inf), np.inf
    programs = filter(possible, walks(reach, uses, most, at_least))
    for walk, found in ((w, f) for w in programs for f in _least_of(w, most.get("price"))):
        bound, stopped = found.bound, found.stopped_by
        if walk.stages.links.narrowed:
            bound, stopped = -np.inf, stopped or SETS
        placement = best.placement
        if found.placement is not None:
            _refuse_excess(problem, found.placement, most)
            amount = sum(w * used(problem, what, found.placement) for what, w in uses.items())
            if placement is None or amount < value:
                placement, value = found.placement, amount
        best = WalkResult(
            placement=placement,
            bound=min(best.bound, bound),
            stopped_by=best.stopped_by or stopped,
            nodes=best.nodes + found.nodes,
            variables=max(best.variables, found.variables),
            rows=max(best.rows, found.rows),
        )
        if placement is not None and not uses:
            break
    return best._replace(bound=max(best.bound, at_least)) if uses else best


def _least_of(walk: Walk, budget: float | None) -> Iterator[WalkResult]:
    """What is least, in parts that together are all within a budget."""
    if budget is None:
        yield walk.least()
        return
    prices = prices_of(walk.stages.classes)

    def ask(most: Mapping[float, int]) -> WalkResult:
        limits = (Limit(Weight(1.0 * (prices == price)), n) for price, n in most.items())
        return replace(walk, limits=(*walk.limits, *limits)).least()

    def paid(found: WalkResult) -> Mapping[float, int] | None:
        placement = found.placement
        return None if placement is None else bill(walk.stages.problem, [placement])

    yield from within_budget(ask, paid, budget)


def _refuse_excess(problem: Problem, placement: Placement, most: Mapping[str, float]) -> None:
    """Count what a placement uses: solvers keep rows within a tolerance only."""
    for what, value in most.items():
        if what != "seconds" and used(problem, what, placement) - value > abs(value) * NOT_SOLVED:
            amount = used(problem, what, placement)
            raise PipelabError(f"a solver returned {amount} {what} where {value} are allowed")


@dataclass(frozen=True)
class Subproblem:
    """One solved question: is there a placement of at least this rate, if links are ignored or counted?"""

    rate: float  # tokens/s
    question: str  # "links ignored", "with links", or "least gpus", "least price"
    answer: Verdict
    variables: int
    rows: int
    seconds: float


@dataclass
class RateSearch:
    """The state of one search; an index counts the possible rates, ascending.

        0 . . . . . . . low . . . . . . . . . high . . . . . . .
        reached by `best`    not yet known         proven impossible

    Attributes
    ----------
    instance : Instance
    deadline : Deadline
    most : mapping
        What a placement may use at most: "gpus", "stages", "price".
    gap : float
        Relative distance between `best` and the bound at which to stop.
    low, high : int
        `best` has the rate of index `low` (-1: none yet); no placement's is above `high`.
    share : float
        The part of the time left that one question may take.
    narrowed : bool
        Some question stayed open because something was too much to list: sets of classes, or what `refusal` says.
    stopped : str or None
        What ended the search; None as long as it goes on, and where it ran to its end.
    fewest : bool
        The choice among equally fast placements is proven, too.
    nodes : int
        Branch-and-bound nodes of all questions.
    log : list of Subproblem
    """

    instance: Instance
    deadline: Deadline = NEVER
    most: dict[str, float] = field(default_factory=dict)
    gap: float = 0.0
    on_progress: Callable | None = None
    low: int = -1
    high: int = -1
    share: float = 1.0
    narrowed: bool = False
    refusal: str = ""
    best: Placement | None = None
    throughput: float | None = None
    stopped: str | None = None
    fewest: bool = False
    nodes: int = 0
    progress: list[Progress] = field(default_factory=list)
    log: list[Subproblem] = field(default_factory=list)
    _without_links: int = -1  # the highest index known to be reached where links are ignored
    _rates: dict[Placement, float] = field(default_factory=dict)

    @property
    def size(self) -> dict[str, int]:
        """How many questions there were, and the size of the largest program."""
        return {
            "subproblems": len(self.log),
            "variables": max((s.variables for s in self.log), default=0),
            "rows": max((s.rows for s in self.log), default=0),
        }

    def rate(self, index: int) -> float:
        """The rate of this index."""
        return float(self.instance.thresholds[index])

    @property
    def bound(self) -> float | None:
        """No placement is faster; None without one."""
        if self.low == self.high:  # one rate, computed by two paths
            return self.throughput
        return self.rate(self.high) if self.high >= 0 else None

    def run(self) -> "RateSearch":
        """Find the best rate; then choose among equals for a while, unless something ended the search."""
        self.find_best_rate()
        self.share, seconds = 1.0, seconds_to_choose.get()
        if self.best is not None and self.stopped is None and seconds > 0:
            whole, self.deadline = self.deadline, self.deadline.within(seconds)
            self.choose_among_equals()
            self.deadline = whole
        return self

    def find_best_rate(self) -> None:
        """Go down from the highest rate in steps 1, 2, 4, …; once one is reached, halve what is left.

        A question that stays open within its share of the time is not ruled out: the search goes on
        below it, `high` stays above it, and once all below is settled such questions have another turn, with more of
        the time that is left.
        """
        self.high, step = self.instance.highest(), 0
        for self.share in _TIME_SHARES:
            ceiling = self.high  # above: ruled out, or open
            while self.low < ceiling and self.stopped is None:
                index = max(ceiling - step, (self.low + ceiling + 1) // 2, 0)
                step = max(1, 2 * step)
                reached = self.reaches(index)
                if reached is False:
                    self.high = min(self.high, index - 1)
                if self.low < index:
                    ceiling = index - 1
                self._report()
                if self.stopped is None and self._within_gap():
                    self.stopped = "gap limit"
            if self.low == self.high or self.stopped is not None or self.narrowed:
                break
        if self.stopped is None and self.low < self.high:
            self.stopped = SETS if self.narrowed else "time limit"

    def reaches(self, index: int) -> bool | None:
        """Whether a placement of at least this rate exists; None if that stays open.

        Placements found meanwhile are kept, even if they are slower.
        """
        for links in (False, True):
            if self.low >= index or self.stopped is not None:
                break
            if not links and index <= self._without_links:
                continue
            found = self._asked(index, links, {}, "with links" if links else "links ignored")
            if found.placement is not None and self.index_of(found.placement) > self.low:
                self.keep(found.placement)
            elif found.bound == np.inf:
                return False
            if found.placement is None:
                return None
            if not links:
                self._without_links = index
        return True if self.low >= index else None

    def _asked(self, index: int, links: bool, uses: Mapping[str, float], kind: str) -> WalkResult:
        """Ask one question, and log it."""
        began, found = time.perf_counter(), WalkResult(placement=None, bound=-np.inf)
        until = self.deadline.within(self.deadline.left * self.share)
        try:
            until.check()
            reach = AtRate(self.instance, self.rate(index), links=links, deadline=until)
            found = least(reach, uses, self.most)
        except Ended:
            pass  # the time of this question, or of the search
        except TooLarge as refusal:
            found = found._replace(stopped_by=SETS)
            self.refusal = str(refusal)
        self.nodes += found.nodes
        self.narrowed |= found.stopped_by == SETS
        if found.stopped_by not in (None, SETS, "time limit", "stop", "interrupt"):
            self.stopped = found.stopped_by
        verdict: Verdict = "not answered" if found.placement is None else "yes"
        if found.bound == np.inf:
            verdict = "no"
        self.log.append(
            Subproblem(
                rate=self.rate(index),
                question=kind,
                answer=verdict,
                variables=found.variables,
                rows=found.rows,
                seconds=time.perf_counter() - began,
            )
        )
        self._ask(self._moment())
        self.stopped = self.stopped or self.deadline.reason
        return found

    def choose_among_equals(self) -> None:
        """At the best rate: fewest GPUs, then fewest stages, then the lowest price."""
        problem = self.instance.problem
        for what in ("gpus", "price"):
            if what == "price" and not comparable(problem):
                if any(gpu.usd_per_hour for gpu in problem.cluster.kinds):
                    return  # some prices are missing, or too far apart: that choice stays open
                continue
            placement, proven = self.least_use(what, self.low)
            if placement is not None:
                self.keep(placement)
            if placement is None or not proven or self.stopped is not None:
                return
            self.most = {**self.most, what: used(problem, what, placement)}
            if what == "gpus":
                self.most["stages"] = len(placement)
        self.fewest = True

    def least_use(self, what: str, index: int) -> tuple[Placement | None, bool]:
        """The placement of at least this rate that uses least "gpus" or "price"; and whether that is proven.

        Among placements of equally many GPUs, the one with the fewest stages.
        """
        uses = {what: 1.0}
        if what == "gpus":
            uses = {what: self.instance.problem.model.layers + 1.0, "stages": 1.0}
        found = self._asked(index, True, uses, f"least {what}")
        if found.placement is not None and self.index_of(found.placement) < index:
            return None, False
        return found.placement, found.stopped_by is None

    def keep(self, placement: Placement) -> None:
        """Take a placement for the best, whatever found it."""
        self.best, self.low = placement, self.index_of(placement)
        self.throughput = self._rates[placement]

    def index_of(self, placement: Placement) -> int:
        """The last rate that is not above the placement's own."""
        if placement not in self._rates:
            self._rates[placement] = evaluate(self.instance.problem, placement).rate
        return self.instance.index_of(self._rates[placement])

    def _within_gap(self) -> bool:
        """Whether the best placement is within `gap` of the bound, but not at it."""
        if self.throughput is None or self.low >= self.high:
            return False
        return self.rate(self.high) <= self.throughput * (1 + self.gap)

    def _moment(self) -> Progress:
        return Progress(
            seconds=self.deadline.spent,
            incumbent=self.throughput,
            bound=self.bound,
            nodes=self.nodes,
            placement=self.best,
        )

    def _ask(self, moment: Progress) -> None:
        # Programs tell their nodes themselves.
        self.deadline.ask(replace(moment, nodes=len(self.log)))

    def _report(self) -> None:
        moment = self._moment()
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)
        self._ask(moment)
        self.stopped = self.stopped or self.deadline.called_off
