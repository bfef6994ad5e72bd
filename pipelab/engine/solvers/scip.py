"""Run one SCIP model: time limit, gap, proven bound, progress, stop.

The solve runs in a thread of its own without Python's lock (`optimizeNogil`), so a kernel
stays alive meanwhile; a stop or an interrupt ends it and keeps the best solution found.

SCIP looks at the clock between two steps only, and one step of presolving a large model takes ten
seconds. So the thread that waits keeps the time: shortly after the end it goes on with what SCIP
has reported by then, and leaves SCIP's thread to end by itself.
"""

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, Ended, deadline_of
from pipelab.engine.solvers.linear_program import LinearProgram, RowBlock
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.errors import InvalidValue, PipelabError
from pipelab.fields import given
from pipelab.placement import Placement

_POLL_SECONDS = 0.05  # how soon a stop is noticed
_GRACE_SECONDS = (
    0.25  # what SCIP has to end after it was interrupted; then it is not waited for any longer
)
# so many columns or entries of rows are handed over between two looks at the clock
_GIVE_WAY = 10_000

# columns of a model whose freeing waits until its answer was given
_LARGE, _FREE_AFTER_SECONDS = 50_000, 0.5
_FREE_IF_LEFT_SECONDS = 1.0  # what a solve needs for freeing the models before it
_UNFREED: dict[object, tuple] = {}  # models that wait for it, with their columns


@cache  # making a model takes 7 ms
def version() -> str:
    """Name and version of the solver, such as "SCIP 10.0.2"."""
    from pyscipopt import Model

    model = Model()
    return f"SCIP {model.getMajorVersion()}.{model.getMinorVersion()}.{model.getTechVersion()}"


# SCIP 10 takes a row that is parallel to the objective for a bound of the objective, and then loses
# it: where the price is minimised and limited too, it returned 159 where a row allows 107
# (`tests/test_nodes.py` has such programs).
_SOUND = {
    "constraints/linear/detectcutoffbound": False,
    "constraints/linear/detectlowerbound": False,
}


def run(
    program: LinearProgram,
    *,
    time_limit: float | None = None,
    gap: float = 0.0,
    settings: Mapping[str, object] | None = None,
    stop: threading.Event | None = None,
    deadline: Deadline | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    reading: tuple[slice, Callable[[np.ndarray], Placement]] | None = None,
) -> SolverRun:
    """Solve a program with SCIP.

    Parameters
    ----------
    program : LinearProgram
    time_limit : float, optional
        Seconds for building the model and solving it together.
    gap : float
        Stop once (bound - incumbent) / incumbent is at most this.
    settings : mapping, optional
        SCIP parameters by name.
    stop : threading.Event, optional
        Set it from anywhere to end the solve; the best solution is kept.
    deadline : Deadline, optional
        In place of `stop`; a `time_limit` can only shorten it.
    on_progress : function of Progress, optional
        Called in the solver's thread on every new incumbent or bound; it must not touch widgets.
    reading : (slice, function of array), optional
        Columns, and what makes a placement of their values: every new incumbent's progress then has
        it. Where SCIP does not end in time, `x` has these columns only, and no number elsewhere.
    """
    from pyscipopt import SCIP_EVENTTYPE

    if deadline is not None:
        made: Any = nullcontext(deadline if time_limit is None else deadline.within(time_limit))
    else:
        made = deadline_of(time_limit, stop)
    with made as until:
        began = time.perf_counter()
        free_waiting(until)
        try:
            with _in_words():
                model, variables = load(program, deadline=until)
        except Ended as end:
            spent = time.perf_counter() - began
            return SolverRun("stopped", end.reason, None, None, None, None, 0, spent, 0.0, ())
        built = time.perf_counter()
        if until.left < 1e19:  # SCIP's infinity begins at 1e20
            model.setParam("limits/time", until.left)
        model.setParam("limits/gap", gap)
        for name, value in (_SOUND | dict(settings or {})).items():
            _set(model, name, value)
        recorder = Recorder(built, variables, on_progress, reading)
        events = [
            SCIP_EVENTTYPE.BESTSOLFOUND,
            SCIP_EVENTTYPE.NODESOLVED,
            SCIP_EVENTTYPE.DUALBOUNDIMPROVED,
        ]
        model.attachEventHandlerCallback(recorder.note, events, name="pipelab")
        solving = _Solving(model)
        with _in_words():
            reason = solving.wait(until)
        recorder.over = True
        recorder.reraise()
        if not solving.ended.is_set() or solving.cut_short(reason):
            return recorder.stopped(given(reason), built - began)
        solved = time.perf_counter() - built
        run = _read(model, variables, recorder, reason, built - began, solved)
        free(model, variables)
        return run


