"""The plans that an engine can start, as problems that together have exactly these placements.

An engine gives every stage the same number of GPUs, and these cut its layers among them
(`hardware.engine_rules`). So there is one problem for each number that a stage may have, and for each maker or host,
where all GPUs must be of one. It is the given problem with another cost model, in which stages that the engine does
not start have no rate. Every search finds the best of such a problem, and the best of all of them is proven if each is.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.costs import WrappedCosts, filled
from pipelab.display import listed
from pipelab.engine.answers import Result
from pipelab.engine.deadline import Deadline
from pipelab.engine.infeasible import infeasible_result
from pipelab.engine.methods.batches import best_answer, solved_in_turn
from pipelab.engine.schedules.named_schedules import RULES, name_of
from pipelab.engine.training import TrainingResult
from pipelab.engine.training.bounds import TRAINED_BY
from pipelab.errors import NotApplicable
from pipelab.fields import derived
from pipelab.hardware.engine_memory import memory_of
from pipelab.hardware.engine_rules import EngineRules, not_taken, platform_of, rules_of
from pipelab.problem import CostModel, Problem, StageCost, StageTables, answered


def counting_memory_of(problem: Problem, engine: str) -> Problem:
    """Return a problem in which what the engine itself keeps in memory counts, if the cost model can count it."""
    most = memory_of(engine).most_share(problem.cluster.kinds)
    return replace(problem, costs=problem.costs.counting_memory_of(engine, most))


def as_engine_runs(problem: Problem, engine: str) -> Problem:
    """Return a problem in which the engine's memory counts, and GPUs of a stage cut its layers and share no batch."""
    counted = counting_memory_of(problem, engine)
    return replace(counted, costs=counted.costs.cutting_every_layer())


def as_engine_fills(problem: Problem, engine: str) -> Problem:
    """Return `as_engine_runs` with the engine's filling in the place of the cost model's."""
    run, rules = as_engine_runs(problem, engine), rules_of(engine)
    filling, number = rules.filling or "synchronous", rules.filling_number
    if number == "told":  # it keeps as many in flight as its script says
        filling, number = "synchronous", 0
    if filling == "micro_batches" and problem.workload.phase != "prefill":
        filling, number = "one", 0  # batches of one token per sequence are too small to be cut
    return replace(run, costs=filled(run.costs, filling, number))


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineStages(WrappedCosts):
    """A cost model in which only some stages have a rate: those that one start of an engine can have.

    Attributes
    ----------
    costs : CostModel
        What these yield and need.
    size : int or None
        GPUs of every stage; None: any number.
    types : frozenset of str
        Types of GPU.
    host : str or None
        The only machine (`GPU.host`), or "" for GPUs that are each alone in one. None: any.
    whole : bool
        Whether a stage must have all layers, on GPUs of one machine where it has several.
    most_gpus : float
        Of a pipeline; read where pipelines are put together.
    """

    size: int | None
    types: frozenset[str]
    host: str | None
    whole: bool
    most_gpus: float = math.inf

    @derived
    def nodes_matter_alone(self) -> bool:
        """As of the cost model, unless one machine is meant."""
        return self.host is None and self.costs.nodes_matter_alone

    @derived
    def cuts_every_layer(self) -> bool:
        """As of the cost model, unless stages have one GPU, and nothing is cut."""
        return self.size != 1 and self.costs.cuts_every_layer

    def mixes_as_slowest(self, problem: Problem) -> bool:
        """Whether a mixed stage is as fast as its slowest GPUs: where stages have one GPU there are none."""
        return self.size == 1

    def memory_by_size(self, problem: Problem) -> bool:
        """Deny it: types and machines matter."""
        return False

    def stage(self, *asked: Any) -> StageCost:
        """Return the cost model's answer, without a rate where the engine does not start such a stage."""
        cost = answered(self.costs, *asked)
        model, _, gpus, layers, _ = asked
        whole = len(layers) == model.layers
        if cost.degree == len(gpus) and self._starts(gpus, np.ones(len(gpus), int), whole):
            return cost
        return cost._replace(throughput=0.0, pass_seconds=None)

    def stage_tables(self, *asked: Any) -> StageTables:
        """Return `stage` for every composition and kind of span."""
        model, _, kinds, composition, _ = asked
        if self.size != 1 and not self.costs.cuts_every_layer:  # its tables say no degree
            return CostModel.stage_tables(self, *asked)
        tables = self.costs.stage_tables(*asked)
        whole = model.spans.layers == model.layers
        starts = [self._starts(kinds, row, whole) & np.ones_like(whole) for row in composition]
        return tables._replace(throughput=np.where(starts, tables.throughput, 0.0))

    def _starts(self, kinds: Sequence[GPU], counts: np.ndarray, whole: Any) -> Any:
        """Tell whether the engine starts a stage of these counts; `whole`: whether it has all layers."""
        used = [kind for kind, number in zip(kinds, counts, strict=True) if number]
        size = self.size in (None, int(counts.sum()))
        hosts = {kind.host for kind in used}
        host = self.host is None or hosts == {self.host}
        if self.whole and counts.sum() > 1:
            host = host and len(hosts) == 1 and "" not in hosts
        starts = size and host and all(kind.type in self.types for kind in used)
        return starts & (whole if self.whole else True)


