"""What SCIP reports while it runs: every new incumbent and bound."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.placement import Placement


class Recorder:
    """Notes every new incumbent and bound while SCIP runs."""

    def __init__(
        self,
        began: float,
        variables: list,
        on_progress: Callable[[Progress], None] | None,
        reading: Any = None,
    ) -> None:
        self.began = began
        self.on_progress = on_progress
        self.kept: slice = reading[0] if reading else slice(None)
        self.placement_of: Callable[[np.ndarray], Placement] | None = (
            reading[1] if reading else None
        )
        self.variables = variables
        # The incumbent's values in the columns kept, with its moment: one assignment, for whoever
        # reads meanwhile.
        self.reported: tuple[np.ndarray | None, Progress] = (None, Progress(0.0, None, None, 0))
        self.progress: list[Progress] = []
        self.failure: BaseException | None = None
        self.over = False

    def note(self, model: Any, event: Any) -> None:
        # freeing its tree, SCIP reports the incumbent as a new bound: that is no proof
        if self.over:
            return
        try:
            self._record(model)
        except BaseException as error:  # an exception must not pass through SCIP's own code
            self.failure = self.failure or error
            model.interruptSolve()

    def _record(self, model: Any) -> None:
        # When a solution is reported, the primal bound is still that of the one before.
        best = model.getBestSol() if model.getNSols() else None
        incumbent = None if best is None else model.getSolObjVal(best)
        bound = finite(model, model.getDualbound())
        seconds = time.perf_counter() - self.began
        last = self.progress[-1] if self.progress else None
        placement, (values, _) = last.placement if last else None, self.reported
        if incumbent is not None and (last is None or last.incumbent != incumbent):
            values = np.array(
                [model.getSolVal(best, column) for column in self.variables[self.kept]]
            )
            placement = self.placement_of(values) if self.placement_of else None
        moment = Progress(seconds, incumbent, bound, model.getNTotalNodes(), placement)
        if last is None or (last.incumbent, last.bound) != (incumbent, bound):
            self.reported = values, moment
            self.progress.append(moment)
            if self.on_progress is not None:
                self.on_progress(moment)

    def stopped(self, reason: str, build_seconds: float) -> SolverRun:
        """The end of a run that SCIP itself does not come to: what it has reported so far."""
        values, last = self.reported
        x = None
        if values is not None:
            x = np.full(len(self.variables), np.nan)
            x[self.kept] = values
        seconds, root = (
            time.perf_counter() - self.began,
            self.progress[0].bound if self.progress else None,
        )
        return SolverRun(
            "stopped", reason, x, last.incumbent, last.bound, root, last.nodes, build_seconds, seconds,
            tuple(self.progress),
        )  # fmt: skip

    def reraise(self) -> None:
        """Pass on what went wrong in the caller's own `on_progress`."""
        if self.failure is not None:
            raise self.failure


def finite(model: Any, value: float) -> float | None:
    return None if model.isInfinity(abs(value)) else value
