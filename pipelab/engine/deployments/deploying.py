"""deploy(problem): several pipelines at once, proven best among all deployments.

`deploy` checks what is asked and makes one problem for each workload that a pipeline may have: a batch
size, a phase where requests are served, a way to start an engine. `_Deploying.run` answers in four steps:

1. `solve_for_attainable` finds the best single pipeline. Whatever ends the search later, the answer yields no less.
2. `offers` makes an *offer* of each problem: its stages by classes of GPUs and ranges of numbers in flight. Identical
   nodes are taken together as long as no link binds.
3. The work of stages bounds all deployments at once (`master_program`). Simple pipelines are columns, and where two do
   not fit, the search is for one. Else `column_generation` finds pipelines and, in each round, a bound from prices of
   GPUs which no pipeline's rate exceeds; `parts` adds the best on what others leave, and where mixes of GPUs are few,
   `mix_bounds` bounds each. If a gap remains, `closing` lists every pipeline that a better deployment could have, and
   the whole program over these proves the best.
4. GPU ids are given to the stages, and `evaluate` recomputes every pipeline. If the stages cannot be packed into nodes,
   steps 2 and 3 are done again with nodes apart. The status is "optimal" only if the bound meets the recomputed value.

With a load there are two goals, one after the other: first enough throughput, which also says whether the load can be
served, and then the least price.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, MinLen
from pydantic import BeforeValidator

from pipelab import fields
from pipelab.costs import refuse_transfers
from pipelab.display import counted, listed
from pipelab.engine import arguments
from pipelab.engine.answers import Result
from pipelab.engine.arguments import refuse_training
from pipelab.engine.deadline import NEVER, Deadline, Ended, apart, deadline_of, made_in_time
from pipelab.engine.deployments.closing import MOST_LABELS, are_few_mixes
from pipelab.engine.deployments.column_generation import Generation
from pipelab.engine.deployments.master_program import DeploymentGoal, PipelineColumn
from pipelab.engine.deployments.mix_bounds import MixSearch
from pipelab.engine.deployments.mix_tables import MixTables
from pipelab.engine.deployments.offers import first_offers
from pipelab.engine.deployments.parts import PartsSearch, column_of, renumbered
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.deployments.result import Deployment, Pipeline, requests_served
from pipelab.engine.deployments.timing import pipeline_of
from pipelab.engine.deployments.unmet_time_limits import why_unkept
from pipelab.engine.deployments.within_bands import deploy_at_all_speeds, deploy_for_least_regret
from pipelab.engine.infeasible import why_no_layer_fits, why_too_few
from pipelab.engine.methods.attainable_rate import solve_for_attainable
from pipelab.engine.methods.batches import best_answer, solved_in_turn
from pipelab.engine.methods.first_placements import simple_placements
from pipelab.engine.methods.least_regret import speed_bands
from pipelab.engine.objective_and_bound import status_and_bound, status_and_least
from pipelab.engine.prices import price_per_hour, refuse_unpriced
from pipelab.engine.runs_on import as_engine_fills, identical_hosts, starts_of, why_not_here
from pipelab.engine.solvers import choice
from pipelab.engine.solving import method_of
from pipelab.engine.stage_table import FreeGPUs
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER, REACHED, SOLVER
from pipelab.errors import InvalidValue, TooLarge
from pipelab.evaluation import Evaluation, evaluate
from pipelab.hardware.engine_rules import rules_of
from pipelab.placement import Placement
from pipelab.problem import Phase, Problem
from pipelab.requests import Limits, for_phase, request_tokens

_RATIO_FOR_A_FLOW = 1.1  # of what GPUs let pass to a deployment: from here on a flow is named
_SIMPLE_COLUMNS = 24  # of each pool
_MORE_RATE_FACTOR = 1.1  # which a larger batch has to bring
_ALONE_SECONDS = 5.0  # at most, for the best single pipelines of all workloads; and for those of parts of the GPUs
_SMALL_OPEN_SHARE = 0.02  # mixes need no bound
_MOST_PARTS, _PARTS_BEFORE_MIXES = 8, 2  # of which the best pipelines are found
_SOME_LABELS = (
    1_000  # of lists where paths want more GPUs than there are, before pricing that counts them
)
_ALONE_TIME_SHARE = 0.4  # at most, of the time limit
_LEAST_LOAD = 1e-9  # tokens/s or requests/s; a rate over less is too large a number
_REQUEST_BATCHES = tuple(2**i for i in range(9))  # batch sizes where requests are served

Batches = Annotated[
    Annotated[tuple[fields.Count, ...], MinLen(1)] | None,
    BeforeValidator(lambda sizes: tuple(sizes) if fields.is_list(sizes) else sizes),
    fields.described("batch sizes, such as [4, 8, 16]"),
]
Milliseconds = Annotated[
    Annotated[fields.Real, Gt(0)] | None, fields.described("milliseconds, above 0, or None")
]


@fields.checked_arguments
def deploy(
    problem: arguments.AskedProblem,
    at_least: arguments.LeastThroughput = 0.0,
    *,
    batches: Batches = None,
    requests_per_s: Annotated[
        fields.Positive | None, fields.described("a number above 0, or None")
    ] = None,
    ttft_ms: Milliseconds = None,
    tpot_ms: Milliseconds = None,
    pools: fields.Flag = False,
    single: fields.Flag = False,
    time_limit: arguments.TimeLimit = None,
    gap: arguments.Gap = 0.0,
    stop: arguments.Stop = None,
    on_progress: arguments.OnProgress = None,
    runs_on: str | None = None,
    within: Any = None,
) -> Deployment:
    """Find the best set of pipelines on disjoint GPUs: the greatest throughput, or the least price for a load.

    `solve` places the model once; here it may be placed as often as there are GPUs for it. With
    `requests_per_s`, a limit or `pools` it counts requests, each with a prompt of `sequence_length` and an
    answer of `output_tokens`: as many as possible per second within the limits, or the given rate at the
    least price.

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
        problem's own, and for requests 1, 2, 4, … 256.
    requests_per_s : float, optional
        To be served for the fewest dollars per hour.
    ttft_ms, tpot_ms : float, optional
        Limits on the time to the first token and on that from one token to the next, in ms
        (`pipelab.requests`). TPOT is limited at the last token of an answer too. `math.inf` is no limit.
    pools : bool
        True: each pipeline is for prompts or for answers, and requests/s are those of the pool that
        serves fewer. False: each does both (a workload of phase "mixed"), or its one phase.
    single : bool
        True: one pipeline alone, the best of all within the limits.
    time_limit : float, optional
        Seconds. The best deployment found by then is kept, with a proven bound.
    gap : float
        Stop once the best is known to be at most this much better, as a share.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True (`solve`): `nodes` are rounds, and nodes of what was solved on the
        way. The best deployment is kept. Ctrl-C does the same.
    on_progress : function of Progress, optional
        Called after every round.
    runs_on : str, optional
        An engine of `settings`: only pipelines that it can start. Its `cost_of_rules()` says what that costs.
    within : float, mapping of GPU type to float, or "band", optional
        How far off the predicted speed of each type may be, as for `solve`. With a load the cheapest deployment is
        sought that serves it whichever speeds are true; all that is said of it is for the slowest of these. Without
        one that which keeps the largest share of the best in the worst scenario, as predicted or at the ends of bands.

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
    UnknownName
        There is no such engine.
    NotApplicable
        The engine does not keep keys and values in the model's precision.

    Notes
    -----
    Pipelines are independent: requests are shared out so that all are busy. Limits hold where no
    request waits; `pl.serve` says what they are at the 99th percentile of requests that come at random.

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
    limits = None
    if pools or any(x is not None for x in (requests_per_s, ttft_ms, tpot_ms)):
        limits = Limits(ttft_ms or math.inf, tpot_ms or math.inf)
        _refuse_requests(problem, at_least, pools)
    if single and (at_least or requests_per_s or pools):
        expected = "expected False beside a load or pools, which may take several pipelines"
        raise InvalidValue("deploy", [("single", single, expected)])
    for name, least in (("at_least", at_least), ("requests_per_s", requests_per_s)):
        if least and least < _LEAST_LOAD:
            raise InvalidValue("deploy", [(name, least, f"expected {_LEAST_LOAD:g} or more")])
    if at_least or requests_per_s:
        refuse_unpriced(problem, "deploy")
    if limits is None:
        sizes = dict.fromkeys(batches or (problem.workload.batch_size,))
        loads = [replace(problem.workload, batch_size=b) for b in sizes]
        problems = [replace(problem, workload=load) for load in loads]
        first, pool_tokens = problems[0], {"": 1.0}
        again = partial(deploy, batches=batches, single=single, gap=gap)
    else:
        sizes = dict.fromkeys(batches or _REQUEST_BATCHES)
        phases: Sequence[Phase] = ("prefill", "decode") if pools else (problem.workload.phase,)
        problems = [for_phase(problem, phase, b) for phase in phases for b in sizes]
        first = problem
        pool_tokens = {p.workload.phase: float(request_tokens(p)) for p in problems}
        options: dict[str, Any] = {"batches": batches, "pools": pools, "single": single, "gap": gap}
        again = partial(_deploy_again, limits=limits, **options)
    load, asked = requests_per_s or at_least, again
    if within is not None:
        bands = speed_bands(problem, within, "deploy")

        def ask(one: Problem, **ends: Any) -> Deployment:
            return again(one, load, on_progress=on_progress, runs_on=runs_on, **ends)

        find = deploy_at_all_speeds if load else deploy_for_least_regret
        return find(problem, bands, ask, time_limit=time_limit, stop=stop)
    by_host = limits is None and not load and not single
    if runs_on is not None and by_host and rules_of(runs_on, "runs_on").one_host:
        hosts = identical_hosts(problem.cluster)
        if sum(map(len, hosts)) > 1:
            with deadline_of(time_limit, stop) as deadline:
                asked = partial(again, runs_on=runs_on)
                answer = _deploy_each_host(problem, runs_on, hosts, asked, deadline, on_progress)
            return replace(answer, again=asked, any_engine=partial(again, problem))
    if runs_on is not None:
        started = (starts_of(p, runs_on, {}, every_host=True) for p in problems)
        problems = [start.problem for starts in started for start in starts]
        shown, asked = as_engine_fills(problem, runs_on), partial(again, runs_on=runs_on)
        first = problems[0] if problems else shown
    with deadline_of(time_limit, stop) as deadline:
        run = _Deploying(
            problem=first,
            problems=problems,
            at_least=load,
            gap=gap,
            on_progress=on_progress,
            deadline=deadline,
            again=asked,
            limits=limits,
            pools=pool_tokens,
            single=single,
        )
        if runs_on is None:
            return run.run()
        answer = run.run() if problems else run.none(why_not_here(problem, runs_on))
    free = partial(again, problem, load)
    return replace(answer, problem=shown, runs_on=runs_on, any_engine=free)


