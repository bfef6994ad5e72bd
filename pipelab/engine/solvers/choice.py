"""Which solver solves the small programs of the aggregated form, and with which settings."""

from importlib import import_module
from threading import Event
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import BeforeValidator, InstanceOf

from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.errors import UnknownName, nearest
from pipelab.fields import NotNegative, Real, described
from pipelab.problem import Problem

# Probing fixes one variable after the other to learn from it; here that took nine tenths of SCIP's
# time.
_SETTINGS = {
    "scip": {"settings": {"propagating/probing/maxprerounds": 0}},
    "highs": {},
}


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


# What a method is asked, as `checked_arguments` reads it.
AskedProblem = Annotated[Problem, InstanceOf(), described("a Problem, such as load_case('tiny')")]
Solver = Annotated[str, BeforeValidator(check_solver)]
TimeLimit = Annotated[Annotated[Real, Ge(0)] | None, described("seconds, at least 0, or None")]
Floor = Annotated[NotNegative, described("tokens/s, a finite number of at least 0")]
Stop = Annotated[InstanceOf[Event] | None, described("a threading.Event, or None")]


def run_program(solver: str, program: LinearProgram, **limits: Any) -> SolverRun:
    """Hand a program to "scip" or "highs"; `limits` are `time_limit` and `stop`."""
    return import_module(f"pipelab.engine.solvers.{check_solver(solver)}").run(
        program, **limits, **_SETTINGS[solver]
    )


def solver_version(solver: str) -> str:
    """Name and version, as a result states it."""
    return import_module(f"pipelab.engine.solvers.{check_solver(solver)}").version()
