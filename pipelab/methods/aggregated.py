"""The aggregated form from problem to result: search for the best rate, one small program a question."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module

import numpy as np

from pipelab.errors import UnknownName, nearest
from pipelab.evaluate import evaluate
from pipelab.formulations.aggregated.counting import Counting
from pipelab.formulations.aggregated.layered import Layered
from pipelab.formulations.aggregated.rates import StageRates, stage_rates
from pipelab.formulations.aggregated.recipes import Recipes, recipes_at
from pipelab.formulations.aggregated.usage import Limits
from pipelab.infeasible import why_no_layer_fits
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.program import LinearProgram
from pipelab.result import Result, status_and_bound
from pipelab.solver_run import Progress, SolverRun

__all__ = ["Question", "Search", "solve_aggregated"]

# Probing fixes one variable after the other to learn from it; here that took nine tenths of SCIP's time.
_SETTINGS = {"scip": {"settings": {"propagating/probing/maxprerounds": 0}}, "highs": {}}
SOLVERS = tuple(_SETTINGS)
_WITH_LINKS = {1: "stages inside one class", None: "with links"}


def solve_aggregated(
    problem: Problem,
    *,
    solver: str = "scip",
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """The joint ILP's optimum by counting stages over classes of interchangeable GPUs.

    Among placements of equal throughput the answer is one with the fewest GPUs, then the
    fewest stages, then the lowest price per hour where every GPU has a price; and the same on
    every run.

    Parameters
    ----------
    solver : "scip" or "highs"
        Who answers the small programs.
    time_limit, gap, stop, on_progress
        As for `solve`. Ended early, the answer is the best placement so far, with the fastest
        rate that is not ruled out as its bound.

    Returns
    -------
    Result
        `details["questions"]` lists every small program asked; `details["fewest"]` says whether
        the choice among equally fast placements was finished too.

    Notes
    -----
    Exact: the throughput is one of finitely many rates (`StageRates.thresholds`). Whether a
    placement reaches a given rate is a small integer program over the recipes for stages that
    reach it; what reaches a rate reaches every lower one, so a search over the sorted rates
    ends at the best.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("demo", max_gpus_per_stage=3), "aggregated")
    >>> result.status, round(result.throughput, 4)
    ('optimal', 1046.5812)
    """
    if solver not in SOLVERS:
        raise UnknownName(f"there is no solver={solver!r}; {nearest(solver, SOLVERS)}")
    began = time.perf_counter()
    rates = stage_rates(problem)
    search = Search(rates, solver, began, time_limit, gap, stop, on_progress)
    search.find_best_rate()
    if search.best is not None and search.stopped is None:
        search.choose_among_equals()
    return search.result()


@dataclass(frozen=True)
class Question:
    """One small program: can this rate be reached?"""

    rate: float  # tokens/s
    asked: str  # "links aside", "stages inside one class", "with links", "fewest GPUs", "lowest price"
    answer: str  # "yes", "no", "not answered"
    variables: int
    rows: int
    seconds: float


@dataclass
class Search:
    """The state of one search; indices count `thresholds`, ascending.

    Attributes
    ----------
    low, high : int
        The best placement has the rate of index `low` (-1: none yet); none is above `high`.
    aside : int
        The highest rate known to be reached where links do not count.
    """

    rates: StageRates
    solver: str = "scip"
    began: float = 0.0
    time_limit: float | None = None
    gap: float = 0.0
    stop: threading.Event | None = None
    on_progress: Callable | None = None
    limits: Limits = field(default_factory=Limits)
    low: int = -1
    high: int = -1
    aside: int = -1
    best: Placement | None = None
    throughput: float | None = None
    stopped: str | None = None
    fewest: bool = False
    nodes: int = 0
    questions: list[Question] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    @property
    def thresholds(self) -> np.ndarray:
        """Every rate that a placement can have, ascending."""
        return self.rates.thresholds

    def find_best_rate(self) -> None:
        """Go down from the fastest rate that memory allows, in growing steps; then halve what is left."""
        problem = self.rates.problem
        holdable = self.rates.holdable(self.thresholds)
        self.high = int(np.flatnonzero(holdable >= problem.model.layers - 1e-6).max(initial=-1))
        step = 1
        ask = self.high
        while self.low < self.high and self.stopped is None:
            reached = self.reach(ask)
            if reached is None:
                break
            if not reached:
                self.high = ask - 1
            self._note()
            ask, step = max(self.high - step, (self.low + self.high + 1) // 2, 0), 2 * step
            if self.throughput and self.thresholds[self.high] <= self.throughput * (1 + self.gap):
                self.stopped = "gap limit" if self.low < self.high else None
                break

    def reach(self, index: int) -> bool | None:
        """Whether a placement of at least this rate exists; None where the answer was not waited for.

        Links aside first: that is quick, a "no" settles it, and what a "yes" finds is a placement
        too, if perhaps a slower one.
        """
        threshold = float(self.thresholds[index])
        placement = None
        if index > self.aside:
            placement = self._ask(recipes_at(self.rates, threshold, links=False), "links aside")
            if placement is None:
                return None if self.stopped else False
            self.aside = index
            self._keep_if_better(placement)
        for widest in (1, None):  # stages inside one class first, as the program is much smaller
            if self.low < index and not self.stopped:
                placement = self._ask(recipes_at(self.rates, threshold, widest=widest), _WITH_LINKS[widest])
                if placement is not None:
                    self._keep_if_better(placement)
        return None if self.stopped else self.low >= index

    def choose_among_equals(self) -> None:
        """At the best rate: fewest GPUs, then fewest stages, then the lowest price."""
        layers = self.rates.problem.model.layers
        chosen = self._least("fewest GPUs", {"gpus": -(layers + 1.0), "stages": -1.0})
        prices = self.limits.prices or whole_prices(self.rates)
        if chosen and prices is not None:
            self.limits = replace(self.limits, gpus=len(self.best.gpus), stages=len(self.best), prices=prices)
            chosen = self._least("lowest price", {"price": -1.0})
        self.fewest = chosen

    def _least(self, wanted: str, amounts: dict) -> bool:
        """Keep the placement of the best rate that uses least; whether that was finished.

        Without links, and with stages inside one class, the programs are small: where both use
        equally much, or the first respects the links anyway, nothing lies between them.
        """
        threshold, least = float(self.thresholds[self.low]), None
        for links, widest in ((False, None), (True, 1), (True, None)):
            found = recipes_at(self.rates, threshold, links=links, widest=widest)
            placement = self._ask(found, wanted, amounts)
            if self.stopped:
                return False
            if placement is None:
                continue
            used = self._used(placement, amounts)
            if self._index(placement) == self.low and (least is None or used <= least or widest is None):
                self._keep(placement)
                return True
            least = used if least is None else least
        return False

    def _used(self, placement: Placement, amounts: dict) -> float:
        """How much a placement uses of what is to be least."""
        rates = self.rates
        class_of = {int(g): a for a, members in enumerate(rates.classes.members) for g in members}
        price = sum(self.limits.prices[class_of[g]] for g in placement.gpus) if self.limits.prices else 0
        have = {"gpus": len(placement.gpus), "stages": len(placement), "price": price}
        return -sum(amount * have[name] for name, amount in amounts.items())

    def _ask(self, found: Recipes, asked: str, amounts: dict | None = None) -> Placement | None:
        """Answer one question; where the stages of the answer fall apart, ask for connected ones."""
        began = time.perf_counter()
        uniform = self.rates.problem.model.uniform
        form = Counting(found, self.limits) if uniform else Layered(found, self.limits)
        run, placement = self._solve(form, amounts)
        while run.x is not None and placement is None and not self._ended(run, amounts):  # only where links bind
            form = replace(form, strict=form.strict + 1)
            run, placement = self._solve(form, amounts)
        if self._ended(run, amounts) or (run.status == "stopped" and placement is None):
            self.stopped, placement = run.stopped_by, None
        answer = "yes" if placement else "no" if run.status == "infeasible" else "not answered"
        seconds = time.perf_counter() - began
        rows = sum(len(block) for block in form.blocks().values())
        self.questions.append(Question(found.threshold, asked, answer, form.columns.total, rows, seconds))
        return placement

    @staticmethod
    def _ended(run: SolverRun, amounts: dict | None) -> bool:
        """Whether time ran out before the question was settled; a placement found by then settles some."""
        return run.status == "stopped" and (run.x is None or bool(amounts))

    def _solve(self, form: Counting | Layered, amounts: dict | None) -> tuple[SolverRun, Placement | None]:
        """Run the program of a form, and read its answer back."""
        program = form.program(form.weights(**amounts) if amounts else None)
        if not program.columns.total:
            return SolverRun("infeasible", None, None, None, None, None, 0, 0.0, 0.0, ()), None
        run = self._run(program)
        return run, None if run.x is None else form.placement_of(run.x, self._run)

    def _run(self, program: LinearProgram) -> SolverRun:
        """Hand a program to the solver, with the time that is left."""
        left = None if self.time_limit is None else max(0.0, self.time_limit - (time.perf_counter() - self.began))
        solver = import_module(f"pipelab.{self.solver}")
        run = solver.run(program, time_limit=left, stop=self.stop, **_SETTINGS[self.solver])
        self.nodes += run.nodes
        return run

    def _keep(self, placement: Placement) -> None:
        self.best = placement
        self.throughput = evaluate(self.rates.problem, placement).throughput
        self.low = self._index(placement)

    def _keep_if_better(self, placement: Placement) -> None:
        if self._index(placement) > self.low:
            self._keep(placement)

    def _index(self, placement: Placement) -> int:
        """The last rate that is not above the placement's own."""
        own = evaluate(self.rates.problem, placement).throughput
        return int(np.searchsorted(self.thresholds, own * (1 + 1e-11), side="right")) - 1

    def _note(self) -> None:
        bound = float(self.thresholds[self.high]) if self.high >= 0 else None
        moment = Progress(time.perf_counter() - self.began, self.throughput, bound, self.nodes)
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)

    def result(self) -> Result:
        """What is known when the search has ended."""
        problem = self.rates.problem
        size = {
            "classes": len(self.rates.classes),
            "mixtures": len(self.rates.composition),
            "rates": len(self.thresholds),
            "questions": len(self.questions),
            "variables": max((q.variables for q in self.questions), default=0),
            "rows": max((q.rows for q in self.questions), default=0),
        }
        bound = float(self.thresholds[self.high]) if self.high >= 0 else None
        status, bound = status_and_bound(self.throughput, bound)
        reason = ""
        if self.high < 0:
            status, bound, reason = "infeasible", None, self._why_infeasible()
        details = {"questions": tuple(self.questions), "progress": tuple(self.progress), "nodes": self.nodes, "fewest": self.fewest, "rates": self.rates}
        return Result(
            problem, "aggregated", status, self.best, self.throughput, bound, time.perf_counter() - self.began, size,
            self._solver_name(), reason, self.stopped if status != "optimal" else None, details,
        )  # fmt: skip

    def _solver_name(self) -> str:
        return import_module(f"pipelab.{self.solver}").version() if self.questions else ""

    def _why_infeasible(self) -> str:
        problem = self.rates.problem
        if not len(self.thresholds):
            return why_no_layer_fits(problem)
        total, need = int(self.rates.holdable(self.thresholds[:1])[0] + 1e-9), problem.model.layers
        if total < need:
            return f"all GPUs together can hold at most {total} of the {need} layers"
        return f"no choice of stages covers all {need} layers with each GPU used once (proven by {self._solver_name()})"


def whole_prices(rates: StageRates) -> tuple[int, ...] | None:
    """Price of one GPU of each class in whole units of the finest price step; None where a price is missing."""
    prices = [rates.classes.gpu(a).usd_per_hour for a in range(len(rates.classes))]
    if None in prices:
        return None
    micro = np.array([round(p * 1_000_000) for p in prices])
    return tuple((micro // max(1, np.gcd.reduce(micro))).tolist())
