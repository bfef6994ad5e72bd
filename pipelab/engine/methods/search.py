"""The search for the best rate: one small program a question."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.formulations.aggregated.counting import Counting
from pipelab.engine.formulations.aggregated.layered import Layered
from pipelab.engine.formulations.aggregated.order import number_of_sets
from pipelab.engine.formulations.aggregated.rates import StageRates, index_of_rate
from pipelab.engine.formulations.aggregated.recipes import Recipes, recipes_at
from pipelab.engine.formulations.aggregated.usage import Limits, price_step
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.methods.prices import whole_prices
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.engine.solvers.subproblem import Question
from pipelab.engine.tolerances import SOLVER
from pipelab.errors import PipelabError
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement

__all__ = ["Search"]

_READ_BACK_SECONDS = 10.0  # for what turns counts into GPUs
_LATE_SECONDS = 0.2  # the same after the end
_STAND_IN_SECONDS = 0.3  # after the end, if there is no placement yet
_MANY_SUPPORTS = 64  # sets of classes from which it pays to ask about single classes first
# What is to be least among equally fast placements: first this, then that. Price comes last unless
# it is asked for.
PREFERENCES = {"gpus": ("gpus", "price"), "price": ("price", "gpus")}


@dataclass
class Search:
    """The state of one search; indices count `thresholds`, ascending.

    Attributes
    ----------
    low, high : int
        The best placement has the rate of index `low` (-1: none yet); none is above `high`.
    limits : Limits
        What a placement may use at most.
    prefer : "gpus" or "price"
        What is least among equally fast placements.
    cap : int or None
        An index above which nothing is to be found.
    narrowed : bool
        Some question was left open because its mixtures were too many to list.
    aside : int
        The highest rate known to be reached where links do not count.
    share : float
        Of the time that is left, for one question.
    """

    rates: StageRates
    solver: str = "scip"
    deadline: Deadline = NEVER
    gap: float = 0.0
    on_progress: Callable | None = None
    limits: Limits = field(default_factory=Limits)
    prefer: str = "gpus"
    cap: int | None = None
    low: int = -1
    high: int = -1
    aside: int = -1
    best: Placement | None = None
    throughput: float | None = None
    stopped: str | None = None
    fewest: bool = False
    narrowed: bool = False
    nodes: int = 0
    questions: list[Question] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    share: float = 1 / 3
    _known: dict[Placement, float] = field(default_factory=dict)
    _size: dict[str, int] = field(default_factory=dict)  # of the last program
    _narrowed: bool = False  # whether the last question left out sets of classes

    @property
    def thresholds(self) -> np.ndarray:
        """Every rate that a placement can have, ascending."""
        return self.rates.thresholds

    def run(self) -> "Search":
        """Find the best rate; then, if nothing ended the search, choose among equally fast placements."""
        self.find_best_rate()
        if self.best is None and self.stopped is not None and self.high >= 0:
            self._stand_in()
        if self.best is not None and self.stopped is None:
            self.choose_among_equals()
        return self

    def highest(self) -> int:
        """Above this index nothing is to be found; -1 where nothing is at all."""
        low, high = -1, len(self.thresholds) - 1
        high = high if self.cap is None else min(high, self.cap)
        while low < high:  # what can be held at a rate can be held at every lower one
            middle = (low + high + 1) // 2
            holdable = self.rates.holdable(self.thresholds[middle : middle + 1])[0]
            low, high = (
                (middle, high)
                if holdable >= self.rates.problem.model.layers - SOLVER
                else (low, middle - 1)
            )
        return low

    def find_best_rate(self) -> None:
        """Go down from the fastest rate that memory allows, in growing steps; then halve what is left."""
        self.high = self.highest()
        ask, step, open_above = self.high, 1, self.high
        while self.low < open_above and self.stopped is None:
            reached = self.reach(ask)
            # before others take all the time: at the lowest rate all goes
            if reached is None and self.best is None:
                self._try("links aside", 0, links=False)
            if self.low < ask:
                open_above = ask - 1
                if reached is False:
                    self.high = ask - 1
            self._note()
            ask, step = max(open_above - step, (self.low + open_above + 1) // 2, 0), 2 * step
            near = self.throughput and self.thresholds[self.high] <= self.throughput * (
                1 + self.gap
            )
            if self.stopped is None and near and self.low < self.high:
                self.stopped = "gap limit"
        if self.stopped is None and self.low < self.high:
            self.stopped = "list limit" if self.narrowed else "time limit"

    def reach(self, index: int) -> bool | None:
        """Whether a placement of at least this rate exists; None where that was not settled.

        Easy questions first. Links aside, and links for one GPU of every stage: a "no" is final.
        Stages inside one class: a "yes" is final. Then all stages, unless there are too many to
        list. Placements found on the way are kept, even if they are slower.
        """
        if index > self.aside:
            if self._try("links aside", index, links=False) is False:
                return False
            if self.questions[-1].answer == "yes":
                self.aside = index
        if self.low >= index:
            return True
        narrow, loose = self._narrow(index)
        if loose:
            if self._try("stages inside one class", index, widest=1):
                return True
            if self._try("links for one GPU", index, only_no=True, loose=True) is False:
                return False
        answer = self._try("with links", index, widest=1 if narrow else None)
        if answer is False and self._narrowed:
            self.narrowed = True
            return None
        return answer

    def _narrow(self, index: int) -> tuple[bool, bool]:
        """Whether links do not bind at a rate, so that sets of classes need not be listed; and if, whether many."""
        try:
            with_one = recipes_at(
                self.rates, float(self.thresholds[index]), widest=1, deadline=self.deadline
            )
        except Ended as end:
            self.stopped = end.reason
            return True, False
        return with_one.order.free, _many_sets(with_one)

    def _try(self, asked: str, index: int, only_no: bool = False, **options: Any) -> bool | None:
        """Ask one question: True if its placement reaches the rate, False if there is none, else None."""
        if self.stopped or self.low >= index:
            return True if self.low >= index else None
        answer, placement = self._ask(index, asked, only_no=only_no, **options)
        if placement is not None and self.index_of(placement) > self.low:
            self.keep(placement)
        if self.low >= index:
            return True
        return False if answer == "no" else None

    def _stand_in(self) -> None:
        """Stopped without a placement: spend up to 0.3 s more to find any that fits."""
        late = replace(self, deadline=Deadline(_STAND_IN_SECONDS), stopped=None, share=1.0)
        late._try("links aside, after the end", 0, links=False)
        if late.best is not None:
            self.keep(late.best)
            self._note()

    def choose_among_equals(self) -> None:
        """At the best rate: fewest GPUs, then fewest stages, then the lowest price (or price first)."""
        prices = self.limits.prices or whole_prices(self.rates)
        self.limits = replace(self.limits, prices=prices)
        for wanted in PREFERENCES[self.prefer]:
            if wanted == "price" and prices is None:
                if any(kind.usd_per_hour is not None for kind in self.rates.problem.cluster.kinds):
                    return  # some prices are missing or too fine: that choice is left open
                continue
            placement, settled = self.least(wanted, self.low)
            if placement is not None:
                self.keep(placement)
            if placement is None or not settled or self.stopped is not None:
                return
            if wanted == "price":
                self.limits = replace(self.limits, price=self.used("price"))
            else:
                self.limits = replace(
                    self.limits, gpus=self.used("gpus"), stages=self.used("stages")
                )
        self.fewest = True

    def least(self, wanted: str, index: int) -> tuple[Placement | None, bool]:
        """The placement of at least this rate that uses least of "gpus" or "price"; and whether that was settled.

        Solvers find the least price to within 1e-6. Where a unit is finer, that a unit less is too
        little is asked.
        """
        placement, settled = self._least(wanted, index)
        limits, closer = self.limits, placement
        while (
            closer is not None
            and settled
            and wanted == "price"
            and price_step(self.rates, limits.prices) > 1
        ):
            self.limits = replace(limits, price=self.used("price", closer) - 1)
            placement, (closer, settled) = closer, self._least(wanted, index)
        self.limits = limits
        return placement, settled

    def _least(self, wanted: str, index: int) -> tuple[Placement | None, bool]:
        """The same within a solver's tolerance.

        Without links, and with stages inside one class, the programs are small: where both use
        equally much, or the first respects the links anyway, nothing lies between them. None and
        settled: there is no such placement.
        """
        layers = self.rates.problem.model.layers
        amounts = (
            {"price": -1.0} if wanted == "price" else {"gpus": -(layers + 1.0), "stages": -1.0}
        )
        narrow, many = self._narrow(index)
        every: list[dict[str, Any]] = [{"links": False}, {"widest": 1}, {}]
        steps, least = every[1:2] if narrow else every if many else every[::2], None
        for step in steps:
            answer, placement = self._ask(index, f"least {wanted}", amounts, **step)
            last = step is steps[-1]
            if answer == "not answered":
                return None, False
            if placement is None:
                if answer == "no" and (last or not step.get("links", True)):
                    return None, self._of_all_sets()
                continue
            used = -sum(amount * self.used(name, placement) for name, amount in amounts.items())
            if self.index_of(placement) >= index and (least is None or used <= least or last):
                return placement, least is None or used <= least or self._of_all_sets()
            least = used if least is None else least
        return None, False

    def _of_all_sets(self) -> bool:
        """Whether the last answer is for all sets of classes; if not, its question stays open, which is noted."""
        self.narrowed = self.narrowed or self._narrowed
        return not self._narrowed

    def used(self, what: str, placement: Placement | None = None) -> int:
        """How much a placement (the best one by default) uses: "gpus", "stages" or "price" in whole units."""
        placement = given(placement or self.best)
        if what == "price":
            return sum(given(self.limits.prices)[self.rates.classes.of[g]] for g in placement.gpus)
        return len(placement.gpus) if what == "gpus" else len(placement)

    def _ask(
        self,
        index: int,
        asked: str,
        amounts: dict | None = None,
        only_no: bool = False,
        **options: Any,
    ) -> tuple[str, Placement | None]:
        """Answer one question; where time is limited, listing, building and solving have a third of what is left.

        A question too hard for that stays open, and easier ones lower down still find a placement.
        `only_no`: nothing but a "no" is wanted, so stages that fall apart are left as they are.
        """
        began, limit = time.perf_counter(), self.deadline
        part = limit.within(limit.left * self.share)
        self._size, self._narrowed = {"variables": 0, "rows": 0}, False
        answer, placement = "not answered", None
        try:
            part.check()
            found = recipes_at(self.rates, float(self.thresholds[index]), deadline=part, **options)
            self._narrowed = found.order.narrowed
            answer, placement = self._answered(self._form(found), amounts, only_no, part)
        except Ended:
            pass  # the time of this question, or of all
        self._check_limits(placement)
        size, seconds = self._size, time.perf_counter() - began
        threshold = float(self.thresholds[index])
        self.questions.append(
            Question(threshold, asked, answer, size["variables"], size["rows"], seconds)
        )
        self.stopped = self.stopped or limit.reason
        return answer, placement

    def _answered(
        self, form: Counting | Layered, amounts: dict | None, only_no: bool, part: Deadline
    ) -> tuple[str, Placement | None]:
        """One question to the solver; where the stages of the answer fall apart, connected ones are asked for."""
        run, placement = self._solve(form, amounts, part)
        apart = run.x is not None and placement is None  # only where links bind
        while apart and not only_no and not self._ended(run, amounts):
            part.check()
            if isinstance(form, Layered) or form.strict == 2:
                raise PipelabError("a solver returned stages that make no pipeline")
            form = replace(form, strict=form.strict + 1)
            run, placement = self._solve(form, amounts, part)
            apart = run.x is not None and placement is None
        if self._ended(run, amounts) or (
            run.status == "stopped" and placement is None and not apart
        ):
            placement, apart = None, False
            if run.stopped_by not in ("time limit", "stop", "interrupt"):
                self.stopped = run.stopped_by
        return (
            "yes" if placement or apart else "no" if run.status == "infeasible" else "not answered",
            placement,
        )

    def _form(self, found: Recipes) -> Counting | Layered:
        alike = runs_of(self.rates.problem.model).alike_inside
        return Counting(found, self.limits) if alike else Layered(found, self.limits)

    def _check_limits(self, placement: Placement | None) -> None:
        """Solvers keep rows within a tolerance; what a placement uses is counted exactly."""
        for what in ("gpus", "stages", "price") if placement else ():
            most = getattr(self.limits, what)
            if most is not None and self.used(what, placement) > most:
                raise PipelabError(
                    f"a solver returned {self.used(what, placement)} {what} where {most} are allowed"
                )

    @staticmethod
    def _ended(run: SolverRun, amounts: dict | None) -> bool:
        """Whether time ran out before the question was settled; a placement found by then settles some."""
        return run.status == "stopped" and (run.x is None or bool(amounts))

    def _solve(
        self, form: Counting | Layered, amounts: dict | None, part: Deadline
    ) -> tuple[SolverRun, Placement | None]:
        """Run the program of a form, and read its answer back."""
        program = form.program(form.usage.weights(form.columns, **amounts) if amounts else None)
        self._size = program.size
        if not program.columns.total:
            return SolverRun("infeasible", None, None, None, None, None, 0, 0.0, 0.0, ()), None
        run = run_program(self.solver, program, deadline=part)
        self.nodes += run.nodes
        return run, None if run.x is None else form.placement_of(run.x, self._read_back)

    def _read_back(self, program: LinearProgram) -> SolverRun:
        """The same for what turns counts into GPUs: a stop or a time limit must not lose what was found."""
        run = run_program(self.solver, program, deadline=self.deadline.within(_READ_BACK_SECONDS))
        if run.x is None and run.status == "stopped" and self.deadline.reason is not None:
            return run_program(self.solver, program, deadline=Deadline(_LATE_SECONDS))
        return run

    def keep(self, placement: Placement) -> None:
        """Take a placement for the best, whoever found it."""
        self.best = placement
        self.throughput = self._judged(placement)
        self.low = self.index_of(placement)

    def _judged(self, placement: Placement) -> float:
        """The placement's throughput, asked of the judge once."""
        if placement not in self._known:
            self._known[placement] = evaluate(self.rates.problem, placement).throughput
        return self._known[placement]

    def index_of(self, placement: Placement) -> int:
        """The last rate that is not above the placement's own."""
        return index_of_rate(self.thresholds, self._judged(placement))

    def _note(self) -> None:
        bound = float(self.thresholds[self.high]) if self.high >= 0 else None
        moment = Progress(self.deadline.spent, self.throughput, bound, self.nodes, self.best)
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)


def _many_sets(single: Recipes) -> bool:
    """Whether stages may use so many sets of classes that it pays to ask about single classes first."""
    classes, largest = int(single.order.follows[0].sum()), single.rates.largest
    return not single.order.free and number_of_sets(classes, largest) > _MANY_SUPPORTS
