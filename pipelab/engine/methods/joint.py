"""The joint ILP from problem to result: list, build, solve, read back, prove."""

import threading
from collections.abc import Callable
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
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import NOT_SOLVED, SOLVER
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

if TYPE_CHECKING:
    from pipelab.engine.solvers.linear_program import LinearProgram
    from pipelab.engine.solvers.solver_run import SolverRun

__all__ = ["simple_placement", "solve_joint"]

_LATE_SECONDS = 0.4  # for listing candidates after the end: mostly they are there at once
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
    scip_settings: dict | None = None,
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
    scip_settings : dict, optional
        SCIP parameters by name.

    Notes
    -----
    SCIP works with a relative tolerance of 1e-6. The answer is any of finitely many stage and link
    rates, so the bound is rounded down to the next of them. "Optimal" is said only once a program
    without rates, so without any tolerance (`settle.py`), has found nothing faster. Where rates are
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
                lambda until: _listed(problem, until), deadline, _LATE_SECONDS
            )
        except Ended as end:
            return unlisted(
                problem, "joint", size, deadline, end, "its allocations and connections"
            )
        return _solve(
            candidates, form, big_m, size, gap, scip_settings or {}, on_progress, deadline
        )


def _solve(
    candidates: Candidates,
    form: str,
    big_m: str,
    size: dict[str, int],
    gap: float,
    scip_settings: dict,
    on_progress: Callable | None,
    deadline: Deadline,
) -> Result:
    """The same where the candidates are listed."""
    from pipelab.engine.solvers import scip

    problem = candidates.problem
    clash = out_of_reach(candidates)
    if clash and big_m == "valid":
        return _without_scips_tolerance(candidates, size, clash, gap, deadline)
    refuse_out_of_reach(candidates, "joint, big_m='as_written'")
    try:
        program = waited_for(lambda: build_joint(candidates, form, big_m), deadline)
    except Ended as end:
        return _unbuilt(candidates, size, end, deadline)
    built = deadline.spent
    run = scip.run(
        program, gap=gap, deadline=deadline, on_progress=on_progress, settings=_SETTINGS[form] | scip_settings,
        reading=(program.columns.slices["z"], lambda z: candidates.placement(np.flatnonzero(z > 0.5))),
    )  # fmt: skip
    if run.status == "infeasible":  # whatever M is: t = 0 keeps every row that has one
        return _infeasible(problem, _why_not_all_fit(candidates), size, deadline, scip.version())
    return _read(candidates, program, run, size, big_m, not clash, built, deadline)


def _listed(problem: Problem, deadline: Deadline) -> Candidates:
    return waited_for(lambda: all_candidates(problem, deadline), deadline)


def _unbuilt(
    candidates: Candidates, size: dict[str, int], end: Ended, deadline: Deadline
) -> Result:
    """What is known where not even the program was finished."""
    placement = simple_placement(candidates)
    throughput = None if placement is None else evaluate(candidates.problem, placement).throughput
    status, bound = status_and_bound(throughput, candidates.rate_at_most(None))
    reason = "the program was still being built"
    return Result(
        candidates.problem, "joint", status, placement, throughput, bound, deadline.spent, size, "", reason,
        end.reason if status != "optimal" else None, {"progress": (), "solver_status": "stopped"},
    )  # fmt: skip


def _why_not_all_fit(candidates: Candidates) -> str:
    from pipelab.engine.solvers import scip

    _, fits = stage_rates(candidates.problem, candidates.sets)
    return why_not_all_layers_fit(candidates.problem, candidates.sets, fits, scip.version())


def _infeasible(
    problem: Problem, reason: str, size: dict[str, int], deadline: Deadline, solver: str = ""
) -> Result:
    return Result(
        problem, "joint", "infeasible", None, None, None, deadline.spent, size, solver, reason
    )


def _read(
    candidates: Candidates,
    program: "LinearProgram",
    run: "SolverRun",
    size: dict[str, int],
    big_m: str,
    close: bool,
    built: float,
    deadline: Deadline,
) -> Result:
    """From SCIP's columns back to stages on GPUs, rated by `evaluate`, and proven by `settle`.

    `close`: rates are close enough for SCIP's bound to be believed until then.
    """
    from pipelab.engine.solvers import scip

    problem, valid = candidates.problem, joint.big_m_is_valid(candidates, big_m)
    placement, throughput, reason = _better(candidates, program, run, valid)
    believed = valid and close and run.bound is not None
    if believed and throughput is not None and given(run.bound) < throughput * (1 - SOLVER):
        believed = False  # the placement itself refutes it
    status, bound = status_and_bound(
        throughput, candidates.rate_at_most(run.bound if believed else None)
    )
    stopped_by = run.stopped_by
    if valid and placement is not None and (status == "optimal" or run.status == "optimal"):
        # Within SCIP's tolerance nothing is faster; whether anything is, a question without
        # tolerance tells.
        before = given(throughput)
        settled = settle(candidates, placement, deadline)
        placement, throughput, stopped_by = (
            settled.placement,
            given(settled.throughput),
            settled.stopped_by,
        )
        status, bound = status_and_bound(
            throughput, bound_after(settled, candidates, before, given(bound))
        )
        reason = "" if status == "optimal" else reason
    details = {
        "build_seconds": built + run.build_seconds,
        "solve_seconds": run.solve_seconds,
        "nodes": run.nodes,
        "root_bound": run.root_bound,
        "progress": (
            *run.progress,
            Progress(deadline.spent - built, throughput, bound, run.nodes, placement),
        ),
        "solver_status": run.status,
        "solver_objective": run.objective,
    }
    return Result(
        problem, "joint", status, placement, throughput, bound, deadline.spent, size, scip.version(),
        reason if valid else _not_trusted(run), None if status == "optimal" else stopped_by, details,
    )  # fmt: skip


