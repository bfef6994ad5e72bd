"""From a state of the mix explorer to what it shows: optimum, baselines, deployment, one more GPU."""

import math
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelab.display import DOES_NOT_FIT, outcome_of, rate
from pipelab.engine.answers import Result
from pipelab.engine.deployments.deploying import deploy
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.deployments.timing import best_service, pipeline_of
from pipelab.engine.methods.batches import best_answer
from pipelab.engine.objective_and_bound import status_and_bound
from pipelab.engine.rate_search import seconds_to_choose
from pipelab.engine.scoring import Score, score
from pipelab.engine.solving import solve
from pipelab.engine.speed_scenarios import sensitivity
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.methods_against_optimum import MethodRow, row_of
from pipelab.hardware.measurements import expected_rate
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.requests import Limits, Service, for_phase, request_tokens
from pipelab.widgets.mix_values import Mix, problem_of

PROVEN_STATUSES = ("optimal", "infeasible")
RULES = ("even", "proportional", "by_flops", "bandwidth_aware")
FIRST_S = 0.4  # for a first deployment with its bound
CHOOSE_S = 0.1  # for the choice among equally fast placements, each time
_MOST_ANSWERS_KEPT = 500

# What is proven is kept: the optimum with one more GPU, solved in advance, is the next press of a
# key. Each answer holds its tables of stages.
_kept: dict[Hashable, Any] = {}


def kept(key: Hashable) -> Any:
    """Return what was kept under this key, or None."""
    return _kept.get(key)


def keep(key: Hashable, answer: Any, status: str) -> None:
    """Keep what is proven; what was stopped early is computed again."""
    if status in PROVEN_STATUSES:
        while len(_kept) >= _MOST_ANSWERS_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = answer


