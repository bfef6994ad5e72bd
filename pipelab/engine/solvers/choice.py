"""Solve a program with HiGHS or SCIP; what the solver returns is checked before it is read."""

from typing import Any

import numpy as np

from pipelab.engine.solvers import highs, scip
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.engine.tolerances import NOT_SOLVED
from pipelab.errors import PipelabError

_SOLVERS: dict[str, Any] = {"highs": highs, "scip": scip}


def run_program(program: LinearProgram, solver: str = "highs", **options: Any) -> SolverRun:
    """Solve a program, and check what the solver returns against its rows.

    Parameters
    ----------
    program : LinearProgram
    solver : {"highs", "scip"}
        HiGHS for the small programs, SCIP for the joint ones.
    **options
        Of the solver's `run`.

    Raises
    ------
    PipelabError
        What the solver returns breaks the program.
    """
    run = _SOLVERS[solver].run(program, **options)
    broken = broken_by(program, run.x)
    if broken is not None:
        raise PipelabError(f"{solver_version(solver)} returned what breaks {broken} of its program")
    return run


def broken_by(program: LinearProgram, x: np.ndarray | None) -> str | None:
    """Name what a solution breaks: bounds, whole numbers, or a block of rows; None if nothing.

    Whole numbers are rounded, as they are when they are read. What was not reported (`scip.run`)
    breaks nothing.
    """
    if x is None:
        return None
    values = np.where(program.integer, np.rint(x), x)
    size = np.maximum(1, np.abs(values))
    if (np.abs(values - x) > NOT_SOLVED * size).any():
        return "whole numbers"
    if (np.maximum(program.lower - values, values - program.upper) > NOT_SOLVED * size).any():
        return "bounds"
    for name, block in program.blocks.items():
        terms, amount = abs(block.matrix), block.matrix @ values
        # rows of whole numbers alone are kept exactly; others as well as a solver knows each number
        mixed = terms @ ~program.integer > 0
        amounts = np.where(mixed, terms @ size, 1.0)
        for side, excess in (
            (block.lower, block.lower - amount),
            (block.upper, amount - block.upper),
        ):
            room = NOT_SOLVED * np.maximum(amounts, np.where(np.isfinite(side), np.abs(side), 0.0))
            if (excess > room).any():
                return f"row {name!r}"
    return None


def solver_version(solver: str = "highs") -> str:
    """Return name and version, as a result states it."""
    return _SOLVERS[solver].version()
