"""The trade-off of deployments: throughput against GPUs or dollars per hour, from one table over all mixes.

`best_sums` says of every mix of GPUs what its best deployment yields. Sorted by what a mix costs, those that
yield more than every cheaper one are the curve, all proven at once. Where there are too many mixes for
that, the cheapest deployments for loads in even steps are points of the curve, each with its own proof or
gap, and there may be others between them.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import Event

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.deployments.deploying import attains, deploy, pipelines_of
from pipelab.engine.deployments.listing import Listed, list_all, list_attaining
from pipelab.engine.deployments.mixes import (
    MOST_STEPS,
    Mixes,
    best_sums,
    chosen,
    number_of_steps,
)
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.deployments.workloads import (
    Offer,
    first_ranges,
    offers_attaining,
    offers_of,
)
from pipelab.engine.objective import status_and_bound
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import TooLarge
from pipelab.fields import given
from pipelab.problem import Problem

_MOST_MIXES = 50_000  # of which every pipeline is listed
_STEPS = 12
_SHARE = 1 - 1e-9  # of the greatest throughput, as a load


def deployments_against(
    problem: Problem,
    against: str,
    deadline: Deadline,
    stop: Event | None,
    on_point: Callable | None,
) -> tuple[tuple[Deployment, ...], bool]:
    """Deployments of which none is beaten in both, the fastest first; and whether none is missing and all are proven.

    Raises
    ------
    TooLarge
        Against GPUs there are too many mixes.
    """
    try:
        offers = offers_of(problem, [problem.workload], deadline)
        if not offers:
            return (), True
        mixes = Mixes(offers[0].rates.classes.count.tolist())
        if mixes.total <= _MOST_MIXES:
            listed = list_all(offers, deadline)
            if number_of_steps(mixes, listed.columns) <= MOST_STEPS:
                found = _whole_curve(offers, mixes, listed, against, deadline)
                if not all(attains(problem, p) for point in found[0] for p in point.pipelines):
                    found = _attained_curve(problem, against, deadline)
                for point in found[0] if on_point is not None else ():
                    given(on_point)(point)
                return found
    except Ended:
        return (), False
    if against == "gpus":
        text = f"{problem.name} has {mixes.total:,} mixes of GPUs, more than {_MOST_MIXES:,}"
        raise TooLarge(f"{text}; against='usd_per_hour' takes more", {"mixes": mixes.total})
    return _in_steps(problem, deadline, stop, on_point)


def _attained_curve(
    problem: Problem, against: str, deadline: Deadline
) -> tuple[tuple[Deployment, ...], bool]:
    """The same where pipelines count with their attainable rates."""
    offers = offers_attaining(problem, first_ranges(problem), deadline)
    mixes = Mixes(offers[0].rates.classes.count.tolist())
    listed = list_attaining(offers, deadline)
    return _whole_curve(offers, mixes, listed, against, deadline)


def _whole_curve(
    offers: list[Offer], mixes: Mixes, listed: Listed, against: str, deadline: Deadline
) -> tuple[tuple[Deployment, ...], bool]:
    """From the best throughput of every mix."""
    best = best_sums(mixes, listed.columns, deadline)
    classes = offers[0].rates.classes
    price = np.array([classes.gpu(a).usd_per_hour or 0.0 for a in range(len(classes))])
    each = price if against == "usd_per_hour" else np.ones(len(classes))
    cost = np.tensordot(each, np.indices(mixes.shape), 1).round(9).ravel()
    order, known = np.lexsort((-best.ravel(), cost)), 0.0
    kept = []
    for i in order.tolist():
        if best.flat[i] > known * (1 + ONE_ANSWER):
            known = best.flat[i]
            kept.append(i)
    points: list[Deployment] = []
    for i in kept[::-1]:
        if deadline.reason is not None:
            return tuple(points), False
        mix = tuple(int(n) for n in np.unravel_index(i, mixes.shape))
        points.append(_point(offers, chosen(mixes, listed.columns, best, mix), listed, deadline))
    proven = all(point.status == "optimal" for point in points)
    return tuple(points), listed.complete and proven


def _point(offers: list[Offer], columns: list, listed: Listed, deadline: Deadline) -> Deployment:
    pipelines = pipelines_of(offers, columns)
    value, bound = sum(p.throughput * p.count for p in pipelines), sum(c.rate for c in columns)
    near = listed.complete and value < bound <= value * (1 + ONE_ANSWER)
    status, bound = status_and_bound(
        value, None if not listed.complete else value if near else bound
    )
    return Deployment(
        problem=offers[0].problem,
        status=status,
        pipelines=pipelines,
        throughput=value,
        bound=bound,
        at_least=0.0,
        seconds=deadline.spent,
        size={"classes": len(offers[0].rates.classes), "columns": len(listed.columns)},
        reason="the fastest deployment that costs no more",
        again=deploy,
    )


def _in_steps(
    problem: Problem,
    deadline: Deadline,
    stop: Event | None,
    on_point: Callable | None,
) -> tuple[tuple[Deployment, ...], bool]:
    """The cheapest deployments for loads in even steps; never known to be all."""

    def left(parts: int) -> float | None:
        return deadline.left / parts if deadline.limited else None

    most = deploy(problem, time_limit=left(_STEPS + 1), stop=stop)
    points: list[Deployment] = []
    for step in range(_STEPS, 0, -1) if most.pipelines else ():
        if deadline.reason is not None:
            break
        load = given(most.throughput) * _SHARE * step / _STEPS
        found = deploy(problem, load, time_limit=left(step), stop=stop)
        if not found.pipelines and step == _STEPS:
            found = replace(most, at_least=load, bound=None, status="feasible")
        cheaper = not points or given(found.value) < given(points[-1].value) * (1 - ONE_ANSWER)
        if found.pipelines and cheaper:
            points.append(found)
            if on_point is not None:
                on_point(found)
    return tuple(points), False
