"""deploy(problem): several pipelines at once, proven best among all deployments.

First column generation (`generation`): a bound and a deployment close to it within a few rounds.
If a gap remains, every pipeline that a better deployment could have is listed (`reachable`), and the
whole program over these proves the best.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from pydantic import BeforeValidator

from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.deployments.generation import Generation
from pipelab.engine.deployments.listing import close_gap
from pipelab.engine.deployments.master import Demand
from pipelab.engine.deployments.offers import Offer, offers_of
from pipelab.engine.deployments.one_pipeline import add_best_alone
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.deployments.read_back import pipelines_of
from pipelab.engine.deployments.result import Deployment, Pipeline
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.infeasible import why_no_layer_fits, why_too_few
from pipelab.engine.methods.aggregated import stand_in
from pipelab.engine.methods.cost import refuse_unpriced
from pipelab.engine.objective import status_and_bound, status_and_least
from pipelab.engine.solvers import choice
from pipelab.engine.tolerances import ONE_ANSWER, REACHED, SOLVER
from pipelab.evaluation import evaluate
from pipelab.fields import Count, NotNegative, checked_arguments, described, given, is_list
from pipelab.problem import Problem, Workload

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
    if at_least:
        refuse_unpriced(problem, "deploy")
    sizes = batches or (problem.workload.batch_size,)
    loads = [replace(problem.workload, batch_size=b) for b in dict.fromkeys(sizes)]
    with deadline_of(time_limit, stop) as deadline:
        return _Deploying(problem, at_least, solver, gap, on_progress, deadline).run(loads)


@dataclass
class _Deploying:
    """One call of `deploy`."""

    problem: Problem
    at_least: float
    solver: str
    gap: float
    on_progress: Callable | None
    deadline: Deadline

    def run(self, loads: Sequence[Workload]) -> Deployment:
        """Rates, columns, and the gap closed; whatever ends it early, the best so far."""
        try:
            offers = offers_of(self.problem, loads, self.deadline)
        except Ended as end:
            return self._unlisted(end.reason)
        if not offers:
            return self._answer([], None, None, why_no_layer_fits(self.problem))
        pricings = [Pricing(offer.rates) for offer in offers]
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
                add_best_alone(generation, offers)
                proven = close_gap(generation, offers, pricings)
        except Ended as end:
            ended = end.reason
        return self._answer(offers, generation, ended, "", proven)

    def _cheapest(
        self, most: Generation, offers: Sequence[Offer], pricings: Sequence[Pricing]
    ) -> Deployment:
        """First the greatest throughput, which tells whether the load can be served; then the least price."""
        ended = None
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
                return self._answer([], None, None, _too_much(self.at_least, greatest, bound))
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
        if not pipelines and ended and offers:
            return self._unlisted(ended)
        bound = None if generation is None else generation.bound
        if not pipelines:
            impossible = bool(reason) or proven
            reason = reason or (_why_none(self.problem, offers) if proven else "")
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
                reason = _why_open(proven)
        return Deployment(
            problem=self.problem,
            status=status,
            pipelines=pipelines,
            throughput=math.fsum(p.throughput * p.count for p in pipelines) if pipelines else None,
            bound=bound,
            at_least=self.at_least,
            seconds=self.deadline.spent,
            size=_size(offers, generation),
            solver=choice.solver_version(self.solver) if generation is not None else "",
            reason=reason,
            stopped_by=None if status in ("optimal", "infeasible") else ended,
            details={"progress": () if generation is None else tuple(generation.progress)},
        )

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

    def _unlisted(self, ended: str) -> Deployment:
        """Ended before any column was there: one pipeline at most, which a moment finds."""
        placement = stand_in(self.problem, self.at_least)
        pipelines: tuple[Pipeline, ...] = ()
        if placement is not None:
            rate = evaluate(self.problem, placement).throughput
            pipelines = (Pipeline((placement,), self.problem.workload, rate),)
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
        )


def _size(offers: Sequence[Offer], generation: Generation | None) -> dict[str, int]:
    if generation is None or not offers:
        return {}
    columns = len(generation.columns) + len(generation.beyond)
    classes = len(offers[0].rates.classes)
    return {"classes": classes, "columns": columns, "rounds": generation.rounds}


def _why_open(proven: bool) -> str:
    if proven:
        return "the bound leaves out that stages must be packed into nodes"
    return "there are too many ways to divide the GPUs to list what is left"


def _why_none(problem: Problem, offers: Sequence[Offer]) -> str:
    """The reason where stages fit but no pipeline does."""
    rates: StageRates = offers[0].rates
    return why_too_few(problem, rates.holdable(rates.thresholds[:1])[0], "listing every pipeline")


def _too_much(load: float, greatest: float, bound: float) -> str:
    """The reason where a load cannot be served."""
    if not greatest:
        return f"no pipeline fits, so {load:.7g} tokens/s cannot be served"
    most = (
        f"the most that these GPUs serve is {greatest:.7g} tokens/s"
        if bound <= greatest * (1 + SOLVER)
        else f"these GPUs serve at most {bound:.7g} tokens/s (found: {greatest:.7g})"
    )
    clusters = math.ceil(load / greatest * (1 - SOLVER))
    short = f"{load - greatest:.7g} fewer than the load of {load:.7g}"
    return f"{most}, {short}; {clusters} such clusters would serve it"
