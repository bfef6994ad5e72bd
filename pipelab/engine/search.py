"""The search for the best rate: one small program after the other, each about one rate.

All of them ask for a placement of at least a given rate, but not all about every stage and link:

    variant            compared with the problem                      what it settles
    WITHOUT_LINKS      relaxed: every link is fast enough             "no" holds for the problem
    ONE_CLASS_STAGES   restricted: no stage mixes classes             "yes" holds for the problem
    EXACT              the problem itself                             both
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pipelab.engine.classes import Classes
from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.prices import comparable, price_per_hour, prices_of
from pipelab.engine.rates import StageRates, index_of_rate, number_of_mixtures, stage_rates
from pipelab.engine.recipes import recipes_at
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.stages import number_of_sets
from pipelab.engine.tolerances import NOT_SOLVED, SOLVER
from pipelab.engine.walk import Found, Limit, Walk, Weight
from pipelab.errors import PipelabError, TooLarge
from pipelab.evaluation import evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem

_MANY_SETS = 64  # sets of classes from which it pays to try single classes first

Verdict = Literal["yes", "no", "not answered"]


@dataclass(frozen=True)
class Variant:
    """Which stages and links a subproblem counts; the fields are options of `recipes_at`.

    Attributes
    ----------
    name : str
        For the log.
    links : bool
        Whether links count at all.
    widest : int or None
        The most classes of GPUs in one stage; None: any number.
    """

    name: str
    links: bool = True
    widest: int | None = None


WITHOUT_LINKS = Variant("links ignored", links=False)
ONE_CLASS_STAGES = Variant("stages of one class", widest=1)
EXACT = Variant("with links")


@dataclass(frozen=True)
class Limits:
    """What a placement may use at most: GPUs, stages, money in $ per hour. None: as much as there is."""

    gpus: int | None = None
    stages: int | None = None
    price: float | None = None

    def rows(self, classes: Classes) -> tuple[Limit, ...]:
        """The same of a walk."""
        mosts = {"gpus": self.gpus, "stages": self.stages, "price": self.price}
        return tuple(
            Limit(weight_of({what: 1.0}, classes), most)
            for what, most in mosts.items()
            if most is not None
        )


def weight_of(uses: Mapping[str, float], classes: Classes) -> Weight:
    """A sum of "gpus", "stages" and "price" with these weights."""
    per_gpu = np.full(len(classes), uses.get("gpus", 0.0))
    if "price" in uses:
        per_gpu += uses["price"] * prices_of(classes)
    return Weight(per_gpu, per_stage=uses.get("stages", 0.0))


@dataclass(frozen=True)
class Subproblem:
    """One solved subproblem: is there a placement of at least this rate?"""

    rate: float  # tokens/s
    kind: str  # the name of its variant, or "least gpus", "least price"
    answer: Verdict
    variables: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class Answer:
    """What a subproblem found.

    Attributes
    ----------
    verdict : "yes", "no" or "not answered"
    placement : Placement or None
        Of a relaxed variant it may be slower than the rate.
    all_sets : bool
        No set of classes was left out; otherwise a "no" holds for the listed ones only.
    """

    verdict: Verdict
    placement: Placement | None
    all_sets: bool = True


@dataclass(frozen=True)
class Links:
    """Whether links bind at a rate, and if so, whether there are many sets of classes to list."""

    bind: bool
    many_sets: bool = False


@dataclass
class Subproblems:
    """Solves the subproblems of one search; an index counts `thresholds`, ascending.

    Attributes
    ----------
    limits : Limits
        What a placement may use at most.
    share : float
        The part of the time left that one subproblem may take. A hard one then stays open, and
        easier ones at lower rates still find a placement.
    stopped : str or None
        What ended the search.
    sets_left_out : bool
        Some subproblem stayed open because its sets of classes were too many to list.
    nodes : int
        Branch-and-bound nodes of all subproblems.
    log : list of Subproblem
    """

    rates: StageRates
    deadline: Deadline = NEVER
    limits: Limits = field(default_factory=Limits)
    share: float = 1 / 3
    stopped: str | None = None
    sets_left_out: bool = False
    nodes: int = 0
    log: list[Subproblem] = field(default_factory=list)
    _throughput: dict[Placement, float] = field(default_factory=dict)

    @property
    def size(self) -> dict[str, int]:
        """How many subproblems there were, and the size of the largest."""
        return {
            "subproblems": len(self.log),
            "variables": max((s.variables for s in self.log), default=0),
            "rows": max((s.rows for s in self.log), default=0),
        }

    def rate(self, index: int) -> float:
        """The rate of this index."""
        return float(self.rates.thresholds[index])

    def highest(self, cap: int | None = None) -> int:
        """The highest index, up to `cap`, at which the GPUs can hold all layers; -1 if there is none.

        What they can hold at a rate they can hold at every lower one.
        """
        thresholds, layers = self.rates.thresholds, self.rates.problem.model.layers
        low, high = -1, len(thresholds) - 1 if cap is None else min(len(thresholds) - 1, cap)
        while low < high:
            middle = (low + high + 1) // 2
            if self.rates.holdable(thresholds[middle : middle + 1])[0] >= layers - SOLVER:
                low = middle
            else:
                high = middle - 1
        return low

    def links_at(self, index: int) -> Links:
        """Whether links bind at a rate. Where they do not, ONE_CLASS_STAGES lists every stage there is."""
        rate, bind, many = self.rate(index), False, False
        try:
            views = self.rates.views(rate, deadline=self.deadline)
            for view in views:
                single = recipes_at(view, rate, widest=1, deadline=self.deadline)
                if not single.links.free:
                    classes = int(single.links.support.any(axis=0).sum())
                    bind = True
                    many |= number_of_sets(classes, self.rates.largest) > _MANY_SETS
        except Ended as end:
            self.stopped = end.reason
            return Links(bind=False)
        return Links(bind or len(views) > 1, many)

    def solve(
        self,
        index: int,
        variant: Variant,
        minimise: Mapping[str, float] | None = None,
        kind: str = "",
    ) -> Answer:
        """Solve one subproblem and log it.

        Parameters
        ----------
        index : int
            Of the rate to reach.
        variant : Variant
        minimise : mapping, optional
            Weights of "gpus", "stages" and "price" in the objective. Without it, any placement
            does.
        kind : str
            For the log, instead of the variant's name.
        """
        began, size = time.perf_counter(), {"variables": 0, "rows": 0}
        answer = Answer("not answered", None)
        until = self.deadline.within(self.deadline.left * self.share)
        try:
            until.check()
            answer = self._listed_and_solved(index, variant, minimise, until, size)
        except Ended:
            pass  # the time of this subproblem, or of the search
        except TooLarge:
            self.sets_left_out = True
        self._check_limits(answer.placement)
        seconds = time.perf_counter() - began
        name = kind or variant.name
        self.log.append(Subproblem(self.rate(index), name, answer.verdict, **size, seconds=seconds))
        self.stopped = self.stopped or self.deadline.reason
        return answer

    def throughput(self, placement: Placement) -> float:
        """The placement's throughput by `evaluate`, computed once."""
        if placement not in self._throughput:
            self._throughput[placement] = evaluate(self.rates.problem, placement).rate
        return self._throughput[placement]

    def index_of(self, placement: Placement) -> int:
        """The last rate that is not above the placement's own."""
        return index_of_rate(self.rates.thresholds, self.throughput(placement))

    def used(self, what: str, placement: Placement) -> float:
        """How much a placement uses: "gpus", "stages", or "price" in $ per hour."""
        if what == "price":
            return price_per_hour(self.rates.problem, placement) or 0.0
        return len(placement.gpus) if what == "gpus" else len(placement)

    def _listed_and_solved(
        self,
        index: int,
        variant: Variant,
        minimise: Mapping[str, float] | None,
        until: Deadline,
        size: dict[str, int],
    ) -> Answer:
        """The same in one part of the cluster after the other; `size` is updated meanwhile."""
        best = Answer("no", None)
        for view in self.rates.views(self.rate(index), variant.links, until):
            answer = self._in_one_part(view, index, variant, minimise, until, size)
            all_sets = best.all_sets and answer.all_sets
            if answer.verdict == "not answered":
                return answer
            if answer.verdict == "yes" and (
                best.placement is None
                or (
                    answer.placement is not None
                    and self._weight(answer.placement, minimise)
                    < self._weight(best.placement, minimise)
                )
            ):
                best = answer
            best = replace(best, all_sets=all_sets)
            if best.verdict == "yes" and not minimise:
                break
        return best

    def _weight(self, placement: Placement, minimise: Mapping[str, float] | None) -> float:
        """What is minimised, of a placement."""
        return sum(w * self.used(what, placement) for what, w in (minimise or {}).items())

    def _in_one_part(
        self,
        view: StageRates,
        index: int,
        variant: Variant,
        minimise: Mapping[str, float] | None,
        until: Deadline,
        size: dict[str, int],
    ) -> Answer:
        """List the stages, build the program and solve it."""
        stages = recipes_at(view, self.rate(index), variant.links, variant.widest, until)
        limits = self.limits
        if view.one_stage:
            limits = replace(limits, stages=min(1, 1 if limits.stages is None else limits.stages))
        cost = weight_of(minimise or {}, stages.classes)
        found = Walk(stages, cost, limits.rows(stages.classes), deadline=until).least()
        self.nodes += found.nodes
        size |= {"variables": found.variables, "rows": found.rows}
        return replace(self._answer(found, minimise), all_sets=not stages.links.narrowed)

    def _answer(self, found: Found, minimise: Mapping[str, float] | None) -> Answer:
        """What a program's end says; a limit other than time's ends the whole search."""
        open_still = found.placement is None or bool(minimise)
        if found.stopped_by is not None and open_still:
            if found.stopped_by not in ("time limit", "stop", "interrupt"):
                self.stopped = found.stopped_by
            return Answer("not answered", None)
        return Answer("no" if found.placement is None else "yes", found.placement)

    def _check_limits(self, placement: Placement | None) -> None:
        """Count what a placement uses: solvers keep rows within a tolerance only."""
        if placement is None:
            return
        for what in ("gpus", "stages", "price"):
            most = getattr(self.limits, what)
            if most is not None and self.used(what, placement) > most * (1 + NOT_SOLVED):
                raise PipelabError(
                    f"a solver returned {self.used(what, placement)} {what} where {most} are allowed"
                )


