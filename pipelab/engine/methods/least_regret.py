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
from pipelab.engine.deadline import Deadline
from pipelab.engine.objective_and_bound import Objective, status_and_bound
from pipelab.engine.speed_costs import SpeedCosts, with_speeds
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.errors import InvalidPlacement, InvalidValue, nearest
from pipelab.evaluation import evaluate
from pipelab.fields import Real, checked_value, described
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


def stages_are_as_fast_as_one_type(problem: Problem) -> bool:
    """Whether no stage shares its work among types of different speeds."""
    one_type = problem.same_type_stages or problem.max_gpus_per_stage == 1
    return one_type or problem.costs.mixes_as_slowest(problem)


def is_worst_with_one_slow(problem: Problem) -> bool:
    """Whether a full pipeline keeps least where one type is slow, or none."""
    return stages_are_as_fast_as_one_type(problem) and problem.costs.filling == "synchronous"


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


def shares_kept(values: np.ndarray, best: Sequence[PlanAnswer]) -> np.ndarray:
    """Return the share of the best that each plan keeps in the worst scenario.

    Parameters
    ----------
    values : float array, shape (plans, scenarios)
        What each plan yields.
    best : sequence of PlanAnswer
        Of every scenario, whose bounds count where a proof is missing.
    """
    bounds = [np.inf if answer.bound is None else answer.bound for answer in best]
    return np.minimum(1.0, (values / np.maximum(bounds, values.max(axis=0))).min(axis=1))


def choose_least_lost(
    values: np.ndarray,
    best: Sequence[PlanAnswer],
    bands: Mapping[str, float],
    *,
    most: float,
    tolerance: float,
    cases: str,
) -> tuple[int, dict[str, Any]]:
    """Choose the plan that loses least; return its number, and what an answer says of it.

    Parameters
    ----------
    values : float array, shape (plans, scenarios)
        What each plan yields; the first is the best for the predicted speeds, which are the first scenario.
    best : sequence of PlanAnswer
        Of every scenario.
    most : float
        No plan keeps a larger share.
    tolerance : float
        Of that share: what comes this close is proven.
    cases : str
        The scenarios in words.
    """
    shares = shares_kept(values, best)
    at = max(range(len(values)), key=lambda plan: (shares[plan], values[plan, 0]))
    status_and_bound(float(shares[at]), most)  # refuses a bound that a plan exceeds
    proven = most <= shares[at] * (1 + tolerance)
    lost, least = (max(0.0, float(x)) for x in (1 - shares[at], 1 - most))
    lost = 0.0 if lost < ONE_ANSWER else lost
    goal = Objective(
        name="percent_lost",
        unit=f"% lost at most for {cases} within {100 * max(bands.values()):.3g}%",
        value=100 * lost,
        bound=100 * (lost if proven else least),
    )
    first = 1 - float(shares[0])
    price = max(0.0, 1 - float(values[at, 0] / values[0, 0]))
    said = "the best for the predicted speeds"
    return at, {
        "status": "optimal" if proven else "feasible",
        "bound": None,
        "objective": goal,
        "reason": f"{said} loses up to {first:.1%}, and yields {price:.1%} more where they are true",
        "stopped_by": None if proven else next(filter(None, (a.stopped_by for a in best)), None),
        "details": {**best[0].details, "nominal": best[0], "nominal_lost": first, "price": price},
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
    deadline = Deadline(options.get("time_limit"), options.get("stop"))
    full = objective == "rate"
    for_all = full and is_worst_with_one_slow(problem)
    speeds = speeds_tried(bands, for_all)
    problems = [replace(problem, costs=with_speeds(problem.costs, one)) for one in speeds]

    def asked(objective: str, problem: Problem, left: int) -> Result:
        return ask(objective, problem, {**options, **deadline.part(left), "on_progress": None})

    def values(placement: Placement) -> list[float]:
        return [tokens_per_s(one, placement, full) for one in problems]

    best = [asked(objective, one, len(problems) + 1 - i) for i, one in enumerate(problems)]
    nominal, placements = best[0], [one.placement for one in best if one.placement is not None]
    if nominal.placement is None:
        return nominal
    table = [values(placement) for placement in placements]
    known = np.max(table, axis=0)
    weights = tuple((known[0] / known).tolist())
    # Memory for more in flight may bring a mode of a greater rate, unless that is what is preferred.
    base = problem.costs if full else problem.costs.preferring_rate()
    costs = SpeedCosts(costs=base, scenarios=speeds, weights=weights)
    joint = asked("rate", replace(problem, costs=filled(costs, "synchronous")), 1)
    if joint.placement is not None:
        placements.append(joint.placement)
        table.append(values(joint.placement))
    at, said = choose_least_lost(
        np.array(table),
        best,
        bands,
        most=1.0 if joint.bound is None else min(1.0, float(joint.bound / known[0])),
        tolerance=ONE_ANSWER if full else ATTAINED,
        cases="all speeds" if for_all else f"{len(problems)} cases of speeds",
    )
    if said["status"] != "optimal":
        said["stopped_by"] = said["stopped_by"] or joint.stopped_by
    return replace(
        nominal,
        problem=problem,
        placement=placements[at],
        throughput=table[at][0],
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
