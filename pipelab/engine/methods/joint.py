"""The joint ILP from problem to result: list, build, solve, read back, prove."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from pipelab.engine.deadline import Deadline, Ended, deadline_of, made_in_time, waited_for
from pipelab.engine.formulations import joint
from pipelab.engine.formulations.candidates import Candidates, all_candidates, stage_rates
from pipelab.engine.formulations.forms import joint_form
from pipelab.engine.infeasible import why_no_layer_fits, why_not_all_layers_fit
from pipelab.engine.methods.aggregated import unlisted
from pipelab.engine.methods.exact_proof import (
    bound_after,
    chosen_rows,
    out_of_reach,
    refuse_out_of_reach,
    settle,
    settled_without_rates,
)
from pipelab.engine.methods.joint_model import build_joint, joint_size, refuse_if_joint_too_large
from pipelab.engine.objective import status_and_bound
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import NOT_SOLVED, SOLVER
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

if TYPE_CHECKING:
    from pipelab.engine.solvers.solver_run import SolverRun

_LATE_SECONDS = 0.4  # for listing candidates after the end: mostly it takes a moment
# Probing fixes one link variable after the other and learns nothing from it: on small it took
# 39 of 44 s. The written form keeps SCIP's defaults, as the baseline that its author would run.
_SETTINGS = {"written": {}, "tight": {"propagating/probing/maxprerounds": 0}}


def solve_joint(
    problem: Problem,
    *,
    form: str = "written",
    big_m: str = "valid",
    time_limit: float | None = None,
    gap: float = 0.0,
    memory_limit_gb: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """Solve the joint ILP with SCIP; see `pipelab.solving` for what all methods share.

    Parameters
    ----------
    form : "written" or "tight"
        The write-up's constraints, or the equivalent form with the better bound.
    big_m : "valid" or "as_written"
        "as_written" uses the M for links of the author's code, which can cut off the best
        placements; where it may, what SCIP proved about that model is set aside, and only the
        fastest stage bounds the result. Only for form="written".
    memory_limit_gb : float, optional
        Refuse to build what is estimated to need more; by default what is free now.

    Notes
    -----
    SCIP works with a relative tolerance of 1e-6. The answer is any of finitely many stage and link
    rates, so the bound is rounded down to the next of them. A result is "optimal" only once a program
    without rates, so without any tolerance (`exact_proof`), has found nothing faster. Where rates are
    beyond what that tolerance carries (the fastest stage is more than 10^6 times as fast as the
    slowest stage or link, say), such programs alone find the best placement, and the reason says
    so.
    """
    joint_form(form, big_m)
    with deadline_of(time_limit, stop) as deadline:
        size: dict[str, int] = {}
        try:
            size = made_in_time(
                lambda until: waited_for(lambda: joint_size(problem, form), until),
                deadline,
                _LATE_SECONDS,
            )
            if not size["allocations"]:
                return _infeasible(problem, why_no_layer_fits(problem), size, deadline)
            refuse_if_joint_too_large(problem, form, size, memory_limit_gb)
            candidates = made_in_time(
                lambda until: waited_for(lambda: all_candidates(problem, until), until),
                deadline,
                _LATE_SECONDS,
            )
        except Ended as end:
            return unlisted(
                problem, "joint", size, deadline, end, "its allocations and connections"
            )
        return _Listed(candidates, form, big_m, size, deadline).solve(gap, on_progress)


@dataclass(frozen=True, eq=False)
class _Listed:
    """A problem whose candidates are listed; from here on there is always something to return."""

    candidates: Candidates
    form: str
    big_m: str
    size: dict[str, int]
    deadline: Deadline

    @property
    def problem(self) -> Problem:
        return self.candidates.problem

    @cached_property
    def valid(self) -> bool:
        """Whether the M cuts off no placement."""
        return joint.big_m_is_valid(self.candidates, self.big_m)

    @cached_property
    def clash(self) -> str:
        """The two rates too far apart for SCIP's tolerance, in words; empty if it can carry all rates."""
        return out_of_reach(self.candidates)

    def solve(self, gap: float, on_progress: Callable | None) -> Result:
        """Build the program, run SCIP, and prove what it found."""
        if self.clash and self.big_m == "valid":
            return self._without_rates(gap)
        refuse_out_of_reach(self.candidates, "joint, big_m='as_written'")
        try:
            program = waited_for(
                lambda: build_joint(self.candidates, self.form, self.big_m), self.deadline
            )
        except Ended as end:
            return self._unbuilt(end)
        built = self.deadline.spent
        chosen = program.columns.slices["z"]
        run = run_program(
            program, solver="scip", gap=gap, deadline=self.deadline, on_progress=on_progress,
            settings=_SETTINGS[self.form],
            reading=(chosen, lambda z: self.candidates.placement(np.flatnonzero(z > 0.5))),
        )  # fmt: skip
        if run.status == "infeasible":  # whatever M is: t = 0 keeps every row that has one
            return self._no_placement()
        known = self._known_after(run, chosen)
        return self._result(run, self._proven(run, known), built)

    def _known_after(self, run: "SolverRun", chosen: slice) -> "_Known":
        """The faster of SCIP's placement and a simple one, and SCIP's bound if it can be trusted.

        If M is too small, SCIP's placement is shown even if it is the slower one.
        """
        placement, reason = simple_placement(self.candidates), ""
        throughput = evaluate(self.problem, placement).rate if placement else None
        if run.x is not None:
            found = self.candidates.placement(chosen_rows(run.x[chosen]))
            rate = evaluate(self.problem, found).rate
            if rate < given(run.objective) * (1 - NOT_SOLVED):
                reason = f"SCIP's tolerance is too coarse for rates so far apart: it predicted {run.objective:,.7g}"
            if not self.valid or throughput is None or rate >= throughput:
                placement, throughput = found, rate
        bound = run.bound if self.valid and not self.clash else None
        if bound is not None and throughput is not None and bound < throughput * (1 - SOLVER):
            bound = None  # the placement refutes it
        status, bound = status_and_bound(throughput, self.candidates.rate_at_most(bound))
        if not self.valid:
            reason = _not_trusted(run)
        return _Known(placement, throughput, status, bound, run.stopped_by, reason)

    def _proven(self, run: "SolverRun", known: "_Known") -> "_Known":
        """The same after a proof without tolerance, where SCIP is at its end.

        Within SCIP's tolerance nothing is faster. A program without rates decides whether anything is.
        """
        if not self.valid or known.placement is None or "optimal" not in (known.status, run.status):
            return known
        before, claimed = given(known.throughput), given(known.bound)
        settled = settle(self.candidates, known.placement, self.deadline)
        bound = bound_after(settled, self.candidates, before, claimed)
        status, proven = status_and_bound(given(settled.throughput), bound)
        reason = "" if status == "optimal" else known.reason
        return _Known(
            settled.placement, settled.throughput, status, proven, settled.stopped_by, reason
        )

    def _result(self, run: "SolverRun", known: "_Known", built: float) -> Result:
        last = self._moment(known, built, run.nodes)
        details = {
            "build_seconds": built + run.build_seconds,
            "solve_seconds": run.solve_seconds,
            "nodes": run.nodes,
            "root_bound": run.root_bound,
            "progress": (*run.progress, last),
            "solver_status": run.status,
            "solver_objective": run.objective,
        }
        return self._result_of(known, details, _scip().version())

    def _result_of(self, known: "_Known", details: dict, solver: str) -> Result:
        return Result(
            self.problem, "joint", known.status, known.placement, known.throughput, known.bound,
            self.deadline.spent, self.size, solver, self.deadline.remark(known.reason),
            None if known.status == "optimal" else known.stopped_by, details,
        )  # fmt: skip

    def _moment(self, known: "_Known", built: float, nodes: int) -> Progress:
        spent = self.deadline.spent - built
        return Progress(spent, known.throughput, known.bound, nodes, known.placement)

    def _unbuilt(self, end: Ended) -> Result:
        """What is known if not even the program was finished."""
        placement = simple_placement(self.candidates)
        throughput = evaluate(self.problem, placement).rate if placement else None
        status, bound = status_and_bound(throughput, self.candidates.rate_at_most(None))
        reason = "the program was still being built"
        known = _Known(placement, throughput, status, bound, end.reason, reason)
        return self._result_of(known, {"progress": (), "solver_status": "stopped"}, "")

    def _without_rates(self, gap: float) -> Result:
        """Solve by feasibility problems alone: SCIP's tolerance cannot carry rates so far apart."""
        built = self.deadline.spent
        simple = simple_placement(self.candidates)
        settled = settle(self.candidates, simple, self.deadline, gap=gap)
        if settled.placement is None and settled.stopped_by is None:
            return self._no_placement()
        status, bound = status_and_bound(settled.throughput, settled.bound)
        reason = settled_without_rates(settled, self.clash)
        known = _Known(
            settled.placement, settled.throughput, status, bound, settled.stopped_by, reason
        )
        last = self._moment(known, built, 0)
        details = {
            "build_seconds": built,
            "solve_seconds": self.deadline.spent - built,
            "nodes": 0,
            "root_bound": None,
            "progress": (last,),
            "solver_status": status,
            "solver_objective": None,
        }
        return self._result_of(known, details, _scip().version())

    def _no_placement(self) -> Result:
        _, fits = stage_rates(self.problem, self.candidates.sets)
        version = _scip().version()
        reason = why_not_all_layers_fit(self.problem, self.candidates.sets, fits, version)
        return _infeasible(self.problem, reason, self.size, self.deadline, version)


