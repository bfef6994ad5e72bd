"""Run one SCIP model: time limit, gap, proven bound, progress, stop.

The solve runs in a thread of its own without Python's lock (`optimizeNogil`), so a kernel
stays alive meanwhile; a stop or an interrupt ends it and keeps the best solution found.

SCIP looks at the clock between two steps only, and one step of presolving a large model takes ten
seconds. So shortly after the deadline it is not waited for any longer: what it has reported by then
is the answer.
"""

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, Ended, waited_for
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.errors import PipelabError
from pipelab.placement import Placement

_GRACE_SECONDS = 0.25  # what SCIP has to end after the deadline
_NOT_NOW = "method cannot be called at this time"
# columns of a model whose freeing waits until its answer was given
_LARGE, _FREE_AFTER_SECONDS = 50_000, 0.5
_ENDS = {"optimal": "optimal", "infeasible": "infeasible", "inforunbd": "infeasible"}
_LIMITS = {"timelimit": "time limit", "gaplimit": "gap limit", "memlimit": "memory limit"}
# SCIP 10 takes a row that is parallel to the objective for a bound of the objective, and then loses
# it: where the price is minimised and limited too, it returned 159 where a row allows 107
# (`tests/engine/test_nodes.py` has such a program).
_SOUND = {
    "constraints/linear/detectcutoffbound": False,
    "constraints/linear/detectlowerbound": False,
}


@cache  # making a model takes 7 ms
def version() -> str:
    """Return name and version of the solver, such as "SCIP 10.0.2"."""
    from pyscipopt import Model

    model = Model()
    return f"SCIP {model.getMajorVersion()}.{model.getMinorVersion()}.{model.getTechVersion()}"


