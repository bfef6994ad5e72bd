"""The search for the best rate: one small program after the other, each about one rate."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pipelab.engine.deadline import Deadline
from pipelab.engine.methods.minimum_use import least_use
from pipelab.engine.methods.subproblems import (
    EXACT,
    ONE_CLASS_STAGES,
    WITHOUT_LINKS,
    Answer,
    Subproblems,
    Variant,
)
from pipelab.engine.solvers.solver_run import Progress
from pipelab.placement import Placement

_AFTER_THE_END_SECONDS = 0.3  # to find any placement, if there is none yet
# What is least among equally fast placements: first this, then that. By default, price comes last.
PREFERENCES = {"gpus": ("gpus", "price"), "price": ("price", "gpus")}


@dataclass
class Search:
    """The state of one search; an index counts the possible rates, ascending.

        0 . . . . . . . low . . . . . . . . . high . . . . . . .
        reached by `best`    not yet known         proven impossible

    Attributes
    ----------
    subproblems : Subproblems
        Solves them, and knows the rates, the deadline and the limits.
    gap : float
        Relative distance between `best` and the bound at which to stop.
    prefer : "gpus" or "price"
        What is least among equally fast placements.
    cap : int or None
        An index above which nothing is looked for.
    low, high : int
        `best` has the rate of index `low` (-1: none yet); no placement's is above `high`.
    reached_without_links : int
        The highest rate known to be reached where links are ignored.
    fewest : bool
        The choice among equally fast placements is proven, too.
    """

    subproblems: Subproblems
    gap: float = 0.0
    on_progress: Callable | None = None
    prefer: str = "gpus"
    cap: int | None = None
    low: int = -1
    high: int = -1
    reached_without_links: int = -1
    best: Placement | None = None
    throughput: float | None = None
    fewest: bool = False
    progress: list[Progress] = field(default_factory=list)

    @property
    def stopped(self) -> str | None:
        """What ended the search; None as long as it goes on, and where it ran to its end."""
        return self.subproblems.stopped

    def run(self) -> "Search":
        """Find the best rate; then choose among equally fast placements, unless something ended the search."""
        self.find_best_rate()
        if self.best is None and self.stopped is not None and self.high >= 0:
            self._find_any_after_the_end()
        if self.best is not None and self.stopped is None:
            self.choose_among_equals()
        return self

    def find_best_rate(self) -> None:
        """Go down from the highest rate in steps 1, 2, 4, …; once one is reached, halve what is left.

        A rate that stays open within its share of the time is not ruled out: the search goes on
        below it, `high` stays above it, and what time is left in the end goes to such rates again.
        """
        sub = self.subproblems
        self.high = sub.highest(self.cap)
        index, step, ceiling = self.high, 1, self.high  # above `ceiling`: ruled out, or given up
        while self.low < ceiling and sub.stopped is None:
            reached = self.reach(index)
            if reached is None and self.best is None:
                # Any placement will do before harder programs take all the time.
                self._try(0, WITHOUT_LINKS)
            if self.low < index:
                ceiling = index - 1
                if reached is False:
                    self.high = ceiling
            self._report()
            index = max(ceiling - step, (self.low + ceiling + 1) // 2, 0)
            step *= 2
            if sub.stopped is None and self._within_gap():
                sub.stopped = "gap limit"
        if sub.deadline.limited:
            self._try_open_rates_again()
        if sub.stopped is None and self.low < self.high:
            sub.stopped = "list limit" if sub.sets_left_out else "time limit"

    def _try_open_rates_again(self) -> None:
        """Halve what is open, with half of the time that is left for each rate, and in the end all of it.

        Low rates are reached and high ones ruled out more easily: a rate that stays open makes way
        for a higher one, as that may still lower the bound.
        """
        sub = self.subproblems
        first_share, sub.share = sub.share, 1 / 2
        index = (self.low + self.high + 1) // 2
        while self.low < self.high and sub.stopped is None and not sub.sets_left_out:
            sub.share = 1.0 if index == self.high else 1 / 2
            reached = self.reach(index)
            if reached is False:
                self.high = index - 1
            self._report()
            if reached is None and index == self.high:
                break
            index = ((index if reached is None else self.low) + self.high + 1) // 2
            if sub.stopped is None and self._within_gap():
                sub.stopped = "gap limit"
        sub.share = first_share

    def reach(self, index: int) -> bool | None:
        """Whether a placement of at least this rate exists; None if that stays open.

        Easy variants first (see `subproblems`). Placements found meanwhile are kept, even if they
        are slower.
        """
        sub = self.subproblems
        if index > self.reached_without_links:
            relaxed = self._try(index, WITHOUT_LINKS)
            if relaxed.verdict == "no":
                return False
            if relaxed.verdict == "yes":
                self.reached_without_links = index
        if self.low >= index:
            return True
        links = sub.links_at(index)
        if links.many_sets:
            self._try(index, ONE_CLASS_STAGES)
        exact = self._try(index, EXACT if links.bind else replace(EXACT, widest=1))
        if self.low >= index:
            return True
        if exact.verdict == "no" and not exact.all_sets:
            sub.sets_left_out = True
            return None
        return False if exact.verdict == "no" else None

    def choose_among_equals(self) -> None:
        """At the best rate: fewest GPUs, then fewest stages, then the lowest price (or price first)."""
        sub = self.subproblems
        prices = [gpu.usd_per_hour for gpu in sub.rates.problem.cluster.kinds]
        for what in PREFERENCES[self.prefer]:
            if what == "price" and None in prices:
                if any(prices):
                    return  # some prices are missing: that choice stays open
                continue
            placement, proven = least_use(sub, what, self.low)
            if placement is not None:
                self.keep(placement)
            if placement is None or not proven or self.stopped is not None:
                return
            if what == "price":
                sub.limits = replace(sub.limits, price=sub.used("price", placement))
            else:
                gpus, stages = len(placement.gpus), len(placement)
                sub.limits = replace(sub.limits, gpus=gpus, stages=stages)
        self.fewest = True

    def keep(self, placement: Placement) -> None:
        """Take a placement for the best, whatever found it."""
        self.best = placement
        self.throughput = self.subproblems.throughput(placement)
        self.low = self.subproblems.index_of(placement)

    def _try(self, index: int, variant: Variant) -> Answer:
        """Solve one subproblem unless the search is over or the rate is reached; keep what it finds if it is better."""
        sub = self.subproblems
        if sub.stopped or self.low >= index:
            return Answer("not answered", None)
        answer = sub.solve(index, variant)
        if answer.placement is not None and sub.index_of(answer.placement) > self.low:
            self.keep(answer.placement)
        return answer

    def _find_any_after_the_end(self) -> None:
        """Stopped without a placement: take a moment more to find any that fits."""
        late = Deadline(_AFTER_THE_END_SECONDS)
        sub = replace(self.subproblems, deadline=late, stopped=None, share=1.0)
        answer = sub.solve(0, WITHOUT_LINKS, kind="any placement, after the end")
        if answer.placement is not None:
            self.keep(answer.placement)
            self._report()

    def _within_gap(self) -> bool:
        """Whether the best placement is within `gap` of the bound, but not at it."""
        if self.throughput is None or self.low >= self.high:
            return False
        return self.subproblems.rate(self.high) <= self.throughput * (1 + self.gap)

    def _report(self) -> None:
        sub = self.subproblems
        bound = sub.rate(self.high) if self.high >= 0 else None
        moment = Progress(sub.deadline.spent, self.throughput, bound, sub.nodes, self.best)
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)