def _refuse_requests(problem: Problem, at_least: float, pools: bool) -> None:
    """Refuse what cannot be asked of requests."""
    load = problem.workload
    if at_least:
        expected = "expected none beside requests: give requests_per_s"
        raise InvalidValue("deploy", [("at_least", at_least, expected)])
    if load.output_tokens is None and (pools or load.phase != "prefill"):
        expected = "expected how many tokens the answer of a request has, for requests_per_s, limits and pools"
        raise InvalidValue("deploy", [("workload.output_tokens", None, expected)])
    if len(problem.cluster) > 1:
        refuse_transfers("deploy", problem.costs.link_units)


def _deploy_again(problem: Problem, load: float, *, limits: Limits, **options: Any) -> Deployment:
    """Deploy another problem for a rate of requests, with the limits and options of the first call."""
    return deploy(problem, requests_per_s=load or None, **limits._asdict(), **options)


def _deploy_each_host(
    problem: Problem,
    runs_on: str,
    hosts: list[list[list[int]]],
    again: Callable[..., Deployment],
    deadline: Deadline,
    on_progress: Callable | None,
) -> Deployment:
    """Find the best deployment of one host of each kind, for engines whose pipelines are on one host each.

    Parameters
    ----------
    hosts : list of list of list of int
        For each kind of host, the GPU ids of every host of that kind.
    again : function of a problem, `time_limit` and `stop`
        Finds the best deployment of one host.
    """
    parts, pipelines, bound = list[Deployment](), list[Pipeline](), 0.0
    for i, identical in enumerate(hosts):
        left = deadline.share(len(hosts) - i)
        one_host = replace(problem, cluster=problem.cluster.only(identical[0]))
        part = again(one_host, time_limit=left, stop=apart(deadline.stop))
        parts.append(part)
        if part.status != "infeasible":
            bound += len(identical) * (math.inf if part.bound is None else part.bound)
        for p in part.pipelines:
            placed = (renumbered(r, ids) for ids in identical for r in p.replicas)
            pipelines.append(replace(p, replicas=tuple(placed)))
        deadline.tell(on_progress, incumbent=sum_of(pipelines), nodes=i + 1)
    value = sum_of(pipelines) if pipelines else None
    status, most = status_and_bound(value, bound if math.isfinite(bound) else None)
    if all(part.status == "infeasible" for part in parts):
        status, most = "infeasible", None
    elif all(part.status in ("optimal", "infeasible") for part in parts):
        status, most = "optimal", value
    open_ = next((part for part in parts if part.stopped_by is not None), None)
    return replace(
        parts[0],
        problem=as_engine_fills(problem, runs_on),
        status=status,
        pipelines=tuple(sorted(pipelines, key=lambda p: -p.throughput)),
        throughput=value,
        bound=most,
        seconds=deadline.spent,
        size={
            "hosts": sum(map(len, hosts)),
            "columns": sum(p.size.get("columns", 0) for p in parts),
        },
        reason="" if status == "optimal" else (open_ or parts[0]).reason,
        stopped_by=None if open_ is None else open_.stopped_by,
        details={},
    )


