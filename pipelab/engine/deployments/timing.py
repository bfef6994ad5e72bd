"""What requests ask of the time of a pipeline, as tables by classes: `pipelab.requests` in arrays.

With a limit τ on TPOT and n in flight, every stage and link has to work n times within τ, and a traversal with its
hop back takes no longer, both at the mean context and at the last token. The first leaves stages and links out of the
table; the second is a limit on a sum, which labels keep (`listing`). A limit on TTFT bounds the arrival of the cache in
a pool for prefill, and passes · max(traversal + hop back, n · interval) + traversal in mixed.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipelab import requests
from pipelab.engine.deployments.result import Pipeline
from pipelab.engine.in_flight import Range
from pipelab.engine.instance import Instance
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import MOST_IN_FLIGHT, evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem

_TIME_MARGIN_RATIO = 1 + 1e-9  # of what the evaluator allows: it adds in another order


@dataclass(frozen=True, eq=False)
class Timing:
    """Times and limits of one offer, in seconds.

    Attributes
    ----------
    limits : Limits
    late : float array, shape (C, U)
        Of each composition with each kind of span, as `latest` counts it: at the last token, or in prefill.
    after : float array, shape (C, U)
        From the end of a stage until its part of the cache has arrived; 0 but in prefill.
    back : float array, shape (A, A)
        Of the hop back from the last stage to the first, between GPUs of two classes.
    latest : float
        Of a traversal with the hop back, at the mean context and by `late`; or until the last part of the cache has
        arrived.
    longest : float
        Of a traversal alone.
    first : float
        Limit on the time to the first token in mixed.
    passes : int
        That a prompt takes in mixed.
    least : int
        Of the numbers in flight.
    """

    limits: requests.Limits
    late: np.ndarray
    after: np.ndarray
    back: np.ndarray
    latest: float
    longest: float
    first: float
    passes: int
    least: int

    def in_time(
        self, seconds: np.ndarray, back: np.ndarray, late: np.ndarray, interval: np.ndarray
    ) -> np.ndarray:
        """Return whether pipelines keep the limits; more of anything is never better.

        Parameters
        ----------
        seconds, back, late, interval : float arrays, shape (N,)
            Of a traversal, the hop back, `late` with it, and the slowest stage or link.
        """
        tpot = np.maximum(seconds + back, self.least * interval)
        kept = (np.maximum(late, seconds + back) <= self.latest) & (seconds <= self.longest)
        if self.passes and self.first < math.inf:
            kept &= self.passes * tpot + seconds <= self.first
        return kept


def timed(
    problem: Problem,
    numbers: Range,
    table: Instance,
    limits: requests.Limits,
    table_of: Callable[[Problem], Instance],
) -> tuple[Instance, Timing]:
    """Leave out what is too slow of the table of an offer, and say what time its pipelines have.

    Parameters
    ----------
    problem : Problem
        Of one phase.
    table : Instance
        At the mean context.
    table_of : function of Problem
        Makes such a table of another problem, with memory for the same numbers.
    """
    load = problem.workload
    ttft, tpot = (requests.KEPT * _TIME_MARGIN_RATIO * ms / 1000 for ms in limits)
    after, back = np.zeros_like(table.seconds), np.zeros_like(table.hop)
    late, last_rate, passes = table.seconds, table.rate, 0
    if load.phase == "prefill":
        after, latest, longest = _cache_seconds(problem, table), ttft, ttft
        slowest = math.inf
    else:
        at_last = table_of(replace(problem, workload=replace(load, timed_at="last")))
        late, last_rate = at_last.seconds, at_last.rate
        back = _back_seconds(problem, table)
        latest = longest = slowest = tpot
        if load.phase == "mixed":
            passes = math.ceil(load.written / load.batch_size)
            longest, slowest = min(longest, ttft / (passes + 1)), min(slowest, ttft / passes)
    passed = numbers.first * load.tokens  # in the time of a token
    least = passed / slowest if slowest > 0 else math.inf
    least_last = passed / tpot if tpot > 0 else math.inf
    reached = (table.rate >= least) & (table.rate > 0) & (last_rate > 0)
    if load.phase != "prefill":
        reached &= last_rate >= least_last
    masked = replace(
        table,
        rate=np.where(reached, table.rate, 0.0),
        seconds=np.where(reached, table.seconds, np.inf),
        link=np.where(table.link >= least, table.link, 0.0),
    )
    return masked, Timing(
        limits=limits,
        late=late,
        after=after,
        back=back,
        latest=latest,
        longest=longest,
        first=ttft,
        passes=passes,
        least=numbers.first,
    )


def _back_seconds(problem: Problem, table: Instance) -> np.ndarray:
    """Return the seconds of the hop back between GPUs of two classes, shape (A, A).

    A class of one GPU is on one side only."""
    classes = table.classes
    gigabytes = problem.workload.batch_size * requests.TOKEN_BYTES / 1e9
    bandwidth, alone = classes.bandwidth_gb_per_s, np.diag(classes.count == 1)
    seconds = requests.sent_seconds(
        problem, gigabytes, np.where(alone, np.inf, bandwidth), classes.latency_ms
    )
    out = np.broadcast_to(seconds, bandwidth.shape).copy()
    out[alone] = out.min()
    return out


def _cache_seconds(problem: Problem, table: Instance) -> np.ndarray:
    """Return the seconds until a stage's cache has reached the GPU that is reached last; shape (C, U)."""
    classes = table.classes
    others = ~np.diag(classes.count == 1)
    spans = zip(*table.spans.examples, strict=True)
    gigabytes = np.array([requests.cache_gb(problem, range(int(i), int(i + n))) for i, n in spans])
    bandwidth = np.where(others, classes.bandwidth_gb_per_s, np.inf)
    latency = np.where(others, classes.latency_ms, 0.0)
    out = np.zeros_like(table.seconds)
    for a in range(len(classes)):
        if others[a].any():
            sent = requests.sent_seconds(
                problem, gigabytes[:, None], bandwidth[a, others[a]], latency[a, others[a]]
            )
            used = table.composition[:, a] > 0
            out[used] = np.maximum(out[used], sent.max(axis=1))
    return out


