"""The trade-off of deployments: throughput against GPUs or dollars per hour.

Where every pipeline of every mix can be listed, one whole program after the other has the points: the
most tokens/s within a budget, then the least cost of that many, then a lower budget (the ε-constraint
method). Where there are too many mixes for that, the cheapest deployments for loads in even steps are
points of the curve, each with its own proof or gap, and there may be others between them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pipelab.engine.curve import Curve
from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.deployments.closing import ClosingSearch
from pipelab.engine.deployments.deploying import deploy, pipelines_of, sum_of
from pipelab.engine.deployments.master_program import (
    DeploymentGoal,
    PipelineColumn,
    Prices,
    solve_whole_program,
)
from pipelab.engine.deployments.offers import first_offers
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.deployments.rounding import as_often_as_chosen
from pipelab.engine.objective_and_bound import status_and_bound
from pipelab.engine.prices import total, within_budget
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import TooLarge
from pipelab.fields import given
from pipelab.problem import Problem

_MOST_MIXES = 50_000  # of which every pipeline is listed
_LISTING_TIME_SHARE = 0.4  # of the time there is; then the points are sought otherwise
_LOAD_STEPS = 12  # points of a curve that is not listed whole
_TPOT_STEP_RATIO = 0.7  # of a limit to the TPOT of the point before
_GREATEST_LOAD_SHARE = 1 - 1e-9  # of what can be served: rounding must not put it out of reach


def deployments_against(problem: Problem, against: str, curve: Curve, deadline: Deadline) -> None:
    """Add deployments of which none is beaten in both, the fastest first.

    Raises
    ------
    TooLarge
        Against GPUs there are too many mixes.
    """
    try:
        offers = first_offers([problem], deadline, keep_nodes_apart=True)
        offers = [offer for offer in offers if len(offer.stage_rates)]
        if not offers:
            return
        classes = offers[0].table.classes
        mixes = prod((classes.count + 1).tolist())
        if mixes <= _MOST_MIXES:
            price = [classes.gpu(a).usd_per_hour or 0.0 for a in range(len(classes))]
            weight = np.array(price) if against == "usd_per_hour" else np.ones(len(classes))
            most = ClosingSearch(
                offers=offers,
                goal=DeploymentGoal(counts=classes.count, load=0.0, price=weight),
                deadline=deadline.within(_LISTING_TIME_SHARE * deadline.left),
            )
            free = Prices(cost=np.zeros(len(classes)), ratio={"": 1.0}, bound=np.inf, unit=1.0)
            try:
                columns, covered = most.list_columns(free, np.inf, labels=_MOST_MIXES, wide=True)
            except Ended:
                columns, covered = most.pipelines, 0.0
            most.deadline, complete = deadline, covered == np.inf
            if columns or complete:
                curve.complete &= complete
                _whole_curve(most, columns, complete, curve)
                return
    except Ended:
        curve.complete = False
        return
    if against == "gpus" and mixes > _MOST_MIXES:
        text = f"{problem.name} has {mixes:,} mixes of GPUs, more than {_MOST_MIXES:,}"
        raise TooLarge(f"{text}; against='usd_per_hour' takes more")
    if against == "gpus":
        curve.complete = False
    else:
        _in_steps(partial(deploy, problem), curve, deadline)


def _whole_curve(
    most: ClosingSearch, columns: list[PipelineColumn], complete: bool, curve: Curve
) -> None:
    """Add the points of all columns: the most within a budget, the least that it costs, less than that."""
    goal = most.goal
    while columns:
        best = _chosen(goal, columns, most.deadline)
        if not best:
            break
        rate = sum(column.rate for column in best)
        same = _chosen(replace(goal, load=rate, budget=np.inf), columns, most.deadline)
        cheapest = min([same or best, best], key=lambda chosen: total(goal.paid(chosen)))
        pipelines = pipelines_of(columns[0].offer.problem, cheapest)
        value = sum_of(pipelines)
        bound = max(rate, value)
        near = complete and bound <= value * (1 + ONE_ANSWER)
        above = value if near else bound if complete else None
        status, above = status_and_bound(value, above)
        curve.add(
            Deployment(
                problem=columns[0].offer.problem,
                status=status,
                pipelines=pipelines,
                throughput=value,
                bound=above,
                at_least=0.0,
                seconds=most.deadline.spent,
                size={"classes": len(goal.counts), "columns": len(columns)},
                reason="the fastest deployment that costs no more",
                again=deploy,
            )
        )
        # prices this close are one price
        goal = replace(goal, budget=total(goal.paid(cheapest)) * (1 - ONE_ANSWER))


def _chosen(
    goal: DeploymentGoal, columns: list[PipelineColumn], deadline: Deadline
) -> list[PipelineColumn]:
    """Find the best deployment of these columns; empty if there is none."""

    def ask(most: Mapping[float, int]) -> list[PipelineColumn]:
        run = solve_whole_program(replace(goal, most_of=most), columns, deadline)
        deadline.check()
        return [] if run.x is None else as_often_as_chosen(columns, run.x)

    deployments = within_budget(ask, goal.paid, goal.budget)
    # of the greatest throughput; all serve a load that is given, and then there is no budget
    return max(deployments, key=lambda chosen: sum(column.rate for column in chosen))


def _in_steps(find: Callable[..., Deployment], curve: Curve, deadline: Deadline) -> None:
    """Add the cheapest deployments for loads in even steps; never known to be all.

    Parameters
    ----------
    find : function of a load, `time_limit` and `stop`
        Finds the best deployment for a load; 0: the one that serves most.
    """
    curve.complete = False
    most = find(0.0, **deadline.part(_LOAD_STEPS + 1))
    least = np.inf
    for step in range(_LOAD_STEPS, 0, -1) if most.pipelines else ():
        if deadline.reason is not None:
            break
        load = given(most.value) * _GREATEST_LOAD_SHARE * step / _LOAD_STEPS
        deployment = find(load, **deadline.part(step))
        if not deployment.pipelines and step == _LOAD_STEPS:
            deployment = replace(most, at_least=load, bound=None, status="feasible")
        if deployment.pipelines and given(deployment.value) < least * (1 - ONE_ANSWER):
            least = given(deployment.value)
            curve.add(deployment)


def requests_against(
    problem: Problem, against: str, asked: Mapping[str, Any], curve: Curve, deadline: Deadline
) -> None:
    """Add deployments for requests, those that serve most first, each proven or with its gap; others may lie between.

    Parameters
    ----------
    against : {"usd_per_hour", "tpot_ms"}
        The cheapest for rates in even steps; or the most under limits on TPOT, each a step below what the last
        one has.
    asked : mapping
        Limits, pools and batches of `deploy`.
    """
    if against == "usd_per_hour":

        def find(load: float, **ends: Any) -> Deployment:
            return deploy(problem, requests_per_s=load or None, **asked, **ends)

        _in_steps(find, curve, deadline)
        return
    curve.complete = False
    limit = asked.get("tpot_ms") or np.inf
    for step in range(_LOAD_STEPS, 0, -1):
        deployment = deploy(problem, **{**asked, "tpot_ms": limit}, **deadline.part(step))
        if not deployment.pipelines or deadline.called_off:
            break
        curve.add(deployment)
        limit = given(deployment.slowest).tpot_ms * _TPOT_STEP_RATIO
        if not limit:  # prompts alone: nothing is less
            break
