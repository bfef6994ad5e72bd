"""The end of one solver run, whichever solver ran, and its progress until then."""

from dataclasses import dataclass

import numpy as np

from pipelab.placement import Placement


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What was known at one moment of a solve."""

    seconds: float
    incumbent: float | None = None  # best solution so far
    bound: float | None = None  # nothing better exists; None before the first bound
    nodes: int = 0
    placement: Placement | None = None  # of the incumbent, from methods that report it


@dataclass(frozen=True, eq=False, kw_only=True)
class SolverRun:
    """The end of one solve.

    Attributes
    ----------
    status : "optimal", "infeasible", "stopped"
        "stopped" by time, gap, stop or interrupt; `x` holds the best solution, if any.
    stopped_by : str or None
        "time limit", "gap limit", "memory limit", "stop", "interrupt".
    x : float array or None
        One value per column; not a number where it was not reported in time.
    objective, bound : float or None
        Of x; proven for every solution.
    nodes : int
    solve_seconds : float
    progress : tuple of Progress
    row_duals : float array or None
        Of a linear program solved with HiGHS: what one unit more of each row's limit would bring, as an absolute value.
    """

    status: str
    stopped_by: str | None = None
    x: np.ndarray | None = None
    objective: float | None = None
    bound: float | None = None
    nodes: int = 0
    solve_seconds: float = 0.0
    progress: tuple[Progress, ...] = ()
    row_duals: np.ndarray | None = None
