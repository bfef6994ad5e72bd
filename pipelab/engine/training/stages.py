"""Every stage that a placement for training may have: what it takes, what it keeps, what it sends.

GPUs of one class are interchangeable, so a stage is a composition (how many GPUs of each class)
with a run of layers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipelab.costs import MEMORY_SLACK, TrainingCost, answered
from pipelab.engine.deadline import Deadline
from pipelab.engine.formulations.aggregated.classes import Classes, find_classes
from pipelab.engine.layer_runs import Spans, runs_of
from pipelab.engine.stage_arrays import StageTables, stage_tables
from pipelab.engine.timeline.training import in_training
from pipelab.errors import InvalidValue, TooLarge
from pipelab.evaluation import StageReport
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem

MOST_LAYERS = 400
MOST_STAGES = 500_000  # compositions times kinds of run: each is asked for once
_LONGEST = 1e30  # seconds beyond which `StageCosts` takes no time

RECOMPUTE = ("none", "selective", "full", "auto")


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of every stage, arrays of shape (C, U); infinite where it does not fit in memory."""

    forward: np.ndarray
    back: np.ndarray
    weight: np.ndarray
    step: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """Of one microbatch, forward and backward."""
        return self.forward + self.back + self.weight


@dataclass(frozen=True, eq=False)
class Stages:
    """All candidates of a problem: C compositions times U kinds of run of layers.

    Attributes
    ----------
    classes : Classes
    composition : int array, shape (C, A)
        GPUs of each class.
    modes : tuple of str or None
        Ways to recompute, the one to be taken where it fits first.
    costs : mapping of mode to float array, shape (8, C, U)
        The fields of `TrainingCost`.
    serves : bool array, shape (C, U)
        Whether `evaluate` takes the stage.
    offered : float array, shape (C,)
        GB on the smallest GPU.
    hop : float array, shape (C, C)
        Seconds of a message between two stages, the slower direction.
    """

    problem: Problem
    classes: Classes
    composition: np.ndarray
    modes: tuple[str | None, ...]
    costs: Mapping[str | None, np.ndarray]
    serves: np.ndarray
    offered: np.ndarray
    hop: np.ndarray
    _kept: dict

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.problem.model.layers

    @cached_property
    def runs(self) -> Spans:
        """The kinds of run of layers."""
        return runs_of(self.problem.model)

    @property
    def most(self) -> int:
        """No placement has more stages."""
        return min(int(self.classes.count.sum()), self.layers)

    def needed(self, mode: str | None, held: np.ndarray, chunks: int) -> np.ndarray:
        """GB on the fullest GPU of every stage, on a rank that holds so much (`held_counts`); (C, U)."""
        state, kept, rest, working = self.costs[mode][4:8]
        most = np.zeros(kept.shape)
        for forwards, gradients in (held / chunks).tolist():
            np.maximum(most, forwards * kept + gradients * rest, out=most)
        return state + working + most

    def fitting(self, held: np.ndarray, chunks: int) -> tuple[np.ndarray, ...]:
        """For every mode, which stages fit on such a rank, in equal chunks; bool arrays, shape (C, U)."""
        limit = self.offered[:, None] * MEMORY_SLACK
        serves = self.serves & (self.runs.layers % chunks == 0)
        return tuple(serves & (self.needed(m, held, chunks) <= limit) for m in self.modes)

    def times(self, held: np.ndarray, chunks: int) -> Times:
        """Seconds of every stage on such a rank; made once for the same stages that fit."""
        fits = self.fitting(held, chunks)
        key = b"".join(np.packbits(each).tobytes() for each in fits)
        if key not in self._kept:
            found = np.full((4, *self.serves.shape), np.inf)
            for mode, fit in reversed(list(zip(self.modes, fits, strict=True))):
                found[:, fit] = self.costs[mode][:4][:, fit]
            self._kept[key] = Times(*found)
        return self._kept[key]

    def placement(self, compositions: Any, cuts: Any) -> Placement:
        """A placement with stages of these compositions, cut at these layers; GPUs of a class by id."""
        used, stages = np.zeros(len(self.classes), dtype=int), []
        for c, low, high in zip(compositions, cuts[:-1], cuts[1:], strict=True):
            gpus: list[int] = []
            for a, count in enumerate(self.composition[c].tolist()):
                gpus += self.classes.members[a][used[a] : used[a] + count].tolist()
                used[a] += count
            stages.append(Stage(range(int(low), int(high)), tuple(sorted(gpus))))
        return Placement(tuple(stages))


