"""The independent evaluator: what a placement yields, recomputed from the raw data.

It shares no code with any formulation, so that every solver answers to it.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, pairwise
from typing import overload

from pipelab.costs import refuse_transfers
from pipelab.deployment_and_flow import DeploymentPlan, FlowPlan, Replicas
from pipelab.display import DataFrame, data_frame, table
from pipelab.errors import InvalidPlacement
from pipelab.fields import MOST_COUNTED, Frozen, instance
from pipelab.placement import Placement, Stage, named_layers, show_layers
from pipelab.problem import Problem, StageCost, Workload, answered, fits_in, load_with

__all__ = [
    "DeploymentEvaluation", "Evaluation", "FlowEvaluation", "LinkReport", "StageReport",
    "WayReport", "broken_rules", "evaluate", "tally",
]  # fmt: skip

MOST_IN_FLIGHT = 1_000_000  # more are not tried
_NOT_REACHED_BY = {
    "by_stages": "batches by stages do not reach",
    "dynamic": "batches of what waits do not reach",
    "micro_batches": "parts of one batch do not reach",
    "one": "one batch at a time does not reach",
}
MOST_ABOVE = 1e-9  # what a flow may carry above its limits: sums differ by the last bits


@dataclass(frozen=True, kw_only=True)
class StageReport(Frozen):
    """What one stage yields and needs."""

    stage: Stage
    gpu_types: tuple[str, ...]
    batch: tuple[float, ...]  # sequences on each GPU
    memory_gb: tuple[float, ...]  # needed on each GPU
    memory_limit_gb: tuple[float, ...]  # offered by each GPU
    throughput: float  # tokens/s
    # of one microbatch; more than tokens / throughput if GPUs take turns (`costs.pass_time`)
    seconds: float
    degree: int = 1  # GPUs that cut each layer among them; 1: each holds its layers whole


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """The link between two neighbouring stages; its slowest pair of GPUs sets rate and time."""

    sender: int
    receiver: int
    bandwidth_gb_per_s: float
    throughput: float  # tokens/s, or transfers/s where the problem keeps the write-up's units
    seconds: float  # of one message, latency included


@dataclass(frozen=True, kw_only=True)
class Evaluation(Frozen):
    """Every stage and link of a valid placement, and the slowest of them.

    Attributes
    ----------
    stages : tuple of StageReport
        Rate (tokens/s), memory (GB), batch shares (sequences) and time per microbatch (s) of every
        stage.
    links : tuple of LinkReport
        Of every link between neighbouring stages: its slowest pair of GPUs, bandwidth (GB/s), rate,
        time (s).
    rate : float
        Of the slowest stage or link, in tokens/s: what a full pipeline yields.
    bottlenecks : tuple of str
        The stages and links that have it, such as `("stage 2",)` or `("link 1→2",)`.
    link_unit : {"transfers", "tokens"}
        What the rates of links count, per second.
    tokens : float
        That one microbatch counts for (`Workload.tokens`).
    in_flight : int or None
        Microbatches in flight, for all of which there is memory on every stage: the workload's
        number, or where it has none the one that yields most (of several the least). None where
        links are counted in transfers/s, and in training.
    filling : str
        How the engine fills the pipeline (`pipelab.filling`): what `attainable` is about.
    at_once : float
        With the filling "micro_batches", parts that may be in the pipeline at a time.
    parts : int
        Into which each microbatch is cut (`Problem.parts`).
    """

    stages: tuple[StageReport, ...]
    links: tuple[LinkReport, ...]
    rate: float
    bottlenecks: tuple[str, ...]
    link_unit: str
    tokens: float
    in_flight: int | None = None
    filling: str = "synchronous"
    at_once: float = math.inf
    parts: int = 1

    @property
    def attainable(self) -> float:
        """Tokens/s with `in_flight` microbatches in flight: min(rate, in_flight · tokens / traversal).

        A microbatch returns once it has been through all stages and links, so n of them yield at
        most n · tokens in that time. Without a number in flight it is the rate. With the filling
        "micro_batches" these are cut into n · `parts`, which follow one another, at most `at_once` of them in the
        pipeline, and the next begin when the last is through. With N parts of a p-th of a microbatch that is
        N · tokens / (traversal + (N - 1) · interval), where the interval is tokens / rate or traversal / at_once,
        whichever is longer: p divides both sides.
        """
        if self.filling == "micro_batches" and self.in_flight is not None:
            traversal = self.seconds_per_pass
            interval = max(self.tokens / self.rate, traversal / self.at_once)
            number = self.in_flight * self.parts
            return number * self.tokens / (traversal + (number - 1) * interval)
        if self.in_flight is None or self.in_flight >= self.in_flight_needed:
            return self.rate
        return min(self.rate, self.in_flight * self.tokens / self.seconds_per_pass)

    @property
    def throughput(self) -> float:
        """What the placement yields, in tokens/s: its attainable rate."""
        return self.attainable

    @property
    def in_flight_needed(self) -> int:
        """The fewest microbatches in flight that yield the rate, to one part in 10^9.

        Raises
        ------
        InvalidValue
            The problem counts links in transfers/s.
        """
        passes = self.rate * self.seconds_per_pass / self.tokens
        return max(1, math.ceil(passes * (1 - 1e-9)))

    @property
    def reached_by(self) -> str:
        """What would reach the rate, in words: so many in flight, or nothing that the filling allows."""
        return _NOT_REACHED_BY.get(self.filling, f"{self.in_flight_needed} would reach")

    @property
    def seconds_per_pass(self) -> float:
        """Seconds of one microbatch through all stages and links, one after another.

        In decode that is the time per output token of every stream, in prefill the time to the
        first token, where nothing waits. No sequence is shared: a stage whose GPUs share a batch
        unevenly takes longer than its rate says (`costs.pass_time`).

        Raises
        ------
        InvalidValue
            The problem counts links in transfers/s, which say nothing about a tensor of so many
            tokens.
        """
        if self.links:
            refuse_transfers("seconds_per_pass", self.link_unit)
        return math.fsum(part.seconds for parts in (self.stages, self.links) for part in parts)

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds from token to token of every sequence, with `in_flight` microbatches in flight (TPOT, in decode).

        A sequence has its next token when its microbatch has been round: the traversal, or the interval
        of the slowest stage or link for each microbatch in flight, whichever is longer. The way of the token back to
        the first stage is left out. None without a number in flight.
        """
        if self.in_flight is None:
            return None
        return self.in_flight * self.tokens / self.attainable

    def to_frame(self) -> DataFrame:
        """Return the stages as a table.

        Returns
        -------
        pandas.DataFrame
            One row per stage: `stage`, `layers`, `gpus`, `gpu_types`, `sequences_per_gpu`,
            `memory_needed_gb`, `memory_offered_gb`, `throughput_tokens_per_s` and `bottleneck`;
            where some stage cuts its layers also `gpus_per_layer`, and where a pass takes longer
            than the rate says (`pipelab.costs`) `seconds_per_pass`.
        """
        frame = data_frame(
            {
                "stage": range(1, len(self.stages) + 1),
                "layers": [show_layers(s.stage.layers) for s in self.stages],
                "gpus": [", ".join(map(str, s.stage.gpus)) for s in self.stages],
                "gpu_types": [tally(s.gpu_types) for s in self.stages],
                "sequences_per_gpu": [_spread(s.batch) for s in self.stages],
                "memory_needed_gb": [_spread(s.memory_gb) for s in self.stages],
                "memory_offered_gb": [_spread(s.memory_limit_gb) for s in self.stages],
                "throughput_tokens_per_s": [s.throughput for s in self.stages],
                "bottleneck": [self._mark(f"stage {i + 1}") for i in range(len(self.stages))],
            }
        )
        if any(s.degree > 1 for s in self.stages):
            frame.insert(5, "gpus_per_layer", [s.degree for s in self.stages])
        if any(self._waits(s) for s in self.stages):
            before_last = len(frame.columns) - 1
            frame.insert(before_last, "seconds_per_pass", [s.seconds for s in self.stages])
        return frame

    def _waits(self, part: StageReport | LinkReport) -> bool:
        return part.seconds > self.tokens / part.throughput * (1 + 1e-9)

    def links_frame(self) -> DataFrame:
        """Return the links as a table.

        Returns
        -------
        pandas.DataFrame
            One row per link between neighbouring stages: `link`, `slowest_pair`,
            `bandwidth_gb_per_s`, its rate per second in `link_unit`, and `bottleneck`; where links
            have latencies, also `seconds_per_message`.
        """
        names = [f"{i + 1}→{i + 2}" for i in range(len(self.links))]
        frame = data_frame(
            {
                "link": names,
                "slowest_pair": [f"{x.sender}→{x.receiver}" for x in self.links],
                "bandwidth_gb_per_s": [x.bandwidth_gb_per_s for x in self.links],
                f"throughput_{self.link_unit}_per_s": [x.throughput for x in self.links],
                "bottleneck": [self._mark(f"link {name}") for name in names],
            }
        )
        if self.link_unit == "tokens" and any(self._waits(x) for x in self.links):
            frame.insert(4, "seconds_per_message", [x.seconds for x in self.links])
        return frame

    def _mark(self, name: str) -> str:
        return "◀" if name in self.bottlenecks else ""

    def _repr_html_(self) -> str:
        html = table(self.to_frame())
        return html + table(self.links_frame()) if self.links else html


