"""Run one program with HiGHS: the second opinion, and the way where SCIP is not installed.

Through `scipy.optimize.milp`, which brings HiGHS along. It cannot be stopped from outside, so
it is given short programs and a time limit.
"""

import math
import threading
import time

import numpy as np
import scipy

from pipelab.errors import PipelabError
from pipelab.program import LinearProgram
from pipelab.solver_run import SolverRun

__all__ = ["run", "version"]


def version() -> str:
    """Name and version of the solver, such as "HiGHS (SciPy 1.16.2)"."""
    return f"HiGHS (SciPy {scipy.__version__})"


def run(
    program: LinearProgram, *, time_limit: float | None = None, gap: float = 0.0, stop: threading.Event | None = None
) -> SolverRun:
    """Solve to the end, or until the time limit; `stop` is looked at before it starts."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    began = time.perf_counter()
    if (stop is not None and stop.is_set()) or (time_limit is not None and time_limit <= 0):
        reason = "stop" if stop is not None and stop.is_set() else "time limit"
        return SolverRun("stopped", reason, None, None, None, None, 0, 0.0, 0.0, ())
    options = {"mip_rel_gap": gap} | ({} if time_limit is None else {"time_limit": time_limit})
    answer = milp(
        -program.objective, integrality=program.integer.astype(int), bounds=Bounds(program.lower, program.upper),
        constraints=[LinearConstraint(b.matrix, b.lower, b.upper) for b in program.blocks.values()], options=options,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    status = {0: "optimal", 1: "stopped", 2: "infeasible"}.get(answer.status)
    if status is None:
        raise PipelabError(f"HiGHS ended without an answer: {answer.message}")
    x = None if answer.x is None else np.asarray(answer.x)
    bound = getattr(answer, "mip_dual_bound", None)
    bound = -bound if bound is not None and math.isfinite(bound) else None
    nodes = int(getattr(answer, "mip_node_count", 0) or 0)
    objective = None if x is None else float(program.objective @ x)
    stopped_by = "time limit" if status == "stopped" else None
    return SolverRun(status, stopped_by, x, objective, bound, None, nodes, 0.0, seconds, ())