class Start(NamedTuple):
    """One way to start an engine: the problem of it, and options of `solve` that it fixes."""

    problem: Problem
    options: Mapping[str, Any]


def starts_of(
    problem: Problem, engine: str, options: Mapping[str, Any], every_host: bool = False
) -> list[Start]:
    """List the ways to start an engine.

    Parameters
    ----------
    options : mapping
        Of `solve`.
    every_host : bool
        Whether identical hosts each have their own, where all stages must be on one.

    Raises
    ------
    NotApplicable
        The engine does not keep keys and values in the model's precision, does not train, or lacks the schedule.
    UnknownName
        There is no such engine.
    """
    rules = rules_of(engine, "runs_on")
    _refuse(problem, engine, rules)
    if rules.sequences is not None and problem.workload.batch_size > rules.sequences:
        return []
    choices = [dict(options)]
    if problem.workload.phase == "training":
        choices = list(_steps(problem, engine, rules, options))
    found = []
    for size in _sizes(problem, rules):
        for types in _makers(problem, rules):
            alone = rules.cut_alone and size != 1
            for host in _hosts(problem, types, every_host) if rules.one_host else [None]:
                for choice in choices:
                    whole = alone or host == ""  # these GPUs are each alone in a machine
                    most = _most_gpus(problem, rules, size, choice)
                    run = as_engine_fills(problem, engine).costs
                    costs = EngineStages(
                        costs=run, size=size, types=types, host=host, whole=whole, most_gpus=most
                    )
                    started = replace(
                        problem,
                        costs=costs,
                        max_gpus_per_stage=problem.max_gpus_per_stage if size is None else size,
                        same_type_stages=problem.same_type_stages or run.cuts_every_layer,
                    )
                    found.append(Start(started, choice))
    return found


def _most_gpus(
    problem: Problem, rules: EngineRules, size: int | None, options: Mapping[str, Any]
) -> float:
    """The most GPUs that a pipeline may have: where chunks interleave, each rank has a microbatch at least."""
    schedule = options.get("schedule") if problem.workload.phase == "training" else None
    if schedule is None or size is None or not (rules.schedules and RULES[schedule].chunked):
        return math.inf if rules.gpus is None else rules.gpus
    return size * problem.workload.microbatches


def _refuse(problem: Problem, engine: str, rules: EngineRules) -> None:
    """Refuse what no plan can fix."""
    for field, value, expected in not_taken(problem.model, problem.cluster, rules):
        raise NotApplicable("runs_on", [(field, value, f"{engine}: {expected}")])
    if problem.workload.phase == "training" and not rules.trains:
        expected = f"expected another: {engine} serves, and Megatron and torchtitan train"
        raise NotApplicable("runs_on", [("problem.workload.phase", "training", expected)])