@dataclass
class _Deploying:
    """One call of `deploy`: what was asked, and how it is answered."""

    problem: Problem  # as it was given; with the first workload where tokens count
    problems: Sequence[Problem]  # one for each workload, and each way to start an engine
    at_least: float  # tokens/s, or requests/s
    gap: float
    on_progress: Callable | None
    deadline: Deadline
    again: Callable[..., Deployment]
    limits: Limits | None  # where requests are served
    pools: Mapping[str, float]  # see `DeploymentGoal.pools`
    single: bool
    alone: dict[Problem, Placement] = field(default_factory=dict)  # the best single pipelines
    alone_bound: float = math.inf  # no pipeline attains more
    most_rate: dict[Problem, float] = field(
        default_factory=dict
    )  # nor one of a workload more than this

    def run(self) -> Deployment:
        """Find the best deployment, with identical nodes taken together if that is enough.

        Nodes are kept apart in a second search if the best of the first cannot be packed into them; or if it is not
        proven, as links between nodes are slower than inside, and there are few mixes. Within limits on time they are
        kept apart at once unless they are too many, since hops inside nodes and between them differ.
        """
        self._find_best_alone()
        try:
            offers = self._make_offers(keep_nodes_apart=self.limits is not None)
        except Ended as end:
            return self._simple(end.reason, "the rates of stages were still being listed")
        if not offers:
            return self.none(why_no_layer_fits(self.problem))
        able = self._keep_able(offers)
        if not able:
            return self.none(self._why_none(offers))
        try:
            merged, packed = self._best(able)
        except TooLarge as error:
            if not able[0].merged:
                raise
            merged, packed = self._simple(None, str(error)), False
        left_open = able[0].merged and merged.stopped_by == "list limit"
        nodes = Counter((gpu.type, gpu.node) for gpu in self.problem.cluster.gpus)
        if packed and not (left_open and are_few_mixes(nodes.values())):
            return merged
        try:
            offers = first_offers(
                self.problems, self.deadline, keep_nodes_apart=True, limits=self.limits
            )
            able = self._keep_able(offers)
            separate = self._best(able)[0] if able else self.none(self._why_none(offers))
        except (Ended, TooLarge):
            return merged
        proven = separate.status in ("optimal", "infeasible")
        return separate if proven or self._is_no_worse(separate, merged) else merged

    def _keep_able(self, offers: list[Offer]) -> list[Offer]:
        """Keep the offers with which the GPUs can hold all layers; none if a pool has none."""
        able = [offer for offer in offers if len(offer.stage_rates)]
        if self.most_rate:
            able = [replace(o, most_rate=self.most_rate.get(o.problem, math.inf)) for o in able]
        return able if {offer.pool for offer in able} == set(self.pools) else []

    def _make_offers(self, keep_nodes_apart: bool) -> list[Offer]:
        """Make the offers to begin with; with nodes apart only if they are not too many."""
        make = partial(first_offers, self.problems, limits=self.limits)
        try:
            return made_in_time(partial(make, keep_nodes_apart=keep_nodes_apart), self.deadline)
        except TooLarge:
            if not keep_nodes_apart:
                raise
        return made_in_time(make, self.deadline)

    def _is_no_worse(self, one: Deployment, other: Deployment) -> bool:
        if one.value is None or other.value is None:
            return one.value is not None
        return one.value <= other.value if self.at_least else one.value >= other.value

    def _best(self, offers: list[Offer]) -> tuple[Deployment, bool]:
        """Find the best deployment of these offers, and whether its stages could be packed into nodes."""
        classes = offers[0].table.classes
        price = [classes.gpu(a).usd_per_hour or 0.0 for a in range(len(classes))]
        goal = DeploymentGoal(
            counts=classes.count, load=0.0, price=np.array(price), pools=self.pools
        )
        report = None if self.at_least else self.on_progress
        enough = self.at_least or math.inf
        until = self.deadline.apart() if self.at_least else self.deadline
        most = Generation(
            offers=offers,
            goal=goal,
            deadline=until,
            on_progress=report,
            gap=self.gap,
            enough=enough,
        )
        one = not self.at_least and len(self.pools) == 1 and most.most_pipelines < 2
        if self.single or one:
            return self._answer(most, self._search_alone(most))
        if not self.at_least:
            return self._answer(most, self._search(most))
        self._begin_with_simple(most)
        ended = None if most.finished else self._search(most)
        if (most.value or 0.0) < self.at_least * (1 - REACHED):
            return self._answer_unserved(most, ended), True
        goal = replace(goal, load=self.at_least)
        least = Generation(
            offers=most.offers,
            goal=goal,
            deadline=self.deadline,
            on_progress=self.on_progress,
            gap=self.gap,
        )
        for column in most.columns:
            least.add_column(column)
        for chosen in ([column] for column in least.pipelines):
            least.keep_if_better(chosen)
        least.round_relaxation()
        least.keep_if_better(fields.given(most.best))
        return self._answer(least, ended or self._search(least))

    def _search(self, generation: Generation) -> str | None:
        """Generate columns and close the gap; return what ended the search before that."""
        try:
            self._begin_with_simple(generation)
            few = False
            if self.limits is None:  # the best pipeline on a part need not keep them
                parts = PartsSearch(generation=generation, seconds=self._seconds_alone)
                generation.generate(halving=False)
                few = are_few_mixes(generation.goal.counts.tolist())
                few = few and generation.open > max(_SMALL_OPEN_SHARE, self.gap)
                if few:
                    parts.add_pipelines(_PARTS_BEFORE_MIXES)
                    few = MixSearch(generation=generation, parts=parts).run()
                parts.add_pipelines(_MOST_PARTS)
            if not few:
                generation.generate()
            overdraws = self.limits is None and generation.overdraws
            generation.close_gap(_SOME_LABELS if overdraws else MOST_LABELS)
            if not generation.finished:
                bound = generation.bound
                generation.generate_exactly()
                if overdraws or generation.bound != bound:
                    generation.close_gap()
        except Ended as end:
            generation.round_relaxation()
            return end.reason
        return None

    def _search_alone(self, generation: Generation) -> str | None:
        """Find the best pipeline, where there is one or one is asked for; return what ended the search before that."""
        try:
            self._add_simple_columns(generation)
            for column in generation.pipelines:
                generation.keep_if_better([column])
            if self.alone_bound < math.inf:
                generation.knows(self.alone_bound, "single pipelines")
            generation.generate_alone()
        except Ended as end:
            return end.reason
        return None

    def _begin_with_simple(self, generation: Generation) -> None:
        """Bound all deployments by the work of stages, and keep the best deployment of simple pipelines."""
        with suppress(Ended):  # the search that follows says so
            self._add_simple_columns(generation)
        generation.round_relaxation()
        generation.report_progress()

    def _add_simple_columns(self, generation: Generation) -> None:
        """Add the best single pipelines as columns, and simple ones that may yield most for the price of their GPUs."""
        generation.bound_by_work()
        simple = list[PipelineColumn]()
        for problem, offer in {offer.problem: offer for offer in generation.offers}.items():
            if problem in self.alone:
                generation.add_column(column_of(offer, self.alone[problem], offer.attained))
            simple += [column_of(offer, p, offer.promised) for p in simple_placements(problem)]
        fastest = dict[tuple[str, tuple[int, ...]], PipelineColumn]()
        for column in simple:  # smaller batches come first, and leave memory for more of them
            known = fastest.get((column.offer.pool, column.gpus))
            if column.rate > (_MORE_RATE_FACTOR * known.rate if known else 0.0):
                fastest[column.offer.pool, column.gpus] = column
        for pool in self.pools:
            price = fields.given(generation.prices).per_gpu(pool)
            columns = [
                (c.rate / (price @ c.gpus), c) for c in fastest.values() if c.offer.pool == pool
            ]
            for _, column in heapq.nlargest(_SIMPLE_COLUMNS, columns, key=lambda of: of[0]):
                if self.limits is not None:  # then one takes longer
                    self.deadline.check()
                generation.add_column(column._replace(rate=column.offer.attained(column.stages)))

    @property
    def _seconds_alone(self) -> float:
        """The most seconds for single pipelines: of all workloads, and of parts of the GPUs."""
        return min(_ALONE_SECONDS, _ALONE_TIME_SHARE * self.deadline.left)

    def _find_best_alone(self) -> None:
        """Find the best single pipeline of each workload, as far as it is the best of all and there is time."""
        if self.limits is not None:  # the best pipeline need not keep them
            return
        whole = self.deadline.within(self._seconds_alone)

        def best(problem: Problem, options: Mapping[str, Any], to_beat: float) -> Result:
            return solve_for_attainable(problem, "auto", method_of("auto", {}), options, to_beat)

        def following(results: Sequence[Result]) -> tuple[Problem, Mapping[str, Any]]:
            return self.problems[len(results)], {"stop": whole.stop}

        results = solved_in_turn(len(self.problems), following, best, whole)
        left_out = len(results) < len(self.problems)
        self.alone = {r.problem: r.placement for r in results if r.placement is not None}
        self.most_rate = {r.problem: r.bound * (1 + ATTAINED) for r in results if r.bound}
        together = best_answer(results, left_out)
        self.alone_bound = together.bound or math.inf
        if together.status == "infeasible":
            self.alone_bound = 0.0

    def _answer_unserved(self, most: Generation, ended: str | None) -> Deployment:
        """Answer a load that no deployment serves, or that none of those found serves."""
        greatest = most.value or 0.0
        bound = greatest
        if not most.settled and (ended or most.bound is not None):  # without a bound nothing fits
            bound = math.inf if most.bound is None else most.bound
        what = "tokens/s" if self.limits is None else "requests/s"
        if bound >= self.at_least * (1 - REACHED):
            reason = _not_reached(self.at_least, greatest, bound, what)
            return self._simple(ended or "list limit", reason if greatest else _none_yet(most))
        return self.none(_too_much(self.at_least, greatest, bound, what))

    def _answer(self, generation: Generation, ended: str | None) -> tuple[Deployment, bool]:
        """Make pipelines of the best columns, and say what is known of them; and whether stages could be packed."""
        if generation.best is None:
            generation.round_relaxation()
        chosen = generation.best or []
        pipelines = pipelines_of(self.problem, chosen)
        counted = min(generation.goal.serves(chosen).values())
        packed = self._rate_served(pipelines) >= counted * (1 - ONE_ANSWER)
        if not packed and self._rate_served(pipelines) < self.at_least * (1 - REACHED):
            pipelines = ()
        settled = packed and generation.proven
        if not pipelines and ended:
            reason = _none_yet(generation) if packed else _why_open(packed)
            return self._simple(ended, reason), packed
        if not pipelines and packed and (settled or not self.alone_bound):
            return self.none(self._why_none(generation.offers)), packed
        bound, reason = generation.value if settled else generation.bound, ""
        if ended is None:
            within = generation.finished and packed
            ended = "gap limit" if within else "list limit"
            reason = "" if within else _why_open(packed)
        return self._deployment(pipelines, bound, ended, reason, generation), packed

    def _rate_served(self, pipelines: Sequence[Pipeline]) -> float:
        """Return what pipelines serve together, in tokens/s or requests/s."""
        if self.limits is None:
            return sum_of(pipelines)
        return requests_served(pipelines, self.pools)

    def _why_none(self, offers: Sequence[Offer]) -> str:
        """Give the reason where stages fit but no pipeline does."""
        if self.limits is not None and not self.deadline.reason:
            unkept = why_unkept(self.problems, self.limits, self.deadline)
            if unkept:
                return unkept
        held = max((offer.table.holdable(0.0) for offer in offers), default=math.inf)
        if not held:
            return why_no_layer_fits(self.problem)
        return why_too_few(self.problem, held, "listing every pipeline")

    def _simple(self, ended: str | None, reason: str) -> Deployment:
        """Answer a search that ended without a deployment: with the best single pipeline if that serves the load."""
        alone = self._best_alone()
        return self._deployment(alone, None, ended, "" if alone else reason)

    def _best_alone(self) -> tuple[Pipeline, ...]:
        """Return the best single pipeline; none where none is known that serves the load."""
        alone = [
            fields.given(pipeline_of(problem, (best,), None))
            for problem, best in self.alone.items()
        ]
        alone.sort(key=lambda pipeline: pipeline.throughput)
        return tuple(p for p in alone[-1:] if p.throughput >= self.at_least)

    def none(self, reason: str) -> Deployment:
        """Answer that there is no deployment."""
        return replace(self._deployment((), None, None, reason), status="infeasible")

    def _deployment(
        self,
        pipelines: tuple[Pipeline, ...],
        bound: float | None,
        ended: str | None,
        reason: str,
        generation: Generation | None = None,
    ) -> Deployment:
        """Make the answer, and give it its status from its value and the bound.

        Where throughput is the goal, the best single pipeline is the answer if it yields more.
        """
        alone = () if self.at_least else self._best_alone()
        if alone and sum_of(alone) > self._rate_served(pipelines):
            pipelines = alone
        value = self._rate_served(pipelines)
        throughput = value
        if self.limits is not None:
            throughput *= [*self.pools.values()][-1]  # tokens of answers, where there are any
        if self.at_least and pipelines:
            value = fields.given(
                price_per_hour(self.problem, *(r for p in pipelines for r in p.replicas))
            )
        known = value if pipelines else None
        if self.at_least:
            status, bound = status_and_least(known, bound)
        elif bound is not None and value < bound <= value * (1 + ONE_ANSWER):
            status, bound = "optimal", value
        else:
            status, bound = status_and_bound(known, bound)
        proven = status == "optimal"
        size: dict[str, int] = {}
        details: dict[str, Any] = {"bounds": {}, "dual_prices": {}, "progress": ()}
        if generation is not None:
            size = {
                "classes": len(generation.goal.counts),
                "columns": len(generation.columns),
                "rounds": generation.rounds,
            }
            details = {
                "bounds": dict(generation.bounds),
                "dual_prices": _dual_prices(generation),
                "progress": tuple(generation.progress),
            }
        return Deployment(
            problem=self.problem,
            status=status,
            pipelines=pipelines,
            throughput=throughput if pipelines else None,
            bound=bound,
            at_least=self.at_least,
            limits=self.limits,
            single=self.single,
            seconds=self.deadline.spent,
            size=size,
            solver=choice.solver_version() if generation else "",
            reason=self.deadline.remark("" if proven else reason),
            stopped_by=None if proven else ended,
            details=details | self._beyond_links(pipelines, details["bounds"]),
            again=self.again,
        )

    def _beyond_links(
        self, pipelines: Sequence[Pipeline], bounds: Mapping[str, float]
    ) -> dict[str, float]:
        """Return what GPUs alone let pass, where a link holds back a pipeline and this is much more; else nothing."""
        if self.limits is not None or self.at_least or len(self.problems) > 1:
            return {}
        if not any(_is_held_by_link(evaluate(self.problem, p.placement)) for p in pipelines):
            return {}
        most = bounds.get("work of stages", 0.0)
        return {"gpus_alone": most} if most > _RATIO_FOR_A_FLOW * sum_of(pipelines) else {}


