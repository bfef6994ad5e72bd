"""The small programs of one search: each is listed, built, solved, read back, checked and logged.

All of them ask for a placement of at least a given rate, but not all about every stage and link:

    variant            compared with the problem                      what it settles
    WITHOUT_LINKS      relaxed: every link is fast enough             "no" holds for the problem
    ONE_GPU_LINKS      relaxed: links count for one GPU per stage     "no" holds for the problem
    ONE_CLASS_STAGES   restricted: no stage mixes classes             "yes" holds for the problem
    EXACT              the problem itself                             both
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.formulations.aggregated.counting import Counting
from pipelab.engine.formulations.aggregated.layered import Layered
from pipelab.engine.formulations.aggregated.order import number_of_sets
from pipelab.engine.formulations.aggregated.rates import StageRates, index_of_rate
from pipelab.engine.formulations.aggregated.recipes import recipes_at
from pipelab.engine.formulations.aggregated.usage import Limits
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.engine.tolerances import SOLVER
from pipelab.errors import PipelabError
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement

_READ_BACK_SECONDS = 10.0  # for the program that turns counts into GPUs
_LATE_SECONDS = 0.2  # for the same program after the end
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
    loose : bool
        Links count for one GPU of every stage only.
    """

    name: str
    links: bool = True
    widest: int | None = None
    loose: bool = False


WITHOUT_LINKS = Variant("links ignored", links=False)
ONE_GPU_LINKS = Variant("links of one GPU per stage", loose=True)
ONE_CLASS_STAGES = Variant("stages of one class", widest=1)
EXACT = Variant("with links")


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
        Of a relaxed variant it may be slower than the rate. None with a "yes": the stages that were
        found make no pipeline, and only a "no" would have been of use.
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
                if not single.order.free:
                    classes = int(single.order.follows[0].sum())
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

    def used(self, what: str, placement: Placement) -> int:
        """How much a placement uses: "gpus", "stages", or "price" in whole units."""
        if what == "price":
            return sum(given(self.limits.prices)[self.rates.classes.of[g]] for g in placement.gpus)
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
        """List the recipes, build the program and solve it."""
        found = recipes_at(
            view, self.rate(index), variant.links, variant.widest, variant.loose, until
        )
        limits = replace(self.limits, prices=view.of_classes(self.limits.prices))
        if view.one_stage:
            limits = replace(limits, stages=min(1, 1 if limits.stages is None else limits.stages))
        form: Counting | Layered
        if runs_of(self.rates.problem.model).alike_inside:
            form = Counting(found, limits)
        else:
            form = Layered(found, limits)
        run, placement = self._run(form, minimise, until, size)
        while run.x is not None and placement is None:  # the stages make no pipeline
            if variant.loose or _unsettled(run, minimise):
                break
            until.check()
            form = _stricter(form)
            run, placement = self._run(form, minimise, until, size)
        return replace(self._answer(run, placement, minimise), all_sets=not found.order.narrowed)

    def _run(
        self,
        form: Counting | Layered,
        minimise: Mapping[str, float] | None,
        until: Deadline,
        size: dict[str, int],
    ) -> tuple[SolverRun, Placement | None]:
        """Solve the program of a form; no placement if its stages cannot be joined to a pipeline."""
        objective = None
        if minimise:  # programs maximise
            negated = {what: -weight for what, weight in minimise.items()}
            objective = form.usage.weights(form.columns, **negated)
        program = form.program(objective)
        size |= {name: program.size[name] for name in size}
        if not program.columns.total:
            return SolverRun("infeasible", None, None, None, None, None, 0, 0.0, 0.0, ()), None
        run = run_program(program, deadline=until)
        self.nodes += run.nodes
        return run, None if run.x is None else form.placement_of(run.x, self._read_back)

    def _answer(
        self, run: SolverRun, placement: Placement | None, minimise: Mapping[str, float] | None
    ) -> Answer:
        """What the last run says; a limit other than time's ends the whole search."""
        if _unsettled(run, minimise):
            if run.stopped_by not in ("time limit", "stop", "interrupt"):
                self.stopped = run.stopped_by
            return Answer("not answered", None)
        if run.x is not None:
            return Answer("yes", placement)
        return Answer("no" if run.status == "infeasible" else "not answered", None)

    def _read_back(self, program: LinearProgram) -> SolverRun:
        """Turn counts into GPUs, even after the end: a placement that was found must not be lost."""
        run = run_program(program, deadline=self.deadline.within(_READ_BACK_SECONDS))
        if run.x is None and run.status == "stopped" and self.deadline.reason is not None:
            return run_program(program, deadline=Deadline(_LATE_SECONDS))
        return run

    def _check_limits(self, placement: Placement | None) -> None:
        """Count exactly what a placement uses: solvers keep rows within a tolerance only."""
        if placement is None:
            return
        for what in ("gpus", "stages", "price"):
            most = getattr(self.limits, what)
            if most is not None and self.used(what, placement) > most:
                raise PipelabError(
                    f"a solver returned {self.used(what, placement)} {what} where {most} are allowed"
                )


def _unsettled(run: SolverRun, minimise: Mapping[str, float] | None) -> bool:
    """Whether the solver was stopped too early: before the minimum is proven, or before it has any answer."""
    return run.status == "stopped" and (run.x is None or bool(minimise))


def _stricter(form: Counting | Layered) -> Counting:
    """The same form with stricter rows for the order of stages."""
    if isinstance(form, Layered) or form.strict == 2:
        raise PipelabError("a solver returned stages that make no pipeline")
    return replace(form, strict=form.strict + 1)
