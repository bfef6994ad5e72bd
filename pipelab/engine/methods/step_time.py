"""The placement whose training step takes least time under a published schedule.

The step time of a placement is the simulator's: `timeline_of(problem, placement, training=True,
schedule=…)`. Placements are searched in order of a lower bound (`engine.training.bounds`) that a
dynamic program finds for all of them at once, and simulated until the bound meets the best.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from pipelab.costs import MEMORY_SLACK
from pipelab.display import counted
from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.methods.fronts import refuse_transfers
from pipelab.engine.objective import status_and_least
from pipelab.engine.schedules.rules import name_of
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.timeline import TrainingTimeline, training_timeline
from pipelab.engine.tolerances import PROVEN_WITHIN, SOLVER
from pipelab.engine.training.bounds import TRAINED_BY, Batch, Order, Suffixes, orders_of, tables_of
from pipelab.engine.training.result import StepTime, TrainingResult
from pipelab.engine.training.search import Best, RuleSearch, Search
from pipelab.engine.training.stages import (
    Stages,
    least_slowest,
    merged,
    stages_in_training,
)
from pipelab.errors import InvalidValue
from pipelab.fields import checked_arguments
from pipelab.placement import show_layers
from pipelab.problem import Problem

ANY = "best"
_OVER = object()
_SECONDS = 5.0  # for the reason why none fits, and for the remedy
_CLOSE = 1.01  # times the memory there is
_WORK = 100_000  # of one level and first layer of the table


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
    problem: choice.AskedProblem,
    *,
    schedule: ScheduleName = "1F1B",
    recompute: str | None = None,
    bytes_per_parameter: float | None = None,
    time_limit: choice.TimeLimit = None,
    gap: float = 0.0,
    stop: choice.Stop = None,
    on_progress: Callable | None = None,
) -> TrainingResult:
    """The placement whose training step takes least time.

    A step runs `Workload.microbatches` forward and backward, then the optimizer. Memory must hold
    the parameters' state, and the activations of as many microbatches as the schedule keeps on
    each rank.

    Parameters
    ----------
    problem : Problem
        With a workload of training, and with `link_units="tokens"`, unless there is only one GPU.
    schedule : str
        A rule that `pl.schedule` knows, or "best": whichever published rule takes least time, each
        with its own placement.
    recompute : {"none", "selective", "full", "auto"}, optional
        Activations that are computed a second time instead of kept; none by default. "auto": all of
        a stage where it does not fit otherwise.
    bytes_per_parameter : float, optional
        Of weights, gradients and the optimizer's state; by default 18, as Adam in mixed precision
        in Megatron, which adds gradients up in fp32 (`Engine.gradient_bytes`).
    time_limit : float, optional
        Seconds. Ended early, the answer is the best placement so far, with a proven bound.
    gap : float, optional
        Stop once the least is known to be lower by at most this share.
    stop : threading.Event, optional
        Set it to end the search, to the same effect.
    on_progress : function of Progress, optional
        Called for every better placement: its `incumbent` and `bound` are seconds per step.

    Returns
    -------
    TrainingResult
        `objective` has the seconds and their bound. Where nothing fits, `reason` says which stage
        of the placement that comes nearest lacks how much, and what would help.

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
    refuse_transfers(problem, "solve")
    refuse_other_phases(problem)
    with deadline_of(time_limit, stop) as deadline:
        try:
            stages = stages_in_training(problem, recompute, bytes_per_parameter, deadline)
        except Ended as end:
            return _unlisted(problem, schedule, deadline, end)
        solving = _Solving(stages, schedule, gap, deadline, bytes_per_parameter, on_progress)
        solving.run()
        return solving.result()


def refuse_other_phases(problem: Problem) -> None:
    """Raise `InvalidValue` for a workload of inference."""
    phase = problem.workload.phase
    if phase != "training":
        expected = "expected 'training': pl.Workload(…, phase='training', microbatches=…)"
        raise InvalidValue("solve", [("problem.workload.phase", phase, expected)])


