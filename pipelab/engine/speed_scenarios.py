"""Does the plan change within the error of the prediction?

A proof holds for the stage times that it assumes, and these are predictions. So each type of GPU, and
all of them together, is made faster and slower in turn; the problem is solved again, and the plan is
evaluated with the new times. What matters is not whether another plan is then better, but by how
much.
"""

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt, Lt

from pipelab.display import number, rate, table
from pipelab.engine.answers import Result, placement_in
from pipelab.engine.solving import solve
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import Frozen, Real, checked_value, described, given, instance
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Scenario", "Sensitivity", "sensitivity"]


_WITHIN = Annotated[Real, Gt(0), Lt(1), described("a share above 0 and below 1")]


@dataclass(frozen=True, kw_only=True)
class Scenario(Frozen):
    """Stage times that may be the true ones, and the rate of the plan with them."""

    gpu_type: str  # the type that is faster or slower, or "all"
    speed: float  # as a multiple of the predicted speed
    throughput: float  # of the plan in tokens/s
    best: Result

    @property
    def loss(self) -> float:
        """How far the plan is below the proven bound, as a share of it; 0 if the plan is the best."""
        bound = self.best.bound if self.best.bound is not None else self.best.throughput
        lost = 1 - self.throughput / max(given(bound), self.throughput)
        return 0.0 if lost < ONE_ANSWER else lost


@dataclass(frozen=True, eq=False, kw_only=True)
class Sensitivity(Frozen):
    """The rates of a plan if GPUs are faster or slower than predicted; made by `pl.sensitivity`.

    Attributes
    ----------
    problem : Problem
        With the predicted times.
    placement : Placement
        The placement of the plan.
    within : float
        Largest relative error of the speed of a GPU.
    scenarios : tuple of Scenario
        The first is the prediction itself.
    """

    problem: Problem
    placement: Placement
    within: float
    scenarios: tuple[Scenario, ...]

    @property
    def band(self) -> tuple[float, float]:
        """Lowest and highest rate of the plan in tokens/s."""
        rates = [scenario.throughput for scenario in self.scenarios]
        return min(rates), max(rates)

    @property
    def worst(self) -> Scenario:
        """The scenario in which the plan loses most."""
        return max(self.scenarios, key=lambda scenario: scenario.loss)

    @property
    def sentence(self) -> str:
        """Whether the plan stays the best, and the band of its rate."""
        low, high = self.band
        off = f"{self.within:.0%} slower or faster than predicted"
        rates = f"With a GPU type up to {off}, this plan reaches {number(low)} to {rate(high)}"
        if not self.worst.loss:
            return f"{rates}, and none is better."
        flips = " or ".join(dict.fromkeys(_name(s) for s in self.scenarios if s.loss))
        when = f"{flips} are {self.within:.0%} off"
        return f"{rates}. Another plan is better if {when}: this one loses up to {self.worst.loss:.1%}."

    def to_frame(self) -> "DataFrame":
        """Return one row per scenario.

        Returns
        -------
        pandas.DataFrame
            gpu_type, speed (times that of the prediction), plan_tokens_per_s, best_tokens_per_s,
            bound_tokens_per_s, loss (a share) and status of the best.
        """
        import pandas as pd

        rows = [
            {
                "gpu_type": s.gpu_type,
                "speed": s.speed,
                "plan_tokens_per_s": s.throughput,
                "best_tokens_per_s": s.best.throughput,
                "bound_tokens_per_s": s.best.bound,
                "loss": s.loss,
                "status": s.best.status,
            }
            for s in self.scenarios
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{table(self.to_frame())}"


def sensitivity(
    problem: Problem,
    placement: Placement | Result | None = None,
    within: float = 0.1,
    **options: Any,
) -> Sensitivity:
    """Evaluate a plan if GPUs are faster or slower than predicted, and solve each case again.

    Parameters
    ----------
    problem : Problem
        Its `costs` have the method `with_speed`: `Roofline`, `LayerTimes`, or your own.
    placement : Placement or Result, optional
        By default the optimum.
    within : float
        Largest relative error of the speed of a type of GPU, above 0 and below 1.
        `against_measured` says what to expect.
    **options
        For `pl.solve`, such as time_limit or a function as stop, which then hold for each scenario.

    Returns
    -------
    Sensitivity
        A scenario for each GPU type of the cluster, and for all together, faster and slower.

    Raises
    ------
    InvalidPlacement
        The plan is not valid.
    InvalidValue
        An argument does not fit, the costs do not support another speed, or there is no plan.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> found = sensitivity(course.three_sites(2), within=0.05)
    >>> [round(rate) for rate in found.band]
    [6005, 6637]
    """
    instance("sensitivity", "problem", problem, Problem, "a Problem")
    within = checked_value("sensitivity", "within", within, _WITHIN)
    best = solve(problem, **options)
    placement = best.placement if placement is None else placement_in(placement, "sensitivity")
    if placement is None:
        raise InvalidValue("sensitivity", [("problem", problem.name, best.reason or best.sentence)])
    scenarios = [
        Scenario(
            gpu_type="all", speed=1.0, throughput=evaluate(problem, placement).throughput, best=best
        )
    ]
    types = list(dict.fromkeys(kind.type for kind in problem.cluster.kinds))
    for changed in [*([name] for name in types), *([types] if len(types) > 1 else [])]:
        for speed in (1 - within, 1 + within):
            costs = problem.costs
            for name in changed:
                costs = costs.with_speed(name, speed)
            other = replace(problem, costs=costs)
            rate = evaluate(other, placement).throughput
            name = changed[0] if len(changed) == 1 else "all"
            scenarios.append(
                Scenario(gpu_type=name, speed=speed, throughput=rate, best=solve(other, **options))
            )
    return Sensitivity(
        problem=problem, placement=placement, within=within, scenarios=tuple(scenarios)
    )


def _name(scenario: Scenario) -> str:
    return "all GPUs" if scenario.gpu_type == "all" else f"{scenario.gpu_type}s"