def stages_in_training(
    problem: Problem,
    recompute: str | None,
    bytes_per_parameter: float | None,
    deadline: Deadline,
) -> Stages:
    """Ask the cost model for every stage.

    Raises
    ------
    InvalidValue
        A recipe is given, and the cost model knows none or does not take it.
    TooLarge
        There are too many stages to ask for, or layers.
    Ended
    """
    classes = find_classes(problem.cluster, deadline)
    composition = np.array(list(_compositions(problem, classes)))
    runs = runs_of(problem.model)
    size = len(composition) * len(runs.layers)
    if problem.model.layers > MOST_LAYERS or size > MOST_STAGES:
        text = f"{size:,} kinds of stage of {problem.model.layers:,} layers"
        remedy = (
            f"at most {MOST_STAGES:,} and {MOST_LAYERS} are compared; take fewer GPUs per stage"
        )
        raise TooLarge(f"step_time: {text}; {remedy}", {"stages": size})
    recipe = {} if bytes_per_parameter is None else {"bytes_per_parameter": bytes_per_parameter}
    modes = _modes(problem, recompute, bytes_per_parameter)
    kinds = problem.cluster.kinds
    by_kind = composition @ np.eye(len(kinds), dtype=int)[classes.kind]
    tables = stage_tables(
        problem.costs, problem.model, problem.workload, kinds, by_kind, problem.batch_split
    )
    costs = {mode: np.zeros((8, *tables.throughput.shape)) for mode in modes}
    known: dict[tuple, np.ndarray] = {}
    for mode in modes:
        if mode is None:
            # Without more being known, both gradients take as long as the forward.
            costs[mode][:3] = _seconds(problem, tables)
            continue
        for c, counts in enumerate(composition):
            deadline.check()
            ids = [int(g) for a, n in enumerate(counts) for g in classes.members[a][:n]]
            key = (mode, *_inside(classes, counts))
            if key not in known:
                known[key] = _costs(problem, ids, mode, recipe, tables.throughput[c] > 0, deadline)
            costs[mode][:, c] = known[key]
    fits = tables.fits(kinds)
    for found in costs.values():
        _refuse_no_time(problem, found[:, fits])
    memory = np.array([classes.gpu(a).memory_gb for a in range(len(classes))])
    offered = np.where(composition > 0, memory, np.inf).min(axis=1)
    return Stages(
        problem,
        classes,
        composition,
        modes,
        costs,
        fits,
        offered,
        _hops(problem, classes, composition, deadline),
        {},
    )


def _refuse_no_time(problem: Problem, found: np.ndarray) -> None:
    """Raise `InvalidValue` for stages whose microbatches take no time, or for what is no number."""
    for name, values in zip(TrainingCost._fields, found, strict=True):
        wrong = values[~(values >= 0)]  # infinite: the stage cannot be
        if len(wrong):
            expected = "expected a number of at least 0"
            raise InvalidValue(
                f"{type(problem.costs).__name__}.training_cost", [(name, float(wrong[0]), expected)]
            )
    if (found[:3].sum(axis=0) <= 0).any():
        expected = "expected more than 0 seconds for forward and backward together"
        raise InvalidValue(
            f"{type(problem.costs).__name__}.training_cost", [("forward", 0.0, expected)]
        )


def _seconds(problem: Problem, tables: StageTables) -> np.ndarray:
    """Of a microbatch in whole sequences, forward."""
    if tables.pass_seconds is not None:
        return tables.pass_seconds
    rate = np.where(tables.throughput > 0, tables.throughput, np.nan)
    return problem.workload.tokens / rate


def _inside(classes: Classes, counts: np.ndarray) -> tuple[bytes, ...]:
    """All that the times of a stage may depend on: every GPU's kind, and the link of every pair."""
    here = np.repeat(np.arange(len(counts)), counts)
    apart = ~np.eye(len(here), dtype=bool)
    links = (
        each[np.ix_(here, here)][apart] for each in (classes.bandwidth_gb_per_s, classes.latency_ms)
    )
    return classes.kind[here].tobytes(), *(each.tobytes() for each in links)


