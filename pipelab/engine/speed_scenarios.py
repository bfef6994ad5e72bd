"""Where an answer turns: how far speeds, links or prices may be off before the plan falls behind.

A proof holds for the stage times that it assumes, and these are predictions. So the speed of each GPU type, of all of
them, of the links and, where money counts, each price is made larger and smaller. The problem is solved again, and the
plan is evaluated with the new numbers. It turns at the smallest change at which it falls more than 1% behind.

Along one change a plan that is the best as predicted only loses more the further one goes (`docs/within_the_error.md`).
So the place is bracketed: by a rival, the optimum at the far end, which needs no solving to be evaluated, and by proof
that nothing is better on this side of where the rival is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.costs import with_speeds
from pipelab.display import rate, table
from pipelab.engine.answers import PlanAnswer, Result, placement_in
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.methods.least_regret import (
    is_as_fast_as_one_type,
    slow_one_by_one,
    speed_bands,
    within_words,
)
from pipelab.engine.prices import price_per_hour
from pipelab.engine.solving import solve
from pipelab.engine.timeline import training_timeline
from pipelab.engine.tolerances import ONE_ANSWER, REACHED
from pipelab.engine.training.result import StepTime, TrainingResult
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import Frozen, given, instance
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Scenario", "Sensitivity", "sensitivity"]

SHARE_BEHIND = 0.01  # a plan that falls further behind has turned
_RESOLUTION = 1e-4  # of a factor, to which the place is found
ALL = "all GPUs"
LINKS = "links"


@dataclass(frozen=True, kw_only=True)
class Scenario(Frozen):
    """Numbers that may be the true ones, and what the plan is worth with them.

    Attributes
    ----------
    what : str
        What differs: a type of GPU, "all GPUs", "links" or "price of" a type; with "others faster" beside a type all
        other types differ the other way.
    factor : float
        As a multiple of what was predicted.
    value : float
        Of the plan: tokens/s, or what was to be least.
    best : Result or Deployment
        The best for these numbers.
    """

    what: str
    factor: float
    value: float
    best: PlanAnswer

    @property
    def loss(self) -> float:
        """How far the plan is behind the proven bound, as a share; 0 if the plan is the best."""
        best, bound, least = self.best._goal
        bound = best if bound is None else bound
        if not bound:
            return 0.0
        lost = 1 - (bound / self.value if least else self.value / bound)
        return 0.0 if lost < ONE_ANSWER else lost

    @property
    def words(self) -> str:
        """What differs and by how much, such as "L4 10% slower"."""
        if self.factor == 1:
            return "as predicted"
        more, less = ("higher", "lower") if self.what.startswith("price") else ("faster", "slower")
        name, _, others = self.what.partition(", ")
        off = f"{name} {100 * abs(self.factor - 1):.2g}% {more if self.factor > 1 else less}"
        return f"{off}, {others}" if others else off


@dataclass(frozen=True, eq=False, kw_only=True)
class Sensitivity(Frozen):
    """Where a plan turns, and what it loses; made by `pl.sensitivity`.

    Attributes
    ----------
    problem : Problem
        With the predicted times.
    plan : Placement or Deployment
    bands : mapping of str to float
        How far off the speed of each type may be.
    scenarios : tuple of Scenario
        The first is the prediction itself.
    turns : tuple of Scenario
        The smallest changes at which the plan falls more than 1% behind, the nearest first.
    covers_all : bool
        Whether no speeds within the bands let the plan lose more than the scenarios do.
    """

    problem: Problem
    plan: Placement | Deployment
    bands: Mapping[str, float]
    scenarios: tuple[Scenario, ...]
    turns: tuple[Scenario, ...]
    covers_all: bool

    @property
    def band(self) -> tuple[float, float]:
        """Lowest and highest value of the plan in all scenarios, in tokens/s where these count."""
        values = [scenario.value for scenario in self.scenarios]
        return min(values), max(values)

    @property
    def worst(self) -> Scenario:
        """The scenario in which the plan loses most."""
        return max(self.scenarios, key=lambda scenario: scenario.loss)

    @property
    def sentence(self) -> str:
        """Where the plan turns, and what it loses at most."""
        places = " or ".join(turn.words for turn in self.turns[:3])
        turns = f"Turns at {places}" if places else "Turns at no single change"
        most = f"at most {self.worst.loss:.1%}"
        if not self.covers_all:
            most = f"up to {self.worst.loss:.1%} in {len(self.scenarios) - 1} cases"
        statuses = {scenario.best.status for scenario in (*self.scenarios, *self.turns)}
        not_proven = "" if statuses == {"optimal"} else ", not all proven"
        return f"{turns}; within {within_words(self.bands)} it loses {most}{not_proven}."

    def to_frame(self) -> "DataFrame":
        """Return one row per scenario, and per place where the plan turns.

        Returns
        -------
        pandas.DataFrame
            what, factor (of what was predicted), plan, best, bound (in tokens/s, or of what was to be least), loss (a
            share), turns (whether the plan turns here) and status of the best.
        """
        import pandas as pd

        rows = [
            {
                "what": s.what,
                "factor": s.factor,
                "plan": s.value,
                "best": s.best._goal[0],
                "bound": s.best._goal[1],
                "loss": s.loss,
                "turns": turns,
                "status": s.best.status,
            }
            for turns, scenarios in ((False, self.scenarios), (True, self.turns))
            for s in scenarios
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{table(self.to_frame())}"


class _Asked(NamedTuple):
    """What a plan was asked for: what it is worth in a problem, and how the best for a problem is found."""

    worth: Callable[[Problem, Any], float]
    solved: Callable[[Problem], PlanAnswer]


def sensitivity(
    problem: Problem,
    placement: Placement | Result | Deployment | None = None,
    within: float | Mapping[str, float] | str = 0.1,
    **options: Any,
) -> Sensitivity:
    """Say where a plan turns if speeds, links or prices are not as predicted, and what it loses.

    Parameters
    ----------
    problem : Problem
        With the predicted times.
    placement : Placement, Result or Deployment, optional
        By default the optimum. Of a result, a training step or a deployment what it was best at counts: with a load
        its price, and a deployment that does not serve the load any more loses all.
    within : float, mapping of GPU type to float, or "band"
        How far off the speed of each type may be, as for `pl.solve`; links and prices by the largest of these.
    **options
        For `pl.solve` or `pl.deploy`, such as time_limit or a function as stop, which then hold for each scenario.

    Returns
    -------
    Sensitivity
        A scenario for each GPU type of the cluster, slower, faster, and slower with all others faster; for all together
        and links, slower and faster; and for prices where money counts. And where the plan turns.

    Raises
    ------
    InvalidPlacement
        The plan is not valid.
    InvalidValue
        An argument does not fit, or there is no plan.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> sensitivity(course.three_sites(), within=0.05).sentence
    'Turns'
    """
    instance("sensitivity", "problem", problem, Problem, "a Problem")
    bands = speed_bands(problem, within, "sensitivity")
    answer = solve(problem, **options) if placement is None else placement
    if placement is None and answer.placement is None:
        raise InvalidValue("sensitivity", [("problem", problem.name, answer.reason)])
    asked = _asked(answer, options)
    plan = answer if isinstance(answer, Deployment) else placement_in(answer, "sensitivity")

    def at(what: str, changed: Callable[[float], Problem], factor: float) -> Scenario:
        other = changed(factor) if factor != 1 else problem
        best = asked.solved(other)
        return Scenario(what=what, factor=factor, value=asked.worth(other, plan), best=best)

    first = at(ALL, lambda _: problem, 1.0)
    scenarios, turns = [first], []
    for what, most, changed in _changes(problem, bands, bool(first.best._goal[2])):
        for far in (1 - most, 1 + most):
            scenarios.append(at(what, changed, far))
            turn = _turn(scenarios[-1], changed, partial(at, what, changed), asked, plan)
            turns += [turn] if turn else []
    for speeds in slow_one_by_one(bands)[1:] if len(bands) > 1 else ():
        slow = min(speeds, key=lambda name: speeds[name])
        other = replace(problem, costs=with_speeds(problem.costs, speeds))
        scenarios.append(at(f"{slow}, others faster", lambda _, other=other: other, speeds[slow]))
    full = isinstance(answer, Result) and answer.memory_for is not None
    return Sensitivity(
        problem=problem,
        plan=plan,
        bands=bands,
        scenarios=tuple(scenarios),
        turns=tuple(sorted(turns, key=lambda turn: abs(turn.factor - 1))),
        covers_all=full and is_as_fast_as_one_type(problem) and problem.costs.filling == "synchronous",
    )


def _changes(
    problem: Problem, bands: Mapping[str, float], money: bool
) -> "list[tuple[str, float, Callable[[float], Problem]]]":
    """List what may differ, by how much at most, and the problem with a factor on it."""
    cluster, most = problem.cluster, max(bands.values())

    def with_factor(names: "tuple[str, ...]", factor: float) -> Problem:
        return replace(problem, costs=with_speeds(problem.costs, dict.fromkeys(names, factor)))

    def with_price(name: str, factor: float) -> Problem:
        gpus = tuple(
            replace(gpu, usd_per_hour=gpu.usd_per_hour * factor)
            if gpu.type == name and gpu.usd_per_hour
            else gpu
            for gpu in cluster.gpus
        )
        return replace(problem, cluster=replace(cluster, gpus=gpus, index=()))

    changes = [(name, share, partial(with_factor, (name,))) for name, share in bands.items()]
    if len(bands) > 1:
        changes.append((ALL, most, partial(with_factor, tuple(bands))))
    if len(cluster) > 1:
        links = lambda factor: replace(problem, cluster=cluster.scaled_bandwidth(factor))  # noqa: E731
        changes.append((LINKS, most, links))
    if money and all(gpu.usd_per_hour for gpu in cluster.kinds):
        changes += [(f"price of {name}", most, partial(with_price, name)) for name in bands]
    return [change for change in changes if change[1]]


def _turn(
    scenario: Scenario,
    changed: Callable[[float], Problem],
    at: Callable[[float], Scenario],
    asked: _Asked,
    plan: Any,
) -> Scenario | None:
    """Return where the plan turns between the prediction and a scenario; None if nowhere, or if that was not proven."""
    while scenario.loss > SHARE_BEHIND:
        rival = scenario.best if isinstance(scenario.best, Deployment) else scenario.best.placement
        near, far, least = 1.0, scenario.factor, scenario.best._goal[2]
        if rival is None or scenario.best.status != "optimal":
            return None
        while abs(far - near) > _RESOLUTION:
            middle = (near + far) / 2
            other = changed(middle)
            worth, best = asked.worth(other, plan), asked.worth(other, rival)
            behind = 1 - (best / worth if least else worth / best)
            near, far = (near, middle) if behind > SHARE_BEHIND else (middle, far)
        before = at(near)
        if before.loss <= SHARE_BEHIND:
            return at(far)
        scenario = before
    return None


def _asked(answer: Any, options: Mapping[str, Any]) -> _Asked:
    """Return what a plan was asked for, by what it is and by the options for solving."""
    if isinstance(answer, Deployment):
        if answer.limits is not None or answer.again is None:
            expected = "expected a deployment that `pl.deploy` returned, of tokens/s"
            raise InvalidValue("sensitivity", [("placement", answer.problem.name, expected)])
        load, again = answer.at_least, answer.again

        def price(problem: Problem, plan: Deployment) -> float:
            reached = evaluate(problem, plan).throughput
            if not load:
                return reached
            replicas = (r for pipeline in plan.pipelines for r in pipeline.replicas)
            return given(price_per_hour(problem, *replicas)) if reached >= load * (1 - REACHED) else math.inf

        return _Asked(price, lambda problem: again(problem, load, **options))
    options = {**_objective_of(answer), **options}
    objective, at_least = options.get("objective", "throughput"), options.get("at_least", 0.0)

    def worth(problem: Problem, placement: Placement) -> float:
        if objective == "step_time":
            known = {n: getattr(answer, n, None) for n in ("schedule", "recompute")}
            bytes_ = options.get("bytes_per_parameter")
            step = training_timeline(problem, placement, **known, bytes_per_parameter=bytes_)
            return step.timeline.iteration_time
        if objective == "rate":
            problem = problem.with_in_flight(problem.workload.in_memory)
        evaluation = evaluate(problem, placement)
        if objective == "rate":
            return evaluation.rate
        if objective == "throughput":
            return evaluation.throughput
        if evaluation.throughput < at_least * (1 - REACHED):
            return math.inf
        if objective == "latency":
            return evaluation.seconds_per_pass
        return given(price_per_hour(problem, placement)) / (3600 * evaluation.throughput) * 1e6

    return _Asked(worth, lambda problem: solve(problem, **options))


def _objective_of(answer: Any) -> dict[str, Any]:
    """Return the options with which a result was found, as far as it says so."""
    goal = getattr(answer, "objective", None)
    if isinstance(answer, TrainingResult) and isinstance(goal, StepTime):
        return {"objective": "step_time", "schedule": given(answer.schedule)}
    if isinstance(answer, Result) and answer.method in ("latency", "cost"):
        return {"objective": answer.method, "at_least": given(goal).at_least}
    return {"objective": "rate"} if getattr(answer, "memory_for", None) is not None else {}
