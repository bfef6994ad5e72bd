"""deploy(problem): several pipelines at once, proven best among all deployments.

First column generation: a bound and a deployment close to it within a few rounds. If a gap remains,
every pipeline that a better deployment could have is listed (`listing`), and the whole program over these
proves the best. All that twice: by rates, which no pipeline exceeds, and then by attainable rates if some
of the pipelines found attain less than their rates.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from pydantic import BeforeValidator

from pipelab.engine.attainable import Pairs
from pipelab.engine.classes import gpu_classes
from pipelab.engine.deadline import Deadline, Ended, deadline_of
from pipelab.engine.deployments.column_generation import Column, Demand, Generation
from pipelab.engine.deployments.listing import (
    MOST_MIXES,
    LeastPasses,
    ReachableMixes,
    close_gap,
)
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.deployments.pricing import AttainablePricing, Pricing, StageOf
from pipelab.engine.deployments.result import Deployment, Pipeline
from pipelab.engine.deployments.workloads import (
    Offer,
    first_ranges,
    offers_attaining,
    offers_of,
)
from pipelab.engine.infeasible import why_no_layer_fits, why_too_few
from pipelab.engine.methods.aggregated import rates_in_time, stand_in
from pipelab.engine.methods.cost import refuse_unpriced
from pipelab.engine.methods.first_placements import incumbents
from pipelab.engine.objective import status_and_bound, status_and_least
from pipelab.engine.options import refuse_training
from pipelab.engine.prices import price_per_hour
from pipelab.engine.search import Search, Subproblems
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import ONE_ANSWER, REACHED, SOLVER
from pipelab.errors import InvalidPlacement, PipelabError, TooLarge
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import Count, NotNegative, checked_arguments, described, given, is_list
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload

_SHARE_OF_RATES = 0.4  # of a time limit, for the deployment whose pipelines count with their rates
_SECONDS_ALONE = 10.0  # for the best single pipeline
_MOMENT = 0.5  # for simple pipelines
_SOON_LISTED = 10_000  # mixes
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
        If nothing fits, or no deployment serves the load, the status is "infeasible" and `reason`
        says by how much.

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
    again: Callable[..., Deployment]
    unpacked: bool = False  # the best by numbers did not fit into the nodes

    def run(self, loads: Sequence[Workload]) -> Deployment:
        """Search by rates, then by attainable rates if these are less."""
        whole, report, progress = self.deadline, self.on_progress, []

        def tell(moment: Progress) -> None:
            progress.append(moment)
            if report is not None:
                report(moment)

        if whole.limited and self._few_mixes(gpu_classes(self.problem.cluster).count):
            self.deadline = whole.within(_SHARE_OF_RATES * whole.left)
        # what incumbents attain is not known yet
        self.on_progress = lambda moment: tell(replace(moment, incumbent=None))
        found = self._by_rates(loads)
        self.deadline, self.on_progress = whole, tell
        if found.status == "infeasible" and self.at_least:
            return self._out_of_reach(found)
        if not all(attains(self.problem, pipeline) for pipeline in found.pipelines):
            found = self._by_attainable(loads, found)
        elif found.value is not None:
            tell(Progress(whole.spent, found.value, found.bound, found.size.get("rounds", 0)))
        details = {**found.details, "progress": tuple(progress)}
        return replace(found, seconds=whole.spent, details=details)

    def _few_mixes(self, counts: np.ndarray, most: int = MOST_MIXES) -> bool:
        """Whether all mixes of these GPUs can be listed."""
        return Mixes(counts.tolist()).total <= most

    def _out_of_reach(self, found: Deployment) -> Deployment:
        """A load beyond all rates, with the most that can be attained as the reason."""
        left = self.deadline.left if self.deadline.limited else None
        most = self.again(self.problem, time_limit=left, stop=self.deadline.stop)
        if most.throughput is None:
            return found
        bound = math.inf if most.bound is None else most.bound
        reason = _too_much(self.at_least, most.throughput, bound)
        return replace(found, reason=reason, seconds=self.deadline.spent)

    def _by_rates(self, loads: Sequence[Workload]) -> Deployment:
        """The best deployment whose pipelines count with their rates; with nodes apart where they have to be."""
        try:
            offers = offers_of(self.problem, loads, self.deadline)
        except Ended as end:
            return self._simple(end.reason, loads[0])
        if not offers:
            return self._answer((), None, None, why_no_layer_fits(self.problem), none_exists=True)
        found = self._of(offers)
        if not self.unpacked:
            return found
        try:
            offers = offers_of(self.problem, loads, self.deadline, apart=True)
            if not self._few_mixes(offers[0].rates.classes.count, _MOST_APART):
                return found
        except (Ended, TooLarge):
            return found
        apart = self._of(offers)
        proven = apart.status in ("optimal", "infeasible")
        return apart if proven or self._no_worse(apart, found) else found

    def _by_attainable(self, loads: Sequence[Workload], by_rates: Deployment) -> Deployment:
        """The same where pipelines count with what they attain; the better of both if neither is proven."""
        found, offers, by_rates = None, [], self._suited(loads, by_rates)
        try:
            self.deadline.check()
            for load in loads:
                problem = replace(self.problem, workload=load)
                offers += offers_attaining(problem, first_ranges(problem), self.deadline)
            if offers and self._few_mixes(offers[0].rates.classes.count):
                found = self._of(offers, by_rates)
        except (Ended, TooLarge):
            pass
        if found is not None and found.status in ("optimal", "infeasible"):
            return found
        known, best = [by_rates] if found is None else [by_rates, found], by_rates
        if (by_rates.throughput or 0.0) < self.at_least * (1 - REACHED):
            best = replace(by_rates, pipelines=(), throughput=None)
        if found is not None and found.pipelines and not self._no_worse(best, found):
            best = found
        ended = known[-1].stopped_by or "list limit"
        if best.value is None:
            simple = self._simple(ended, loads[0])
            best = best if simple.value is None else simple
        bounds = [d.bound for d in known if d.bound is not None]
        bound = (max if self.at_least else min)(bounds) if bounds else None
        status, bound = self._status(best.value, bound)
        reason = "" if found is None else found.reason
        if best.value is None:
            reason = best.reason
        return replace(
            best,
            status=status,
            bound=bound,
            reason="" if status == "optimal" else reason,
            stopped_by=None if status == "optimal" else ended,
            details=known[-1].details,
        )

    def _suited(self, loads: Sequence[Workload], found: Deployment) -> Deployment:
        """The same placements, each with the workload with which it attains most.

        By rates the largest batch of which memory holds one is best, and that one may attain little.
        """
        if len(loads) == 1 or not found.pipelines:
            return found
        pipelines = tuple(_best_load(self.problem, loads, p) for p in found.pipelines)
        return replace(found, pipelines=pipelines, throughput=_sum_of(pipelines))

    def _no_worse(self, one: Deployment, other: Deployment) -> bool:
        if one.value is None or other.value is None:
            return one.value is not None
        return one.value <= other.value if self.at_least else one.value >= other.value

    def _of(self, offers: list[Offer], known: Deployment | None = None) -> Deployment:
        """The best of pipelines with these workloads."""
        pricings = [_pricing(offer) for offer in offers]
        classes = offers[0].rates.classes
        price = [classes.gpu(a).usd_per_hour or 0.0 for a in range(len(classes))]
        demand = Demand(classes.count, 0.0, np.array(price))
        report = None if self.at_least else self.on_progress
        most = Generation(pricings, demand, self.deadline, report, self.gap)
        most.repairs = not self._few_mixes(classes.count, _SOON_LISTED)
        most.halve = partial(_halved, offers, pricings, self.deadline)
        if known is not None:
            _keep_all(most, offers, known)
        if not self.at_least:
            return self._searched(most, offers)
        return self._cheapest(most, offers)

    def _searched(
        self, generation: Generation, offers: list[Offer], ended: str | None = None
    ) -> Deployment:
        """Generate columns, close the gap, and say what is proven."""
        proven = False
        try:
            generation.run()
            if generation.open > self.gap or generation.best is None:
                _add_best_alone(generation, offers)
                proven = close_gap(generation, offers)
        except Ended as end:
            ended = end.reason
        return self._of_columns(offers, generation, ended, proven)

    def _cheapest(self, most: Generation, offers: list[Offer]) -> Deployment:
        """The least price of the load, once it is known whether it can be served.

        Simple pipelines may say so, or the greatest throughput.
        """
        ended = None
        demand = replace(most.demand, load=self.at_least)
        known = Generation(most.pricings, demand, self.deadline)
        _add_incumbents(known, offers)
        most.columns += known.columns
        if known.best is not None:
            most.best = known.best
        else:
            try:
                most.run()
                if most.best is None or most.demand.value(most.best) < self.at_least:
                    most.settled = close_gap(most, offers)
            except Ended as end:
                ended = end.reason
            greatest = 0.0 if most.best is None else most.demand.value(most.best)
            if greatest < self.at_least * (1 - REACHED):
                bound = greatest if most.settled else np.inf if most.bound is None else most.bound
                if bound >= self.at_least * (1 - REACHED):
                    return self._simple(ended or "list limit", offers[0].problem.workload)
                reason = _too_much(self.at_least, greatest, bound)
                return self._answer((), None, None, reason, none_exists=True)
        least = Generation(most.pricings, demand, self.deadline, self.on_progress, self.gap)
        least.columns, least.beyond = list(most.columns), list(most.beyond)
        least.halve, least.live, least.repairs = most.halve, list(most.live), most.repairs
        least.keep(given(most.best))
        return self._searched(least, offers, ended)

    def _of_columns(
        self, offers: Sequence[Offer], generation: Generation, ended: str | None, proven: bool
    ) -> Deployment:
        """From the best columns to pipelines, and what is known of them."""
        if generation.best is None:
            generation.round_off()
        chosen = generation.best or []
        pipelines = pipelines_of(offers, chosen)
        counted = sum(c.rate for c in chosen)
        self.unpacked = self._rate_of(offers, pipelines) < counted * (1 - ONE_ANSWER)
        if self.unpacked and _sum_of(pipelines) < self.at_least * (1 - REACHED):
            pipelines = ()
        if pipelines:
            reason, bound = "", generation.value if proven else generation.bound
            if ended is None:
                within = generation.open <= self.gap
                ended = "gap limit" if within else "list limit"
                reason = "" if within else _why_open(self.unpacked)
            return self._answer(pipelines, bound, ended, reason, offers, generation)
        if ended:
            return self._simple(ended, offers[0].problem.workload)
        none = proven and not self.unpacked
        reason = _why_none(self.problem, offers) if none else ""
        return self._answer((), generation.bound, None, reason, offers, generation, none)

    def _simple(self, ended: str, load: Workload) -> Deployment:
        """Ended before any column was there: one pipeline at most, which a moment finds."""
        problem = replace(self.problem, workload=load)
        value = self._dollars if self.at_least else _most_attaining
        placement = stand_in(problem, self.at_least, value, lambda found: found.attainable)
        pipelines: tuple[Pipeline, ...] = ()
        if placement is not None:
            pipeline = pipeline_of(problem, (placement,))
            if pipeline.throughput >= self.at_least:
                pipelines = (pipeline,)
        reason = "" if pipelines else "the rates of stages were still being listed"
        return self._answer(pipelines, None, ended, reason)

    def _answer(
        self,
        pipelines: tuple[Pipeline, ...],
        bound: float | None,
        ended: str | None,
        reason: str,
        offers: Sequence[Offer] = (),
        generation: Generation | None = None,
        none_exists: bool = False,
    ) -> Deployment:
        """What is known at the end: the one place where it gets its status."""
        if none_exists:
            status, bound = "infeasible", None
        else:
            status, bound = self._status(self._value(pipelines) if pipelines else None, bound)
        if status == "optimal":
            reason = ""
        return Deployment(
            problem=self.problem,
            status=status,
            pipelines=pipelines,
            throughput=_sum_of(pipelines) if pipelines else None,
            bound=bound,
            at_least=self.at_least,
            seconds=self.deadline.spent,
            size=_size(offers, generation),
            solver="" if generation is None else choice.solver_version(),
            reason=self.deadline.remark(reason),
            stopped_by=None if status in ("optimal", "infeasible") else ended,
            details={"dual_prices": _dual_prices(offers, generation)},
            again=self.again,
        )

    def _rate_of(self, offers: Sequence[Offer], pipelines: Sequence[Pipeline]) -> float:
        """What these pipelines count with: their rates, or what they attain."""
        if offers[0].numbers is not None:
            return _sum_of(pipelines)
        return math.fsum(_evaluated(self.problem, p).rate * p.count for p in pipelines)

    def _dollars(self, placement: Placement, evaluation: Evaluation) -> float:
        return price_per_hour(self.problem, placement) or math.inf

    def _value(self, pipelines: Sequence[Pipeline]) -> float:
        if not self.at_least:
            return _sum_of(pipelines)
        gpus = self.problem.cluster.gpus
        used = (gpus[g] for p in pipelines for r in p.replicas for g in r.gpus)
        return math.fsum(gpu.usd_per_hour or 0.0 for gpu in used)

    def _status(self, value: float | None, bound: float | None) -> tuple[str, float | None]:
        if self.at_least:
            return status_and_least(value, bound)
        if value and bound is not None and value < bound <= value * (1 + ONE_ANSWER):
            return "optimal", value
        return status_and_bound(value, bound)


def _sum_of(pipelines: Sequence[Pipeline]) -> float:
    return math.fsum(p.throughput * p.count for p in pipelines)


def _most_attaining(placement: Placement, evaluation: Evaluation) -> float:
    return -evaluation.attainable


def _evaluated(problem: Problem, pipeline: Pipeline) -> Evaluation:
    return evaluate(replace(problem, workload=pipeline.workload), pipeline.placement)


def _best_load(problem: Problem, loads: Sequence[Workload], pipeline: Pipeline) -> Pipeline:
    """The pipeline with the workload with which all its replicas attain most."""
    best = pipeline
    for load in loads:
        of_load = replace(problem, workload=load)
        try:
            other = pipeline_of(of_load, pipeline.replicas)
            if other.throughput > best.throughput:
                rates = {evaluate(of_load, replica).attainable for replica in pipeline.replicas}
                best = other if len(rates) == 1 else best
        except InvalidPlacement:
            continue
    return best


def attains(problem: Problem, pipeline: Pipeline) -> bool:
    """Whether a pipeline attains the rate that it has with memory for one microbatch in flight."""
    number = 1 if problem.workload.in_flight is None else problem.workload.in_flight
    counted = replace(problem, workload=pipeline.workload).with_in_flight(number)
    rate = evaluate(counted, pipeline.placement).rate
    return pipeline.throughput >= rate * (1 - ONE_ANSWER)


def _pricing(offer: Offer) -> Pricing:
    return Pricing(offer) if offer.numbers is None else AttainablePricing(offer)


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


# Pipelines that are known without a price. Column generation asks for pipelines that are cheap at its prices.
# Where longer pipelines use every GPU better, or links bind, it may never see the best single one.


def _add_best_alone(generation: Generation, offers: Sequence[Offer]) -> None:
    """Search for the best single pipeline of each workload for a while; what is found becomes a column.

    Raises
    ------
    Ended
        The deadline was first.
    """
    workloads = _by_workload(offers)
    for i in workloads.values():
        offer = offers[i]
        deadline = generation.deadline.within(_SECONDS_ALONE / len(workloads))
        rates = rates_in_time(offer.problem, generation.deadline)
        best = Search(Subproblems(rates, deadline)).run().best
        if best is None:
            continue
        if offer.numbers is not None:
            pairs = Pairs(offer.problem, deadline)
            pairs.keep(best)
            pairs.greatest()
            best = given(pairs.best)
        _keep_alone(generation, offer, i, best, evaluate(offer.problem, best))


def _add_incumbents(generation: Generation, offers: Sequence[Offer]) -> None:
    """Begin with simple pipelines, and the best deployment of these."""
    within = generation.deadline.within(_MOMENT)
    for i in _by_workload(offers).values():
        for placement, evaluation in incumbents(offers[i].problem).items():
            _keep_alone(generation, offers[i], i, placement, evaluation)
        if within.reason is not None:
            break
    generation.round_off()


def _by_workload(offers: Sequence[Offer]) -> dict[Workload, int]:
    """An offer of each workload, whatever its numbers in flight."""
    return {offer.problem.workload: i for i, offer in enumerate(offers)}


def _keep_alone(
    generation: Generation, offer: Offer, index: int, placement: Placement, evaluation: Evaluation
) -> None:
    """A pipeline becomes a column, and the best deployment if it is better alone."""
    rate = evaluation.rate if offer.numbers is None else evaluation.attainable
    column = _column(generation.pricings[index], index, placement, rate)
    generation.columns.append(column)
    generation.keep([column])


def _keep_all(generation: Generation, offers: Sequence[Offer], known: Deployment) -> None:
    """Begin with the pipelines of a deployment, as columns with what they attain."""
    chosen = []
    for pipeline in known.pipelines:
        load = replace(pipeline.workload, in_flight=known.problem.workload.in_flight)
        number = next(i for i, offer in enumerate(offers) if offer.problem.workload == load)
        for replica in pipeline.replicas:
            pricing = generation.pricings[number]
            chosen.append(_column(pricing, number, replica, pipeline.throughput))
    if chosen:
        generation.columns += dict.fromkeys(chosen)
        generation.keep(chosen)


def _column(pricing: Pricing, index: int, placement: Placement, rate: float) -> Column:
    """A placement as a column: its layers and GPUs by class."""
    stages = pricing.stages_of(placement)
    used = tuple(np.sum([gpus for _, gpus in stages], axis=0).tolist())
    return Column(rate, used, index, stages=stages)


# What is said beside the pipelines


def _dual_prices(offers: Sequence[Offer], generation: Generation | None) -> dict[str, float]:
    """What one more GPU of each type brings by the best bound; of several classes of a type the most."""
    if generation is None or generation.prices is None or generation.demand.load:
        return {}
    out: dict[str, float] = {}
    classes = offers[0].rates.classes
    for a, price in enumerate(generation.prices.per_gpu.tolist()):
        kind = classes.gpu(a).type
        out[kind] = max(price, out.get(kind, 0.0))
    return out


def _size(offers: Sequence[Offer], generation: Generation | None) -> dict[str, int]:
    """Classes of GPUs, columns and rounds."""
    if generation is None:
        return {}
    columns = len(generation.columns) + len(generation.beyond)
    classes = len(offers[0].rates.classes)
    return {"classes": classes, "columns": columns, "rounds": generation.rounds}


def _why_open(unpacked: bool) -> str:
    """Why a deployment is not proven best, where nothing ended it early."""
    if unpacked:
        return "the bound leaves out that stages must be packed into nodes"
    return "there are too many ways to divide the GPUs to list what is left"


def _why_none(problem: Problem, offers: Sequence[Offer]) -> str:
    """The reason where stages fit but no pipeline does."""
    rates = offers[0].rates
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


# From columns back to pipelines: the GPU ids of every stage, no GPU in two. Classes that are families
# (`workloads`) have GPUs in several nodes. Larger stages choose first, each a node that it leaves with as
# few free GPUs as possible; only where no node has enough does a stage take GPUs of several nodes.


def pipelines_of(offers: Sequence[Offer], chosen: Sequence[Column]) -> tuple[Pipeline, ...]:
    """Each column as often as it is chosen; the fastest pipelines first, at the rates that they really have.

    Where stages cannot be packed into nodes, fewer of them, or slower ones.

    Raises
    ------
    PipelabError
        There are not enough GPUs.
    """
    if not chosen:
        return ()
    columns = sorted(chosen, key=lambda c: (-c.rate, c.gpus))
    stages = {c: c.stages or _stages_of(offers[c.offer], c) for c in dict.fromkeys(columns)}
    parts = [(i, s) for i, c in enumerate(columns) for s in range(len(stages[c]))]
    largest_first = sorted(parts, key=lambda at: -max(stages[columns[at[0]]][at[1]][1]))
    free = _Free(offers[0])
    ids = {}
    for i, s in largest_first:
        ids[i, s] = free.taken(stages[columns[i]][s][1])
    replicas: dict[tuple[Column, float], list[Placement]] = defaultdict(list)
    for i, column in enumerate(columns):
        placement = Placement.of(
            (layers, ids[i, s]) for s, (layers, _) in enumerate(stages[column])
        )
        try:
            rate = evaluate(offers[column.offer].problem, placement).attainable
        except InvalidPlacement:
            continue  # a stage over two nodes lacks the memory that it has within one
        replicas[column, rate].append(placement)
    found = [
        pipeline_of(offers[column.offer].problem, tuple(own))
        for (column, _), own in replicas.items()
    ]
    return tuple(sorted(found, key=lambda p: -p.throughput))


def pipeline_of(problem: Problem, replicas: tuple[Placement, ...]) -> Pipeline:
    """Replicas of one attainable rate, with the number in flight that it takes."""
    found = evaluate(problem, replicas[0])
    load = replace(problem.workload, in_flight=found.in_flight)
    return Pipeline(replicas, load, found.attainable)


class _Free:
    """The free GPUs of each class, node by node."""

    def __init__(self, offer: Offer) -> None:
        gpus = offer.problem.cluster.gpus
        self.nodes: list[dict[object, list[int]]] = []
        for members in offer.rates.classes.members:
            by_node: dict[object, list[int]] = defaultdict(list)
            for g in members.tolist()[::-1]:
                by_node[gpus[g].node or "none"].append(g)
            self.nodes.append(by_node)

    def taken(self, gpus: Sequence[int]) -> list[int]:
        """So many of each class, of one node where one has enough."""
        return [g for a, number in enumerate(gpus) if number for g in self._of_class(a, number)]

    def _of_class(self, a: int, number: int) -> list[int]:
        nodes = self.nodes[a]
        enough = [node for node, own in nodes.items() if len(own) >= number]
        if enough:
            own = nodes[min(enough, key=lambda node: len(nodes[node]))]
            return [own.pop() for _ in range(number)]
        out: list[int] = []
        while len(out) < number:
            own = max(nodes.values(), key=len)
            if not own:
                raise PipelabError("a deployment was found that uses more GPUs than there are")
            out.append(own.pop())
        return out


def _stages_of(offer: Offer, column: Column) -> Sequence[StageOf]:
    """The stages of a column that says only which rate its GPUs reach."""
    mixes = Mixes(column.gpus)
    attaining = offer.numbers is not None
    listed = LeastPasses(offer, mixes) if attaining else ReachableMixes(offer.rates, mixes)
    return listed.stages(column.index, column.gpus)