class _Solving:
    """All rules in question, one after the other, with the best placement shared."""

    def __init__(
        self,
        stages: Stages,
        schedule: str,
        gap: float,
        deadline: Deadline,
        bytes_per_parameter: float | None,
        on_progress: Callable | None,
    ) -> None:
        self.stages, self.schedule, self.gap = stages, schedule, gap
        self.deadline, self.bytes_per_parameter = deadline, bytes_per_parameter
        self.on_progress = on_progress
        self.best = Best(on_change=self._tell)
        self.rules: list[RuleSearch] = []
        self.absent: dict[str, str] = {}
        self.least_left_out = np.inf  # by schedules that are too large to time
        self.stopped: str | None = None

    def run(self) -> None:
        """Always go on with the rule that may still have the least."""
        names = TRAINED_BY if self.schedule == ANY else (self.schedule,)
        # 1F1B first: what is known of it helps all others.
        names = tuple(sorted(names, key=lambda name: name != "1F1B"))
        microbatches = self.stages.problem.workload.microbatches
        nothing = [(np.zeros((1, 2)), 1)]
        floor = microbatches * least_slowest(self.stages, nothing)
        for name in names:
            orders, why, larger = orders_of(name, self.stages.most, microbatches)
            if larger is not None and self.schedule != ANY:
                raise larger
            if larger is not None:
                self.least_left_out, self.stopped = floor, "list limit"
            if not orders:
                self.absent[name] = why or str(larger)
                continue
            self.rules.append(
                RuleSearch(name, self.stages, orders, self.best, self.deadline, self.gap, floor)
            )
        going = {rule.name: rule.rounds() for rule in self.rules}
        while open_rules := [rule for rule in self.rules if rule.name in going]:
            rule = min(open_rules, key=lambda rule: rule.bound)
            if rule.bound >= self.best.seconds * (1 - PROVEN_WITHIN):
                break
            if next(going[rule.name], _OVER) is _OVER:
                del going[rule.name]
                self.stopped = rule.stopped or self.stopped

    @property
    def bound(self) -> float:
        """No placement has less under any of the rules, in seconds."""
        bounds = [rule.bound for rule in self.rules]
        return min([*bounds, self.least_left_out, self.best.seconds])

    def _tell(self) -> None:
        if self.on_progress is not None:
            nodes = sum(rule.nodes for rule in self.rules)
            self.on_progress(Progress(self.deadline.spent, self.best.seconds, None, nodes))

    def result(self) -> TrainingResult:
        """What is known when the search has ended."""
        problem, best = self.stages.problem, self.best
        bound: float | None = self.bound
        step = self._step() if best.plan is not None else None
        value = None if step is None else step.timeline.iteration_time
        if value is not None and abs(value / best.seconds - 1) > SOLVER:
            expected = (
                f"expected {best.seconds:g} s per step, as for the first layers that are identical"
            )
            model = type(problem.costs).__name__
            raise InvalidValue(f"{model}.training_cost", [("step", value, expected)])
        reason, stopped = "", self.stopped
        if value is None and bound == np.inf:
            status, bound, stopped = "infeasible", None, None
            reason = self._why_none()
        else:
            status, bound = status_and_least(value, bound or None)
        if step is not None and len(step.placement) > problem.workload.microbatches:
            few = problem.workload.microbatches
            several = "one microbatch" if few == 1 else f"{few} microbatches"
            reason = f"{several} on {len(step.placement)} ranks: some of them always wait"
        among = self.schedule if self.schedule != ANY else "the published schedules"
        objective = StepTime("seconds_per_step", "s per step", value, bound, 0.0, among)
        size = {
            "classes": len(self.stages.classes),
            "compositions": len(self.stages.composition),
            "states": sum(rule.states for rule in self.rules),
        }
        details = {
            "seconds_per_step": value,
            "bound_seconds": bound,
            "nodes": sum(rule.nodes for rule in self.rules),
            "simulated": sum(rule.simulated for rule in self.rules),
            "bounds_by_schedule": {rule.name: rule.bound for rule in self.rules},
        }
        return TrainingResult(
            problem,
            "step_time",
            status,
            None if step is None else step.placement,
            None if step is None else step.rate,
            None,
            self.deadline.spent,
            size,
            "",
            reason,
            stopped if status not in ("optimal", "infeasible") else None,
            details,
            objective,
            schedule=None if step is None else best.rule,
            recompute=None if step is None else self._recomputed(step),
            step=step,
        )

    def _why_none(self) -> str:
        """Of the rule that exists here and holds least; or why none exists."""
        if not self.rules:
            return next(iter(self.absent.values())).removeprefix("schedule: ")
        names = [rule.name for rule in self.rules]
        rule = self.rules[names.index("1F1B") if "1F1B" in names else 0]
        return _why_none_fits(self.stages, rule.orders, self.deadline, self.bytes_per_parameter)

    def _step(self) -> TrainingTimeline:
        """The best placement, as `timeline_of` has it."""
        compositions, sizes = self.best.plan or ((), ())
        placement = self.stages.placement(compositions, np.cumsum([0, *sizes]).tolist())
        modes = self.stages.modes
        return training_timeline(
            self.stages.problem,
            placement,
            schedule=self.best.rule,
            recompute="auto" if len(modes) > 1 else modes[0],
            bytes_per_parameter=self.bytes_per_parameter,
        )

    def _recomputed(self, step: TrainingTimeline) -> tuple[str, ...] | None:
        modes = self.stages.modes
        if modes == (None,):
            return None
        if len(modes) == 1:
            return tuple(str(modes[0]) for _ in step.placement.stages)
        return step.recompute


