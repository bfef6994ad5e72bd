"""Run one program with HiGHS, the solver of the small programs.

HiGHS looks at the clock, and asks whether to go on, between two steps only. So it runs in a thread
of its own, which is not waited for longer than shortly after the deadline.
"""

import math
import threading
import time
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import NEVER, Deadline, Ended, waited_for
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.errors import PipelabError

_GRACE_SECONDS = 0.25  # what HiGHS has to end after the deadline
_LARGEST_COST = 1e6  # HiGHS' simplex gives up with costs of 1e9 (tests/engine/test_prices.py)
_NODES_PER_SECOND = 200  # stands for a second where work counts, and no clock: roughly
_OPTIONS = {
    "output_flag": False,
    "mip_abs_gap": 0.0,
    # One thread: HiGHS keeps the others it starts, and waits for them when the thread that
    # started them ends.
    "threads": 1,
    "parallel": "off",
    # HiGHS 1.14's presolve calls some stage-flow programs infeasible that are not
    # (tests/engine/test_stage_flow.py has one); restarts presolve again. Without both, these small
    # programs take no longer.
    "presolve": "off",
    "mip_allow_restart": False,
    # 9 ms for each program, of which most take less than one
    "mip_heuristic_run_feasibility_jump": False,
}
_ENDS = {
    "kOptimal": "optimal",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",  # no program here is unbounded
    "kTimeLimit": "stopped",
    "kInterrupt": "stopped",
    "kSolutionLimit": "stopped",  # of nodes
}


@cache
def version() -> str:
    """Return name and version of the solver, such as "HiGHS 1.11.0"."""
    import highspy

    return f"HiGHS {highspy.Highs().version()}"


def run(program: LinearProgram, *, gap: float = 0.0, deadline: Deadline = NEVER) -> SolverRun:
    """Solve a program with HiGHS.

    Parameters
    ----------
    program : LinearProgram
    gap : float
        Stop once (bound - incumbent) / incumbent is at most this.
    deadline : Deadline
        When it has passed, the best solution so far is returned.
    """
    import highspy

    began = time.perf_counter()
    highs, enough = highspy.Highs(), threading.Event()
    for name, value in (_OPTIONS | {"mip_rel_gap": gap}).items():
        highs.setOptionValue(name, value)
    try:
        deadline.check()
        scale = _scale_of_objective(program)
        highs.passModel(as_highs(replace(program, objective=program.objective * scale)))
        deadline.check()
        if deadline.limited:
            highs.setOptionValue("time_limit", deadline.left)
        if deadline.work < math.inf:
            highs.setOptionValue("mip_max_nodes", math.ceil(deadline.work * _NODES_PER_SECOND))
        asking = _Asking(deadline.apart(), enough)
        highs.cbMipInterrupt.subscribe(asking.at_a_step)
        waited_for(highs.run, deadline, enough.set, _GRACE_SECONDS, "highs")
        asking.ask(int(highs.getInfo().mip_node_count))
    except Ended as end:
        return SolverRun(
            status="stopped", stopped_by=end.reason, solve_seconds=time.perf_counter() - began
        )
    if asking.failure is not None:  # in the caller's own criterion
        raise asking.failure
    return _read(highs, program, scale, deadline.reason, time.perf_counter() - began)


def _scale_of_objective(program: LinearProgram) -> float:
    """Return the power of two, at most 1, by which no cost is too large for HiGHS."""
    largest = np.abs(program.objective).max(initial=0.0)
    return (
        1.0 if largest <= _LARGEST_COST else 2.0 ** -math.ceil(math.log2(largest / _LARGEST_COST))
    )


class _Asking:
    """Whether HiGHS is to go on; a criterion is asked whenever HiGHS has counted more nodes."""

    def __init__(self, deadline: Deadline, enough: threading.Event) -> None:
        self.deadline, self.enough, self.nodes = deadline, enough, 0
        self.failure: BaseException | None = None

    def at_a_step(self, event: Any) -> None:
        self.ask(int(event.data_out.mip_node_count))
        event.interrupt(self.enough.is_set())

    def ask(self, nodes: int) -> None:
        if self.deadline.asks and nodes > self.nodes:
            self.nodes = nodes
            try:
                self.deadline.tell(nodes=nodes)
                if self.deadline.called_off == "stop":
                    self.enough.set()
            except BaseException as error:  # an exception must not pass through HiGHS's own code
                self.failure = error
                self.enough.set()


def _read(
    highs: Any, program: LinearProgram, scale: float, reason: str | None, seconds: float
) -> SolverRun:
    """Return what HiGHS has found and proven."""
    ended, info = highs.getModelStatus(), highs.getInfo()
    status = _ENDS.get(ended.name)
    if status is None:
        raise PipelabError(f"HiGHS ended without an answer: {highs.modelStatusToString(ended)}")
    x = objective = bound = row_duals = None
    # feasible, not merely there
    if status != "infeasible" and info.primal_solution_status == 2:
        x = np.array(highs.getSolution().col_value, dtype=float)
        objective = float(program.objective @ x)
        if not program.integer.any():
            row_duals = np.abs(np.array(highs.getSolution().row_dual, dtype=float)) / scale
    whole = program.integer.any()
    if whole and status != "infeasible":
        bound = -info.mip_dual_bound / scale
    elif status == "optimal":  # a linear program that is stopped has no bound
        bound = objective
    return SolverRun(
        status=status,
        stopped_by=(reason or "time limit") if status == "stopped" else None,
        x=x,
        objective=objective,
        bound=bound if bound is not None and math.isfinite(bound) else None,
        nodes=max(0, int(info.mip_node_count)) if whole else 0,
        solve_seconds=seconds,
        row_duals=row_duals,
    )


def as_highs(program: LinearProgram) -> Any:
    """Return the program as HiGHS takes it: least of the negative objective, columns compressed."""
    import highspy

    rows = program.rows
    matrix = sp.csc_array(rows.matrix)
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = -program.objective, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = rows.lower, rows.upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr, matrix.indices
    lp.a_matrix_.value_ = matrix.data
    if program.integer.any():
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        lp.integrality_ = [kinds[i] for i in program.integer.astype(int).tolist()]
    return lp
