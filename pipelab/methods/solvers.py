"""Who answers the aggregated form's small programs, and with which settings."""

import math
from importlib import import_module
from numbers import Real

from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.program import LinearProgram
from pipelab.solver_run import SolverRun

__all__ = ["check_amounts", "check_solver", "run_program", "solver_version"]

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


def check_amounts(what: str, time_limit=None, at_least=0.0) -> None:
    """Refuse limits and floors that are no numbers of at least 0.

    Raises
    ------
    InvalidValue
    """
    for name, value in (("time_limit", time_limit), ("at_least", at_least)):
        number = isinstance(value, Real) and not isinstance(value, bool) and value >= 0
        if name == "time_limit" and not (value is None or number):
            raise InvalidValue(what, [(name, value, "expected seconds, at least 0, or None")])
        if name == "at_least" and not (number and math.isfinite(value)):
            raise InvalidValue(what, [(name, value, "expected tokens/s, a finite number of at least 0")])


def run_program(solver: str, program: LinearProgram, **limits) -> SolverRun:
    """Hand a program to "scip" or "highs"; `limits` are `time_limit` and `stop`."""
    return import_module(f"pipelab.{check_solver(solver)}").run(program, **limits, **_SETTINGS[solver])


def solver_version(solver: str) -> str:
    """Name and version, as a result states it."""
    return import_module(f"pipelab.{check_solver(solver)}").version()
