"""The arguments that `solve`, `deploy`, `flow` and their methods share: their types, and what is checked first."""

from collections.abc import Callable, Mapping
from threading import Event
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import BeforeValidator, InstanceOf

from pipelab.errors import InvalidValue
from pipelab.fields import Flag, NotNegative, Positive, Real, checked_value, described
from pipelab.problem import Problem

AskedProblem = Annotated[Problem, InstanceOf(), described("a Problem, such as load_case('tiny')")]
TimeLimit = Annotated[Annotated[Real, Ge(0)] | None, described("seconds, at least 0, or None")]
LeastThroughput = Annotated[NotNegative, described("tokens/s, a finite number of at least 0")]
Gap = Annotated[NotNegative, described("a share, a finite number of at least 0")]
MostPrice = Annotated[Positive | None, described("$ per hour, a number above 0, or None")]
OnProgress = Annotated[Callable | None, described("a function of Progress, or None")]


def _can_stop(value: Any) -> Any:
    """Return an event or a function; the class Event was meant to be called."""
    if isinstance(value, Event) or (callable(value) and not isinstance(value, type)):
        return value
    raise ValueError("expected a threading.Event, a function of Progress, or None")


Stop = Annotated[Any, BeforeValidator(lambda value: None if value is None else _can_stop(value))]

_KINDS: dict[str, Any] = {
    "time_limit": TimeLimit,
    "gap": Gap,
    "limit": Annotated[Real, Ge(0), described("a number of at least 0; math.inf is no limit")],
    "budget": MostPrice,
    "stop": Stop,
    "on_progress": OnProgress,
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


def refuse_training(problem: Problem, what: str) -> None:
    """Raise `InvalidValue` for a workload of training, which only the objective "step_time" places."""
    phase = problem.workload.phase
    if phase == "training":
        expected = "expected another, such as 'prefill', or solve(…, objective='step_time')"
        raise InvalidValue(what, [("problem.workload.phase", phase, expected)])