@contextmanager
def _in_words() -> Iterator[None]:
    """What SCIP itself raises has no class of its own and says little: it becomes an error of ours."""
    try:
        yield
    except Exception as error:
        if type(error) is Exception and str(error).startswith("SCIP:"):
            raise PipelabError(
                f"SCIP cannot compute with the numbers of this model ({error}): they are too large, too small or too "
                "far apart for it; method='aggregated' takes others"
            ) from None
        raise


def lp_bound(program: LinearProgram) -> float | None:
    """Optimum of the LP relaxation: the bound at the root before any cut; None if infeasible."""
    model, _ = load(program.relaxed())
    model.optimizeNogil()
    return model.getObjVal() if model.getStatus() == "optimal" else None


def load(
    program: LinearProgram, *, names: bool = False, deadline: Deadline = NEVER
) -> tuple[Any, list]:
    """Hand a program to a new PySCIPOpt model, row by row.

    Parameters
    ----------
    names : bool
        Name columns and rows (`z[3]`, `layer_coverage[0]`), for writing the model out.
    deadline : Deadline
        Checked during the work; `Ended` is raised.

    Returns
    -------
    model : pyscipopt.Model
    variables : list of pyscipopt variables, in column order
    """
    from pyscipopt import Model
    from pyscipopt.scip import Term

    with _without_garbage_collection():
        model = Model()
        model.hideOutput()
        model.setParam("misc/catchctrlc", False)  # Python handles Ctrl-C; see _Solving
        variables: list = []
        terms: list = []
        try:
            for part in _columns(model, program, names, deadline):
                variables += part
                terms += map(Term, part)
            # Expr(dict) is what operators such as 2*x + y build too, at several times the price.
            for name, block in program.blocks.items():
                _add_rows(model, terms, block, name if names else None, deadline)
        except Ended:
            free(model, variables, terms)
            raise
        model.setMaximize()
    return model, variables


def _set(model: Any, name: str, value: Any) -> None:
    """Set a SCIP parameter; a name or value that SCIP refuses is named."""
    try:
        model.setParam(name, value)
    except (KeyError, LookupError, TypeError, ValueError) as error:
        raise InvalidValue("SCIP", [(name, value, f"SCIP refuses it ({error})")]) from None


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of small objects, none of them garbage: looking for some would double the time.

    Nor is any looked for right afterwards, which may be at the end of the time: what is there
    counts as old.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if (
                not gc.get_freeze_count()
            ):  # no other code has frozen what unfreezing would give back
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _columns(model: Any, program: LinearProgram, names: bool, deadline: Deadline) -> Iterator[list]:
    """Adds the columns, part by part."""
    labels = _labels(program) if names else None
    for i in range(0, program.columns.total, _GIVE_WAY):
        deadline.check()
        part = slice(i, i + _GIVE_WAY)
        lower, upper = program.lower[part].tolist(), program.upper[part].tolist()
        columns = zip(
            program.integer[part].tolist(),
            lower,
            upper,
            program.objective[part].tolist(),
            strict=True,
        )
        variables = []
        for j, (whole, low, up, cost) in enumerate(columns, start=i):
            kind = "C" if not whole else "B" if up <= 1 else "I"
            top = None if up == math.inf else up
            variables.append(
                model.addVar(labels[j] if labels else "", vtype=kind, lb=low, ub=top, obj=cost)
            )
        yield variables


def _labels(program: LinearProgram) -> list[str]:
    sizes = program.columns.sizes.items()
    return [f"{g}[{i}]" if n > 1 else g for g, n in sizes for i in range(n)]


def _add_rows(
    model: Any, terms: list, block: RowBlock, name: str | None, deadline: Deadline
) -> None:
    from pyscipopt.scip import Expr, ExprCons

    deadline.check()
    matrix = block.matrix
    ends, where, values = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    sides = zip(block.lower.tolist(), block.upper.tolist(), strict=True)
    look = 0
    for r, (low, up) in enumerate(sides):
        if ends[r] + r >= look:
            deadline.check()
            look = ends[r] + r + _GIVE_WAY
        row = {terms[where[p]]: values[p] for p in range(ends[r], ends[r + 1])}
        cons = ExprCons(
            Expr(row), lhs=None if low == -math.inf else low, rhs=None if up == math.inf else up
        )
        model.addCons(cons, name=f"{name}[{r}]" if name else "")