def sum_of(pipelines: Sequence[Pipeline]) -> float:
    """Add up the tokens/s of all pipelines."""
    return math.fsum(p.throughput * p.count for p in pipelines)


def _is_held_by_link(evaluation: Evaluation) -> bool:
    """Return whether a link alone is the bottleneck, and enough is in flight to fill it."""
    full = evaluation.attainable >= evaluation.rate * (1 - SOLVER)
    return full and all(name.startswith("link") for name in evaluation.bottlenecks)


# What is said beside the pipelines


def _dual_prices(generation: Generation) -> dict[str, float]:
    """Return what one more GPU of each type brings by the best bound; of several classes of a type the most."""
    if generation.prices is None or generation.goal.load or not generation.prices.cost.any():
        return {}
    out: dict[str, float] = {}
    tokens = [*generation.goal.pools.values()][-1]  # of answers, where there are any
    classes = generation.offers[0].table.classes
    worth = generation.prices.cost * generation.prices.unit * tokens
    for a, price in enumerate(worth.tolist()):
        name = classes.gpu(a).type
        out[name] = max(price, out.get(name, 0.0))
    return out


def _why_open(packed: bool) -> str:
    """Say why a deployment is not proven best, where nothing ended the search early."""
    if packed:
        return "there are too many ways to divide the GPUs to list what is left"
    return "the bound leaves out that stages must be packed into nodes"


