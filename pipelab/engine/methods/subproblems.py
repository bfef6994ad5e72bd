"""The small programs of one search: each is listed, built, solved, read back, checked and logged.

All of them ask for a placement of at least a given rate, but not all about every stage and link:

    variant            compared with the problem                      what it settles
    WITHOUT_LINKS      relaxed: every link is fast enough             "no" holds for the problem
    ONE_CLASS_STAGES   restricted: no stage mixes classes             "yes" holds for the problem
    EXACT              the problem itself                             both
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.formulations.aggregated.classes import Classes
from pipelab.engine.formulations.aggregated.rates import StageRates, index_of_rate
from pipelab.engine.formulations.aggregated.recipes import recipes_at
from pipelab.engine.methods.prices import price_per_hour, prices_of
from pipelab.engine.stages import number_of_sets
from pipelab.engine.tolerances import NOT_SOLVED, SOLVER
from pipelab.engine.walk import Found, Limit, Walk, Weight
from pipelab.errors import PipelabError, TooLarge
from pipelab.evaluation import evaluate
from pipelab.placement import Placement

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
