"""The lines of a plan: of a placement one, of a deployment one for each pipeline, of a flow one for each way."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, NoReturn

import numpy as np

from pipelab.costs import filled, refuse_transfers
from pipelab.deployment_and_flow import DeploymentPlan, FlowPlan
from pipelab.engine.answers import placement_in
from pipelab.engine.serving.line_times import LineTimes
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import MOST_IN_FLIGHT, evaluate
from pipelab.fields import given
from pipelab.hardware.engine_memory import known_memory
from pipelab.hardware.engine_rules import known_rules
from pipelab.placement import Placement
from pipelab.problem import CostModel, Problem
from pipelab.requests import cache_arrival, seconds_back
from pipelab.serving import Line, Times, Work


class LaneOfPlan(NamedTuple):
    """What a lane is: a stage, or the link from one stage to the next."""

    line: int  # the first that it is in
    name: str  # "stage 1", "link 1→2"
    gpus: tuple[int, ...]  # of a stage


class Lines(NamedTuple):
    """The lines of a plan, with their lanes; and those that take all that waits in front of them."""

    lines: list[Line]
    lanes: list[LaneOfPlan]
    takes_all: range


def lines_of(problem: Problem, plan: object, chunk: float | None) -> Lines:
    """Build the lines of a plan.

    Parameters
    ----------
    problem : Problem
    plan : Placement, Result, DeploymentPlan or FlowPlan
    chunk : float or None
        Tokens in one batch; by default as the filling has it.

    Raises
    ------
    InvalidPlacement
        It breaks a rule, or does not fit.
    InvalidValue
        Links are counted in transfers/s, or it is no plan.
    """
    if isinstance(plan, FlowPlan):
        return _of_flow(problem, plan, chunk)
    if not isinstance(plan, DeploymentPlan):
        built = [_of_placement(problem, placement_in(plan, "serve"), chunk, 1.0)]
        return _together(built, problem.costs)
    built = []
    pools = len({pipeline.workload.phase for pipeline in plan.pipelines}) > 1
    for pipeline in plan.pipelines:
        load = pipeline.workload
        for placement in pipeline.replicas:
            run = replace(problem, workload=load)
            rate = evaluate(run, placement).throughput
            line, lanes = _of_placement(run, placement, chunk, rate)
            if pools and load.phase == "prefill":
                line = line._replace(hands_on=_way_of_cache(run, placement))
            built.append((line, lanes))
    return _together(built, problem.costs)


def _together(built: list[tuple[Line, list[LaneOfPlan]]], costs: CostModel) -> Lines:
    """Number the lanes of pipelines that share none."""
    lines, lanes = list[Line](), list[LaneOfPlan]()
    for at, (line, names) in enumerate(built):
        lines.append(line._replace(lanes=len(lanes) + np.arange(len(names))))
        lanes += [lane._replace(line=at) for lane in names]
    takes_all = range(len(lanes) if costs.filling == "dynamic" else 0)
    return Lines(lines=lines, lanes=lanes, takes_all=takes_all)


def _of_placement(
    problem: Problem, placement: Placement, chunk: float | None, share: float
) -> tuple[Line, list[LaneOfPlan]]:
    """Build the line of one pipeline, with lanes that have no numbers yet."""
    evaluation = evaluate(problem, placement)
    if evaluation.links:
        refuse_transfers("serve", evaluation.link_unit)
    times = LineTimes(problem, evaluation.stages)
    dynamic = problem.costs.filling == "dynamic"
    line = _ruled(problem, placement, given(evaluation.in_flight), chunk)._replace(
        times=without_links(times) if dynamic else times,
        room=_room(problem, placement),
        parts_at_once=evaluation.at_once,
        share=share,
    )
    lanes = []
    for k, stage in enumerate(placement.stages, 1):
        lanes.append(LaneOfPlan(line=0, name=f"stage {k}", gpus=stage.gpus))
        if k < len(placement) and not dynamic:
            lanes.append(LaneOfPlan(line=0, name=f"link {k}→{k + 1}", gpus=()))
    return line, lanes


def without_links(times: LineTimes) -> Times:
    """Return the times of stages that hand on what they took together one by one, as a message each."""

    def of_stages(work: Work) -> tuple[np.ndarray, np.ndarray]:
        busy, waits = times(work)
        one = Work(writes=1, context=work.context) if work.writes else Work(times.prompt, 1)
        taken, late = times(one)
        return busy[::2], waits[::2] + np.append((taken + late)[1::2], 0.0)

    return of_stages


def _ruled(problem: Problem, placement: Placement, in_flight: int, chunk: float | None) -> Line:
    """Make a line of the rules by which the engine fills it, without lanes and times."""
    costs, load = problem.costs, problem.workload
    rules = known_rules().get(costs.runs_on)
    tokens = math.inf if load.phase == "prefill" else float(load.batch_size)
    if load.phase == "mixed":  # as many of prompts as the model has in a pass
        tokens = math.ceil(load.tokens_passed)
    if costs.filling != "synchronous" or costs.runs_on:
        under_way = in_flight * load.batch_size
        tokens = chunk_of_engine(problem, placement.gpus, under_way) or tokens
    at_once, sequences, part_tokens = float(in_flight), float(load.batch_size), math.inf
    if costs.filling == "dynamic":
        at_once, sequences, tokens = sequences, 1, math.inf
    elif costs.filling == "micro_batches":
        at_once, sequences = 1, in_flight * sequences
        part_tokens, tokens = load.tokens_passed / problem.parts, math.inf
    return Line(
        lanes=np.array([], dtype=int),
        times=_no_times,
        at_once=at_once,
        sequences=sequences,
        tokens=tokens if chunk is None else chunk,
        grows=rules is not None and rules.preempts,
        refills=rules is None or not rules.whole_batches,
        part_tokens=part_tokens,
        back_seconds=0.0 if load.phase == "prefill" else seconds_back(problem, placement),
        reads=load.phase != "decode",
    )


def chunk_of_engine(problem: Problem, gpus: Iterable[int], sequences: float) -> float | None:
    """Return the tokens of an engine's batch: those of the GPU with fewest, and one for each sequence at least."""
    costs, memory = problem.costs, known_memory().get(problem.costs.runs_on)
    chunk: float | None = costs.chunk_tokens
    if memory is not None and memory.chunks:
        chunk = min(memory.chunk_tokens(problem.cluster.gpus[gpu]) for gpu in gpus)
    return None if chunk is None else max(chunk, sequences)


