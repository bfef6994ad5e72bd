"""A front of throughput against something least: raise the floor of throughput, and ask again."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.methods.latency import BY_TOLERANCE
from pipelab.engine.tolerances import ONE_ANSWER, PROVEN_WITHIN
from pipelab.fields import given
from pipelab.solving import Result


def raise_floor(
    rates: StageRates,
    least: Callable,
    solver: str,
    deadline: Deadline,
    on_point: Callable[[Result], None] | None,
) -> tuple[tuple[Result, ...], bool]:
    """Every placement that nothing beats in both throughput and what `least` makes least; slowest first.

    The least at one floor has some throughput; nothing of a rate between the two is any lower. So
    the next subproblem is about the next higher rate there is, and one of finitely many. A point that
    the next one equals is dropped: the next is faster. A point is given out when that is settled.

    A least that is proven to a solver's tolerance only does not end the front. Such a point, one that
    the next may equal, and what was found when time ran out are kept, with status "feasible".

    Parameters
    ----------
    least : `cost_of_rates` or `latency_of_rates`
    on_point : function of Result, or None
        Not called with a point that was left open when the search ended.

    Returns
    -------
    points : tuple of Result
    complete : bool
        False where it was ended early, or a point is not proven.
    """
    points: list[Result] = []
    pending: Result | None = None
    floor, proven = 0.0, True

    def settle(answer: Result) -> None:
        """The pending point, now that the least above it is known, is one of the front or is not."""
        nonlocal proven
        if pending is None:
            return
        most = _value(pending) * (1 + PROVEN_WITHIN)
        infeasible = answer.status == "infeasible"
        known = np.inf if infeasible else given(answer.objective).bound or 0.0
        if known <= most and _found(answer) and _value(answer) <= most:
            return
        point = pending if known > most else _open(pending)
        proven &= point.status == "optimal"
        points.append(point)
        if on_point is not None and (known > most or _goes_on(answer)):
            on_point(point)

    while True:
        answer = least(rates, floor, solver, deadline.within(np.inf), explain=False)
        settle(answer)
        if answer.status == "infeasible":
            return tuple(points), proven
        if not _goes_on(answer) or deadline.reason is not None:
            return (*points, *([_open(answer)] if _found(answer) else [])), False
        pending = answer
        higher = np.searchsorted(
            rates.thresholds, answer.throughput * (1 + ONE_ANSWER), side="right"
        )
        floor = float(rates.thresholds[higher]) if higher < len(rates.thresholds) else np.inf


def _goes_on(answer: Result) -> bool:
    """Whether it is the least, if only to a solver's tolerance."""
    claimed = answer.status == "feasible" and answer.stopped_by == BY_TOLERANCE
    return answer.status in ("optimal", "infeasible") or claimed


def _found(answer: Result) -> bool:
    return answer.objective is not None and answer.objective.value is not None


def _value(answer: Result) -> float:
    return given(given(answer.objective).value)


def _open(answer: Result) -> Result:
    """A point of which it is not settled whether a faster placement costs no more."""
    reason = answer.reason or "it is not settled whether a faster placement costs no more"
    return replace(answer, status="feasible", reason=reason)