def _steps(
    problem: Problem, engine: str, rules: EngineRules, options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """List schedules whose stages go round the ranks, and what is recomputed, which is one choice for all layers."""
    known = rules.schedules.split() or [n for n in TRAINED_BY if not RULES[n].v_shaped]
    asked = options.get("schedule", "1F1B")
    asked = asked if asked == "best" else name_of(asked)
    if asked != "best" and asked not in known:
        expected = f"expected 'best', or one that {engine} has: {', '.join(known)}"
        raise NotApplicable("runs_on", [("schedule", asked, expected)])
    again = options.get("recompute")
    for schedule in known if asked == "best" else [asked]:
        for recompute in ("none", "full") if again == "auto" else [again]:
            yield {**options, "schedule": schedule, "recompute": recompute}


def _sizes(problem: Problem, rules: EngineRules) -> Sequence[int | None]:
    """How many GPUs a stage may have."""
    if not rules.equal_stages:
        return [None]
    most = min(problem.max_gpus_per_stage, len(problem.cluster))
    heads = problem.model.heads if rules.heads_divide else 0
    return [size for size in range(1, most + 1) if not heads % size]


def _makers(problem: Problem, rules: EngineRules) -> list[frozenset[str]]:
    """The types of GPU that one start may have."""
    names = {kind.type for kind in problem.cluster.kinds}
    found = [{t for t in names if platform_of(t) == p} for p in rules.platforms.split()]
    if not rules.one_maker:
        found = [set[str]().union(*found)]
    return [frozenset(types) for types in found if types]


def _hosts(problem: Problem, types: Iterable[str], every_host: bool) -> list[str | None]:
    """List the machines that all stages may be on, of identical ones the first; "" for GPUs alone in theirs."""
    gpus = problem.cluster.gpus
    groups = identical_hosts(problem.cluster)
    chosen = [ids for hosts in groups for ids in (hosts if every_host else hosts[:1])]
    return list(dict.fromkeys(gpus[g].host for ids in chosen for g in ids if gpus[g].type in types))


def identical_hosts(cluster: Cluster) -> list[list[list[int]]]:
    """List the GPU ids of every machine, those of identical machines together."""
    found: dict[Any, list[list[int]]] = {}
    for machine in range(cluster.machine_of.max() + 1):
        ids = np.flatnonzero(cluster.machine_of == machine).tolist()
        pairs = [(i, j) for i in ids for j in ids if i != j]
        links = tuple((cluster.bandwidth_between(*p), cluster.latency_between(*p)) for p in pairs)
        gpus = [cluster.gpus[g] for g in ids]
        nodes = list(dict.fromkeys(gpu.node for gpu in gpus if gpu.node))
        number = {"": ""} | {node: str(i) for i, node in enumerate(nodes)}
        unnamed = tuple(replace(gpu, node=number[gpu.node], machine="one") for gpu in gpus)
        found.setdefault((unnamed, links), []).append(ids)
    return list(found.values())


def best_start(
    engine: str,
    solve: Callable[..., Result],
    problem: Problem,
    options: Mapping[str, Any],
    to_beat: float = 0.0,
) -> Result:
    """Solve for every way to start an engine and keep the best answer.

    Parameters
    ----------
    solve : function of a problem, options and the tokens/s to beat
    options : mapping
        Of `pipelab.solve`; a time limit is for all ways together.
    to_beat : float
        Tokens/s that another batch size attains.

    Returns
    -------
    Result
        Of the problem in which GPUs of a stage cut its layers; "optimal" is proven among all plans that the
        engine can start.
    """
    deadline, starts = Deadline(options.get("time_limit")), starts_of(problem, engine, options)
    found = solved_in_turn(len(starts), lambda found: starts[len(found)], solve, deadline, to_beat)
    run = as_engine_fills(problem, engine)
    if not found:
        reason = why_not_here(problem, engine)
        none = infeasible_result(run, "aggregated", reason, {}, deadline)
        return replace(none, runs_on=engine)
    answer = best_answer(found, len(found) < len(starts))
    if answer.placement is None and answer.status == "infeasible":
        answer = replace(answer, reason=_why_none(starts, found))
    answer = replace(
        answer,
        problem=replace(run, workload=answer.problem.workload),
        seconds=deadline.spent,
        runs_on=engine,
    )
    if isinstance(answer, TrainingResult) and answer.step is not None:
        answer = replace(answer, step=replace(answer.step, problem=answer.problem))
    return answer


def why_not_here(problem: Problem, engine: str) -> str:
    """Say why there is no way to start an engine."""
    most, batch = rules_of(engine).sequences, problem.workload.batch_size
    if most is not None and batch > most:
        return f"{engine} has at most {most} sequences at once, and a batch has {batch}"
    kinds = listed(list(dict.fromkeys(gpu.type for gpu in problem.cluster.kinds)))
    return f"{engine} runs on {listed(rules_of(engine).platforms.split())}, and not on {kinds}"


def _why_none(starts: Sequence[Start], found: Sequence[Result]) -> str:
    """The reason, or several, each with the numbers of GPUs per stage for which it is one."""
    sizes: dict[str, dict[int, None]] = {}
    for start, result in zip(starts, found, strict=True):
        sizes.setdefault(result.reason, {})[start.problem.max_gpus_per_stage] = None
    if len(sizes) == 1:
        return found[0].reason
    numbers = {reason: " or ".join(map(str, own)) for reason, own in sizes.items()}
    return "; ".join(
        f"with {own} GPU{'' if own == '1' else 's'} in every stage, {reason}"
        for reason, own in numbers.items()
    )
