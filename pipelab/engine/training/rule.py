"""The least step time under one published rule: tables, first placements, and the search."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.training.first import first_plans
from pipelab.engine.training.groups import merged
from pipelab.engine.training.improving import Plan, batch_of, improved
from pipelab.engine.training.orders import Order
from pipelab.engine.training.search import Search
from pipelab.engine.training.stages import Stages
from pipelab.engine.training.suffixes import Suffixes, tables_of
from pipelab.fields import given

_FIRST_LIMIT = 3.0  # times the least time that the slowest stage may have
_IMPROVED = 2  # of the first placements
_TIGHTER = 0.95  # a table with a limit so much lower saves more time than it takes
_MOST_CELLS = 8_000_000  # of one level of a table of suffixes: more take seconds


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
        No placement under this rule has less than this or the best, in seconds; infinite where
        there is none.
    nodes, simulated, states : int
        Of the last search and its tables.
    stopped : str or None
        What ended it early.
    """

    name: str
    stages: Stages
    orders: dict[int, Order]
    best: Best
    deadline: Deadline
    gap: float = 0.0
    bound: float = 0.0
    nodes: int = 0
    simulated: int = 0
    states: int = 0
    stopped: str | None = None
    _search: Search | None = field(default=None, repr=False)
    _beyond: float = field(default=np.inf, repr=False)

    def rounds(self) -> Iterator[None]:
        """Search in rounds until nothing better can be left; stopped early, with what is known then."""
        try:
            for _ in self._rounds():
                self._note()
                yield
        except Ended as end:
            self.stopped = end.reason
        self._note()
        self._search = None  # and its tables

    def _rounds(self) -> Iterator[None]:
        self.deadline.check()
        held = [(each, o.chunks) for o in self.orders.values() for each in o.held]
        slowest = least_slowest(self.stages, held)
        if slowest == np.inf:
            self.bound = np.inf
            return
        microbatches = next(iter(self.orders.values())).schedule.microbatches
        self.bound = max(self.bound, microbatches * slowest)
        self._first()
        beyond = min(_FIRST_LIMIT * slowest * microbatches, self.best.seconds)
        while True:
            # With a stage that takes longer than the table's, a step is no shorter than this.
            search = self._table(beyond / microbatches, beyond)
            if search.bound < beyond:
                search.dive()
                if self.best.seconds < beyond * _TIGHTER:
                    # What exceeds the best need not be in the table, and the rest bounds more.
                    beyond = self.best.seconds
                    search = self._table(beyond / microbatches, beyond)
                yield
                self.stopped = yield from search.rounds(beyond)
                self._note()
            if self.stopped or self.best.seconds <= beyond or beyond == np.inf:
                break
            wider = beyond * 4 if beyond < 100 * slowest * microbatches else np.inf
            beyond = min(wider, self.best.seconds)
        if self.best.seconds == np.inf and not self.stopped:
            self.bound = np.inf

    def _first(self) -> None:
        """Placements to begin with: by size of stage, and the best of the rules before."""
        plans = list(first_plans(self.stages, self.orders))
        if self.best.plan is not None and len(self.best.plan[0]) in self.orders:
            plans.append(self.best.plan)
        found = []
        for plan in plans:
            order = self.orders[len(plan[0])]
            self.deadline.check()
            found.append((float(batch_of([plan]).step_times(self.stages, order)[0]), plan))
        for seconds, plan in sorted(found)[:_IMPROVED]:
            if seconds < np.inf:
                self._keep_improved(plan, seconds)

    def _table(self, limit: float, beyond: float) -> Search:
        """A search of all placements whose stages keep to the limit."""
        groups = merged(self.stages, _MOST_CELLS // self.stages.layers)

        def made(orders: dict[int, Order]) -> Suffixes:
            return Suffixes(self.stages, orders, groups, limit, self.deadline, self.best.seconds)

        for tables in tables_of(self.orders, made):
            self._search = Search(tables, self.best.seconds, self._keep, self.deadline, self.gap)
            self._beyond = beyond
            self._search.bound = self._search.nearest
            self.states = sum(len(s) for each in set(tables.values()) for s in each.state)
            self._note()
        return given(self._search)

    def _note(self) -> None:
        """What the table that is searched has proven by now."""
        search = self._search
        if search is not None:
            search.best = min(search.best, self.best.seconds)
            self.bound = max(self.bound, min(search.bound, self._beyond, self.best.seconds))
            self.nodes, self.simulated = search.count, search.simulated

    def _keep(self, compositions: np.ndarray, cuts: np.ndarray, seconds: float) -> None:
        """Take a placement, and what small changes make of it."""
        self._keep_improved((tuple(compositions.tolist()), tuple(np.diff(cuts).tolist())), seconds)

    def _keep_improved(self, plan: Plan, seconds: float) -> None:
        self.best.keep(self.name, plan, seconds)
        plan, seconds = improved(self.stages, self.orders, plan, seconds, self.deadline)
        self.best.keep(self.name, plan, seconds)
        self._note()


def least_slowest(stages: Stages, held: Iterable[tuple[np.ndarray, int]]) -> float:
    """Seconds per microbatch that the slowest stage of any placement has at least; infinite where nothing fits.

    Counting each GPU with the most layers that a stage with it can hold in that time, over the
    stage's GPUs.

    Parameters
    ----------
    held : pairs of `held_counts` of a rank and its chunks
        All that a stage's rank may hold.
    """
    every = {id(t): t.whole for t in (stages.times(each, chunks) for each, chunks in held)}
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