def _costs(
    problem: Problem,
    ids: list[int],
    mode: str,
    recipe: Mapping[str, Any],
    exists: np.ndarray,
    deadline: Deadline,
) -> np.ndarray:
    """The fields of `TrainingCost` for every kind of run on these GPUs, (8, U)."""
    more = recipe if mode == "none" else {"recompute": mode, **recipe}
    if hasattr(problem.costs, "training_table"):
        table = problem.costs.training_table(problem, ids, **more)
        if table is not None:
            return table
    starts, sizes = runs_of(problem.model).examples
    found = np.zeros((8, len(starts)))
    for u, (start, n) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        deadline.check()
        if exists[u]:
            report = _report(problem, ids, range(start, start + n))
            found[:, u] = problem.costs.training_cost(problem, report, **more)
    return found


def _compositions(problem: Problem, classes: Classes) -> Iterator[list[int]]:
    """Every number of GPUs of each class that a stage may have."""
    count, types = classes.count.tolist(), [classes.gpu(a).type for a in range(len(classes))]

    def more(first: int, left: int, taken: list[int]) -> Iterator[list[int]]:
        for a in range(first, len(count)):
            alike = all(types[b] == types[a] for b, n in enumerate(taken) if n)
            if problem.same_type_stages and not alike:
                continue
            for n in range(1, min(left, count[a]) + 1):
                grown = [*taken[:a], n, *taken[a + 1 :]]
                yield grown
                if left > n:
                    yield from more(a + 1, left - n, grown)

    for made, one in enumerate(more(0, problem.max_gpus_per_stage, [0] * len(count)), 1):
        if made > MOST_STAGES:
            raise TooLarge(
                f"step_time: more than {MOST_STAGES:,} compositions of a stage; take fewer GPUs per stage",
                {"compositions": made},
            )
        yield one


def _modes(
    problem: Problem, recompute: str | None, bytes_per_parameter: float | None
) -> tuple[str | None, ...]:
    if recompute is not None and recompute not in RECOMPUTE:
        expected = f"expected one of {', '.join(RECOMPUTE)}"
        raise InvalidValue("solve", [("recompute", recompute, expected)])
    if hasattr(problem.costs, "training_cost"):
        return ("none", "full") if recompute == "auto" else (recompute or "none",)
    for name, value in (("recompute", recompute), ("bytes_per_parameter", bytes_per_parameter)):
        if value is not None:
            expected = "expected a cost model that knows what training keeps, such as Roofline"
            raise InvalidValue("solve", [(name, value, expected)])
    return (None,)


def _report(problem: Problem, ids: list[int], layers: range) -> StageReport:
    gpus = [problem.cluster.gpus[g] for g in ids]
    cost = answered(
        problem.costs, problem.model, problem.workload, gpus, layers, problem.batch_split
    )
    seconds = cost.pass_seconds
    if seconds is None:
        seconds = problem.workload.tokens / cost.throughput if cost.throughput > 0 else np.inf
    types, limits = tuple(g.type for g in gpus), tuple(g.memory_gb for g in gpus)
    stage = Stage(layers, tuple(ids))
    return StageReport(
        stage, types, cost.batch, cost.memory_gb, limits, cost.throughput, seconds, cost.degree
    )


def _hops(
    problem: Problem, classes: Classes, composition: np.ndarray, deadline: Deadline
) -> np.ndarray:
    """Between the slowest pair of GPUs, in the slower direction; infinite where there is no link."""
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.asarray(
            in_training(problem).message_seconds(classes.bandwidth_gb_per_s, classes.latency_ms)
        )
    between = np.maximum(seconds, seconds.T)
    between = np.where(between <= _LONGEST, between, np.inf)
    count, present = len(composition), composition > 0
    from_any = np.zeros((count, len(classes)))  # of a composition's GPUs, to one of a class
    for a in range(len(classes)):
        np.maximum(from_any, np.where(present[:, a, None], between[a], 0.0), out=from_any)
    slowest = np.zeros((count, count))
    for b in range(len(classes)):
        deadline.check()
        to = present[:, b]
        slowest[:, to] = np.maximum(slowest[:, to], from_any[:, b, None])
    return slowest
