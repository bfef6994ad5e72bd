"""The options that several methods of `solve` share, checked before any of them runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from pipelab.engine.solvers import choice
from pipelab.errors import InvalidValue
from pipelab.fields import Flag, Real, checked_value, described

if TYPE_CHECKING:
    from pipelab.problem import Problem

__all__ = ["check_options", "refuse_training"]

_KINDS: dict[str, Any] = {
    "time_limit": choice.TimeLimit,
    "gap": choice.Gap,
    "limit": Annotated[Real, Ge(0), described("a number of at least 0; math.inf is no limit")],
    "budget": choice.MostPrice,
    "stop": choice.Stop,
    "on_progress": choice.OnProgress,
    "factor": Flag,
    "stop_at_bound": Flag,
}


def check_options(options: Mapping[str, Any], what: str = "solve") -> None:
    """Raise `InvalidValue` with all options that do not fit; an infinite gap would prove anything."""
    bad: list[tuple[str, object, str]] = []
    for name in [name for name in options if name in _KINDS]:
        try:
            checked_value(what, name, options[name], _KINDS[name])
        except InvalidValue as error:
            bad += error.problems
    if bad:
        raise InvalidValue(what, bad)


def refuse_training(problem: "Problem", what: str) -> None:
    """Raise `InvalidValue` for a workload of training, which only the objective "step_time" places."""
    phase = problem.workload.phase
    if phase == "training":
        expected = (
            "expected another, or solve(…, objective='step_time'); 'prefill' has the forward alone"
        )
        raise InvalidValue(what, [("problem.workload.phase", phase, expected)])