def _none_yet(generation: Generation) -> str:
    """Say how far a search had come that was stopped before it had a deployment."""
    rounds = generation.progress[-1].nodes if generation.progress else 0
    if not rounds:
        return "the first round of the search was not over"
    known = Counter(column.offer.pool for column in generation.pipelines)
    pipelines = counted(known.total(), "pipeline") if known else "no pipeline"
    without = [pool for pool in generation.goal.pools if known and not known[pool]]
    rest = f", none of them for {listed(without)}" if without else ""
    rest = rest or (", and no deployment of them" if known else "")
    return f"after {counted(rounds, 'round')} the search had found {pipelines}{rest}"


def _not_reached(load: float, greatest: float, bound: float, what: str) -> str:
    """Say how close a search came to a load that may or may not be served."""
    most = "" if math.isinf(bound) else f"; none serves more than {bound:.7g}"
    return f"the best deployment found serves {greatest:.7g} of the {load:.7g} {what}{most}"


def _too_much(load: float, greatest: float, bound: float, what: str) -> str:
    """Give the reason where a load cannot be served."""
    if not greatest:
        return f"no pipeline fits, so {load:.7g} {what} cannot be served"
    most = f"the most that these GPUs serve is {greatest:.7g} {what}"
    if bound > greatest * (1 + SOLVER):
        most = f"these GPUs serve at most {bound:.7g} {what} (found: {greatest:.7g})"
    clusters = math.ceil(load / greatest * (1 - SOLVER))
    short = f"{load - greatest:.7g} fewer than the load of {load:.7g}"
    return f"{most}, {short}; {clusters} such clusters would serve it"


