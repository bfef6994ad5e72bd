"""The options that several methods of `solve` share, checked before any of them runs."""

import math
import threading
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from pipelab.errors import InvalidValue
from pipelab.fields import is_real

if TYPE_CHECKING:
    from pipelab.problem import Problem

__all__ = ["check_options", "refuse_training"]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidValue` with all options that do not fit; an infinite gap would prove anything."""
    bad = []
    for name in [n for n in ("time_limit", "gap", "limit") if n in options]:
        value, optional = options[name], name == "time_limit"
        endless = name != "gap" and isinstance(value, Real) and value == math.inf
        if not (endless or (optional and value is None) or (is_real(value) and value >= 0)):
            too_large = isinstance(value, int | float) and value is not True and value > 0
            finite = "finite " if too_large else ""
            bad.append((name, value, f"expected a {finite}number, at least 0"))
    budget = options.get("budget")
    if not (budget is None or (is_real(budget) and budget > 0)):
        bad.append(("budget", budget, "expected $ per hour, a number above 0, or None"))
    stop, on_progress = options.get("stop"), options.get("on_progress")
    function = callable(stop) and not isinstance(
        stop, type
    )  # the class Event was meant to be called
    if not (stop is None or isinstance(stop, threading.Event) or function):
        bad.append(("stop", stop, "expected a threading.Event, a function of Progress, or None"))
    if not (on_progress is None or callable(on_progress)):
        bad.append(("on_progress", on_progress, "expected a function of Progress, or None"))
    if bad:
        raise InvalidValue("solve", bad)


def refuse_training(problem: "Problem", what: str) -> None:
    """Raise `InvalidValue` for a workload of training, which only the objective "step_time" places."""
    phase = problem.workload.phase
    if phase == "training":
        expected = (
            "expected another, or solve(…, objective='step_time'); 'prefill' has the forward alone"
        )
        raise InvalidValue(what, [("problem.workload.phase", phase, expected)])
