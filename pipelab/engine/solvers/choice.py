"""Who answers the aggregated form's small programs, and with which settings."""

from importlib import import_module
from numbers import Real
from typing import Any

from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.fields import instance, real_number
from pipelab.problem import Problem

__all__ = ["check_asked", "check_solver", "run_program", "solver_version"]

# Probing fixes one variable after the other to learn from it; here that took nine tenths of SCIP's
# time.
_SETTINGS = {"scip": {"settings": {"propagating/probing/maxprerounds": 0}}, "highs": {}}


def check_solver(solver: str) -> str:
    """The name itself, if there is such a solver.

    Raises
    ------
    UnknownName
    """
    if not isinstance(solver, str) or solver not in _SETTINGS:
        raise UnknownName(
            f"there is no solver={solver!r}; {nearest(str(solver), tuple(_SETTINGS))}"
        )
    return solver


def check_asked(
    what: str,
    problem: Any,
    solver: str,
    time_limit: Any = None,
    at_least: Any = 0.0,
    stop: Any = None,
) -> None:
    """Refuse what is no problem, limits and floors that are no numbers of at least 0, and a stop that is no event.

    Raises
    ------
    InvalidValue, UnknownName
    """
    instance(what, "problem", problem, Problem, "a Problem, such as load_case('tiny')")
    check_solver(solver)
    number = (
        isinstance(time_limit, Real) and not isinstance(time_limit, bool) and float(time_limit) >= 0
    )
    if not (time_limit is None or number):
        raise InvalidValue(
            what, [("time_limit", time_limit, "expected seconds, at least 0, or None")]
        )
    expected = "expected tokens/s, a finite number of at least 0"
    if real_number(what, "at_least", at_least, expected) < 0:
        raise InvalidValue(what, [("at_least", at_least, expected)])
    if not (stop is None or hasattr(stop, "is_set")):
        raise InvalidValue(what, [("stop", stop, "expected a threading.Event, or None")])


def run_program(solver: str, program: LinearProgram, **limits: Any) -> SolverRun:
    """Hand a program to "scip" or "highs"; `limits` are `time_limit` and `stop`."""
    return import_module(f"pipelab.engine.solvers.{check_solver(solver)}").run(
        program, **limits, **_SETTINGS[solver]
    )


def solver_version(solver: str) -> str:
    """Name and version, as a result states it."""
    return import_module(f"pipelab.engine.solvers.{check_solver(solver)}").version()