@dataclass(frozen=True, kw_only=True)
class DeploymentEvaluation(Frozen):
    """Every pipeline of a deployment.

    Attributes
    ----------
    pipelines : tuple of Evaluation
    throughput : float
        Their sum, in tokens/s.
    """

    pipelines: tuple[Evaluation, ...]
    throughput: float

    def to_frame(self) -> DataFrame:
        """Return the stages of all pipelines as a table.

        Returns
        -------
        pandas.DataFrame
            As `Evaluation.to_frame`, with a column `pipeline`, counted from 1.
        """
        import pandas as pd

        frames = [e.to_frame().assign(pipeline=i) for i, e in enumerate(self.pipelines, 1)]
        return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True, kw_only=True)
class WayReport(Frozen):
    """One way of a flow: its stages by index, its tokens/s, and the seconds of a microbatch on it."""

    stages: tuple[int, ...]
    rate: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FlowEvaluation(Frozen):
    """What every stage, link and way of a flow carries.

    Attributes
    ----------
    stages : tuple of StageReport
        With the rates of stages that are always busy.
    carried : tuple of float
        Tokens/s that pass each stage.
    needed : tuple of float
        Microbatches in flight that each stage keeps on average: its ways' tokens/s times their
        seconds, over the tokens of a microbatch.
    held : tuple of int
        What each has memory for.
    links : mapping of (int, int) to (LinkReport, float)
        By indices of two stages: the link between them, and the tokens/s that it carries.
    ways : tuple of WayReport
    throughput : float
        Tokens/s of all ways.
    """

    stages: tuple[StageReport, ...]
    carried: tuple[float, ...]
    needed: tuple[float, ...]
    held: tuple[int, ...]
    links: Mapping[tuple[int, int], tuple[LinkReport, float]]
    ways: tuple[WayReport, ...]
    throughput: float

    @property
    def seconds_per_pass(self) -> float:
        """Seconds of a microbatch on its way, on average over all tokens."""
        return math.fsum(way.rate * way.seconds for way in self.ways) / self.throughput

    def to_frame(self) -> DataFrame:
        """Return the stages as a table.

        Returns
        -------
        pandas.DataFrame
            One row per stage: `layers`, `gpus`, `gpu_types`, `rate_tokens_per_s` (always busy),
            `carried_tokens_per_s`, `busy` (their ratio), `in_flight` (memory for so many),
            `in_flight_needed`.
        """
        return data_frame(
            {
                "layers": [show_layers(s.stage.layers) for s in self.stages],
                "gpus": [", ".join(map(str, s.stage.gpus)) for s in self.stages],
                "gpu_types": [tally(s.gpu_types) for s in self.stages],
                "rate_tokens_per_s": [s.throughput for s in self.stages],
                "carried_tokens_per_s": self.carried,
                "busy": [c / s.throughput for c, s in zip(self.carried, self.stages, strict=True)],
                "in_flight": self.held,
                "in_flight_needed": self.needed,
            }
        )