def best_service(
    problem: Problem, placement: Placement, limits: requests.Limits
) -> requests.Service | None:
    """Find what `pipelab.requests.best_service` finds, with few looks at the numbers in flight.

    Numbers fall into runs within which all stages have the same times (`evaluation`), and within a run the number
    that serves most is known. Where no stage is faster with more in flight, a full pipeline within the limits ends
    the search, and so does a number beyond what the limits allow the slowest stage.
    """
    allowed = requests.numbers_in_flight(problem, placement)
    if len(allowed) == 1:
        known = _times(problem, placement, allowed[0])
        served = known and known.service(problem, allowed[0])
        return served if served and served.keeps(limits) else None
    never_faster = problem.costs.prefer == "rate"
    best, begin = None, 1
    while (here := _times(problem, placement, begin)) is not None:
        most = min(_most(here, limits), allowed[-1])
        wanted = min(max(begin, math.ceil(here.traversal / here.interval)), max(begin, most))
        end = _end(problem, placement, here, begin, wanted)
        for number in (end, end - 1):  # the last bits of the arithmetic
            served = here.service(problem, max(begin, number))
            if served.keeps(limits):
                if best is None or served.requests_per_s > best.requests_per_s:
                    best = served
                break
        if never_faster and ((best is not None and here.service(problem, end).full) or end >= most):
            break
        begin = _end(problem, placement, here, end, allowed[-1]) + 1
        if begin > allowed[-1]:
            break
    return best


def _times(problem: Problem, placement: Placement, number: int) -> requests.Times | None:
    try:
        return requests.times(problem, placement, number)
    except InvalidPlacement:
        return None


def _most(here: requests.Times, limits: requests.Limits) -> int:
    """Return the most in flight for which the slowest stage has time within the limits."""
    most, slowest = float(MOST_IN_FLIGHT), max(here.interval, here.last_interval)
    if here.last_interval:
        most = min(most, limits.tpot_ms / 1000 / slowest)
    if here.passes:
        first = limits.ttft_ms / 1000 - here.first
        most = min(most, first / here.passes / here.interval)
    return max(0, math.floor(most * requests.KEPT))


def _end(
    problem: Problem, placement: Placement, here: requests.Times, begin: int, most: int
) -> int:
    """Return the last number up to `most` with the same times."""
    step, last = most - begin, begin
    if step and _times(problem, placement, most) == here:
        return most
    step = 1
    while last + step < most and _times(problem, placement, last + step) == here:
        last, step = last + step, 2 * step
    others = range(last + 1, min(most, last + step))
    return last + bisect_left(
        others, True, key=lambda number: _times(problem, placement, number) != here
    )


def pipeline_of(
    problem: Problem, replicas: tuple[Placement, ...], limits: requests.Limits | None
) -> Pipeline | None:
    """Make a pipeline of replicas, with the number in flight at which it attains most, or serves most within limits.

    None if it does not keep the limits.
    """
    if limits is None:
        evaluation = evaluate(problem, replicas[0])
        load = replace(problem.workload, in_flight=evaluation.in_flight)
        return Pipeline(replicas=replicas, workload=load, throughput=evaluation.attainable)
    served = best_service(problem, replicas[0], limits)
    if served is None:
        return None
    load = replace(problem.workload, in_flight=served.in_flight)
    return Pipeline(
        replicas=replicas,
        workload=load,
        throughput=served.requests_per_s * requests.request_tokens(problem),
        service=served,
    )
