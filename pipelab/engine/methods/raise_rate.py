"""A front of throughput against something least: raise the floor of throughput, and ask again."""

from collections.abc import Callable

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.tolerances import ONE_ANSWER, PROVEN_WITHIN
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

    Parameters
    ----------
    least : `cost_of_rates` or `latency_of_rates`
    on_point : function of Result, or None

    Returns
    -------
    points : tuple of Result
    complete : bool
        False where it was ended early.
    """
    points: list[Result] = []
    pending, floor = None, 0.0
    while True:
        answer = least(rates, floor, solver, deadline.within(np.inf), explain=False)
        known = np.inf if answer.status == "infeasible" else answer.objective.bound or 0.0
        if pending is not None and known > pending.objective.value * (1 + PROVEN_WITHIN):
            points.append(pending)
            if on_point is not None:
                on_point(pending)
        if answer.status != "optimal" or deadline.reason is not None:
            return tuple(points), answer.status == "infeasible"
        pending = answer
        higher = np.searchsorted(
            rates.thresholds, answer.throughput * (1 + ONE_ANSWER), side="right"
        )
        floor = float(rates.thresholds[higher]) if higher < len(rates.thresholds) else np.inf
