"""From a state of the mix explorer to what it shows: optimum, baselines, deployment, one more GPU."""

import math
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipelab.display import DOES_NOT_FIT, outcome_of, rate
from pipelab.engine.answers import Result
from pipelab.engine.deployments.deploying import deploy, pipeline_of
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.deployments.timing import best_service
from pipelab.engine.objective_and_bound import status_and_bound
from pipelab.engine.prices import price_per_hour, usd_per_million_tokens
from pipelab.engine.scoring import Score, score
from pipelab.engine.solving import solve
from pipelab.engine.speed_scenarios import sensitivity
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import PipelabError
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.figures.methods_against_optimum import Row, row_of
from pipelab.hardware.measurements import ExpectedRate, expected_rate
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload
from pipelab.requests import KEPT, Limits, Service, for_phase, request_tokens, times
from pipelab.widgets.mix_values import Mix, problem_of

RULES = ("even", "proportional", "by_flops", "bandwidth_aware")
FIRST_S = 0.4  # for a first deployment with its bound
_MOST_KEPT = 500

# What is proven is kept: the optimum with one more GPU, solved in advance, is the next press of a
# key. Each answer holds its tables of stages.
_kept: dict[Hashable, Any] = {}


def kept(key: Hashable) -> Any:
    """Return what was kept under this key, or None."""
    return _kept.get(key)


def keep(key: Hashable, found: Any, status: str) -> None:
    """Keep what is proven; what was stopped early is computed again."""
    if status in ("optimal", "infeasible"):
        while len(_kept) >= _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = found


class Money(NamedTuple):
    """What the GPUs in use cost; None where one of them has no price."""

    usd_per_hour: float | None
    usd_per_million_tokens: float | None


@dataclass(frozen=True, eq=False)
class Answer:
    """The optimum of a mix and the rules of thumb beside it.

    `problem` has the batch that was chosen, and within limits the number in flight.
    """

    mix: Mix
    problem: Problem
    result: Result
    baselines: tuple[Row, ...]
    service: Service | None = None  # what its requests get, where there are limits

    @property
    def limits(self) -> Limits | None:
        """Those of the mix; None where there are none."""
        return Limits(**self.mix.limits) if self.mix.limits else None


def answer(
    mix: Mix, stop: threading.Event | None = None, time_limit: float | None = None
) -> Answer:
    """Solve a mix with "aggregated", and place it by every rule of thumb.

    Raises
    ------
    PipelabError
        The values of the mix contradict each other.

    Examples
    --------
    >>> from pipelab.widgets.mix_values import beginning
    >>> found = answer(beginning("tiny", gpus_per_stage=2))
    >>> round(found.result.throughput, 3), [r.name for r in found.baselines if r.throughput]
    (301.784, ['even', 'proportional', 'by_flops', 'bandwidth_aware'])
    """
    if (known := kept(mix)) is not None:
        return known
    begun = problem_of(mix)
    options: dict[str, Any] = {"batches": mix.batches, "runs_on": mix.runs_on}
    if mix.limits:
        found = _within_limits(mix, begun, options, stop=stop, time_limit=time_limit)
        keep(mix, found, found.result.status)
        return found
    result = solve(begun, "aggregated", stop=stop, time_limit=time_limit, **options)
    problem = result.problem
    rules = tuple(row_of(name, solve(problem, name)) for name in RULES)
    found = Answer(mix, problem, result, rules)
    keep(mix, found, result.status)
    return found


def _within_limits(mix: Mix, begun: Problem, options: Mapping[str, Any], **ends: Any) -> Answer:
    """The best pipeline alone that keeps the limits, and what the rules of thumb come to within them."""
    sizes = {**options, "batches": mix.batches or (begun.workload.batch_size,)}
    best = deploy(begun, single=True, **mix.limits, **sizes, **ends)
    problem, one = best.problem, best.pipelines[0] if best.pipelines else None
    if one is not None:
        problem = replace(problem, workload=one.workload)
    result = Result(
        problem=problem,
        method="aggregated",
        status=best.status,
        placement=one.placement if one else None,
        throughput=best.throughput,
        bound=None if best.bound is None else best.bound * request_tokens(problem),
        seconds=best.seconds,
        reason=best.reason,
        stopped_by=best.stopped_by,
        batches=mix.batches or (),
        runs_on=best.runs_on,
    )
    found = Answer(mix, problem, result, (), one.service if one else None)
    rules = []
    for name in RULES:
        own = solve(replace(problem, workload=_free(found)), name)
        served = own.placement and _served(found, own.placement)
        if served is None and own.placement is not None:
            rules.append(Row(name, None, DOES_NOT_FIT, "does not keep the limits"))
        else:
            yields = served.requests_per_s * request_tokens(problem) if served else None
            rules.append(Row(name, yields, outcome_of(own), own.reason))
    return replace(found, baselines=tuple(rules))


