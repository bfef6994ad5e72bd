"""The least step time under one published rule: tables, first placements, and the search."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.training.improving import Plan, improved
from pipelab.engine.training.orders import Order
from pipelab.engine.training.search import Search
from pipelab.engine.training.stages import Stages
from pipelab.engine.training.suffixes import Suffixes, merged

_FIRST_LIMIT = 2.0  # times the least time that the slowest stage may have
_TIGHTER = 0.95  # a table with a limit so much lower saves more time than it takes
_MOST_CELLS = 60_000_000  # of a table of suffixes: more take seconds


@dataclass
class Best:
    """The best placement so far, over all rules.

    Attributes
    ----------
    seconds : float
        Of a step; infinite as long as there is none.
    rule : str
    plan : Plan or None
    on_change : function, optional
        Called after every change.
    """

    seconds: float = np.inf
    rule: str = ""
    plan: Plan | None = None
    on_change: Callable[[], None] | None = None

    def keep(self, rule: str, plan: Plan, seconds: float) -> None:
        """Take it if it is better."""
        if seconds < self.seconds:
            self.seconds, self.rule, self.plan = seconds, rule, plan
            if self.on_change is not None:
                self.on_change()


@dataclass
class RuleSearch:
    """The state of one rule's search.

    Attributes
    ----------
    bound : float
        No placement under this rule has less, in seconds; infinite where there is none.
    feasible : bool or None
        None as long as neither is known.
    """

    name: str
    stages: Stages
    orders: dict[int, Order]
    best: Best
    deadline: Deadline
    gap: float = 0.0
    bound: float = 0.0
    feasible: bool | None = None
    nodes: int = 0
    simulated: int = 0
    states: int = 0
    stopped: str | None = None
    _search: Search | None = field(default=None, repr=False)

    def run(self) -> None:
        """Until nothing better can be left; stopped early, with what is known then."""
        try:
            self._run()
        except Ended as end:
            self.stopped = end.reason
        self._settle()

    def _run(self) -> None:
        slowest = least_slowest(self.stages, self.orders, self.deadline)
        if slowest == np.inf:
            self.bound, self.feasible = np.inf, False
            return
        microbatches = next(iter(self.orders.values())).schedule.microbatches
        self.bound = microbatches * slowest
        limit = _FIRST_LIMIT * slowest
        while True:
            # Of stages that take longer than the limit, a step is no shorter than this.
            beyond = microbatches * limit
            search = self._table(limit, beyond)
            search.dive()
            if self.best.seconds < beyond * _TIGHTER:
                # What exceeds the best need not be in the table, and the rest bounds more.
                limit = self.best.seconds / microbatches
                beyond = self.best.seconds
                search = self._table(limit, beyond)
            self.stopped = search.run()
            self._note(beyond)
            if self.stopped or self.best.seconds <= beyond or limit == np.inf:
                break
            limit = limit * 4 if limit < 100 * slowest else np.inf
        if self.best.seconds == np.inf and not self.stopped:
            self.bound, self.feasible = np.inf, False

    def _table(self, limit: float, beyond: float) -> Search:
        cells = len(self.stages.composition) * self.stages.layers * 8
        groups = merged(self.stages, max(2, _MOST_CELLS // cells))
        suffixes = Suffixes(self.stages, self.orders, groups, limit, self.deadline)
        self.states += sum(map(len, suffixes.state))
        self._search = search = Search(
            suffixes, self.best.seconds, self._keep, self.deadline, self.gap
        )
        search.bound = search.heap[0][0] if search.heap else np.inf
        self._note(beyond)
        return search

    def _note(self, beyond: float = np.inf) -> None:
        if self._search is not None:
            self.bound = max(self.bound, min(self._search.bound, beyond))

    def _settle(self) -> None:
        if self._search is not None:
            self.nodes, self.simulated = self._search.count, self._search.simulated
            if self.stopped in ("stop", "interrupt", "time limit"):
                pass
        if self.best.seconds < np.inf and self.feasible is None and self.best.rule == self.name:
            self.feasible = True

    def _keep(self, compositions: np.ndarray, cuts: np.ndarray, seconds: float) -> None:
        """Take a placement, and what small changes make of it."""
        plan = tuple(compositions.tolist()), tuple(np.diff(cuts).tolist())
        self.best.keep(self.name, plan, seconds)
        plan, seconds = improved(self.stages, self.orders, plan, seconds, self.deadline)
        self.best.keep(self.name, plan, seconds)
        if self._search is not None:
            self._search.best = min(self._search.best, seconds)


def least_slowest(stages: Stages, orders: dict[int, Order], deadline: Deadline) -> float:
    """Seconds per microbatch that the slowest stage of any placement has at least; infinite where nothing fits.

    Counting each GPU with the most layers that a stage with it can hold in that time, over the
    stage's GPUs.
    """
    every = {
        id(t): t.whole
        for order in orders.values()
        for t in (stages.times(held, order.chunks) for held in order.held)
    }
    deadline.check()
    least = np.minimum.reduce(list(every.values()))
    size = stages.composition.sum(axis=1)
    count, present = stages.classes.count, stages.composition > 0
    values = np.unique(least[np.isfinite(least)])

    def holds(seconds: float) -> bool:
        share = np.where(least <= seconds, stages.runs.layers, 0).max(axis=1) / size
        most = np.where(present, share[:, None], 0).max(axis=0)
        return float(most @ count) >= stages.layers * (1 - 1e-9)

    if not len(values) or not holds(values[-1]):
        return np.inf
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(values[middle]) else (middle + 1, high)
    return float(values[low])
