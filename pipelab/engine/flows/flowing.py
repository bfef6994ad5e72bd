"""flow(problem): the greatest throughput if every microbatch may take its own way.

First the best deployment, or the pipeline of the greatest rate: both are flows. It may take all of the time, so no
flow is worse than what `deploy` finds in it. Then a bound on every flow (`bounds`). A small problem is solved as one
program (`exact`); otherwise `series_parallel` proposes stages for one throughput after another, and `routing` finds
the ways through them. Whatever is found or proven is kept when time ends.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Annotated, Any, Literal

import numpy as np

from pipelab.costs import refuse_filling, refuse_transfers
from pipelab.engine import arguments
from pipelab.engine.answers import Result
from pipelab.engine.arguments import refuse_training
from pipelab.engine.deadline import Deadline, Ended, apart, deadline_of
from pipelab.engine.deployments.deploying import deploy
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.flows.bounds import Cases
from pipelab.engine.flows.capacities import StagesByInFlight, stages_of
from pipelab.engine.flows.exact import every_option, exact_flow
from pipelab.engine.flows.fans import fanned
from pipelab.engine.flows.result import Flow
from pipelab.engine.flows.routing import Routing
from pipelab.engine.flows.series_parallel import Blocks
from pipelab.engine.solvers import choice
from pipelab.engine.solving import solve
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER, SOLVER
from pipelab.errors import TooLarge
from pipelab.evaluation import MOST_IN_FLIGHT
from pipelab.fields import checked_arguments, described, given
from pipelab.flows import Held, Way, greatest_flow, numbers, stage_times
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem

_PIPELINE_SHARE = 0.2  # of the time after a deployment, for what one pipeline can have
_PIPELINE_SECONDS = 20.0  # for this where time is not limited
_STEP = 1e-4  # throughputs that are tried one after another are further apart
_PLANNED_TIME_FACTORS = 1.0, 0.75, 1.4  # of a way's time: what memory is planned for at first
_PLANNED_STEP = 3e-3  # with memory throughputs are further apart: plans are not as exact
_BOUND_STEP = 1e-2  # and the bound is known to this share
_MOST_PLANS = 6  # of memory, for one throughput
_MOST_MOVES = 60  # of one stage, whose flows are computed
_SAME_TIME_FACTOR = 1.02  # no longer: planned for


_Objective = Annotated[Literal["throughput", "rate"], described("'throughput' or 'rate'")]


@checked_arguments
def flow(
    problem: arguments.AskedProblem,
    objective: _Objective = "throughput",
    *,
    time_limit: arguments.TimeLimit = None,
    gap: arguments.Gap = 0.0,
    stop: arguments.Stop = None,
) -> Flow:
    """The greatest throughput if stages may overlap and every microbatch takes its own way through them.

    `solve` finds one pipeline, `deploy` several that share nothing; both are special flows. `pipelab.flows` has
    the definition.

    Parameters
    ----------
    problem : Problem
        What is to be served, and on what. Stages keep the rules of a placement, but may hold the same layers.
    objective : {"throughput", "rate"}
        "throughput": all microbatches in flight, on all ways together, have memory on every stage that they
        pass. "rate": that of stages that are always busy, with memory for `Workload.in_flight`
        microbatches or 1; so for profiles that have the KV cache in their rates.
    time_limit : float, optional
        Seconds. The best flow found by then is kept, with a proven bound.
    gap : float
        Stop once the best is known to be at most this much better, as a share.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True (`solve`): `nodes` are throughputs tried, and nodes and rounds of
        what was solved on the way. The best flow is kept. Ctrl-C does the same.

    Returns
    -------
    Flow
        Stages, ways with their tokens/s, a bound on every flow.

    Raises
    ------
    InvalidValue
        An argument is of another kind, the problem is one of training, or links count transfers/s.
    TooLarge
        Too many mixtures of too many kinds of GPU in one stage.

    References
    ----------
    Y. Mei et al., *Helix: Serving Large Language Models over Heterogeneous GPUs and Network via
    Max-Flow*, ASPLOS 2025.

    Examples
    --------
    >>> import pipelab as pl
    >>> model = pl.Model("four layers", 4, 1000, 4000, 1.0)
    >>> cluster = pl.Cluster.from_counts({"A": 1, "B": 2}, 80, 100)
    >>> times = pl.LayerTimes({"A": 1.0, "B": 3.0})
    >>> problem = pl.Problem(cluster, model, pl.Workload(100, 1), times)
    >>> best = pl.flow(problem)
    >>> best.status, round(best.throughput), round(pl.solve(problem).throughput)
    ('optimal', 41667, 33333)
    """
    refuse_training(problem, "flow")
    refuse_transfers("flow", problem.costs.link_units)
    refuse_filling("flow", problem.costs)
    with deadline_of(time_limit, stop) as deadline:
        return _Flowing(problem, objective == "rate", gap, deadline).run(time_limit)


@dataclass
class _Flowing:
    """One call of `flow`."""

    problem: Problem
    full: bool
    gap: float
    deadline: Deadline
    held: Sequence[Held] = ()
    ways: Sequence[Way] = ()
    value: float = 0.0
    bound: float = math.inf
    asked: int = 0  # throughputs for which stages were looked for
    size: dict[str, int] = field(default_factory=dict)
    progress: list[tuple[float, float, float]] = field(default_factory=list)
    _numbers: dict[tuple, list[tuple[int, float]]] = field(default_factory=dict)
    _most: int | None = 1  # in flight that fit somewhere; None: any number

    def run(self, time_limit: float | None) -> Flow:
        """Find a flow, and what none can beat."""
        stopped = None
        try:
            several = None if self.full else self._deploy(time_limit)
            if several is not None:
                if several.status == "infeasible":
                    return self._answer("infeasible", several.reason, None)
                self.deadline.check()
                part = min(_PIPELINE_SECONDS, _PIPELINE_SHARE * self.deadline.left)
                time_limit = self.deadline.within(part).left
            one = self._solve(time_limit)
            if one.status == "infeasible":  # any way of a flow alone would be a pipeline
                return self._answer("infeasible", one.reason, None)
            stages = stages_of(self.problem, self.full, self.deadline)
            self._most = None if stages.more else stages.numbers[-1]
            cases = Cases(stages, math.inf if one.bound is None else one.bound)
            self._prove(cases, _BOUND_STEP, sums_only=True)
            if not self._done:
                self._fan(stages)
                self._prove(cases, _STEP if self.full else _BOUND_STEP)
            if not self._done and not self._small():
                self._search(stages)
                self._move()
                if not self._done and self.bound <= self.value * (1 + 2 * _STEP):
                    self._prove(cases, SOLVER / 4)
            if not self._done:
                self.deadline.check()
        except Ended as end:
            stopped = end.reason
        except TooLarge as error:
            self.deadline.notes.append(str(error))
        return self._answer("", "", stopped)

    @property
    def _done(self) -> bool:
        return self.bound <= self.value * (1 + max(ATTAINED, self.gap))

    def _solve(self, time_limit: float | None) -> Result:
        """The best pipeline alone, which is kept."""
        objective = "rate" if self.full else "throughput"
        ends: dict[str, Any] = {"time_limit": time_limit, "stop": apart(self.deadline.stop)}
        one = solve(self.problem, objective=objective, **ends)
        self.size |= {"one_pipeline_stages": len(one.placement or ())}
        if one.placement is not None:
            number = one.memory_for or given(one.evaluation).in_flight or 1
            self._keep_pipelines([(one.placement, number, given(one.throughput))])
        return one

    def _keep(self, held: Sequence[Held], ways: Sequence[Way]) -> float:
        """Keep a flow if it is the best so far; its tokens/s."""
        value = math.fsum(way.rate for way in ways)
        if value > self.value:
            used = sorted({v for way in ways for v in way.stages}, key=lambda v: _place(held[v]))
            new = {v: i for i, v in enumerate(used)}
            self.held = [held[v] for v in used]
            self.ways = [Way(tuple(new[v] for v in way.stages), way.rate) for way in ways]
            self.value = value
            self._note()
        return value

    def _note(self) -> None:
        self.progress.append((self.deadline.spent, self.value, self.bound))
        self._ask()

    def _ask(self) -> None:
        """Ask a criterion, which counts what blocks were asked."""
        bound = self.bound if math.isfinite(self.bound) else None
        self.deadline.tell(incumbent=self.value or None, bound=bound, nodes=self.asked)

    def _keep_pipelines(self, pipelines: Sequence[tuple[Placement, int, float]]) -> None:
        """Each with its number in flight and its tokens/s."""
        held: list[Held] = []
        ways = []
        for placement, number, rate in pipelines:
            ways.append(Way(tuple(range(len(held), len(held) + len(placement))), rate))
            held += [Held(stage, number) for stage in placement.stages]
        self._keep(held, ways)

    def _deploy(self, time_limit: float | None) -> Deployment | None:
        """The best deployment, which is kept; None where its mixtures are too many to list."""
        try:
            several = deploy(self.problem, time_limit=time_limit, stop=apart(self.deadline.stop))
        except TooLarge as error:
            self.deadline.notes.append(str(error))
            return None
        kept: list[tuple[Placement, int, float]] = []
        for pipeline in several.pipelines:
            number = given(pipeline.workload.in_flight)
            kept += [(replica, number, pipeline.throughput) for replica in pipeline.replicas]
        self._keep_pipelines(kept)
        return several

    def _prove(self, cases: Cases, within: float, sums_only: bool = False) -> None:
        """Lower the bound until it is known to a share, or a third of the time is gone."""
        part = self.deadline.within(self.deadline.left / 3)
        bound = cases.greatest(self.value, self.bound, within, part, sums_only)
        self.bound = max(min(bound, self.bound), self.value)
        self.size |= {"patterns": cases.number}
        self._note()

    def _small(self) -> bool:
        """Solve a small problem as one program; whether it was."""
        options = every_option(self.problem, self.full, self.deadline)
        found = options and exact_flow(self.problem, options, self.bound, self.full, self.deadline)
        if not found:
            return False
        held, run = found
        if held:
            ways = greatest_flow(self.problem, held, self.full)
            self._keep(held, self._routing(held).within_limits(ways))
        if run.bound is not None:
            self.bound = max(self.value, min(self.bound, run.bound * self.bound))
            self._note()
        return True

    def _blocks(self, stages: StagesByInFlight, seconds: float) -> Blocks:
        """What stages let pass where a way takes so long."""
        return Blocks(
            instance=stages.instance,
            capacities=stages.at(max(stages.least_seconds, seconds)),
            within=self.bound,
            deadline=self.deadline,
        )

    def _fan(self, stages: StagesByInFlight) -> None:
        """Flows that cross once between the parts of a cluster, planned again for the time that their ways take."""
        seconds = self._mean_seconds(self.held, self.ways) or stages.least_seconds
        parts = self._blocks(stages, seconds).parts
        for first, _ in product(range(parts), range(_MOST_PLANS)):
            proposed = fanned(self._blocks(stages, seconds), first)
            seconds = self._route(proposed, seconds)[1] or seconds  # none where nothing is carried

    def _search(self, stages: StagesByInFlight) -> None:
        """One throughput after another: what blocks let pass that is known to be out of reach ends the search."""
        for times in (1.0,) if self.full else _PLANNED_TIME_FACTORS:
            mean = self._mean_seconds(self.held, self.ways) or stages.least_seconds
            low, high = self.value, self.bound
            while high > low * (1 + (_STEP if self.full else _PLANNED_STEP)) and not self._done:
                middle = (low + high) / 2
                if self._reached(middle, stages, times * mean):
                    low = max(middle, self.value)
                else:
                    high = middle

    def _reached(self, t: float, stages: StagesByInFlight, seconds: float) -> bool:
        """Whether blocks propose stages for t tokens/s; what these really carry is kept.

        Memory is planned for ways of so many seconds, and again for more where those of the proposal take longer.
        """
        for _ in range(_MOST_PLANS):
            blocks = self._blocks(stages, seconds)
            self.size |= {"blocks": sum(len(table.rates) for table in blocks.tables.values())}
            proposed = blocks.at(t)
            self.asked += 1
            self._ask()
            if proposed is None:
                return False
            carried, taken = self._route(proposed, seconds)
            if carried >= t or taken <= seconds * _SAME_TIME_FACTOR:
                return True
            seconds = taken
        return False

    def _routing(self, held: Sequence[Held]) -> Routing:
        """Return the stages with the links between them."""
        return Routing(problem=self.problem, held=held, full=self.full)

    def _mean_seconds(self, held: Sequence[Held], ways: Sequence[Way]) -> float:
        """Of a microbatch on its way."""
        routing, total = self._routing(held), sum(way.rate for way in ways)
        taken = sum(way.rate * routing.seconds(way.stages) for way in ways)
        return taken / total if total else 0.0

    def _route(self, stages: Sequence[Stage], seconds: float) -> tuple[float, float]:
        """Ways through stages that were proposed; their tokens/s, and mean seconds."""
        held = [with_memory for stage in stages if (with_memory := self._memory_of(stage, seconds))]
        ways = self._routing(held).ways(seconds, self.deadline)
        return self._keep(held, ways), self._mean_seconds(held, ways)

    def _memory_of(self, stage: Stage, seconds: float) -> Held | None:
        """The stage with the number in flight that lets most pass where a way takes so long; None if none fits."""
        gpus = tuple(self.problem.cluster.gpus[g] for g in stage.gpus)
        key = gpus, stage.layers
        if key not in self._numbers:
            asked = self.problem
            if self.full:
                asked = asked.with_in_flight(asked.workload.in_memory)
            self._numbers[key] = [
                (number, stage_times(self.problem, Held(stage, number))[0])
                for number in numbers(asked, stage, self._most or 1)
            ]
        if self._most is None:  # memory does not count, but for weights
            return Held(stage, MOST_IN_FLIGHT) if self._numbers[key] else None
        free, tokens = self.full or not seconds, self.problem.workload.tokens
        passed = {
            number: rate if free else min(rate, number * tokens / seconds)
            for number, rate in self._numbers[key]
        }
        return Held(stage, max(passed, key=passed.__getitem__)) if passed else None

    def _move(self) -> None:
        """Let one stage hold another span of layers, again and again, as long as the flow grows."""
        left, grows = _MOST_MOVES, True
        while grows and not self._done:
            grows, seconds = False, self._mean_seconds(self.held, self.ways)
            for held in islice(self._moved(seconds), left):
                left, before = left - 1, self.value
                ways = self._routing(held).ways(seconds, self.deadline)
                grows = self._keep(held, ways) > before * (1 + _STEP)
                if grows:
                    break

    def _moved(self, seconds: float) -> Iterator[list[Held]]:
        """The stages with one of them moved, or on a GPU that was idle, where every layer then lets more pass."""
        layers, enough = self.problem.model.layers, self.value * (1 + _STEP)
        rate = {held: stage_times(self.problem, held)[0] for held in self.held}
        used = {g for held in self.held for g in held.stage.gpus}
        idle = [(g,) for g in range(len(self.problem.cluster)) if g not in used]
        for gpus in [held.stage.gpus for held in self.held] + idle:
            rest = [held for held in self.held if held.stage.gpus != gpus]
            passed = np.zeros(layers)
            for held in rest:
                passed[held.stage.layers.start : held.stage.layers.stop] += rate[held]
            short = np.flatnonzero(passed <= enough)  # has to be held
            first, last = (short[0], short[-1]) if len(short) else (layers - 1, 0)
            missing = max(0.0, enough - passed.min())
            for start in range(first + 1):
                self.deadline.check()
                for stop in range(max(last, start) + 1, layers + 1):
                    moved = self._memory_of(Stage(range(start, stop), gpus), seconds)
                    if moved is None or stage_times(self.problem, moved)[0] < missing:
                        break  # with more layers it lets less pass
                    yield sorted([*rest, moved], key=_place)

    def _least_number(self, routing: Routing, v: int) -> int:
        """The fewest in flight that a stage needs memory for."""
        held = self.held[v]
        if self.full:
            return held.in_flight
        kept = sum(way.rate * routing.seconds(way.stages) for way in self.ways if v in way.stages)
        fewest = max(1, math.ceil(kept / self.problem.workload.tokens * (1 - ONE_ANSWER)))
        fewer = held._replace(in_flight=min(held.in_flight, fewest))
        same = stage_times(self.problem, fewer) == stage_times(self.problem, held)
        return fewer.in_flight if same else held.in_flight

    def _answer(self, status: str, reason: str, stopped: str | None) -> Flow:
        routing = self._routing(self.held)
        flow = Flow(
            problem=self.problem,
            status=status,
            stages=tuple(own.stage for own in self.held),
            in_flight=tuple(self._least_number(routing, v) for v in range(len(self.held))),
            ways=tuple(self.ways),
            seconds=self.deadline.spent,
            memory_for=self.problem.workload.in_memory if self.full else None,
            size=self.size,
            solver=choice.solver_version(),
            reason=self.deadline.remark(reason),
            stopped_by=stopped,
            details={"progress": tuple(self.progress)},
        )
        if status:
            return flow
        value = given(flow.evaluation).throughput if self.ways else None
        bound = self.bound if math.isfinite(self.bound) else None
        if value is not None and self.bound <= value * (1 + ATTAINED):
            return replace(flow, status="optimal", throughput=value, bound=value, stopped_by=None)
        status = "feasible" if self.ways else "unknown"
        if not stopped and not self._done:
            more = "the search takes blocks of a few stages, so others may be better"
            flow = replace(flow, reason=self.deadline.remark(more))
        ended = stopped or ("gap limit" if self._done else None)
        return replace(flow, status=status, throughput=value, bound=bound, stopped_by=ended)


def _place(held: Held) -> tuple[int, int, tuple[int, ...]]:
    return held.stage.layers.start, held.stage.layers.stop, held.stage.gpus