def _free(found: Answer) -> Workload:
    """The workload of an answer, with any number in flight unless the mix has one."""
    return replace(found.problem.workload, in_flight=found.mix.in_flight)


def _served(found: Answer, placement: Placement) -> Service | None:
    """What requests get from a placement with the batch of an answer; None if it keeps no limit."""
    own = replace(found.problem, workload=_free(found))
    return best_service(for_phase(own, own.workload.phase), placement, given(found.limits))


def deployments(
    found: Answer, stop: threading.Event, limit_s: float
) -> Iterator[Deployment | PipelabError]:
    """Yield the best deployment of an answer's problem: a first one, then what is proven in time.

    The answer's pipeline is a deployment, too: none that is yielded is worse.
    """
    mix = found.mix
    key = "deployment", mix
    if (known := kept(key)) is not None:
        yield known
        return
    for seconds in (FIRST_S, limit_s):
        try:
            options: dict[str, Any] = {"batches": mix.batches, "runs_on": mix.runs_on}
            best = deploy(problem_of(mix), time_limit=seconds, stop=stop, **options, **mix.limits)
        except PipelabError as error:
            yield error
            return
        if stop.is_set():
            return
        best = _no_worse(best, found)
        keep(key, best, best.status)
        yield best
        if best.status in ("optimal", "infeasible"):
            return


def _no_worse(best: Deployment, found: Answer) -> Deployment:
    """A deployment, or the answer's pipeline alone where that yields more."""
    placement, known = found.result.placement, found.result.throughput or 0.0
    if placement is None or known <= (best.throughput or 0.0) * (1 + ONE_ANSWER):
        return best
    alone = (pipeline_of(found.problem, (placement,), found.limits),)
    best = replace(best, pipelines=alone, throughput=known)
    status, bound = status_and_bound(best.value, best.bound)
    return replace(best, status=status, bound=bound)


def one_gpu_per_stage(mix: Mix, stop: threading.Event | None = None) -> Row:
    """Return the optimum with one GPU per stage, as in the original MILP."""
    return row_of("one GPU per stage", answer(replace(mix, gpus_per_stage=1), stop).result)


def one_more(
    mix: Mix, stop: threading.Event, budget_s: float
) -> Iterator[tuple[str, float | None]]:
    """Yield the optimum with one more GPU of each type, one by one; None if the time ran out.

    Parameters
    ----------
    stop : threading.Event
        Set it to end early; types not solved by then are not yielded.
    budget_s : float
        Seconds for every type that the cost model knows.
    """
    for gpu_type in mix.known_types:
        if stop.is_set():
            return
        result = answer(mix.with_one_more(gpu_type), stop, budget_s).result
        if stop.is_set():
            return
        proven = result.status in ("optimal", "infeasible")
        yield gpu_type, (result.throughput or 0.0) if proven else None


def plan_within(found: Answer, stop: threading.Event, budget_s: float) -> Iterator[str]:
    """Whether another plan is better where GPU types are off by as much as predictions are; nothing if stopped.

    Of plans that an engine can start, what its rules cost instead; within limits, what these cost.

    Parameters
    ----------
    budget_s : float
        Seconds for every type of GPU, faster or slower.
    """
    if found.mix.limits:
        limits: dict[str, Any] = dict.fromkeys(found.mix.limits, math.inf)
        batches = found.mix.batches or (found.problem.workload.batch_size,)
        ends: dict[str, Any] = {"stop": stop, "time_limit": budget_s, "runs_on": found.mix.runs_on}
        free = deploy(problem_of(found.mix), single=True, batches=batches, **limits, **ends)
        value = found.result.throughput
        if not stop.is_set() and free.throughput and value:
            known = (
                "" if {free.status, found.result.status} == {"optimal"} else ", as far as is known"
            )
            share = max(0.0, 1 - value / free.throughput)
            yield f"The limits cost {share:.1%}: without them it is {rate(free.throughput)}{known}."
        return
    if found.mix.runs_on is not None:
        cost = found.result.cost_of_rules(stop=stop, time_limit=budget_s)
        if not stop.is_set():
            yield cost.sentence
        return
    band = expected_of(found.problem, found.result.evaluation)
    if band is None or found.result.status != "optimal" or not band.within or stop.is_set():
        return
    plan, within = found.result.placement, min(band.within, 0.99)
    tried = sensitivity(found.problem, plan, within, stop=stop, time_limit=budget_s)
    if stop.is_set():
        return
    if any(scenario.best.status != "optimal" for scenario in tried.scenarios):
        yield f"Whether another plan is better within ±{within:.0%} was not proven in time."
    else:
        yield tried.sentence