def _unlisted(problem: Problem, schedule: str, deadline: Deadline, end: Ended) -> TrainingResult:
    """Ended while stages were being asked for."""
    objective = StepTime("seconds_per_step", "s per step", None, None, 0.0, schedule)
    return TrainingResult(
        problem,
        "step_time",
        "unknown",
        None,
        None,
        None,
        deadline.spent,
        reason="the times of stages were still being computed",
        stopped_by=end.reason,
        objective=objective,
    )


class _Nearest(NamedTuple):
    """The placement that needs least more memory, or one that needs little more.

    A placement that fits if every GPU had a little more memory; the little is found by halving.
    """

    order: Order
    compositions: list[int]
    cuts: list[int]
    least: bool = True


def _why_none_fits(
    stages: Stages,
    orders: dict[int, Order],
    deadline: Deadline,
    bytes_per_parameter: float | None,
) -> str:
    """The reason in words, found within a few seconds more."""
    within = Deadline(_SECONDS, deadline.stop, deadline.interrupted)
    name, chunks = next((o.schedule.name, o.chunks) for o in orders.values())
    if stages.layers % chunks:
        return f"under {name} every rank has {chunks} equal chunks, which {stages.layers} layers are not"
    if stages.modes == (None,):
        return f"none of the stages on up to {counted(stages.most, 'rank')} fits, as in inference"
    try:
        nearest = _nearest(stages, orders, within)
        if nearest is None:
            return "there is no link, or no rate, for any placement, whatever the memory"
    except Ended:
        return "no placement's state and activations fit in memory"
    within = Deadline(_SECONDS, deadline.stop, deadline.interrupted)
    return f"{_misfit(stages, nearest)}; {_remedy(stages, orders, bytes_per_parameter, within)}"


def _with_memory(stages: Stages, factor: float) -> Stages:
    """The same with GPUs of more memory; what `evaluate` takes is not asked."""
    has_rate = stages.costs[stages.modes[0]][0] > 0
    return replace(stages, serves=has_rate, offered=stages.offered * factor)


def _nearest(stages: Stages, orders: dict[int, Order], deadline: Deadline) -> _Nearest | None:
    low, high, found = 1.0, 2.0, None
    while (found := _any(_with_memory(stages, high), orders, deadline)) is None:
        low, high = high, high * 4
        if high > 1e9:
            return None
    while high > low * _CLOSE:
        middle = (low * high) ** 0.5
        try:
            some = _any(_with_memory(stages, middle), orders, deadline)
        except Ended:
            return found._replace(least=False)
        low, high = (low, middle) if some else (middle, high)
        found = some or found
    return found