@dataclass(frozen=True)
class _Known:
    """The best placement so far and its bound, with what ended the work and a remark."""

    placement: Placement | None
    throughput: float | None
    status: str
    bound: float | None
    stopped_by: str | None
    reason: str


def _scip() -> ModuleType:
    """The solver, imported when it is first used: PySCIPOpt takes its time."""
    from pipelab.engine.solvers import scip

    return scip


def _infeasible(
    problem: Problem, reason: str, size: dict[str, int], deadline: Deadline, solver: str = ""
) -> Result:
    return Result(
        problem, "joint", "infeasible", None, None, None, deadline.spent, size, solver, reason
    )


def simple_placement(candidates: Candidates) -> Placement | None:
    """A placement made greedily, to fall back on when SCIP is stopped early; None if greed runs out of GPUs.

    From the first layer on, always the longest allocation that fits, and the fastest of those. If
    that runs out of GPUs, once more with the fewest GPUs for as many layers.
    """
    size, rate = candidates.size, candidates.throughput
    gpus = candidates.membership.sum(axis=1)[candidates.set_of]
    chosen = _greedy(candidates, (size, rate)) or _greedy(candidates, (size, -gpus, rate))
    return None if chosen is None else candidates.placement(np.array(chosen))


def _greedy(candidates: Candidates, keys: tuple[np.ndarray, ...]) -> list[int] | None:
    """Allocations one after the other, each the greatest by `keys` among those that are still possible."""
    best_first = np.lexsort([-key for key in reversed(keys)])  # the last key counts most
    chosen: list[int] = []
    used = np.zeros(candidates.gpus, dtype=bool)
    layer = 0
    while layer < candidates.layers:
        free = np.logical_not(
            np.any(candidates.membership[:, used], axis=1)
        )  # sets without a used GPU
        starts_here = candidates.start[best_first] == layer
        possible = best_first[starts_here & free[candidates.set_of[best_first]]]
        if not len(possible):
            return None
        chosen.append(int(possible[0]))
        used |= candidates.membership[candidates.set_of[possible[0]]]
        layer = int(candidates.stop[possible[0]])
    return chosen


def _not_trusted(run: "SolverRun") -> str:
    claim = (
        f"SCIP calls {run.objective:,.7g} {run.status} for this model"
        if run.objective
        else "SCIP finds nothing"
    )
    source = "The M for links, taken from the code of the write-up's author, is too small here"
    return f"{source}: {claim}. That is set aside; the fastest stage is the bound"
