"""Who answers the aggregated form's small programs, and with which settings."""

from importlib import import_module

from pipelab.errors import UnknownName, nearest
from pipelab.program import LinearProgram
from pipelab.solver_run import SolverRun

__all__ = ["check_solver", "run_program", "solver_version"]

# Probing fixes one variable after the other to learn from it; here that took nine tenths of SCIP's time.
_SETTINGS = {"scip": {"settings": {"propagating/probing/maxprerounds": 0}}, "highs": {}}


def check_solver(solver: str) -> str:
    """The name itself, if there is such a solver.

    Raises
    ------
    UnknownName
    """
    if solver not in _SETTINGS:
        raise UnknownName(f"there is no solver={solver!r}; {nearest(str(solver), tuple(_SETTINGS))}")
    return solver


def run_program(solver: str, program: LinearProgram, **limits) -> SolverRun:
    """Hand a program to "scip" or "highs"; `limits` are `time_limit` and `stop`."""
    return import_module(f"pipelab.{check_solver(solver)}").run(program, **limits, **_SETTINGS[solver])


def solver_version(solver: str) -> str:
    """Name and version, as a result states it."""
    return import_module(f"pipelab.{check_solver(solver)}").version()