def _better(
    candidates: Candidates, program: "LinearProgram", run: "SolverRun", valid: bool
) -> tuple[Placement | None, float | None, str]:
    """SCIP's placement or a simple one, whichever is faster; its rate; and a remark.

    What an M that is too small leads to is shown as it is.
    """
    problem, placement, reason = candidates.problem, simple_placement(candidates), ""
    throughput = evaluate(problem, placement).throughput if placement else None
    if run.x is not None:
        found = candidates.placement(chosen_rows(run.x[program.columns.slices["z"]]))
        yields = evaluate(problem, found).throughput
        if yields < given(run.objective) * (1 - NOT_SOLVED):
            reason = f"SCIP's tolerance is too coarse for rates so far apart: it predicted {run.objective:.7g}"
        if not valid or throughput is None or yields >= throughput:
            placement, throughput = found, yields
    return placement, throughput, reason


def _without_scips_tolerance(
    candidates: Candidates, size: dict[str, int], clash: str, gap: float, deadline: Deadline
) -> Result:
    """Where rates are out of reach for a program that has them as coefficients: questions without any."""
    from pipelab.engine.solvers import scip

    problem, built = candidates.problem, deadline.spent
    settled = settle(candidates, simple_placement(candidates), deadline, gap=gap)
    if settled.placement is None and settled.stopped_by is None:
        return _infeasible(problem, _why_not_all_fit(candidates), size, deadline, scip.version())
    status, bound = status_and_bound(settled.throughput, settled.bound)
    reason = settled_without_rates(settled, clash)
    details = {
        "build_seconds": built,
        "solve_seconds": deadline.spent - built,
        "nodes": 0,
        "root_bound": None,
        "progress": (
            Progress(deadline.spent - built, settled.throughput, bound, 0, settled.placement),
        ),
        "solver_status": status,
        "solver_objective": None,
    }
    return Result(
        problem, "joint", status, settled.placement, settled.throughput, bound, deadline.spent, size, scip.version(),
        reason, None if status == "optimal" else settled.stopped_by, details,
    )  # fmt: skip


def simple_placement(candidates: Candidates) -> Placement | None:
    """Something to fall back on when SCIP is stopped early: long stages first, without looking back.

    The fastest allocation of all layers where there is one; else from layer to layer the longest
    that fits, the fastest of those. Where that runs out of GPUs, once more with as few GPUs in
    every stage as hold as many layers. None where that runs out of them, too.
    """
    gpus = candidates.membership.sum(axis=1)[candidates.set_of]
    chosen = _row(candidates, (candidates.size, candidates.throughput))
    if chosen is None:
        chosen = _row(candidates, (candidates.size, -gpus, candidates.throughput))
    return None if chosen is None else candidates.placement(np.array(chosen))


def _row(candidates: Candidates, keys: tuple[np.ndarray, ...]) -> list[int] | None:
    """Numbers of allocations, one behind the other, each the greatest by `keys` of those that are still possible."""
    order = np.lexsort([-key for key in keys[::-1]])
    chosen, used, at = [], np.zeros(candidates.gpus, dtype=bool), 0
    while at < candidates.layers:
        free = ~np.logical_or.reduce(candidates.membership[:, used], axis=1)
        possible = order[(candidates.start[order] == at) & free[candidates.set_of[order]]]
        if not len(possible):
            return None
        chosen.append(int(possible[0]))
        used |= candidates.membership[candidates.set_of[possible[0]]]
        at = int(candidates.stop[possible[0]])
    return chosen


def _not_trusted(run: "SolverRun") -> str:
    claim = (
        f"SCIP calls {run.objective:.7g} {run.status} for this model"
        if run.objective
        else "SCIP finds nothing"
    )
    source = "The M for links, taken from the code of the write-up's author, is too small here"
    return f"{source}: {claim}. That is set aside; the fastest stage is the bound"