@overload
def evaluate(problem: Problem, placement: Placement) -> Evaluation: ...
@overload
def evaluate(problem: Problem, placement: DeploymentPlan) -> DeploymentEvaluation: ...
@overload
def evaluate(problem: Problem, placement: FlowPlan) -> FlowEvaluation: ...
def evaluate(
    problem: Problem, placement: Placement | DeploymentPlan | FlowPlan
) -> Evaluation | DeploymentEvaluation | FlowEvaluation:
    """Check every rule that a placement must obey, then recompute every rate from the raw data.

    Parameters
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement, Deployment or Flow
        What is evaluated. Each pipeline of a deployment has a batch of its own.

    Returns
    -------
    Evaluation, DeploymentEvaluation or FlowEvaluation
        Attainable rate in tokens/s, the number in flight that it takes, the bottleneck, and every
        stage and link with that number in memory; of a deployment that of every pipeline, and the
        sum of what they attain; of a flow what each stage, link and way carries.

    Raises
    ------
    InvalidPlacement
        A layer left out or covered twice, a GPU used twice or not in the cluster, too many GPUs or
        GPUs of different types in a stage, memory exceeded, or a stage without a rate. All defects
        are listed; memory is checked only if there is no other. Or two pipelines of a deployment
        share a GPU; or a stage or link of a flow carries more than it can, or keeps more in flight.
    InvalidValue
        `problem` is not a Problem, or `placement` is no Placement, Deployment or Flow.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    >>> round(pl.evaluate(tiny, pl.Placement.of([(4, (0, 1))])).throughput, 3)
    301.784
    """
    instance("evaluate", "problem", problem, Problem, "a Problem")
    if isinstance(placement, DeploymentPlan):
        return _evaluate_pipelines(problem, placement.pipelines)
    if isinstance(placement, FlowPlan):
        return _evaluate_flow(problem, placement)
    instance("evaluate", "placement", placement, Placement, "a Placement")
    defects = broken_rules(problem, placement)
    if defects:
        raise InvalidPlacement(defects)
    links = tuple(_link_reports(problem, pairwise(placement.stages)))
    in_tokens = problem.costs.link_units == "tokens"
    timed = problem.workload.phase != "training" and (in_tokens or not links)
    given, filling = problem.workload.in_flight, problem.costs.filling
    load, numbers = cache(partial(load_with, problem)), range(len(placement.stages))

    @cache
    def cost_with(number: int, index: int) -> tuple[StageCost, list[str]]:
        cost = _cost(problem, load(number), placement.stages[index])
        return cost, _memory_defects(problem, placement, index, cost)

    def with_memory_for(number: int) -> Evaluation:
        costs, defects = zip(*(cost_with(number, index) for index in numbers), strict=True)
        if any(defects):
            raise InvalidPlacement([*chain(*defects)])
        reports = map(partial(stage_report, problem), placement.stages, costs)
        return _evaluation_of(problem, tuple(reports), links, number)

    if not timed:
        return replace(with_memory_for(given or 1), in_flight=None)
    most = MOST_COUNTED + 1  # so many are refused, with the reason
    if filling == "by_stages":
        most = min(given or most, len(placement.stages) + problem.costs.filling_number)
        given = None  # it is told how many at most
    elif filling != "synchronous":
        given = (given or 1) if filling == "micro_batches" else 1
    first = with_memory_for(given or 1)
    if given:
        return first

    def times_with(number: int) -> Iterator[tuple[float, float] | None]:
        for cost, defects in (cost_with(number, index) for index in numbers):
            yield None if defects else (cost.throughput, cost.seconds(problem.workload.tokens))

    rates_fall = problem.costs.prefer == "rate"
    return _most_attainable(first, with_memory_for, times_with, rates_fall, most)