@dataclass(frozen=True, eq=False, kw_only=True)
class MixAnswer:
    """The optimum of a mix and the rules of thumb beside it.

    `problem` has the batch that was chosen, and within limits the number in flight.
    """

    mix: Mix
    problem: Problem
    result: Result
    baselines: tuple[MethodRow, ...] = ()
    service: Service | None = None  # what its requests get, where there are limits

    @property
    def nominal(self) -> Result:
        """The best as predicted, which the result is unless the least regret was sought."""
        return self.result.details.get("nominal", self.result)

    @property
    def limits(self) -> Limits | None:
        """Limits on times of the mix; None without any."""
        return Limits(**self.mix.limits) if self.mix.limits else None

    def times_of(self, service: Service) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return TPOT and TTFT in ms, each with its limit."""
        limits = given(self.limits)
        tpot_ms = 1000 * max(service.tpot_s, service.last_tpot_s)
        return (tpot_ms, limits.tpot_ms), (1000 * service.ttft_s, limits.ttft_ms)


def solve_mix(
    mix: Mix,
    stop: threading.Event | None = None,
    time_limit: float | None = None,
    choose_s: float = math.inf,
    first_batch: int | None = None,
) -> MixAnswer:
    """Solve a mix with "aggregated", and place it by every rule of thumb.

    Where the batch is chosen, `first_batch` is tried first: the sooner the best is tried, the sooner the others are
    ruled out.
    Among equally fast placements one is chosen for at most `choose_s` seconds; `details["fewest"]` says whether that
    was finished.

    Raises
    ------
    PipelabError
        The values of the mix contradict each other.

    Examples
    --------
    >>> from pipelab.widgets.mix_values import beginning
    >>> tiny = solve_mix(beginning("tiny", gpus_per_stage=2))
    >>> round(tiny.result.throughput, 3), [r.name for r in tiny.baselines if r.throughput]
    (301.784, ['even', 'proportional', 'by_flops', 'bandwidth_aware'])
    """
    if (known := kept(mix)) is not None:
        return known
    ends = {"stop": stop, "time_limit": time_limit}
    before = seconds_to_choose.set(choose_s)
    try:
        solved = _within_limits(mix, **ends) if mix.limits else _solved(mix, first_batch, **ends)
    finally:
        seconds_to_choose.reset(before)
    if choose_s:
        keep(mix, solved, solved.result.status)
    return solved


def first_answer(
    mix: Mix, batch: int | None, stop: threading.Event, time_limit: float
) -> MixAnswer:
    """Solve a mix within a time, and leave the choice among equals open.

    Where the batch is chosen, `batch` alone is tried, the best of the mix before: a step seldom changes it, and a
    batch takes a fraction of the time of all. Whether another one is better is left open.
    """
    if batch and mix.batches and mix.within is None:
        one = solve_mix(replace(mix, batch=batch), stop, time_limit, choose_s=0.0)
        if one.result.status != "infeasible":
            result = replace(best_answer([one.result], left_out=True), batches=mix.batches)
            return replace(one, mix=mix, result=result)
    return solve_mix(mix, stop, time_limit, choose_s=0.0)


def _solved(mix: Mix, first_batch: int | None, **ends: Any) -> MixAnswer:
    problem = problem_of(replace(mix, batch=mix.batch or first_batch))
    result = solve(problem, "aggregated", batches=mix.batches, runs_on=mix.runs_on, **ends)
    problem = result.problem
    rules = tuple(row_of(name, solve(problem, name)) for name in RULES)
    if mix.within is not None:
        result = solve(problem, within=mix.within, **ends)
    return MixAnswer(mix=mix, problem=problem, result=result, baselines=rules)


def _within_limits(mix: Mix, **ends: Any) -> MixAnswer:
    """Find the best pipeline alone that keeps the limits, and what the rules of thumb come to within them."""
    problem = problem_of(mix)
    batches = mix.batches or (problem.workload.batch_size,)
    best = _deployed(mix, batches, mix.limits, single=True, **ends)
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
    alone = MixAnswer(mix=mix, problem=problem, result=result, service=one.service if one else None)
    return replace(alone, baselines=tuple(_rule_within(alone, name) for name in RULES))


def _rule_within(best: MixAnswer, name: str) -> MethodRow:
    """Return what a rule of thumb comes to within the limits."""
    # With any number in flight, unless the mix has one.
    load = replace(best.problem.workload, in_flight=best.mix.in_flight)
    problem = replace(best.problem, workload=load)
    placed = solve(problem, name)
    if placed.placement is None:
        return MethodRow(name, None, outcome_of(placed), placed.reason)
    served = best_service(for_phase(problem, load.phase), placed.placement, given(best.limits))
    if served is None:
        return MethodRow(name, None, DOES_NOT_FIT, "does not keep the limits")
    reached = served.requests_per_s * request_tokens(best.problem)
    return MethodRow(name, reached, outcome_of(placed), placed.reason)


def _deployed(
    mix: Mix, batches: tuple[int, ...] | None, limits: Mapping[str, Any], **options: Any
) -> Deployment:
    return deploy(problem_of(mix), batches=batches, runs_on=mix.runs_on, **limits, **options)


def deployments(
    answer: MixAnswer, stop: threading.Event, limit_s: float
) -> Iterator[Deployment | PipelabError]:
    """Yield the best deployment of an answer's problem: a first one, then what is proven in time.

    The answer's pipeline is a deployment, too: none that is yielded is worse.
    """
    mix = answer.mix
    key = "deployment", mix
    if (known := kept(key)) is not None:
        yield known
        return
    for seconds in (FIRST_S, limit_s):
        try:
            best = _deployed(mix, mix.batches, mix.limits, time_limit=seconds, stop=stop)
        except PipelabError as error:
            yield error
            return
        if stop.is_set():
            return
        best = no_worse(best, answer)
        keep(key, best, best.status)
        yield best
        if best.status in PROVEN_STATUSES:
            return


def no_worse(best: Any, answer: MixAnswer) -> Any:
    """Return a deployment, or the answer's pipeline alone where that yields more; no deployment stays none."""
    placement, known = answer.result.placement, answer.result.throughput or 0.0
    if placement is None or not isinstance(best, Deployment):
        return best
    if known <= (best.throughput or 0.0) * (1 + ONE_ANSWER):
        return best
    alone = (given(pipeline_of(answer.problem, (placement,), answer.limits)),)
    best = replace(best, pipelines=alone, throughput=known)
    status, bound = status_and_bound(best.value, best.bound)
    return replace(best, status=status, bound=bound)


def one_gpu_per_stage(mix: Mix, stop: threading.Event | None = None) -> MethodRow:
    """Return the optimum with one GPU per stage, as in the original MILP."""
    alone = solve_mix(replace(mix, gpus_per_stage=1, within=None), stop, choose_s=CHOOSE_S)
    return row_of("one GPU per stage", alone.result)


def one_more(
    mix: Mix, stop: threading.Event, budget_s: float
) -> Iterator[tuple[str, float | None]]:
    """Yield the optimum with one more GPU of each type, one by one; None if the time ran out.

    Parameters
    ----------
    stop : threading.Event
        Set it to end early; types not solved by then are not yielded.
    budget_s : float
        Seconds for every type.
    """
    for gpu_type, _ in mix.counts:
        if stop.is_set():
            return
        more = replace(mix.with_one_more(gpu_type), within=None)
        result = solve_mix(more, stop, budget_s, CHOOSE_S).result
        if stop.is_set():
            return
        proven = result.status in PROVEN_STATUSES
        yield gpu_type, (result.throughput or 0.0) if proven else None


