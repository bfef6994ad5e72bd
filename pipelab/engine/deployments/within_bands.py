"""Deployments where speeds may be off: the cheapest that serves a load at all of them, or the one that keeps most.

A deployment keeps a share of the most that any deployment yields, the least over some scenarios. The most that
one can keep is found from both sides:

- Candidates are the best deployment of every scenario, and the best of all their pipelines together: a small program in
  whole numbers, with as many GPUs of each class as there are, that keeps the largest share.
- The bound is what the best deployment yields at a mean of the scenarios' speeds. Its proof: what a pipeline attains is
  concave in the speeds. The rate of a stage is the least of multiples of them. (Where types share its work, the best of
  several ways need not be concave, and no bound is claimed.) A traversal or a round is a
  longest path over seconds of stages and links, which are convex in the speeds, and grows with all of these by one
  factor; so one over it is concave. Let a deployment keep a share ρ of A(s) in every scenario s, and let weights λ(s)
  add up to 1. Then ρ ≤ Σ λ(s) / A(s) · (its yield in s). With W = Σ λ(s) / A(s) this is at most W times its yield at
  the mean of speeds with the weights λ(s) / A(s) / W, by Jensen, and so at most W times the best yield there.
  The weights λ are dual prices of the program's relaxation, and the pipelines found are new candidates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from pipelab.engine.classes import gpu_classes
from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.result import Deployment, Pipeline, requests_served
from pipelab.engine.deployments.timing import pipeline_of
from pipelab.engine.methods.least_regret import (
    choose_least_lost,
    shares_kept,
    speeds_tried,
    stages_are_as_fast_as_one_type,
)
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import VariableGroups
from pipelab.engine.speed_costs import with_speeds
from pipelab.engine.stage_table import FreeGPUs
from pipelab.engine.tolerances import ATTAINED
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.requests import Limits, for_phase

_MOST_BOUNDS = 4  # deployments at mean speeds, each of which may lower the bound


def deploy_at_all_speeds(
    problem: Problem, bands: Mapping[str, float], ask: Callable[..., Deployment], **ends: Any
) -> Deployment:
    """Find the cheapest deployment that serves a load whichever speeds are true.

    Slower GPUs serve no more: what serves the load at the slowest serves it at all speeds.
    """
    slowest = with_speeds(problem.costs, {name: 1 - share for name, share in bands.items()})
    deadline = Deadline(ends["time_limit"], ends["stop"])
    nominal = ask(problem, **deadline.part(2))
    robust = ask(replace(problem, costs=slowest), **deadline.part())
    price, more = nominal.usd_per_hour, robust.usd_per_hour
    if price and more:
        off, rise = 100 * max(bands.values()), more / price - 1
        said = f"serving it at all speeds within {off:.3g}% costs {rise:.1%} more than as predicted"
        robust = replace(robust, reason="; ".join(filter(None, (said, robust.reason))))
    return replace(robust, seconds=deadline.spent)


def deploy_for_least_regret(
    problem: Problem, bands: Mapping[str, float], ask: Callable[..., Deployment], **ends: Any
) -> Deployment:
    """Find the deployment that keeps the largest share of the most tokens/s, or requests/s, in the worst scenario.

    Parameters
    ----------
    problem : Problem
    bands : mapping of GPU type to float
    ask : function of a problem, `time_limit` and `stop`
        Finds the best deployment.
    **ends
        `time_limit`, for all scenarios together, and `stop`.

    Returns
    -------
    Deployment
        Its objective is the percent that it loses at most; with a bound, except where limits on
        times count, or stages share their work among types.
    """
    deadline = Deadline(ends["time_limit"], ends["stop"])
    speeds = speeds_tried(bands, one_slow=False)

    def best_at(one: Mapping[str, float], left: int) -> Deployment:
        return ask(replace(problem, costs=with_speeds(problem.costs, one)), **deadline.part(left))

    best = [best_at(one, len(speeds) + 1 - i) for i, one in enumerate(speeds)]
    nominal, limits = best[0], best[0].limits
    if not nominal.pipelines:
        return nominal
    has_bound = limits is None and stages_are_as_fast_as_one_type(problem)
    problems = [one.problem for one in best]
    plans, most = [one.pipelines for one in best if one.pipelines], 1.0

    def values() -> np.ndarray:
        return np.array([[value_of(one, plan, limits) for one in problems] for plan in plans])

    for left in reversed(range(_MOST_BOUNDS)):
        plan, weights = _joined(problems, plans, values().max(axis=0), limits, nominal.single)
        plans.append(plan)
        kept = shares_kept(table := values(), best).max()
        if not has_bound or not left or most <= kept * (1 + ATTAINED):
            break
        weights = weights / weights.sum() / table.max(axis=0)
        shares = weights / weights.sum()
        answer = best_at({n: float(shares @ [one[n] for one in speeds]) for n in bands}, left)
        if answer.bound is not None:
            most = min(most, answer.bound * float(weights.sum()))
        plans += [answer.pipelines] if answer.pipelines else []
    cases = f"{len(speeds)} cases of speeds"
    at, said = choose_least_lost(values(), best, bands, most=most, tolerance=ATTAINED, cases=cases)
    pipelines = pipelines_in(problems[0], plans[at], limits)
    # Tokens/s of answers are as many times the requests/s as in the nominal answer.
    ratio = value_of(problems[0], pipelines, limits) / given(nominal.value)
    return replace(
        nominal,
        pipelines=pipelines,
        throughput=given(nominal.throughput) * ratio,
        seconds=deadline.spent,
        **said,
    )


def pipelines_in(
    problem: Problem, pipelines: Sequence[Pipeline], limits: Limits | None
) -> tuple[Pipeline, ...]:
    """Return pipelines as they are in a problem with other speeds, without those that do not keep the limits."""
    out = list[Pipeline | None]()
    for pipeline in pipelines:
        load = pipeline.workload
        one = replace(problem, workload=load)
        if limits is not None:  # the number in flight that suits the limits there
            one = for_phase(problem, load.phase, load.batch_size)
        out.append(pipeline_of(one, pipeline.replicas, limits))
    return tuple(sorted(filter(None, out), key=lambda pipeline: -pipeline.throughput))


def value_of(problem: Problem, pipelines: Sequence[Pipeline], limits: Limits | None) -> float:
    """Return what pipelines attain in a problem with other speeds, or serve within limits."""
    kept = pipelines_in(problem, pipelines, limits)
    if limits is None:
        return sum(pipeline.count * pipeline.throughput for pipeline in kept)
    return requests_served(kept, {pipeline.workload.phase for pipeline in pipelines})


def _joined(
    problems: Sequence[Problem],
    plans: Sequence[Sequence[Pipeline]],
    known: np.ndarray,
    limits: Limits | None,
    single: bool,
) -> tuple[tuple[Pipeline, ...], np.ndarray]:
    """Return the pipelines of all plans that keep the largest share together, and a dual price for each scenario."""
    classes = gpu_classes(problems[0].cluster)
    columns = {
        (p.workload, tuple(classes.stages_of(p.placement))): p for plan in plans for p in plan
    }
    phases = list(dict.fromkeys(workload.phase for workload, _ in columns))
    used = [np.sum([gpus for _, gpus in stages], axis=0) for _, stages in columns]
    alone = [replace(p, replicas=p.replicas[:1]) for p in columns.values()]
    rates = np.zeros((len(problems), len(phases), len(alone)))
    for s, problem in enumerate(problems):
        for j, one in enumerate(alone):
            phase = phases.index(one.workload.phase)
            rates[s, phase, j] = value_of(problem, [one], limits) / known[s]
    groups, number = VariableGroups({"x": len(alone), "v": 1}), len(problems) * len(phases)
    blocks = {
        "class_capacity": groups.rows({"x": sp.csr_array(np.array(used).T)}, upper=classes.count),
        "pipelines": groups.rows(
            {"x": np.ones((1, len(alone)))}, upper=1 if single else len(problems[0].cluster)
        ),
        "kept": groups.rows(
            {"x": sp.csr_array(rates.reshape(number, -1)), "v": -np.ones((number, 1))}, lower=0.0
        ),
    }
    program = groups.program({"v": 1.0}, blocks, integer=["x"])
    duals = given(run_program(program.relaxed()).row_duals)[-number:]
    chosen = np.rint(given(run_program(program).x)[: len(alone)]).astype(int)
    stages = [held for (_, held), times in zip(columns, chosen, strict=True) for _ in range(times)]
    ids = iter(FreeGPUs.in_nodes(problems[0], classes).taken(stages))
    plan = list[Pipeline]()
    for (_, held), one, times in zip(columns, alone, chosen, strict=True):
        layers = [count for count, _ in held]
        replicas = [Placement.of(zip(layers, next(ids), strict=True)) for _ in range(times)]
        plan += [replace(one, replicas=tuple(replicas))] if replicas else []
    return tuple(plan), duals.reshape(len(problems), -1).sum(axis=1)