def expected_of(problem: Problem, evaluation: Evaluation | None) -> ExpectedRate | None:
    """Return how far the rate may be off, or None if the cost model does not know."""
    return None if evaluation is None else expected_rate(problem, evaluation)


def money(problem: Problem, placement: Placement | None, throughput: float | None) -> Money:
    """Return the price per hour of the GPUs in use, and per million tokens."""
    per_hour = None if placement is None else price_per_hour(problem, placement)
    if per_hour is None or not throughput:
        return Money(per_hour, None)
    return Money(per_hour, usd_per_million_tokens(per_hour, throughput))


def stage_gpus(found: Answer, least: int = 0) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of the optimum's stages, and after them those without a stage, one by one.

    Parameters
    ----------
    least : int
        Number of stages wanted. If there are fewer, the largest gives up a GPU, which follows it
        as a stage.
    """
    stages = given(found.result.placement).stages
    used = {g for stage in stages for g in stage.gpus}
    groups = [stage.gpus for stage in stages] + [
        (g,) for g in range(len(found.problem.cluster)) if g not in used
    ]
    while len(groups) < min(least, len(found.problem.cluster)):
        at = max(range(len(groups)), key=lambda i: len(groups[i]))
        groups[at : at + 1] = [groups[at][:-1], groups[at][-1:]]
    return tuple(groups)


def own_plan(found: Answer, layers: tuple[int, ...]) -> Score:
    """Score layers assigned by hand to `stage_gpus` in turn; 0 leaves a stage's GPUs out.

    If there are more numbers than stages in the optimum, the further ones take unused GPUs first,
    then GPUs of the stages, one by one.

    An invalid plan gives a score with its reasons.

    Examples
    --------
    >>> from pipelab.widgets.mix_values import beginning
    >>> print(own_plan(answer(beginning("tiny")), (3, 1)).sentence)
    211.5 tokens/s, limited by stage 2: 97.2% of the proven optimum of 217.5.
    >>> own_plan(answer(beginning("tiny", gpus_per_stage=2)), (1, 1, 1, 1)).placement.gpus
    (0, 1, 2, 3)
    """
    parts = [
        (n, gpus) for n, gpus in zip(layers, stage_gpus(found, len(layers)), strict=False) if n
    ]
    plan = Placement.of(parts)
    if not found.mix.limits:
        return score(found.problem, plan, found.result)
    free = replace(found.problem, workload=_free(found))
    own = score(free, plan, replace(found.result, status="unknown", bound=None))
    served = _served(found, plan) if own.valid else None
    if served is None:
        broken = own.broken if not own.valid else (_unkept(found, plan),)
        return ServedScore(
            problem=free,
            placement=plan,
            evaluation=None,
            broken=broken,
            misfits=own.misfits,
            best=found.result,
            service=None,
        )
    load = replace(free.workload, in_flight=served.in_flight)
    free = replace(free, workload=load)
    return ServedScore(
        problem=free,
        placement=plan,
        evaluation=evaluate(free, plan),
        broken=(),
        misfits=(),
        best=found.result,
        service=served,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class ServedScore(Score):
    """A score within limits: its tokens/s are those of the answers that it writes."""

    service: Service | None

    @property
    def throughput(self) -> float | None:
        """Tokens/s of answers; None if it is not valid or keeps no limit."""
        return self.service and self.service.requests_per_s * request_tokens(self.problem)


def _unkept(found: Answer, plan: Placement) -> str:
    """With one microbatch in flight, the times that are above the limits."""
    own = for_phase(found.problem, found.problem.workload.phase)
    served, limits = times(own, plan, 1).service(own, 1), given(found.limits)
    took = {
        "TPOT": (1000 * max(served.tpot_s, served.last_tpot_s), limits.tpot_ms),
        "TTFT": (served.ttft_ms(limits), limits.ttft_ms),
    }
    over = [
        f"{name} is {ms:,.4g} ms with one microbatch in flight, above the limit of {limit:,.7g}"
        for name, (ms, limit) in took.items()
        if ms > limit * KEPT
    ]
    return " and ".join(over) or "no number in flight keeps both limits"


def tightest(problem: Problem, placement: Placement) -> tuple[float, float, int]:
    """Return needed and available memory (GB) of the GPU with the least to spare, and its stage (from 1)."""
    rows = [
        (limit - need, need, limit, i + 1)
        for i, stage in enumerate(evaluate(problem, placement).stages)
        for need, limit in zip(stage.memory_gb, stage.memory_limit_gb, strict=True)
    ]
    _, need, limit, stage = min(rows)
    return need, limit, stage
