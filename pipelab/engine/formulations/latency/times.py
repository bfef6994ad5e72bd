"""What every stage and every hop adds to the time of a pass.

A stage is a composition (so many GPUs of each class) with a kind of span. Its time is that of a
pass of whole sequences; its rate, which the floor is about, may be that of GPUs that take turns
(`turns`). Left out, because no placement of lowest latency needs it:

- a stage or link below the floor: it may not be used at all;
- a stage that is no quicker than one with a part of its GPUs: the others can be sent home, and
  no link gets slower by that.

A hop costs what its slowest pair of classes costs, so it depends on the sets of classes that
meet. Sets with equal times to and from every class are one *group*.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.aggregated.classes import Classes, find_classes
from pipelab.engine.formulations.count import compositions
from pipelab.engine.instance import Instance, refuse_many_compositions
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.stage_arrays import stage_tables
from pipelab.engine.tolerances import LAST_BITS
from pipelab.errors import TooLarge
from pipelab.problem import Problem

_MOST_GROUPS = 1_000  # their pairs are listed


@dataclass(frozen=True, eq=False)
class PassTimes:
    """Times of stages and hops that reach the floor, in seconds; infinite for the others.

    Attributes
    ----------
    composition : int array, shape (C, A)
        GPUs of each class.
    stage : float array, shape (C, U)
        With every kind of span (`Model.spans`).
    group : int array, shape (C,)
        What a stage is to its neighbours.
    hop : float array, shape (G, G)
        From a stage of one group to a stage of another.
    """

    problem: Problem
    classes: Classes
    composition: np.ndarray
    stage: np.ndarray
    group: np.ndarray
    hop: np.ndarray
    deadline: Deadline = NEVER  # for whatever is built of them

    def up_to(self, most: float) -> tuple["PassTimes", float]:
        """The same without stages and hops that take longer, and the least time of one that does."""
        left_out = [
            np.where(t > most, t, np.inf).min(initial=np.inf) for t in (self.stage, self.hop)
        ]
        stage, hop = (np.where(t <= most, t, np.inf) for t in (self.stage, self.hop))
        return replace(self, stage=stage, hop=hop), float(min(left_out))

    @cached_property
    def shortest(self) -> tuple[np.ndarray, np.ndarray]:
        """Least time to every boundary between layers from the start, and from it to the end; shape (M+1,) each.

        As if GPUs were unlimited and every hop took the least time: a lower bound.
        """
        kind, layers = runs_of(self.problem.model).kind, self.problem.model.layers
        best, hop = self.stage.min(axis=0, initial=np.inf), self.hop.min(initial=np.inf)
        there, back = np.full((2, layers + 1), np.inf)
        there[0] = back[layers] = 0.0
        for b in range(1, layers + 1):
            self.deadline.check()
            first = np.arange(b)
            there[b] = (
                there[:b] + best[kind[first, b - 1 - first]] + np.where(first > 0, hop, 0.0)
            ).min()
        for a in range(layers - 1, -1, -1):
            self.deadline.check()
            last = np.arange(a + 1, layers + 1)
            back[a] = (
                back[last] + best[kind[a, last - a - 1]] + np.where(last < layers, hop, 0.0)
            ).min()
        return there, back

    @property
    def bound(self) -> float:
        """No placement is quicker, whatever GPUs there are; infinite where none reaches the floor."""
        return float(self.shortest[0][-1])

    def through(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Least time of all that surrounds a stage from boundary `first` to boundary `last`."""
        there, back = self.shortest
        hop = self.hop.min(initial=np.inf)
        outside = there[first] + back[last]
        # Where a hop is infinite there is none to take: a stage of all layers must not be
        # multiplied by it.
        return (
            outside
            + np.where(first > 0, hop, 0.0)
            + np.where(last < self.problem.model.layers, hop, 0.0)
        )


def pass_times(problem: Problem, floor: float, deadline: Deadline = NEVER) -> PassTimes:
    """Times of all stages and hops of at least `floor` tokens/s; raises `Ended` at the deadline.

    Raises
    ------
    TooLarge
        Too many compositions of too many classes.
    """
    classes = find_classes(problem.cluster, deadline)
    refuse_many_compositions(problem, classes)
    gpus = [classes.gpu(a) for a in range(len(classes))]
    composition = compositions(problem, gpus, classes.count.tolist(), deadline)
    stage = _stage_times(problem, classes, composition, floor, deadline)
    stage = _without_the_idle(composition, stage, deadline)
    used = np.isfinite(stage).any(axis=1)
    composition, stage = composition[used], stage[used]
    group, hop = _hops(composition > 0, _class_hops(problem, classes, floor), deadline)
    return PassTimes(problem, classes, composition, stage, group, hop, deadline)