def pipelines_of(problem: Problem, chosen: Sequence[PipelineColumn]) -> tuple[Pipeline, ...]:
    """Make pipelines of the chosen columns; the fastest first, at the rates that `evaluate` finds.

    Where stages cannot be packed into nodes, pipelines are missing or slower.
    """
    if not chosen:
        return ()
    columns = sorted(chosen, key=lambda c: (-c.rate, c.gpus))
    free = FreeGPUs.in_nodes(problem, columns[0].offer.table.classes)
    replicas: dict[tuple[PipelineColumn, float], list[Placement]] = defaultdict(list)
    stages = {  # of some a table says only how fast they are
        column: column.stages or MixTables(column.offer, NEVER).stages(column.at, column.gpus)
        for column in dict.fromkeys(columns)
    }
    ids = free.taken([stages[column] for column in columns])
    for column, stage_ids in zip(columns, ids, strict=True):
        layers = [number for number, _ in stages[column]]
        placement = Placement.of(zip(layers, stage_ids, strict=True))
        rate = column.offer.rated(placement)[0]
        if rate:  # a stage over two nodes may lack the memory that it has within one
            replicas[column, rate].append(placement)
    pipelines = [
        fields.given(pipeline_of(column.offer.problem, tuple(placements), column.offer.limits))
        for (column, _), placements in replicas.items()
    ]
    return tuple(sorted(pipelines, key=lambda p: -p.throughput))
