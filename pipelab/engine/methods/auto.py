"""What `solve` does unless a method is named: the aggregated search, or the joint ILP where that is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipelab.engine.answers import Result
from pipelab.engine.deadline import Deadline, Stop
from pipelab.engine.methods.aggregated import solve_aggregated
from pipelab.engine.methods.joint import solve_joint
from pipelab.errors import NotApplicable, TooLarge
from pipelab.problem import Problem


def solve_auto(
    problem: Problem,
    *,
    budget: float | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: Stop = None,
    on_progress: Callable | None = None,
) -> Result:
    """Prove the optimum with the method that fits the problem.

    Parameters
    ----------
    budget, time_limit, gap, stop, on_progress
        As for `solve`.

    Returns
    -------
    Result
        `method` names the method that answered: "aggregated"; or, where that refuses to list too many mixtures
        of GPU types in one stage, "joint" in its tight form, with that refusal as the `reason`.

    Raises
    ------
    TooLarge
        Both are refused; the message has both reasons. Or the first is, and there is a budget, which "joint" does
        not know.
    """
    deadline = Deadline(time_limit)
    shared: dict[str, Any] = {"gap": gap, "stop": stop, "on_progress": on_progress}
    try:
        return solve_aggregated(problem, budget=budget, time_limit=time_limit, **shared)
    except TooLarge as error:
        if budget is not None:
            raise
        refusal = error
    why = f"method 'aggregated' refuses: {refusal}"
    try:
        result = solve_joint(problem, form="tight", time_limit=deadline.share(), **shared)
    except TooLarge as error:
        raise TooLarge(f"{why}; and method 'joint': {error}") from None
    except NotApplicable:  # its rates are too far apart
        raise refusal from None
    reason = f"{result.reason}; {why}" if result.reason else why
    return replace(result, reason=reason, seconds=deadline.spent)
