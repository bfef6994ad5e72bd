"""The failed heuristic from problem to result: a predicted rate, and no placement."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pipelab.engine.deadline import Deadline, Ended, deadline_of, made_in_time
from pipelab.engine.formulations.type_count import (
    TypeCounts,
    average_link,
    build,
    list_options,
    most_layers,
)
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.errors import UnknownName, nearest
from pipelab.fields import given
from pipelab.placement import show_layers
from pipelab.problem import Problem
from pipelab.solving import Result

ROWS = ("as_written", "counting")


def solve_type_count(
    problem: Problem,
    *,
    factor: bool = True,
    rows: str = "as_written",
    time_limit: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """What the heuristic predicts; see `formulations/type_count.py` for its parts.

    Parameters
    ----------
    factor : bool
        Keep its factor (2 - 1/k).
    rows : "as_written" or "counting"
        Its row per GPU number, or the one that was meant.
    time_limit, stop, on_progress
        As for `solve`.

    Returns
    -------
    Result
        Never a placement: the answer names types and numbers, not GPUs. `details` has what
        it predicts (`predicted`, tokens/s) and chose (`stages`), and how many of its options
        do not fit in memory, by its own formula (`misfits`) and by the problem's (`real_misfits`).

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "type_count")
    >>> round(result.details["predicted"], 3), result.placement
    (452.676, None)
    """
    if rows not in ROWS:
        raise UnknownName(f"there is no rows={rows!r}; {nearest(rows, ROWS)}")
    with deadline_of(time_limit, stop) as deadline:
        try:
            return _solve(problem, factor, rows, deadline, on_progress)
        except Ended as end:
            reason = "the heuristic was stopped while its options were being listed"
            details = {"predicted": None, "stages": (), "progress": ()}
            return Result(
                problem,
                "type_count",
                "unknown",
                None,
                None,
                None,
                deadline.spent,
                {},
                "",
                reason,
                end.reason,
                details,
            )


def _solve(
    problem: Problem, factor: bool, rows: str, deadline: Deadline, on_progress: Callable | None
) -> Result:
    from pipelab.engine.solvers import scip

    options = made_in_time(lambda until: list_options(problem, factor, until), deadline)
    program = build(options, rows)
    most: int | None = most_layers(options)
    if rows == "as_written" and given(most) < problem.model.layers:
        # Added up, its rows forbid it. SCIP says so too, but on medium only after 20 s and more.
        run = SolverRun("infeasible")
    else:
        most = None
        run = run_program(program, solver="scip", deadline=deadline, on_progress=on_progress)
    stages: tuple[TypeCounts, ...] = ()
    if run.x is not None:
        chosen = np.flatnonzero(run.x[program.columns.slices["n"]] > 0.5)
        stages = tuple(
            _stage(options, int(o)) for o in sorted(chosen, key=lambda o: options.start[o])
        )
    predicted = _predicted(problem, stages)
    size = {"segments": len(options.segments), "options": len(options.start)} | program.size
    details = {
        "predicted": predicted,
        "stages": stages,
        "misfits": int((~options.passes).sum()),
        "real_misfits": int((~options.fits).sum()),
        "solver_status": run.status,
        "progress": run.progress,
    }
    return Result(
        problem,
        "type_count",
        "unknown",
        None,
        None,
        None,
        deadline.spent,
        size,
        scip.version(),
        deadline.remark(_reason(problem, run.status, predicted, stages, most)),
        run.stopped_by,
        details,
    )


def _stage(options: Any, o: int) -> TypeCounts:
    layers = range(int(options.start[o]), int(options.start[o] + options.size[o]))
    return TypeCounts(
        layers,
        options.types[options.type_of[o]],
        int(options.number[o]),
        float(options.throughput[o]),
    )


def _predicted(problem: Problem, stages: tuple[TypeCounts, ...]) -> float | None:
    """The heuristic's own rate of its answer, without the solver's tolerance."""
    if not stages:
        return None
    links = [average_link(problem)] if len(stages) > 1 else []
    return min([stage.throughput for stage in stages] + links)


def _reason(
    problem: Problem, status: str, predicted: float | None, stages: Any, most: int | None
) -> str:
    if most is not None:
        return (
            f"the heuristic lets each GPU type hold one stage, and so at most {most} of {problem.model.layers} layers "
            "in all: it calls the problem infeasible, which proves nothing about it"
        )
    if status == "infeasible":
        return "the heuristic calls the problem infeasible, which proves nothing about it"
    if not stages:
        return "the heuristic was stopped before it found anything"
    parts = [f"layers {show_layers(s.layers)} on {s.number} × {s.gpu_type}" for s in stages]
    return (
        f"the heuristic predicts {predicted:,.6g} tokens/s for {', '.join(parts)}, but names no GPU"
    )