def _any(stages: Stages, orders: dict[int, Order], deadline: Deadline) -> _Nearest | None:
    """Any placement that fits."""
    found: list[_Nearest] = []

    def keep(compositions: np.ndarray, cuts: np.ndarray, seconds: float) -> None:
        found.append(_Nearest(orders[len(compositions)], compositions.tolist(), cuts.tolist()))

    groups = merged(stages, _WORK)
    *_, tables = tables_of(orders, lambda some: Suffixes(stages, some, groups, np.inf, deadline))
    Search(tables, np.inf, keep, deadline).dive()
    return found[-1] if found else None


def _misfit(stages: Stages, nearest: _Nearest) -> str:
    """The stage that lacks most of what it has, in numbers."""
    batch = Batch(np.array([nearest.compositions]), np.array([nearest.cuts]))
    kinds = stages.runs.kind[batch.cuts[:, :-1], np.diff(batch.cuts, axis=1) - 1][0].tolist()
    order, lacking = nearest.order, []
    for rank, (c, u) in enumerate(zip(nearest.compositions, kinds, strict=True)):
        modes = {m: stages.needed(m, order.held[rank], order.chunks)[c, u] for m in stages.modes}
        mode = min(modes, key=lambda m: modes[m])
        lacking.append((modes[mode] / stages.offered[c], rank, c, u, mode))
    _, rank, c, u, mode = max(lacking)
    need = float(stages.needed(mode, order.held[rank], order.chunks)[c, u])
    state, offer = float(stages.costs[mode][4, c, u]), float(stages.offered[c])
    stage = stages.placement(nearest.compositions, nearest.cuts).stages[rank]
    gpu = min((stages.problem.cluster.gpus[g] for g in stage.gpus), key=lambda g: g.memory_gb)
    several = f"{len(stage.gpus)} × " if len(stage.gpus) > 1 else ""
    which = "the placement that comes nearest" if nearest.least else "a placement that comes near"
    head = (
        f"of {which} under {order.schedule.name}, stage {rank + 1} "
        f"(layers {show_layers(stage.layers)} on {several}{gpu.type})"
    )
    if need <= offer * MEMORY_SLACK:
        return f"{head} fits in training, but not the memory that `evaluate` asks for a forward"
    most = max(1, round(order.window[rank] / order.chunks))
    held = "one microbatch" if most == 1 else f"{most} microbatches"
    return (
        f"{head} needs {need:.4g} GB, {state:.4g} of them for the state of its parameters and "
        f"{need - state:.4g} for activations of {held} in flight, and has {offer:.4g} GB: "
        f"{need - offer:.3g} GB are missing"
    )


def _remedy(
    stages: Stages,
    orders: dict[int, Order],
    bytes_per_parameter: float | None,
    deadline: Deadline,
) -> str:
    """What would help, tried where it can be."""
    if "full" not in stages.modes:
        try:
            thin = stages_in_training(stages.problem, "full", bytes_per_parameter, deadline)
            if _any(thin, orders, deadline) is not None:
                return "with recompute='auto' there are placements that fit"
        except Ended:
            return "no placement fits; recompute='auto' was not tried to the end"
    all_gpus = stages.classes.count @ np.array(
        [stages.classes.gpu(a).memory_gb for a in range(len(stages.classes))]
    )
    more = "" if "full" in stages.modes else ", even recomputed in full"
    alone = stages.costs[stages.modes[0]][4].max()
    if alone > all_gpus:
        return (
            f"no placement fits{more}: the state of all parameters takes {alone:.4g} GB and all GPUs "
            f"have {all_gpus:.4g}; take more GPUs, or fewer bytes_per_parameter"
        )
    return f"no placement fits{more}; take more GPUs, smaller microbatches, or fewer bytes_per_parameter"