def least_use(subproblems: Subproblems, what: str, index: int) -> tuple[Placement | None, bool]:
    """The placement of at least this rate that uses least; and whether that is proven.

    Without links, and with one class per stage, programs are small. The first gives a lower bound;
    a placement that reaches the rate and uses no more is the answer, whichever variant found it.

    Parameters
    ----------
    subproblems : Subproblems
        With the limits that hold.
    what : "gpus" or "price"
        Among placements of equally many GPUs, the one with the fewest stages.
    index : int
        Of the rate to reach.

    Returns
    -------
    placement : Placement or None
        None and proven: there is no such placement.
    proven : bool
    """
    layers = subproblems.rates.problem.model.layers
    weights = {"price": 1.0} if what == "price" else {"gpus": layers + 1.0, "stages": 1.0}
    links, lower_bound = subproblems.links_at(index), 0.0

    def cost(placement: Placement) -> float:
        return sum(weight * subproblems.used(name, placement) for name, weight in weights.items())

    def reaches(placement: Placement) -> bool:
        return subproblems.index_of(placement) >= index

    kind = f"least {what}"
    if links.bind:
        relaxed = subproblems.solve(index, WITHOUT_LINKS, weights, kind)
        if relaxed.placement is None:
            return None, relaxed.verdict == "no"
        if reaches(relaxed.placement):
            return relaxed.placement, True
        lower_bound = cost(relaxed.placement)
    if links.many_sets:
        single = subproblems.solve(index, ONE_CLASS_STAGES, weights, kind)
        if single.verdict == "not answered":
            return None, False
        found = single.placement
        if found is not None and reaches(found) and cost(found) <= lower_bound:
            return found, True
    exact = subproblems.solve(index, EXACT if links.bind else ONE_CLASS_STAGES, weights, kind)
    if exact.verdict == "not answered":
        return None, False
    if exact.placement is not None:
        if not reaches(exact.placement):
            return None, False
        if cost(exact.placement) <= lower_bound:
            return exact.placement, True
    subproblems.sets_left_out |= not exact.all_sets
    return exact.placement, exact.all_sets


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
        problem = sub.rates.problem
        for what in PREFERENCES[self.prefer]:
            if what == "price" and not comparable(problem):
                if any(gpu.usd_per_hour for gpu in problem.cluster.kinds):
                    return  # some prices are missing, or too far apart: that choice stays open
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


_MOST_CELLS = 1_000_000  # of a table: a tenth of a second


def bound_in_one_node(problem: Problem, deadline: Deadline) -> float | None:
    """No placement yields more tokens/s; None where nothing is known so soon.

    Raises
    ------
    Ended
        The deadline has passed.
    """
    from pipelab.hardware.roofline import Roofline

    costs = problem.costs
    # the mode with the shortest pass may be a slower one
    if type(costs) is not Roofline or costs.prefer != "rate":
        return None
    gpus = tuple(replace(g, node=g.node and "one", usd_per_hour=None) for g in problem.cluster.gpus)
    together = replace(problem, cluster=replace(problem.cluster, gpus=gpus))
    if number_of_mixtures(together) * len(runs_of(problem.model).layers) > _MOST_CELLS:
        return None
    rates = stage_rates(together, deadline)
    highest = Subproblems(rates, deadline=deadline).highest()
    return float(rates.thresholds[highest]) if highest >= 0 else None
