"""A problem as arrays, made once: classes of GPUs, compositions of a stage, its rate and time, and the links.

A stage is a *composition* (how many GPUs of each class) with a kind of *span* (`layer_runs`). Nothing
behind this table asks the cost model again.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import Any

import numpy as np

from pipelab.costs import StageCost
from pipelab.engine.classes import Classes, find_classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.count import compositions
from pipelab.engine.layer_runs import Spans, runs_of
from pipelab.engine.stage_arrays import StageTables, stage_tables
from pipelab.engine.tolerances import LAST_BITS
from pipelab.errors import TooLarge
from pipelab.problem import Problem

_MOST_COMPOSITIONS = 200_000
_MOST_CELLS = 40_000_000  # compositions × kinds of span; 8 bytes each
_MOST_LAYERS = 5_000  # shortest paths over the layers look at all pairs of them
_CELLS_AT_ONCE = 1_000_000


@dataclass(frozen=True, eq=False)
class Instance:
    """The arrays of a problem, with memory for `Workload.in_memory` microbatches in flight.

    Attributes
    ----------
    problem : Problem
    classes : Classes
        A classes of interchangeable GPUs.
    composition : int array, shape (C, A)
        GPUs of each class in a stage; those of few GPUs first.
    rate, seconds : float arrays, shape (C, U)
        Of a stage with each kind of span: tokens/s (0 where it does not fit) and seconds of one
        microbatch (infinite where it does not fit).
    link, hop : float arrays, shape (A, A)
        Between GPUs of two classes, sender first: tokens/s and seconds of one message. A class of one
        GPU has no link to itself: there it has the best values of its other links.
    """

    problem: Problem
    classes: Classes
    composition: np.ndarray
    rate: np.ndarray
    seconds: np.ndarray
    link: np.ndarray
    hop: np.ndarray

    @property
    def spans(self) -> Spans:
        """The kinds of span."""
        return runs_of(self.problem.model)

    def same_times(self, other: "Instance") -> bool:
        """Whether the same stages fit, at the same rates and times."""
        return (
            np.array_equal(self.composition, other.composition)
            and np.array_equal(self.rate, other.rate)
            and np.array_equal(self.seconds, other.seconds)
        )

    @cached_property
    def part(self) -> np.ndarray:
        """Row of the composition with one GPU of each class fewer, -1 if there is none; shape (C, A)."""
        number = {row: i for i, row in enumerate(map(tuple, self.composition.tolist()))}
        out = np.full(self.composition.shape, -1)
        for i, a in np.argwhere(self.composition > 0).tolist():
            row = self.composition[i].tolist()
            row[a] -= 1
            out[i, a] = number.get(tuple(row), -1)
        return out

    def useful(self, good: np.ndarray) -> np.ndarray:
        """The stages among `good` that no part of their GPUs replaces at the same time or less; shape (C, U).

        The other GPUs can be left out, and no link is slower without them.
        """
        best = np.where(good, self.seconds, np.inf)
        out, size = np.zeros_like(good), self.composition.sum(axis=1)
        for gpus in range(1, int(size.max(initial=0)) + 1):
            rows = np.flatnonzero(size == gpus)
            before = np.full(best[rows].shape, np.inf)
            for part in self.part[rows].T:
                known = part >= 0
                before[known] = np.minimum(before[known], best[part[known]])
            out[rows] = best[rows] < before * (1 - LAST_BITS)
            best[rows] = np.minimum(best[rows], before)
        return out


class _AtBest:
    """A cost model in which every stage runs the mode of its greatest rate, in that rate's interval.

    Memory for more microbatches may force a stage into another execution mode (`Roofline`), whose
    time may be shorter. This one is no slower and takes no longer than any mode that still fits.
    """

    def __init__(self, costs: Any) -> None:
        self.costs = replace(costs, prefer="rate") if hasattr(costs, "prefer") else costs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.costs, name)

    def stage(self, *args: Any) -> StageCost:
        return self.costs.stage(*args)._replace(pass_seconds=None)

    def stage_tables(self, *args: Any) -> StageTables:
        return stage_tables(self.costs, *args)._replace(pass_seconds=None)


def at_best(problem: Problem) -> Problem:
    """A relaxation for this number of microbatches in flight and all larger ones."""
    return replace(problem, costs=_AtBest(problem.costs))


def instance_of(problem: Problem, deadline: Deadline = NEVER) -> Instance:
    """Compile a problem.

    Raises
    ------
    Ended
        The deadline was first.
    TooLarge
        There are too many compositions of too many classes.
    """
    classes = find_classes(problem.cluster, deadline)
    if problem.model.layers > _MOST_LAYERS:
        raise TooLarge(
            f"{problem.name} has {problem.model.layers:,} layers; times of traversals are searched up to "
            f"{_MOST_LAYERS:,}",
            {"layers": problem.model.layers},
        )
    refuse_many_compositions(problem, classes)
    gpus = [classes.gpu(a) for a in range(len(classes))]
    composition = compositions(problem, gpus, classes.count.tolist(), deadline)
    rate, seconds = _stages(problem, classes, composition, deadline)
    fits = (rate > 0).any(axis=1)
    bandwidth = classes.bandwidth_gb_per_s
    link = np.broadcast_to(problem.link_throughput(bandwidth), bandwidth.shape).copy()
    hop = np.zeros_like(link)
    if problem.link_units == "tokens":
        hop[:] = problem.message_seconds(bandwidth, classes.latency_ms)
    for a in np.flatnonzero(classes.count == 1) if len(classes) > 1 else ():
        others = np.arange(len(classes)) != a
        link[a, a] = max(link[a, others].max(), link[others, a].max())
        hop[a, a] = min(hop[a, others].min(), hop[others, a].min())
    return Instance(problem, classes, composition[fits], rate[fits], seconds[fits], link, hop)


def _stages(
    problem: Problem, classes: Classes, composition: np.ndarray, deadline: Deadline
) -> tuple[np.ndarray, np.ndarray]:
    """Rate and seconds of every composition with every kind of span; shape (C, U) each."""
    kinds = problem.cluster.kinds
    by_kind = composition @ (classes.kind[:, None] == np.arange(len(kinds))).astype(int)
    different, which = np.unique(by_kind, axis=0, return_inverse=True)
    spans = len(runs_of(problem.model).layers)
    rate, seconds = np.zeros((len(different), spans)), np.full((len(different), spans), np.inf)
    step = max(1, _CELLS_AT_ONCE // (len(kinds) * spans))
    for i in range(0, len(different), step):
        deadline.check()
        part = slice(i, i + step)
        tables = stage_tables(
            problem.costs,
            problem.model,
            problem.workload,
            kinds,
            different[part],
            problem.batch_split,
        )
        fits = tables.fits(kinds) & (tables.throughput > 0)
        rate[part] = np.where(fits, tables.throughput, 0.0)
        passes = tables.pass_seconds
        if passes is None:
            passes = problem.workload.tokens / np.where(fits, tables.throughput, 1.0)
        seconds[part] = np.where(fits, passes, np.inf)
    which = which.reshape(-1)
    return rate[which], seconds[which]


def refuse_many_compositions(problem: Problem, classes: Classes) -> None:
    """Raise `TooLarge` where there are more compositions of a stage than can be listed."""
    largest = min(problem.max_gpus_per_stage, len(problem.cluster))
    number = comb(len(classes) + largest, largest) - 1
    if problem.same_type_stages:  # of one type each
        types = [classes.gpu(a).type for a in range(len(classes))]
        number = sum(comb(types.count(t) + largest, largest) - 1 for t in set(types))
    if number > _MOST_COMPOSITIONS or number * len(runs_of(problem.model).layers) > _MOST_CELLS:
        raise TooLarge(
            f"{problem.name} has up to {number:,} ways to compose a stage of up to {largest} GPUs from {len(classes)} "
            "classes; a smaller max_gpus_per_stage or same_type_stages=True leaves fewer",
            {"compositions": number},
        )
