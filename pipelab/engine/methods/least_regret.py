"""The placement that loses least whichever speeds are the true ones.

Each type of GPU may be slower or faster than predicted, by a factor on the whole time of its stages. In a scenario,
which says all speeds, a placement keeps a share of the best rate; the least share of all scenarios counts. A placement
keeps a share ρ in all of them if every stage and link has at least ρ times the best rate of each: that is a condition
on every stage by itself. So the placement that keeps most is the optimum of one more problem, whose stages have the
rate min over scenarios of (rate there / best rate there).

`docs/within_the_error.md` has the proof, and why T + 1 scenarios are enough for T types where each stage is as fast as
one of its types.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from pipelab.costs import filled
from pipelab.engine.answers import PlanAnswer, Result
from pipelab.engine.deadline import Deadline, apart
from pipelab.engine.objective_and_bound import Objective
from pipelab.engine.speed_costs import SpeedCosts, with_speeds
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.errors import InvalidPlacement, InvalidValue, nearest
from pipelab.evaluation import evaluate
from pipelab.fields import Real, checked_value, described, given
from pipelab.hardware.relative_bands import relative_band
from pipelab.placement import Placement
from pipelab.problem import Problem

MOST_CORNERS = 16  # all are scenarios up to this number; of more, those of one slow type
_Share = Annotated[
    Annotated[Real, Ge(0), Lt(1)],
    described("a share of at least 0 and below 1, a mapping of types to such shares, or 'band'"),
]


def speed_bands(problem: Problem, within: Any, function: str) -> dict[str, float]:
    """Return how far off the speed of each GPU type of a problem may be, as a share.

    Parameters
    ----------
    problem : Problem
    within : float, mapping of GPU type to float, or "band"
        Types that a mapping does not name are as fast as predicted. "band": `relative_band` of each type.
    function : str
        Was called, for the message.

    Raises
    ------
    InvalidValue
        A share does not fit, there is no such type, or the cost model's times were never compared.
    """
    types = [*dict.fromkeys(kind.type for kind in problem.cluster.kinds)]
    if isinstance(within, str) and within == "band":
        if not problem.costs.engine:
            expected = "expected a share: only the errors of Roofline's times are known"
            raise InvalidValue(function, [("within", within, expected)])
        return {name: min(relative_band(name).share, 0.99) for name in types}
    shares = within if isinstance(within, Mapping) else dict.fromkeys(types, within)
    for name in shares:
        if name not in types:
            raise InvalidValue(function, [("within", name, nearest(str(name), types))])
    checked = {n: checked_value(function, "within", share, _Share) for n, share in shares.items()}
    return {name: checked.get(name, 0.0) for name in types}


def is_worst_with_one_slow(problem: Problem) -> bool:
    """Whether a full pipeline keeps least where one type is slow, or none: stages are as fast as one of their types."""
    one_type = problem.same_type_stages or problem.max_gpus_per_stage == 1
    alone = one_type or problem.costs.mixes_as_slowest(problem)
    return alone and problem.costs.filling == "synchronous"


def slow_one_by_one(bands: Mapping[str, float]) -> list[dict[str, float]]:
    """Return T + 1 speeds of T types: all fast, and each type slow while the others are fast."""
    fast = {name: 1 + share for name, share in bands.items()}
    slow = [{**fast, name: 1 - share} for name, share in bands.items() if share]
    return [fast, *slow]


def speeds_tried(bands: Mapping[str, float], one_slow: bool) -> list[dict[str, float]]:
    """Return the scenarios: as predicted, and all ends of the bands, or those of one slow type if these are enough."""
    ends = [sorted({1 - share, 1 + share}) for share in bands.values()]
    corners = slow_one_by_one(bands)
    if not one_slow and 2 ** len(ends) <= MOST_CORNERS:
        corners = [dict(zip(bands, corner, strict=True)) for corner in product(*ends)]
    return [dict.fromkeys(bands, 1.0), *corners]


def least_lost(
    nominal: PlanAnswer,
    bands: Mapping[str, float],
    *,
    kept: float,
    most: float,
    proven: bool,
    cases: str,
    lost: float,
    price: float,
    ended: Sequence[str | None],
) -> dict[str, Any]:
    """Return what an answer says that was found for least regret.

    Parameters
    ----------
    nominal : PlanAnswer
        The best for the predicted speeds.
    kept, most : float
        Share of the best that the answer keeps in the worst scenario, and the bound on that of any.
    cases : str
        The scenarios in words.
    lost, price : float
        What the nominal answer loses at most, and by how much it is better where the predicted speeds are true.
    ended : sequence of str or None
        What ended the searches early.
    """
    kept = 1.0 if kept > 1 - ONE_ANSWER else kept
    goal = Objective(
        name="percent_lost",
        unit=f"% lost at most for {cases} within {100 * max(bands.values()):.3g}%",
        value=100 * (1 - kept),
        bound=100 * (1 - (kept if proven else most)),
    )
    said = "the best for the predicted speeds"
    return {
        "status": "optimal" if proven else "feasible",
        "bound": None,
        "objective": goal,
        "reason": f"{said} loses up to {lost:.1%}, and yields {price:.1%} more where they are true",
        "stopped_by": None if proven else next(filter(None, ended), None),
        "details": {**nominal.details, "nominal": nominal, "nominal_lost": lost, "price": price},
    }


def solve_for_least_regret(
    problem: Problem,
    options: Mapping[str, Any],
    *,
    within: Any,
    objective: str,
    ask: Callable[[str, Problem, Mapping[str, Any]], Result],
) -> Result:
    """Find the placement that keeps the largest share of the best rate in the worst scenario.

    Parameters
    ----------
    problem : Problem
    options : mapping
        Of `pl.solve`; a time limit is for all scenarios together.
    within : float, mapping of GPU type to float, or "band"
    objective : {"rate", "throughput"}
        Of the rate of a full pipeline, or the attainable one.
    ask : function of an objective, a problem and options
        Solves.

    Returns
    -------
    Result
        Its objective is the percent of the best rate that it loses at most. `details` has `nominal`, the answer for the
        predicted speeds, which is returned itself where there is no placement; `nominal_lost`, the share that this one
        loses at most; and `price`, the share by which it is better where the predicted speeds are true.
    """
    bands = speed_bands(problem, within, "solve")
    deadline, full = Deadline(options.get("time_limit")), objective == "rate"
    for_all = full and is_worst_with_one_slow(problem)
    speeds = speeds_tried(bands, for_all)
    problems = [replace(problem, costs=with_speeds(problem.costs, one)) for one in speeds]

    def asked(objective: str, problem: Problem, left: int) -> Result:
        ends = {"time_limit": deadline.share(left), "stop": apart(options.get("stop"))}
        return ask(objective, problem, {**options, **ends, "on_progress": None})

    def values(placement: Placement) -> np.ndarray:
        return np.array([tokens_per_s(one, placement, full) for one in problems])

    def share(placement: Placement) -> float:
        return min(1.0, float((values(placement) / np.maximum(bounds, known)).min()))

    best = [asked(objective, one, len(problems) + 1 - i) for i, one in enumerate(problems)]
    nominal, placements = best[0], [one.placement for one in best if one.placement is not None]
    if nominal.placement is None:
        return nominal
    known = np.max([values(placement) for placement in placements], axis=0)
    bounds = [np.inf if result.bound is None else result.bound for result in best]
    weights = tuple((known[0] / known).tolist())
    # Memory for more in flight may bring a mode of a greater rate, unless that is what is preferred.
    base = problem.costs if full else problem.costs.preferring_rate()
    costs = SpeedCosts(costs=base, scenarios=speeds, weights=weights)
    joint = asked("rate", replace(problem, costs=filled(costs, "synchronous")), 1)
    placements += [] if joint.placement is None else [joint.placement]
    shares = {one: share(one) for one in placements}
    placement = max(shares, key=lambda one: (shares[one], values(one)[0]))
    kept, now = shares[placement], float(values(placement)[0])
    most = 1.0 if joint.bound is None else min(1.0, float(joint.bound / known[0]))
    said = least_lost(
        nominal,
        bands,
        kept=kept,
        most=most,
        proven=most <= kept * (1 + (ONE_ANSWER if full else ATTAINED)),
        cases="all speeds" if for_all else f"{len(problems)} cases of speeds",
        lost=1 - shares[given(nominal.placement)],
        price=max(0.0, 1 - now / float(values(nominal.placement)[0])),
        ended=[result.stopped_by for result in (*best, joint)],
    )
    return replace(
        nominal,
        problem=problem,
        placement=placement,
        throughput=now,
        seconds=deadline.spent,
        **said,
    )


def tokens_per_s(problem: Problem, placement: Placement, full: bool) -> float:
    """Return what a placement yields as a full pipeline, or attains; 0 where it is not valid."""
    number = problem.workload.in_memory if full else problem.workload.in_flight
    try:
        evaluation = evaluate(problem.with_in_flight(number), placement)
    except InvalidPlacement:
        return 0.0
    return evaluation.rate if full else evaluation.attainable