def other_plans(answer: MixAnswer, stop: threading.Event, budget_s: float) -> str:
    """Say whether another plan is better where GPU types are off by as much as predictions are.

    Of plans that an engine can start, what its rules cost instead; within limits, what these cost.
    Empty if nothing is known.

    Parameters
    ----------
    budget_s : float
        Seconds for every type of GPU, faster or slower.
    """
    ends: dict[str, Any] = {"stop": stop, "time_limit": budget_s}
    result, mix = answer.result, answer.mix
    if mix.limits:
        batches = mix.batches or (answer.problem.workload.batch_size,)
        free = _deployed(mix, batches, dict.fromkeys(mix.limits, math.inf), single=True, **ends)
        if not free.throughput or not result.throughput:
            return ""
        both_proven = free.status == result.status == "optimal"
        known = "" if both_proven else ", as far as is known"
        share = max(0.0, 1 - result.throughput / free.throughput)
        return f"The limits cost {share:.1%}: without them it is {rate(free.throughput)}{known}."
    if mix.runs_on is not None:
        return result.cost_of_rules(**ends).sentence
    if result.placement is None or answer.nominal.status != "optimal":
        return ""
    within = mix.within
    if within is None:
        band = expected_rate(answer.problem, given(result.evaluation))
        if band is None or not band.within:
            return ""
        within = min(band.within, 0.99)
    tried = sensitivity(answer.problem, result.placement, within, **ends)
    if any(scenario.best.status != "optimal" for scenario in tried.scenarios):
        return f"Whether another plan is better within ±{tried.within:.0%} was not proven in time."
    return tried.sentence


def _stage_gpus(answer: MixAnswer, least: int) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of the optimum's stages, and after them those without a stage, one by one.

    Of fewer stages than `least`, the largest gives up a GPU, which follows it as a stage.
    """
    placement, count = given(answer.result.placement), len(answer.problem.cluster)
    unused = sorted({*range(count)} - {*placement.gpus})
    groups = [*(stage.gpus for stage in placement.stages), *((gpu,) for gpu in unused)]
    while len(groups) < min(least, count):
        at = max(range(len(groups)), key=lambda i: len(groups[i]))
        groups[at : at + 1] = [groups[at][:-1], groups[at][-1:]]
    return tuple(groups)


def own_plan(answer: MixAnswer, layers: tuple[int, ...]) -> Score:
    """Score layers assigned by hand to the optimum's stages in turn; 0 leaves a stage's GPUs out.

    If there are more numbers than stages in the optimum, the further ones take unused GPUs first,
    then GPUs of the stages, one by one.

    An invalid plan gives a score with its reasons.

    Examples
    --------
    >>> from pipelab.widgets.mix_values import beginning
    >>> print(own_plan(solve_mix(beginning("tiny")), (3, 1)).sentence)
    211.5 tokens/s, limited by stage 2: 97.2% of the proven optimum of 217.5.
    >>> own_plan(solve_mix(beginning("tiny", gpus_per_stage=2)), (1, 1, 1, 1)).placement.gpus
    (0, 1, 2, 3)
    """
    stages = zip(layers, _stage_gpus(answer, len(layers)), strict=False)
    plan = Placement.of([(count, gpus) for count, gpus in stages if count])
    return score(answer.problem, plan, answer.nominal)


_NOT_SOLVED_YET = MethodRow("one GPU per stage", None, None, "being solved …")


@dataclass(frozen=True, eq=False, kw_only=True)
class MixState:
    """What the explorer knows of a mix; all that is on its page follows from it.

    Parameters
    ----------
    mix : Mix
        What the controls say.
    answer : MixAnswer or None
        The best single pipeline; None before the first, and where the values contradict each other.
    refusal : PipelabError or None
        Why they do.
    plan : Score or None
        The reader's; None while the optimum is shown.
    deployment : Deployment, PipelabError or None
        The best that is known, or why there is none.
    one_gpu_per_stage : MethodRow
        The optimum of the original MILP.
    gains : mapping of GPU type to tokens/s
        With one more of it; None where the time ran out.
    other_plans : str
        Whether one of them may be better.
    """

    mix: Mix
    answer: MixAnswer | None = None
    refusal: PipelabError | None = None
    plan: Score | None = None
    deployment: Deployment | PipelabError | None = None
    one_gpu_per_stage: MethodRow = _NOT_SOLVED_YET
    gains: Mapping[str, float | None] = field(default_factory=dict)
    other_plans: str = ""

    @property
    def placement(self) -> Placement | None:
        """The placement drawn: the reader's plan or the optimum; None if it is not valid."""
        if self.answer is None or (self.plan and not self.plan.valid):
            return None
        return self.plan.placement if self.plan else self.answer.result.placement

    def differs(self, other: "MixState", *names: str) -> bool:
        """Say whether one of these parts is not the one of another state."""
        return any(getattr(self, name) is not getattr(other, name) for name in names)