_NOT_NOW = "method cannot be called at this time"


class _Solving:
    """A solve in a thread of its own, so that the one that waits can end it, or go on without it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.failure: list[BaseException] = []
        self.ended = threading.Event()
        threading.Thread(target=self._work, name="scip", daemon=True).start()

    def _work(self) -> None:
        try:
            self.model.optimizeNogil()
        except BaseException as error:  # carried over to the caller's thread
            self.failure.append(error)
        finally:
            self.ended.set()

    def wait(self, deadline: Deadline) -> str | None:
        """Wait for the end; what brought it about, if not SCIP itself. `ended` is not set where SCIP takes too long."""
        reason, patience = None, math.inf
        while not self.ended.wait(_POLL_SECONDS) and time.perf_counter() < patience:
            if reason is None and (reason := deadline.reason) is not None:
                patience = time.perf_counter() + _GRACE_SECONDS
            if reason is not None:
                # again until SCIP ends: it forgets one that comes before it starts, and refuses one
                # that comes between two of its stages
                try:
                    self.model.interruptSolve()
                except Exception as error:
                    if _NOT_NOW not in str(error):
                        raise
        if self.failure and not self.cut_short(reason):
            raise self.failure[0]
        return reason

    def cut_short(self, reason: str | None) -> bool:
        """Whether SCIP was interrupted where it could not end in order: there is nothing to read then."""
        return reason is not None and any(_NOT_NOW in str(error) for error in self.failure)


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
            "stopped",
            reason,
            x,
            last.incumbent,
            last.bound,
            root,
            last.nodes,
            build_seconds,
            seconds,
            tuple(self.progress),
        )

    def reraise(self) -> None:
        """Pass on what went wrong in the caller's own `on_progress`."""
        if self.failure is not None:
            raise self.failure


def finite(model: Any, value: float) -> float | None:
    return None if model.isInfinity(abs(value)) else value


def _read(
    model: Any,
    variables: list,
    recorder: Recorder,
    reason: str | None,
    build_seconds: float,
    solve_seconds: float,
) -> SolverRun:
    status = model.getStatus()
    x = objective = None
    if model.getNSols() > 0:
        best = model.getBestSol()
        x = np.array([model.getSolVal(best, v) for v in variables])
        objective = model.getSolObjVal(best)
    ended = {"optimal": "optimal", "infeasible": "infeasible", "inforunbd": "infeasible"}.get(
        status, "stopped"
    )
    reasons = {"timelimit": "time limit", "gaplimit": "gap limit", "memlimit": "memory limit"}
    stopped_by = None if ended != "stopped" else reasons.get(status) or reason or status
    solved = model.getStage() >= 9  # SCIP has begun to solve, so there is a root to speak of
    return SolverRun(
        ended,
        stopped_by,
        x,
        objective,
        finite(model, model.getDualbound()),
        finite(model, model.getDualboundRoot()) if solved else None,
        model.getNTotalNodes() if solved else 0,
        build_seconds,
        solve_seconds,
        tuple(recorder.progress),
    )


def free(model: Any, variables: list, *parts: Any) -> None:
    """Free a model that has been read.

    Freeing a large model takes seconds, with Python's lock held: not before the answer is given.
    """
    if len(variables) <= _LARGE:
        _free_now(model)
        return
    mark = object()
    _UNFREED[mark] = (model, variables, *parts)
    waiting = threading.Timer(_FREE_AFTER_SECONDS, _free_marked, (mark,))
    waiting.daemon = True
    waiting.start()


def _free_marked(mark: object) -> None:
    parts = _UNFREED.pop(mark, None)
    if parts is not None:
        _free_now(parts[0])


def _free_now(model: Any) -> None:
    """Model and event handler refer to each other: Python itself would free them after gigabytes of others."""
    if hasattr(model, "free"):  # since PySCIPOpt 6.3, where they do
        model.free()


def free_waiting(deadline: Deadline) -> None:
    """Free at the beginning of a solve what would otherwise hold it up later, maybe at its end."""
    while _UNFREED and deadline.left > _FREE_IF_LEFT_SECONDS:
        for mark in list(_UNFREED):
            _free_marked(mark)
