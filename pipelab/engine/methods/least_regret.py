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
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from pipelab.costs import WrappedCosts, filled, with_speeds
from pipelab.engine.answers import Result
from pipelab.engine.deadline import Deadline, apart
from pipelab.engine.objective_and_bound import Objective
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.errors import InvalidPlacement, InvalidValue, nearest
from pipelab.evaluation import evaluate
from pipelab.fields import Real, checked_value, described, given
from pipelab.hardware.relative_bands import relative_band
from pipelab.placement import Placement
from pipelab.problem import CostModel, Problem, StageCost, StageTables

MOST_CORNERS = 16  # all are scenarios up to this number; of more, those of one slow type
_Share = Annotated[
    Annotated[Real, Ge(0), Lt(1)],
    described("a share of at least 0 and below 1, a mapping of GPU types to such shares, or 'band'"),
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
    if within == "band":
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


def within_words(bands: Mapping[str, float]) -> str:
    """Return the bands in words, such as "10%" or "5% to 19%"."""
    ends = dict.fromkeys(f"{100 * end:.3g}%" for end in (min(bands.values()), max(bands.values())))
    return " to ".join(ends)


def is_as_fast_as_one_type(problem: Problem) -> bool:
    """Whether every stage is as fast as stages of one of its types."""
    one_type = problem.same_type_stages or problem.max_gpus_per_stage == 1
    return one_type or problem.costs.mixes_as_slowest(problem)


def slow_one_by_one(bands: Mapping[str, float]) -> list[dict[str, float]]:
    """Return T + 1 speeds of T types: all fast, and each type slow while the others are fast."""
    fast = {name: 1 + share for name, share in bands.items()}
    slow = [{**fast, name: 1 - share} for name, share in bands.items() if share]
    return [fast, *slow]


@dataclass(frozen=True, eq=False, kw_only=True)
class LeastShareCosts(WrappedCosts):
    """A cost model whose rates are the least of several scenarios, each times a weight."""

    scenarios: Sequence[CostModel]
    weights: Sequence[float]

    def link_throughput(self, problem: Problem, bandwidth_gb_per_s: Any) -> Any:
        return self.costs.link_throughput(problem, bandwidth_gb_per_s) * min(self.weights)

    def stage(self, *args: Any, **kwargs: Any) -> StageCost:
        pairs = zip(self.scenarios, self.weights, strict=True)
        rate = min(costs.stage(*args, **kwargs).throughput * weight for costs, weight in pairs)
        return self.costs.stage(*args, **kwargs)._replace(throughput=rate, pass_seconds=None)

    def stage_tables(self, *args: Any, **kwargs: Any) -> StageTables:
        pairs = zip(self.scenarios, self.weights, strict=True)
        rates = [costs.stage_tables(*args, **kwargs).throughput * weight for costs, weight in pairs]
        tables = self.costs.stage_tables(*args, **kwargs)
        return tables._replace(throughput=np.minimum.reduce(rates), pass_seconds=None)


@dataclass(frozen=True, kw_only=True)
class PercentLost(Objective):
    """Percent of the best rate that a placement loses at most, and the speeds that count."""

    speeds: str

    @property
    def scope(self) -> str:
        """The speeds that the proof covers."""
        return f" for {self.speeds}"


@dataclass(frozen=True, eq=False, kw_only=True)
class RobustResult(Result):
    """What `pl.solve(…, within=…)` returns: the placement that loses least, whichever speeds are true.

    Attributes
    ----------
    bands : mapping of str to float
        How far off the speed of each type may be.
    share_kept, share_bound : float
        The least share of the best rate that the placement keeps, and what none exceeds.
    nominal : Result
        The best for the predicted speeds.
    nominal_share : float
        What that one keeps.
    scenarios : int
        Problems that were solved: the predicted speeds, and the corners of the bands.
    """

    bands: Mapping[str, float]
    share_kept: float
    share_bound: float
    nominal: Result
    nominal_share: float
    scenarios: int

    @property
    def price(self) -> float:
        """What the placement yields less than the nominal one if all is as predicted, as a share."""
        return max(0.0, 1 - given(self.throughput) / given(self.nominal.throughput))

    @property
    def sentence(self) -> str:
        """The answer, and what the best for the predicted speeds would lose."""
        lost, price = 1 - self.nominal_share, self.price
        return (
            f"{super().sentence} The best for the predicted speeds loses up to {lost:.1%}; "
            f"where these are true, this one yields {price:.1%} less than that."
        )


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
        A `RobustResult`; the answer for the predicted speeds where there is no placement.
    """
    bands = speed_bands(problem, within, "solve")
    deadline = Deadline(options.get("time_limit"))
    one_type, full = is_as_fast_as_one_type(problem), objective == "rate"
    for_all = full and one_type and problem.costs.filling == "synchronous"
    corners = slow_one_by_one(bands)
    ends = [(1 - share, 1 + share) if share else (1.0,) for share in bands.values()]
    if not for_all and 2 ** len(ends) <= MOST_CORNERS:
        corners = [dict(zip(bands, corner, strict=True)) for corner in product(*ends)]
    costs = [problem.costs, *(with_speeds(problem.costs, corner) for corner in corners)]
    problems = [replace(problem, costs=one) for one in costs]

    def asked(objective: str, problem: Problem, left: int) -> Result:
        part = {name: value for name, value in options.items() if name != "on_progress"}
        if "stop" in part:
            part["stop"] = apart(part["stop"])
        if deadline.limited:
            part["time_limit"] = deadline.share(left)
        return ask(objective, problem, part)

    best = [asked(objective, one, len(problems) + 1 - i) for i, one in enumerate(problems)]
    nominal, placements = best[0], [r.placement for r in best if r.placement is not None]
    if nominal.placement is None:
        return nominal

    def values(placement: Placement) -> np.ndarray:
        return np.array([_value(one, placement, full) for one in problems])

    rates = np.max([values(placement) for placement in placements], axis=0)
    bounds = [np.inf if result.bound is None else result.bound for result in best]
    weights = tuple((rates[0] / rates).tolist())
    least = LeastShareCosts(costs=problem.costs, scenarios=tuple(costs), weights=weights)
    joint = asked("rate", replace(problem, costs=filled(least, "synchronous")), 1)
    placements += [joint.placement] if joint.placement else []
    shares = {
        one: min(1.0, *(values(one) / np.maximum(bounds, rates)).tolist()) for one in placements
    }
    placement = max(shares, key=lambda one: (shares[one], _value(problem, one, full)))
    kept = shares[placement]
    most = 1.0 if joint.bound is None else min(1.0, joint.bound / rates[0])
    proven = most <= kept * (1 + (ONE_ANSWER if full else ATTAINED))
    most = kept if proven else most
    cases = "all speeds" if for_all else f"{len(problems)} cases of speeds"
    goal = PercentLost(
        name="percent_lost",
        unit="% lost at most",
        value=100 * (1 - kept),
        bound=100 * (1 - most),
        speeds=f"{cases} within {within_words(bands)}",
    )
    stopped = next((r.stopped_by for r in (*best, joint) if r.stopped_by), None)
    shown = {name: getattr(nominal, name) for name in ("method", "size", "solver", "memory_for")}
    return RobustResult(
        **shown,
        problem=problem,
        status="optimal" if proven else "feasible",
        placement=placement,
        throughput=_value(problem, placement, full),
        objective=goal,
        seconds=deadline.spent,
        stopped_by=None if proven else stopped,
        details={"under_limit": nominal.under_limit} if nominal.under_limit else {},
        bands=bands,
        share_kept=kept,
        share_bound=most,
        nominal=nominal,
        nominal_share=shares[nominal.placement],
        scenarios=len(problems),
    )


def _value(problem: Problem, placement: Placement, full: bool) -> float:
    """Tokens/s of a placement: of a full pipeline, or attainable; 0 where it is not valid."""
    number = problem.workload.in_memory if full else problem.workload.in_flight
    try:
        evaluation = evaluate(problem.with_in_flight(number), placement)
    except InvalidPlacement:
        return 0.0
    return evaluation.rate if full else evaluation.attainable