def times_of(instance: Instance, floor: float, deadline: Deadline = NEVER) -> PassTimes:
    """The same from the arrays of a problem."""
    stage = np.where(instance.useful(instance.rate >= floor), instance.seconds, np.inf)
    used = np.isfinite(stage).any(axis=1)
    composition, stage = instance.composition[used], stage[used]
    hop = np.where(instance.link >= floor, instance.hop, np.inf)
    group, hop = _hops(composition > 0, hop, deadline)
    return PassTimes(instance.problem, instance.classes, composition, stage, group, hop, deadline)


def bound_of_more(times: PassTimes, problem: Problem, floor: float, deadline: Deadline) -> float:
    """The bound of `times` for a larger cluster, whose stages are no others but whose hops may be shorter."""
    classes = find_classes(problem.cluster, deadline)
    least = _class_hops(problem, classes, floor).min(initial=np.inf)
    return replace(times, hop=np.minimum(times.hop, least)).bound


def _stage_times(
    problem: Problem, classes: Classes, composition: np.ndarray, floor: float, deadline: Deadline
) -> np.ndarray:
    """Seconds of every composition with every kind of span; infinite where it does not fit or is below the floor."""
    kinds = problem.cluster.kinds
    by_kind = composition @ (classes.kind[:, None] == np.arange(len(kinds))).astype(int)
    different, which = np.unique(by_kind, axis=0, return_inverse=True)
    seconds = np.empty((len(different), len(runs_of(problem.model).layers)))
    # in parts, none of which takes long
    step = max(1, 1_000_000 // (len(kinds) * seconds.shape[1]))
    for i in range(0, len(different), step):
        deadline.check()
        part = different[i : i + step]
        tables = stage_tables(
            problem.costs, problem.model, problem.workload, kinds, part, problem.batch_split
        )
        fine = tables.fits(kinds) & (tables.throughput > 0) & (tables.throughput >= floor)
        seconds[i : i + step] = problem.workload.tokens / np.where(fine, tables.throughput, 1.0)
        if tables.pass_seconds is not None:
            seconds[i : i + step] = tables.pass_seconds
        seconds[i : i + step][~fine] = np.inf
    return seconds[which.reshape(-1)]


def _without_the_idle(composition: np.ndarray, stage: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Infinite where a part of the composition is as quick; smaller compositions come first."""
    number = {tuple(row): i for i, row in enumerate(composition.tolist())}
    out, best = np.full_like(stage, np.inf), stage.copy()
    for i, row in enumerate(composition.tolist()):
        deadline.check()
        before = np.full(stage.shape[1], np.inf)
        for a in np.flatnonzero(row) if sum(row) > 1 else ():
            before = np.minimum(before, best[number[(*row[:a], row[a] - 1, *row[a + 1 :])]])
        quicker = stage[i] < before * (1 - LAST_BITS)
        out[i, quicker] = stage[i, quicker]
        best[i] = np.minimum(stage[i], before)
    return out


def _class_hops(problem: Problem, classes: Classes, floor: float) -> np.ndarray:
    """Seconds from a GPU of one class to a GPU of another; shape (A, A)."""
    rate = problem.link_throughput(classes.bandwidth_gb_per_s)
    seconds = problem.message_seconds(classes.bandwidth_gb_per_s, classes.latency_ms)
    hop = np.where(rate >= floor, seconds, np.inf)
    for a in np.flatnonzero(classes.count == 1):
        # No GPU is on both sides, so any number will do; this one makes classes look equal that
        # are.
        others = np.delete(np.concatenate([hop[a], hop[:, a]]), [a, len(hop) + a])
        hop[a, a] = others.min(initial=np.inf)
    return hop


def _hops(
    support: np.ndarray, hop: np.ndarray, deadline: Deadline
) -> tuple[np.ndarray, np.ndarray]:
    """Group of every set of classes, and the time between any two groups."""
    sets, of = np.unique(support, axis=0, return_inverse=True)
    out, back = np.empty((len(sets), len(hop))), np.empty((len(sets), len(hop)))
    for i, s in enumerate(sets):
        deadline.check()
        out[i], back[i] = hop[s].max(axis=0), hop[:, s].max(axis=1)
    _, first, group = np.unique(
        np.hstack([out, back]), axis=0, return_index=True, return_inverse=True
    )
    if len(first) > _MOST_GROUPS:
        raise TooLarge(
            f"stages can meet in {len(first):,} different ways, whose pairs are too many to list; "
            "a smaller max_gpus_per_stage or same_type_stages=True leaves fewer",
            {"groups": len(first)},
        )
    between = np.empty((len(first), len(first)))
    for i, s in enumerate(sets[first]):
        deadline.check()
        between[:, i] = out[first][:, s].max(axis=1)
    return group.reshape(-1)[of.reshape(-1)], between
