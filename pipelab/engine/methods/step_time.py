"""The placement whose training step takes least time under a published schedule.

The step time of a placement is the simulator's: `timeline_of(problem, placement, training=True,
schedule=…)`. Placements are searched in order of a lower bound (`engine.training.bounds`) that a
dynamic program finds for all of them at once, and simulated until the bound meets the best.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from pipelab.costs import refuse_transfers
from pipelab.engine import arguments
from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.methods.attainable_rate import solve_for_attainable
from pipelab.engine.methods.auto import solve_auto
from pipelab.engine.objective_and_bound import status_and_least
from pipelab.engine.schedules.named_schedules import name_of
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.timeline import TrainingTimeline, training_timeline
from pipelab.engine.tolerances import SOLVER
from pipelab.engine.training.bounds import TRAINED_BY, RuleBounds
from pipelab.engine.training.result import StepTime, TrainingResult
from pipelab.engine.training.search import BestStep, Plan, StepTimeSearch
from pipelab.engine.training.stages import ROLES, TrainingStages, least_slowest, stages_in_training
from pipelab.errors import InvalidValue
from pipelab.fields import checked_arguments, given
from pipelab.placement import show_layers

ANY = "best"
_OVER = object()
_EXPLAINING_SECONDS = 5.0  # for the reason why none fits, and for the remedy
_NEAR_MEMORY_RATIO = 1.01  # of the memory needed to the memory there is


def _schedule(name: Any) -> str:
    if name == ANY:
        return ANY
    known = name_of(name)
    if known not in TRAINED_BY:
        expected = f"expected a schedule with backwards, such as '1F1B', or {ANY!r}"
        raise InvalidValue("solve", [("schedule", name, expected)])
    return known


ScheduleName = Annotated[str, BeforeValidator(_schedule)]


@checked_arguments
def solve_for_step_time(
    problem: arguments.AskedProblem,
    *,
    schedule: ScheduleName = "1F1B",
    recompute: str | None = None,
    bytes_per_parameter: float | None = None,
    time_limit: arguments.TimeLimit = None,
    gap: float = 0.0,
    stop: arguments.Stop = None,
    on_progress: Callable | None = None,
) -> TrainingResult:
    """Find the placement whose training step takes the least time.

    A step runs `Workload.microbatches` forward and backward, then the optimizer. Memory must hold
    the parameters' state, and the activations of as many microbatches as the schedule keeps on
    each rank.

    Parameters
    ----------
    problem : Problem
        With a workload of training, and with `link_units="tokens"`, unless there is only one GPU.
    schedule : str
        A rule that `pl.schedule` knows, or "best": the published rule that takes the least time,
        each with its own placement.
    recompute : {"none", "selective", "full", "auto"}, optional
        Activations that are computed a second time instead of kept; none by default. "auto": all of
        a stage where it does not fit otherwise.
    bytes_per_parameter : float, optional
        Of weights, gradients and the optimizer's state; by default 18, as Adam in mixed precision
        in Megatron, which adds gradients up in fp32 (`Engine.gradient_bytes`).
    time_limit : float, optional
        Seconds. If it runs out, the answer is the best placement so far, with a proven bound.
    gap : float, optional
        Stop once the best is proven to be within this share of the least.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True, to the same effect.
    on_progress : function of Progress, optional
        Called for every better placement: its `incumbent` and `bound` are seconds per step.

    Returns
    -------
    TrainingResult
        `objective` has the seconds and their bound. If nothing fits, `reason` names the stage that
        lacks most memory in the placement that comes nearest, how much, and what would help.

    Raises
    ------
    InvalidValue
        The workload is not of training, links are counted in transfers/s, a recipe is given to a
        cost model that has none, or a value does not fit.
    UnknownName
        There is no such schedule.
    TooLarge
        More than 400 layers, too many kinds of stage, or a schedule of too many microbatches.

    Notes
    -----
    Cost models without `training_cost` give the forward, and both gradients take as long; their
    memory is checked as for inference.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> load = dataclasses.replace(tiny.workload, phase="training", microbatches=8)
    >>> result = solve_for_step_time(dataclasses.replace(tiny, workload=load))
    >>> result.status, result.objective.unit
    ('optimal', 's per step')
    """
    if len(problem.cluster) > 1:
        refuse_transfers("solve", problem.costs.link_units)
    phase = problem.workload.phase
    if phase != "training":
        expected = "expected 'training': pl.Workload(…, phase='training', microbatches=…)"
        raise InvalidValue("solve", [("problem.workload.phase", phase, expected)])
    with deadline_of(time_limit, stop) as deadline:
        try:
            stages = stages_in_training(problem, recompute, bytes_per_parameter, deadline)
        except Ended as end:
            return TrainingResult(
                problem=problem,
                method="step_time",
                status="unknown",
                seconds=deadline.spent,
                reason="the times of stages were still being computed",
                stopped_by=end.reason,
                objective=_objective(schedule, None, None),
            )
        # 1F1B first: its placement helps all others.
        names = [schedule] if schedule != ANY else sorted(TRAINED_BY, key=lambda n: n != "1F1B")
        rules = [RuleBounds(name, stages.most, problem.workload.microbatches) for name in names]
        too_large = [rule.too_large for rule in rules if rule.too_large is not None]
        if too_large and schedule != ANY:
            raise too_large[0]
        best = BestStep()
        possible = [rule for rule in rules if rule.orders]
        searches = [StepTimeSearch(stages, rule, best, deadline, gap) for rule in possible]

        def moment(bound: float | None = None) -> Progress:
            known = best.seconds if best.plan is not None else None
            nodes = sum(search.count for search in searches)
            return Progress(seconds=deadline.spent, incumbent=known, bound=bound, nodes=nodes)

        if on_progress is not None:
            best.on_change = lambda: on_progress(moment())
        chunks = {rule.chunks for rule in rules}
        unloaded = {stages.times([r] * n, np.zeros((0, 2 * n))) for n in chunks for r in ROLES}
        floor = problem.workload.microbatches * least_slowest(stages, unloaded)
        stopped = _search(searches, best, floor, lambda least: deadline.ask(moment(least)))
        stopped = stopped or ("list limit" if too_large else None)
        bounds = [floor] * bool(too_large) + [search.bound for search in searches]
        least: float | None = min([best.seconds, *bounds])
        step, value, reason = None, None, ""
        if best.plan is not None:
            step = _simulated(stages, best, bytes_per_parameter)
            value = step.timeline.iteration_time
            few = problem.workload.microbatches
            if len(step.placement) > few:
                several = "one microbatch" if few == 1 else f"{few} microbatches"
                reason = f"{several} on {len(step.placement)} ranks: some of them always wait"
        if value is None and least == np.inf:
            status, least = "infeasible", None
            reason = _why_none_fits(stages, rules, deadline, bytes_per_parameter)
        else:
            status, least = status_and_least(value, least or None)
        return TrainingResult(
            problem=problem,
            method="step_time",
            status=status,
            placement=None if step is None else step.placement,
            throughput=None if step is None else step.rate,
            seconds=deadline.spent,
            size={
                "classes": len(stages.classes),
                "compositions": len(stages.composition),
                "states": sum(search.states for search in searches),
            },
            reason=reason,
            stopped_by=stopped if status not in ("optimal", "infeasible") else None,
            details={"nodes": moment().nodes},
            objective=_objective(schedule, value, least),
            schedule=None if step is None else best.rule,
            recompute=None if step is None else step.recompute,
            step=step,
        )


def _objective(schedule: str, value: float | None, least: float | None) -> StepTime:
    among = schedule if schedule != ANY else "the published schedules"
    return StepTime(
        name="seconds_per_step",
        unit="s per step",
        value=value,
        bound=least,
        schedule=among,
    )


def _search(
    searches: list[StepTimeSearch], best: BestStep, floor: float, ask: Callable[[float], None]
) -> str | None:
    """Go on with the rule that may still have the least; return what ended one early, if anything.

    `ask` is called with the bound after every round.
    """
    stopped, going = None, {search: search.rounds() for search in searches}
    for search in searches:
        search.bound = floor
    while going:
        search = min(going, key=lambda other: other.bound)
        if search.bound >= best.useful:
            break
        if next(going[search], _OVER) is _OVER:
            del going[search]
            stopped = search.stopped or stopped
        ask(min(other.bound for other in searches))
    return stopped


def _simulated(
    stages: TrainingStages, best: BestStep, bytes_per_parameter: float | None
) -> TrainingTimeline:
    """Return the best placement as `timeline_of` has it.

    Raises
    ------
    InvalidValue
        The cost model's times depend on which of identical layers a stage holds.
    """
    step = training_timeline(
        stages.problem,
        stages.placement(*given(best.plan)),
        schedule=best.rule,
        recompute="auto" if len(stages.modes) > 1 else stages.modes[0],
        bytes_per_parameter=bytes_per_parameter,
    )
    value = step.timeline.iteration_time
    if abs(value / best.seconds - 1) > SOLVER:
        expected = f"expected {best.seconds:g} s per step, as for the first identical layers"
        model = type(stages.problem.costs).__name__
        raise InvalidValue(f"{model}.training_cost", [("step", value, expected)])
    return step


def _why_none_fits(
    stages: TrainingStages,
    rules: list[RuleBounds],
    deadline: Deadline,
    bytes_per_parameter: float | None,
) -> str:
    """Return the reason in words, found within a few seconds more."""
    rule = next((rule for rule in rules if rule.orders), None)
    if rule is None:
        return (rules[0].absent or str(rules[0].too_large)).removeprefix("schedule: ")
    if stages.layers < (least := rule.chunks * min(rule.orders)):
        return f"under {rule.name} ranks have {least} chunks or more, and the model {stages.layers} layers"
    within = deadline.within(_EXPLAINING_SECONDS)
    try:
        nearest = _nearest(stages, rule, within)
    except Ended:
        return "no placement's state and activations fit in memory"
    if nearest is None:
        load = replace(stages.problem.workload, phase="prefill")
        problem = replace(stages.problem, workload=load)
        forward = solve_for_attainable(problem, "auto", solve_auto, {"time_limit": within.left})
        return f"not even the forward alone fits: {forward.reason or forward.sentence}"
    within = deadline.within(_EXPLAINING_SECONDS)
    remedy = _remedy(stages, rule, bytes_per_parameter, within)
    return f"{_misfit(stages, rule, *nearest)}; {remedy}"


def _nearest(
    stages: TrainingStages, rule: RuleBounds, deadline: Deadline
) -> tuple[Plan, str] | None:
    """Return the placement that fits if all GPUs have the least more memory, and what it is called."""
    low, high, nearest = 1.0, 2.0, None
    while (nearest := _any(stages, rule, deadline, high)) is None:
        low, high = high, high * 4
        if high > 1e9:
            return None
    while high > low * _NEAR_MEMORY_RATIO:
        middle = (low * high) ** 0.5
        try:
            some = _any(stages, rule, deadline, middle)
        except Ended:
            return nearest, "a placement that comes near"
        low, high, nearest = (low, middle, some) if some else (middle, high, nearest)
    return nearest, "the placement that comes nearest"


def _any(
    stages: TrainingStages, rule: RuleBounds, deadline: Deadline, factor: float = 1.0
) -> Plan | None:
    """Return any placement that fits GPUs of so many times the memory."""
    if stages.modes == (None,) or not len(stages.composition):
        return None
    roomy = replace(stages, offered=stages.offered * factor)
    search = StepTimeSearch(roomy, rule, BestStep(), deadline)
    search.build()
    search.refine()
    search.dive()
    return search.best.plan


def _misfit(stages: TrainingStages, rule: RuleBounds, plan: Plan, which: str) -> str:
    """Return the stage that lacks most of what it has, in numbers."""
    order, placed, lacking = rule.orders[len(plan[0])], stages.placement(*plan).stages, []
    ranks = stages.needs(order, *np.array(plan)[:, None])
    for rank, (c, needs) in enumerate(zip(plan[0], ranks, strict=True)):
        parts, (needed,) = min(needs.values(), key=lambda each: each[1][0])
        need, state, offer = float(needed), float(parts[4].sum()), float(stages.offered[c])
        lacking.append((need / offer, rank, need, state, offer))
    _, rank, need, state, offer = max(lacking)
    stage = placed[rank]
    gpu = min((stages.problem.cluster.gpus[g] for g in stage.gpus), key=lambda g: g.memory_gb)
    several = f"{len(stage.gpus)} × " if len(stage.gpus) > 1 else ""
    most = max(1, round(rule.window(len(placed), rank) / rule.chunks))
    held_in_words = "one microbatch" if most == 1 else f"{most} microbatches"
    return (
        f"of {which} under {rule.name}, stage {rank + 1} "
        f"(layers {show_layers(stage.layers)} on {several}{gpu.type}) "
        f"needs {need:.4g} GB, {state:.4g} of them for the state of its parameters and "
        f"{need - state:.4g} for activations of {held_in_words} in flight, and has {offer:.4g} GB: "
        f"{need - offer:.3g} GB are missing"
    )


def _remedy(
    stages: TrainingStages, rule: RuleBounds, bytes_per_parameter: float | None, deadline: Deadline
) -> str:
    """Return what would help, tried where it can be."""
    more = ", even recomputed in full"
    if "full" in stages.modes:
        more = ""
    else:
        try:
            thin = stages_in_training(stages.problem, "full", bytes_per_parameter, deadline)
            if _any(thin, rule, deadline) is not None:
                return "with recompute='auto' there are placements that fit"
        except Ended:
            return "no placement fits; recompute='auto' was not tried to the end"
    all_gpus = sum(gpu.memory_gb for gpu in stages.problem.cluster.gpus)
    alone = stages.costs[stages.modes[0]][4].max()
    if alone > all_gpus:
        return (
            f"no placement fits{more}: the state of all parameters takes {alone:.4g} GB and all GPUs "
            f"have {all_gpus:.4g}; take more GPUs, or fewer bytes_per_parameter"
        )
    return f"no placement fits{more}; take more GPUs, smaller microbatches, or fewer bytes_per_parameter"