def _evaluation_of(
    problem: Problem, stages: tuple[StageReport, ...], links: tuple[LinkReport, ...], number: int
) -> Evaluation:
    """Evaluate with a number in flight with which these stages fit."""
    rates = {f"stage {i + 1}": s.throughput for i, s in enumerate(stages)}
    rates |= {f"link {i + 1}→{i + 2}": link.throughput for i, link in enumerate(links)}
    slowest = min(rates.values())
    # Rates equal up to the last bits are one bottleneck shared, not one that happens to win.
    bottlenecks = tuple(name for name, rate in rates.items() if rate <= slowest * (1 + 1e-12))
    return Evaluation(
        stages=stages,
        links=links,
        rate=slowest,
        bottlenecks=bottlenecks,
        link_unit=problem.costs.link_units,
        tokens=problem.workload.tokens,
        in_flight=number,
        filling=problem.costs.filling,
        at_once=problem.costs.filling_number or math.inf,
        parts=problem.parts,
    )


def _most_attainable(
    first: Evaluation,
    at: Callable[[int], Evaluation],
    times_with: Callable[[int], Iterable[tuple[float, float] | None]],
    rates_fall: bool,
    most: int,
) -> Evaluation:
    """Choose the number in flight that yields most, of several such numbers the least.

    With more in flight memory runs out, and before it does, a stage may have to run in another
    execution mode (`Roofline`): it does not return to the one before. So the numbers fall into runs
    within which all stages have the same times. Within a run more in flight are never slower, and
    no more than `in_flight_needed` are of use: one candidate of each run is enough.

    Parameters
    ----------
    first : Evaluation
        With one in flight.
    at : function of int
        The evaluation with this number, which fits.
    times_with : function of int
        Tokens/s and seconds of every stage with this number, or None where it does not fit; one after the other, as
        the first that has changed says enough.
    rates_fall : bool
        Whether no stage has a higher rate in a later mode: a full pipeline then ends the search.
    most : int
        More in flight are not tried.
    """
    best, here, begin = first, first, 1
    while True:
        useful = min(here.in_flight_needed, most)
        reach = useful if rates_fall else min(most, MOST_IN_FLIGHT)

        def has_changed(number: int, begin: int = begin) -> bool:
            return any(a != b for a, b in zip(times_with(number), times_with(begin), strict=False))

        last = begin
        if last < reach:
            rest = range(begin + 1, reach + 1)
            last += bisect_left(rest, True, key=has_changed) if has_changed(reach) else len(rest)
        number = max(begin, min(last, useful))
        if number > begin and None not in times_with(number):
            here = at(number)
        if here.attainable > best.attainable * (1 + 1e-12):
            best = here
        begin = last + 1
        if last >= reach or None in times_with(begin):
            return best
        here = at(begin)