def _no_times(work: Work) -> NoReturn:
    raise AssertionError(work)


def _room(problem: Problem, placement: Placement) -> float:
    """Count the tokens of prompts and answers that memory holds beside the weights."""
    load = problem.workload
    any_number = replace(problem, costs=filled(problem.costs, "synchronous"))

    def too_many(number: int) -> bool:
        try:
            evaluate(any_number.with_in_flight(number), placement)
        except InvalidPlacement:
            return True
        return False

    most = bisect_left(range(1, MOST_IN_FLIGHT + 1), True, key=too_many)
    written = 1 if load.phase == "prefill" else load.written
    tokens = most * load.batch_size * (load.sequence_length + written)
    return math.inf if most == MOST_IN_FLIGHT else tokens


def _way_of_cache(problem: Problem, placement: Placement) -> Callable[[int], float]:
    """Return how long after its last pass the cache of a prompt has arrived, in proportion to its tokens."""
    evaluation = evaluate(problem, placement)
    seconds = cache_arrival(problem, evaluation) - evaluation.seconds_per_pass
    return lambda prompt: seconds * prompt / problem.workload.sequence_length


def _of_flow(problem: Problem, plan: FlowPlan, chunk: float | None) -> Lines:
    """Build a line for each way; ways share stages, and the links between two of them."""
    evaluation, load = evaluate(problem, plan), problem.workload
    stages = enumerate(plan.stages, start=1)
    lanes = [LaneOfPlan(line=0, name=f"stage {k}", gpus=stage.gpus) for k, stage in stages]
    links: dict[tuple[int, int], int] = {}
    lines = []
    for way in evaluation.ways:
        numbers = [way.stages[0]]
        for hop in pairwise(way.stages):
            if hop not in links:
                links[hop] = len(lanes)
                lanes.append(LaneOfPlan(line=0, name=f"link {hop[0] + 1}→{hop[1] + 1}", gpus=()))
            numbers += [links[hop], hop[1]]
        under_way = math.ceil(way.rate * way.seconds / load.tokens * (1 - 1e-9))  # Little's law
        reports = [evaluation.stages[stage] for stage in way.stages]
        placement = Placement(tuple(report.stage for report in reports))
        line = _ruled(problem, placement, max(1, under_way), chunk)
        times = LineTimes(problem, reports)
        lines.append(line._replace(lanes=np.array(numbers), times=times, share=way.rate))
    return Lines(lines=lines, lanes=lanes, takes_all=range(0))
