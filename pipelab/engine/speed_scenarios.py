"""Where an answer turns: how far speeds, links or prices may be off before the plan falls behind.

A proof holds for the stage times that it assumes, and these are predictions. So the speed of each GPU type, of all of
them, of the links and, where money counts, each price is made larger and smaller. The problem is solved again, and the
plan is evaluated with the new numbers. It turns at the smallest change at which it falls more than 1% behind.

Along one change a plan that is the best as predicted only loses more the further one goes (`docs/within_the_error.md`).
So the place is bracketed: by a challenger, the optimum at the far end, which needs no solving to be evaluated, and by
proof that nothing is better on this side of where the challenger is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any

from pipelab.display import DataFrame, data_frame, table
from pipelab.engine.answers import PlanAnswer, Result, placement_in
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.deployments.within_bands import value_of
from pipelab.engine.methods.least_regret import (
    is_worst_with_one_slow,
    slow_one_by_one,
    speed_bands,
    tokens_per_s,
)
from pipelab.engine.solving import solve
from pipelab.engine.speed_costs import with_speeds
from pipelab.engine.timeline import training_timeline
from pipelab.engine.tolerances import ONE_ANSWER, REACHED
from pipelab.engine.training.result import TrainingResult
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import Frozen, instance
from pipelab.placement import Placement
from pipelab.problem import Problem

__all__ = ["Scenario", "Sensitivity", "sensitivity"]

ValueOfPlan = Callable[[Problem, Any], float]  # of a plan
SHARE_BEHIND = 0.01  # a plan that falls further behind has turned
_FACTOR_RESOLUTION = 1e-4  # to which the place where a plan turns is found
_COLUMNS = ["what", "factor", "plan", "best", "bound", "loss", "turns", "status"]
_ALL, _LINKS, _PRICE = "all GPUs", "links", "price of "


@dataclass(frozen=True, kw_only=True)
class Scenario(Frozen):
    """Numbers that may be the true ones, and the plan's value with them.

    Attributes
    ----------
    what : str
        What differs: a type of GPU, "all GPUs", "links" or "price of" a type; where a type
        follows "others faster, ", all other types differ the other way.
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
        bound = bound or best or self.value
        if not bound:  # nothing keeps the limits there
            return 0.0
        lost = 1 - (bound / self.value if least else self.value / bound)
        return 0.0 if lost < ONE_ANSWER else lost

    @property
    def words(self) -> str:
        """What differs and by how much, such as "L4 10% slower"."""
        if self.factor == 1:
            return "as predicted"
        directions = ("lower", "higher") if self.what.startswith(_PRICE) else ("slower", "faster")
        off = f"{100 * abs(self.factor - 1):.2g}% {directions[self.factor > 1]}"
        return f"{self.what} {off}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Sensitivity(Frozen):
    """Where a plan turns, and what it loses; made by `pl.sensitivity`.

    Attributes
    ----------
    problem : Problem
        With the predicted times.
    plan : Placement or Deployment
    within : float
        The largest of how far off the speeds of types may be.
    scenarios : tuple of Scenario
        The first is the prediction itself.
    turns : tuple of Scenario
        The smallest changes at which the plan falls more than 1% behind, the nearest first.
    covers_all : bool
        Whether no speeds within the bands let the plan lose more than the scenarios do.
    """

    problem: Problem
    plan: Placement | Deployment
    within: float
    scenarios: tuple[Scenario, ...]
    turns: tuple[Scenario, ...]
    covers_all: bool

    @property
    def of_speeds(self) -> tuple[Scenario, ...]:
        """The scenarios in which links and prices are as predicted."""
        return tuple(s for s in self.scenarios if not s.what.startswith((_LINKS, _PRICE)))

    @property
    def worst(self) -> Scenario:
        """The scenario of speeds in which the plan loses most."""
        return max(self.of_speeds, key=lambda scenario: scenario.loss)

    @property
    def sentence(self) -> str:
        """Where the plan turns, and what it loses at most."""
        places = " or ".join(turn.words for turn in self.turns[:3]) or "no single change"
        turns, now = f"Turns at {places}", self.scenarios[0].loss
        if now > SHARE_BEHIND:
            turns = f"Is {now:.1%} behind as predicted"
        cases = f"in {len(self.of_speeds) - 1} cases"
        most = f"loses up to {self.worst.loss:.1%} {cases}"
        if self.covers_all:
            most = f"loses at most {self.worst.loss:.1%}"
        elif math.isinf(self.worst.value):
            fail = sum(math.isinf(scenario.value) for scenario in self.of_speeds)
            most = f"no longer serves its load {cases.replace('in', f'in {fail} of')}"
        statuses = {scenario.best.status for scenario in (*self.scenarios, *self.turns)}
        not_proven = "" if statuses == {"optimal"} else ", not all proven"
        return f"{turns}; at speeds within {100 * self.within:.3g}% it {most}{not_proven}."

    def to_frame(self) -> DataFrame:
        """Return one row per scenario, and per place where the plan turns.

        Returns
        -------
        pandas.DataFrame
            what, factor (of what was predicted), plan, best, bound (in tokens/s, or of what was to be least), loss (a
            share), turns (whether the plan turns here) and status of the best.
        """
        rows = [
            (s.what, s.factor, s.value, *s.best._goal[:2], s.loss, s in self.turns, s.best.status)
            for s in (*self.scenarios, *self.turns)
        ]
        return data_frame([dict(zip(_COLUMNS, row, strict=True)) for row in rows])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{table(self.to_frame())}"


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
        by the smallest share, slower and faster, and each by its own, faster; for links by the largest share; and for
        prices where money counts. And where the plan turns.

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
    'Turns at T4 3.8% slower; at speeds within 5% it loses up to 5.1% in 11 cases.'
    """
    instance("sensitivity", "problem", problem, Problem, "a Problem")
    bands = speed_bands(problem, within, "sensitivity")
    answer: Any = solve(problem, **options) if placement is None else placement
    if placement is None and answer.placement is None:
        raise InvalidValue("sensitivity", [("problem", problem.name, answer.reason)])
    plan = answer if isinstance(answer, Deployment) else placement_in(answer, "sensitivity")
    evaluate(problem, plan)  # refuses a plan that is not valid
    full = getattr(answer, "memory_for", None) is not None or options.get("objective") == "rate"
    value_of, solved = _asked(answer, full, options)

    def at(what: str, factor: float, other: Problem) -> Scenario:
        return Scenario(what=what, factor=factor, value=value_of(other, plan), best=solved(other))

    scenarios, turns = [at(_ALL, 1.0, problem)], list[Scenario]()
    for what, most, changed in _changes(problem, bands, bool(getattr(answer, "at_least", 0.0))):
        for far in (1 - most, 1 + most):
            scenarios.append(at(what, far, changed(far)))
            if scenarios[0].loss <= SHARE_BEHIND:
                turn = _turn(scenarios[-1], changed, at, value_of, plan)
                turns += [] if turn is None else [turn]
    corners = slow_one_by_one(bands) if len(bands) > 1 else []
    one_band = len(set(bands.values())) == 1  # then all fast is a scenario already
    for speeds in corners[1:] if one_band else corners:
        slow = min(speeds, key=lambda name: speeds[name])
        corner = replace(problem, costs=with_speeds(problem.costs, speeds))
        scenarios.append(at(f"others faster, {slow}", speeds[slow], corner))
    return Sensitivity(
        problem=problem,
        plan=plan,
        within=max(bands.values()),
        scenarios=tuple(scenarios),
        turns=tuple(sorted(turns, key=lambda turn: abs(turn.factor - 1))),
        covers_all=full and is_worst_with_one_slow(problem),
    )


def _changes(
    problem: Problem, bands: Mapping[str, float], money: bool
) -> list[tuple[str, float, Callable[[float], Problem]]]:
    """List what may differ, by how much at most, and the problem with a factor on it."""
    cluster, most = problem.cluster, max(bands.values())

    def with_speed(names: tuple[str, ...], factor: float) -> Problem:
        return replace(problem, costs=with_speeds(problem.costs, dict.fromkeys(names, factor)))

    def with_links(factor: float) -> Problem:
        return replace(problem, cluster=cluster.scaled_bandwidth(factor))

    def with_price(name: str, factor: float) -> Problem:
        price = {gpu: gpu.usd_per_hour for gpu in cluster.kinds}
        price |= {gpu: usd * factor for gpu, usd in price.items() if usd and gpu.type == name}
        gpus = tuple(replace(gpu, usd_per_hour=price[gpu]) for gpu in cluster.gpus)
        return replace(problem, cluster=replace(cluster, gpus=gpus, index=()))

    changes: list[tuple[str, float, Callable[[float], Problem]]] = [
        (name, share, partial(with_speed, (name,))) for name, share in bands.items()
    ]
    least, everyone = min(bands.values()), partial(with_speed, tuple(bands))
    changes += [(_ALL, least, everyone)] if len(bands) > 1 else []
    changes += [(_LINKS, most, with_links)] if len(cluster) > 1 else []
    changes += [(_PRICE + name, most, partial(with_price, name)) for name in bands if money]
    return [change for change in changes if change[1]]


def _turn(
    scenario: Scenario,
    changed: Callable[[float], Problem],
    at: Callable[[str, float, Problem], Scenario],
    value_of: ValueOfPlan,
    plan: Any,
) -> Scenario | None:
    """Return where the plan turns on the way to a scenario; None if nowhere, or if that was not proven."""
    while scenario.loss > SHARE_BEHIND and scenario.best.status == "optimal":
        best, near, far = scenario.best, 1.0, scenario.factor
        least, challenger = best._goal[2], best.placement if isinstance(best, Result) else best
        while abs(far - near) > _FACTOR_RESOLUTION:
            middle = (near + far) / 2
            ours, theirs = (value_of(changed(middle), one) for one in (plan, challenger))
            behind = 0.0  # of a challenger that yields nothing there
            if theirs:
                behind = 1 - (theirs / ours if least else ours / theirs)
            near, far = (near, middle) if behind > SHARE_BEHIND else (middle, far)
        scenario = at(scenario.what, near, changed(near))
        if scenario.loss <= SHARE_BEHIND or near == 1:
            return at(scenario.what, far, changed(far))
    return None


def _asked(
    answer: Any, full: bool, options: Mapping[str, Any]
) -> tuple[ValueOfPlan, Callable[[Problem], PlanAnswer]]:
    """Return what computes a plan's value in a problem, and what finds the best for a problem."""
    if isinstance(answer, Deployment):
        load, again, limits = answer.at_least, answer.again, answer.limits
        if again is None:
            expected = "expected a deployment that `pl.deploy` returned"
            raise InvalidValue("sensitivity", [("placement", answer.problem.name, expected)])

        def served(other: Problem, plan: Deployment) -> float:
            return value_of(other, plan.pipelines, limits)

        def price(other: Problem, plan: Deployment) -> float:
            reaches = served(other, plan) >= load * (1 - REACHED)
            return replace(plan, problem=other).value or 0.0 if reaches else math.inf

        return price if load else served, lambda other: again(other, load, **options)
    if isinstance(answer, TrainingResult):
        options = {"objective": "step_time", "schedule": answer.schedule, **options}
        named = ("schedule", "recompute", "bytes_per_parameter")
        how = {name: options[name] for name in named if name in options}

        def step_seconds(other: Problem, plan: Placement) -> float:
            return training_timeline(other, plan, **how).timeline.iteration_time

        return step_seconds, partial(solve, **options)
    objective = options.get("objective", "rate" if full else "throughput")
    engine = getattr(answer, "runs_on", "") or options.get("runs_on")
    if objective not in ("throughput", "rate") or engine:
        known = "'throughput' or 'rate' of any engine, a training result or a deployment"
        asked = engine or objective
        raise InvalidValue("sensitivity", [("objective", asked, f"expected {known}")])
    return partial(tokens_per_s, full=full), partial(solve, **{"objective": objective, **options})