def run(
    program: LinearProgram,
    *,
    gap: float = 0.0,
    settings: Mapping[str, object] | None = None,
    deadline: Deadline = NEVER,
    on_progress: Callable[[Progress], None] | None = None,
    reading: tuple[slice, Callable[[np.ndarray], Placement]] | None = None,
) -> SolverRun:
    """Solve a program with SCIP.

    Parameters
    ----------
    program : LinearProgram
    gap : float
        Stop once (bound - incumbent) / incumbent is at most this.
    settings : mapping, optional
        SCIP parameters by name.
    deadline : Deadline
        Of building the model and solving it together; when it has passed, the best solution so
        far is returned.
    on_progress : function of Progress, optional
        Called in the solver's thread on every new incumbent or bound; it must not touch widgets.
    reading : (slice, function of array), optional
        Columns, and what makes a placement of their values: every new incumbent's progress then has
        it. Where SCIP does not end in time, `x` has these columns only, and no number elsewhere.

    Raises
    ------
    PipelabError
        SCIP cannot compute with these numbers.
    """
    from pyscipopt import SCIP_EVENTTYPE

    try:
        with _in_words():
            model, variables = _load(program, deadline)
    except Ended as end:
        return SolverRun(status="stopped", stopped_by=end.reason)
    built = time.perf_counter()
    if deadline.left < 1e19:  # SCIP's infinity begins at 1e20
        model.setParam("limits/time", deadline.left)
    model.setParams({"limits/gap": gap} | _SOUND | dict(settings or {}))
    recorder = Recorder(deadline, variables, on_progress, *(reading or (slice(None), None)))
    events = [
        SCIP_EVENTTYPE.BESTSOLFOUND,
        SCIP_EVENTTYPE.NODESOLVED,
        SCIP_EVENTTYPE.DUALBOUNDIMPROVED,
    ]
    model.attachEventHandlerCallback(recorder.note, events, name="pipelab")
    try:
        with _in_words():
            _optimize(model, deadline)
    except Ended as end:
        outcome = recorder.stopped(end.reason)
    else:
        recorder.over = True
        outcome = _read(model, variables, deadline.reason)
        _free(model, variables)
    if recorder.failure is not None:  # in the caller's own `on_progress`
        raise recorder.failure
    return replace(
        outcome, solve_seconds=time.perf_counter() - built, progress=tuple(recorder.progress)
    )


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise what SCIP itself raises as an error of ours: it has no class of its own and says little."""
    try:
        yield
    except Exception as error:
        if type(error) is Exception and str(error).startswith("SCIP:"):
            raise PipelabError(
                f"SCIP cannot compute with the numbers of this model ({error}): they are too large, too small or too "
                "far apart for it; method='aggregated' takes others"
            ) from None
        raise


def _load(program: LinearProgram, deadline: Deadline) -> tuple[Any, list]:
    """Hand a program to a new PySCIPOpt model, and return it with its variables in column order."""
    from pyscipopt import Model
    from pyscipopt.scip import Expr, ExprCons, Term

    rows, matrix = program.rows, program.rows.matrix
    ends, where, values = (part.tolist() for part in (matrix.indptr, matrix.indices, matrix.data))
    arrays = program.integer, program.lower, program.upper, program.objective
    variables: list = []
    with _without_garbage_collection():
        model = Model()
        model.hideOutput()
        model.setParam("misc/catchctrlc", False)  # Python handles Ctrl-C; see `waited_for`
        try:
            for whole, low, up, cost in zip(*(a.tolist() for a in arrays), strict=True):
                deadline.check()
                kind = "C" if not whole else "B" if up <= 1 else "I"
                variables.append(model.addVar("", kind, low, _side(up), cost))
            terms = [Term(variable) for variable in variables]
            sides = zip(rows.lower.tolist(), rows.upper.tolist(), strict=True)
            for r, (low, up) in enumerate(sides):
                deadline.check()
                # Expr(dict) is what operators such as 2*x + y build too, at several times the price.
                row = Expr({terms[where[p]]: values[p] for p in range(ends[r], ends[r + 1])})
                model.addCons(ExprCons(row, _side(low), _side(up)))
        except Ended:
            _free(model, variables)
            raise
        model.setMaximize()
    return model, variables


def _side(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Stop looking for garbage: among millions of small objects, none of it, that would double the time.

    Nor is any looked for right afterwards, which may be at the end of the time: what is there
    counts as old.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # else other code has frozen what unfreezing would give back
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _optimize(model: Any, deadline: Deadline) -> None:
    """Solve the model.

    Raises
    ------
    Ended
        The deadline was first, and SCIP did not end in order.
    """

    def work() -> None:
        try:
            model.optimizeNogil()
        except Exception as error:  # interrupted where SCIP cannot end in order
            if _NOT_NOW in str(error) and (reason := deadline.reason) is not None:
                raise Ended(reason) from None
            raise

    def interrupt() -> None:
        try:
            model.interruptSolve()
        except Exception as error:  # between two stages SCIP refuses to be interrupted
            if _NOT_NOW not in str(error):
                raise

    waited_for(work, deadline, interrupt, _GRACE_SECONDS, "scip")


@dataclass(eq=False)
class Recorder:
    """Notes every new incumbent and bound while SCIP runs."""

    deadline: Deadline
    variables: list
    on_progress: Callable[[Progress], None] | None
    kept: slice
    placement_of: Callable[[np.ndarray], Placement] | None

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        # The incumbent's values in the columns kept, with its moment: one assignment, for whoever
        # reads meanwhile.
        self.reported: tuple[np.ndarray | None, Progress] = None, Progress(seconds=0.0)
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
        bound = _finite(model, model.getDualbound())
        values, last = self.reported
        placement = last.placement
        if incumbent is not None and last.incumbent != incumbent:
            values = _values(model, best, self.variables[self.kept])
            placement = self.placement_of(values) if self.placement_of else None
        moment = Progress(
            seconds=time.perf_counter() - self.began,
            incumbent=incumbent,
            bound=bound,
            nodes=model.getNTotalNodes(),
            placement=placement,
        )
        if not self.progress or (last.incumbent, last.bound) != (incumbent, bound):
            self.reported = values, moment
            self.progress.append(moment)
            if self.on_progress is not None:
                self.on_progress(moment)
        self.deadline.ask(moment)
        if self.deadline.called_off == "stop":
            model.interruptSolve()

    def stopped(self, reason: str) -> SolverRun:
        """Return the end of a run that SCIP itself does not come to: what it has reported so far."""
        self.over = True
        x, (values, last) = None, self.reported
        if values is not None:
            x = np.full(len(self.variables), np.nan)
            x[self.kept] = values
        return SolverRun(
            status="stopped",
            stopped_by=reason,
            x=x,
            objective=last.incumbent,
            bound=last.bound,
            nodes=last.nodes,
        )


def _values(model: Any, solution: Any, variables: list) -> np.ndarray:
    return np.array([model.getSolVal(solution, variable) for variable in variables])


def _finite(model: Any, value: float) -> float | None:
    return None if model.isInfinity(abs(value)) else value


def _read(model: Any, variables: list, reason: str | None) -> SolverRun:
    """Return what SCIP has found and proven."""
    said = model.getStatus()
    status = _ENDS.get(said, "stopped")
    best = model.getBestSol() if model.getNSols() else None
    begun = model.getStage() >= 9  # SCIP has begun to solve
    return SolverRun(
        status=status,
        stopped_by=(_LIMITS.get(said) or reason or said) if status == "stopped" else None,
        x=None if best is None else _values(model, best, variables),
        objective=None if best is None else model.getSolObjVal(best),
        bound=_finite(model, model.getDualbound()),
        nodes=model.getNTotalNodes() if begun else 0,
    )


def _free(model: Any, variables: list) -> None:
    """Free a model that has been read.

    Model and event handler refer to each other: Python itself would free them after gigabytes of
    others. Freeing a large model takes seconds, with Python's lock held: not before the answer is
    given.
    """
    if not hasattr(model, "free"):  # before PySCIPOpt 6.3
        return
    if len(variables) <= _LARGE:
        model.free()
        return
    waiting = threading.Timer(_FREE_AFTER_SECONDS, model.free)
    waiting.daemon = True
    waiting.start()