def _evaluate_pipelines(problem: Problem, pipelines: Sequence[Replicas]) -> DeploymentEvaluation:
    """Evaluate every replica by itself, with its pipeline's workload; no GPU may be in two."""
    replicas = [(r, pipeline.workload) for pipeline in pipelines for r in pipeline.replicas]
    used = Counter(g for replica, _ in replicas for g in set(replica.gpus))
    if shared := [f"GPU {g} is used by {n} pipelines" for g, n in used.items() if n > 1]:
        raise InvalidPlacement(shared)
    evaluations = tuple(evaluate(replace(problem, workload=load), r) for r, load in replicas)
    throughput = math.fsum(evaluation.attainable for evaluation in evaluations)
    return DeploymentEvaluation(pipelines=evaluations, throughput=throughput)


def _evaluate_flow(problem: Problem, flow: FlowPlan) -> FlowEvaluation:
    """Follow every way, and add up what stages and links carry and keep."""
    stages, total = flow.stages, problem.model.layers
    defects = _gpu_defects(problem, Placement(stages))
    defects += [d for i, stage in enumerate(stages) for d in _outside(stage, i, total)]
    for number, (way, rate) in enumerate(flow.ways, start=1):
        spans = [stages[v].layers for v in way]
        ends = [0, *(span.stop for span in spans)]
        if ends[-1] != total or not all(
            span.start <= end < span.stop for end, span in zip(ends, spans, strict=False)
        ):
            defects.append(f"way {number} does not pass every layer once: {list(way)}")
        if not rate >= 0:
            defects.append(f"way {number} carries {rate} tokens/s")
    if defects:
        raise InvalidPlacement(defects)
    reports = []
    for i, (stage, number) in enumerate(zip(stages, flow.in_flight, strict=True)):
        cost = _cost(problem, load_with(problem, number), stage)
        defects += _memory_defects(problem, Placement(stages), i, cost)
        if not defects:
            reports.append(stage_report(problem, stage, cost))
    if defects:
        raise InvalidPlacement(defects)
    hops = sorted({hop for way, _ in flow.ways for hop in pairwise(way)})
    crossed = _link_reports(problem, ((stages[v], stages[w]) for v, w in hops))
    links = dict(zip(hops, crossed, strict=True))
    ways = []
    for way, rate in flow.ways:
        times = [reports[v].seconds for v in way] + [links[hop].seconds for hop in pairwise(way)]
        ways.append(WayReport(stages=tuple(way), rate=rate, seconds=math.fsum(times)))
    tokens = problem.workload.tokens
    through = [[way for way in ways if v in way.stages] for v in range(len(stages))]
    carried = tuple(math.fsum(way.rate for way in passing) for passing in through)
    kept = [math.fsum(way.rate * way.seconds for way in passing) for passing in through]
    needed = tuple(microbatch_tokens / tokens for microbatch_tokens in kept)
    over = {hop: [way.rate for way in ways if hop in pairwise(way.stages)] for hop in links}
    across = {hop: math.fsum(rates) for hop, rates in over.items()}
    for i, report in enumerate(reports):
        who = f"stage {i + 1} ({named_layers(stages[i].layers)})"
        defects += _above(f"{who} carries", carried[i], report.throughput, "tokens/s")
        if flow.memory_for is None:
            defects += _above(f"{who} keeps", needed[i], flow.in_flight[i], "in flight")
    for (v, w), link in links.items():
        who = f"link {v + 1}→{w + 1} carries"
        defects += _above(who, across[v, w], link.throughput, "tokens/s")
    if defects:
        raise InvalidPlacement(defects)
    return FlowEvaluation(
        stages=tuple(reports),
        carried=carried,
        needed=needed,
        held=tuple(flow.in_flight),
        links={hop: (links[hop], across[hop]) for hop in links},
        ways=tuple(ways),
        throughput=math.fsum(way.rate for way in ways),
    )


