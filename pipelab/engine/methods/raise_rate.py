"""A front of throughput against something least: raise the floor of throughput, and ask again."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.methods.latency import BY_TOLERANCE
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.fields import given
from pipelab.solving import Result


def raise_floor(
    least: Callable[[float], Result],
    above: Callable[[float], float],
    deadline: Deadline,
    on_point: Callable[[Result], None] | None,
    within: float = PROVEN_WITHIN,
) -> tuple[tuple[Result, ...], bool]:
    """Every placement that nothing beats in both throughput and what `least` makes least; slowest first.

    The least at one floor has some throughput; nothing of a rate between the two is any lower. So
    the next subproblem is about the next higher rate there is, and one of finitely many. A point that
    the next one equals is dropped: the next is faster. A point is given out when that is settled.

    A least that is proven to a solver's tolerance only does not end the front. Such a point, one that
    the next may equal, and what was found when time ran out are kept, with status "feasible".

    Parameters
    ----------
    least : function of a floor
        The answer at that floor of throughput.
    above : function of a throughput
        The next floor to ask for; infinite if nothing is faster.
    within : float
        Values this close, as a share, are one value.
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
        most = _value(pending) * (1 + within)
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
        answer = least(floor)
        settle(answer)
        if answer.status == "infeasible":
            return tuple(points), proven
        if not _goes_on(answer) or deadline.reason is not None:
            return (*points, *([_open(answer)] if _found(answer) else [])), False
        pending = answer
        floor = above(given(answer.throughput))


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
