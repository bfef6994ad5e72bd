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
from pipelab.engine.deployments.listing import close_gap
from pipelab.engine.deployments.master import Demand
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.deployments.offers import Offer, offers_of
from pipelab.engine.deployments.one_pipeline import add_best_alone, add_incumbents
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.deployments.read_back import pipelines_of
from pipelab.engine.deployments.reasons import dual_prices, size, too_much, why_none, why_open
from pipelab.engine.deployments.result import Deployment, Pipeline
from pipelab.engine.deployments.steady_pricing import SteadyPricing
from pipelab.engine.in_flight_result import steady_rate
from pipelab.engine.infeasible import why_no_layer_fits
from pipelab.engine.methods.aggregated import stand_in
from pipelab.engine.methods.cost import refuse_unpriced
from pipelab.engine.methods.first_placements import fastest
from pipelab.engine.methods.latency import refuse_transfers
from pipelab.engine.methods.prices import price_per_hour
from pipelab.engine.objective import status_and_bound, status_and_least
from pipelab.engine.options import refuse_training
from pipelab.engine.solvers import choice
from pipelab.engine.tolerances import ONE_ANSWER, REACHED
from pipelab.errors import TooLarge
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import Count, NotNegative, checked_arguments, described, given, is_list
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload

_MOST_APART = 200_000  # mixes, where a second search keeps nodes apart

_Batches = Annotated[
    Annotated[tuple[Count, ...], MinLen(1)] | None,
    BeforeValidator(lambda sizes: tuple(sizes) if is_list(sizes) else sizes),
    described("batch sizes, such as [4, 8, 16]"),
]
_InFlight = Annotated[
    Annotated[tuple[Count, ...], MinLen(1)] | None,
    BeforeValidator(lambda numbers: tuple(numbers) if is_list(numbers) else numbers),
    described("numbers of microbatches, such as [1, 2, 4]"),
]


@checked_arguments
def deploy(
    problem: choice.AskedProblem,
    at_least: Annotated[NotNegative, described("tokens/s, a finite number of at least 0")] = 0.0,
    *,
    batches: _Batches = None,
    in_flight: _InFlight = None,
    solver: choice.Solver = "highs",
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
        What is to be served, and on what. Each pipeline keeps the rules of a placement.
    at_least : float
        A load in tokens/s. Then the deployment is sought that serves it for the fewest dollars per
        hour, and every GPU needs a price (`GPU.usd_per_hour`). 0: the greatest throughput.
    batches : sequence of int, optional
        Batch sizes among which each pipeline has the one that suits it best; by default the
        problem's own.
    in_flight : sequence of int, optional
        Numbers of microbatches in flight among which each pipeline has the one that suits it best:
        memory holds them all, and the pipeline counts with what they yield. By default the
        problem's own number, which counts for memory only. Links must be counted in tokens/s.
    solver : {"scip", "highs"}
        The solver for the integer programs.
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
        "optimal" is proven among all deployments. Where nothing fits, or no deployment serves the
        load, the status is "infeasible" and `reason` says by how much.

    Raises
    ------
    InvalidValue
        An argument is of another kind, or with a load a GPU has no price.
    TooLarge
        Too many mixtures of too many kinds of GPU in one stage, where mixtures must be listed.
    UnknownName
        The solver is unknown.

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
    if in_flight is not None:
        refuse_transfers(problem, "deploy")
        numbers = sorted(set(in_flight))
        loads = [replace(load, in_flight=n) for load in loads for n in numbers]
    steady = in_flight is not None
    with deadline_of(time_limit, stop) as deadline:
        again = partial(deploy, batches=batches, in_flight=in_flight, solver=solver, gap=gap)
        ask = _Deploying(problem, at_least, solver, gap, on_progress, deadline, steady, again)
        return ask.run(loads)


@dataclass
class _Deploying:
    """One call of `deploy`."""

    problem: Problem
    at_least: float
    solver: str
    gap: float
    on_progress: Callable | None
    deadline: Deadline
    steady: bool = False
    again: Callable[..., Deployment] | None = None
    unpacked: bool = False  # the best by numbers did not fit into the nodes

    def run(self, loads: Sequence[Workload]) -> Deployment:
        """Rates, columns, and the gap closed; whatever ends it early, the best so far."""
        try:
            offers = offers_of(self.problem, loads, self.deadline, self.steady)
        except Ended as end:
            return self._unlisted(end.reason, loads[0])
        if not offers:
            return self._answer([], None, None, why_no_layer_fits(self.problem))
        found = self._of(offers)
        return self._apart(loads, found) if self.unpacked else found

    def _apart(self, loads: Sequence[Workload], found: Deployment) -> Deployment:
        """The same with nodes kept apart, where there are few enough mixes for that; or what was found."""
        try:
            offers = offers_of(self.problem, loads, self.deadline, self.steady, apart=True)
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

    def _of(self, offers: Sequence[Offer]) -> Deployment:
        """The best of pipelines with these workloads."""
        pricing = SteadyPricing if self.steady else Pricing
        pricings = [pricing(offer.rates) for offer in offers]
        classes = offers[0].rates.classes
        price = [classes.gpu(a).usd_per_hour or 0.0 for a in range(len(classes))]
        demand = Demand(classes.count, 0.0, np.array(price))
        report = None if self.at_least else self.on_progress
        most = Generation(pricings, demand, self.solver, self.deadline, report, self.gap)
        if not self.at_least:
            return self._searched(most, offers, pricings)
        return self._cheapest(most, offers, pricings)

    def _searched(
        self,
        generation: Generation,
        offers: Sequence[Offer],
        pricings: Sequence[Pricing],
        ended: str | None = None,
    ) -> Deployment:
        """Run the generation, close the gap, and say what is proven."""
        proven = False
        try:
            generation.run()
            if generation.open > max(self.gap, 0.0) or generation.best is None:
                add_best_alone(generation, offers, self.steady)
                proven = close_gap(generation, offers, pricings)
        except Ended as end:
            ended = end.reason
        return self._answer(offers, generation, ended, "", proven)

    def _cheapest(
        self, most: Generation, offers: Sequence[Offer], pricings: Sequence[Pricing]
    ) -> Deployment:
        """First the greatest throughput, which tells whether the load can be served; then the least price."""
        ended = None
        demand = replace(most.demand, load=self.at_least)
        known = Generation(pricings, demand, self.solver, self.deadline)
        add_incumbents(known, offers, self.steady)
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
        offers: Sequence[Offer],
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
        least = Generation(pricings, demand, self.solver, self.deadline, self.on_progress, self.gap)
        least.columns, least.beyond = list(most.columns), list(most.beyond)
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
        self.unpacked = rate < sum(c.rate for c in chosen) * (1 - ONE_ANSWER)
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
            solver=choice.solver_version(self.solver) if generation is not None else "",
            reason=self.deadline.remark(reason),
            stopped_by=None if status in ("optimal", "infeasible") else ended,
            details={
                "progress": () if generation is None else tuple(generation.progress),
                "dual_prices": dual_prices(offers, generation),
            },
            again=self.again,
        )

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
        placement = stand_in(problem, self.at_least, self._dollars if self.at_least else fastest)
        pipelines: tuple[Pipeline, ...] = ()
        if placement is not None:
            found = evaluate(problem, placement)
            rate = steady_rate(found, load.in_flight) if self.steady else found.throughput
            if rate >= self.at_least:
                pipelines = (Pipeline((placement,), load, rate, self.steady),)
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