def _outside(stage: Stage, index: int, total: int) -> list[str]:
    if stage.layers.start >= 0 and stage.layers.stop <= total:
        return []
    held, model = named_layers(stage.layers), named_layers(range(total))
    return [f"stage {index + 1} has {held}; the model has {model}"]


def _above(who: str, amount: float, most: float, unit: str) -> list[str]:
    """Name the defect of a sum above its limit, but for the arithmetic of a linear program."""
    over = amount > most * (1 + MOST_ABOVE)
    return [f"{who} {amount:.7g} {unit}, more than {most:.7g}"] if over else []


def broken_rules(problem: Problem, placement: Placement) -> list[str]:
    """List every rule a placement breaks besides memory, which is checked only if there is none."""
    return [*_layer_defects(problem, placement), *_gpu_defects(problem, placement)]


def _layer_defects(problem: Problem, placement: Placement) -> list[str]:
    """Ask for every layer exactly once, in order."""
    total, expected, defects = problem.model.layers, 0, []
    for i, stage in enumerate(placement.stages):
        layers = stage.layers
        if outside := _outside(stage, i, total):
            defects += outside
        elif layers.start > expected:
            gap = _unassigned(range(expected, layers.start))
            defects.append(f"{gap}, left out before stage {i + 1}")
        elif layers.start < expected:
            twice = range(layers.start, min(expected, layers.stop))
            defects.append(f"stage {i + 1} covers {named_layers(twice)} once more")
        expected = max(expected, layers.stop)
    if expected < total:
        defects.append(f"{_unassigned(range(expected, total))}, left out at the end")
    return defects


def _unassigned(layers: range) -> str:
    verb = "is" if len(layers) == 1 else "are"
    return f"{named_layers(layers)} {verb} not assigned to any stage"


