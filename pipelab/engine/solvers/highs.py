"""Run one program with HiGHS: the second opinion, and the solver where SCIP is not installed.

HiGHS looks at the clock, and asks whether to go on, between two steps only; one of presolving may
be long. So it runs in a thread of its own, and the thread that waits keeps the time, as in `scip`:
shortly after the end it goes on without an answer, and HiGHS ends by itself at its next step.
"""

import math
import threading
import time
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.errors import PipelabError

_POLL_SECONDS = 0.05  # how soon a stop is noticed
_GRACE_SECONDS = 0.25  # what HiGHS has to end after that; then it is not waited for any longer
_ENDS = {
    "kOptimal": "optimal",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",  # no program here is unbounded
    "kTimeLimit": "stopped",
    "kInterrupt": "stopped",
}


@cache
def version() -> str:
    """Name and version of the solver, such as "HiGHS 1.11.0"."""
    import highspy

    return f"HiGHS {highspy.Highs().version()}"


def run(
    program: LinearProgram,
    *,
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: threading.Event | None = None,
    deadline: Deadline | None = None,
) -> SolverRun:
    """Solve a program with HiGHS; parameters as for `scip.run`."""
    if deadline is not None:
        made: Any = nullcontext(deadline if time_limit is None else deadline.within(time_limit))
    else:
        made = deadline_of(time_limit, stop)
    with made as until:
        try:
            until.check()
            solving = _Solving(program, gap, until)
            until.check()
        except Ended as end:
            return _stopped(end.reason, 0.0)
        reason = solving.wait(until)
    if not solving.ended.is_set():
        return _stopped(reason, solving.seconds)
    return solving.end(reason)


def _stopped(reason: str | None, seconds: float) -> SolverRun:
    return SolverRun("stopped", reason, None, None, None, None, 0, 0.0, seconds, ())


class _Solving:
    """A solve in a thread of its own, so that the one that waits can end it, or go on without it."""

    def __init__(self, program: LinearProgram, gap: float, deadline: Deadline) -> None:
        import highspy

        self.program = program
        self.began = time.perf_counter()
        self.ended, self.enough = threading.Event(), (enough := threading.Event())
        self.failure: BaseException | None = None
        self.highs = highs = highspy.Highs()
        # One thread: HiGHS keeps the others it starts, and waits for them when the thread that
        # started them ends.
        options: dict[str, Any] = {
            "output_flag": False,
            "mip_rel_gap": gap,
            "mip_abs_gap": 0.0,
            "threads": 1,
            "parallel": "off",
            # HiGHS 1.14's presolve calls some programs of `walk` infeasible that are not
            # (tests/test_walk.py has one); restarts presolve again. Without both, these small
            # programs take no longer.
            "presolve": "off",
            "mip_allow_restart": False,
            # 9 ms for each program, of which most take less than one
            "mip_heuristic_run_feasibility_jump": False,
        }
        for name, value in (
            options | ({"time_limit": deadline.left} if deadline.limited else {})
        ).items():
            highs.setOptionValue(name, value)
        highs.passModel(_as_highs(program))
        highs.cbMipInterrupt.subscribe(lambda event: event.interrupt(enough.is_set()))
        threading.Thread(target=self._work, name="highs", daemon=True).start()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def _work(self) -> None:
        try:
            self.highs.run()
        except BaseException as error:  # carried over to the caller's thread
            self.failure = error
        finally:
            self.ended.set()

    def wait(self, deadline: Deadline) -> str | None:
        """Wait for the end; what brought it about, if not HiGHS itself. `ended` is not set where it takes too long."""
        patience = math.inf
        reason = None
        while not self.ended.wait(_POLL_SECONDS) and time.perf_counter() < patience:
            if reason is None and (reason := deadline.reason) is not None:
                self.enough.set()
                patience = time.perf_counter() + _GRACE_SECONDS
        if self.failure is not None:
            raise self.failure
        return reason

    def end(self, reason: str | None) -> SolverRun:
        """What HiGHS has found and proven."""
        model_status, info = self.highs.getModelStatus(), self.highs.getInfo()
        status = _ENDS.get(model_status.name)
        if status is None:
            raise PipelabError(
                f"HiGHS ended without an answer: {self.highs.modelStatusToString(model_status)}"
            )
        # feasible, not merely there
        found = status != "infeasible" and info.primal_solution_status == 2
        x = np.array(self.highs.getSolution().col_value, dtype=float) if found else None
        objective = None if x is None else float(self.program.objective @ x)
        whole = self.program.integer.any()
        bound = -info.mip_dual_bound if whole else objective
        bound = (
            bound if bound is not None and math.isfinite(bound) and status != "infeasible" else None
        )
        nodes = max(0, int(info.mip_node_count)) if whole else 0
        stopped_by = (reason or "time limit") if status == "stopped" else None
        return SolverRun(
            status, stopped_by, x, objective, bound, None, nodes, 0.0, self.seconds, ()
        )


def _as_highs(program: LinearProgram) -> Any:
    """The program as HiGHS takes it: least of the negative objective, columns compressed."""
    import highspy

    blocks = list(program.blocks.values())
    matrix = (
        sp.csc_array(sp.vstack([b.matrix for b in blocks]))
        if blocks
        else sp.csc_array((0, program.columns.total))
    )
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.columns.total, matrix.shape[0]
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = -program.objective, program.lower, program.upper
    lp.row_lower_ = np.concatenate([b.lower for b in blocks]) if blocks else np.zeros(0)
    lp.row_upper_ = np.concatenate([b.upper for b in blocks]) if blocks else np.zeros(0)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = (
        matrix.indptr,
        matrix.indices,
        matrix.data,
    )
    if program.integer.any():
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        lp.integrality_ = [kinds[i] for i in program.integer.astype(int).tolist()]
    return lp
