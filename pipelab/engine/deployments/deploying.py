"""deploy(problem): several pipelines at once, proven best among all deployments.

First column generation (`generation`): a bound and a deployment close to it within a few rounds.
If a gap remains, every pipeline that a better deployment could have is listed (`reachable`), and the
whole program over these proves the best.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from pydantic import BeforeValidator

from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.deployments.generation import Generation
from pipelab.engine.deployments.listing import MOST_MIXES, close_gap
from pipelab.engine.deployments.master import Column, Demand
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.deployments.offers import Offer, first_ranges, offers_attaining, offers_of
from pipelab.engine.deployments.one_pipeline import add_best_alone, add_incumbents
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.deployments.read_back import pipeline_of, pipelines_of
from pipelab.engine.deployments.reasons import dual_prices, size, too_much, why_none, why_open
from pipelab.engine.deployments.result import Deployment, Pipeline
from pipelab.engine.deployments.steady_pricing import SteadyPricing
from pipelab.engine.formulations.aggregated.classes import gpu_classes
from pipelab.engine.infeasible import why_no_layer_fits
from pipelab.engine.methods.aggregated import stand_in
from pipelab.engine.methods.cost import refuse_unpriced
from pipelab.engine.methods.prices import price_per_hour
from pipelab.engine.objective import status_and_bound, status_and_least
from pipelab.engine.options import refuse_training
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import ONE_ANSWER, REACHED
from pipelab.errors import TooLarge
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import Count, NotNegative, checked_arguments, described, given, is_list
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload

_SHARE_OF_RATES = 0.4  # of a time limit, for the deployment whose pipelines count with their rates
_MOST_APART = 200_000  # mixes, where a second search keeps nodes apart

_Batches = Annotated[
    Annotated[tuple[Count, ...], MinLen(1)] | None,
    BeforeValidator(lambda sizes: tuple(sizes) if is_list(sizes) else sizes),
    described("batch sizes, such as [4, 8, 16]"),
]


@checked_arguments
def deploy(
    problem: choice.AskedProblem,
    at_least: Annotated[NotNegative, described("tokens/s, a finite number of at least 0")] = 0.0,
    *,
    batches: _Batches = None,
    time_limit: choice.TimeLimit = None,
    gap: Annotated[NotNegative, described("a share, a finite number of at least 0")] = 0.0,
    stop: choice.Stop = None,
    on_progress: Annotated[Callable | None, described("a function of Progress, or None")] = None,
) -> Deployment:
    """The best set of pipelines on disjoint GPUs: the greatest throughput, or the least price for a load.

    `solve` places the model once; here it may be placed as often as there are GPUs for it.

    Parameters
    ----------
    problem : Problem
        What is to be served, and on what. Each pipeline keeps the rules of a placement, and counts
        with its attainable rate: the number in flight is chosen with it, or is the workload's.
    at_least : float
        A load in tokens/s. Then the deployment is sought that serves it for the fewest dollars per
        hour, and every GPU needs a price (`GPU.usd_per_hour`). 0: the greatest throughput.
    batches : sequence of int, optional
        Batch sizes among which each pipeline has the one that suits it best; by default the
        problem's own.
    time_limit : float, optional
        Seconds. The best deployment found by then is kept, with a proven bound.
    gap : float
        Stop once the best is known to be at most this much better, as a share.
    stop : threading.Event, optional
        Set it to end the search; the best deployment is kept. Ctrl-C does the same.
    on_progress : function of Progress, optional
        Called after every round.

    Returns
    -------
    Deployment
        "optimal" is proven among all deployments with these batches, over all numbers in flight.
        Where nothing fits, or no deployment serves the load, the status is "infeasible" and `reason` says by how much.

    Raises
    ------
    InvalidValue
        An argument is of another kind, or with a load a GPU has no price.
    TooLarge
        Too many mixtures of too many kinds of GPU in one stage, where mixtures must be listed.

    Notes
    -----
    Pipelines are independent: requests are shared out so that all are busy, and limits on latency,
    or separate pools for prefill and decode, are not considered.

    Examples
    --------
    >>> import pipelab as pl
    >>> memory = {"A100-SXM-40": 40, "L4": 24, "T4": 16}
    >>> gpus = pl.Cluster.from_counts({"A100-SXM-40": 2, "L4": 4, "T4": 4}, memory, 12.5)
    >>> load = pl.Workload(2048, 16, "decode")
    >>> problem = pl.Problem(gpus, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    >>> several, one = pl.deploy(problem), pl.solve(problem)
    >>> several.status, several.count, several.throughput > 1.05 * one.throughput
    ('optimal', 6, True)
    """
    refuse_training(problem, "deploy")
    if at_least:
        refuse_unpriced(problem, "deploy")
    sizes = batches or (problem.workload.batch_size,)
    loads = [replace(problem.workload, batch_size=b) for b in dict.fromkeys(sizes)]
    with deadline_of(time_limit, stop) as deadline:
        again = partial(deploy, batches=batches, gap=gap)
        ask = _Deploying(problem, at_least, gap, on_progress, deadline, again)
        return ask.run(loads)


@dataclass
class _Deploying:
    """One call of `deploy`."""

    problem: Problem
    at_least: float
    gap: float
    on_progress: Callable | None
    deadline: Deadline
    again: Callable[..., Deployment] | None = None
    unpacked: bool = False  # the best by numbers did not fit into the nodes

    def run(self, loads: Sequence[Workload]) -> Deployment:
        """By rates first: no pipeline attains more. Then by attainable rates, where these are less."""
        whole, report, progress = self.deadline, self.on_progress, []

        def tell(moment: Progress) -> None:
            progress.append(moment)
            if report is not None:
                report(moment)

        if whole.limited and self._few_mixes():
            self.deadline = whole.within(_SHARE_OF_RATES * whole.left)
        # what incumbents attain is not known yet
        self.on_progress = lambda moment: tell(replace(moment, incumbent=None))
        found = self.by_rates(loads)
        self.deadline, self.on_progress = whole, tell
        if found.status == "infeasible" and self.at_least:
            return self._out_of_reach(found)
        if all(attains(self.problem, pipeline) for pipeline in found.pipelines):
            if found.value is not None:
                tell(Progress(whole.spent, found.value, found.bound, found.size.get("rounds", 0)))
        else:
            known = self.by_attainable(loads, found) if whole.reason is None else None
            found = _with_attainable(found, self.at_least, known)
            if found.value is None:
                simple = self._unlisted(found.stopped_by or "list limit", loads[0])
                found = simple if simple.value is not None else found
        details = {**found.details, "progress": tuple(progress)}
        return replace(found, seconds=whole.spent, details=details)

    def _few_mixes(self) -> bool:
        """Whether deployments by attainable rates can be searched at all."""
        return Mixes(gpu_classes(self.problem.cluster).count.tolist()).total <= MOST_MIXES

    def _out_of_reach(self, found: Deployment) -> Deployment:
        """A load beyond all rates, with the most that can be attained as the reason."""
        left = self.deadline.left if self.deadline.limited else None
        most = given(self.again)(self.problem, time_limit=left, stop=self.deadline.stop)
        if most.throughput is None:
            return found
        bound = math.inf if most.bound is None else most.bound
        reason = too_much(self.at_least, most.throughput, bound)
        return replace(found, reason=reason, seconds=self.deadline.spent)

    def by_attainable(self, loads: Sequence[Workload], known: Deployment) -> Deployment | None:
        """The same where pipelines count with what they attain; None where that is too large."""
        offers: list[Offer] = []
        try:
            for load in loads:
                problem = replace(self.problem, workload=load)
                offers += offers_attaining(problem, first_ranges(problem), self.deadline)
            if not offers or Mixes(offers[0].rates.classes.count.tolist()).total > MOST_MIXES:
                return None
            return self._of(offers, known)
        except (Ended, TooLarge):
            return None

    def by_rates(self, loads: Sequence[Workload]) -> Deployment:
        """Rates, columns, and the gap closed; whatever ends it early, the best so far."""
        try:
            offers = offers_of(self.problem, loads, self.deadline)
        except Ended as end:
            return self._unlisted(end.reason, loads[0])
        if not offers:
            return self._answer([], None, None, why_no_layer_fits(self.problem))
        found = self._of(offers)
        return self._apart(loads, found) if self.unpacked else found

    def _apart(self, loads: Sequence[Workload], found: Deployment) -> Deployment:
        """The same with nodes kept apart, where there are few enough mixes for that; or what was found."""
        try:
            offers = offers_of(self.problem, loads, self.deadline, apart=True)
            few = Mixes(offers[0].rates.classes.count.tolist()).total <= _MOST_APART
        except (Ended, TooLarge):
            return found
        if not few:
            return found
        again = self._of(offers)
        values = [-1.0 if d.value is None else d.value for d in (found, again)]
        worse = again.value is None or (found.value is not None and values[0] > values[1])
        if self.at_least:
            worse = again.value is None or (found.value is not None and values[0] < values[1])
        return found if worse and again.status not in ("optimal", "infeasible") else again

    def _of(self, offers: list[Offer], known: Deployment | None = None) -> Deployment:
        """The best of pipelines with these workloads."""
        pricings = [_pricing(offer) for offer in offers]
        classes = offers[0].rates.classes
        price = [classes.gpu(a).usd_per_hour or 0.0 for a in range(len(classes))]
        demand = Demand(classes.count, 0.0, np.array(price))
        report = None if self.at_least else self.on_progress
        most = Generation(pricings, demand, self.deadline, report, self.gap)
        most.halve = partial(_halved, offers, pricings, self.deadline)
        if known is not None:
            _keep_all(most, offers, known)
        if not self.at_least:
            return self._searched(most, offers, pricings)
        return self._cheapest(most, offers, pricings)

    def _searched(
        self,
        generation: Generation,
        offers: list[Offer],
        pricings: Sequence[Pricing],
        ended: str | None = None,
    ) -> Deployment:
        """Run the generation, close the gap, and say what is proven."""
        proven = False
        try:
            generation.run()
            if generation.open > max(self.gap, 0.0) or generation.best is None:
                add_best_alone(generation, offers)
                proven = close_gap(generation, offers, pricings)
        except Ended as end:
            ended = end.reason
        return self._answer(offers, generation, ended, "", proven)

    def _cheapest(
        self, most: Generation, offers: list[Offer], pricings: Sequence[Pricing]
    ) -> Deployment:
        """First the greatest throughput, which tells whether the load can be served; then the least price."""
        ended = None
        demand = replace(most.demand, load=self.at_least)
        known = Generation(pricings, demand, self.deadline)
        add_incumbents(known, offers)
        most.columns += known.columns
        if known.best is not None:  # so it can be served
            most.best = known.best
            return self._served(most, np.inf, offers, pricings, None)
        try:
            most.run()
            if most.best is None or most.demand.value(most.best) < self.at_least:
                most.settled = close_gap(most, offers, pricings)
        except Ended as end:
            ended = end.reason
        greatest = 0.0 if most.best is None else most.demand.value(most.best)
        return self._served(most, greatest, offers, pricings, ended)

    def _served(
        self,
        most: Generation,
        greatest: float,
        offers: list[Offer],
        pricings: Sequence[Pricing],
        ended: str | None,
    ) -> Deployment:
        """The least price of the load, once it is known what can be served at most."""
        bound = most.bound if most.bound is not None else np.inf
        if greatest < self.at_least * (1 - REACHED):
            if most.settled:
                bound = greatest
            if bound < self.at_least * (1 - REACHED):
                return self._answer([], None, None, too_much(self.at_least, greatest, bound))
            return self._answer(offers, None, ended or "list limit", "", False)
        demand = replace(most.demand, load=self.at_least)
        least = Generation(pricings, demand, self.deadline, self.on_progress, self.gap)
        least.columns, least.beyond = list(most.columns), list(most.beyond)
        least.halve, least.live = most.halve, list(most.live)
        least.keep(given(most.best))
        return self._searched(least, offers, pricings, ended)

    def _answer(
        self,
        offers: Sequence[Offer],
        generation: Generation | None,
        ended: str | None,
        reason: str,
        proven: bool = False,
    ) -> Deployment:
        """What is known at the end."""
        if generation is not None and generation.best is None:
            generation.round_off()
        chosen = [] if generation is None or generation.best is None else generation.best
        pipelines = pipelines_of(offers, chosen)
        rate = math.fsum(p.throughput * p.count for p in pipelines)
        self.unpacked = self._rate_of(offers, pipelines) < sum(c.rate for c in chosen) * (
            1 - ONE_ANSWER
        )
        if self.unpacked and rate < self.at_least * (1 - REACHED):
            pipelines = ()
        if not pipelines and ended and offers:
            return self._unlisted(ended, offers[0].problem.workload)
        bound = None if generation is None else generation.bound
        if not pipelines:
            impossible = not self.unpacked and (bool(reason) or proven)
            reason = reason or (why_none(self.problem, offers) if impossible else "")
            status = "infeasible" if impossible else "unknown"
            bound = None if impossible else bound
        else:
            if proven and generation is not None:
                bound = generation.value
            status, bound = self._status(self._value(pipelines), bound)
        if status == "feasible" and ended is None:
            within = generation is not None and generation.open <= self.gap
            ended = "gap limit" if within else "list limit"
            if not within:
                reason = why_open(self.unpacked)
        return Deployment(
            problem=self.problem,
            status=status,
            pipelines=pipelines,
            throughput=rate if pipelines else None,
            bound=bound,
            at_least=self.at_least,
            seconds=self.deadline.spent,
            size=size(offers, generation),
            solver=choice.solver_version() if generation is not None else "",
            reason=self.deadline.remark(reason),
            stopped_by=None if status in ("optimal", "infeasible") else ended,
            details={
                "progress": () if generation is None else tuple(generation.progress),
                "dual_prices": dual_prices(offers, generation),
            },
            again=self.again,
        )

    def _rate_of(self, offers: Sequence[Offer], pipelines: Sequence[Pipeline]) -> float:
        """What these pipelines count with: their rates, or what they attain."""
        if not offers or offers[0].numbers is not None:
            return math.fsum(p.throughput * p.count for p in pipelines)
        return math.fsum(_evaluated(self.problem, p).rate * p.count for p in pipelines)

    def _dollars(self, placement: Placement, evaluation: Evaluation) -> float:
        return price_per_hour(self.problem, placement) or math.inf

    def _value(self, pipelines: Sequence[Pipeline]) -> float:
        if not self.at_least:
            return math.fsum(p.throughput * p.count for p in pipelines)
        gpus = self.problem.cluster.gpus
        used = (gpus[g] for p in pipelines for r in p.replicas for g in r.gpus)
        return math.fsum(gpu.usd_per_hour or 0.0 for gpu in used)

    def _status(self, value: float, bound: float | None) -> tuple[str, float | None]:
        if self.at_least:
            return status_and_least(value, bound)
        if bound is not None and value < bound <= value * (1 + ONE_ANSWER):
            return "optimal", value
        return status_and_bound(value, bound)

    def _unlisted(self, ended: str, load: Workload) -> Deployment:
        """Ended before any column was there: one pipeline at most, which a moment finds."""
        problem = replace(self.problem, workload=load)
        value = self._dollars if self.at_least else _most_attaining
        placement = stand_in(problem, self.at_least, value, lambda found: found.attainable)
        pipelines: tuple[Pipeline, ...] = ()
        if placement is not None:
            pipeline = pipeline_of(problem, (placement,))
            if pipeline.throughput >= self.at_least:
                pipelines = (pipeline,)
        return Deployment(
            problem=self.problem,
            status="feasible" if pipelines else "unknown",
            pipelines=pipelines,
            throughput=pipelines[0].throughput if pipelines else None,
            bound=None,
            at_least=self.at_least,
            seconds=self.deadline.spent,
            reason="the rates of stages were still being listed" if not pipelines else "",
            stopped_by=ended,
            details={"progress": ()},
            again=self.again,
        )


def _most_attaining(placement: Placement, evaluation: Evaluation) -> float:
    return -evaluation.attainable


def _evaluated(problem: Problem, pipeline: Pipeline) -> Evaluation:
    return evaluate(replace(problem, workload=pipeline.workload), pipeline.placement)


def attains(problem: Problem, pipeline: Pipeline) -> bool:
    """Whether a pipeline attains the rate that it has with memory for one microbatch in flight."""
    number = 1 if problem.workload.in_flight is None else problem.workload.in_flight
    counted = replace(problem, workload=pipeline.workload).with_in_flight(number)
    rate = evaluate(counted, pipeline.placement).rate
    return pipeline.throughput >= rate * (1 - ONE_ANSWER)


def _with_attainable(by_rates: Deployment, at_least: float, found: Deployment | None) -> Deployment:
    """The better of two deployments, with the tighter of their bounds: by rates, and by what they attain."""
    if found is not None and found.status in ("optimal", "infeasible"):
        return found
    serves = by_rates.throughput is not None and by_rates.throughput >= at_least * (1 - REACHED)
    first = by_rates if serves else replace(by_rates, pipelines=(), throughput=None)
    chosen = first
    if found is not None and found.value is not None:
        worse = first.value is None or (
            found.value < first.value if at_least else found.value > first.value
        )
        chosen = found if worse else first
    tighter = max if at_least else min
    bounds = [d.bound for d in (by_rates, found) if d is not None and d.bound is not None]
    bound = tighter(bounds) if bounds else None
    stopped = by_rates.stopped_by if found is None else found.stopped_by
    if chosen.value is None:
        return replace(chosen, status="unknown", bound=bound, stopped_by=stopped or "list limit")
    rule = status_and_least if at_least else status_and_bound
    status, bound = rule(chosen.value, bound)
    reason = "" if status == "optimal" or found is None else found.reason
    return replace(
        chosen, status=status, bound=bound, reason=reason,
        stopped_by=None if status == "optimal" else stopped or "list limit",
        details=by_rates.details if found is None else found.details,
    )  # fmt: skip


def _pricing(offer: Offer) -> Pricing:
    return Pricing(offer.rates) if offer.numbers is None else SteadyPricing(offer.rates, offer)


def _halved(
    offers: list[Offer], pricings: list[Pricing], deadline: Deadline, number: int
) -> list[int] | None:
    """Add the halves of an offer; their numbers, or None if it has none."""
    if offers[number].numbers is None or given(offers[number].numbers).single:
        return None
    halves = offers[number].halves(deadline)
    first = len(offers)
    offers += halves
    pricings += map(_pricing, halves)
    return list(range(first, len(offers)))


def _keep_all(generation: Generation, offers: Sequence[Offer], known: Deployment) -> None:
    """Begin with the pipelines of a deployment, as columns with what they attain."""
    classes, chosen = offers[0].rates.classes, []
    for pipeline in known.pipelines:
        load = replace(pipeline.workload, in_flight=known.problem.workload.in_flight)
        number = next(i for i, offer in enumerate(offers) if offer.problem.workload == load)
        for replica in pipeline.replicas:
            stages = tuple(
                (len(s.layers), tuple(np.bincount(classes.of[list(s.gpus)], minlength=len(classes)).tolist()))
                for s in replica.stages
            )  # fmt: skip
            used = tuple(np.sum([gpus for _, gpus in stages], axis=0).tolist())
            chosen.append(Column(pipeline.throughput, used, number, stages=stages))
    if chosen:
        generation.columns += dict.fromkeys(chosen)
        generation.keep(chosen)