def _gpu_defects(problem: Problem, placement: Placement) -> list[str]:
    """Ask that each GPU exists and serves one stage, and that stages keep to size and type."""
    gpus, defects = problem.cluster.gpus, []
    for i, stage in enumerate(placement.stages):
        who, limit = f"stage {i + 1}", problem.max_gpus_per_stage
        if not stage.gpus:
            defects.append(f"{who} has no GPU")
        outside = [g for g in stage.gpus if not 0 <= g < len(gpus)]
        defects += [f"{who} uses GPU {g}; the cluster has ids 0–{len(gpus) - 1}" for g in outside]
        if len(stage.gpus) > limit:
            number = len(stage.gpus)
            defects.append(f"{who} has {number} GPUs, more than max_gpus_per_stage = {limit}")
        types = {gpus[g].type for g in stage.gpus if 0 <= g < len(gpus)}
        if problem.same_type_stages and len(types) > 1:
            mixed = ", ".join(sorted(types))
            defects.append(f"{who} mixes {mixed}, but same_type_stages is set")
    repeated = [g for g, n in Counter(placement.gpus).items() if n > 1]
    return defects + [f"GPU {g} is used more than once" for g in repeated]


def _cost(problem: Problem, load: Workload, stage: Stage) -> StageCost:
    gpus = [problem.cluster.gpus[g] for g in stage.gpus]
    return answered(problem.costs, problem.model, load, gpus, stage.layers, problem.batch_split)


def _memory_defects(
    problem: Problem, placement: Placement, index: int, cost: StageCost
) -> list[str]:
    stage = placement.stages[index]
    who = f"stage {index + 1} ({named_layers(stage.layers)})"
    defects = [] if cost.throughput > 0 else [f"{who} has no rate in this cost model"]
    for g, need in zip(stage.gpus, cost.memory_gb, strict=True):
        gpu = problem.cluster.gpus[g]
        if not fits_in(need, gpu.memory_gb):
            where = f"GPU {g} ({gpu.type}), which has {gpu.memory_gb:g} GB"
            defects.append(f"{who} needs {need:.4g} GB on {where}")
    return defects


def stage_report(problem: Problem, stage: Stage, cost: StageCost) -> StageReport:
    """Return what the evaluator reports of a stage of this cost."""
    gpus = [problem.cluster.gpus[g] for g in stage.gpus]
    types, limits = tuple(g.type for g in gpus), tuple(g.memory_gb for g in gpus)
    return StageReport(
        stage=stage,
        gpu_types=types,
        batch=cost.batch,
        memory_gb=cost.memory_gb,
        memory_limit_gb=limits,
        throughput=cost.throughput,
        seconds=cost.seconds(problem.workload.tokens),
        degree=cost.degree,
    )


def _link_reports(problem: Problem, hops: Iterable[tuple[Stage, Stage]]) -> Iterator[LinkReport]:
    """Let the whole tensor cross the slowest pair of GPUs of each hop, as the write-up has it."""
    cluster, rate_of = problem.cluster, cache(problem.link_throughput)
    seconds_of = cache(problem.message_seconds)  # most links are alike
    for sender, receiver in hops:
        pairs = [(i, j) for i in sender.gpus for j in receiver.gpus]
        i, j = min(pairs, key=lambda pair: cluster.bandwidth_between(*pair))
        bandwidth = cluster.bandwidth_between(i, j)
        rate = rate_of(bandwidth)
        # The pair that arrives last need not be the one of the least bandwidth.
        seconds = max(
            seconds_of(cluster.bandwidth_between(*p), cluster.latency_between(*p)) for p in pairs
        )
        yield LinkReport(
            sender=i,
            receiver=j,
            bandwidth_gb_per_s=bandwidth,
            throughput=rate,
            seconds=float(seconds),
        )


def tally(types: tuple[str, ...]) -> str:
    """Count the GPUs of each type, in words.

    >>> tally(("A100", "A100", "T4"))
    '2 × A100, 1 × T4'
    """
    return ", ".join(f"{n} × {t}" for t, n in Counter(types).items())


def _spread(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g}–{high:.4g}"
