"""Requests under limits: what a pipeline serves and how soon, and the best deployment of few GPUs.

A request is a prompt of P tokens (`sequence_length`) and an answer of O (`output_tokens`). A pipeline works on n
microbatches of b sequences at a time. Let L be the time of a traversal, I the interval of the slowest stage or
link, and h the hop that carries sampled tokens from the last stage back to the first. By phase of the pipeline:

    decode    TPOT = max(L + h, n·I),   n·b / (O · TPOT) requests/s
    mixed     the same,                 TTFT = ⌈O / b⌉ · TPOT + L
    prefill   min(b / I, n·b / L) requests/s,   TTFT = arrival of the cache

TPOT is the time between two tokens of a sequence: it passes all stages and returns, and n microbatches take turns. In
mixed, a pass of b new tokens brings b·P/O tokens of prompts, so that a prompt takes ⌈O/b⌉ passes. In prefill every
stage sends its part of the KV cache when its pass ends, over its slowest link to any other GPU, since who decodes is
not known yet; the last part to arrive counts. Rates are those at the mean context of an answer. A limit on TPOT holds
at its last token as well, as if all sequences were there at once (`Workload.timed_at`). Memory holds prompt and answer
of all n·b sequences. Requests that come at random wait besides: `pl.serve` simulates that.

A deployment serves as many requests/s as its phase that serves fewest.

This is a definition to read. `pl.deploy` with limits finds the same by column generation
(`tests/engine/test_requests.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pipelab.errors import InvalidPlacement, NotApplicable
from pipelab.evaluation import MOST_IN_FLIGHT, Evaluation, evaluate
from pipelab.exhaustive import list_placements
from pipelab.fields import python_value
from pipelab.placement import Placement
from pipelab.problem import Phase, Problem

__all__ = [
    "Best",
    "Limits",
    "Service",
    "Times",
    "best_deployment",
    "best_service",
    "for_phase",
    "times",
]

TOKEN_BYTES = 4  # of a sampled token on its way back
KEPT = 1 + 1e-9  # times a limit: the last bits of the arithmetic


class Limits(NamedTuple):
    """What a request is promised where nobody waits: times to the first token, and from token to token."""

    ttft_ms: float = math.inf
    tpot_ms: float = math.inf


class Service(NamedTuple):
    """What a pipeline does for requests with a number in flight.

    Attributes
    ----------
    requests_per_s : float
    in_flight : int
    tpot_s, last_tpot_s : float
        At the mean context of an answer, and at its last token; 0 in prefill.
    ttft_s : float
        0 in decode.
    full : bool
        More in flight would serve no more.
    """

    requests_per_s: float
    in_flight: int
    tpot_s: float
    last_tpot_s: float
    ttft_s: float
    full: bool

    def keeps(self, limits: Limits) -> bool:
        """Whether it is within the limits.

        Parameters
        ----------
        limits : Limits
            Of a phase that has no TPOT or no TTFT, they count for the other alone.

        Returns
        -------
        bool
        """
        tpot_ms = 1000 * max(self.tpot_s, self.last_tpot_s)
        return tpot_ms <= limits.tpot_ms * KEPT and 1000 * self.ttft_s <= limits.ttft_ms * KEPT


def for_phase(problem: Problem, phase: Phase, batch: int | None = None) -> Problem:
    """Make the problem of a pipeline for one phase of requests.

    Parameters
    ----------
    problem : Problem
        With `output_tokens`.
    phase : {"prefill", "decode", "mixed"}
    batch : int, optional
        By default the problem's own.

    Returns
    -------
    Problem
        Answers are timed at their mean context.
    """
    load = replace(problem.workload, phase=phase, timed_at=None if phase == "prefill" else "mean")
    return replace(problem, workload=replace(load, batch_size=batch or load.batch_size))


def request_tokens(problem: Problem) -> int:
    """Count the tokens of a request that its phase counts: those of the prompt in prefill, else of the answer."""
    load = problem.workload
    return load.sequence_length if load.phase == "prefill" else load.written


class Times(NamedTuple):
    """What one pass of a pipeline takes, in seconds, with memory for a number of microbatches in flight.

    Attributes
    ----------
    interval, traversal : float
        Of the slowest stage or link; of all of them, with the hop back.
    last_interval, last_traversal : float
        The same at the last token of an answer.
    first : float
        Until the last part of the cache has arrived in prefill; one way through the pipeline in mixed; 0 in decode.
    passes : int
        That a prompt takes in mixed, else 0.
    """

    interval: float
    traversal: float
    last_interval: float
    last_traversal: float
    first: float
    passes: int

    def service(self, problem: Problem, in_flight: int) -> Service:
        """Compute what requests get with a number in flight.

        Parameters
        ----------
        problem : Problem
            Of one phase.
        in_flight : int

        Returns
        -------
        Service
        """
        batch = problem.workload.batch_size
        each = max(self.traversal, in_flight * self.interval)  # from token to token
        full = in_flight * self.interval >= self.traversal
        if problem.workload.phase == "prefill":
            return Service(in_flight * batch / each, in_flight, 0.0, 0.0, self.first, full)
        rate = in_flight * batch / (problem.workload.written * each)
        last = max(self.last_traversal, in_flight * self.last_interval)
        return Service(rate, in_flight, each, last, self.passes * each + self.first, full)


def times(problem: Problem, placement: Placement, in_flight: int) -> Times:
    """Recompute the times of a pipeline with memory for so many microbatches.

    Parameters
    ----------
    problem : Problem
        Of one phase (`for_phase`).
    placement : Placement
    in_flight : int

    Returns
    -------
    Times

    Raises
    ------
    InvalidPlacement
        It breaks a rule, or memory does not hold so many.
    """
    problem = problem.with_in_flight(in_flight)
    load, found = problem.workload, evaluate(problem, placement)
    traversal, interval = found.seconds_per_pass, found.tokens / found.rate
    if load.phase == "prefill":
        return Times(interval, traversal, 0.0, 0.0, cache_arrival(problem, found), 0)
    back = seconds_back(problem, placement)
    last = evaluate(replace(problem, workload=replace(load, timed_at="last")), placement)
    late = last.tokens / last.rate, last.seconds_per_pass + back
    mixed = load.phase == "mixed"
    passes = math.ceil(load.written / load.batch_size) if mixed else 0
    return Times(interval, traversal + back, *late, traversal if mixed else 0.0, passes)


def seconds_back(problem: Problem, placement: Placement) -> float:
    """How long sampled tokens take from the last stage to the first; 0 where these are one.

    Parameters
    ----------
    problem : Problem
        Each of the batch's sequences has one.
    placement : Placement

    Returns
    -------
    float
        Of the slowest pair of GPUs, in seconds.
    """
    first, last = placement.stages[0], placement.stages[-1]
    if first is last:
        return 0.0
    gigabytes = problem.workload.batch_size * TOKEN_BYTES / 1e9
    return _slowest_pair(problem, gigabytes, last.gpus, first.gpus)


def cache_arrival(problem: Problem, evaluation: Evaluation) -> float:
    """When the last part of a microbatch's KV cache has left its pipeline.

    Parameters
    ----------
    problem : Problem
        Its prompts count.
    evaluation : Evaluation
        Of the pipeline.

    Returns
    -------
    float
        In seconds from the start of the pass.
    """
    arrival, ended, others = 0.0, 0.0, range(len(problem.cluster))
    for i, report in enumerate(evaluation.stages):
        ended += report.seconds
        gigabytes = cache_gb(problem, report.stage.layers)
        took = _slowest_pair(problem, gigabytes, report.stage.gpus, others)
        arrival = max(arrival, ended + took)
        ended += evaluation.links[i].seconds if i < len(evaluation.links) else 0.0
    return arrival


def cache_gb(problem: Problem, layers: range) -> float:
    """Keys and values of a microbatch's prompts in some layers.

    Parameters
    ----------
    problem : Problem
        A model that does not say how many bytes they take (`Transformer.kv_bytes`) has as many heads of
        keys and values as of queries.
    layers : range

    Returns
    -------
    float
        In GB of 10^9 bytes.
    """
    load = problem.workload
    return load.batch_size * problem.model.cached_bytes(layers, load.sequence_length) / 1e9


def _slowest_pair(
    problem: Problem, gigabytes: float, senders: Sequence[int], receivers: Sequence[int]
) -> float:
    """Seconds of a message between the GPUs that it takes longest; 0 where nobody else receives it."""
    cluster, here, there = problem.cluster, np.array(senders), np.array(receivers)
    between = np.ix_(cluster.group[here], cluster.group[there])
    bandwidth, latency_ms = cluster.bandwidth_gb_per_s[between], cluster.latency_ms[between]
    seconds = sent_seconds(problem, gigabytes, bandwidth, latency_ms)
    return float(np.max(seconds, initial=0.0, where=here[:, None] != there))


def sent_seconds(problem: Problem, gigabytes: Any, bandwidth: Any, latency_ms: Any) -> Any:
    """Seconds from the first byte sent to the last received; numbers or arrays, which broadcast.

    What a message takes besides its bytes is what the cost model says of a link without end.
    """
    besides = problem.workload.tokens / problem.link_throughput(math.inf)
    return python_value(besides + gigabytes / bandwidth + latency_ms / 1000)


def best_service(problem: Problem, placement: Placement, limits: Limits) -> Service | None:
    """Find the number in flight with which a pipeline serves most within the limits.

    Parameters
    ----------
    problem : Problem
        Of one phase; a number in flight that it gives stays.
    placement : Placement
    limits : Limits

    Returns
    -------
    Service or None
        None if no number in flight keeps the limits and fits in memory. Of several the least.
    """
    best, never_faster = None, problem.costs.prefer == "rate"  # with more in flight
    for number in numbers_in_flight(problem, placement):
        try:
            found = times(problem, placement, number)
        except InvalidPlacement:  # nor does memory hold more
            break
        served = found.service(problem, number)
        if served.keeps(limits) and (best is None or served.requests_per_s > best.requests_per_s):
            best = served
        enough = best is not None and never_faster
        if served.full and (enough or same_with_all(problem, placement, found)):
            break
    return best


def numbers_in_flight(problem: Problem, placement: Placement) -> range:
    """List the numbers in flight that an engine may have in a pipeline, by its filling.

    Parameters
    ----------
    problem : Problem
        A number in flight that it gives stays.
    placement : Placement
        Whose stages count.

    Returns
    -------
    range

    Raises
    ------
    NotApplicable
        A batch is cut into several parts.
    """
    costs, number, most = problem.costs, problem.workload.in_flight, MOST_IN_FLIGHT
    if costs.filling == "by_stages":
        most = len(placement.stages) + costs.filling_number
    elif costs.filling != "synchronous":
        most = 1
    if costs.filling == "micro_batches" and (number or 1) > 1:
        expected = (
            "expected 1 or None with the filling 'micro_batches': requests wait for whole batches"
        )
        raise NotApplicable("requests", [("problem.workload.in_flight", number, expected)])
    first = 1 if costs.filling == "by_stages" else min(number or 1, most)
    return range(first, min(number or most, most) + 1)


def same_with_all(problem: Problem, placement: Placement, found: Times) -> bool:
    """Tell whether memory holds any number, so that no stage ever runs in another way.

    Parameters
    ----------
    problem : Problem
    placement : Placement
    found : Times
        With the number at hand.

    Returns
    -------
    bool
    """
    try:
        return times(problem, placement, MOST_IN_FLIGHT) == found
    except InvalidPlacement:
        return False


class Best(NamedTuple):
    """The best deployment: requests/s and dollars per hour, and its pipelines by phase."""

    requests_per_s: float
    usd_per_hour: float
    pipelines: list[tuple[str, Placement, Service]]


_Rates = tuple[float, ...]  # requests/s by phase
_Chosen = list[tuple[str, Placement, Service]]


def best_deployment(
    problem: Problem,
    limits: Limits,
    batches: Sequence[int],
    phases: Sequence[Phase] = ("mixed",),
    requests_per_s: float = 0.0,
) -> Best | None:
    """Try every deployment: the most requests/s within the limits, or the cheapest that serves a rate.

    Parameters
    ----------
    problem : Problem
        Of four GPUs and four layers at most, or it takes long.
    limits : Limits
    batches : sequence of int
    phases : sequence of phases
        ("prefill", "decode") for two pools.
    requests_per_s : float
        To be served at the least price; 0: as many as possible.

    Returns
    -------
    Best or None
        None if no deployment keeps the limits, or serves the rate.

    Examples
    --------
    >>> import pipelab as pl
    >>> gpus = pl.Cluster.from_counts({"fast": 1, "slow": 1}, 8.0, 1.0)
    >>> costs, load = pl.LayerTimes({"fast": 1, "slow": 3}), pl.Workload(10, 1, "mixed", output_tokens=5)
    >>> problem = pl.Problem(gpus, pl.Model("m", 4, 8, 8, 1.0), load, costs)
    >>> [len(best_deployment(problem, Limits(tpot_ms=ms), [1]).pipelines) for ms in (4, 12)]
    [1, 2]
    """
    best: dict[tuple[Phase, frozenset[int]], tuple[Placement, Service]] = {}
    for phase in phases:
        for batch in batches:
            own = for_phase(problem, phase, batch)
            for placement in list_placements(own):
                found = best_service(own, placement, limits)
                key = phase, frozenset(placement.gpus)
                if found and (
                    key not in best or found.requests_per_s > best[key][1].requests_per_s
                ):
                    best[key] = placement, found
    # by the first GPUs that are divided: what each phase serves, and by which pipelines
    ways: dict[frozenset[int], dict[_Rates, _Chosen]] = {frozenset(): {(0.0,) * len(phases): []}}
    for (phase, gpus), (placement, found) in best.items():
        k = list(phases).index(phase)
        for used, kept in list(ways.items()):
            if used & gpus:
                continue
            for rates, chosen in list(kept.items()):
                more = (*rates[:k], rates[k] + found.requests_per_s, *rates[k + 1 :])
                _keep(ways.setdefault(used | gpus, {}), more, [*chosen, (phase, placement, found)])
    price = [gpu.usd_per_hour or 0.0 for gpu in problem.cluster.gpus]
    every = [
        Best(min(rates), math.fsum(price[g] for g in gpus), chosen)
        for gpus, kept in ways.items()
        for rates, chosen in kept.items()
        if min(rates) > 0 and min(rates) >= requests_per_s / KEPT
    ]
    if requests_per_s:
        return min(every, key=lambda b: (b.usd_per_hour, -b.requests_per_s), default=None)
    return max(every, key=lambda b: b.requests_per_s, default=None)


def _keep(kept: dict[_Rates, _Chosen], rates: _Rates, chosen: _Chosen) -> None:
    """Keep a way to use some GPUs unless another serves as much in every phase."""
    if any(all(a >= b for a, b in zip(other, rates, strict=True)) for other in kept):
        return
    for other in [o for o in kept if all(a <= b for a, b in zip(o, rates, strict=True))]:
        del kept[other]
    kept[rates] = chosen
